"""How rows, spans and names are written as bytes. The Lua scripts read and write the same; see lua/_thread.lua."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.serde.types import INTERRUPT
from milepost.collector import many, unhurried
from milepost.fences import Lease
from milepost.store import Batch, Chart, CheckpointRow, Mark, Outline, Pack, Span, WriteRow

Scalar = str | int | float | bool

_LENGTH: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">d")
_IDX: Final = struct.Struct(">i")
_SPAN: Final = struct.Struct(">QQ")
_GROUP: Final = struct.Struct(">QI")
_MEMBER: Final = struct.Struct(">cQQI")
_HEAD: Final = struct.Struct(">BBB8sddddddd")
_GENERATION: Final = struct.Struct(">q")

_json: Final = json.JSONEncoder(separators=(",", ":")).encode
_quoted: Final = json.encoder.encode_basestring_ascii
"""What an encoder does of a text. Encoders, and those that `json.dumps` makes for each call, do much around it."""

NUL: Final = b"\0"


class Head(NamedTuple):
    """The head line of a thread."""

    format: int
    waits: int
    listed: int
    generation: bytes
    revision: float
    created: float
    updated: float
    rows: float
    writes: float
    packs: float
    bytes: float


class Tag:
    """The names of a thread's keys. They share a hash tag, so that they lie in one slot of a cluster."""

    __slots__ = ("calls", "data", "lease", "order", "starts", "tomb")

    def __init__(self, prefix: str, thread: str) -> None:
        digest = hashlib.blake2b(f"{prefix}\0{thread}".encode(), digest_size=16).hexdigest()
        stem = f"{prefix}:{{{digest}}}".encode()
        self.data = stem
        self.order = stem + b":order"
        self.tomb = stem + b":gone"
        self.lease = stem + b":lease"
        self.calls = stem + b":calls"
        self.starts = stem + b":starts"


def index_key(prefix: str) -> bytes:
    """The key of the index of threads."""
    return f"{prefix}:{{threads}}".encode()


def ledger_key(prefix: str) -> bytes:
    """The key of the index of threads that have records of calls."""
    return f"{prefix}:{{ledger}}".encode()


def between(prefix: str, least: bytes | None = None) -> tuple[bytes, bytes]:
    """The bounds in an index of the threads whose id begins with `prefix`, or of those of them from `least` on."""
    stem = prefix.encode()
    return least or (b"[" + stem if stem else b"-"), b"(" + stem + b"\xff" if stem else b"+"


def framed(text: bytes) -> bytes:
    """A text with its length before it."""
    return _LENGTH.pack(len(text)) + text


def generation(number: int | None) -> bytes:
    """A generation as the scripts know it: 8 bytes, or nothing."""
    return b"" if number is None else _GENERATION.pack(number)


def number(generation: bytes) -> int:
    """A generation as callers know it; -1 for that of a thread that is not there."""
    return int.from_bytes(generation, "big", signed=True)


def spans(given: Sequence[Span]) -> bytes:
    """Spans, in groups by their writer: what the scripts find packs by."""
    parts: list[bytes] = []
    for writer, group in groupby(given, lambda span: span.writer):
        ends = [_SPAN.pack(span.first, span.first + span.count) for span in group]
        parts += (_GROUP.pack(writer, len(ends)), *ends)
    return b"".join(parts)


def spans_from(data: bytes) -> tuple[Span, ...]:
    """What `spans` wrote."""
    found: list[Span] = []
    at = 0
    while at < len(data):
        writer, count = _GROUP.unpack_from(data, at)
        at += _GROUP.size
        for first, past in _SPAN.iter_unpack(data[at : at + count * _SPAN.size]):
            found.append(Span(writer, first, past - first))
        at += count * _SPAN.size
    return tuple(found)


def member(span: Span | Pack) -> bytes:
    """The name of a pack in the order of a thread."""
    return _MEMBER.pack(b"p", span[0], span[1], span[2])


def span_of(member: bytes) -> Span:
    """What `member` names."""
    _, writer, first, count = _MEMBER.unpack(member)
    return Span(writer, first, count)


def packs(flat: Sequence[bytes]) -> list[Pack]:
    """From members and data in turn."""
    if not flat:
        return []
    with unhurried(len(flat)):
        _, writers, firsts, counts = zip(*map(_MEMBER.unpack, flat[::2]), strict=True)
        return many(Pack, zip(writers, firsts, counts, flat[1::2], strict=True))


def place(ns: str, id: str) -> bytes:
    """Where a checkpoint lies in its thread."""
    return f"{ns}\0{id}".encode()


def parent(id: str | None) -> bytes:
    """A parent as the scripts know it: marked, so that no parent is another thing than an empty id."""
    return b"" if id is None else b"=" + id.encode()


def rest(row: CheckpointRow) -> bytes:
    """What of a row the scripts keep as it is."""
    given, told = spans(row.spans) if row.spans else b"", _facets(row.facets)
    return b"".join((_LENGTH.pack(len(given)), given, _LENGTH.pack(len(told)), told, row.header))


def checkpoint(place: bytes, value: bytes) -> CheckpointRow:
    """A checkpoint as it is stored at `place`."""
    ns, id = named(place)
    (at,) = _TIME.unpack_from(value)
    reader = _Reader(value, _TIME.size)
    key, parent, spans, facets = reader.frame(), reader.frame(), reader.frame(), reader.frame()
    return CheckpointRow(
        ns=ns,
        id=id,
        parent=parent[1:].decode() if parent else None,
        header=reader.rest(),
        spans=spans_from(spans),
        facets={} if facets == b"[]" else dict(json.loads(facets)),
        key=key.decode() or id,
        at=at,
    )


def mark(place: bytes, row: bytes, size: int, pinned: bytes, writes: int, written: int) -> Mark:
    """A checkpoint as the script `outline` tells it."""
    ns, id = named(place)
    (at,) = _TIME.unpack_from(row)
    reader = _Reader(row, _TIME.size)
    key, parent = reader.frame().decode(), reader.frame().decode()
    flag = None if not pinned else pinned == b"1"
    return Mark(ns, id, parent[1:] if parent else None, key or id, at, size, flag, writes, written)


def outline(token: bytes, marks: Sequence[Any], packs: Sequence[Any]) -> Outline:
    """An outline from what the script `outline` tells of checkpoints, and of packs: member and size in turn."""
    return Outline(
        token=token.hex(),
        generation=number(token[:8]),
        marks=tuple(mark(*found) for found in marks if found[1]),
        strays={named(found[0]): (found[4], found[5]) for found in marks if not found[1]},
        packs=tuple(map(span_of, packs[::2])),
        sizes=tuple(map(int, packs[1::2])),
    )


def chart(token: bytes, found: Sequence[Any], packs: Sequence[Any]) -> Chart:
    """A chart from what the script `walk` tells: places with rows and writes; and of packs member and size in turn."""
    return Chart(
        token=token.hex(),
        generation=number(token[:8]),
        rows=tuple(checkpoint(at, row) for at, row, *_ in found if row),
        writes={named(at): tuple(map(write, values)) for at, _, *values in found if values},
        packs=tuple(map(span_of, packs[::2])),
        sizes=tuple(map(int, packs[1::2])),
    )


def named(place: bytes) -> tuple[str, str]:
    """Namespace and id: the inverse of `place`."""
    ns, _, id = place.decode().partition(NUL.decode())
    return ns, id


def slot(row: WriteRow) -> bytes:
    """Where a write lies among those of its checkpoint: task and position."""
    return _task(row.task) + _IDX.pack(row.idx)


@lru_cache(256)
def _task(task: str) -> bytes:
    return hashlib.blake2b(task.encode(), digest_size=12).digest()


def flag(row: WriteRow) -> bytes:
    """What a directory says of a write: whether somebody is asked something."""
    return b"!" if row.channel == INTERRUPT else b"-"


def write_value(row: WriteRow) -> bytes:
    """A pending write as it is stored."""
    channel, path, task = row.channel.encode(), row.path.encode(), row.task.encode()
    given = spans(row.spans) if row.spans else b""
    length = _LENGTH.pack
    return b"".join(
        (
            length(len(channel)),
            channel,
            length(len(path)),
            path,
            length(len(task)),
            task,
            _IDX.pack(row.idx),
            length(len(given)),
            given,
            row.value,
        )
    )


def write(value: bytes) -> WriteRow:
    """What `write_value` wrote."""
    reader = _Reader(value, 0)
    channel, path, task = reader.frame().decode(), reader.frame().decode(), reader.frame().decode()
    (idx,) = _IDX.unpack_from(value, reader.at)
    reader.at += _IDX.size
    spans = spans_from(reader.frame())
    return WriteRow(task, idx, path, channel, reader.rest(), spans)


def write_arguments(row: WriteRow) -> tuple[bytes, bytes, bytes, bytes]:
    """Slot, flag, whether it is special, and value."""
    return slot(row), flag(row), b"1" if row.idx < 0 else b"", write_value(row)


def time(at: float) -> bytes:
    """A time as the scripts store it."""
    return _TIME.pack(at)


def lease(reply: Sequence[bytes]) -> Lease:
    """A lease as the scripts tell it."""
    owner, fence, since, expires, tries, error = (part.decode() for part in reply)
    return Lease(owner, int(fence), float(since), float(expires), int(tries), error)


def heads(ids: Sequence[str] | None) -> bytes:
    """The ids that may be the latest as the scripts know them, or nothing where any may."""
    return b"" if ids is None else f"\0{NUL.decode().join(ids)}\0".encode()


def merged(pack: Pack | None) -> tuple[bytes, bytes, bytes]:
    """A pack that takes the place of others as the script knows it, or nothing three times."""
    if pack is None:
        return b"", b"", b""
    return member(pack), pack.data, _GENERATION.pack(pack.first + pack.count)


def fence(number: int | None) -> bytes:
    """A fence as the scripts know it, or nothing."""
    return b"" if number is None else b"%d" % number


def head(line: bytes) -> Head:
    """What a head line says."""
    return Head(*_HEAD.unpack_from(line))


def sought(facets: Mapping[str, Scalar]) -> list[bytes]:
    """Arguments that find rows whose facets equal these: for each, how many texts follow, how it begins, and its forms.

    Python holds 1, 1.0 and True to be equal, JSON does not.
    """
    arguments: list[bytes] = []
    for key, value in facets.items():
        forms = dict.fromkeys(_pair(key, form) for form in _forms(value))
        arguments += (b"%d" % (1 + len(forms)), json.dumps([key]).encode()[:-1] + b",", *forms)
    return arguments


def _forms(value: Scalar) -> Iterable[Scalar]:
    yield value
    if not isinstance(value, str):
        if value in (0, 1):
            yield bool(value)
        if value == 0:
            yield -0.0
        if isinstance(value, float) and value.is_integer():
            yield int(value)
        elif isinstance(value, int):
            yield int(value)
            try:
                equal = float(value)
            except OverflowError:
                return
            if equal == value:
                yield equal


def _facets(facets: Mapping[str, Scalar]) -> bytes:
    return b"[" + b",".join([_pair(key, value) for key, value in facets.items()]) + b"]"


def _pair(key: str, value: Scalar) -> bytes:
    text = _quoted(value) if type(value) is str else repr(value) if type(value) is int else _json(value)
    return f"[{_quoted(key)},{text}]".encode()


class _Reader:
    """Reads framed texts one after another."""

    __slots__ = ("at", "value")

    def __init__(self, value: bytes, at: int) -> None:
        self.value = value
        self.at = at

    def frame(self) -> bytes:
        (length,) = _LENGTH.unpack_from(self.value, self.at)
        first = self.at + _LENGTH.size
        self.at = first + length
        return self.value[first : self.at]

    def rest(self) -> bytes:
        return self.value[self.at :]


def packs_of(batch: Batch) -> Iterator[tuple[bytes, ...]]:
    """The packs of a batch, as the scripts that take one read them."""
    return ((b"p", member(pack), pack.data) for pack in batch.packs)


def writes_of(batch: Batch) -> Iterator[tuple[bytes, ...]]:
    """The writes of a batch."""
    return ((b"w", ns.encode(), id.encode(), *write_arguments(row)) for ns, id, row in batch.writes)


def rows_of(batch: Batch) -> Iterator[tuple[bytes, ...]]:
    """The checkpoints of a batch."""
    return (
        (b"r", row.ns.encode(), row.id.encode(), time(row.at), row.key.encode(), parent(row.parent), rest(row))
        for row in batch.rows
    )
