"""Layouts: where the values of a checkpoint or of a pending write lie.

A layout is a nested tuple, the same in memory and (with writers as small numbers) in a header:

    (INLINE, data)                    the encoded value itself
    (ONE, writer, number, sum)        one item, and its checksum
    (MANY, count, runs, digest)       a list of `count` elements: runs of items, each (writer, first, n), and the
                                      CRC-32 over the items' checksums in order
    (KEYED, keys, values)             a dict, as the layouts of two lists
    (DELTA, inner)                    the snapshot of a delta channel

`TYPED` is added to the kind when items are pairs of a foreign serializer instead of msgpack fragments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from milepost.checksums import crc32
from milepost.codec.items import Block, Delta, Inline, Item, Keyed, Many, One, Piece
from milepost.codec.lanes import Fresh, Lane
from milepost.codec.pack import words
from milepost.errors import Corrupt
from milepost.store import Span

INLINE, ONE, MANY, KEYED, DELTA = range(5)
TYPED = 8
INLINES = (INLINE, INLINE + TYPED)

Layout = tuple[Any, ...]
Address = tuple[int, int, int]
"""(writer, number, sum)."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Stands for a value that was not decoded, and is to be stored as it lies."""

    layout: Layout


class Placer:
    """Gives addresses to the items of one draft: known ones where the thread has them, new ones otherwise."""

    def __init__(
        self, known: Mapping[bytes, Address], epoch: int | None, allocate: Callable[[Lane, int], tuple[int, int]]
    ) -> None:
        self._known = known
        self._epoch = epoch
        self._allocate = allocate
        self._new: dict[bytes, Item] = {}
        self.fresh: list[Fresh] = []
        """The packs to be."""

    def gather(self, pieces: Iterable[tuple[Lane, Piece]]) -> None:
        """Find out which items are new and number them. Call once, before `layout`."""
        for lane, piece in pieces:
            for item in _items(piece, self._epoch):
                if item.epoch is not None and item.epoch == self._epoch:
                    continue
                known = self._known.get(item.digest)
                if known is not None:
                    item.writer, item.number, item.sum = known
                    item.epoch = self._epoch
                else:
                    item.epoch = None
                    if item.digest not in self._new:
                        self._new[item.digest] = item
                        self._fresh(lane).items.append(item)
        for fresh in self.fresh:
            fresh.writer, fresh.first = self._allocate(fresh.lane, len(fresh.items))
            for at, item in enumerate(fresh.items):
                item.writer, item.number = fresh.writer, fresh.first + at

    def _fresh(self, lane: Lane) -> Fresh:
        for fresh in self.fresh:  # few
            if fresh.lane == lane:
                return fresh
        self.fresh.append(Fresh(lane, []))
        return self.fresh[-1]

    def layout(self, piece: Piece, typed: int) -> Layout:
        """The layout of `piece`; `typed` is `TYPED` or 0."""
        if isinstance(piece, Inline):
            return (INLINE + typed, piece.data)
        if isinstance(piece, One):
            item = self._settled(piece.item)
            return (ONE + typed, item.writer, item.number, item.sum)
        if isinstance(piece, Many):
            runs: list[tuple[int, int, int]] = []
            crc = 0
            for block in piece.blocks:
                self._place(block)
                fresh = [self._settled(item) for item in block.items[block.placed :]]
                crc = crc32(words([item.sum for item in fresh]), crc32(block.sums, crc))
                for run in block.runs:
                    _extend(runs, run)
                for item in fresh:
                    _extend(runs, (item.writer, item.number, 1))
            return (MANY + typed, piece.count, tuple(runs), crc)
        if isinstance(piece, Keyed):
            return (KEYED + typed, self.layout(piece.keys, typed), self.layout(piece.values, typed))
        return (DELTA + typed, self.layout(piece.inner, typed))

    def _place(self, block: Block) -> None:
        """Note the addresses of the block's leading items that are good for the whole generation."""
        settled = list(takewhile(lambda item: item.epoch is not None, block.unplaced(self._epoch)))
        if settled:
            for item in settled:
                _extend(block.runs, (item.writer, item.number, 1))
            block.sums += words([item.sum for item in settled])
            block.placed += len(settled)

    def refers_elsewhere(self, spans: Sequence[Span]) -> bool:
        """Whether any of `spans` lies outside the packs to be."""
        own = {fresh.writer: (fresh.first, fresh.first + len(fresh.items)) for fresh in self.fresh}
        for writer, first, count in spans:
            start, end = own.get(writer, (0, 0))
            if first < start or first + count > end:
                return True
        return False

    def _settled(self, item: Item) -> Item:
        # An equal item of the same draft was numbered in its place.
        return item if item.epoch is not None else self._new.get(item.digest, item)


def _items(piece: Piece, epoch: int | None) -> Iterator[Item]:
    if isinstance(piece, One):
        yield piece.item
    elif isinstance(piece, Many):
        for block in piece.blocks:
            yield from block.unplaced(epoch)
    elif isinstance(piece, Keyed):
        yield from _items(piece.keys, epoch)
        yield from _items(piece.values, epoch)
    elif isinstance(piece, Delta):
        yield from _items(piece.inner, epoch)


def _extend(runs: list[tuple[int, int, int]], run: tuple[int, int, int]) -> None:
    if runs:
        writer, first, count = runs[-1]
        if writer == run[0] and first + count == run[1]:
            runs[-1] = (writer, first, count + run[2])
            return
    runs.append(run)


def spans_of(layout: Layout) -> Iterator[Span]:
    """Every address the layout refers to, as spans, in no order."""
    kind = layout[0] & ~TYPED
    if kind == ONE:
        yield Span(layout[1], layout[2], 1)
    elif kind == MANY:
        for run in layout[2]:
            yield Span(*run)
    elif kind in (KEYED, DELTA):
        for inner in layout[1:]:
            yield from spans_of(inner)


DELTAS = (DELTA, DELTA + TYPED)


def is_snapshot(layout: Layout) -> bool:
    """Whether the value is the snapshot of a delta channel."""
    return layout[0] in DELTAS


def to_wire(layout: Layout, writers: dict[int, int]) -> Sequence[Any]:
    """`layout` for a header; each writer is replaced by its place in the table `writers`, which grows."""
    kind = layout[0] & ~TYPED
    if kind == ONE:
        return [layout[0], writers.setdefault(layout[1], len(writers)), layout[2], layout[3]]
    if kind == MANY:
        flat: list[int] = []
        for writer, first, count in layout[2]:
            flat += (writers.setdefault(writer, len(writers)), first, count)
        return [layout[0], layout[1], flat, layout[3]]
    if kind in (KEYED, DELTA):
        return [layout[0], *(to_wire(inner, writers) for inner in layout[1:])]
    return layout


def from_wire(wire: Sequence[Any], writers: Sequence[int]) -> Layout:
    """The inverse of `to_wire`. Raises `Corrupt` for anything that is no layout."""
    try:
        kind = wire[0] & ~TYPED
        if kind == INLINE:
            return (wire[0], wire[1])
        if kind == ONE:
            return (wire[0], writers[wire[1]], wire[2], wire[3])
        if kind == MANY:
            flat = wire[2]
            if len(flat) == 3:
                return (wire[0], wire[1], ((writers[flat[0]], flat[1], flat[2]),), wire[3])
            runs = zip([writers[at] for at in flat[::3]], flat[1::3], flat[2::3], strict=True)
            return (wire[0], wire[1], tuple(runs), wire[3])
        if kind in (KEYED, DELTA):
            return (wire[0], *(from_wire(inner, writers) for inner in wire[1:]))
    except (TypeError, ValueError, IndexError) as exc:
        raise Corrupt("a header's layout does not make sense", damage="layout") from exc
    raise Corrupt(f"a header's layout has the unknown kind {wire[0]!r}", damage="layout")
