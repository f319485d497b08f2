"""What the write verbs do to a log: each decides against the index what to append, and what to answer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from milepost.callstore import CallAnswer, CallChange, CallRow
from milepost.fences import refuse_moved, thread_deleted
from milepost.store import (
    Batch,
    CheckpointRow,
    Drop,
    Pack,
    Put,
    Span,
    Tombstone,
    WriteRow,
    Wrote,
    sort_key,
)

from milepost_files import frames
from milepost_files.calls import Decision, kept, whole
from milepost_files.frames import Record
from milepost_files.index import Index
from milepost_files.leases import refuse_late
from milepost_files.log import Change
from milepost_files.rewrite import FrameDraft, Read, lease_records


class PutCheckpoint(Change):
    """The verb `put`."""

    answer: Put

    def __init__(
        self,
        thread: str,
        row: CheckpointRow,
        packs: Sequence[Pack],
        generation: int | None,
        fence: int | None,
        heads: Sequence[str] | None,
        merged: Pack | None,
    ) -> None:
        self._thread = thread
        self._row = row
        self._packs = packs
        self._generation = generation
        self._fence = fence
        self._heads = heads
        self._merged = merged
        self._blob = frames.seal_checkpoint(row.spans, row.facets, row.header)

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        row = self._row
        if self._fence is not None:
            refuse_late(self._thread, index, self._fence)
        parents = row.ancestors if row.parent is None else (row.parent, *row.ancestors)
        _refuse_deleted(self._thread, index, (*parents, row.id), now, f"checkpoint {row.id!r}", own=row.id)
        if self._generation is not None and self._generation != index.generation:
            self.answer = Put(stale=True, generation=_generation(index))
            return None
        old = index.row(row.ns, row.id)
        if old is not None:
            key, at = old.key, old.at
        else:
            if self._heads is not None and (head := index.head(row.ns)) is not None:
                refuse_moved(self._thread, row.parent, self._heads, head.id)
            parent = index.row(row.ns, row.parent) if row.parent is not None else None
            key, at = sort_key(row.id, parent.key if parent else row.parent), now
        records: list[Record] = []
        blobs: list[bytes] = []
        _add_packs(index, self._packs, records, blobs)
        records.append(_checkpoint_record(row, key, at, self._blob))
        blobs.append(self._blob)
        if self._merged is not None:
            _absorb(index, self._merged, records, blobs)
        self.answer = Put(stale=False, generation=index.generation)
        return records, blobs


class PutWrites(Change):
    """The verb `put_writes`."""

    answer: Wrote

    def __init__(
        self,
        thread: str,
        ns: str,
        checkpoint: str,
        rows: Sequence[WriteRow],
        generation: int | None,
        fence: int | None,
    ) -> None:
        self._thread = thread
        self._place = (ns, checkpoint)
        self._rows = rows
        self._generation = generation
        self._fence = fence
        self._blobs = [frames.seal_write(row.path, row.spans, row.value) for row in rows]

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        if self._fence is not None:
            refuse_late(self._thread, index, self._fence)
        _refuse_deleted(self._thread, index, self._place[1:], now, f"a write of checkpoint {self._place[1]!r}")
        if self._generation is not None and self._generation != index.generation:
            self.answer = Wrote(stale=True, generation=_generation(index), accepted=(False,) * len(self._rows))
            return None
        records: list[Record] = []
        blobs: list[bytes] = []
        accepted = _add_writes(index, read, *self._place, zip(self._rows, self._blobs, strict=True), records, blobs)
        self.answer = Wrote(stale=False, generation=index.generation, accepted=accepted)
        return (records, blobs) if records else None


class DropSome(Change):
    """The verb `drop`."""

    answer: str | None

    def __init__(self, drop: Drop, token: str, generation: int) -> None:
        self._drop = drop
        self._token = token
        self._generation = generation

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        self.answer = "" if index.generation == self._generation else None
        drop = self._drop
        if token(index) != self._token:
            # A log that is rewritten has another token: those who drop in turns would keep each other from it for good.
            self.tidy = False
            return None
        self.tidy = None if drop.more else True
        record: Record = [
            frames.DROP,
            self._generation,
            list(drop.checkpoints),
            list(drop.parents),
            [list(span) for span in drop.packs],
        ]
        records = [record, *map(frames.pack_record, drop.repacked)]
        return records, [pack.data for pack in drop.repacked]

    def placed(self, index: Index) -> None:
        self.answer = "" if index.empty else token(index)


class DeleteThread(Change):
    """The verb `delete_thread`."""

    reset = True

    def __init__(self, thread: str, *, force: bool) -> None:
        self._thread = thread
        self._force = force

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        calls = kept(self._thread, index.calls, read, force=self._force)
        if index.bare and not index.damage and len(calls) == len(index.calls.spots):
            return None
        tombstone = Tombstone.of(index.ids(), now, index.tombstone)
        records: list[Record] = [[frames.TOMBSTONE, list(tombstone.ids), tombstone.floor, tombstone.at]]
        if index.lease.fence:
            records += lease_records(index.lease, index.ends)
        blobs: list[bytes] = []
        _add_calls(calls, records, blobs)
        return records, blobs


class LoadBatch(Change):
    """The verb `load`."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        batch = self._batch
        # Also where there is nothing to revive: a step that was planned before must not delete what is there already.
        records: list[Record] = [[frames.REVIVE]]
        blobs: list[bytes] = []
        _add_packs(index, batch.packs, records, blobs)
        for row in batch.rows:
            blob = frames.seal_checkpoint(row.spans, row.facets, row.header)
            records.append(_checkpoint_record(row, row.key, row.at, blob))
            blobs.append(blob)
        places: dict[tuple[str, str], list[WriteRow]] = {}
        for ns, checkpoint, write in batch.writes:
            places.setdefault((ns, checkpoint), []).append(write)
        for (ns, checkpoint), rows in places.items():
            sealed = ((row, frames.seal_write(row.path, row.spans, row.value)) for row in rows)
            _add_writes(index, read, ns, checkpoint, sealed, records, blobs)
        _add_calls((row for row in batch.calls if index.calls.find(row.key) is None), records, blobs)
        return records, blobs


class ChangeCall(Change):
    """The verbs `claim` (`beside` is not None) and `settle`."""

    answer: CallAnswer

    def __init__(
        self,
        thread: str,
        change: CallChange,
        beside: Collection[str] | None,
        after: Sequence[str],
        fence: int | None,
    ) -> None:
        self._thread = thread
        self._change = change
        self._beside = beside
        self._after = after
        self._fence = fence

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        if self._fence is not None:
            refuse_late(self._thread, index, self._fence)
        _refuse_deleted(self._thread, index, self._after, now, "a call")
        decision = Decision(self._thread, index.calls, read, lost=index.lost >= 0)
        self.answer, draft = decision.make(self._change, self._beside, now)
        return None if draft is None else ([draft[0]], draft[1])


class ForgetCalls(Change):
    """The verb `forget`."""

    def __init__(self, calls: Collection[tuple[str, int]]) -> None:
        self._calls = calls

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        keys = index.calls.settled(self._calls)
        return ([[frames.FORGET, keys]], []) if keys else None


class Rewrite(Change):
    """The verb `rewrite`, in one frame."""

    answer: str | None

    def __init__(self, batch: Batch, token: str) -> None:
        self._batch = batch
        self._token = token

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        self.answer = None
        if token(index) != self._token:
            return None
        batch = self._batch
        records: list[Record] = [[frames.UNWRITE, [[row.ns, row.id] for row in batch.rows]]]
        blobs: list[bytes] = []
        _add_packs(index, batch.packs, records, blobs)
        for row in batch.rows:
            blob = frames.seal_checkpoint(row.spans, row.facets, row.header)
            records.append(_checkpoint_record(row, row.key, row.at, blob))
            blobs.append(blob)
        for ns, checkpoint, write in batch.writes:
            blob = frames.seal_write(write.path, write.spans, write.value)
            records.append([frames.WRITES, ns, checkpoint, write.task, [write.idx, write.channel, len(blob)]])
            blobs.append(blob)
        return records, blobs

    def placed(self, index: Index) -> None:
        self.answer = token(index)


def token(index: Index) -> str:
    """Names the state of a log: everything that is done to it adds to it, or makes another log of it."""
    return f"{index.log:x}.{index.end:x}"


def _generation(index: Index) -> int:
    """The generation to tell who named another; -1 for a thread that is not there: its log would get a new one."""
    return index.generation if index.end else -1


def _refuse_deleted(
    thread: str, index: Index, ids: Iterable[str], now: float, what: str, own: str | None = None
) -> None:
    tombstone = index.tombstone
    if tombstone is None or tombstone.over(now):
        return
    for id in ids:
        if tombstone.refuses(id, stored=False, own=id == own) and not index.has(id):
            raise thread_deleted(thread, what, id)


def _checkpoint_record(row: CheckpointRow, key: str, at: float, blob: bytes) -> Record:
    return [frames.CHECKPOINT, row.ns, row.id, row.parent, None if key == row.id else key, at, len(blob)]


def _add_packs(index: Index, packs: Iterable[Pack], records: list[Record], blobs: list[bytes]) -> None:
    for pack in packs:
        if not index.covers(Span(pack.writer, pack.first, pack.count)):
            records.append(frames.pack_record(pack))
            blobs.append(pack.data)


def _absorb(index: Index, merged: Pack, records: list[Record], blobs: list[bytes]) -> None:
    """Put a pack in the place of those that lie in it, by records that every release reads."""
    span = Span(*merged[:3])
    found = [Span(*place[2:]) for place in index.places([span])]
    if span not in found:
        records.append(frames.pack_record(merged))
        blobs.append(merged.data)
    end = span.first + span.count
    inside = [one for one in found if one != span and span.first <= one.first and one.first + one.count <= end]
    if inside:
        records.append([frames.DROP, index.generation, [], [], [list(one) for one in inside]])


def _add_calls(rows: Iterable[CallRow], records: list[Record], blobs: list[bytes]) -> None:
    for row in rows:
        record, parts = whole(row)
        records.append(record)
        blobs += parts


def _add_writes(
    index: Index,
    read: Read,
    ns: str,
    checkpoint: str,
    rows: Iterable[tuple[WriteRow, bytes]],
    records: list[Record],
    blobs: list[bytes],
) -> tuple[bool, ...]:
    """Add what is to be stored of `rows` to a draft. Returns which of them count as accepted."""
    there = index.writes(ns, checkpoint)
    new: dict[tuple[str, int], tuple[str, bytes]] = {}
    packs: set[Span] = set()
    accepted: list[bool] = []
    for row, blob in rows:
        place = (row.task, row.idx)
        span = None if row.pack is None else Span(row.pack.writer, row.pack.first, row.pack.count)
        if row.idx >= 0 and (place in new or place in there):
            if place in new:
                same = new[place] == (row.channel, blob)
            else:
                write = there[place]
                same = write.channel == row.channel and read([(write.offset, write.length)]) == [blob]
            accepted.append(same and (span is None or span in packs or index.covers(span)))
            continue
        accepted.append(True)
        new[place] = (row.channel, blob)
        if row.pack is not None and span is not None and span not in packs and not index.covers(span):
            packs.add(span)
            records.append(frames.pack_record(row.pack))
            blobs.append(row.pack.data)
        last = records[-1] if records else None
        if last is not None and last[0] == frames.WRITES and last[1:4] == [ns, checkpoint, row.task]:
            last[4] += (row.idx, row.channel, len(blob))
        else:
            records.append([frames.WRITES, ns, checkpoint, row.task, [row.idx, row.channel, len(blob)]])
        blobs.append(blob)
    return tuple(accepted)
