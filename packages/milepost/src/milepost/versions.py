"""Versions of channels: LangGraph takes a channel as changed when its version is greater."""

from __future__ import annotations

import random
import re
from typing import Any

from milepost.errors import InvalidConfig

_random = random.SystemRandom()

_PADDED = re.compile(r"(.*?)([0-9]{32})\.[0-9.e-]+", re.DOTALL)
"""A label of LangGraph's, alone or behind a label that it continues."""


def next_version(current: Any) -> Any:
    """The version after `current`, None for a channel that has none yet: of its type, and greater.

    Fresh threads get LangGraph's padded labels, whose random part keeps the versions of sibling forks apart. A
    text that another saver made and that does not compare with those is continued behind a point. Raises `InvalidConfig`
    for what is neither a text nor a number.
    """
    if not isinstance(current, str | None):
        try:
            return current + 1
        except TypeError:
            raise InvalidConfig(
                f"the version {current!r}, of type {type(current).__name__}, has none after it: versions are "
                "numbers or texts",
                what="current",
                value=repr(current),
            ) from None
    fraction = f"{_random.random():016}"
    if current is None:
        return f"{1:032}.{fraction}"
    if padded := _PADDED.fullmatch(current):
        return f"{padded[1]}{int(padded[2]) + 1:032}.{fraction}"
    plain = f"{int(current) + 1:032}.{fraction}" if current.isascii() and current.isdigit() else ""
    return plain if plain > current else f"{current}.{1:032}.{fraction}"
