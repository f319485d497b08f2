"""What streams show of the saver: checkpoints, tasks and debug parts, equal to the memory saver's."""

from __future__ import annotations

import operator
import re
from typing import Annotated, Any

import pytest
from driving import STEPWISE, Durability, Flavour, Graph, graph_of, thread
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START
from langgraph.types import Command, Send, interrupt
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00")


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def _graph(saver: BaseCheckpointSaver[Any]) -> Graph:
    inner = graph_of(State)
    inner.add_node("ask", lambda _: {"items": [str(interrupt("go on?"))]})
    inner.add_edge(START, "ask")
    builder = graph_of(State)
    builder.add_node("plan", lambda _: {"items": ["plan"]})
    builder.add_node("work", lambda state: {"items": [f"work {state}"]})
    builder.add_node("inner", inner.compile())
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda _: [Send("work", 1), Send("work", 2)], ["work"])
    builder.add_edge("work", "inner")
    return builder.compile(checkpointer=saver)


def _anonymous(part: Any, names: dict[str, str]) -> Any:
    """`part` with ids and times replaced, each by its own name in order of appearance."""
    if isinstance(part, dict):
        return {_anonymous(key, names): _anonymous(value, names) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_anonymous(value, names) for value in part]
    if isinstance(part, str):
        return TIME.sub("TIME", UUID.sub(lambda found: names.setdefault(found[0], f"id{len(names)}"), part))
    if hasattr(part, "id") and hasattr(part, "value"):
        return ["Interrupt", _anonymous(part.value, names)]
    return part


def _parts(stream: list[Any]) -> list[str]:
    # Siblings may end in any order.
    return sorted(repr(_anonymous(part, {})) for part in stream)


@pytest.mark.parametrize("mode", ["values", "updates", "checkpoints", "tasks", "debug"])
@pytest.mark.parametrize("durability", STEPWISE)
async def test_streams_are_the_memory_savers(saver: Saver, flavour: Flavour, durability: Durability, mode: str) -> None:
    streams: list[list[list[str]]] = []
    for checkpointer in (saver, InMemorySaver()):
        graph = _graph(checkpointer)
        options = {"stream_mode": mode, "subgraphs": True, "durability": durability}
        first = await flavour.stream(graph, {"items": ["in"]}, ONE, **options)
        rest = await flavour.stream(graph, Command(resume="yes"), ONE, **options)
        streams.append([_parts(first), _parts(rest)])
    assert streams[0] == streams[1]
    assert all(streams[0])


@pytest.mark.parametrize("durability", STEPWISE)
async def test_a_streamed_checkpoint_can_be_resumed_from(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    graph = _graph(saver)
    stream = await flavour.stream(graph, {"items": ["in"]}, ONE, stream_mode="checkpoints", durability=durability)
    assert [part["next"] for part in stream] == [["__start__"], ["plan"], ["work", "work"], ["inner"]]
    for part in stream[1:]:
        found = await flavour.state(graph, part["config"])
        assert (part["values"], part["metadata"]) == (found.values, found.metadata)
    again = await flavour.invoke(graph, None, stream[2]["config"], durability=durability)
    assert again["items"] == ["in", "plan", "work 1", "work 2"]
    assert [one.value for one in again["__interrupt__"]] == ["go on?"]
