"""The bytes of a log: frames, the records in their manifests, and the blobs behind them.

A frame is a fixed header, a manifest (msgpack) and a body. The manifest lists records in order; a record that has a
blob says how long it is, and the blobs lie in the body one after the other. ``docs/format-files.md`` is the reference.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import ormsgpack
from milepost.checksums import crc32
from milepost.store import Pack, Span

Facet = str | int | float | bool
Record = list[Any]
"""One entry of a manifest: its kind, then what `THREAD` to `ENDS` say below."""

MAGIC: Final = b"MPF1"
HEADER: Final = struct.Struct("<4sQIQII")
"""Magic, log id, manifest length, body length, manifest checksum, checksum of the fields before."""
_HEAD: Final = struct.Struct("<4sQIQI")
_BLOB: Final = struct.Struct("<II")

THREAD: Final = 0  # [thread id]
CHECKPOINT: Final = 1  # [ns, id, parent, key, at, blob length]
WRITES: Final = 2  # [ns, checkpoint, task, [idx, channel, blob length, ...]]
PACK: Final = 3  # [writer, first, count, blob length, blob checksum]
DROP: Final = 4  # [generation, [[ns, id], ...], [[ns, id, parent], ...], [[writer, first, count], ...]]
TOMBSTONE: Final = 5  # [[id, ...], floor, at]
REVIVE: Final = 6  # []: the tombstone above is lifted
LEASE: Final = 7  # [owner, fence, since, expires, tries, error]
CALL: Final = 8  # see `milepost_files.calls.record`
UNWRITE: Final = 9  # [[ns, id], ...]: their pending writes above are gone
FORGET: Final = 10  # [key, ...]: the records of these calls above are gone
ENDS: Final = 11  # [run, seconds]: when the lease above is over, as `milepost_files.uptime` tells it

MAX_MANIFEST: Final = 1 << 28
_NO_FACETS: Final = 0x80


class Head(NamedTuple):
    """A frame header that verified."""

    log: int
    manifest: int
    body: int
    crc: int

    @property
    def length(self) -> int:
        return HEADER.size + self.manifest + self.body


class Frame(NamedTuple):
    """A frame to append: the records for the index, and the bytes for the disk."""

    at: float
    records: Sequence[Record]
    data: bytes
    body: int
    """Where the body begins in `data`."""


def encode(log: int, at: float, records: Sequence[Record], blobs: Sequence[bytes]) -> Frame:
    """A frame with these records and the blobs they announce."""
    manifest = ormsgpack.packb((at, records))
    body = b"".join(blobs)
    head = _HEAD.pack(MAGIC, log, len(manifest), len(body), crc32(manifest))
    data = b"".join((head, crc32(head).to_bytes(4, "little"), manifest, body))
    return Frame(at, records, data, HEADER.size + len(manifest))


def parse_head(data: bytes | memoryview) -> Head | None:
    """The header at the start of `data`, or None when there is none that verifies."""
    if len(data) < HEADER.size:
        return None
    magic, log, manifest, body, crc, check = HEADER.unpack_from(data)
    if magic != MAGIC or manifest > MAX_MANIFEST or crc32(data[: HEADER.size - 4]) != check:
        return None
    return Head(log, manifest, body, crc)


def parse_manifest(head: Head, data: bytes | memoryview) -> tuple[float, list[Record]] | None:
    """When the frame was written, and its records; None when the manifest does not verify."""
    if len(data) != head.manifest or crc32(data) != head.crc:
        return None
    at, records = ormsgpack.unpackb(data)
    return at, records


def seal(meta: object, value: bytes) -> bytes:
    """The blob of a checkpoint or a pending write: what goes with it, and the codec's bytes."""
    packed = ormsgpack.packb(meta)
    rest = b"".join((len(packed).to_bytes(4, "little"), packed, value))
    return crc32(rest).to_bytes(4, "little") + rest


def sound(blob: bytes | memoryview) -> bool:
    """Whether a blob made by `seal` verifies."""
    return len(blob) >= _BLOB.size and crc32(blob[4:]) == int.from_bytes(blob[:4], "little")


def unseal(blob: bytes) -> tuple[Any, bytes]:
    """What `seal` was given. Only for blobs that are `sound`."""
    _, length = _BLOB.unpack_from(blob)
    end = _BLOB.size + length
    return ormsgpack.unpackb(blob[_BLOB.size : end]), blob[end:]


def value_of(blob: bytes) -> bytes:
    """The codec's bytes in a blob that need not be `sound`: as much of them as can be told."""
    _, length = _BLOB.unpack_from(blob)
    return blob[_BLOB.size + length :]


def flat(spans: Iterable[Span]) -> list[int]:
    """Spans as one row of numbers."""
    return [number for span in spans for number in span]


def spans_of(numbers: Sequence[int]) -> tuple[Span, ...]:
    """What `flat` was given."""
    return tuple(map(Span, numbers[::3], numbers[1::3], numbers[2::3]))


def pack_record(pack: Pack) -> Record:
    """The record that announces a pack."""
    return [PACK, pack.writer, pack.first, pack.count, len(pack.data), crc32(pack.data)]


def checksum(data: bytes) -> int:
    """What a pack record says of its blob."""
    return crc32(data)


def intact(data: bytes, record: Record) -> bool:
    """Whether `data` is what the pack record says."""
    return (len(data), crc32(data)) == (record[4], record[5])


def seal_checkpoint(spans: Iterable[Span], facets: Mapping[str, Facet], header: bytes) -> bytes:
    """The blob of a checkpoint."""
    try:
        return seal((flat(spans), dict(facets)), header)
    except ormsgpack.MsgpackEncodeError:  # an integer over 64 bits, or half of a surrogate pair
        return seal((flat(spans), json.dumps(dict(facets))), header)


def checkpoint_meta(blob: bytes) -> tuple[tuple[Span, ...], dict[str, Facet]]:
    """The spans and facets that `seal_checkpoint` was given."""
    (numbers, facets), _ = unseal(blob)
    return spans_of(numbers), _facets(facets)


def outlined(blob: bytes) -> tuple[int, bool | None]:
    """Of a checkpoint's blob the bytes of its header, and whether its facets say that it is pinned: None when there are
    none, or the blob does not verify."""
    _, length = _BLOB.unpack_from(blob)
    end = _BLOB.size + length
    if not sound(blob):
        return len(blob) - end, None
    if b"pinned" not in blob:
        # Behind the spans comes a map; one without entries is this byte. Another map may end in it: that costs a look.
        return len(blob) - end, None if blob[end - 1] == _NO_FACETS else False
    facets = facets_of(blob)
    return len(blob) - end, bool(facets.get("pinned")) if facets else None


def facets_of(blob: bytes) -> dict[str, Facet]:
    """The facets that `seal_checkpoint` was given. Only for blobs that are `sound`."""
    _, length = _BLOB.unpack_from(blob)
    return _facets(ormsgpack.unpackb(blob[_BLOB.size : _BLOB.size + length])[1])


def _facets(stored: Any) -> dict[str, Facet]:
    facets: dict[str, Facet] = json.loads(stored) if isinstance(stored, str) else stored
    return facets


def seal_write(path: str, spans: Iterable[Span], value: bytes) -> bytes:
    """The blob of a pending write."""
    return seal((path, flat(spans)), value)
