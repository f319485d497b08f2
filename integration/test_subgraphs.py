"""Graphs in graphs: state of their own or none, one call after another, and a tool that runs one from a worker thread."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from driving import Durability, Flavour, Graph, graph_of, place, thread
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState
from langgraph.prebuilt import ToolNode
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")


class Count(TypedDict):
    count: Annotated[int, operator.add]
    seen: Annotated[list[int], operator.add]


class Inner(TypedDict):
    inner: Annotated[int, operator.add]
    count: int


def _nested(saver: BaseCheckpointSaver[Any], kept: bool | None) -> Graph:
    inner = graph_of(Inner)
    inner.add_node("step", lambda _: {"inner": 1})
    inner.add_edge(START, "step")
    compiled = inner.compile(checkpointer=kept)

    outer = graph_of(Count)
    outer.add_node("call", lambda state: {"count": 1, "seen": [compiled.invoke({"count": state["count"]})["inner"]]})
    outer.add_edge(START, "call")
    return outer.compile(checkpointer=saver)


@pytest.mark.parametrize(("kept", "seen"), [(None, [1, 1, 1]), (True, [1, 2, 3])], ids=["None", "True"])
async def test_a_subgraph_keeps_state_between_calls_only_if_asked_to(
    saver: Saver, flavour: Flavour, durability: Durability, kept: bool | None, seen: list[int]
) -> None:
    graph = _nested(saver, kept)
    done = [await flavour.invoke(graph, {"count": 0}, ONE, durability=durability) for _ in range(3)]
    assert done[-1] == {"count": 3, "seen": seen}
    namespaces = {place(found.config)["checkpoint_ns"] for found in await flavour.tuples(saver, ONE)}
    assert ("call" in namespaces) == bool(kept)


async def test_subgraphs_as_nodes_leave_the_checkpoints_that_the_memory_saver_keeps(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    def build(checkpointer: BaseCheckpointSaver[Any]) -> Graph:
        leaf = graph_of(Count)
        leaf.add_node("leaf", lambda state: {"count": 1, "seen": [state["count"]]})
        leaf.add_edge(START, "leaf")
        branch = graph_of(Count)
        branch.add_node("one", leaf.compile())
        branch.add_node("two", leaf.compile(checkpointer=True))
        branch.add_edge(START, "one")
        branch.add_edge("one", "two")
        root = graph_of(Count)
        root.add_node("branch", branch.compile())
        root.add_edge(START, "branch")
        return root.compile(checkpointer=checkpointer)

    async def shape(checkpointer: Saver | InMemorySaver) -> list[tuple[Any, ...]]:
        graph = build(checkpointer)
        for _ in range(2):
            await flavour.invoke(graph, {"count": 1}, ONE, durability=durability)
        found = [
            (
                [part.partition(":")[0] for part in place(one.config)["checkpoint_ns"].split("|")],
                one.metadata.get("source"),
                one.metadata.get("step"),
                one.checkpoint["channel_values"],
                [(channel, value) for _, channel, value in one.pending_writes or ()],
            )
            for one in checkpointer.list(ONE)
        ]
        return sorted(found, key=repr)

    # What ids and versions are random stands aside; everything else is equal.
    ours, theirs = await shape(saver), await shape(InMemorySaver())
    assert ours == theirs
    assert ours


@tool
def consult(question: str) -> str:
    """Ask a graph."""
    builder = graph_of(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(f"re: {state['messages'][-1].content}")]})
    builder.add_edge(START, "answer")
    # Without a checkpointer of its own it borrows the caller's, through its blocking methods.
    graph = builder.compile(checkpointer=True)
    return str(graph.invoke({"messages": [HumanMessage(question)]})["messages"][-1].content)


async def test_a_blocking_tool_that_runs_a_graph_inside_an_async_run(saver: Saver, durability: Durability) -> None:
    def call(state: MessagesState) -> dict[str, Any]:
        turn = sum(isinstance(message, HumanMessage) for message in state["messages"])
        request = {"name": "consult", "args": {"question": f"q{turn}"}, "id": f"call-{turn}"}
        return {"messages": [AIMessage("", tool_calls=[request])]}

    builder = graph_of(MessagesState)
    builder.add_node("call", call)
    builder.add_node("tools", ToolNode([consult]))
    builder.add_edge(START, "call")
    builder.add_edge("call", "tools")
    graph = builder.compile(checkpointer=saver)
    for turn in ("hello", "again"):
        done = await graph.ainvoke({"messages": [HumanMessage(turn)]}, ONE, durability=durability)
    answers = [message.content for message in done["messages"] if isinstance(message, ToolMessage)]
    assert answers == ["re: q1", "re: q2"]
    kept = [one async for one in saver.alist(thread("one", checkpoint_ns="tools"), limit=1)]
    assert [message.content for message in kept[0].checkpoint["channel_values"]["messages"]] == [
        "q1", "re: q1", "q2", "re: q2",
    ]  # fmt: skip
