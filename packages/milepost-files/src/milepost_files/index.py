"""What one log holds, in memory: where checkpoints, pending writes and packs lie, never their bytes.

An index is built by applying frames in order, or read from a snapshot beside the log and then brought up to date. The
same records in the same order always give the same index, whoever applies them.
"""

from __future__ import annotations

import bisect
import zlib
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple

import ormsgpack
from milepost.store import Span, Tombstone

from milepost_files import frames
from milepost_files.frames import Record

_SNAPSHOT: Final = 1
_MAGIC: Final = b"MPX1"

# About what a record takes in a log besides its blob and its texts, rather too much than too little: only the decision
# to rewrite a log depends on it, and a log that was just rewritten must not seem to be worth it.
_COST: Final = 64

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


class Cell(NamedTuple):
    """Where a pending write lies."""

    channel: str
    offset: int
    length: int


Slot = tuple[int, int, int, int, int]
"""Where a pack lies: offset, length, writer, first item, count. No class: a state of 1,000 packs is read often."""

Cells = dict[tuple[str, int], Cell]
"""(task, idx) -> cell."""


@dataclass(slots=True)
class Space:
    """One namespace of a thread."""

    rows: dict[str, Row] = field(default_factory=dict)
    order: list[tuple[str, str]] = field(default_factory=list)
    """(sort key, id) of every row, ascending."""
    writes: dict[str, Cells] = field(default_factory=dict)
    """Checkpoint id -> its pending writes. The checkpoint need not be there."""

    def head(self) -> Row | None:
        return self.rows[self.order[-1][1]] if self.order else None

    def below(self, key: tuple[str, ...]) -> Iterator[Row]:
        """Rows whose (sort key, id) is less than `key`, descending."""
        for place in range(bisect.bisect_left(self.order, key) - 1, -1, -1):
            yield self.rows[self.order[place][1]]

    def descending(self) -> Iterator[Row]:
        for _, id in reversed(self.order):
            yield self.rows[id]


class Shelf:
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

    def slots(self, writer: int, first: int, count: int) -> list[Slot]:
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
        for *_, start, length in sorted(self.slots(0, first, count), key=itemgetter(3)):
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
        self.spaces: dict[str, Space] = {}
        self.shelves: dict[int, Shelf] = {}
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
        self.frames = 0
        self.live = 0
        self.created = 0.0
        self.updated = 0.0

    # -- asking ---------------------------------------------------------------------------------------------------

    @property
    def empty(self) -> bool:
        """Whether there is neither a checkpoint nor a pending write."""
        return not self.spaces

    @property
    def dead(self) -> int:
        """Bytes of the log that nothing refers to, roughly."""
        return self.end - self.live

    def counts(self) -> tuple[int, int, int]:
        """How many checkpoints, pending writes and packs there are."""
        rows = sum(len(space.rows) for space in self.spaces.values())
        writes = sum(len(cells) for space in self.spaces.values() for cells in space.writes.values())
        return rows, writes, sum(map(len, self.shelves.values()))

    def row(self, ns: str, id: str) -> Row | None:
        space = self.spaces.get(ns)
        return space.rows.get(id) if space else None

    def has(self, id: str) -> bool:
        """Whether a checkpoint of this id is there, in any namespace."""
        return any(id in space.rows for space in self.spaces.values())

    def cells(self, ns: str, id: str) -> Cells:
        space = self.spaces.get(ns)
        return space.writes.get(id, {}) if space else {}

    def losses(self, ns: str, id: str, channels: Collection[str] | None = None) -> tuple[str, ...]:
        """The pending writes of a checkpoint (to `channels`, or all) that were left out, in words."""
        if not self.left_out:
            return ()
        out = self.left_out.get((ns, id), {})
        tasks = sorted({task for (task, _), channel in out.items() if channels is None or channel in channels})
        return tuple(f"pending writes of task {task!r} at checkpoint {id!r} are damaged and left out" for task in tasks)

    def covers(self, span: Span) -> bool:
        """Whether every item of `span` is stored."""
        shelf = self.shelves.get(span.writer)
        return shelf is not None and shelf.covers(span.first, span.count)

    def slots(self, spans: Collection[Span]) -> list[Slot]:
        """Every pack that holds an item of `spans`, in the order of the log."""
        found: list[Slot] = []
        for writer, first, count in spans:
            shelf = self.shelves.get(writer)
            if shelf is not None:
                found += shelf.slots(writer, first, count)
        return sorted(found if len(spans) == 1 else set(found))

    def every_slot(self) -> Iterator[Slot]:
        for writer, shelf in sorted(self.shelves.items()):
            yield from zip(shelf.offsets, shelf.lengths, repeat(writer), shelf.firsts, shelf.counts)

    def ids(self) -> set[str]:
        """Every checkpoint id the thread knows, also those of writes whose checkpoint is not there."""
        return {id for space in self.spaces.values() for ids in (space.rows, space.writes) for id in ids}

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
                self._drop(record)
            elif kind == frames.TOMBSTONE:
                self.tombstone = Tombstone(tuple(record[1]), record[2], record[3])
            elif kind == frames.REVIVE:
                self.tombstone = None
            elif kind == frames.THREAD:
                self.thread = record[1]
        self.frames += 1
        if not self.empty:
            self.created = min(self.created, at) if self.created else at
            self.updated = max(self.updated, at)

    def _space(self, ns: str) -> Space:
        space = self.spaces.get(ns)
        if space is None:
            space = self.spaces[ns] = Space()
        return space

    def _checkpoint(self, record: Record, offset: int) -> None:
        _, ns, id, parent, key, at, length = record
        space = self._space(ns)
        old = space.rows.get(id)
        above = space.rows.get(parent) if parent is not None else None
        row = Row(id, key or id, above.id if above else parent, at, offset, length)
        self.live += _row_cost(ns, row)
        place = (row.key, row.id)
        if old is not None:
            self.live -= _row_cost(ns, old)
            if old.offset < self.lost:
                self.outlasted.add((ns, id))
            if old.key != row.key:
                del space.order[bisect.bisect_left(space.order, (old.key, id))]
                bisect.insort(space.order, place)
        elif not space.order or place > space.order[-1]:
            space.order.append(place)
        else:
            bisect.insort(space.order, place)
        space.rows[id] = row
        if self.created == 0.0 or at < self.created:
            self.created = at

    def _writes(self, record: Record, offset: int, *, keep: bool) -> int:
        _, ns, id, task, columns = record
        cells: Cells = {}
        for idx, channel, length in zip(columns[::3], columns[1::3], columns[2::3], strict=True):
            cells[task, idx] = Cell(channel, offset, length)
            offset += length
        if not keep:
            self.left_out.setdefault((ns, id), {}).update((place, cell.channel) for place, cell in cells.items())
        elif cells:
            if self.left_out and (out := self.left_out.get((ns, id))):
                for place in cells:
                    out.pop(place, None)
            there = self._space(ns).writes.setdefault(id, {})
            for place, cell in cells.items():
                old = there.get(place)
                self.live += _cell_cost(ns, id, place, cell) - (_cell_cost(ns, id, place, old) if old else 0)
                there[place] = cell
        return offset

    def _pack(self, record: Record, offset: int) -> None:
        _, writer, first, count, length, _ = record
        shelf = self.shelves.get(writer)
        if shelf is None:
            shelf = self.shelves[writer] = Shelf()
        self.live += length + _COST - shelf.add((first, count, offset, length))

    def _drop(self, record: Record) -> None:
        _, generation, checkpoints, parents, packs = record
        touched: set[str] = set()
        for ns, id in checkpoints:
            self.left_out.pop((ns, id), None)
            space = self.spaces.get(ns)
            if space is None:
                continue
            row = space.rows.pop(id, None)
            if row is not None:
                self.live -= _row_cost(ns, row)
                touched.add(ns)
            for place, cell in space.writes.pop(id, {}).items():
                self.live -= _cell_cost(ns, id, place, cell)
        for ns in touched:
            space = self.spaces[ns]
            space.order = [place for place in space.order if place[1] in space.rows]
        for ns in {ns for ns, _ in checkpoints}:
            space = self.spaces.get(ns)
            if space is not None and not space.rows and not space.writes:
                del self.spaces[ns]
        for ns, id, parent in parents:
            row = self.row(ns, id)
            if row is not None:
                changed = self.spaces[ns].rows[id] = row._replace(parent=parent)
                self.live += _row_cost(ns, changed) - _row_cost(ns, row)
        for writer, first, count in packs:
            shelf = self.shelves.get(writer)
            if shelf is not None:
                self.live -= shelf.remove(first, count)
                if not shelf:
                    del self.shelves[writer]
        if not self.spaces:  # nothing is left that could refer to a pack
            self.shelves.clear()
            self.live = 0
        self.generation = generation

    # -- snapshots ------------------------------------------------------------------------------------------------

    def freeze(self) -> bytes:
        """The index as the bytes of a snapshot file."""
        spaces = [
            [
                ns,
                [
                    [row.id, None if row.key == row.id else row.key, row.parent, row.at, row.offset, row.length]
                    for row in (space.rows[id] for _, id in space.order)
                ],
                [[id, [[*place, *cell] for place, cell in cells.items()]] for id, cells in space.writes.items()],
            ]
            for ns, space in self.spaces.items()
        ]
        shelves = [
            [writer, shelf.longest, *(column.tobytes() for column in shelf.columns())]
            for writer, shelf in self.shelves.items()
        ]
        tombstone = self.tombstone and [self.tombstone.ids, self.tombstone.floor, self.tombstone.at]
        data = ormsgpack.packb(
            [
                _SNAPSHOT,
                self.log,
                self.generation,
                self.thread,
                tombstone,
                self.end,
                *self.tip,
                self.frames,
                self.live,
                self.created,
                self.updated,
                spaces,
                shelves,
            ]
        )
        return b"".join((_MAGIC, zlib.crc32(data).to_bytes(4, "little"), data))

    @classmethod
    def thaw(cls, data: bytes) -> Index | None:
        """The index in a snapshot file, or None when the bytes are not one of this release."""
        if len(data) <= 8 or data[:4] != _MAGIC or zlib.crc32(data[8:]) != int.from_bytes(data[4:8], "little"):
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
            index.end,
            tip,
            header,
            index.frames,
            index.live,
            index.created,
            index.updated,
            spaces,
            shelves,
        ) = content
        index.tip = (tip, header)
        if tombstone:
            index.tombstone = Tombstone(tuple(tombstone[0]), tombstone[1], tombstone[2])
        channels: dict[str, str] = {}
        for ns, rows, writes in spaces:
            space = index.spaces[ns] = Space()
            for id, key, parent, at, offset, length in rows:
                above = space.rows.get(parent) if parent is not None else None
                row = Row(id, key or id, above.id if above else parent, at, offset, length)
                space.rows[id] = row
                space.order.append((row.key, id))
            for id, cells in writes:
                space.writes[id] = {
                    (task, idx): Cell(channels.setdefault(channel, channel), offset, length)
                    for task, idx, channel, offset, length in cells
                }
        for writer, longest, *columns in shelves:
            shelf = index.shelves[writer] = Shelf()
            shelf.longest = longest
            for column, raw in zip(shelf.columns(), columns, strict=True):
                column.frombytes(raw)
        return index


def _row_cost(ns: str, row: Row) -> int:
    return _COST + row.length + len(ns) + len(row.id) + len(row.parent or "") + len(row.key)


def _cell_cost(ns: str, id: str, place: tuple[str, int], cell: Cell) -> int:
    return _COST + cell.length + len(ns) + len(id) + len(place[0]) + len(cell.channel)
