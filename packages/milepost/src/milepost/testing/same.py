"""Strict comparison: equal values of equal types, all the way down. ``==`` would let ``1`` pass for ``True``."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from datetime import datetime, time
from typing import Any

from langchain_core.load.serializable import Serializable
from pydantic import BaseModel

_PLAIN: frozenset[type] = frozenset({int, str, bool, bytes, type(None)})
"""Types of which ``==`` says all. The paths of such elements are not even made up."""


def difference(a: Any, b: Any, path: str = "value") -> str | None:
    """Where and how `b` differs from `a`, in words; None when it does not.

    Counts as a difference: another type, another sign of zero, another order of a dict, another zone or fold of a
    time, other ``model_fields_set``. A NaN equals a NaN.
    """
    if type(a) is not type(b):
        return f"{path}: {a!r} of {type(a).__name__} became {b!r} of {type(b).__name__}"
    if a is b:
        return None
    if isinstance(a, float):
        return None if _bits(a) == _bits(b) or (math.isnan(a) and math.isnan(b)) else _unequal(a, b, path)
    if isinstance(a, (datetime, time)):
        same = a.isoformat() == b.isoformat() and str(a.tzinfo) == str(b.tzinfo) and a.fold == b.fold
        return None if same else _unequal(a, b, path)
    if isinstance(a, Mapping):
        return _mappings(a, b, path)
    if isinstance(a, (list, tuple, deque)):
        return _sequences(a, b, path)
    if isinstance(a, BaseModel):
        # LangChain's classes come back with every field set, as from LangGraph's own serializer.
        if not isinstance(a, Serializable) and a.model_fields_set != b.model_fields_set:
            return f"{path}: model_fields_set {a.model_fields_set} became {b.model_fields_set}"
        extras = difference(a.__pydantic_extra__, b.__pydantic_extra__, f"{path}.__pydantic_extra__")
        return extras or difference(a.__dict__, b.__dict__, path)
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        for field in dataclasses.fields(a):
            here, there = getattr(a, field.name, None), getattr(b, field.name, None)
            if found := difference(here, there, f"{path}.{field.name}"):
                return found
        return None
    return None if a == b else _unequal(a, b, path)


def assert_same(a: Any, b: Any, what: str = "value") -> None:
    """Raise ``AssertionError`` with the first `difference`, if there is one."""
    found = difference(a, b, what)
    assert found is None, found


def assert_same_items(a: Mapping[str, Any], b: Mapping[str, Any], what: str = "value") -> None:
    """`assert_same` for mappings whose own order does not count."""
    assert a.keys() == b.keys(), f"{what}: the keys {sorted(a)} became {sorted(b)}"
    for key in a:
        assert_same(a[key], b[key], f"{what}[{key!r}]")


def _plainly_equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and type(a) in _PLAIN and a == b


def _bits(number: float) -> bytes:
    return struct.pack("<d", number)


def _unequal(a: Any, b: Any, path: str) -> str:
    return f"{path}: {a!r} became {b!r}"


def _mappings(a: Mapping[Any, Any], b: Mapping[Any, Any], path: str) -> str | None:
    if isinstance(a, defaultdict) and isinstance(b, defaultdict) and a.default_factory is not b.default_factory:
        return f"{path}: the factory {a.default_factory} became {b.default_factory}"
    ordered = isinstance(a, (dict, OrderedDict))
    if len(a) != len(b) or (ordered and list(a) != list(b)):
        return f"{path}: the keys {list(a)!r} became {list(b)!r}"
    for key, other in zip(a, b, strict=True):
        if _plainly_equal(key, other) and _plainly_equal(a[key], b[key]):
            continue
        if found := difference(key, other, f"{path}, key {key!r}") or difference(a[key], b[key], f"{path}[{key!r}]"):
            return found
    return None


def _sequences(a: Sequence[Any], b: Sequence[Any], path: str) -> str | None:
    if isinstance(a, deque) and isinstance(b, deque) and a.maxlen != b.maxlen:
        return f"{path}: maxlen {a.maxlen} became {b.maxlen}"
    if len(a) != len(b):
        return f"{path}: {len(a)} elements became {len(b)}"
    for at, (one, other) in enumerate(zip(a, b, strict=True)):
        if _plainly_equal(one, other):
            continue
        if found := difference(one, other, f"{path}[{at}]"):
            return found
    return None
