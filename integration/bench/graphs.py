"""Workloads that run compiled graphs: W6, W9, and G16, which compares with LangGraph's delta channels."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from .agents import message
from .measure import Bench

THREAD: RunnableConfig = {"configurable": {"thread_id": "graph", "checkpoint_ns": ""}}
NEVER = 1_000_000
_typed_dict: Any = TypedDict


def _fold(messages: list[Any], batches: Sequence[Any]) -> list[Any]:
    for batch in batches:
        messages = add_messages(messages, batch)  # type: ignore[assignment]  # also knows single messages
    return messages


def _extend(messages: list[Any], batches: Sequence[Any]) -> list[Any]:
    return [*messages, *(one for batch in batches for one in batch)]


def two_nodes(saver: Any, steps: int, reducer: Any = add_messages) -> Any:
    """A graph of two nodes that take turns, `steps` times in all; each adds a message."""
    # Not a class: its annotations would be texts, in which `reducer` means nothing.
    state = _typed_dict(
        "Steps", {"messages": Annotated[list[BaseMessage], reducer], "steps": Annotated[int, operator.add]}
    )
    fresh = [message(number) for number in range(steps)]
    builder = StateGraph[Any, Any, Any, Any](state)

    def speak(state: Any) -> dict[str, Any]:
        return {"messages": [fresh[state["steps"]]], "steps": 1}

    def onwards(here: str, state: Any) -> str:
        return "__end__" if state["steps"] == steps else {"model": "tools", "tools": "model"}[here]

    for name in ("model", "tools"):
        builder.add_node(name, speak)
        builder.add_conditional_edges(name, partial(onwards, name), ["model", "tools", "__end__"])
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver)


def _delta(reducer: Any, snapshot_frequency: int) -> Any:
    with warnings.catch_warnings(action="ignore"):  # that it is a beta
        return DeltaChannel(reducer, snapshot_frequency=snapshot_frequency)


def _limited(steps: int, thread: RunnableConfig = THREAD) -> RunnableConfig:
    return {**thread, "recursion_limit": steps + 10}


async def w6(bench: Bench) -> None:
    """A compiled graph of 2 nodes, 50 steps, with durability "sync"; and the same without a saver."""
    sample, steps = bench.sample, 50
    async with bench.client() as client:
        graph, bare = two_nodes(client.saver, steps), two_nodes(None, steps)
        for number in range(3):
            thread: RunnableConfig = {"configurable": {"thread_id": str(number)}}
            run = client.invoke(graph, {"steps": 0}, _limited(steps, thread), durability="sync")
            done = await sample.timed("run", run)
            assert len(done["messages"]) == steps
            found = await client.get(thread)
            assert found is not None
            assert found.checkpoint["channel_values"]["messages"] == done["messages"]
            await sample.timed("run without", client.invoke(bare, {"steps": 0}, _limited(steps, thread)))


async def w9(updates: int, bench: Bench) -> None:
    """A delta channel of so many updates and no snapshot, rebuilt from the writes of all ancestors."""
    sample = bench.sample
    reducer = _delta(_extend, NEVER)
    async with bench.client(hurried=True) as client:
        graph = two_nodes(client.saver, updates, reducer)
        # Not "async": a saver that is slower than the graph would run out of connections.
        done = await client.invoke(graph, {"steps": 0}, _limited(updates), durability="sync")
        assert len(done["messages"]) == updates
    bench.rival.settle(bench.folder)
    async with bench.client() as client:
        graph = two_nodes(client.saver, updates, reducer)
        for _ in range(5):
            found = await sample.timed("get", client.get(THREAD))
            assert found is not None
            assert found.metadata.get("step") == updates
        with bench.part("history"):
            for _ in range(3):
                history = await sample.timed("history", client.history(THREAD, "messages"))
                assert [one for _, _, values in history["writes"] for one in values] == done["messages"]
        with bench.part("state"):
            for _ in range(3):
                assert (await sample.timed("state", client.state(graph, THREAD))).values == done


async def g16(steps: int, bench: Bench) -> None:
    """So many supersteps with a list of messages: plain with ours, with the others in a delta channel."""
    sample = bench.sample
    reducer = add_messages if bench.rival.ours else _delta(_fold, 100)
    async with bench.client() as client:
        graph = two_nodes(client.saver, steps, reducer)
        with bench.costs():
            done = await sample.timed("run", client.invoke(graph, {"steps": 0}, _limited(steps)))
        assert len(done["messages"]) == steps
        for _ in range(5):
            assert (await sample.timed("state", client.state(graph, THREAD))).values == done
    bench.weigh()
