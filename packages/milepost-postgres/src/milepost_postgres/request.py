"""What the store asks of its port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Parameters = dict[str, bytes | None]
"""What a statement's parameters are by name, in PostgreSQL's binary format; see `milepost_postgres.wire`."""


class Step(NamedTuple):
    """One statement, and its parameters in the order of their numbers."""

    text: bytes
    values: Sequence[bytes | None] = ()


class Query(NamedTuple):
    """A statement of the store: with ``$1`` and so on, and by which names these are known."""

    text: bytes
    names: tuple[str, ...]

    def step(self, given: Parameters) -> Step:
        """The statement with its parameters, which may be more than it needs."""
        return Step(self.text, [given[name] for name in self.names])


class Request(NamedTuple):
    """Statements that are carried out in one transaction and one round trip. The reply is their rows, per step."""

    op: str
    """What is done, as errors call it: "put a checkpoint"."""
    steps: tuple[Step, ...]
    group: str | None = None
    """Requests that have one may share a transaction with others; those of the same group stay in order."""
