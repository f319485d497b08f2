"""LangGraph checkpointers that store each value once, on files, Postgres or Redis, with one behaviour."""

from __future__ import annotations

from milepost.archive import ArchiveFolder
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
    UnsettledCalls,
)
from milepost.graphs import exclusive
from milepost.recovery import arecover, recover
from milepost.retention import Retention
from milepost.saver import Saver
from milepost.schema import Schema
from milepost.upkeep import Hooks

__all__ = [
    "ArchiveFolder",
    "Busy",
    "Conflict",
    "Corrupt",
    "FormatTooNew",
    "Hooks",
    "InvalidConfig",
    "LeaseLost",
    "MilepostError",
    "Retention",
    "Saver",
    "Schema",
    "SchemaMismatch",
    "ThreadDeleted",
    "TooLarge",
    "Unavailable",
    "Unserializable",
    "UnsettledCalls",
    "arecover",
    "connect",
    "exclusive",
    "recover",
]
