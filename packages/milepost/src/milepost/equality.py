"""What a filter of metadata compares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """The exact rule of a metadata filter: ``metadata.get(key) == value`` for each item."""
    return all(_equal(metadata.get(key), value) for key, value in wanted.items())


def _equal(found: Any, value: Any) -> bool:
    # Arrays compare element by element, and have no truth: they are equal if their shapes and all their elements are.
    shapes = [getattr(one, "shape", ()) for one in (found, value)]
    if shapes[0] != shapes[1]:
        return False
    answer = found == value
    return bool(answer.all() if shapes[0] else answer)
