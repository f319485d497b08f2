"""Transactional tools: the effect and its record are committed together, or not at all."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from milepost.errors import InvalidConfig
from milepost.ledger import (
    CallInDoubt,
    CallRequest,
    CallSuperseded,
    CallUnrecorded,
    Ledger,
    LedgerError,
    Run,
    current_call,
    transactional,
)
from milepost.memory import MemoryBackend
from milepost.saver import Saver
from postgres.kit import Place

Sql = psycopg.Connection[Any]

REQUEST = CallRequest(tool="pay", arguments={"amount": 5}, thread="t", message="m1", call="c1")


class Bank:
    """A table of the application's beside the ledger's."""

    def __init__(self, place: Place, sql: Sql) -> None:
        self.saver = Saver(place.backend())
        self.saver.setup()
        self.sql = sql
        self.opened: list[Sql] = []
        self.base = place.base
        self.table = f"{place.schema}.payment"
        sql.execute(f"CREATE TABLE {self.table} (amount int)".encode())

    def ledger(self, saver: Saver | None = None, **options: Any) -> Ledger:
        tools = {"pay": transactional(max_duration=0)}
        given: dict[str, Any] = {"tools": tools, "lease": "1h", "wait_timeout": 0, "skew": 0, **options}
        return Ledger(saver or self.saver, **given)

    def pay(self, *, settles: bool = True, fails: bool = False, ends: bool = True) -> str:
        connection = self.connect()
        connection.execute(f"INSERT INTO {self.table} VALUES (5)".encode())
        if settles:
            current_call().settle_with(connection, {"paid": 5})
        if fails:
            connection.rollback()
            raise RuntimeError("the tool failed")
        if ends:
            connection.commit()
        return "paid"

    def connect(self, **options: Any) -> Sql:
        self.opened.append(psycopg.connect(self.base, **options))
        return self.opened[-1]

    def count(self) -> int:
        return len(self.sql.execute(f"SELECT FROM {self.table}".encode()).fetchall())


@pytest.fixture
def bank(place: Place, sql: Sql) -> Iterator[Bank]:
    bank = Bank(place, sql)
    yield bank
    bank.saver.close()
    for connection in bank.opened:
        connection.close()


def _settle_with(connection: object) -> None:
    current_call().settle_with(connection)


def test_together(bank: Bank) -> None:
    ledger = bank.ledger()
    assert ledger.perform(REQUEST, bank.pay).result == "paid"
    assert ledger.perform(REQUEST, bank.pay).result == {"paid": 5}
    assert bank.count() == 1
    assert [record.state for record in ledger.calls("t")] == ["succeeded"]


def test_what_is_settled_is_not_checked_before_its_transaction_ends(bank: Bank) -> None:
    """It would wait for itself."""
    ledger = bank.ledger()

    def pay() -> str:
        connection = bank.connect()
        connection.execute(f"INSERT INTO {bank.table} VALUES (5)".encode())
        current_call().settle_with(connection, "paid")
        with pytest.raises(InvalidConfig, match="still open"):
            current_call().check()
        connection.commit()
        return "paid"

    assert ledger.perform(REQUEST, pay).result == "paid"
    assert bank.count() == 1


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_savepoint_that_is_rolled_back_in_a_transaction_that_is_not(
    bank: Bank, place: Place, tenant: str | None
) -> None:
    """The effect is there, and what settles it is not: nobody may perform it again by himself."""

    def pay(*, commits: bool = True) -> str:
        with bank.connect() as connection:
            connection.execute(f"INSERT INTO {bank.table} VALUES (5)".encode())
            with suppress(ZeroDivisionError), connection.transaction():
                current_call().settle_with(connection, "paid")
                raise ZeroDivisionError
            if not commits:
                connection.rollback()
        return "paid"

    with Saver(place.backend(), tenant=tenant) as saver:
        ledger = bank.ledger(saver)
        with pytest.raises(CallUnrecorded):
            ledger.perform(REQUEST, lambda: pay(commits=False))
        assert [record.state for record in ledger.calls("t")] == ["failed"]
        with pytest.raises(CallUnrecorded):
            ledger.perform(REQUEST, pay)
        with pytest.raises(CallInDoubt, match="savepoint"):
            ledger.perform(REQUEST, pay)
    assert bank.count() == 1


def test_not_at_all(bank: Bank) -> None:
    ledger = bank.ledger()
    with pytest.raises(RuntimeError):
        ledger.perform(REQUEST, lambda: bank.pay(fails=True))
    assert [record.state for record in ledger.calls("t")] == ["failed"]
    assert (bank.count(), ledger.perform(REQUEST, bank.pay).result) == (0, "paid")
    assert bank.count() == 1


async def test_async(bank: Bank) -> None:
    ledger = bank.ledger()

    async def pay() -> str:
        async with await psycopg.AsyncConnection.connect(bank.base) as connection:
            await connection.execute(f"INSERT INTO {bank.table} VALUES (5)".encode())
            await current_call().asettle_with(connection, "recorded")
        return "paid"

    assert (await ledger.aperform(REQUEST, pay)).result == "paid"
    assert (await ledger.aperform(REQUEST, pay)).result == "recorded"
    assert bank.count() == 1
    await bank.saver.aclose()


def test_what_was_not_committed_did_not_happen(bank: Bank) -> None:
    entry = bank.ledger(lease=0).enter(REQUEST)
    assert isinstance(entry, Run)
    slow = bank.connect()
    slow.execute(f"INSERT INTO {bank.table} VALUES (5)".encode())
    ledger = bank.ledger()
    assert ledger.perform(REQUEST, bank.pay).result == "paid"
    with pytest.raises(CallSuperseded):
        entry.call.settle_with(slow)
    slow.rollback()
    assert bank.count() == 1


def test_a_commit_that_is_faster_than_who_takes_over(bank: Bank) -> None:
    entry = bank.ledger(lease=0).enter(REQUEST)
    assert isinstance(entry, Run)
    with psycopg.connect(bank.base) as slow:
        slow.execute(f"INSERT INTO {bank.table} VALUES (5)".encode())
        entry.call.settle_with(slow, "slow")
    assert bank.ledger().perform(REQUEST, bank.pay).result == "slow"
    assert bank.count() == 1


def test_a_tool_that_does_not_settle(bank: Bank) -> None:
    ledger = bank.ledger()
    with pytest.raises(CallUnrecorded, match="settle_with"):
        ledger.perform(REQUEST, lambda: bank.pay(settles=False))
    with pytest.raises(CallInDoubt):
        ledger.perform(REQUEST, bank.pay)
    assert bank.count() == 1


def test_a_transaction_that_is_left_open(bank: Bank) -> None:
    with pytest.raises(CallUnrecorded, match="still open"):
        bank.ledger().perform(REQUEST, lambda: bank.pay(ends=False))
    bank.opened[-1].commit()
    assert bank.ledger().perform(REQUEST, bank.pay).result == {"paid": 5}
    assert bank.count() == 1


def test_what_cannot_be_joined(bank: Bank) -> None:
    ledger = bank.ledger()
    for wrong in (object(), bank.connect(autocommit=True)):
        with pytest.raises(InvalidConfig, match="connection"):
            ledger.perform(REQUEST, functools.partial(_settle_with, wrong))
    memory = Ledger(Saver(MemoryBackend()), tools={"pay": transactional})
    with pytest.raises(LedgerError, match="transactional"):
        memory.perform(REQUEST, bank.pay)
