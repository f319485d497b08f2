"""What all tests share."""

from __future__ import annotations

import pytest
from one_flavour import spare

pytest.register_assert_rewrite("milepost.testing")

# `integration` tries them in both flavours, those of servers on another release.
_ONE_FLAVOUR = {("test_behaviour.py", name) for name in ("TestMemory", "TestFiles", "TestPostgres", "TestRedis")}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    spare(config, items, "tests", _ONE_FLAVOUR)
