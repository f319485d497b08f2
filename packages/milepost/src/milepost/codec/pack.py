"""Packs: the items that one put or one pending write newly needs, in one envelope.

The payload is: number of items n (u32), their lengths (n x u32), their CRC-32s (n x u32), then their bytes one after
the other; all little endian. The checksums of the items are what a header's digests are made of.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from sys import byteorder

from milepost.codec.envelope import Vault, unwrap, wrap
from milepost.errors import Corrupt
from milepost.store import Pack, Span, merge_spans

COMPRESS_OVER = 8192
"""Payloads over this many bytes are compressed if that helps; smaller ones are read faster as they are."""

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
    return zlib.crc32(words(checksums))


def _about(thread: str, writer: int, first: int) -> bytes:
    return b"pack\0%d\0%d\0" % (writer, first) + thread.encode("utf-8", "surrogatepass")


def seal_pack(
    thread: str, writer: int, first: int, items: Sequence[bytes], checksums: Sequence[int], vault: Vault | None
) -> Pack:
    """`items` as a pack with addresses (writer, first), (writer, first + 1), …"""
    payload = b"".join((_COUNT.pack(len(items)), words(map(len, items)), words(checksums), *items))
    data = wrap(payload, compress_over=COMPRESS_OVER, vault=vault, about=_about(thread, writer, first))
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
    parts: list[Pack] = []
    for span in merge_spans(live):
        if span.writer != pack.writer:
            continue
        start = max(span.first - pack.first, 0)
        stop = min(span.first + span.count - pack.first, pack.count)
        if start < stop:
            items, sums = opened.items(start, stop), opened.checksums[start:stop]
            parts.append(seal_pack(thread, pack.writer, pack.first + start, items, sums, vault))
    return parts


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
