"""Durations and sizes as people write them: ``"30d"``, ``"64kB"``, or a number of seconds or bytes."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import timedelta

from milepost.errors import InvalidConfig

Duration = str | int | float | timedelta
"""Such as ``"90s"``, ``"5m"``, ``"1h"``, ``"30d"`` or ``"2w"``; a `timedelta`; or seconds."""
Size = str | int
"""Such as ``"64kB"``, ``"1MB"`` or ``"1MiB"``; or bytes."""

_WRITTEN = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}


def seconds(value: object, what: str) -> float:
    """A `Duration` in seconds, more than 0. Raises `InvalidConfig`."""
    found: float = -1
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            found = float(value)
    elif isinstance(value, str) and (written := _WRITTEN.fullmatch(value)) and written[2] in _SECONDS:
        found = float(written[1]) * _SECONDS[written[2]]
    if not (math.isfinite(found) and found > 0):
        raise InvalidConfig(
            f'{what} is {value!r}: it must be a duration over 0, such as "90s", "5m", "1h", "30d" or "2w", a timedelta, '
            "or a number of seconds",
            what=what,
            value=repr(value)[:200],
        )
    return found


def size(value: object, what: str) -> int:
    """A `Size` in bytes, more than 0. Raises `InvalidConfig`."""
    found: float = -1
    if isinstance(value, int) and not isinstance(value, bool):
        found = value
    elif isinstance(value, str) and (written := _WRITTEN.fullmatch(value)) and written[2].lower() in _BYTES:
        found = float(written[1]) * _BYTES[written[2].lower()]
    if found < 1:
        raise InvalidConfig(
            f'{what} is {value!r}: it must be a size over 0, such as "64kB", "1MB" or "1MiB", or a number of bytes',
            what=what,
            value=repr(value)[:200],
        )
    return int(found)


def flag(value: object, what: str) -> bool:
    """True or False, and no other that is taken for one of them. Raises `InvalidConfig`."""
    if not isinstance(value, bool):
        raise InvalidConfig(f"{what} is {value!r}: it must be True or False"[:400], what=what, value=repr(value)[:200])
    return value


def count(value: object, what: str, at_least: int = 0) -> int:
    """A whole number. Raises `InvalidConfig`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InvalidConfig(
            f"{what} is {value!r}: it must be a whole number, at least {at_least}", what=what, value=repr(value)[:200]
        )
    return value
