"""Stamps: what a checkpoint and a pending write say of the schema they were stored under."""

from __future__ import annotations

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


def encode(stamp: Stamp) -> tuple[bytes, bytes]:
    """For checkpoints, and for pending writes."""
    short = [stamp.name, stamp.version, stamp.since]
    return ormsgpack.packb([*short, stamp.fingerprint, stamp.table]), ormsgpack.packb(short)


def decode(data: bytes) -> Stamp:
    """Raises `FormatTooNew` for a stamp of another form: what surrounds it has been verified."""
    try:
        parts: Any = ormsgpack.unpackb(data)
        stamp = Stamp(*parts)
    except (ValueError, TypeError) as exc:
        raise FormatTooNew(
            "a checkpoint's schema stamp has a form that this release does not know. Upgrade milepost.",
            found="unknown stamp",
            supported="stamps of 3 or 5 parts",
        ) from exc
    return stamp
