"""How the behaviour suite becomes tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import subjects
from milepost.testing import Lab
from milepost.testing.suite import Behaviours, cases_of


class One(Behaviours):
    @pytest.mark.parametrize(("left", "right"), [(1, 2), pytest.param(3, 4, id="more")])
    @pytest.mark.parametrize("sign", [1, -1])
    async def test_it(self, lab: Lab, left: int, right: int, sign: int) -> None:
        await lab.saver.setup()
        assert (left + right) * sign == 7, (left, right, sign)


class Other(Behaviours):
    async def test_it(self, lab: Lab) -> None: ...


def test_two_behaviours_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="One and Other both have a test_it"):
        type("Both", (One, Other), {})
    chosen: Any = type("Chosen", (One, Other), {"test_it": Other.test_it})
    assert chosen.test_it is Other.test_it


def test_a_case_is_run_with_all_its_arguments(tmp_path: Path) -> None:
    failed: list[str] = []
    for number, (_, case) in enumerate(cases_of(type("Suite", (One,), {"subject": subjects.Memory}))):
        (tmp_path / str(number)).mkdir()
        try:
            case(tmp_path / str(number), "blocking")
        except AssertionError as exc:
            failed.append(str(exc).splitlines()[0])
    assert sorted(failed) == ["(1, 2, -1)", "(1, 2, 1)", "(3, 4, -1)"]
