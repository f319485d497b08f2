"""Stamps: what a checkpoint and a pending write say of the schema they were stored under."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import ormsgpack

from milepost.errors import FormatTooNew


class Stamp(NamedTuple):
    """A decoded stamp. That of a pending write has a name and a version alone."""

    name: str
    version: int
    since: int
    """The oldest version whose code may read this as it is."""
    fingerprint: bytes = b""
    table: bytes = b""
    """See `milepost.schema.shape`."""
    below: Mapping[str, bytes] = {}
    """Of the subgraphs that something is sent to, by their nodes: the stamp that a pending write of theirs would have."""


def encode(stamp: Stamp) -> tuple[bytes, bytes]:
    """For checkpoints, and for pending writes."""
    short = [stamp.name, stamp.version, stamp.since]
    below = [stamp.below] if stamp.below else []
    return ormsgpack.packb([*short, stamp.fingerprint, stamp.table, *below]), ormsgpack.packb([*short, *below])


def decode(data: bytes) -> Stamp:
    """Raises `FormatTooNew` for a stamp of another form: what surrounds it has been verified."""
    try:
        parts: Any = ormsgpack.unpackb(data)
        below = parts.pop() if isinstance(parts[-1], dict) else {}
        stamp = Stamp(*parts)._replace(below=below)
    except (ValueError, TypeError, LookupError) as exc:
        raise FormatTooNew(
            "a checkpoint's schema stamp has a form that this release does not know. Upgrade milepost.",
            found="unknown stamp",
            supported="stamps of 3 to 6 parts",
        ) from exc
    return stamp
