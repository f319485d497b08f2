"""What one log holds, in memory: where checkpoints, pending writes and packs lie, never their bytes.

An index is built by applying frames in order, or read from a snapshot beside the log and then brought up to date. The
same records in the same order always give the same index, whoever applies them.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import ormsgpack
from milepost.checksums import crc32
from milepost.fences import NOBODY, Lease
from milepost.store import Span, Tombstone

from milepost_files import frames
from milepost_files.calls import CallIndex
from milepost_files.frames import Record
from milepost_files.uptime import Uptime

_SNAPSHOT: Final = 6
_MAGIC: Final = b"MPX1"

# About what a record takes in a log besides its blob and its texts, rather too much than too little: only the decision
# to rewrite a log depends on it, and a log that was just rewritten must not seem to be worth it.
_COST: Final = 64

_NO_USE: Final = (frames.LEASE, frames.CALL, frames.FORGET)
"""Records whose frames do not count as a use of the thread."""
_MOST_DAMAGE: Final = 64
"""So many damaged places are kept in words; of further ones only how many there are."""


class Row(NamedTuple):
    """Where a checkpoint lies. `key` and `parent` share their text with `id` and the parent's `id` where they can."""

    id: str
    key: str
    parent: str | None
    at: float
    offset: int
    length: int


class WritePlace(NamedTuple):
    """Where a pending write lies."""

    channel: str
    offset: int
    length: int


PackPlace = tuple[int, int, int, int, int]
"""Where a pack lies: offset, length, writer, first item, count. No class: a state of 1,000 packs is read often."""

WritePlaces = dict[tuple[str, int], WritePlace]
"""(task, idx) -> where that write lies."""


class Namespace:
    """One namespace of a thread.

    Of one that comes from a snapshot, what is asked for is unpacked then: who goes on with a run wants the latest
    checkpoint, which lies ready. So to ask is to change, and takes what guards the index.
    """

    rows: dict[str, Row]
    order: list[tuple[str, str]]
    """(sort key, id) of every row, ascending."""
    writes: dict[str, WritePlaces]
    """Checkpoint id -> its pending writes. The checkpoint need not be there."""

    def __init__(self, frozen: Sequence[Any] = ((), (), b"\x90", b"\x90")) -> None:
        self._head, self._last, self._rows, self._writes = frozen

    def __getattr__(self, name: str) -> Any:
        if name in ("rows", "order"):
            self.rows, self.order = _thaw_rows(self._rows)
            self._rows = b""
        elif name == "writes":
            self.writes = _thaw_writes(self._writes)
            self._writes = b""
        return object.__getattribute__(self, name)

    def freeze(self) -> Sequence[Any]:
        """What makes this namespace again."""
        if not self.__dict__.keys() & {"rows", "writes"}:
            return self._head, self._last, self._rows, self._writes
        head = self.head()
        rows = [_freeze_row(self.rows[id]) for _, id in self.order]
        writes = [[id, _freeze_writes(writes)] for id, writes in self.writes.items()]
        last = _freeze_writes(self.writes_of(head.id)) if head else ()
        return _freeze_row(head) if head else (), last, ormsgpack.packb(rows), ormsgpack.packb(writes)

    def head(self) -> Row | None:
        if "order" not in self.__dict__:
            return _thaw_row(*self._head) if self._head else None
        return self.rows[self.order[-1][1]] if self.order else None

    def writes_of(self, id: str) -> WritePlaces:
        """The pending writes of a checkpoint."""
        if "writes" not in self.__dict__ and self._head and self._head[0] == id:
            return _thaw_places(self._last, {})
        return self.writes.get(id, {})

    def below(self, key: tuple[str, ...]) -> Iterator[Row]:
        """Rows whose (sort key, id) is less than `key`, descending."""
        for place in range(bisect.bisect_left(self.order, key) - 1, -1, -1):
            yield self.rows[self.order[place][1]]

    def descending(self) -> Iterator[Row]:
        for _, id in reversed(self.order):
            yield self.rows[id]


class Packs:
    """The packs of one writer, by first item."""

    __slots__ = ("counts", "firsts", "lengths", "longest", "offsets")

    def __init__(self) -> None:
        self.firsts = array("Q")
        self.counts = array("Q")
        self.offsets = array("Q")
        self.lengths = array("Q")
        self.longest = 0

    def __len__(self) -> int:
        return len(self.firsts)

    def columns(self) -> tuple[array[int], ...]:
        return self.firsts, self.counts, self.offsets, self.lengths

    def places(self, writer: int, first: int, count: int) -> list[PackPlace]:
        """The packs that hold an item of this range. Packs may overlap each other."""
        firsts, counts = self.firsts, self.counts
        start = bisect.bisect_left(firsts, first)
        stop = bisect.bisect_left(firsts, first + count, start)
        part = slice(start, stop)
        found = list(zip(self.offsets[part], self.lengths[part], repeat(writer), firsts[part], counts[part]))
        found += [
            (self.offsets[place], self.lengths[place], writer, firsts[place], counts[place])
            for place in range(bisect.bisect_right(firsts, max(first - self.longest, -1), 0, start), start)
            if firsts[place] + counts[place] > first
        ]
        return found

    def covers(self, first: int, count: int) -> bool:
        if not self.firsts or first >= self.firsts[-1] + self.longest:
            return False
        reached = first
        for *_, start, length in sorted(self.places(0, first, count), key=itemgetter(3)):
            if start > reached:
                return False
            reached = max(reached, start + length)
        return reached >= first + count

    def add(self, row: tuple[int, int, int, int]) -> int:
        """Add (first, count, offset, length). Returns what the pack of the same span took that it replaces."""
        first, count = row[:2]
        self.longest = max(self.longest, count)
        if not self.firsts or first > self.firsts[-1]:
            for column, value in zip(self.columns(), row, strict=True):
                column.append(value)
            return 0
        found = self._find(first, count)
        if found is None:
            place = bisect.bisect_left(self.firsts, first)
            for column, value in zip(self.columns(), row, strict=True):
                column.insert(place, value)
            return 0
        replaced = self.lengths[found] + _COST
        for column, value in zip(self.columns(), row, strict=True):
            column[found] = value
        return replaced

    def remove(self, first: int, count: int) -> int:
        """Forget the pack of exactly this span, if there is one. Returns what it took."""
        found = self._find(first, count)
        if found is None:
            return 0
        taken = self.lengths[found] + _COST
        for column in self.columns():
            del column[found]
        return taken

    def _find(self, first: int, count: int) -> int | None:
        place = bisect.bisect_left(self.firsts, first)
        while place < len(self.firsts) and self.firsts[place] == first:
            if self.counts[place] == count:
                return place
            place += 1
        return None


class Index:
    """What the log `log` holds up to the offset `end`."""

    def __init__(self, log: int) -> None:
        self.log = log
        self.generation = log >> 1
        self.thread: str | None = None
        self.tombstone: Tombstone | None = None
        self.lease = NOBODY
        self.ends: Uptime | None = None
        """When the lease is over by the machine's own time, if that is known."""
        self.calls = CallIndex()
        self.namespaces: dict[str, Namespace] = {}
        self._names: dict[str, str] = {}
        """One text for each channel: they recur."""
        self.packs: dict[int, Packs] = {}
        self.damage: list[str] = []
        """What did not verify, in words; at most `_MOST_DAMAGE` of it."""
        self.more_damage = 0
        self.lost = -1
        """Offset of the last place at which a frame was lost, whatever it held; -1 if there is none."""
        self.outlasted: set[tuple[str, str]] = set()
        """(ns, id) of checkpoints that were stored before that place, and again after it."""
        self.left_out: dict[tuple[str, str], dict[tuple[str, int], str]] = {}
        """(ns, checkpoint id) -> (task, idx) -> channel of pending writes that are damaged, or were written with what
        is, and that nobody has written anew."""
        self.end = 0
        self.tip: tuple[int, bytes] = (0, b"")
        """Offset and header of the last frame: what tells a log that only grew from another one."""
        self.blank = 0
        """Up to where there were zeros, and nothing else, when the log was last looked at."""
        self.merged = 0
        """How often, since this index was begun, a pack took the place of others that it holds."""
        self.rewritten = 0
        """Where the last frame is that rewrote checkpoints in their place, if there is one."""
        self.frames = 0
        self.live = 0
        self.created = 0.0
        self.updated = 0.0

    # -- asking ---------------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether there is neither a checkpoint nor a pending write."""
        return not self.namespaces

    @property
    def bare(self) -> bool:
        """Whether there is no pack either. A copy that was interrupted leaves packs alone."""
        return self.empty and not self.packs

    @property
    def dead(self) -> int:
        """Bytes of the log that nothing refers to, roughly."""
        return self.end - self.live - self.calls.live

    def counts(self) -> tuple[int, int, int]:
        """How many checkpoints, pending writes and packs there are."""
        rows = sum(len(namespace.rows) for namespace in self.namespaces.values())
        writes = sum(len(writes) for namespace in self.namespaces.values() for writes in namespace.writes.values())
        return rows, writes, sum(map(len, self.packs.values()))

    def row(self, ns: str, id: str) -> Row | None:
        namespace = self.namespaces.get(ns)
        return namespace.rows.get(id) if namespace else None

    def head(self, ns: str) -> Row | None:
        namespace = self.namespaces.get(ns)
        return namespace.head() if namespace else None

    def has(self, id: str) -> bool:
        """Whether a checkpoint of this id is there, in any namespace."""
        return any(id in namespace.rows for namespace in self.namespaces.values())

    def writes(self, ns: str, id: str) -> WritePlaces:
        namespace = self.namespaces.get(ns)
        return namespace.writes_of(id) if namespace else {}

    def losses(self, ns: str, id: str, channels: Collection[str] | None = None) -> tuple[str, ...]:
        """The pending writes of a checkpoint (to `channels`, or all) that were left out, in words."""
        if not self.left_out:
            return ()
        out = self.left_out.get((ns, id), {})
        tasks = sorted({task for (task, _), channel in out.items() if channels is None or channel in channels})
        return tuple(f"pending writes of task {task!r} at checkpoint {id!r} are damaged and left out" for task in tasks)

    def covers(self, span: Span) -> bool:
        """Whether every item of `span` is stored."""
        packs = self.packs.get(span.writer)
        return packs is not None and packs.covers(span.first, span.count)

    def places(self, spans: Collection[Span]) -> list[PackPlace]:
        """Every pack that holds an item of `spans`, in the order of the log."""
        found: list[PackPlace] = []
        for writer, first, count in spans:
            packs = self.packs.get(writer)
            if packs is not None:
                found += packs.places(writer, first, count)
        return sorted(found if len(spans) == 1 else set(found))

    def every_pack(self) -> Iterator[PackPlace]:
        for writer, packs in sorted(self.packs.items()):
            yield from zip(packs.offsets, packs.lengths, repeat(writer), packs.firsts, packs.counts)

    def ids(self) -> set[str]:
        """Every checkpoint id the thread knows, also those of writes whose checkpoint is not there."""
        return {
            id for namespace in self.namespaces.values() for ids in (namespace.rows, namespace.writes) for id in ids
        }

    # -- applying -------------------------------------------------------------------------------------------------

    def note(self, damage: str) -> None:
        """Keep in mind that something did not verify."""
        if len(self.damage) < _MOST_DAMAGE:
            self.damage.append(damage)
        else:
            self.more_damage += 1

    def apply(self, at: float, records: Sequence[Record], body: int, damaged: Collection[int] = ()) -> None:
        """Take over the records of one frame whose body begins at the offset `body`.

        `damaged` names records whose blob does not verify. Of such a frame the pending writes are left out, all of
        them: half of a task's writes would pass for the whole. Its sound packs are kept, and so is a damaged
        checkpoint: the codec tells its damage, and the way to its parent must not be lost.
        """
        for number, record in enumerate(records):
            kind = record[0]
            if kind == frames.CHECKPOINT:
                self._checkpoint(record, body)
                body += record[6]
            elif kind == frames.PACK:
                if number not in damaged:
                    self._pack(record, body)
                body += record[4]
            elif kind == frames.WRITES:
                body = self._writes(record, body, keep=not damaged)
            elif kind == frames.DROP:
                # What takes the place of others is lost: they are still there.
                merging = record[1] == self.generation
                if not damaged or not merging:
                    self._drop(record)
                    self.merged += merging
            elif kind == frames.CALL:
                body = self.calls.apply(record, body)
            elif kind == frames.FORGET:
                self.calls.forget(record[1])
            elif kind == frames.UNWRITE:
                self._unwrite(record[1])
                self.rewritten = body
            elif kind == frames.LEASE:
                self.lease, self.ends = Lease(*record[1:]), None
            elif kind == frames.ENDS:
                self.ends = Uptime(*record[1:])
            elif kind == frames.TOMBSTONE:
                self.tombstone = Tombstone(tuple(record[1]), record[2], record[3])
            elif kind == frames.REVIVE:
                self.tombstone = None
            elif kind == frames.THREAD:
                self.thread = record[1]
        self.frames += 1
        # A heartbeat is no use of the thread.
        if not self.empty and not (records and records[0][0] in _NO_USE):
            self.created = min(self.created, at) if self.created else at
            self.updated = max(self.updated, at)

    def _namespace(self, ns: str) -> Namespace:
        namespace = self.namespaces.get(ns)
        if namespace is None:
            namespace = self.namespaces[ns] = Namespace()
        return namespace

    def _checkpoint(self, record: Record, offset: int) -> None:
        _, ns, id, parent, key, at, length = record
        namespace = self._namespace(ns)
        old = namespace.rows.get(id)
        above = namespace.rows.get(parent) if parent is not None else None
        row = Row(id, key or id, above.id if above else parent, at, offset, length)
        self.live += _row_cost(ns, row)
        place = (row.key, row.id)
        if old is not None:
            self.live -= _row_cost(ns, old)
            if old.offset < self.lost:
                self.outlasted.add((ns, id))
            if old.key != row.key:
                del namespace.order[bisect.bisect_left(namespace.order, (old.key, id))]
                bisect.insort(namespace.order, place)
        elif not namespace.order or place > namespace.order[-1]:
            namespace.order.append(place)
        else:
            bisect.insort(namespace.order, place)
        namespace.rows[id] = row
        if self.created == 0.0 or at < self.created:
            self.created = at

    def _writes(self, record: Record, offset: int, *, keep: bool) -> int:
        _, ns, id, task, columns = record
        writes: WritePlaces = {}
        for idx, channel, length in zip(columns[::3], columns[1::3], columns[2::3], strict=True):
            writes[task, idx] = WritePlace(self._names.setdefault(channel, channel), offset, length)
            offset += length
        if not keep:
            self.left_out.setdefault((ns, id), {}).update((place, write.channel) for place, write in writes.items())
        elif writes:
            if self.left_out and (out := self.left_out.get((ns, id))):
                for place in writes:
                    out.pop(place, None)
            there = self._namespace(ns).writes.setdefault(id, {})
            for place, write in writes.items():
                old = there.get(place)
                self.live += _write_cost(ns, id, place, write) - (_write_cost(ns, id, place, old) if old else 0)
                there[place] = write
        return offset

    def _pack(self, record: Record, offset: int) -> None:
        _, writer, first, count, length, _ = record
        packs = self.packs.get(writer)
        if packs is None:
            packs = self.packs[writer] = Packs()
        self.live += length + _COST - packs.add((first, count, offset, length))

    def _unwrite(self, checkpoints: Iterable[tuple[str, str]]) -> None:
        for ns, id in checkpoints:
            self.left_out.pop((ns, id), None)
            if (namespace := self.namespaces.get(ns)) is not None:
                for place, write in namespace.writes.pop(id, {}).items():
                    self.live -= _write_cost(ns, id, place, write)

    def _drop(self, record: Record) -> None:
        _, generation, checkpoints, parents, dead = record
        touched: set[str] = set()
        for ns, id in checkpoints:
            namespace = self.namespaces.get(ns)
            if namespace is None:
                continue
            row = namespace.rows.pop(id, None)
            if row is not None:
                self.live -= _row_cost(ns, row)
                touched.add(ns)
        self._unwrite(checkpoints)
        for ns in touched:
            namespace = self.namespaces[ns]
            namespace.order = [place for place in namespace.order if place[1] in namespace.rows]
        for ns in {ns for ns, _ in checkpoints}:
            namespace = self.namespaces.get(ns)
            if namespace is not None and not namespace.rows and not namespace.writes:
                del self.namespaces[ns]
        for ns, id, parent in parents:
            row = self.row(ns, id)
            if row is not None:
                changed = self.namespaces[ns].rows[id] = row._replace(parent=parent)
                self.live += _row_cost(ns, changed) - _row_cost(ns, row)
        for writer, first, count in dead:
            packs = self.packs.get(writer)
            if packs is not None:
                self.live -= packs.remove(first, count)
                if not packs:
                    del self.packs[writer]
        if not self.namespaces:  # nothing is left that could refer to a pack
            self.packs.clear()
            self.live = 0
        self.generation = generation

    # -- snapshots ------------------------------------------------------------------------------------------------

    def freeze(self) -> bytes:
        """The index as the bytes of a snapshot file."""
        namespaces = [[ns, *namespace.freeze()] for ns, namespace in self.namespaces.items()]
        packs = [
            [writer, packs.longest, *(column.tobytes() for column in packs.columns())]
            for writer, packs in self.packs.items()
        ]
        tombstone = self.tombstone and [self.tombstone.ids, self.tombstone.floor, self.tombstone.at]
        data = ormsgpack.packb(
            [
                _SNAPSHOT,
                self.log,
                self.generation,
                self.thread,
                tombstone,
                tuple(self.lease),
                self.ends and tuple(self.ends),
                self.calls.freeze(),
                self.end,
                *self.tip,
                self.rewritten,
                self.frames,
                self.live,
                self.created,
                self.updated,
                namespaces,
                packs,
            ]
        )
        return b"".join((_MAGIC, crc32(data).to_bytes(4, "little"), data))

    @classmethod
    def thaw(cls, data: bytes) -> Index | None:
        """The index in a snapshot file, or None when the bytes are not one of this release."""
        if len(data) <= 8 or data[:4] != _MAGIC or crc32(data[8:]) != int.from_bytes(data[4:8], "little"):
            return None
        content: list[Any] = ormsgpack.unpackb(data[8:])
        if content[0] != _SNAPSHOT:
            return None
        index = cls(content[1])
        (
            _,
            _,
            index.generation,
            index.thread,
            tombstone,
            lease,
            ends,
            calls,
            index.end,
            tip,
            header,
            index.rewritten,
            index.frames,
            index.live,
            index.created,
            index.updated,
            namespaces,
            writers,
        ) = content
        index.tip = (tip, header)
        index.lease, index.ends = Lease(*lease), Uptime(*ends) if ends else None
        index.calls.thaw(calls)
        if tombstone:
            index.tombstone = Tombstone(tuple(tombstone[0]), tombstone[1], tombstone[2])
        index.namespaces = {ns: Namespace(frozen) for ns, *frozen in namespaces}
        for writer, longest, *columns in writers:
            packs = index.packs[writer] = Packs()
            packs.longest = longest
            for column, raw in zip(packs.columns(), columns, strict=True):
                column.frombytes(raw)
        return index


def _freeze_row(row: Row) -> Sequence[Any]:
    return row.id, None if row.key == row.id else row.key, row.parent, row.at, row.offset, row.length


def _thaw_row(id: str, key: str | None, parent: str | None, at: float, offset: int, length: int) -> Row:
    return Row(id, key or id, parent, at, offset, length)


def _thaw_rows(data: bytes) -> tuple[dict[str, Row], list[tuple[str, str]]]:
    rows: dict[str, Row] = {}
    order: list[tuple[str, str]] = []
    for id, key, parent, at, offset, length in ormsgpack.unpackb(data):
        above = rows.get(parent)
        row = rows[id] = _thaw_row(id, key, above.id if above else parent, at, offset, length)
        order.append((row.key, id))
    return rows, order


def _freeze_writes(writes: WritePlaces) -> Sequence[Any]:
    return [(*place, *write) for place, write in writes.items()]


def _thaw_writes(data: bytes) -> dict[str, WritePlaces]:
    channels: dict[str, str] = {}
    return {id: _thaw_places(writes, channels) for id, writes in ormsgpack.unpackb(data)}


def _thaw_places(writes: Sequence[Any], channels: dict[str, str]) -> WritePlaces:
    """`channels` has the names of channels, so that there is one text of each."""
    return {
        (task, idx): WritePlace(channels.setdefault(channel, channel), offset, length)
        for task, idx, channel, offset, length in writes
    }


def _row_cost(ns: str, row: Row) -> int:
    return _COST + row.length + len(ns) + len(row.id) + len(row.parent or "") + len(row.key)


def _write_cost(ns: str, id: str, place: tuple[str, int], write: WritePlace) -> int:
    return _COST + write.length + len(ns) + len(id) + len(place[0]) + len(write.channel)
