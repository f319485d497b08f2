"""Reading: values from the packs that a store handed out."""

from __future__ import annotations

import bisect
import gc
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from milepost.codec.coding import Coding
from milepost.codec.envelope import FORMAT, Vault, checksum
from milepost.codec.exts import array_header
from milepost.codec.layout import DELTA, INLINE, KEYED, MANY, ONE, TYPED, Layout
from milepost.codec.pack import OpenPack, digest_of, open_pack
from milepost.errors import Corrupt
from milepost.store import Pack

_SINGLE = struct.Struct("<BBIIII")
"""Envelope and directory of a pack of one item."""
_PLAIN = checksum(b"")
"""Where the checksum of an envelope without flags begins."""
_MANY_OBJECTS = 64


class Shelf:
    """The packs of one thread, each opened and verified at most once."""

    def __init__(self, thread: str, packs: Sequence[Pack], vault: Vault | None) -> None:
        self._thread = thread
        self._vault = vault
        self._firsts: dict[int, list[int]] = {}
        self._packs: dict[int, list[Pack]] = {}
        self._opened: dict[tuple[int, int], OpenPack] = {}
        for pack in sorted(packs, key=lambda pack: pack[:2]):
            self._firsts.setdefault(pack.writer, []).append(pack.first)
            self._packs.setdefault(pack.writer, []).append(pack)

    def opened(self) -> list[OpenPack]:
        """The packs that were needed so far, but for single items that were read on the fly."""
        return list(self._opened.values())

    def take(self, writer: int, first: int, count: int) -> tuple[list[bytes], array[int]]:
        """The bytes and checksums of a run of items. Raises `Corrupt` when one is missing or damaged."""
        firsts, packs = self._firsts.get(writer, []), self._packs.get(writer, [])
        at = max(bisect.bisect_right(firsts, first) - 1, 0)
        items: list[bytes] = []
        sums = array("I")
        need, end = first, first + count
        sealed = self._vault is not None
        while need < end:
            pack = packs[at] if at < len(packs) else None
            if pack is None or not pack.first <= need < pack.first + pack.count:
                raise Corrupt(f"item {writer}/{need} is missing from the store", damage=f"item {writer}/{need} missing")
            if pack.count == 1 and not sealed:
                data = pack.data
                if len(data) >= _SINGLE.size:
                    version, flags, noted, n, size, total = _SINGLE.unpack_from(data)
                    if (version, flags, n, size) == (FORMAT, 0, 1, len(data) - _SINGLE.size):
                        if zlib.crc32(data[6:], _PLAIN) != noted:
                            raise Corrupt(f"item {writer}/{need} is damaged", damage=f"pack {writer}/{need}")
                        items.append(data[_SINGLE.size :])
                        sums.append(total)
                        need += 1
                        at += 1
                        continue
            opened = self._open(pack)
            stop = min(end, pack.first + pack.count)
            items += opened.items(need - pack.first, stop - pack.first)
            sums += opened.checksums[need - pack.first : stop - pack.first]
            need = stop
            at += 1
        return items, sums

    def _open(self, pack: Pack) -> OpenPack:
        opened = self._opened.get(pack[:2])
        if opened is None:
            opened = self._opened[pack[:2]] = open_pack(self._thread, pack, self._vault)
        return opened

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

    def _list(self, layout: Layout, coding: Coding) -> list[Any]:
        _, count, runs, digest = layout
        items: list[bytes] = []
        sums = array("I")
        for run in runs:
            more, checks = self.take(*run)
            items += more
            sums += checks
        if digest_of(sums) != digest:
            raise Corrupt("the items of a list are not the ones that were stored", damage="list digest")
        with unhurried() if count >= _MANY_OBJECTS else _no_change():
            if coding.typed:
                return [coding.decode(item) for item in items]
            value: list[Any] = coding.decode(b"".join((array_header(count), *items)))
        return value


@contextmanager
def unhurried() -> Iterator[None]:
    """No garbage collection in between: while thousands of objects are built, each pass over them finds nothing."""
    was = gc.isenabled()
    if was:
        gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def _no_change() -> Iterator[None]:
    yield
