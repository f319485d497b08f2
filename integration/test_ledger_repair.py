"""Repair in graphs: a run ends between the record of a call and LangGraph's own, and the thread goes on with new input."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any, NotRequired, cast

import milepost
import pytest
from driving import Flavour, Graph, graph_of, place, thread
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command
from milepost.errors import InvalidConfig
from milepost.graphs import exclusive
from milepost.ledger import Repair
from milepost.saver import Saver
from milepost.tools import Ledger, applied, fan_out, readonly, unsafe
from typing_extensions import TypedDict

pytestmark = pytest.mark.filterwarnings("ignore:.*DeltaChannel.*beta")

ONE = thread("one")
GO = {"messages": [HumanMessage("go", id="h")]}


class State(MessagesState):
    note: str


class Ended(Exception):
    """The process ends here."""


@pytest.fixture
def memory() -> Iterator[Saver]:
    with milepost.connect("memory:") as saver:
        yield saver


@tool(response_format="content_and_artifact")
def pay(order: str) -> tuple[str, Any]:
    """Pay."""
    return f"paid {order}", {"receipt": 7}


@tool
def note(order: str, id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Note."""
    return Command(update={"note": order, "messages": [ToolMessage(f"noted {order}", tool_call_id=id)]})


@tool
def both(order: str, id: Annotated[str, InjectedToolCallId]) -> list[Any]:
    """Note, in a list."""
    return [Command(update={"note": order}), ToolMessage(f"noted {order}", tool_call_id=id)]


@tool
def leave(order: str, id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Say where the run goes on."""
    return Command(update={"messages": [ToolMessage(f"left {order}", tool_call_id=id)]}, goto="elsewhere")


@tool
def look(order: str) -> str:
    """Look."""
    return f"looked {order}"


@tool
def lose(order: str) -> str:
    """Nobody knows what came of it."""
    raise TimeoutError(order)


def asks(*names: str) -> AIMessage:
    calls = [{"name": name, "args": {"order": name}, "id": f"call of {name}"} for name in names]
    return AIMessage("", id="asks", tool_calls=calls)


TOOLS: Sequence[BaseTool] = (pay, note, both, leave, look, lose)


def ending(
    saver: Saver, ledger: Ledger, turn: AIMessage, after: str, *, fan: bool = True, schema: Any = State
) -> Graph:
    """A graph whose run ends when a call of the tool `after` is recorded, and LangGraph does not know of it."""

    def sync(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        answer = ledger.wrap_tool_call(request, execute)
        if request.tool_call["name"] == after:
            raise Ended
        return answer

    async def asynchronous(request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        answer = await ledger.awrap_tool_call(request, execute)
        if request.tool_call["name"] == after:
            raise Ended
        return answer

    def think(state: Any) -> dict[str, Any]:
        said = any(isinstance(one, AIMessage) for one in state["messages"])
        return {"messages": [AIMessage("done", id="end") if said else turn]}

    builder = graph_of(schema)
    builder.add_node("model", think)
    builder.add_node("tools", ToolNode(TOOLS, wrap_tool_call=sync, awrap_tool_call=asynchronous))
    builder.add_node("elsewhere", lambda _: {"note": "been elsewhere"})
    builder.add_edge(START, "model")
    route = fan_out("tools") if fan else lambda state: "tools" if state["messages"][-1].tool_calls else END
    builder.add_conditional_edges("model", route, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def of(saver: Saver) -> Ledger:
    return Ledger(saver, {"look": readonly, "lose": unsafe(max_duration=0)}, skew=0)


async def repaired(flavour: Flavour, ledger: Ledger, **how: Any) -> Repair:
    if flavour.name == "blocking":
        return await asyncio.to_thread(lambda: ledger.repair("one", **how))
    return await ledger.arepair("one", **how)


async def ended(saver: Saver, flavour: Flavour, *names: str, after: str = "", fan: bool = True) -> tuple[Graph, Ledger]:
    """A run that ends after the last of these calls, or after that of the tool `after`; one call after the other."""
    ledger = of(saver)
    graph = ending(saver, ledger, asks(*names), after or names[-1], fan=fan)
    with pytest.raises(Ended):
        await flavour.invoke(graph, GO, {**ONE, "max_concurrency": 1}, durability="sync")
    return graph, ledger


async def test_a_message_comes_back_as_it_was(memory: Saver, flavour: Flavour) -> None:
    graph, ledger = await ended(memory, flavour, "pay")
    (added,) = (await repaired(flavour, ledger)).added
    state = await flavour.state(graph, ONE)
    assert state.values["messages"][-1] == added
    assert (added.content, added.artifact, added.name) == ("paid pay", {"receipt": 7}, "pay")
    state = await flavour.invoke(graph, {"messages": [HumanMessage("and?", id="h2")]}, ONE)
    assert [one.type for one in state["messages"]] == ["human", "ai", "tool", "human", "ai"]


async def test_a_thread_that_has_gone_on_gets_its_answer_behind_the_call(memory: Saver, flavour: Flavour) -> None:
    graph, ledger = await ended(memory, flavour, "pay")
    await flavour.invoke(graph, {"messages": [HumanMessage("and?", id="h2")]}, ONE)
    await repaired(flavour, ledger)
    state = await flavour.state(graph, ONE)
    assert [one.type for one in state.values["messages"]] == ["human", "ai", "tool", "human", "ai"]
    assert state.next == ()


@pytest.mark.parametrize("name", ["note", "both"])
@pytest.mark.parametrize("fan", [True, False])
async def test_a_command_is_applied_by_the_graph(memory: Saver, flavour: Flavour, name: str, fan: bool) -> None:
    graph, ledger = await ended(memory, flavour, name, fan=fan)
    (left,) = (await repaired(flavour, ledger)).left
    assert "graph=" in left.reason
    driven = exclusive(graph, memory)
    repair = await repaired(flavour, ledger, graph=driven)
    assert ([one.content for one in repair.added], repair.left) == ([f"noted {name}"], ())
    state = await flavour.state(graph, ONE)
    assert (state.values["note"], state.next) == (name, ("model",))
    assert [one.content for one in state.values["messages"][2:]] == [f"noted {name}"]
    assert (await repaired(flavour, ledger, graph=driven)).added == ()


async def test_a_command_says_where_the_run_goes_on(memory: Saver, flavour: Flavour) -> None:
    graph, ledger = await ended(memory, flavour, "leave")
    repair = await repaired(flavour, ledger, graph=graph)
    assert [one.content for one in repair.added] == ["left leave"]
    assert set((await flavour.state(graph, ONE)).next) == {"elsewhere", "model"}
    assert (await flavour.invoke(graph, None, ONE))["note"] == "been elsewhere"


async def test_what_ended_beside_a_command_is_applied_with_it(memory: Saver, flavour: Flavour) -> None:
    graph, ledger = await ended(memory, flavour, "look", "pay", "note")
    repair = await repaired(flavour, ledger, graph=graph)
    assert [one.content for one in repair.added] == ["looked look", "paid pay", "noted note"]
    assert repair.left == ()
    state = await flavour.state(graph, ONE)
    assert [one.content for one in state.values["messages"][2:]] == ["looked look", "paid pay", "noted note"]
    assert (state.values["note"], state.next) == ("note", ("model",))


async def test_a_command_waits_for_the_calls_beside_it(memory: Saver, flavour: Flavour) -> None:
    graph, ledger = await ended(memory, flavour, "lose", "note")
    before = await flavour.state(graph, ONE)
    repair = await repaired(flavour, ledger, graph=graph)
    assert repair.added == ()
    assert [one.call for one in repair.left] == ["call of lose", "call of note"]
    assert (await flavour.state(graph, ONE)).config == before.config, "nothing is written"
    ledger.resolve(ledger.pending("one")[0].key, applied("found"), by="ann")
    repair = await repaired(flavour, ledger, graph=graph)
    assert [one.content for one in repair.added] == ["found", "noted note"]


async def test_two_values_for_a_channel_that_takes_one(memory: Saver, flavour: Flavour) -> None:
    graph, ledger = await ended(memory, flavour, "note", "both")
    before = await flavour.state(graph, ONE)
    repair = await repaired(flavour, ledger, graph=graph)
    assert repair.added == ()
    assert all("refuses" in one.reason for one in repair.left)
    assert (await flavour.state(graph, ONE)).config == before.config, "nothing is written"


async def test_a_command_of_a_thread_that_has_gone_on_is_left(memory: Saver, flavour: Flavour) -> None:
    graph, ledger = await ended(memory, flavour, "note")
    await flavour.invoke(graph, {"messages": [HumanMessage("and?", id="h2")]}, ONE)
    repair = await repaired(flavour, ledger, graph=graph)
    assert repair.added == ()
    (left,) = repair.left
    assert "gone on" in left.reason
    assert left.record is not None
    assert left.record.result.update["note"] == "note"


async def test_a_node_that_has_to_be_named(memory: Saver, flavour: Flavour) -> None:
    graph, ledger = await ended(memory, flavour, "note")
    await flavour.update(graph, ONE, None, END)
    (left,) = (await repaired(flavour, ledger, graph=graph)).left
    assert "as_node" in left.reason
    repair = await repaired(flavour, ledger, graph=graph, as_node="tools")
    assert [one.content for one in repair.added] == ["noted note"]


async def test_a_graph_over_another_store(memory: Saver) -> None:
    ledger = of(memory)
    with milepost.connect("memory:") as other, pytest.raises(InvalidConfig, match="checkpointer"):
        ledger.repair("one", graph=ending(other, ledger, asks("pay"), ""))


# Agents and subgraphs.


class Turns(GenericFakeChatModel):
    """Says one message after the other, and can be told of tools."""

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return self


def agent(*turns: AIMessage, **more: Any) -> Graph:
    return create_agent(Turns(messages=iter(turns)), **more)


def cut_short(ledger: Ledger, turn: AIMessage, *, kept: bool | None) -> Graph:
    """An agent whose run ends when its call is recorded."""

    class Ending(AgentMiddleware[Any, Any, Any]):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            handler(request)
            raise Ended

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            await handler(request)
            raise Ended

    middleware = [Ending(), ledger.middleware()]
    return agent(
        turn, AIMessage("done"), tools=[pay, note], middleware=middleware, checkpointer=kept, state_schema=Noted
    )


class Noted(AgentState[Any]):
    note: NotRequired[str]


@pytest.mark.parametrize("kept", [None, True])
async def test_an_agent_that_a_tool_calls_is_repaired(memory: Saver, flavour: Flavour, kept: bool | None) -> None:
    ledger = Ledger(memory, {"ask": readonly})
    inner = cut_short(ledger, asks("pay"), kept=kept)

    @tool
    async def ask(order: str) -> str:
        """Ask an agent."""
        state = await inner.ainvoke({"messages": [HumanMessage(order)]})
        return str(state["messages"][-1].content)

    @tool("ask")
    def ask_blocking(order: str) -> str:
        """Ask an agent."""
        return str(inner.invoke({"messages": [HumanMessage(order)]})["messages"][-1].content)

    tools = [ask if flavour.name == "async" else ask_blocking]
    outer = agent(asks("ask"), AIMessage("done"), tools=tools, checkpointer=memory, middleware=[ledger.middleware()])
    with pytest.raises(Ended):
        await flavour.invoke(outer, GO, ONE)
    repair = await repaired(flavour, ledger, graph=outer)
    assert [one.content for one in repair.added] == ["paid pay"]
    assert [(one.namespace, one.call) for one in repair.left] == [("", "call of ask")]
    (found,) = [
        one
        for one in await flavour.tuples(memory, ONE)
        if any(isinstance(message, ToolMessage) for message in one.checkpoint["channel_values"].get("messages", []))
    ]
    assert place(found.config)["checkpoint_ns"].startswith("tools")
    assert found.checkpoint["channel_values"]["messages"][-1].artifact == {"receipt": 7}


async def test_a_command_in_an_agent_that_is_a_node(memory: Saver, flavour: Flavour) -> None:
    ledger = Ledger(memory)
    builder = graph_of(State)
    builder.add_node("agent", cut_short(ledger, asks("note"), kept=True))
    builder.add_edge(START, "agent")
    graph = builder.compile(checkpointer=memory)
    with pytest.raises(Ended):
        await flavour.invoke(graph, GO, ONE)
    (left,) = (await repaired(flavour, ledger)).left
    assert left.namespace.startswith("agent")
    repair = await repaired(flavour, ledger, graph=graph)
    assert [one.content for one in repair.added] == ["noted note"]
    state = await flavour.state(graph, {"configurable": {"thread_id": "one", "checkpoint_ns": "agent"}})
    assert state.values["note"] == "note"


async def test_a_command_in_an_agent_that_no_graph_knows_of(memory: Saver, flavour: Flavour) -> None:
    ledger = Ledger(memory, {"ask": readonly})
    inner = cut_short(ledger, asks("note"), kept=None)

    @tool
    async def ask(order: str) -> str:
        """Ask an agent."""
        await inner.ainvoke({"messages": [HumanMessage(order)]})
        return "done"

    @tool("ask")
    def ask_blocking(order: str) -> str:
        """Ask an agent."""
        inner.invoke({"messages": [HumanMessage(order)]})
        return "done"

    tools = [ask if flavour.name == "async" else ask_blocking]
    outer = agent(asks("ask"), AIMessage("done"), tools=tools, checkpointer=memory, middleware=[ledger.middleware()])
    with pytest.raises(Ended):
        await flavour.invoke(outer, GO, ONE)
    repair = await repaired(flavour, ledger, graph=outer)
    assert repair.added == ()
    assert {one.call for one in repair.left} == {"call of ask", "call of note"}


# Messages that are stored as changes.


def _fold(messages: list[Any], writes: Sequence[Any]) -> list[Any]:
    for write in writes:
        messages = cast("list[Any]", add_messages(messages, write))
    return messages


class Changes(TypedDict):
    messages: Annotated[list[Any], DeltaChannel(_fold)]
    note: str


async def test_messages_that_are_stored_as_changes(memory: Saver, flavour: Flavour) -> None:
    ledger = of(memory)
    graph = ending(memory, ledger, asks("look", "pay"), "pay", schema=Changes)
    with pytest.raises(Ended):
        await flavour.invoke(graph, GO, {**ONE, "max_concurrency": 1}, durability="sync")
    with pytest.raises(InvalidConfig, match="graph="):
        await repaired(flavour, ledger)
    repair = await repaired(flavour, ledger, graph=graph)
    assert [one.content for one in repair.added] == ["paid pay"]
    state = await flavour.state(graph, ONE)
    assert [one.content for one in state.values["messages"][2:]] == ["looked look", "paid pay"]
