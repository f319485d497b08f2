"""A run that stopped before a subgraph which something has been sent to, and releases that change either state."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import milepost
import pytest
from driving import Flavour, Graph, graph_of, thread
from langgraph.graph import START
from langgraph.types import Send
from milepost import schema as ms
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")


class Root(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class RootBefore(Root, total=False):
    topic: str


class ChildBefore(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    topic: str


class Child(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    subject: str


def _graph(saver: Saver, root: type, child: type, key: str, name: str) -> Graph:
    inner = graph_of(child, output_schema=Root)
    inner.add_node("work", lambda state: {"log": [state.get(key, "lost")]})
    inner.add_edge(START, "work")
    builder = graph_of(root)
    builder.add_node("start", lambda _: {})
    builder.add_node(name, inner.compile())
    builder.add_edge(START, "start")
    builder.add_conditional_edges("start", lambda _: [Send(name, {key: "1"}), Send(name, {key: "2"})], [name])
    return builder.compile(checkpointer=saver, interrupt_before=[name])


@pytest.mark.parametrize("migrated", [False, True], ids=["read", "migrated"])
@pytest.mark.parametrize("changes", ["root", "child", "both"])
async def test_what_was_sent_reaches_the_subgraph(
    saver_url: str, flavour: Flavour, changes: str, migrated: bool
) -> None:
    first: dict[str, Any] = {
        "": milepost.Schema(RootBefore, version=1, name="root"),
        "child": milepost.Schema(ChildBefore, version=1, name="child"),
    }
    step = ms.Step(1, 2, ms.drop_channel("topic"), ms.rename_node("child", "kid"))
    root = milepost.Schema(Root, version=2, name="root", upgrades=[step])
    step = ms.Step(1, 2, ms.rename_channel("topic", "subject"))
    child = milepost.Schema(Child, version=2, name="child", upgrades=[step])
    name, key = "child" if changes == "child" else "kid", "topic" if changes == "root" else "subject"
    later = {
        "": first[""] if changes == "child" else root,
        name: first["child"] if changes == "root" else child,
    }
    async with milepost.connect(saver_url, schema=first) as saver:
        graph = _graph(saver, RootBefore, ChildBefore, "topic", "child")
        await flavour.invoke(graph, {"log": ["in"], "topic": "the root's"}, ONE)
        after = Saver(saver.backend, schema=later)
        if migrated:
            assert [told.refused async for told in after.amigrate(history=True)] == [()]
        states = (RootBefore if changes == "child" else Root, ChildBefore if changes == "root" else Child)
        done = await flavour.invoke(_graph(after, *states, key, name), None, ONE)
        assert done["log"] == ["in", "1", "2"]
