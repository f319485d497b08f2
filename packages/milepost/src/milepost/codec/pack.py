"""Packs: the items that one put or one pending write newly needs, in one envelope.

The payload is: number of items n (u32), their lengths (n x u32), their CRC-32s (n x u32), then their bytes one after
the other; all little endian. The checksums of the items are what a header's digests are made of. An item of no bytes is
a hole: no item has that address any more.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from sys import byteorder

from milepost.checksums import crc32
from milepost.codec.envelope import Vault, unwrap, wrap
from milepost.errors import Corrupt
from milepost.store import Pack, Span, merge_spans

COMPRESS_OVER = 8192
"""Payloads over this many bytes are compressed if that helps; smaller ones are read faster as they are."""

MERGE_LEVEL = 6
"""Of zstd, for packs that are merged: written once, off the way of any run, and read often."""

_HOLE = (b"", 0)
_GROUP = 1 << 20
_COUNT = struct.Struct("<I")
assert array("I").itemsize == 4, "this platform's unsigned int is not 32 bits wide"


def words(values: Iterable[int]) -> bytes:
    """`values` as unsigned 32 bit numbers, little endian."""
    numbers = array("I", values)
    if byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _from_words(data: bytes) -> array[int]:
    numbers = array("I", data)
    if byteorder == "big":
        numbers.byteswap()
    return numbers


def digest_of(checksums: Iterable[int]) -> int:
    """One number over the checksums of items in order: what a header keeps to verify what it refers to."""
    if byteorder == "little" and type(checksums) is array and checksums.typecode == "I":
        return crc32(checksums)
    return crc32(words(checksums))


def _about(thread: str, writer: int, first: int) -> bytes:
    return b"pack\0%d\0%d\0" % (writer, first) + thread.encode("utf-8", "surrogatepass")


def seal_pack(
    thread: str,
    writer: int,
    first: int,
    items: Sequence[bytes],
    checksums: Sequence[int],
    vault: Vault | None,
    *,
    compress_over: int = COMPRESS_OVER,
    level: int = 1,
) -> Pack:
    """`items` as a pack with addresses (writer, first), (writer, first + 1), …"""
    payload = b"".join((_COUNT.pack(len(items)), words(map(len, items)), words(checksums), *items))
    about = _about(thread, writer, first) if vault else b""
    data = wrap(payload, compress_over=compress_over, vault=vault, about=about, level=level)
    return Pack(writer, first, len(items), data)


@dataclass(slots=True)
class OpenPack:
    """A verified pack. Item i of it lies at ``offsets[i]:offsets[i + 1]`` of `payload`."""

    writer: int
    first: int
    count: int
    payload: bytes
    offsets: list[int]
    checksums: array[int]

    def items(self, start: int, stop: int) -> list[bytes]:
        """The bytes of items number `start` to `stop` - 1 of the pack."""
        cuts = self.offsets[start : stop + 1]
        return [self.payload[a:b] for a, b in pairwise(cuts)]


def open_pack(thread: str, pack: Pack, vault: Vault | None) -> OpenPack:
    """Verify and open a pack. Raises `Corrupt`, and what `unwrap` raises."""
    writer, first, count, data = pack
    payload = unwrap(data, vault=vault, about=_about(thread, writer, first) if vault else b"")
    start = 4 + 8 * count
    if len(payload) < start or _COUNT.unpack_from(payload)[0] != count:
        raise Corrupt(f"pack {writer}/{first} does not hold the {count} items it should", damage="pack directory")
    offsets = list(accumulate(_from_words(payload[4 : 4 + 4 * count]), initial=start))
    if offsets[-1] != len(payload):
        raise Corrupt(f"pack {writer}/{first} has {len(payload)} bytes instead of {offsets[-1]}", damage="pack size")
    return OpenPack(writer, first, count, payload, offsets, _from_words(payload[4 + 4 * count : start]))


def repack(thread: str, pack: Pack, live: Sequence[Span], vault: Vault | None) -> list[Pack]:
    """The parts of `pack` that `live` still needs, each as a pack of its own under the same addresses."""
    opened = open_pack(thread, pack, vault)
    return [
        seal_pack(
            thread,
            pack.writer,
            pack.first + start,
            opened.items(start, stop),
            opened.checksums[start:stop],
            vault,
        )
        for start, stop in _overlaps(pack, merge_spans(live))
    ]


def merge(thread: str, packs: Sequence[Pack], live: Sequence[Span], vault: Vault | None) -> Pack:
    """What `live` needs of `packs`, which are of one writer, as one pack. What lies between is left out, as holes."""
    found: dict[int, tuple[bytes, int]] = {}
    for pack in packs:
        opened = open_pack(thread, pack, vault)
        for start, stop in _overlaps(pack, live):
            numbers = range(pack.first + start, pack.first + stop)
            parts = zip(opened.items(start, stop), opened.checksums[start:stop], strict=True)
            found |= dict(zip(numbers, parts, strict=True))
    first, last = min(found), max(found)
    whole = [found.get(number, _HOLE) for number in range(first, last + 1)]
    items, sums = [item for item, _ in whole], [total for _, total in whole]
    return seal_pack(thread, packs[0].writer, first, items, sums, vault, compress_over=0, level=MERGE_LEVEL)


def join(thread: str, packs: Sequence[Pack], vault: Vault | None) -> Pack:
    """What `packs` hold, which lie one behind another, as one pack."""
    items: list[bytes] = []
    sums = array("I")
    for pack in packs:
        opened = open_pack(thread, pack, vault)
        items += opened.items(0, opened.count)
        sums += opened.checksums
    return seal_pack(thread, packs[0].writer, packs[0].first, items, sums, vault, compress_over=0)


def regroup(
    source: str, target: str, packs: Sequence[Pack], live: Sequence[Span], vault: Vault | None
) -> Iterator[Pack]:
    """What `live` needs of packs of thread `source`, which may overlap each other, as packs of thread `target`."""
    found: dict[int, dict[int, tuple[bytes, int]]] = {}
    for pack in packs:
        opened = open_pack(source, pack, vault)
        items = found.setdefault(pack.writer, {})
        for start, stop in _overlaps(pack, live):
            for at, item in enumerate(opened.items(start, stop), start):
                if item:
                    items[pack.first + at] = item, opened.checksums[at]
    for writer, items in found.items():
        run: list[int] = []
        size = 0
        for number in [*sorted(items), None]:
            if run and (number != run[-1] + 1 or size > _GROUP):
                whole, sums = [items[one][0] for one in run], [items[one][1] for one in run]
                yield seal_pack(target, writer, run[0], whole, sums, vault, compress_over=0, level=MERGE_LEVEL)
                run, size = [], 0
            if number is not None:
                run.append(number)
                size += len(items[number][0])


def _overlaps(pack: Pack, live: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """The parts of `pack` that lie in `live`, which is sorted and merged."""
    at = max(bisect_right(live, (pack.writer, pack.first), key=lambda span: span[:2]) - 1, 0)
    for span in islice(live, at, None):
        if (span.writer, span.first) >= (pack.writer, pack.first + pack.count):
            return
        start = max(span.first - pack.first, 0)
        stop = min(span.first + span.count - pack.first, pack.count)
        if span.writer == pack.writer and start < stop:
            yield start, stop


def reseal_pack(pack: Pack, source: str, target: str, vault: Vault) -> Pack:
    """A pack of thread `source`, bound to thread `target`."""
    writer, first, count, data = pack
    payload = unwrap(data, vault=vault, about=_about(source, writer, first))
    return Pack(
        writer,
        first,
        count,
        wrap(payload, compress_over=COMPRESS_OVER, vault=vault, about=_about(target, writer, first)),
    )
