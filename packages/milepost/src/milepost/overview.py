"""What a store holds, thread by thread, over the operations of a saver: how threads stand, and what is left of some."""

from __future__ import annotations

from typing import cast

from milepost.callstore import CALL_PAGE, CallQuery, CallStore
from milepost.errors import Corrupt, Unserializable
from milepost.operations import Operations
from milepost.reading import PAGE
from milepost.sides import Side
from milepost.store import Query, ThreadPage, ThreadRow
from milepost.unfinished import work_left


async def with_statuses(ops: Operations, side: Side, after: tuple[str, ...] | None) -> ThreadPage:
    """A page of threads, of which those whose owner is gone are looked at: whether there is work left."""
    page = await ops.threads(side, after)
    rows = [row if row.status != "abandoned" else await _judged(ops, side, row) for row in page.rows]
    return ThreadPage(tuple(rows), page.cursor)


async def _judged(ops: Operations, side: Side, row: ThreadRow) -> ThreadRow:
    try:
        found = await side.store.page(Query(thread=row.thread, ns="", id=row.head), None, 1, items=False)
        settled = bool(found.snapshots) and not work_left(ops.codec, found.snapshots[0])
    except (Corrupt, Unserializable) as exc:
        ops.report("threads", row.thread, exc.message)
        settled = False  # whoever resumes it will see
    return row._replace(settled=settled)


async def called(ops: Operations, side: Side) -> set[str]:
    """The threads of which the ledger has records; "" for those of global keys."""
    names: set[str] = set()
    if "ledger" not in ops.shared.backend.capabilities:
        return names
    store = cast("CallStore", await ops.open(side))
    after: tuple[str, ...] | None = None
    while True:
        page = await store.calls(CallQuery(), after, CALL_PAGE)
        names |= {row.thread for row in page.rows}
        if (after := page.cursor) is None:
            return names


async def alone(ops: Operations, side: Side) -> set[str]:
    """The threads of which there is nothing but what a copy, or a restoration, had brought before it ended."""
    names: set[str] = set()
    store = await ops.open(side)
    after: tuple[str, ...] | None = None
    while True:
        page = await store.strays(after, PAGE)
        names |= {one.thread for one in page.found if one.kind == "thread"}
        if (after := page.cursor) is None:
            return names
