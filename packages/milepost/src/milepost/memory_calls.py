"""The ledger's verbs over dictionaries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from milepost.callstore import (
    UNSETTLED,
    CallAnswer,
    CallChange,
    CallPage,
    CallQuery,
    CallRow,
    CallTable,
    call_cursor,
    call_order,
    from_cursor,
    refuse_unsettled,
)

T = TypeVar("T")


class CallData(Protocol):
    """What the verbs need of the data of a store in memory."""

    clock: Callable[[], float]
    calls: dict[str, CallTable]

    def refuse_the_late(self, thread: str, fence: int | None) -> None: ...

    def refuse_the_dead(self, thread: str, ns: str, named: Iterable[str], what: str) -> None: ...


class MemoryCalls(ABC):
    """`milepost.callstore.CallStore`, for a store whose data is in this process."""

    @property
    @abstractmethod
    def _ledger(self) -> CallData: ...

    @abstractmethod
    async def _step(self, step: Callable[[], T]) -> T: ...

    async def claim(
        self,
        thread: str,
        change: CallChange,
        *,
        beside: Collection[str] = (),
        after: Sequence[str] = (),
        fence: int | None = None,
    ) -> CallAnswer:
        data = self._ledger

        def step() -> CallAnswer:
            data.refuse_the_late(thread, fence)
            data.refuse_the_dead(thread, "", after, "a call")
            table = data.calls.setdefault(thread, CallTable())
            return table.change(thread, change, beside, data.clock())

        return await self._step(step)

    async def settle(self, thread: str, change: CallChange, *, fence: int | None = None) -> CallAnswer:
        data = self._ledger

        def step() -> CallAnswer:
            data.refuse_the_late(thread, fence)
            return data.calls.get(thread, CallTable()).change(thread, change, None, data.clock())

        return await self._step(step)

    async def calls(self, query: CallQuery, after: tuple[str, ...] | None, limit: int) -> CallPage:
        data = self._ledger

        def step() -> CallPage:
            asked = data.calls if query.thread is None else [query.thread]
            names = asked if query.thread is not None else [name for name in asked if name.startswith(query.prefix)]
            found = [row for name in names if name in data.calls for row in select(data.calls[name], query)]
            found.sort(key=call_order)
            if after is not None:
                bound = from_cursor(after)
                found = [row for row in found if call_order(row) > bound]
            rows = tuple(found[:limit])
            return CallPage(rows, call_cursor(rows[-1]) if len(found) > limit and rows else None, data.clock())

        return await self._step(step)

    async def forget(self, thread: str, listed: Collection[tuple[str, int]]) -> None:
        data = self._ledger

        def step() -> None:
            data.calls.get(thread, CallTable()).forget(listed)

        await self._step(step)


def select(table: CallTable, query: CallQuery) -> list[CallRow]:
    """The records of a table that a query asks for, in no order."""
    if query.keys is None:
        rows = list(table.rows.values())
    else:
        found = (table.find(key) for key in query.keys)
        rows = list({row.key: row for row in found if row is not None}.values())
    return [row for row in rows if query.states is None or row.state in query.states]


def refuse_unsettled_calls(calls: dict[str, CallTable], thread: str) -> None:
    """Raise `UnsettledCalls` where a deletion of the thread that is not forced does."""
    table = calls.get(thread, CallTable())
    refuse_unsettled(thread, (row.state for row in table.rows.values()))


def delete_calls(calls: dict[str, CallTable], thread: str) -> None:
    """What a deletion of the thread does to its records: see `Store.delete_thread`."""
    table = calls.get(thread)
    if table is None:
        return
    kept = CallTable()
    for row in table.rows.values():
        if row.state in UNSETTLED:
            kept.enter(row)
    if kept.rows:
        calls[thread] = kept
    else:
        del calls[thread]


def load_calls(calls: dict[str, CallTable], thread: str, rows: Iterable[CallRow]) -> None:
    """Take over records of a batch. One that is there already stays."""
    table = calls.setdefault(thread, CallTable())
    for row in rows:
        if table.find(row.key) is None:
            table.enter(row)
