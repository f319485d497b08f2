"""Reading: values from the packs that a store handed out."""

from __future__ import annotations

import bisect
import struct
from array import array
from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from milepost.checksums import crc32
from milepost.codec.coding import Coding
from milepost.codec.envelope import FORMAT, Vault, checksum
from milepost.codec.exts import array_header
from milepost.codec.layout import DELTA, INLINE, KEYED, MANY, ONE, TYPED, Layout
from milepost.codec.pack import digest_of, open_pack
from milepost.collector import unhurried
from milepost.errors import Corrupt, MilepostError
from milepost.store import Pack

_SINGLE = struct.Struct("<BBIIII")
"""Envelope and directory of a pack of one item."""
_PLAIN = checksum(b"")
"""Where the checksum of an envelope without flags begins."""
_TOGETHER = 64
"""Elements of a list that are decoded at a time."""


class _Strip:
    """Items with consecutive numbers, from however many packs."""

    __slots__ = ("first", "items", "sums")

    def __init__(self, first: int) -> None:
        self.first = first
        self.items: list[bytes] = []
        self.sums = array("I")


class Shelf:
    """The packs of one thread, each verified once, when an item of their writer is first asked for.

    For several checkpoints: what they have in common is decoded for each of them, since a message may be changed; its
    text cannot be, and is there once.
    """

    def __init__(self, thread: str, packs: Sequence[Pack], vault: Vault | None, *, several: bool = False) -> None:
        self._texts: dict[int, str] | None = {} if several else None
        self._thread = thread
        self._vault = vault
        self._packs: dict[int, list[Pack]] = {}
        self._strips: dict[int, tuple[list[int], list[_Strip]]] = {}
        self._unreadable: list[tuple[Pack, MilepostError]] = []
        for pack in sorted(packs):
            self._packs.setdefault(pack[0], []).append(pack)

    def take(self, writer: int, first: int, count: int) -> tuple[list[bytes], array[int]]:
        """The bytes and checksums of a run of items. Raises `Corrupt` when one is missing or damaged."""
        if writer not in self._strips:
            strips = self._unroll(self._packs.pop(writer, []))
            self._strips[writer] = ([strip.first for strip in strips], strips)
        firsts, strips = self._strips[writer]
        at = bisect.bisect_right(firsts, first) - 1
        if at >= 0:
            strip = strips[at]
            start = first - strip.first
            if start + count <= len(strip.items):
                if not start and count == len(strip.items):
                    return strip.items, strip.sums
                return strip.items[start : start + count], strip.sums[start : start + count]
            first = max(first, strip.first + len(strip.items))
        # What lies between two strips is in no pack, or in one that could not be read.
        for pack, error in self._unreadable:
            if pack.writer == writer and pack.first <= first < pack.first + pack.count:
                raise error
        raise Corrupt(f"item {writer}/{first} is missing from the store", damage=f"item {writer}/{first} missing")

    def holds(self, layout: Layout) -> bool:
        """Whether everything that `layout` refers to is here and is what it was."""
        kind = layout[0] & ~TYPED
        if kind in (KEYED, DELTA):
            return all(map(self.holds, layout[1:]))
        runs = [(layout[1], layout[2], 1)] if kind == ONE else layout[2] if kind == MANY else ()
        sums = array("I")
        try:
            for run in runs:
                sums += self.take(*run)[1]
        except MilepostError:
            return False
        return kind == INLINE or bool(layout[3] == (sums[0] if kind == ONE else digest_of(sums)))

    def _unroll(self, packs: Sequence[Pack]) -> list[_Strip]:
        strips: list[_Strip] = []
        end = -1
        unpack, check, size_of_head = _SINGLE.unpack_from, crc32, _SINGLE.size
        for pack in packs:
            _, first, count, data = pack
            if first > end or not strips:
                strips.append(_Strip(first))
                end = first
            strip = strips[-1]
            if first < end and not all(strip.items[max(first - strip.first, 0) : first + count - strip.first]):
                self._fill(strip, pack)
            if first + count <= end:
                continue
            # By far most packs hold one item as it is: what `open_pack` would do, without the ceremony.
            if count == 1 and len(data) >= size_of_head:
                version, flags, noted, n, size, total = unpack(data)
                item = data[size_of_head:]
                if (
                    version == FORMAT
                    and not flags
                    and n == 1
                    and size == len(item)
                    and check(item, check(data[6:size_of_head], _PLAIN)) == noted
                ):
                    strip.items.append(item)
                    strip.sums.append(total)
                    end += 1
                    continue
            try:
                opened = open_pack(self._thread, pack, self._vault)
            except MilepostError as exc:
                self._unreadable.append((pack, exc))
                continue
            strip.items += opened.items(end - first, count)
            strip.sums += opened.checksums[end - first :]
            end = first + count
        return strips

    def _fill(self, strip: _Strip, pack: Pack) -> None:
        """Put items of a pack into the holes of a larger one: it was stored again after they had been left out."""
        try:
            opened = open_pack(self._thread, pack, self._vault)
        except MilepostError as exc:
            self._unreadable.append((pack, exc))
            return
        place = pack.first - strip.first
        for at, item in enumerate(opened.items(0, pack.count)):
            if item and place + at < len(strip.items) and not strip.items[place + at]:
                strip.items[place + at], strip.sums[place + at] = item, opened.checksums[at]

    def value(self, layout: Layout, own: Coding, other: Coding) -> Any:
        """Decode the value that lies at `layout`: by `own`, or by `other` where a foreign serializer wrote it.

        Raises `Corrupt`, and what the serializers raise.
        """
        coding = other if layout[0] & TYPED else own
        kind = layout[0] & ~TYPED
        if kind == INLINE:
            return coding.decode(layout[1])
        if kind == ONE:
            (data,), (total,) = self.take(layout[1], layout[2], 1)
            if total != layout[3]:
                raise Corrupt(f"item {layout[1]}/{layout[2]} is not the one that was stored", damage="item digest")
            return coding.decode(data)
        if kind == MANY:
            return self._list(layout, coding)
        if kind == KEYED:
            keys, values = (self.value(inner, own, other) for inner in layout[1:])
            return dict(zip(keys, values, strict=True))
        if kind == DELTA:
            return _DeltaSnapshot(self.value(layout[1], own, other))
        raise Corrupt(f"a layout has the unknown kind {layout[0]!r}", damage="layout")

    def values(self, layouts: Sequence[Layout], own: Coding, other: Coding) -> list[Any]:
        """As `value` of each. Lists are decoded together where they hold messages: those of writes hold one or two."""
        items: list[bytes] = []
        ends: list[tuple[int, int]] = []
        for at, layout in enumerate(layouts):
            if layout[0] == MANY and layout[1] <= _TOGETHER and len(found := self._items(layout)) == layout[1]:
                items += found
                ends.append((at, len(items)))
        each = own.decode_each(items, self._texts) if len(ends) > 1 else None
        if each is None:
            return [self.value(layout, own, other) for layout in layouts]
        values: dict[int, Any] = {}
        start = 0
        for at, end in ends:
            values[at] = each[start:end]
            start = end
        return [values[at] if at in values else self.value(layout, own, other) for at, layout in enumerate(layouts)]

    def _items(self, layout: Layout) -> list[bytes]:
        """The items of a list, not to be changed. Raises `Corrupt`."""
        _, _, runs, digest = layout
        items, sums = self.take(*runs[0]) if len(runs) == 1 else ([], array("I"))
        if len(runs) > 1:
            for run in runs:
                more, checks = self.take(*run)
                items += more
                sums += checks
        if digest_of(sums) != digest:
            raise Corrupt("the items of a list are not the ones that were stored", damage="list digest")
        return items

    def _list(self, layout: Layout, coding: Coding) -> list[Any]:
        count = layout[1]
        items = self._items(layout)
        if not coding.typed and count <= _TOGETHER:
            each = coding.decode_each(items, self._texts) if len(items) == count else None
            return self._joined(items, count, coding) if each is None else each
        with unhurried(count):
            if coding.typed:
                return [coding.decode(item) for item in items]
            if len(items) == count:
                if (each := coding.decode_each(items, self._texts)) is not None:
                    return each
                # Some at a time: a buffer for all of them costs more in fresh memory than it saves in calls.
                value: list[Any] = []
                for start in range(0, count, _TOGETHER):
                    part = items[start : start + _TOGETHER]
                    value += self._joined(part, len(part), coding)
                return value
            return self._joined(items, count, coding)

    @staticmethod
    def _joined(items: Sequence[bytes], count: int, coding: Coding) -> list[Any]:
        """A list of `count` elements, which may be more than the items: one can hold many."""
        whole: list[Any] = coding.decode(b"".join((array_header(count), *items)))
        return whole
