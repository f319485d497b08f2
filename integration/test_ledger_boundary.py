"""Checkpoints that are put over a call that is not settled."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from driving import Graph, graph_of
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState
from milepost.ledger import Unsettled
from milepost.saver import Saver
from milepost.tools import Ledger, idempotent, readonly
from test_ledger_graphs import GO, ONE, agent, asks, hand_built

Effect = Callable[[str], str]


def by_tool(saver: Saver, ledger: Ledger, effect: Effect) -> Graph:
    return hand_built(saver, ledger, [tool("charge", description="Charge.")(effect)], [asks("a")])


def by_sub_agent(saver: Saver, ledger: Ledger, effect: Effect) -> Graph:
    """The tool that delegates is recorded too: what the agent within puts meanwhile is not over its call."""

    @tool
    def delegate(order: str) -> str:
        """Have another agent do it."""
        within = agent(None, [tool("charge", description="Charge.")(effect)], [asks(order)], [ledger.middleware()])  # type: ignore[arg-type]
        return str(within.invoke({"messages": [HumanMessage(order, id="inner h")]})["messages"][-1].content)

    both = asks("a", "b", name="delegate", id="outer")
    return agent(saver, [delegate], [both], [ledger.middleware()])


def by_once(saver: Saver, ledger: Ledger, effect: Effect) -> Graph:
    def node(_: MessagesState) -> Any:
        return {"messages": [AIMessage(ledger.once("charge", effect, "a"), id="said")]}

    builder = graph_of(MessagesState)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    builder.add_edge("tools", END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("older", [False, True], ids=["on the latest", "on an older one"])
@pytest.mark.parametrize("make", [by_tool, by_sub_agent, by_once])
def test_the_state_is_not_updated_over_an_unsettled_call(saver: Saver, make: Any, older: bool) -> None:
    begun, going_on = threading.Event(), threading.Event()

    def effect(order: str) -> str:
        begun.set()
        going_on.wait()
        return f"charged {order}"

    ledger = Ledger(saver, {"look": readonly, "delegate": idempotent()}, on_unsettled="refuse")
    graph = make(saver, ledger, effect)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(graph.invoke, GO, ONE, durability="sync")
        try:
            assert begun.wait(60)
            history = list(graph.get_state_history(ONE))
            chosen = history[-1 if older else 0].config
            update = {"messages": [ToolMessage("x", tool_call_id="charge-a")]}
            with pytest.raises(Unsettled):
                graph.update_state(chosen, update, as_node="tools")
        finally:
            going_on.set()
        running.result()
    graph.update_state(ONE, {"messages": [HumanMessage("more", id="more")]}, as_node="tools")
    assert {one.state for one in ledger.calls("one")} == {"succeeded"}
