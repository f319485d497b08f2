"""Values from the extensions that name no class to import: their kind says all."""

from __future__ import annotations

import pathlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from milepost.codec import arrays, exts
from milepost.codec.reduce import FACTORIES

_FACTORY_BY_NAME: Final = {name: factory for factory, name in FACTORIES.items()}
_PURE_PATHS: Final = {"posix": pathlib.PurePosixPath, "windows": pathlib.PureWindowsPath}


def _pairs(flat: list[Any]) -> Iterable[tuple[Any, Any]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _pure_path(payload: list[Any]) -> pathlib.PurePath:
    flavour, parts = payload
    return _PURE_PATHS[flavour](*parts)


def _bounded_deque(payload: list[Any]) -> deque[Any]:
    maxlen, items = payload
    return deque(items, maxlen)


def _default_dict(payload: list[Any]) -> defaultdict[Any, Any]:
    name, *flat = payload
    return defaultdict(None if name is None else _FACTORY_BY_NAME[name], _pairs(flat))


def _counter(payload: list[Any]) -> Counter[Any]:
    counter: Counter[Any] = Counter()
    dict.update(counter, _pairs(payload))
    return counter


def _zoned(payload: list[Any]) -> datetime:
    text, fold, zone = payload
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


RAW: Final[dict[int, Callable[[bytes], Any]]] = {
    exts.BIG_INT: lambda data: int.from_bytes(data, "big", signed=True),
    exts.TEXT: lambda data: data.decode("utf-8", "surrogatepass"),
    exts.BYTEARRAY: bytearray,
}
"""Kinds whose data is not msgpack."""

PACKED: Final[dict[int, Callable[[Any], Any]]] = {
    exts.DELTA_SNAPSHOT: _DeltaSnapshot,
    exts.NUMPY_ARRAY: arrays.array,
    exts.TUPLE: tuple,
    exts.PAIRS: lambda payload: dict(_pairs(payload)),
    exts.COMPLEX: lambda payload: complex(*payload),
    exts.FRACTION: lambda payload: Fraction(*payload),
    exts.RANGE: lambda payload: range(*payload),
    exts.PURE_PATH: _pure_path,
    exts.BOUNDED_DEQUE: _bounded_deque,
    exts.DEFAULT_DICT: _default_dict,
    exts.COUNTER: _counter,
    exts.ORDERED_DICT: lambda payload: OrderedDict(_pairs(payload)),
    exts.ZONED: _zoned,
    exts.NUMPY_OBJECTS: arrays.objects,
    exts.NUMPY_RECORDS: arrays.array,
    exts.NUMPY_SCALAR: arrays.scalar,
}
"""Kinds whose data is one msgpack value: how it becomes the object."""
