"""Parameters and answers as bytes: PostgreSQL's binary formats, for the few types that the statements use.

A parameter carries no type of its own: the statement's casts give it one. So a statement has one form, whatever it is
sent with, and is planned once where statements are prepared.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from milepost.fences import Lease
from milepost.places import MARK
from milepost.store import CheckpointRow, Pack, Span, ThreadRow, WriteRow

_INT8, _TEXT, _BYTEA, _FLOAT8 = 20, 25, 17, 701
_LENGTH: Final = struct.Struct(">i")
_NUMBER: Final = struct.Struct(">q")
_FLOAT: Final = struct.Struct(">d")
_ARRAY: Final = struct.Struct(">iiiii")
_EMPTY: Final = struct.Struct(">iii")
_NULL: Final = _LENGTH.pack(-1)

_json: Final = json.JSONEncoder(separators=(",", ":")).encode

_EXACT: Final = 1 << 53
"""Whole numbers up to here are the same as int and as float."""


def text(value: str | None) -> bytes | None:
    """A text, or NULL."""
    return None if value is None else value.encode()


def int8(value: int | None) -> bytes | None:
    """A bigint, or NULL."""
    return None if value is None else _NUMBER.pack(value)


def jsonb(value: Mapping[str, Any]) -> bytes:
    """The version of jsonb's binary format, then JSON."""
    return b"\x01" + _json(value).encode()


def _array(oid: int, elements: Sequence[bytes | None]) -> bytes:
    if not elements:
        return _EMPTY.pack(0, 0, oid)
    parts = [_ARRAY.pack(1, None in elements, oid, len(elements), 1)]
    length = _LENGTH.pack
    for element in elements:
        parts += (_NULL,) if element is None else (length(len(element)), element)
    return b"".join(parts)


def texts(values: Iterable[str | None]) -> bytes:
    """A text[]."""
    return _array(_TEXT, [None if value is None else value.encode() for value in values])


def byteas(values: Iterable[bytes]) -> bytes:
    """A bytea[]."""
    return _array(_BYTEA, list(values))


def int8s(values: Iterable[int]) -> bytes:
    """A bigint[]."""
    return _array(_INT8, [_NUMBER.pack(value) for value in values])


def float8(value: float) -> bytes:
    """A float8."""
    return _FLOAT.pack(value)


def float8s(values: Iterable[float]) -> bytes:
    """A float8[]."""
    return _array(_FLOAT8, [_FLOAT.pack(value) for value in values])


def among(listing: str, prefix: str) -> str:
    """The name of the statement that lists what is of threads whose id begins with `prefix`."""
    return f"{listing}_of_tenant" if prefix.startswith(MARK) and prefix.count(MARK) > 1 else f"{listing}_within"


def thread_row(row: tuple[Any, ...]) -> ThreadRow:
    """A thread, as the statements that list threads tell of it."""
    _, id, head, spaces, checkpoints, writes, size, created, updated, waiting, *lease, leased = row
    return ThreadRow(
        id, head or "", spaces, checkpoints, writes, size, created, updated, waiting, Lease(*lease), leased
    )


@lru_cache(256)
def digest(of: str) -> bytes:
    """What stands for a text in keys: the first half of its SHA-256."""
    return hashlib.sha256(of.encode()).digest()[:16]


@lru_cache(256)
def space(ns: str) -> bytes:
    """What stands for a namespace in the digest of a place."""
    return hashlib.sha256(ns.encode()).digest()


def place(ns: str, id: str) -> bytes:
    """What stands for (ns, checkpoint id) in keys."""
    return hashlib.sha256(space(ns) + id.encode()).digest()[:16]


def flat(spans: Iterable[Span]) -> list[int]:
    """Spans as one row of numbers."""
    return [number for span in spans for number in span]


def literal(spans: Iterable[Span]) -> str:
    """Spans as the text of an array: arrays of arrays of different lengths cannot be sent otherwise."""
    return "{" + ",".join(map(str, flat(spans))) + "}"


def spans_of(numbers: Sequence[int]) -> tuple[Span, ...]:
    """What `flat` was given."""
    return tuple(map(Span, numbers[::3], numbers[1::3], numbers[2::3]))


def packs(given: Sequence[Pack]) -> Mapping[str, bytes | None]:
    """The parameters that stand for packs."""
    return _packs(given) if given else _NO_PACKS


def _packs(given: Sequence[Pack]) -> Mapping[str, bytes | None]:
    return {
        "writers": int8s(pack.writer for pack in given),
        "firsts": int8s(pack.first for pack in given),
        "counts": int8s(pack.count for pack in given),
        "data": byteas(pack.data for pack in given),
    }


_NO_PACKS: Final = _packs(())
"""Most writes have none."""


def merged(pack: Pack) -> dict[str, bytes | None]:
    """The parameters that stand for a pack which takes the place of others."""
    return {
        "writer": int8(pack.writer),
        "first": int8(pack.first),
        "past": int8(pack.first + pack.count),
        "merged": pack.data,
    }


def facets(given: Mapping[str, Any]) -> dict[str, str | float]:
    """What of facets jsonb can hold, with truth as a number: to Python, ``True``, ``1`` and ``1.0`` are equal."""
    return {
        key: int(value) if isinstance(value, bool) else value
        for key, value in given.items()
        if _plain(key) and (_plain(value) if isinstance(value, str) else math.isfinite(value))
    }


def sought(given: Mapping[str, Any]) -> dict[str, str | float]:
    """The facets that may decide a filter: those that equal in jsonb what they equal in Python."""
    return {key: value for key, value in facets(given).items() if isinstance(value, str) or abs(value) <= _EXACT}


def _plain(value: str) -> bool:
    return "\0" not in value and (value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value))


class Row(NamedTuple):
    """One row of an answer that holds several kinds; see the part "packs" of the statements."""

    kind: int
    ref: int
    a: int
    b: int
    c: int
    at: float
    t1: str
    t2: str
    t3: Any
    t4: str
    t5: str
    spans: list[int]
    data: bytes


THREAD, CHECKPOINT, WRITE, PACK = range(4)
"""The kinds."""


def checkpoint(row: Row) -> CheckpointRow:
    """The checkpoint that a row of that kind holds."""
    _, _, _, _, _, at, ns, id, parent, key, facets, spans, header = row
    told = json.loads(facets) if facets else {}
    return CheckpointRow(ns, id, parent, header, spans_of(spans) if spans else (), told, (), key, at)


def write(row: Row) -> WriteRow:
    """The pending write that a row of that kind holds."""
    _, _, idx, _, _, _, task, path, channel, _, _, spans, value = row
    return WriteRow(task, idx, path, channel, value, spans_of(spans) if spans else ())


def pack(row: Row) -> Pack:
    """The pack that a row of that kind holds."""
    return Pack(row.a, row.b, row.c, row.data)
