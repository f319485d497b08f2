"""The head guard over whole graphs: what goes on from an old checkpoint on purpose, and first runs that meet."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import milepost
import pytest
from driving import Durability, Flavour, Graph, graph_of, thread
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START
from langgraph.types import Command, interrupt
from milepost.errors import Conflict
from milepost.saver import Saver
from reading import Reader, rest
from typing_extensions import TypedDict

ONE = thread("one")


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def _append(items: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*items, *(item for write in writes for item in write)]


class DeltaState(TypedDict):
    items: Annotated[list[str], DeltaChannel(_append)]


@pytest.fixture
def guarded(saver_url: str) -> Iterator[Saver]:
    """A saver with the guard."""
    with milepost.connect(saver_url, guard="head") as opened:
        yield opened


def _graph(saver: BaseCheckpointSaver[Any], state: Any = State) -> Graph:
    builder = graph_of(state)
    builder.add_node("first", lambda _: {"items": ["first"]})
    builder.add_node("ask", lambda _: {"items": [interrupt("well?")]})
    builder.add_node("last", lambda _: {"items": ["last"]})
    for start, end in ((START, "first"), ("first", "ask"), ("ask", "last")):
        builder.add_edge(start, end)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("given", ["nothing", "an input", "an answer"])
async def test_an_old_checkpoint_is_gone_on_from(
    guarded: Saver, flavour: Flavour, durability: Durability, given: str
) -> None:
    what: Any = {"nothing": None, "an input": {"items": ["new"]}, "an answer": Command(resume="other")}[given]
    found: list[Any] = []
    for saver in (guarded, InMemorySaver()):
        graph = _graph(saver)
        await flavour.invoke(graph, {"items": ["in"]}, ONE)
        await flavour.invoke(graph, Command(resume="yes"), ONE)
        before = await flavour.history(graph, ONE)
        old = next(one for one in before if one.next == ("ask",))
        for _ in range(2):
            await flavour.invoke(graph, what, old.config, durability=durability)
        await flavour.invoke(graph, Command(resume="again"), ONE, durability=durability)
        await flavour.invoke(graph, {"items": ["more"]}, ONE, durability=durability)
        after = await flavour.history(graph, ONE)
        assert after[-len(before) :] == before
        found.append([(one.values, one.next) for one in after])
    assert found[0] == found[1]


@pytest.mark.parametrize("state", [State, DeltaState], ids=["plain", "delta"])
async def test_of_two_first_runs_that_are_stored_at_their_end_one_is(
    guarded: Saver, reader: Reader, state: Any
) -> None:
    """Also where whoever reads them does it from many contexts."""
    graph = _graph(guarded, state)
    one, other = (reader.open(graph, {"items": ["in"]}, ONE, durability="exit") for _ in range(2))
    for parts in (one, other):
        assert await reader.next(parts) == {"first": {"items": ["first"]}}
    await rest(reader, one)
    after = await graph.aget_state(ONE)
    with pytest.raises(Conflict) as caught:
        await rest(reader, other)
    assert caught.value.expected is None
    assert await graph.aget_state(ONE) == after
    assert after.next == ("ask",)
