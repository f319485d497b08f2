"""What upgrades work on: a checkpoint with its pending writes, out of the store and not yet LangGraph's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from langgraph.checkpoint.serde import types

START: Final = "__start__"
"""The channel of a run's input: an update of the state, in the shape of the state."""
TASKS: Final = types.TASKS
"""The channel of pending sends."""
INTERRUPT: Final = types.INTERRUPT
RESUME: Final = types.RESUME
NO_WRITES: Final = "__no_writes__"
SOURCE: Final = "__error_source_node__"
BRANCH: Final = "branch:to:"
JOIN: Final = "join:"
CONTROL: Final = frozenset({types.ERROR, SOURCE, INTERRUPT, types.RESUME, types.SCHEDULED})
"""Writes that are about a task, not of its output."""


@dataclass(slots=True)
class Write:
    """One pending write."""

    task: str
    idx: int
    path: str
    channel: str
    value: Any
    version: int = 0
    """Of the schema, when it was stored."""
    origin: int = 0
    """By which of the names of a subgraph's namespace it was stored: a later one has a higher number."""
    stamp: bytes | None = None
    """As it is stored, where nobody has declared a schema."""


@dataclass(slots=True)
class Image:
    """One checkpoint. Everything in it is its own and may be changed."""

    thread: str
    ns: str
    id: str
    checkpoint: dict[str, Any]
    """With ``channel_values``."""
    metadata: dict[str, Any]
    writes: list[Write] = field(default_factory=list)
    version: int | None = None
    """Of the schema, when the checkpoint was stored."""
    was: Sequence[int] = ()
    """The versions that it was of before it was migrated, the oldest first."""
    gone: list[Write] = field(default_factory=list)
    """Writes of tasks that are no more: where a step has taken them up, delta channels are rebuilt from them."""

    @property
    def versions_of_calls(self) -> Sequence[int] | None:
        """The versions by whose names of nodes it may have made calls, the latest first; None where that may be any."""
        return None if self.version is None else (self.version, *reversed(self.was))

    @property
    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = self.checkpoint["channel_values"]
        return values

    @property
    def versions(self) -> dict[str, Any]:
        versions: dict[str, Any] = self.checkpoint.setdefault("channel_versions", {})
        return versions

    @property
    def seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = self.checkpoint.setdefault("versions_seen", {})
        return seen


def starts_of(join: str) -> tuple[Sequence[str], str] | None:
    """The nodes that a join channel waits for, as written (a name may hold a plus), and the node behind it."""
    if not join.startswith(JOIN) or ":" not in join[len(JOIN) :]:
        return None
    starts, _, end = join[len(JOIN) :].rpartition(":")
    return starts.split("+"), end


def is_send(value: Any) -> bool:
    """LangGraph's ``Send``, which the core cannot import."""
    return type(value).__name__ == "Send" and type(value).__module__ == "langgraph.types"
