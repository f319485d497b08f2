"""The identity of a tool call rests on what LangGraph keeps when it runs one again: measured against the one installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import identity
import milepost
import pytest
from driving import Durability, Graph, graph_of, place
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from milepost.errors import InvalidConfig
from milepost.saver import Saver
from milepost.tools.conversation import Asked, Conversation
from milepost.tools.pregel import Task, answers_here, task_of


@pytest.mark.parametrize("name", identity.SCENARIOS)
def test_what_stays_the_same_when_a_call_runs_again(name: str, tmp_path: Path) -> None:
    measure, expected = identity.SCENARIOS[name]
    measured = measure(tmp_path)
    assert measured == expected, f"with langgraph {version('langgraph')} this row of the table changed: {name}"


class Seen:
    """What the adapter module says of the calls of a graph, by the tool's name."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.answers: dict[str, Any] = {}
        self.asked: dict[str, Asked | None] = {}

    def wrap(self, request: Any, execute: Any) -> Any:
        name = request.tool_call["name"]
        self.tasks[name] = task_of(request.runtime)
        self.answers[name] = dict(answers_here())
        self.asked[name] = Conversation(request.state["messages"]).asked(request.tool_call["id"])
        return execute(request)


@tool
def inner(what: str) -> str:
    """Ask a person."""
    return f"{what}: {interrupt('may I?')}"


def _asks_for(name: str) -> Callable[[MessagesState], dict[str, Any]]:
    def model(_: MessagesState) -> dict[str, Any]:
        calls = [{"name": name, "args": {"what": "x"}, "id": f"{name}-1", "type": "tool_call"}]
        return {"messages": [AIMessage("", tool_calls=calls, id=f"asks for {name}")]}

    return model


def _with_one_tool(one: BaseTool, seen: Seen, saver: Saver | None) -> Graph:
    builder = graph_of(MessagesState)
    builder.add_node("model", _asks_for(one.name))
    builder.add_node("tools", ToolNode([one], wrap_tool_call=seen.wrap))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("durability", ["sync", "async", "exit", None])
def test_what_a_call_is_told_of_its_task(durability: Durability | None) -> None:
    seen = Seen()
    within = _with_one_tool(inner, seen, None)

    @tool
    def outer(what: str) -> str:
        """Hand on to another agent."""
        return str(within.invoke({"messages": [HumanMessage(what, id="h2")]})["messages"][-1].content)

    options: dict[str, Any] = {} if durability is None else {"durability": durability}
    with milepost.connect("memory:") as saver:
        graph = _with_one_tool(outer, seen, saver)
        asked = graph.invoke({"messages": [HumanMessage("go", id="h")]}, identity.ONE, **options)
        (question,) = asked["__interrupt__"]
        first = dict(seen.tasks)
        before = dict(seen.answers)
        graph.invoke(Command(resume={question.id: "yes"}), identity.ONE, **options)
        stored = {(place(one.config)["checkpoint_ns"], one.checkpoint["id"]) for one in saver.list(identity.ONE)}
    assert seen.asked["inner"] == Asked("asks for inner", 1, 1, 1, "h2")
    assert seen.asked["outer"] == Asked("asks for outer", 1, 1, 1, "h")
    around, task = first["outer"], first["inner"]
    assert {one.durability for one in seen.tasks.values()} == {durability or "async"}
    assert {one.thread for one in seen.tasks.values()} == {"one"}
    # The task's own checkpoint, and those of the graphs around it, each under the namespace that the saver knows it by.
    assert around.started_from == {"": around.checkpoint}
    assert task.started_from == {"": around.checkpoint, around.ns: task.checkpoint}
    assert set(task.started_from.items()) <= stored
    assert seen.answers["inner"] == seen.answers["outer"] == {question.id: "yes"}
    assert before == {"inner": {}, "outer": {}}


@tool
def pay(what: str) -> str:
    """Pay."""
    return what


class TwoCalls(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def test_an_agent_gives_each_call_a_task_of_its_own() -> None:
    told: list[tuple[str, Asked | None]] = []

    class Ear(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            told.append(
                (task_of(request.runtime).task, Conversation(request.state["messages"]).asked(request.tool_call["id"]))
            )
            return handler(request)

    calls = [{"name": "pay", "args": {"what": "x"}, "id": id, "type": "tool_call"} for id in ("a", "b")]
    answers = iter([AIMessage("", tool_calls=calls, id="asks"), AIMessage("done")])
    with milepost.connect("memory:") as saver:
        agent: Graph = create_agent(TwoCalls(messages=answers), [pay], checkpointer=saver, middleware=[Ear()])
        agent.invoke({"messages": [HumanMessage("go", id="h")]}, identity.ONE)
    assert [asked for _, asked in told] == [Asked("asks", 1, 1, 2, "h")] * 2
    assert len({task for task, _ in told}) == 2


def test_a_call_without_a_thread_has_no_identity() -> None:
    with pytest.raises(InvalidConfig, match="thread_id"):
        _with_one_tool(pay, Seen(), None).invoke({"messages": []})
