"""LangGraph checkpointers that store each value once, on files, Postgres or Redis, with one behaviour."""

from __future__ import annotations

from milepost.connect import connect
from milepost.errors import (
    Busy,
    Conflict,
    Corrupt,
    FormatTooNew,
    InvalidConfig,
    LeaseLost,
    MilepostError,
    SchemaMismatch,
    ThreadDeleted,
    TooLarge,
    Unavailable,
    Unserializable,
)
from milepost.saver import Saver
from milepost.schema import Schema

__all__ = [
    "Busy",
    "Conflict",
    "Corrupt",
    "FormatTooNew",
    "InvalidConfig",
    "LeaseLost",
    "MilepostError",
    "Saver",
    "Schema",
    "SchemaMismatch",
    "ThreadDeleted",
    "TooLarge",
    "Unavailable",
    "Unserializable",
    "connect",
]
