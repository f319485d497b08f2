"""Random sequences of operations; the same ones each time, so that a failure is a change's and not chance's."""

from __future__ import annotations

import pytest
import subjects
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from milepost.memory import MemoryStore
from milepost.testing import FLAVOURS, Flavour, Subject
from milepost.testing.ledger_machine import ledger_machine
from milepost.testing.machine import machine
from planted import ledgers, parts, stores
from steady import STEADY

BOUNDED = settings(STEADY, stateful_step_count=30)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("subject", [subjects.Memory, subjects.Files, subjects.Redis, subjects.Postgres])
def test_any_sequence_of_operations(subject: type[Subject], flavour: Flavour) -> None:
    # There are more of them in `integration/test_machine.py`.
    shorter = settings(BOUNDED, max_examples=16 if subject is subjects.Memory else 8)
    run_state_machine_as_test(machine(subject, flavour), settings=shorter)


@pytest.mark.parametrize("fault", [stores.OrdinaryReplaces, stores.LatestByIdAlone, stores.DeletedComesBack])
def test_it_finds_mistakes(fault: type[MemoryStore]) -> None:
    unshrunk = settings(BOUNDED, phases=[Phase.generate], max_examples=200)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine(stores.subject(fault)), settings=unshrunk)


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("subject", [subjects.Memory, subjects.Files, subjects.Redis, subjects.Postgres])
def test_the_life_of_calls(subject: type[Subject], flavour: Flavour) -> None:
    shorter = settings(BOUNDED, max_examples=16 if subject is subjects.Memory else 8)
    run_state_machine_as_test(ledger_machine(subject, flavour), settings=shorter)


def test_it_finds_unconditional_settlements() -> None:
    unshrunk = settings(BOUNDED, phases=[Phase.generate], max_examples=200)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ledger_machine(stores.subject(ledgers.SettlesUnconditionally)), settings=unshrunk)


@pytest.mark.parametrize("fault", [ledgers.blind_retry, ledgers.an_expired_lease_is_free])
def test_it_finds_blind_retries(fault: parts.Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    unshrunk = settings(BOUNDED, phases=[Phase.generate], max_examples=200)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ledger_machine(subjects.Memory), settings=unshrunk)
