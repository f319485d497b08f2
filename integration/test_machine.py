"""More random sequences of operations than the tests beside the code have time for; the same ones each time."""

from __future__ import annotations

import pytest
import subjects
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from milepost.testing import FLAVOURS, Flavour, Subject
from milepost.testing.machine import machine
from steady import STEADY

LONGER = settings(STEADY, max_examples=50, stateful_step_count=40)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("subject", [subjects.Files, subjects.Redis, subjects.Postgres])
def test_any_sequence_of_operations(subject: type[Subject], flavour: Flavour) -> None:
    run_state_machine_as_test(machine(subject, flavour), settings=LONGER)
