"""The memory store: the reference of the contract, and the store of tests and throw-away runs.

Everything lives in dictionaries of this process behind one lock; each verb is one short critical section over it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

from langgraph.checkpoint.serde.types import INTERRUPT

from milepost.draws import draw
from milepost.errors import Unavailable
from milepost.fences import NOBODY, Lease, acquired, refuse_moved, released, renewed
from milepost.memory_calls import MemoryCalls, delete_calls, load_calls, refuse_unsettled_calls
from milepost.memory_data import Data, Thread
from milepost.parents import Place
from milepost.places import ATTACHMENTS, PINNED
from milepost.store import (
    Batch,
    Chart,
    CheckpointRow,
    Drop,
    Loaded,
    Mark,
    Outline,
    Pack,
    Port,
    Put,
    Query,
    Snapshot,
    Span,
    Stats,
    ThreadPage,
    ThreadRow,
    WriteRow,
    Wrote,
    bare,
    settle_row,
    sort_key,
)
from milepost.strays import Stray, StrayPage

T = TypeVar("T")


class CallPort:
    """The port of stores in this process: a request is a function of no arguments. It serves both flavours."""

    async def call(self, request: object) -> object:
        return cast("Callable[[], object]", request)()


class MemoryStore(MemoryCalls):
    """`milepost.store.Store` over dictionaries, behind any port whose requests are functions."""

    def __init__(self, data: Data, port: Port) -> None:
        self._data = data
        self._port = port

    @property
    def _ledger(self) -> Data:
        return self._data

    async def _step(self, step: Callable[[], T]) -> T:
        data = self._data

        def locked() -> T:
            with data.lock:
                if data.closed:
                    raise Unavailable("the memory store is closed", backend="memory")
                return step()

        return cast("T", await self._port.call(locked))

    async def setup(self) -> None:
        await self._step(lambda: None)

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
        data = self._data

        def step() -> Put:
            data.refuse_the_late(thread, fence)
            named = [id for id in (row.parent, *row.ancestors) if id]
            data.refuse_the_dead(thread, row.ns, named, f"checkpoint {row.id!r}", own=row.id)
            if generation is not None and generation != (current := data.generation(thread)):
                return Put(True, current)
            place = data.open(thread)
            now = data.clock()
            old = place.rows.get((row.ns, row.id))
            if old is None:
                if heads is not None and (head := place.head(row.ns)) is not None:
                    refuse_moved(thread, row.parent, heads, head.id)
                parent = place.rows.get((row.ns, row.parent)) if row.parent is not None else None
                key = sort_key(row.id, parent.key if parent else row.parent)
                new = row._replace(key=key, at=now)
            else:
                new = row._replace(key=old.key, at=old.at)
            place.revision += 1
            place.updated = now
            for pack in packs:
                place.packs.add(pack)
            if merged is not None:
                place.packs.absorb(merged)
            place.enter(new)
            return Put(False, place.generation)

        return await self._step(step)

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
        data = self._data

        def step() -> Wrote:
            data.refuse_the_late(thread, fence)
            data.refuse_the_dead(thread, ns, (checkpoint,), f"writes of checkpoint {checkpoint!r}")
            if generation is not None and generation != (current := data.generation(thread)):
                return Wrote(True, current, ())
            place = data.open(thread)
            place.revision += 1
            place.updated = data.clock()
            accepted = _take_writes(place, (ns, checkpoint), rows)
            return Wrote(False, place.generation, accepted)

        return await self._step(step)

    async def get(self, thread: str, ns: str, id: str | None) -> Loaded | None:
        def step() -> Loaded | None:
            place = self._data.threads.get(thread)
            row = None if place is None else place.head(ns) if id is None else place.rows.get((ns, id))
            if place is None or row is None:
                return None
            snapshot = place.snapshot(thread, row)
            return Loaded((snapshot,), {thread: place.packs_of((snapshot,))})

        return await self._step(step)

    async def page(self, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool = True) -> Loaded:
        def step() -> Loaded:
            threads = self._data.threads
            if query.thread is None:
                names = [name for name in threads if name.startswith(query.prefix)]
            else:
                names = [query.thread] if query.thread in threads else []
            found = [
                (row.key, name, row.ns, row.id, row)
                for name in names
                for row in _matching(threads[name], query)
                if after is None or (row.key, name, row.ns, row.id) < after
            ]
            found.sort(key=lambda entry: entry[:4], reverse=True)
            chosen, rest = found[:limit], found[limit:]
            snapshots = tuple(threads[name].snapshot(name, row) for _, name, _, _, row in chosen)
            packs: Mapping[str, Sequence[Pack]] = {
                name: threads[name].packs_of(snapshot for snapshot in snapshots if snapshot.thread == name)
                for name in ({snapshot.thread for snapshot in snapshots} if items else ())
            }
            return Loaded(snapshots, packs, chosen[-1][:4] if rest and chosen else None)

        return await self._step(step)

    async def lineage(
        self,
        thread: str,
        ns: str,
        id: str | None,
        channels: Sequence[str] | None,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Loaded | None:
        def step() -> Loaded | None:
            place = self._data.threads.get(thread)
            if place is None:
                return None
            start = place.head(ns) if id is None else place.rows.get((ns, id))
            if start is None:
                return None
            parent = start.parent if after is None else after[0]
            found: list[Snapshot] = []
            while len(found) < limit and parent is not None and (row := place.rows.get((ns, parent))) is not None:
                found.append(place.snapshot(thread, row, channels))
                parent = row.parent
            more = parent is not None and (ns, parent) in place.rows
            packs = place.packs_of(found, rows=False)
            return Loaded(tuple(found), {thread: packs}, (parent,) if more and parent is not None else None)

        return await self._step(step)

    async def fetch(self, thread: str, spans: Sequence[Span]) -> Sequence[Pack]:
        def step() -> Sequence[Pack]:
            place = self._data.threads.get(thread)
            if place is None:
                return []
            return list({(pack.writer, pack.first): pack for pack in place.packs.overlapping(spans)}.values())

        return await self._step(step)

    async def threads(self, after: tuple[str, ...] | None, limit: int, prefix: str = "") -> ThreadPage:
        def step() -> ThreadPage:
            threads = self._data.threads
            asked = (name for name in threads if name.startswith(prefix) and (after is None or name > after[0]))
            names = sorted(name for name in asked if threads[name].rows or threads[name].writes)
            now, leases = self._data.clock(), self._data.leases
            rows = tuple(_thread_row(name, threads[name], leases.get(name, NOBODY), now) for name in names[:limit])
            return ThreadPage(rows, (names[limit - 1],) if len(names) > limit else None)

        return await self._step(step)

    async def strays(
        self, after: tuple[str, ...] | None, limit: int, prefix: str = "", *, remove: bool = False
    ) -> StrayPage:
        def step() -> StrayPage:
            threads = self._data.threads
            names = sorted(name for name in threads if name.startswith(prefix) and (after is None or name > after[0]))
            some = names[:limit]
            left = (name for name in some if not threads[name].writes and threads[name].order.keys() <= {ATTACHMENTS})
            found = tuple(Stray("thread", name, "", threads[name].size()) for name in left)
            return StrayPage(found, (some[-1],) if len(names) > limit else None)

        return await self._step(step)

    async def chart(self, thread: str) -> Chart | None:
        def step() -> Chart | None:
            place = self._data.threads.get(thread)
            if place is None:
                return None
            return Chart(
                token=place.token(),
                generation=place.generation,
                rows=tuple(place.rows.values()),
                writes={at: tuple(rows.values()) for at, rows in place.writes.items()},
                packs=tuple(Span(pack.writer, pack.first, pack.count) for pack in place.packs),
                sizes=tuple(len(pack.data) for pack in place.packs),
            )

        return await self._step(step)

    async def outline(self, thread: str) -> Outline | None:
        def step() -> Outline | None:
            place = self._data.threads.get(thread)
            if place is None:
                return None
            written = {
                at: (len(rows), sum(len(row.value) for row in rows.values())) for at, rows in place.writes.items()
            }
            return Outline(
                token=place.token(),
                generation=place.generation,
                marks=tuple(
                    Mark(
                        *(row.ns, row.id, row.parent, row.key, row.at, len(row.header)),
                        bool(row.facets.get(PINNED)) if row.facets else None,
                        *written.pop(at, ()),
                    )
                    for at, row in place.rows.items()
                ),
                strays=written,
                packs=tuple(Span(pack.writer, pack.first, pack.count) for pack in place.packs),
                sizes=tuple(len(pack.data) for pack in place.packs),
            )

        return await self._step(step)

    async def rows(self, thread: str, places: Sequence[tuple[str, str]]) -> Batch:
        def step() -> Batch:
            place = self._data.threads.get(thread)
            if place is None:
                return Batch()
            writes = ((*at, row) for at in places for row in place.writes.get(at, {}).values())
            return Batch(tuple(place.rows[at] for at in places if at in place.rows), tuple(writes))

        return await self._step(step)

    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        def step() -> str | None:
            place = self._data.threads.get(thread)
            if place is None or token != place.token():
                return None
            # In this order, so that what is left is whole wherever this is interrupted.
            place.revision += 1
            place.generation = draw()
            for ns, id, parent in drop.parents:
                if (row := place.rows.get((ns, id))) is not None:
                    place.rows[ns, id] = row._replace(parent=parent)
            for at in place.youngest_first(drop.checkpoints):
                place.leave(at)
                place.writes.pop(at, None)
            place.packs.replace(drop.packs, drop.repacked)
            if not place.rows and not place.writes:
                del self._data.threads[thread]
                return ""
            return place.token()

        return await self._step(step)

    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        data = self._data

        def step() -> None:
            if not force:
                refuse_unsettled_calls(data.calls, thread)
            place = data.threads.get(thread)
            if place is not None:
                data.bury(thread, {id for _, id in (*place.rows, *place.writes)})
                del data.threads[thread]
            delete_calls(data.calls, thread)

        await self._step(step)

    async def export(self, thread: str, after: tuple[str, ...] | None, limit: int) -> Batch | None:
        def step() -> Batch | None:
            place = self._data.threads.get(thread)
            if place is None:
                return None
            writes = tuple((ns, id, row) for (ns, id), rows in place.writes.items() for row in rows.values())
            rows = tuple(sorted(place.rows.values(), key=lambda row: (row.key, row.ns)))
            calls = tuple(self._data.calls[thread].rows.values()) if thread in self._data.calls else ()
            return Batch(rows, writes, tuple(place.packs), calls=calls)

        return await self._step(step)

    async def load(self, thread: str, batch: Batch) -> None:
        data = self._data

        def step() -> None:
            data.tombstones.pop(thread, None)
            place = data.open(thread)
            place.revision += 1
            place.updated = data.clock()
            for pack in batch.packs:
                place.packs.add(pack)
            for at, writes in _by_place(batch).items():
                _take_writes(place, at, writes)
            place.enter(*batch.rows)
            if batch.calls:
                load_calls(data.calls, thread, batch.calls)

        await self._step(step)

    async def acquire(self, thread: str, owner: str, ttl: float, over: int | None = None) -> Lease:
        return await self._lease(thread, lambda held, now: acquired(held, owner, ttl, over, now))

    async def renew(self, thread: str, owner: str, fence: int, ttl: float) -> Lease:
        return await self._lease(thread, lambda held, now: renewed(thread, held, owner, fence, ttl, now))

    async def release(self, thread: str, owner: str, error: str | None = None) -> None:
        await self._lease(thread, lambda held, now: released(held, owner, error, now))

    async def holder(self, thread: str) -> Lease | None:
        data = self._data

        def step() -> Lease | None:
            lease = data.leases.get(thread, NOBODY)
            return lease if lease.alive(data.clock()) else None

        return await self._step(step)

    async def _lease(self, thread: str, change: Callable[[Lease, float], Lease]) -> Lease:
        data = self._data

        def step() -> Lease:
            lease = change(data.leases.get(thread, NOBODY), data.clock())
            if lease is not NOBODY:
                data.leases[thread] = lease
            return lease

        return await self._step(step)

    async def rewrite(self, thread: str, batch: Batch, token: str) -> str | None:
        def step() -> str | None:
            place = self._data.threads.get(thread)
            if place is None or token != place.token():
                return None
            place.revision += 1
            for pack in batch.packs:
                place.packs.add(pack)
            writes = _by_place(batch)
            for row in batch.rows:
                _take_writes(place, (row.ns, row.id), writes.pop((row.ns, row.id), ()), anew=True)
            for at, others in writes.items():
                _take_writes(place, at, others)
            place.enter(*batch.rows)
            return place.token()

        return await self._step(step)

    async def stats(self, thread: str | None) -> Stats:
        def step() -> Stats:
            threads = self._data.threads
            chosen = list(threads.values()) if thread is None else [threads[thread]] if thread in threads else []
            return Stats(
                threads=sum(bool(place.rows or place.writes) for place in chosen),
                checkpoints=sum(len(place.rows) for place in chosen),
                writes=sum(len(rows) for place in chosen for rows in place.writes.values()),
                packs=sum(len(place.packs) for place in chosen),
                bytes=sum(place.size() for place in chosen),
            )

        return await self._step(step)

    async def close(self) -> None:
        self._data.closed = True


class MemoryBackend:
    """A store that lives as long as this object. Flavours and clones share it."""

    name = "memory"
    capabilities: frozenset[str] = frozenset({"ledger"})

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._data = Data(clock)
        self._store = MemoryStore(self._data, CallPort())

    def blocking(self) -> MemoryStore:
        return self._store

    def asynchronous(self) -> MemoryStore:
        return self._store

    def over(self, port: Port) -> MemoryStore:
        """The same data behind another port: for fault injection."""
        return MemoryStore(self._data, port)

    def close(self) -> None:
        self._data.closed = True

    async def aclose(self) -> None:
        self._data.closed = True


def _take_writes(place: Thread, at: Place, rows: Sequence[WriteRow], *, anew: bool = False) -> tuple[bool, ...]:
    """Add `rows` all at once to the writes that are held at a checkpoint, or with `anew` put them in their place."""
    held = {} if anew else place.writes.get(at, {})
    new: dict[tuple[str, int], WriteRow] = {}
    accepted: list[bool] = []
    for row in rows:
        spot = (row.task, row.idx)
        store, accept = settle_row(row, new[spot] if spot in new else held.get(spot))
        if store:
            if row.pack is not None:
                place.packs.add(row.pack)
            new[spot] = bare(row)
        accepted.append(accept)
    if anew and not new:
        place.writes.pop(at, None)
    elif anew:
        place.writes[at] = new
    elif new:
        place.writes.setdefault(at, {}).update(new)
    return tuple(accepted)


def _by_place(batch: Batch) -> dict[Place, list[WriteRow]]:
    found: dict[Place, list[WriteRow]] = {}
    for ns, id, write in batch.writes:
        found.setdefault((ns, id), []).append(write)
    return found


def _matching(place: Thread, query: Query) -> Iterator[CheckpointRow]:
    for row in tuple(place.rows.values()):
        if query.ns is not None and row.ns != query.ns:
            continue
        if query.id is not None and row.id != query.id:
            continue
        if query.before is not None:
            bound = place.rows.get((row.ns, query.before))
            if row.key >= (query.before if bound is None else bound.key):
                continue
        if query.match is None or query.match(row.header):
            yield row


def _thread_row(name: str, place: Thread, lease: Lease, now: float) -> ThreadRow:
    heads = place.heads()
    head = heads.get("" if "" in heads else max(heads, default=""))
    asked = any(
        write.channel == INTERRUPT
        for ns, latest in heads.items()
        for write in place.writes.get((ns, latest.id), {}).values()
    )
    return ThreadRow(
        thread=name,
        head=head.id if head else "",
        namespaces=len(heads),
        checkpoints=len(place.rows),
        writes=sum(len(rows) for rows in place.writes.values()),
        bytes=place.size(),
        created_at=place.created,
        updated_at=place.updated,
        waiting=asked,
        lease=lease,
        leased=lease.alive(now),
    )
