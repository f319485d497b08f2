"""Extension codes of the value format, and the small public types around it.

A value is one msgpack object. What msgpack has no type for is an extension: codes 0 to 7 are LangGraph's, written as
its `JsonPlusSerializer` writes them; codes from 64 on are ours. LangGraph's class extensions hold an array
``[module, name, payload, ...]`` of which its reader looks at a fixed number of elements: what we add to rebuild a
class exactly comes after those, so its reader still gets from our bytes what it gets from its own.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import ormsgpack

from milepost.errors import InvalidConfig

SINGLE_ARG: Final = 0
POS_ARGS: Final = 1
KW_ARGS: Final = 2
METHOD: Final = 3
PYDANTIC_V1: Final = 4
PYDANTIC_V2: Final = 5
NUMPY_ARRAY: Final = 6
DELTA_SNAPSHOT: Final = 7

TUPLE: Final = 64
BIG_INT: Final = 65
"""Two's complement, big endian."""
TEXT: Final = 66
"""A string with lone surrogates, as UTF-8 that lets them pass."""
PAIRS: Final = 67
"""A dict of which some key is not a plain msgpack key: key, value, key, value, ..."""
BYTEARRAY: Final = 68
COMPLEX: Final = 69
FRACTION: Final = 70
RANGE: Final = 71
PURE_PATH: Final = 72
BOUNDED_DEQUE: Final = 73
DEFAULT_DICT: Final = 74
COUNTER: Final = 75
ORDERED_DICT: Final = 76
ZONED: Final = 77
"""A datetime whose zone or fold its ISO form would lose: ISO form without zone, fold, zone."""
REGISTERED: Final = 78
PICKLE: Final = 79
NUMPY_OBJECTS: Final = 80
NUMPY_RECORDS: Final = 81
NUMPY_SCALAR: Final = 82

PAIRED: Final = frozenset({PAIRS, DEFAULT_DICT, COUNTER, ORDERED_DICT})
"""Hold key, value, key, value, ..., after the name of the factory for a defaultdict."""

EXT_DEPTH: Final = 200
"""Deepest nesting of extensions in extensions. Each level costs the reader stack frames, so the writer is the one to
refuse: what is written can be read, also far down a call stack."""

PACK_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registered(Generic[T]):
    """How values of a class are stored: `dump` gives any storable value, `load` rebuilds the original from it.

    It applies to instances of exactly `cls`, not of its subclasses, and goes before what Milepost would do itself.
    `name` is what is stored: keep it when the class moves, and keep `load` able to read what older `dump` wrote.
    """

    cls: type[T]
    name: str
    dump: Callable[[T], Any]
    load: Callable[[Any], T]


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Stands for a stored object that could not be rebuilt (``unknown="placeholder"``).

    Storing it again writes the very same bytes, so a release that lacks a class does not lose its data.
    """

    type: str
    """Dotted class, or the registered name."""
    reason: str
    code: int
    data: bytes


_BASIC: Final = frozenset({str, int, float, bool, type(None), bytes, list, dict})


class Registry:
    """Registered types, by class and by name."""

    def __init__(self, parent: Registry | None = None) -> None:
        self._lock = threading.Lock()
        self._parent = parent
        self._by_class: dict[type, Registered[Any]] = {}
        self._by_name: dict[str, Registered[Any]] = {}

    def add(self, entry: Registered[Any]) -> None:
        """Add `entry`. The same one again is a no-op; another one for its class or name raises `InvalidConfig`."""
        if entry.cls in _BASIC:
            raise InvalidConfig(
                f"{entry.cls.__name__} cannot be registered: msgpack stores it itself. Register a class of your own.",
                what="types",
                value=entry.name,
            )
        with self._lock:
            for known in (self._by_class.get(entry.cls), self._by_name.get(entry.name)):
                if known is not None and known != entry:
                    raise InvalidConfig(
                        f"the name {entry.name!r} or its class {entry.cls.__qualname__} is registered already, as "
                        f"{known.name!r} for {known.cls.__qualname__}. Register each class once, under a name of its "
                        "own.",
                        what="types",
                        value=entry.name,
                    )
            self._by_class[entry.cls] = entry
            self._by_name[entry.name] = entry

    def of_class(self, cls: type) -> Registered[Any] | None:
        """The entry for exactly `cls`."""
        found = self._by_class.get(cls)
        return found if found is not None or self._parent is None else self._parent.of_class(cls)

    def of_name(self, name: str) -> Registered[Any] | None:
        """The entry stored as `name`."""
        found = self._by_name.get(name)
        return found if found is not None or self._parent is None else self._parent.of_name(name)


REGISTRY: Final = Registry()
"""What `register` fills; every serializer looks here after its own ``types``."""


def register(cls: type[T], *, name: str, dump: Callable[[T], Any], load: Callable[[Any], T]) -> None:
    """Store values of exactly `cls` through `dump` and `load`, in every serializer of this process.

    Raises `InvalidConfig` when the class or the name is registered otherwise. See `Registered`.
    """
    REGISTRY.add(Registered(cls, name, dump, load))


def array_header(count: int) -> bytes:
    """The msgpack header of an array of `count` elements."""
    if count < 16:
        return bytes((0x90 | count,))
    return struct.pack(">BH", 0xDC, count) if count < 1 << 16 else struct.pack(">BI", 0xDD, count)


def map_header(count: int) -> bytes:
    """The msgpack header of a map of `count` pairs."""
    if count < 16:
        return bytes((0x80 | count,))
    return struct.pack(">BH", 0xDE, count) if count < 1 << 16 else struct.pack(">BI", 0xDF, count)


def extension(code: int, data: bytes) -> bytes:
    """A whole extension object."""
    return ormsgpack.packb(ormsgpack.Ext(code, data))
