"""Memory stores with one mistake each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from milepost.fences import Lease
from milepost.memory import CallPort, MemoryBackend, MemoryStore
from milepost.store import Backend, Batch, Drop, Loaded, Pack, Port, Put, Query, Span, WriteRow, Wrote
from milepost.store import CheckpointRow as Row
from milepost.testing import Memory


class _Backend(MemoryBackend):
    def __init__(self, store: type[MemoryStore]) -> None:
        super().__init__()
        self._kind = store
        self._store = self.over(CallPort())

    def over(self, port: Port) -> MemoryStore:
        return self._kind(self._data, port)


class StoreSubject(Memory):
    """The memory store with `store` in the place of the healthy one."""

    store: ClassVar[type[MemoryStore]] = MemoryStore

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._planted = _Backend(self.store)

    def backend(self) -> Backend:
        return self._planted


def subject(store: type[MemoryStore]) -> type[StoreSubject]:
    return type(store.__name__, (StoreSubject,), {"store": store})


class OrdinaryReplaces(MemoryStore):
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
        place = self._data.threads.get(thread)
        held = place.writes.get((ns, checkpoint), {}) if place else {}
        for row in rows:
            held.pop((row.task, row.idx), None)
        return await super().put_writes(thread, ns, checkpoint, rows, generation, fence=fence)


class _KeepsSome(MemoryStore):
    def keeps(self, rows: Sequence[WriteRow]) -> bool:
        """Whether a row may not replace what is at its place."""
        raise LookupError(rows)

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
        place = self._data.threads.get(thread)
        held = place.writes.get((ns, checkpoint), {}) if place else {}
        some = [row for row in rows if (row.task, row.idx) not in held] if self.keeps(rows) else rows
        answer = await super().put_writes(thread, ns, checkpoint, some, generation, fence=fence)
        stored = dict(zip(((row.task, row.idx) for row in some), answer.accepted, strict=True))
        return answer._replace(accepted=tuple(stored.get((row.task, row.idx), False) for row in rows))


class SpecialKeepsFirst(_KeepsSome):
    def keeps(self, rows: Sequence[WriteRow]) -> bool:
        return True


class DecidedPerBatch(_KeepsSome):
    """Replaces only when all writes of the batch are special, as a single SQL statement would."""

    def keeps(self, rows: Sequence[WriteRow]) -> bool:
        return any(row.idx >= 0 for row in rows)


class OrphansDropped(MemoryStore):
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
        place = self._data.threads.get(thread)
        if place is None or (ns, checkpoint) not in place.rows:
            return Wrote(False, self._data.generation(thread), (True,) * len(rows))
        return await super().put_writes(thread, ns, checkpoint, rows, generation, fence=fence)


class LosersAccepted(MemoryStore):
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
        answer = await super().put_writes(thread, ns, checkpoint, rows, generation, fence=fence)
        return answer._replace(accepted=(True,) * len(answer.accepted))


class LatestByLastPut(MemoryStore):
    last: dict[tuple[str, str], str]

    async def put(self, thread: str, row: Row, packs: Sequence[Pack], generation: int | None, **options: Any) -> Put:
        vars(self).setdefault("last", {})[thread, row.ns] = row.id
        return await super().put(thread, row, packs, generation, **options)

    async def get(self, thread: str, ns: str, id: str | None) -> Loaded | None:
        last = vars(self).get("last", {})
        return await super().get(thread, ns, last.get((thread, ns)) if id is None else id)


class LatestByIdAlone(MemoryStore):
    async def put(self, thread: str, row: Row, packs: Sequence[Pack], generation: int | None, **options: Any) -> Put:
        answer = await super().put(thread, row, packs, generation, **options)
        place = self._data.threads[thread]
        stored = place.rows[row.ns, row.id]
        place.leave((row.ns, row.id))
        place.enter(stored._replace(key=row.id))
        return answer


class PutAgainRewinds(MemoryStore):
    """A checkpoint put again gets a new sort key above all others."""

    async def put(self, thread: str, row: Row, packs: Sequence[Pack], generation: int | None, **options: Any) -> Put:
        known = thread in self._data.threads and (row.ns, row.id) in self._data.threads[thread].rows
        answer = await super().put(thread, row, packs, generation, **options)
        if known and not answer.stale:
            place = self._data.threads[thread]
            top = place.order[row.ns][-1][0]
            stored = place.rows[row.ns, row.id]
            place.leave((row.ns, row.id))
            place.enter(stored._replace(key=top + "~"))
        return answer


class UnknownIsLatest(MemoryStore):
    async def get(self, thread: str, ns: str, id: str | None) -> Loaded | None:
        return await super().get(thread, ns, id) or await super().get(thread, ns, None)


class FencesUnread(MemoryStore):
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
        del fence
        return await super().put_writes(thread, ns, checkpoint, rows, generation)


class AnyHeadWillDo(MemoryStore):
    async def put(self, thread: str, row: Row, packs: Sequence[Pack], generation: int | None, **options: Any) -> Put:
        return await super().put(thread, row, packs, generation, **{**options, "heads": None})


class LeasesDieWithTheirThread(MemoryStore):
    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        await super().delete_thread(thread, force=force)
        self._data.leases.pop(thread, None)


class HandsOverToAnybody(MemoryStore):
    async def acquire(self, thread: str, owner: str, ttl: float, over: int | None = None) -> Lease:
        held = self._data.leases.get(thread)
        return await super().acquire(thread, owner, ttl, held.fence if held and over else None)


class DeletedComesBack(MemoryStore):
    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        await super().delete_thread(thread, force=force)
        self._data.tombstones.pop(thread, None)


class TombstoneOfTheHeadAlone(MemoryStore):
    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        await super().delete_thread(thread, force=force)
        stone = self._data.tombstones.get(thread)
        if stone is not None:
            self._data.tombstones[thread] = replace(stone, ids=stone.ids[-1:])


class NeverStale(MemoryStore):
    async def put(self, thread: str, row: Row, packs: Sequence[Pack], generation: int | None, **options: Any) -> Put:
        return await super().put(thread, row, packs, None, **options)


class MergesWhatIsRefused(MemoryStore):
    async def put(self, thread: str, row: Row, packs: Sequence[Pack], generation: int | None, **options: Any) -> Put:
        place, merged = self._data.threads.get(thread), options.pop("merged", None)
        if place is not None and merged is not None:
            place.packs.absorb(merged)
        return await super().put(thread, row, packs, generation, **options)


class MergesTooMuch(MemoryStore):
    """Every pack that begins in a merged one goes, also one that reaches beyond it."""

    async def put(self, thread: str, row: Row, packs: Sequence[Pack], generation: int | None, **options: Any) -> Put:
        merged = options.pop("merged", None)
        answer = await super().put(thread, row, packs, generation, **options)
        if merged is not None and not answer.stale:
            place = self._data.threads[thread]
            end = merged.first + merged.count
            gone = [Span(*one[:3]) for one in place.packs if merged.first <= one.first < end]
            place.packs.replace([one for one in gone if one.writer == merged.writer], [merged])
        return answer


class PruneDropsAheadWrites(MemoryStore):
    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        done = await super().drop(thread, drop, token)
        place = self._data.threads.get(thread)
        if done is not None and place is not None:
            for at in list(place.writes):
                if at not in place.rows:
                    del place.writes[at]
        return done


class ParentsDangle(MemoryStore):
    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        return await super().drop(thread, replace(drop, parents=()), token)


class DropsBehindAWriter(MemoryStore):
    """A plan is carried out though the thread was written to since."""

    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        place = self._data.threads.get(thread)
        if place is None:
            return None
        heads = {(ns, order[-1][1]) for ns, order in place.order.items()}
        stale = tuple(heads - set(drop.checkpoints))
        fresh = f"{place.generation}:{place.revision}"
        return await super().drop(thread, replace(drop, checkpoints=drop.checkpoints + stale), fresh)


class CopyLosesTaskPath(MemoryStore):
    async def load(self, thread: str, batch: Batch) -> None:
        writes = tuple((ns, id, row._replace(path="")) for ns, id, row in batch.writes)
        await super().load(thread, replace(batch, writes=writes))


class CopySortsById(MemoryStore):
    async def load(self, thread: str, batch: Batch) -> None:
        await super().load(thread, replace(batch, rows=tuple(row._replace(key=row.id) for row in batch.rows)))


class BeforeComparesIds(MemoryStore):
    async def page(self, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool = True) -> Loaded:
        before = query.before
        if before is None:
            return await super().page(query, after, limit, items=items)
        whole = await super().page(replace(query, before=None), after, 1 << 30, items=items)
        return replace(whole, snapshots=tuple(one for one in whole.snapshots if one.row.id < before)[:limit])


class ListAscends(MemoryStore):
    async def page(self, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool = True) -> Loaded:
        page = await super().page(query, after, limit, items=items)
        return replace(page, snapshots=page.snapshots[::-1])


class OnePageAlone(MemoryStore):
    async def page(self, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool = True) -> Loaded:
        return replace(await super().page(query, after, limit, items=items), cursor=None)


class LineageBySortOrder(MemoryStore):
    """Ancestors are taken to be the checkpoints listed before, as a saver without parents would."""

    async def lineage(
        self,
        thread: str,
        ns: str,
        id: str | None,
        channels: Sequence[str] | None,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Loaded | None:
        start = await super().get(thread, ns, id)
        if start is None:
            return None
        bound = start.snapshots[0].row.id
        page = await super().page(Query(thread, ns, before=bound), after, limit)
        kept = tuple(
            one._replace(writes=tuple(row for row in one.writes if channels is None or row.channel in channels))
            for one in page.snapshots
        )
        return replace(page, snapshots=kept)


class ReadsWrite(MemoryStore):
    async def get(self, thread: str, ns: str, id: str | None) -> Loaded | None:
        place = self._data.threads.get(thread)
        if place is not None:
            place.updated += 1
        return await super().get(thread, ns, id)


class StoredInTwoSteps(MemoryStore):
    """The checkpoint first, its items with a second request."""

    async def put(self, thread: str, row: Row, packs: Sequence[Pack], generation: int | None, **options: Any) -> Put:
        answer = await super().put(thread, row, (), generation, fence=options.get("fence"))
        return answer if answer.stale else await super().put(thread, row, packs, generation, **options)


class WaitingThreadsForgotten(MemoryStore):
    """Deleting a thread forgets the namespaces of its subgraphs."""

    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        place = self._data.threads.get(thread)
        await super().delete_thread(thread, force=force)
        if place is not None and len(place.order) > 1:
            for ns, id in list(place.rows):
                if not ns:
                    place.leave((ns, id))
            self._data.threads[thread] = place


class RewritesBehindAWriter(MemoryStore):
    """Checkpoints are rewritten though the thread was written to since."""

    async def rewrite(self, thread: str, batch: Batch, token: str) -> str | None:
        place = self._data.threads.get(thread)
        fresh = token if place is None else f"{place.generation}:{place.revision}"
        return await super().rewrite(thread, batch, fresh)


class RewriteKeepsOldWrites(MemoryStore):
    """What was written under names of before stays beside what it became."""

    async def rewrite(self, thread: str, batch: Batch, token: str) -> str | None:
        place = self._data.threads.get(thread)
        before = {at: dict(rows) for at, rows in place.writes.items()} if place else {}
        done = await super().rewrite(thread, batch, token)
        if done is not None and place:
            for at, rows in before.items():
                place.writes[at] = {**rows, **place.writes.get(at, {})}
        return done


class RewriteLosesAWrite(MemoryStore):
    """The last of the pending writes that a rewritten checkpoint should have is not there."""

    async def rewrite(self, thread: str, batch: Batch, token: str) -> str | None:
        # Not of what is kept of it.
        last = max((at for at, (ns, _, _) in enumerate(batch.writes) if not ns), default=None)
        writes = tuple(write for at, write in enumerate(batch.writes) if at != last)
        return await super().rewrite(thread, replace(batch, writes=writes), token)
