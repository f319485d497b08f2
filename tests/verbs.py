"""Every verb of a store, to be interrupted: what it does to a thread, and what there is of the thread afterwards."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

from milepost.callstore import CallChange, CallPage, CallQuery, CallStore
from milepost.store import Batch, Chart, CheckpointRow, Drop, Pack, Query, Span, Store, WriteRow

Verb = Callable[[Store, str], Coroutine[Any, Any, Any]]
"""Something that is done to a thread in which `scene` was put up."""

LEASED = " leased"
"""What follows the name of a thread in that of another one, which "mine" has the lease of."""
COPY = " copy"
CALL = CallChange("old", None, 1, 1, "started", "stamp 1", b"entry 1", owner="me", lease=3600.0, call=b"call")


def named(number: int) -> str:
    return f"{number:04}"


def row(number: int, *, parent: int | None = None) -> tuple[CheckpointRow, tuple[Pack, ...]]:
    """A checkpoint with one item of its own, and the pack that the item lies in."""
    span = Span(7, number, 1)
    above = None if parent is None else named(parent)
    made = CheckpointRow("", named(number), above, f"header {number}".encode(), (span,))
    return made, (Pack(*span, f"item {number}".encode()),)


def write(value: bytes = b"v", task: str = "task") -> WriteRow:
    return WriteRow(task, 0, "path", "c", value)


async def scene(store: Store, thread: str) -> None:
    """A thread with two checkpoints, a pending write and a call; another one that somebody has the lease of."""
    await store.put(thread, *row(1), None)
    await store.put(thread, *row(2, parent=1), None)
    await store.put_writes(thread, "", named(2), [write(task="first")], None)
    await _calls(store).claim(thread, CALL)
    await store.acquire(thread + LEASED, "mine", 3600.0)


async def state(store: Store, thread: str) -> Any:
    """All that is stored of the threads of a scene, but for times and random numbers."""
    found: list[Any] = []
    for name in (thread, thread + LEASED, thread + COPY):
        chart = await store.chart(name)
        if chart is not None:
            rows = sorted((one.ns, one.id, one.parent, one.key, one.header, one.spans) for one in chart.rows)
            found += [rows, sorted(chart.writes.items()), sorted(chart.packs)]
        holder = await store.holder(name)
        calls = (await _calls(store).calls(CallQuery(name), None, 10)).rows
        records = [replace(one, thread="", started=0.0, until=0.0, updated=0.0) for one in calls]
        found += [holder and holder.owner, records]
    return found


async def _settle(store: Store, thread: str) -> Any:
    (held,) = (await _calls(store).calls(CallQuery(thread), None, 10)).rows
    change = CallChange("old", held.mark, 1, 1, "succeeded", "stamp 2", b"entry 2", outcome=b"outcome")
    return await _calls(store).settle(thread, change)


async def _drop(store: Store, thread: str) -> bool:
    chart = await _chart(store, thread)
    parents = (("", named(2), None),)
    return await store.drop(thread, Drop((("", named(1)),), parents, (Span(7, 1, 1),)), chart.token) is not None


async def _rewrite(store: Store, thread: str) -> bool:
    chart = await _chart(store, thread)
    other = [one._replace(header=b"other") for one in chart.rows if one.id == named(2)]
    batch = Batch(tuple(other), (("", named(2), write(b"w", "other")),), (Pack(8, 1, 1, b"other item"),))
    return await store.rewrite(thread, batch, chart.token) is not None


async def _chart(store: Store, thread: str) -> Chart:
    chart = await store.chart(thread)
    assert chart is not None
    return chart


async def _export(store: Store, thread: str) -> list[Batch]:
    """All of it, a little at a time."""
    found: list[Batch] = []
    after: tuple[str, ...] | None = None
    while batch := await store.export(thread, after, 1):
        found.append(batch)
        if (after := batch.cursor) is None:
            break
    return found


async def _load(store: Store, thread: str) -> None:
    batch = await store.export(thread, None, 100)
    assert batch is not None
    records = (await _calls(store).calls(CallQuery(thread), None, 10)).rows
    await store.load(thread + COPY, replace(batch, calls=records, cursor=None))


def shown(answer: Any) -> Any:
    """An answer without the time of the store."""
    return answer._replace(now=0.0) if isinstance(answer, CallPage) else answer


def _calls(store: Store) -> CallStore:
    return cast("CallStore", store)


CHANGES: dict[str, Verb] = {
    "put": lambda store, thread: store.put(thread, *row(3, parent=2), None),
    "put a new thread": lambda store, thread: store.put(thread + COPY, *row(1), None),
    "put_writes": lambda store, thread: store.put_writes(thread, "", named(2), [write()], None),
    "put_writes of a new thread": lambda store, thread: store.put_writes(thread + COPY, "", "1", [write()], None),
    "drop": _drop,
    "rewrite": _rewrite,
    "load": _load,
    "delete_thread": lambda store, thread: store.delete_thread(thread, force=True),
    "acquire": lambda store, thread: store.acquire(thread, "mine", 3600.0),
    "renew": lambda store, thread: store.renew(thread + LEASED, "mine", 0, 3600.0),
    "release": lambda store, thread: store.release(thread + LEASED, "mine"),
    "claim": lambda store, thread: _calls(store).claim(thread, replace(CALL, key="new")),
    "settle": _settle,
}
READS: dict[str, Verb] = {
    "get": lambda store, thread: store.get(thread, "", None),
    "page": lambda store, thread: store.page(Query(thread=thread), None, 5),
    "lineage": lambda store, thread: store.lineage(thread, "", None, None, None, 5),
    "fetch": lambda store, thread: store.fetch(thread, [Span(7, 1, 2)]),
    "threads": lambda store, _: store.threads(None, 5),
    "chart": lambda store, thread: store.chart(thread),
    "outline": lambda store, thread: store.outline(thread),
    "rows": lambda store, thread: store.rows(thread, [("", named(2))]),
    "export": _export,
    "holder": lambda store, thread: store.holder(thread + LEASED),
    "calls": lambda store, thread: _calls(store).calls(CallQuery(thread), None, 5),
    "stats": lambda store, thread: store.stats(thread),
}
VERBS: dict[str, Verb] = {"setup": lambda store, _: store.setup(), **CHANGES, **READS}
