"""How a value that msgpack has no type for is written: as an extension, or as a plainer value.

What the official serializer rebuilds exactly is written as it does, byte for byte for builtin, standard library and
LangGraph types. Classes of the application are written so that the official reader still understands them, followed
by the qualified name and what an exact rebuild needs.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import ipaddress
import logging
import pathlib
import re
import sys
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from pydantic import BaseModel

from milepost.codec import exts
from milepost.codec.arrays import reduce_array
from milepost.codec.exts import Placeholder, Registry
from milepost.errors import Unserializable

log: Final = logging.getLogger("milepost")


class Reduced(NamedTuple):
    """What a value is written as."""

    code: int | None
    """Of the extension; None: written as `payload` itself, a plainer value."""
    payload: Any
    raw: bool = False
    """`payload` is the data of the extension, not a value to be packed."""
    fallback: Callable[[], Any] | None = None
    """Gives another payload, for when something in this one cannot be stored."""


Reducer = Callable[[Any], Reduced]
Fits = Callable[[Any], bool]

FACTORIES: Final[dict[Any, str]] = {
    list: "list", dict: "dict", set: "set", frozenset: "frozenset", tuple: "tuple", int: "int", float: "float",
    str: "str", bytes: "bytes", bytearray: "bytearray", bool: "bool", complex: "complex", deque: "deque",
    Counter: "Counter", OrderedDict: "OrderedDict",
}  # fmt: skip
"""The factories of a defaultdict that can be stored."""

_HANDLES: Final = (
    "keep live handles (connections, files, locks, clients, functions) out of the state: hold them in the graph's "
    "context or in a node's closure, and store what is needed to open them again"
)
_REGISTER: Final = (
    "turn it into plain data, a dataclass or a pydantic model first, or register its class with a name, a dump and a "
    "load function"
)


def dotted(cls: type) -> str:
    """The full name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def refuse(obj: Any, reason: str, advice: str = _REGISTER) -> Unserializable:
    """The error for `obj`; the writer adds where it lies."""
    return Unserializable(reason, path="", type=dotted(type(obj)), reason=reason, advice=advice)


def importable(cls: type) -> bool:
    """Whether `cls` is what a reader will find under its module and qualified name."""
    if "<locals>" in cls.__qualname__:
        return False
    module = sys.modules.get(cls.__module__)
    try:
        found: Any = importlib.import_module(cls.__module__) if module is None else module
        for part in cls.__qualname__.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return False
    # Another class of that name: the same one, defined again (a notebook's cell, a reloaded module).
    return isinstance(found, type) and found.__qualname__ == cls.__qualname__


_warned: set[str] = set()


def _as_data(cls: type) -> bool:
    """Whether instances of `cls` must be written as their data, because the class lives inside a function."""
    if importable(cls):
        return False
    if "<locals>" not in cls.__qualname__ and "[" not in cls.__qualname__:
        raise Unserializable(
            "", path="", type=dotted(cls),
            reason=f"{cls.__module__} has no class {cls.__qualname__}, so it could not be found again when read",
            advice="define the class under its own name at the top level of a module, or register it",
        )  # fmt: skip
    if dotted(cls) not in _warned and len(_warned) < 1000:
        _warned.add(dotted(cls))
        log.warning(
            "%s can be found in no module (it is defined inside a function, or made at run time), so its instances "
            "are stored as plain data and come back as that. Define it at the top level of a module to get instances.",
            dotted(cls),
        )
    return True


def _safe(cls: type) -> bool:
    return (cls.__module__, cls.__name__) in SAFE_MSGPACK_TYPES


def _head(cls: type) -> list[Any]:
    return [cls.__module__, cls.__name__]


def _plain(value: Any) -> Reduced:
    return Reduced(None, value)


# Standard library: the official form where that is exact.


def _single(name: str, module: str, arg: Callable[[Any], Any]) -> Reducer:
    return lambda obj: Reduced(exts.SINGLE_ARG, [module, name, arg(obj)])


def _int(obj: int) -> Reduced:
    # Only what does not fit 64 bits arrives here.
    return Reduced(exts.BIG_INT, obj.to_bytes(obj.bit_length() // 8 + 1, "big", signed=True), raw=True)


def _str(obj: str) -> Reduced:
    return Reduced(exts.TEXT, obj.encode("utf-8", "surrogatepass"), raw=True)


def _path(obj: pathlib.PurePath) -> Reduced:
    cls = type(obj)
    if isinstance(obj, pathlib.Path):
        if not _safe(cls):
            return (
                _plain(str(obj))
                if _as_data(cls)
                else Reduced(exts.POS_ARGS, [*_head(cls), list(obj.parts), cls.__qualname__])
            )
        return Reduced(exts.POS_ARGS, [*_head(cls), list(obj.parts)])
    flavour = "windows" if isinstance(obj, pathlib.PureWindowsPath) else "posix"
    return Reduced(exts.PURE_PATH, [flavour, list(obj.parts)])


def _pattern(obj: re.Pattern[Any]) -> Reduced:
    return Reduced(exts.POS_ARGS, ["re", "compile", [obj.pattern, obj.flags]])


def _zone(zone: tzinfo | None, offset: timedelta | None, owner: Any) -> tzinfo | None:
    """The zone to store for `zone`."""
    if zone is None or type(zone) is timezone:
        return zone
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone
    if offset is None:
        raise refuse(owner, f"its time zone, {zone!r}, cannot be found again by name", "use zoneinfo.ZoneInfo(name)")
    if dotted(type(zone)) not in _warned and len(_warned) < 1000:
        _warned.add(dotted(type(zone)))
        log.warning(
            "A datetime with a time zone of type %s is stored with the fixed offset that it has at that moment. Use "
            "zoneinfo.ZoneInfo to keep the zone.",
            dotted(type(zone)),
        )
    return timezone(offset)


def _plain_offset(zone: timezone) -> bool:
    """Whether ``fromisoformat`` gives this zone back: no name, and no part of a second (lost below a second)."""
    offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]  # pickle's protocol: not in typeshed
    return not name and not offset.microseconds


def _datetime(obj: datetime) -> Reduced:
    zone = _zone(obj.tzinfo, obj.utcoffset(), obj)
    fixed = zone is None or (type(zone) is timezone and _plain_offset(zone))
    if fixed and not obj.fold:
        if zone is not obj.tzinfo:
            obj = obj.replace(tzinfo=zone)
        return Reduced(exts.METHOD, ["datetime", "datetime", datetime.isoformat(obj), "fromisoformat"])
    return Reduced(exts.ZONED, [datetime.isoformat(obj.replace(tzinfo=None)), obj.fold, zone])


def _time(obj: time) -> Reduced:
    fields = {
        "hour": obj.hour,
        "minute": obj.minute,
        "second": obj.second,
        "microsecond": obj.microsecond,
        "tzinfo": _zone(obj.tzinfo, obj.utcoffset(), obj),
        "fold": obj.fold,
    }
    return Reduced(exts.KW_ARGS, ["datetime", "time", fields])


def _date(obj: date) -> Reduced:
    return Reduced(exts.POS_ARGS, ["datetime", "date", [obj.year, obj.month, obj.day]])


def _timedelta(obj: timedelta) -> Reduced:
    return Reduced(exts.POS_ARGS, ["datetime", "timedelta", [obj.days, obj.seconds, obj.microseconds]])


def _timezone(obj: timezone) -> Reduced:
    return Reduced(exts.POS_ARGS, ["datetime", "timezone", list(obj.__getinitargs__())])  # type: ignore[attr-defined]  # pickle's protocol: not in typeshed


def _zoneinfo(obj: ZoneInfo) -> Reduced:
    if not obj.key:
        raise refuse(obj, "a ZoneInfo without a key cannot be found again", "use zoneinfo.ZoneInfo(name)")
    return Reduced(exts.SINGLE_ARG, ["zoneinfo", "ZoneInfo", obj.key])


def _deque(obj: deque[Any]) -> Reduced:
    if obj.maxlen is None:
        return Reduced(exts.SINGLE_ARG, ["collections", "deque", list(obj)])
    return Reduced(exts.BOUNDED_DEQUE, [obj.maxlen, list(obj)])


def _pairs(obj: dict[Any, Any]) -> list[Any]:
    return [part for pair in dict.items(obj) for part in pair]


def _defaultdict(obj: defaultdict[Any, Any]) -> Reduced:
    factory = obj.default_factory
    name = FACTORIES.get(factory) if isinstance(factory, type) else None
    if factory is not None and name is None:
        raise refuse(
            obj,
            f"its default_factory, {factory!r}, is code, and code is not stored",
            f"use one of {', '.join(sorted(FACTORIES.values()))} as the factory, or convert it with dict()",
        )
    return Reduced(exts.DEFAULT_DICT, [name, *_pairs(obj)])


# Classes of the application.


def _enum(obj: enum.Enum) -> Reduced:
    cls = type(obj)
    if _as_data(cls):
        return _plain(obj.value)
    head, tail = _head(cls), [cls.__qualname__, obj.name]
    # A value that cannot be stored itself does not matter when the member has a name.
    return Reduced(exts.SINGLE_ARG, [*head, obj.value, *tail], fallback=lambda: [*head, None, *tail])


def _model(obj: BaseModel) -> Reduced:
    cls = type(obj)
    if _as_data(cls):
        return _plain(obj.model_dump())
    known = cls.model_fields
    state = obj.__dict__
    fields = dict(state) if len(state) == len(known) else {k: v for k, v in state.items() if k in known}
    if obj.__pydantic_extra__:
        fields.update(obj.__pydantic_extra__)
    head = _head(cls)
    if _safe(cls):
        return Reduced(
            exts.PYDANTIC_V2, [*head, fields, "model_validate_json"],
            fallback=lambda: [*head, obj.model_dump(), "model_validate_json"],
        )  # fmt: skip
    tail = ["model_validate_json", cls.__qualname__]
    if any(field.exclude for field in known.values()):
        return Reduced(exts.PYDANTIC_V2, [*head, obj.model_dump(), *tail, None, None])
    given = [name for name in fields if name in obj.__pydantic_fields_set__]
    private = obj.__pydantic_private__
    return Reduced(
        exts.PYDANTIC_V2,
        [*head, fields, *tail, given, dict(private) if private else None],
        fallback=lambda: [*head, obj.model_dump(), *tail, None, None],
    )


def _dumped(obj: Any) -> Reduced:
    """What only quacks like a pydantic model of version 2."""
    cls, data = type(obj), obj.model_dump()
    if _as_data(cls):
        return _plain(data)
    return Reduced(exts.PYDANTIC_V2, [*_head(cls), data, "model_validate_json", cls.__qualname__, None, None])


def _v1(obj: Any) -> Reduced:
    cls, data = type(obj), obj.dict()
    if _safe(cls):
        return Reduced(exts.PYDANTIC_V1, [*_head(cls), data])
    return _plain(data) if _as_data(cls) else Reduced(exts.PYDANTIC_V1, [*_head(cls), data, cls.__qualname__])


def _secret(obj: Any) -> Reduced:
    cls, value = type(obj), obj.get_secret_value()
    if _as_data(cls):
        return _plain(value)
    return Reduced(exts.SINGLE_ARG, [*_head(cls), value, cls.__qualname__])


def _namedtuple(obj: Any) -> Reduced:
    cls, fields = type(obj), obj._asdict()
    if _safe(cls):
        return Reduced(exts.KW_ARGS, [*_head(cls), fields])
    return _plain(fields) if _as_data(cls) else Reduced(exts.KW_ARGS, [*_head(cls), fields, cls.__qualname__])


def _dataclass(cls: type) -> Reducer:
    names = tuple(field.name for field in dataclasses.fields(cls))
    known = frozenset(names)
    head, safe = _head(cls), _safe(cls)

    def reducer(obj: Any) -> Reduced:
        fields = {name: getattr(obj, name) for name in names if hasattr(obj, name)}
        if safe:
            return Reduced(exts.KW_ARGS, [*head, fields])
        if _as_data(cls):
            return _plain(fields)
        state: dict[str, Any] = getattr(obj, "__dict__", {})
        others = {name: value for name, value in state.items() if name not in known}
        tail = [*head, fields, cls.__qualname__]
        if not others:
            return Reduced(exts.KW_ARGS, [*tail, {}])
        # Attributes beyond the fields (set in __post_init__, cached properties): stored, unless they cannot be. Then
        # the reader has the constructor make them.
        return Reduced(exts.KW_ARGS, [*tail, others], fallback=lambda: [*tail, None])

    return reducer


def _send(obj: Any) -> Reduced:
    args = [obj.node, obj.arg]
    if getattr(obj, "timeout", None) is not None:
        args.append(obj.timeout)
    return Reduced(exts.POS_ARGS, ["langgraph.types", "Send", args])


def _exact_types() -> dict[type, Reducer]:
    table: dict[type, Reducer] = {
        int: _int,
        str: _str,
        tuple: lambda obj: Reduced(exts.TUPLE, list(obj)),
        bytearray: lambda obj: Reduced(exts.BYTEARRAY, bytes(obj), raw=True),
        set: _single("set", "builtins", list),
        frozenset: _single("frozenset", "builtins", list),
        dict: lambda obj: Reduced(exts.PAIRS, _pairs(obj)),
        complex: lambda obj: Reduced(exts.COMPLEX, [obj.real, obj.imag]),
        range: lambda obj: Reduced(exts.RANGE, [obj.start, obj.stop, obj.step]),
        Fraction: lambda obj: Reduced(exts.FRACTION, [obj.numerator, obj.denominator]),
        Decimal: _single("Decimal", "decimal", str),
        UUID: _single("UUID", "uuid", lambda obj: obj.hex),
        deque: _deque,
        defaultdict: _defaultdict,
        Counter: lambda obj: Reduced(exts.COUNTER, _pairs(obj)),
        OrderedDict: lambda obj: Reduced(exts.ORDERED_DICT, _pairs(obj)),
        datetime: _datetime,
        date: _date,
        time: _time,
        timedelta: _timedelta,
        timezone: _timezone,
        ZoneInfo: _zoneinfo,
        re.Pattern: _pattern,
        _DeltaSnapshot: lambda obj: Reduced(exts.DELTA_SNAPSHOT, obj.value),
        Placeholder: lambda obj: Reduced(obj.code, obj.data, raw=True),
    }
    for cls in (
        ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network,
        ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network,
    ):  # fmt: skip
        table[cls] = _single(cls.__name__, "ipaddress", str)
    return table


_EXACT: Final = _exact_types()

# Subclasses of these become the plain base value. The base's own methods: a subclass may have overridden its.
_BASES: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (int, int.__pos__),
    (float, float.__pos__),
    (str, str.__str__),
    (bytes, lambda obj: bytes(memoryview(obj))),
    (bytearray, lambda obj: bytearray(memoryview(obj))),
    (complex, complex.__pos__),
    (dict, lambda obj: dict(dict.items(obj))),
    (list, lambda obj: list.__getitem__(obj, slice(None))),
    (tuple, lambda obj: tuple.__getitem__(obj, slice(None))),
    (set, lambda obj: set(set.__iter__(obj))),
    (frozenset, lambda obj: frozenset(frozenset.__iter__(obj))),
)


def _is_send(cls: type) -> bool:
    return any((base.__module__, base.__qualname__) == ("langgraph.types", "Send") for base in cls.__mro__)


def _plan(cls: type) -> Reducer | None:
    """How instances of `cls`, for which there is no exact entry, are written; None: not at all."""
    if issubclass(cls, BaseModel):
        return _model
    if issubclass(cls, enum.Enum):
        return _enum
    if dataclasses.is_dataclass(cls):
        return _dataclass(cls)
    if callable(getattr(cls, "model_dump", None)):
        return _dumped
    if callable(getattr(cls, "get_secret_value", None)):
        return _secret
    if callable(getattr(cls, "dict", None)):
        return _v1
    if issubclass(cls, tuple) and callable(getattr(cls, "_asdict", None)):
        return _namedtuple
    if issubclass(cls, pathlib.PurePath):
        return _path
    if _is_send(cls):
        return _send
    for base in (datetime, date, time, timedelta, ZoneInfo, Decimal, UUID, Fraction, deque, Counter, OrderedDict,
                 defaultdict, *(c for c in _EXACT if c.__module__ == "ipaddress")):  # fmt: skip
        if issubclass(cls, base):
            return _EXACT[base]
    for base, plain in _BASES:
        if issubclass(cls, base):
            return lambda obj: _plain(plain(obj))
    if issubclass(cls, BaseException):
        return lambda obj: _plain(repr(obj))
    return None


_plans: weakref.WeakKeyDictionary[type, Reducer | None] = weakref.WeakKeyDictionary()


def reduce(obj: Any, registry: Registry) -> Reduced:
    """How `obj`, which msgpack has no type for, is written. Raises `Unserializable` without a path."""
    cls = type(obj)
    entry = registry.of_class(cls)
    if entry is not None:
        return Reduced(exts.REGISTERED, [entry.name, entry.dump(obj)])
    reducer = _EXACT.get(cls)
    if reducer is None:
        found = reduce_array(obj)
        if found is not None:
            return Reduced(*found)
        try:
            reducer = _plans[cls]
        except KeyError:
            reducer = _plans[cls] = _plan(cls)
        if reducer is None:
            raise refuse(obj, *_why(obj))
    return reducer(obj)


def _why(obj: Any) -> tuple[str, str]:
    if isinstance(obj, type):
        return "a class is not a value", "store its name instead"
    live = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.GeneratorType,
            types.CoroutineType, types.AsyncGeneratorType)  # fmt: skip
    if isinstance(obj, live) or any(
        callable(getattr(type(obj), name, None)) for name in ("close", "aclose", "release", "fileno", "cursor", "send")
    ):
        return "it lives in this process only", _HANDLES
    return "Milepost does not know how to rebuild it", _REGISTER
