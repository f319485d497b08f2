"""The verbs of the file store. Each is one request to the port; what it does lies in the modules it calls."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from milepost.callstore import CallAnswer, CallChange, CallPage, CallQuery, drawer
from milepost.draws import draw
from milepost.errors import Corrupt
from milepost.fences import Lease, acquired, released, renewed
from milepost.store import (
    Batch,
    Chart,
    CheckpointRow,
    Drop,
    Loaded,
    Outline,
    Pack,
    Port,
    Put,
    Query,
    Span,
    Stats,
    ThreadPage,
    WriteRow,
    Wrote,
)
from milepost.strays import StrayPage

from milepost_files import charting, listing, sweeping
from milepost_files.changes import (
    ChangeCall,
    DeleteThread,
    DropSome,
    ForgetCalls,
    LoadBatch,
    PutCheckpoint,
    PutWrites,
    Rewrite,
)
from milepost_files.driver import Commit
from milepost_files.export import export
from milepost_files.forgetting import forget
from milepost_files.index import Index, Row
from milepost_files.leases import ChangeLease, holder
from milepost_files.log import Change
from milepost_files.reading import Found, Reader, fetch, find, reading, spans_in
from milepost_files.root import Root

T = TypeVar("T")


class Operation:
    """A request that needs no lock: a function of no arguments, and what to call it in errors."""

    __slots__ = ("op", "prepares", "step")

    def __init__(self, op: str, step: Callable[[], object], *, prepares: bool = False) -> None:
        self.op = op
        self.step = step
        self.prepares = prepares
        """Whether it is what makes the store's folder."""

    def __call__(self) -> object:
        return self.step()


class FilesStore:
    """`milepost.store.Store` over a folder of logs."""

    def __init__(self, root: Root, port: Port, close: Callable[[], None]) -> None:
        self._root = root
        self._port = port
        self._close = close

    async def setup(self) -> None:
        await self._port.call(Operation("set up", self._root.setup, prepares=True))

    async def put(
        self,
        thread: str,
        row: CheckpointRow,
        packs: Sequence[Pack],
        generation: int | None,
        *,
        fence: int | None = None,
        heads: Sequence[str] | None = None,
        merged: Pack | None = None,
    ) -> Put:
        change = PutCheckpoint(thread, row, packs, generation, fence, heads, merged)
        await self._commit(thread, change, "put a checkpoint")
        return change.answer

    async def put_writes(
        self,
        thread: str,
        ns: str,
        checkpoint: str,
        rows: Sequence[WriteRow],
        generation: int | None,
        *,
        fence: int | None = None,
    ) -> Wrote:
        change = PutWrites(thread, ns, checkpoint, rows, generation, fence)
        await self._commit(thread, change, "put pending writes")
        return change.answer

    async def get(self, thread: str, ns: str, id: str | None) -> Loaded | None:
        return await self._call("read a checkpoint", lambda: _get(self._root, thread, ns, id))

    async def page(self, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool = True) -> Loaded:
        return await self._call("list checkpoints", lambda: listing.page(self._root, query, after, limit, items=items))

    async def lineage(
        self,
        thread: str,
        ns: str,
        id: str | None,
        channels: Sequence[str] | None,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Loaded | None:
        return await self._call("read a lineage", lambda: _lineage(self._root, thread, ns, id, channels, after, limit))

    async def fetch(self, thread: str, spans: Sequence[Span]) -> Sequence[Pack]:
        return await self._call("read items", lambda: _fetch(self._root, thread, spans))

    async def threads(self, after: tuple[str, ...] | None, limit: int, prefix: str = "") -> ThreadPage:
        return await self._call("list threads", lambda: listing.threads(self._root, after, limit, prefix))

    async def strays(
        self, after: tuple[str, ...] | None, limit: int, prefix: str = "", *, remove: bool = False
    ) -> StrayPage:
        return await self._call(
            "look for leftovers", lambda: sweeping.strays(self._root, after, limit, prefix, remove=remove)
        )

    async def chart(self, thread: str) -> Chart | None:
        return await self._call("chart a thread", lambda: charting.chart(self._root.log(thread)))

    async def outline(self, thread: str) -> Outline | None:
        return await self._call("outline a thread", lambda: charting.outline(self._root.log(thread)))

    async def rows(self, thread: str, places: Sequence[tuple[str, str]]) -> Batch:
        return await self._call("read checkpoints", lambda: charting.rows(self._root.log(thread), places))

    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        change = DropSome(drop, token, draw())
        await self._commit(thread, change, "drop checkpoints")
        return change.answer

    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        await self._commit(thread, DeleteThread(thread, force=force), "delete a thread")
        await self._call("forget deleted threads", lambda: forget(self._root, thread))

    async def export(self, thread: str, after: tuple[str, ...] | None, limit: int) -> Batch | None:
        return await self._call("export a thread", lambda: export(self._root.log(thread), after, limit))

    async def load(self, thread: str, batch: Batch) -> None:
        await self._commit(thread, LoadBatch(batch), "load a thread")

    async def acquire(self, thread: str, owner: str, ttl: float, over: int | None = None) -> Lease:
        change = ChangeLease(self._root.settings.uptime, lambda held, now: acquired(held, owner, ttl, over, now))
        await self._commit(thread, change, "take a lease")
        return change.answer

    async def renew(self, thread: str, owner: str, fence: int, ttl: float) -> Lease:
        change = ChangeLease(
            self._root.settings.uptime, lambda held, now: renewed(thread, held, owner, fence, ttl, now)
        )
        await self._commit(thread, change, "renew a lease")
        return change.answer

    async def holder(self, thread: str) -> Lease | None:
        return await self._call("read a lease", lambda: holder(self._root.log(thread)))

    async def release(self, thread: str, owner: str, error: str | None = None) -> None:
        change = ChangeLease(self._root.settings.uptime, lambda held, now: released(held, owner, error, now))
        await self._commit(thread, change, "give a lease back")

    async def claim(
        self,
        thread: str,
        change: CallChange,
        *,
        beside: Collection[str] = (),
        after: Sequence[str] = (),
        fence: int | None = None,
    ) -> CallAnswer:
        job = ChangeCall(thread, change, beside, after, fence)
        await self._commit(drawer(thread, change.key), job, "claim a call")
        return job.answer

    async def settle(self, thread: str, change: CallChange, *, fence: int | None = None) -> CallAnswer:
        job = ChangeCall(thread, change, None, (), fence)
        await self._commit(drawer(thread, change.key), job, "settle a call")
        return job.answer

    async def calls(self, query: CallQuery, after: tuple[str, ...] | None, limit: int) -> CallPage:
        return await self._call("list calls", lambda: listing.calls(self._root, query, after, limit))

    async def forget(self, thread: str, listed: Collection[tuple[str, int]]) -> None:
        await self._commit(thread, ForgetCalls(listed), "forget calls")

    async def rewrite(self, thread: str, batch: Batch, token: str) -> str | None:
        change = Rewrite(batch, token)
        await self._commit(thread, change, "rewrite checkpoints")
        return change.answer

    async def stats(self, thread: str | None) -> Stats:
        return await self._call("count", lambda: listing.stats(self._root, thread))

    async def close(self) -> None:
        self._close()

    async def _commit(self, thread: str, change: Change, op: str) -> None:
        await self._port.call(Commit(self._root.queue(thread), change, op))

    async def _call(self, op: str, step: Callable[[], T]) -> T:
        reply: Any = await self._port.call(Operation(op, step))
        answer: T = reply
        return answer


def _get(root: Root, thread: str, ns: str, id: str | None) -> Loaded | None:
    def plan(index: Index) -> tuple[Found, tuple[str, ...]] | None:
        row = _row(index, ns, id)
        return None if row is None else (find(index, ns, row), index.losses(ns, row.id))

    def read(reader: Reader, planned: tuple[Found, tuple[str, ...]] | None) -> Loaded | None:
        if planned is None:
            reader.missing(ns, id)
            return None
        found, losses = planned
        if id is not None and losses:
            words = "; ".join(losses)
            raise Corrupt(
                f"checkpoint {id!r} of thread {thread!r} is incomplete ({words}): go on from the latest checkpoint, "
                "which runs these tasks again, or restore the thread from a backup",
                thread=thread,
                ns=ns,
                checkpoint=id,
                damage=words,
            )
        snapshots = reader.snapshots((found,))
        packs = reader.packs(spans_in(snapshots))
        return Loaded(snapshots, {thread: packs}, damage=reader.told(losses))

    return reading(root.log(thread), plan, read)


def _row(index: Index, ns: str, id: str | None) -> Row | None:
    namespace = index.namespaces.get(ns)
    if namespace is None:
        return None
    return namespace.head() if id is None else namespace.rows.get(id)


@dataclass(slots=True)
class _Walk:
    """A page of a lineage. It ends before an ancestor that damage touches; the next page begins there, and says so."""

    found: list[Found]
    cursor: tuple[str, ...] | None = None
    damage: tuple[str, ...] = ()


def _lineage(
    root: Root,
    thread: str,
    ns: str,
    id: str | None,
    channels: Sequence[str] | None,
    after: tuple[str, ...] | None,
    limit: int,
) -> Loaded | None:
    wanted = None if channels is None else frozenset(channels)
    log = root.log(thread)

    def plan(index: Index) -> _Walk | None:
        start = _row(index, ns, id)
        if start is None:
            return None
        rows = index.namespaces[ns].rows
        row = rows.get(after[0]) if after else start
        walk = _Walk([])
        while row is not None and row.parent is not None:
            damage = _doubts(index, log.lost(index), ns, row.parent, wanted)
            if walk.found and (damage or walk.damage or len(walk.found) >= limit):
                walk.cursor = (row.id,)
                break
            walk.damage = damage
            row = rows.get(row.parent)
            if row is not None:
                walk.found.append(find(index, ns, row, wanted))
        return walk

    def read(reader: Reader, walk: _Walk | None) -> Loaded | None:
        if walk is None:
            reader.missing(ns, id)
            return None
        snapshots = reader.snapshots(walk.found)
        packs = reader.packs(spans_in(snapshots, rows=False))
        return Loaded(snapshots, {thread: packs}, walk.cursor, walk.damage)

    return reading(log, plan, read)


def _doubts(index: Index, lost: int, ns: str, id: str, channels: Collection[str] | None) -> tuple[str, ...]:
    """Why the writes of an ancestor may be incomplete, or why it may only seem not to be stored."""
    row = index.row(ns, id)
    if row is None:
        return () if lost < 0 else (f"checkpoint {id!r} is not found, and a frame of the log is lost at byte {lost}",)
    if lost >= 0:
        # What was lost before the parent was stored held no write of the child.
        above = index.row(ns, row.parent) if row.parent is not None else None
        if above is None or above.offset < lost or (ns, above.id) in index.outlasted:
            return (f"writes of checkpoint {id!r} may be lost with the frame at byte {lost} of the log",)
    return index.losses(ns, id, channels)


def _fetch(root: Root, thread: str, spans: Sequence[Span]) -> list[Pack]:
    return fetch(root.log(thread), spans) or []
