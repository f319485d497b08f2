"""Maintenance under LangGraph: nothing runs again because of it, people go on waiting, delta channels are what they were."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from typing import Annotated, Any, cast

import pytest
from driving import Flavour, Graph, graph_of, place, thread
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from milepost.compaction import offload_large, trim_messages
from milepost.retention import Retention
from milepost.saver import Saver
from milepost.upkeep import Report
from typing_extensions import TypedDict

ONE = thread("one")
KEEP_ONE = Retention(keep_last=1)


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    steps: Annotated[list[str], operator.add]


async def maintain(flavour: Flavour, saver: Saver, policy: Retention | None = None, **options: Any) -> Report:
    options = {"quiet": 0, **options}
    if flavour.name == "async":
        return await saver.amaintain(policy, **options)
    return await asyncio.to_thread(lambda: saver.maintain(policy, **options))


def chat(saver: Saver, performed: list[str], ask: bool, **options: Any) -> Graph:
    """Three nodes in a row; the second is a tool call that a person may have to approve."""

    def call(_: Chat) -> Any:
        number = len(performed)
        performed.append("call")
        tool_call = {"name": "look_up", "args": {}, "id": f"c{number}", "type": "tool_call"}
        return {"messages": [AIMessage("", tool_calls=[tool_call], id=f"a{number}")], "steps": ["call"]}

    def perform(state: Chat) -> Any:
        answer = interrupt("may I?") if ask else "yes"
        performed.append("perform")
        call = cast("AIMessage", state["messages"][-1]).tool_calls[0]["id"]
        result = ToolMessage(f"{answer} " * 30_000, tool_call_id=call, id=f"t{call}")
        return {"messages": [result], "steps": [f"perform {answer}"]}

    def answer(_: Chat) -> Any:
        performed.append("answer")
        return {"messages": [AIMessage("done", id=f"d{len(performed)}")], "steps": ["answer"]}

    builder = graph_of(Chat)
    for name, node in (("call", call), ("perform", perform), ("answer", answer)):
        builder.add_node(name, node)
    builder.add_edge(START, "call")
    builder.add_edge("call", "perform")
    builder.add_edge("perform", "answer")
    return builder.compile(checkpointer=saver, **options)


async def say(flavour: Flavour, graph: Graph, number: int) -> Any:
    return await flavour.invoke(graph, {"messages": [HumanMessage(f"turn {number}", id=f"h{number}")]}, ONE)


async def test_a_conversation_that_is_compacted_between_turns(saver: Saver, flavour: Flavour) -> None:
    performed: list[str] = []
    graph = chat(saver, performed, ask=False)
    compact = [offload_large(over="16kB"), trim_messages(last=5)]
    for number in range(5):
        await say(flavour, graph, number)
        before = await flavour.state(graph, ONE)
        report = await maintain(flavour, saver, Retention(keep_last=3), compact=compact)
        assert [one.outcome for one in report.threads] == ["changed"]
        after = await flavour.state(graph, ONE)
        assert (after.next, after.tasks, after.values["steps"]) == (before.next, before.tasks, before.values["steps"])
        # Where there is nothing to go on with, nothing does.
        await flavour.invoke(graph, None, ONE)
        assert performed == ["call", "perform", "answer"] * (number + 1)
        await maintain(flavour, saver, Retention(keep_last=3), compact=compact)
    found = (await flavour.state(graph, ONE)).values
    assert found["steps"] == ["call", "perform yes", "answer"] * 5
    assert [one.type for one in found["messages"]] == ["ai", "human", "ai", "tool", "ai"]
    address = found["messages"][3].content.rpartition(" ")[2].rstrip("]")
    assert saver.attachment("one", address) == "yes " * 30_000
    assert len(await flavour.tuples(saver, ONE)) <= 4


async def test_whoever_waits_goes_on_waiting(saver: Saver, flavour: Flavour) -> None:
    performed: list[str] = []
    graph = chat(saver, performed, ask=True)
    for number in range(3):
        asked = await say(flavour, graph, number)
        before = await flavour.state(graph, ONE)
        await maintain(flavour, saver, KEEP_ONE, compact=trim_messages(last=1))
        after = await flavour.state(graph, ONE)
        assert place(after.config) == place(before.config)
        assert (after.next, after.interrupts) == (("perform",), tuple(asked["__interrupt__"]))
        await flavour.invoke(graph, Command(resume="yes"), ONE)
        await maintain(flavour, saver, KEEP_ONE, compact=offload_large(over="16kB"))
        assert performed == ["call", "perform", "answer"] * (number + 1)
    assert (await flavour.state(graph, ONE)).values["steps"] == ["call", "perform yes", "answer"] * 3


async def test_a_static_interrupt_is_still_one(saver: Saver, flavour: Flavour) -> None:
    performed: list[str] = []
    graph = chat(saver, performed, ask=False, interrupt_before=["answer"])
    await say(flavour, graph, 0)
    await maintain(flavour, saver, KEEP_ONE, compact=offload_large(over="16kB"))
    after = await flavour.state(graph, ONE)
    assert after.next == ("answer",)
    assert "compacted" in (after.metadata or {})
    assert len(after.values["messages"][2].content) < 1000
    await flavour.invoke(graph, None, ONE)
    assert performed == ["call", "perform", "answer"]
    assert (await flavour.state(graph, ONE)).next == ()


async def test_an_update_and_a_fork_after_it(saver: Saver, flavour: Flavour) -> None:
    performed: list[str] = []
    graph = chat(saver, performed, ask=False, interrupt_before=["answer"])
    await say(flavour, graph, 0)
    await maintain(flavour, saver, compact=offload_large(over="16kB"))
    new, old = (await flavour.history(graph, ONE))[:2]
    assert "compacted" in (new.metadata or {})
    # An update knows which node was the last one, as before.
    await flavour.update(graph, ONE, {"steps": ["edited"]})
    assert (await flavour.state(graph, ONE)).next == ("answer",)
    for config, length in ((new.config, 1000), (old.config, 100_000)):
        performed.clear()
        done = await flavour.invoke(graph, None, config)
        assert performed == ["answer"]
        assert done["steps"] == ["call", "perform yes", "answer"]
        assert (len(done["messages"][2].content) > length) == (length > 1000)


class Deltas(TypedDict):
    log: Annotated[
        list[str], DeltaChannel(lambda old, new: [*(old or []), *(one for some in new for one in some)], list)
    ]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_delta_channel(saver: Saver, flavour: Flavour, durability: Any) -> None:
    builder = graph_of(Deltas)
    node: Callable[[Any], Any] = lambda state: {"log": [f"node after {len(state['log'])}"]}  # noqa: E731 - of any state
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=saver)
    wanted: list[str] = []
    for number in range(6):
        await flavour.invoke(graph, {"log": [f"in {number}"]}, ONE, durability=durability)
        wanted += [f"in {number}", f"node after {len(wanted) + 1}"]
        if number == 3:
            await maintain(flavour, saver, KEEP_ONE)
        if number == 4:
            compact: Any = lambda state, _: {"log": state["log"][-3:]}  # noqa: E731 - a compactor
            report = await maintain(flavour, saver, KEEP_ONE, compact=compact, graph=graph)
            assert [one.compacted for one in report.threads] == [("log",)]
            # A run that began before may still go on from what was replaced.
            assert len(await flavour.tuples(saver, ONE)) > 1
            wanted = wanted[-3:]
        assert (await flavour.state(graph, ONE)).values["log"] == wanted, f"after turn {number}"
    # Somebody went on: what was replaced goes, but for what the latest is rebuilt from.
    await maintain(flavour, saver, KEEP_ONE)
    assert len(await flavour.tuples(saver, ONE)) <= 3
    assert (await flavour.state(graph, ONE)).values["log"] == wanted
