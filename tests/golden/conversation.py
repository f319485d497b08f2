"""What the golden threads hold: every kind of layout, value and pending write. Never changed once it is written."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Send
from milepost.saver import Saver
from pydantic import BaseModel

KEYS = {"2026": bytes(range(32))}
TASK = "00000000-0000-0000-0000-0000000000aa"


class Colour(enum.Enum):
    """An enum."""

    RED = "red"


class Outer:
    """Holds a nested class."""

    class Shade(enum.Enum):
        """A nested enum."""

        DARK = 1


@dataclasses.dataclass
class Point:
    """A dataclass with a field that its constructor does not take."""

    x: int
    y: int = 0
    total: int = dataclasses.field(init=False, default=0)


class Order(BaseModel):
    """A model."""

    id: int
    lines: list[str] = []


def messages(count: int) -> list[Any]:
    """A conversation of `count` messages."""
    kinds: list[Callable[[int], Any]] = [
        lambda n: SystemMessage(f"rules {n}", id=f"m{n}"),
        lambda n: HumanMessage([{"type": "text", "text": f"question {n} " * 20}], id=f"m{n}"),
        lambda n: AIMessage(
            f"calling {n} " * 20,
            id=f"m{n}",
            tool_calls=[{"name": "look", "args": {"n": n, "deep": {"a": [1]}}, "id": "c"}],
        ),
        lambda n: ToolMessage(f"result {n} " * 20, tool_call_id="c", id=f"m{n}", artifact={"rows": [n, (n,)]}),
    ]
    return [kinds[n % 4](n) for n in range(count)]


VALUES: dict[str, Any] = {
    "text": "plain, ü, \0, \ud800",
    "numbers": [0, -1, 2**64, -(2**70), 0.5, -0.0, float("inf"), True, None],
    "bytes": b"\x00\xff" * 50,
    "exact": [
        (1, (2, 3)), bytearray(b"x"), 1 + 2j, Fraction(1, 3), range(3), Decimal("1.10"),
        {1, 2}, frozenset({"a"}), deque([1, 2], maxlen=2), defaultdict(list, a=[1]), Counter("aab"), OrderedDict(z=1, a=2),
        PurePosixPath("/a/b"), PureWindowsPath("c:/d"), UUID(int=5),
    ],
    "times": [
        datetime(2026, 3, 7, 9, tzinfo=ZoneInfo("America/New_York")),
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        date(2026, 1, 2), time(1, 2, 3, 4), timedelta(days=1, seconds=2, microseconds=3),
    ],
    "keys": {1: "int", (1, 2): "tuple", None: "none", date(2026, 1, 1): "date", "s": "str"},
    "classes": [Colour.RED, Outer.Shade.DARK, Point(1), Order(id=7, lines=["a"])],
    "langgraph": [Send("node", {"x": 1}), Interrupt(value="sure?", id="0" * 32), Command(update={"a": 1}, goto="n")],
    "lookalike": {"lc": 1, "type": "constructor", "id": ["a", "b"], "kwargs": {}},
    "many numbers": list(range(1000)),
    "files": {f"file {n}.txt": f"line {n}\n" * 100 for n in range(40)},
    "large": "x" * 20_000,
    "snapshot": _DeltaSnapshot(messages(5)),
}  # fmt: skip


def checkpoints() -> list[tuple[Checkpoint, dict[str, Any]]]:
    """The checkpoints of a golden thread, oldest first, with their new versions."""
    result: list[tuple[Checkpoint, dict[str, Any]]] = []
    for step in range(3):
        label = f"{step + 1:032}.{0.25 * (step + 1):016}"
        first = f"{1:032}.{0.25:016}"
        values = {**VALUES, "messages": messages(20 * (step + 1)), "step": step}
        versions = {channel: label if channel in ("messages", "step") else first for channel in values}
        checkpoint: Any = {
            "v": 4,
            "id": f"1ef4f797-8335-6428-8001-8a1503f9b87{step}",
            "ts": "2026-11-29T00:00:00+00:00",
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": {"__input__": {}, "node": {"messages": first, "branch:to:a": 7}},
            "updated_channels": ["messages", "step"],
        }
        new = versions if step == 0 else {channel: versions[channel] for channel in ("messages", "step")}
        result.append((checkpoint, dict(new)))
    return result


def metadata(step: int) -> dict[str, Any]:
    """Of checkpoint number `step`."""
    return {"source": "loop", "step": step, "parents": {}, "run_id": "r1", "k\0ey": [step, {"nested": "a\0b"}]}


WRITES: list[tuple[str, Any]] = [
    ("messages", messages(60)[-1:]),
    ("note", "short"),
    ("__interrupt__", (Interrupt(value={"ask": "x" * 300}, id="1" * 32),)),
    ("__error__", "ValueError('old')"),
]


def write(saver: Saver, thread: str) -> None:
    """How a golden thread was made."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    for step, (checkpoint, new) in enumerate(checkpoints()):
        config = saver.put(config, checkpoint, metadata(step), new)  # type: ignore[arg-type]  # more than its TypedDict
    saver.put_writes(config, WRITES, TASK, "~__pregel_pull, node")
