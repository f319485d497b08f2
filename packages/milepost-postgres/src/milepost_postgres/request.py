"""What the store asks of its port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from milepost_postgres.wire import Wire

Parameters = dict[str, Wire | None]


class Step(NamedTuple):
    """One statement."""

    text: bytes
    parameters: Mapping[str, Wire | None] | None


class Request(NamedTuple):
    """Statements that are carried out in one transaction and one round trip. The reply is their rows, per step."""

    op: str
    """What is done, as errors call it: "put a checkpoint"."""
    steps: tuple[Step, ...]
    group: str | None = None
    """Requests that have one may share a transaction with others; those of the same group stay in order."""
