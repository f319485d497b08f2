"""The nodes that a checkpoint waits for, against those that its graph has: what is stored does not tell those."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from milepost.errors import InvalidConfig
from milepost.schema.changes import Change, names
from milepost.schema.image import BRANCH, JOIN, TASKS, Image, is_send, starts_of
from milepost.schema.tasks import Tasks


def nodes_of(given: object) -> frozenset[str]:
    """The nodes of a graph, but for those that LangGraph makes by itself. Raises `InvalidConfig`."""
    found = frozenset(name for name in names(given, "nodes") if not _made_by_langgraph(name))
    if not found:
        raise InvalidConfig(
            "nodes is empty: pass the names of the graph's nodes, such as those of its StateGraph once it has them all",
            what="nodes",
        )
    return found


def unknown_node(image: Image, nodes: frozenset[str]) -> str | None:
    """A node that `image` waits for and that is not among `nodes`, or None.

    Who waits: what has been triggered or sent to, what has written or asked something, and a join that has heard of any
    node, for all nodes that it is made of.
    """
    return next((name for name in _awaited(image, nodes) if name not in nodes and not _made_by_langgraph(name)), None)


def check_leads(ways: Iterable[Sequence[Change]], nodes: frozenset[str]) -> None:
    """Raise `InvalidConfig` if any of `ways`, changes in order, lead from a node to one that is not among `nodes`."""
    for changes in ways:
        for at, change in enumerate(changes):
            for node in change.nodes:
                now: str | None = node
                for later in changes[at:]:
                    now = None if now is None else later.node(now)
                if now is not None and now not in nodes and not _made_by_langgraph(now):
                    raise InvalidConfig(
                        f"what waits in node {node!r} is to go on in {now!r}, which is not among the schema's nodes",
                        what="nodes",
                        value=now,
                    )


def _made_by_langgraph(name: str) -> bool:
    """``__start__``, ``__end__``, and handlers of errors."""
    return name.startswith("__")


def _awaited(image: Image, nodes: frozenset[str]) -> Iterator[str]:
    tasks = Tasks(image)
    for channel, value in image.values.items():
        for one in value if channel == TASKS and isinstance(value, list | tuple) else (value,):
            yield from _meant(channel, one, nodes)
    for write in image.writes:
        yield from _meant(write.channel, write.value, nodes)
        node = tasks.triggered(write)
        if node is not None:
            yield node


def _meant(channel: str, value: Any, nodes: frozenset[str]) -> Iterator[str]:
    """The nodes that a value of a channel, or a write to it, is for."""
    if channel.startswith(BRANCH):
        yield channel[len(BRANCH) :]
    elif channel == TASKS and is_send(value):
        yield value.node
    elif channel.startswith(JOIN) and (join := starts_of(channel)) is not None and _heard(value):
        yield from _spelled(join[0], nodes)
        yield join[1]


def _heard(value: Any) -> bool:
    """Whether a join has heard of any node; `value` is what it keeps, or what a task has written to it."""
    pair = isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], bool)
    return bool(value[0] if pair else value)


def _spelled(parts: Sequence[str], nodes: frozenset[str]) -> Sequence[str]:
    """The nodes that a join waits for, of which any may hold a plus. Where no names of `nodes` give it, as it is written."""
    ways: list[list[str] | None] = [[], *(None for _ in parts)]
    for end in range(1, len(parts) + 1):
        for start, before in enumerate(ways[:end]):
            name = "+".join(parts[start:end])
            if before is not None and name in nodes:
                ways[end] = [*before, name]
    return ways[-1] or parts
