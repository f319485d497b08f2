"""Equality as a user means it who asks for the same value back: type for type, all the way down."""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import datetime, time, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import BaseModel


def same(a: Any, b: Any) -> bool:
    """Whether `a` and `b` are equal and of the same types, and so is everything in them, in the same order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, enum.Enum) or a is None:
        return bool(a is b)
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, Decimal):
        return bool(a.as_tuple() == b.as_tuple())
    if isinstance(a, deque):
        return a.maxlen == b.maxlen and same(list(a), list(b))
    if isinstance(a, defaultdict):
        return a.default_factory is b.default_factory and same(dict(a), dict(b))
    if isinstance(a, (dict, OrderedDict, Counter)):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, (set, frozenset)):
        left = list(b)
        for element in a:
            found = next((at for at, other in enumerate(left) if same(element, other)), None)
            if found is None:
                return False
            del left[found]
        return not left
    if isinstance(a, (datetime, time)):
        return a.isoformat() == b.isoformat() and a.fold == b.fold and _same_zone(a.tzinfo, b.tzinfo)
    if isinstance(a, tzinfo):
        return _same_zone(a, b)
    if isinstance(a, BaseModel):
        return (
            same(a.__dict__, b.__dict__)
            and a.__pydantic_fields_set__ == b.__pydantic_fields_set__
            and same(a.__pydantic_extra__, b.__pydantic_extra__)
            and same(a.__pydantic_private__, b.__pydantic_private__)
        )
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
        return all(same(getattr(a, name), getattr(b, name)) for name in names)
    return bool(a == b)


def _same_zone(a: tzinfo | None, b: tzinfo | None) -> bool:
    if isinstance(a, ZoneInfo) and isinstance(b, ZoneInfo):
        return a.key == b.key
    if isinstance(a, timezone) and isinstance(b, timezone):
        return a == b and str(a) == str(b)
    return a is None and b is None
