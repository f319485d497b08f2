"""What a ToolNode under a ledger tells the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import milepost
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.errors import GraphBubbleUp, GraphDrained
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command
from milepost.saver import Saver
from milepost.tools import Ledger, current_call, fan_out, idempotent, keyed, not_applied, unsafe

CONFIG: RunnableConfig = {"configurable": {"thread_id": "one"}}
GO: Any = {"messages": [HumanMessage("go", id="h")]}


class Place(NamedTuple):
    """A value of a class that no list can be made into."""

    x: int
    y: int


class State(MessagesState):
    place: Any


@pytest.fixture
def saver() -> Iterator[Saver]:
    with milepost.connect("memory:") as saver:
        yield saver


def graph_over(saver: Saver, ledger: Ledger, one: BaseTool, turns: Sequence[AIMessage], *, handle: Any = False) -> Any:
    """A model that says `turns`, then "done", and a ToolNode."""

    def think(state: State) -> dict[str, Any]:
        said = sum(isinstance(message, AIMessage) for message in state["messages"])
        return {"messages": [turns[said] if said < len(turns) else AIMessage("done")]}

    wraps: Any = {"wrap_tool_call": ledger.wrap_tool_call, "awrap_tool_call": ledger.awrap_tool_call}
    builder: Any = StateGraph(State)
    builder.add_node("model", think)
    builder.add_node("tools", ToolNode([one], handle_tool_errors=handle, **wraps))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", fan_out("tools"), ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def asks(one: BaseTool, id: str = "m1", **arguments: Any) -> AIMessage:
    call: Any = {"name": one.name, "args": arguments, "id": f"call of {id}", "type": "tool_call"}
    return AIMessage("", tool_calls=[call], id=id)


async def invoke(graph: Any, blocking: bool, given: Any = GO) -> Any:
    return graph.invoke(given, CONFIG) if blocking else await graph.ainvoke(given, CONFIG)


def answers(state: Any) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def _down(_record: Any) -> Any:
    raise TimeoutError("the provider is down for reads too")


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize(
    ("policy", "pauses"),
    [
        (unsafe(max_duration=0, reconcile=_down), True),
        (unsafe(max_duration=0, reconcile=lambda _: True), True),
        (keyed(window="24h", reconcile=lambda _: not_applied()), False),
        (idempotent(), False),
    ],
)
async def test_the_model_is_never_asked_to_mend_what_may_have_been_done(
    saver: Saver, blocking: bool, policy: Any, pauses: bool
) -> None:
    @tool
    def pay() -> str:
        """Pay."""
        raise TimeoutError("no answer")

    graph = graph_over(saver, Ledger(saver, {"pay": policy}, skew=0), pay, [asks(pay)], handle=True)
    state = await invoke(graph, blocking)
    if pauses:
        assert "reconcile" in state["__interrupt__"][0].value["why"]
    else:
        assert "Do not repeat it" in answers(state)[0].text


@pytest.mark.parametrize("blocking", [True, False])
async def test_what_is_known_not_to_have_been_done_is_the_models_to_mend(saver: Saver, blocking: bool) -> None:
    @tool
    def pay() -> str:
        """Pay."""
        raise TimeoutError("no answer")

    policy = unsafe(max_duration=0, reconcile=lambda _: not_applied())
    graph = graph_over(saver, Ledger(saver, {"pay": policy}, skew=0), pay, [asks(pay)], handle=True)
    assert "fix your mistakes" in answers(await invoke(graph, blocking))[0].text


@pytest.mark.parametrize("blocking", [True, False])
async def test_results_of_any_class_pass(saver: Saver, blocking: bool) -> None:
    places: list[Any] = []

    @tool
    def move(id: Annotated[str, InjectedToolCallId]) -> Any:
        """Move."""
        places.append(current_call().attempt)
        return Command(update={"place": Place(1, 2), "messages": [ToolMessage("moved", tool_call_id=id)]})

    graph = graph_over(saver, Ledger(saver), move, [asks(move)])
    state = await invoke(graph, blocking)
    assert (state["place"], answers(state)[0].text, places) == (Place(1, 2), "moved", [0])


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("where", ["node", "step"])
async def test_a_verdict_by_resumption_reaches_every_call(saver: Saver, blocking: bool, where: str) -> None:
    ran: list[int] = []
    ledger = Ledger(saver, default=unsafe(max_duration=0), skew=0)

    def charge(amount: int) -> str:
        ran.append(amount)
        raise TimeoutError("no answer")

    @tool
    def pay() -> str:
        """Pay."""
        return str(current_call().once("charge", charge, 5))

    def node(_: State) -> dict[str, Any]:
        return {"messages": [AIMessage(ledger.once("charge", charge, 5))]}

    if where == "step":
        graph = graph_over(saver, ledger, pay, [asks(pay)])
    else:
        builder: Any = StateGraph(State)
        builder.add_node("node", node)
        graph = builder.add_edge(START, "node").compile(checkpointer=saver)
    (question,) = (await invoke(graph, blocking))["__interrupt__"]
    answer = {question.id: {"verdict": "applied", "result": "paid", "by": "ann"}}
    state = await invoke(graph, blocking, Command(resume=answer))
    assert "paid" in [message.text for message in state["messages"]]
    assert ran == [5]
    assert "ann" in [entry.by for record in ledger.calls("one") for entry in record.trail]


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("thread", [17, 0, UUID(int=1)], ids=repr)
async def test_a_thread_may_have_an_id_that_is_no_text(saver: Saver, blocking: bool, thread: Any) -> None:
    ledger = Ledger(saver, barrier_timeout=5)

    @tool
    def pay() -> str:
        """Pay."""
        return str(ledger.once("apart", str, 5, thread_id=thread)) + str(ledger.once("beside", str, 6))

    graph = graph_over(saver, ledger, pay, [asks(pay)])
    config: RunnableConfig = {"configurable": {"thread_id": thread}}
    state = graph.invoke(GO, config) if blocking else await graph.ainvoke(GO, config)
    assert answers(state)[0].text == "56"
    records = ledger.calls(str(thread))
    assert [record.state for record in records] == ["succeeded"] * 3
    assert len({record.info.checkpoints for record in records}) == 1
    again = graph_over(saver, Ledger(saver), pay, [asks(pay)])
    assert again.get_state({"configurable": {"thread_id": str(thread)}}).values == state


class Bubble(GraphBubbleUp):
    """An application's own."""


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("handle", [True, False])
@pytest.mark.parametrize(("error", "runs"), [(GraphBubbleUp(), 1), (Bubble("up"), 1), (GraphDrained(), 2)], ids=repr)
async def test_only_what_is_known_to_go_on_later_is_begun_anew(
    saver: Saver, blocking: bool, handle: bool, error: Exception, runs: int
) -> None:
    ran: list[int] = []

    @tool
    def pay() -> str:
        """Pay."""
        ran.append(current_call().attempt)
        raise error

    ledger = Ledger(saver, {"pay": unsafe(max_duration=0)}, skew=0)
    graph = graph_over(saver, ledger, pay, [asks(pay)], handle=handle)
    with pytest.raises(GraphDrained) if runs > 1 else nullcontext():
        await invoke(graph, blocking)
    with pytest.raises(GraphDrained) if runs > 1 else nullcontext():
        state = await invoke(graph, blocking, None)
        assert state["__interrupt__"][0].value["kind"] == "CallInDoubt"
    (record,) = ledger.calls("one")
    assert (len(ran), record.state) == (runs, "suspended" if runs > 1 else "in_doubt")


@tool
def other() -> str:
    """What is left of the tools."""
    raise NotImplementedError


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("policy", [unsafe(max_duration=0), keyed(window="24h", max_duration=0)])
async def test_a_call_whose_tool_is_gone_still_waits_for_a_verdict(saver: Saver, blocking: bool, policy: Any) -> None:
    @tool
    def pay(amount: int = 5) -> str:
        """Pay."""
        raise TimeoutError(f"no answer about {amount}")

    ledger = Ledger(saver, {"pay": policy}, skew=0)
    with suppress(TimeoutError):
        await invoke(graph_over(saver, ledger, pay, [asks(pay)]), blocking)
    graph = graph_over(saver, ledger, other, [asks(pay)])
    await invoke(graph, blocking, None)
    (question,) = (await invoke(graph, blocking, None))["__interrupt__"]
    assert question.value["kind"] == "CallInDoubt"
    state = await invoke(
        graph, blocking, Command(resume={question.id: {"verdict": "applied", "result": "it was paid"}})
    )
    assert answers(state)[0].text == "it was paid"
    assert [record.state for record in ledger.calls("one")] == ["succeeded"]


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_call_whose_tool_is_gone_is_answered_from_its_record(saver: Saver, blocking: bool) -> None:
    @tool
    def pay(amount: int = 5) -> str:
        """Pay."""
        return f"paid {amount}"

    ledger = Ledger(saver)
    graph = graph_over(saver, ledger, pay, [asks(pay)])
    await invoke(graph, blocking)
    before = next(state.config for state in graph.get_state_history(CONFIG) if "tools" in state.next)
    gone = graph_over(saver, ledger, other, [asks(pay)])
    state = gone.invoke(None, before) if blocking else await gone.ainvoke(None, before)
    assert answers(state)[0].text == "paid 5"


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("amount", [5, float("nan")])
async def test_a_tool_that_never_was_is_told_by_the_node(saver: Saver, blocking: bool, amount: Any) -> None:
    ledger = Ledger(saver)
    call: Any = {"name": "made up", "args": {"amount": amount}, "id": "c", "type": "tool_call"}
    state = await invoke(graph_over(saver, ledger, other, [AIMessage("", tool_calls=[call], id="m1")]), blocking)
    assert "not a valid tool" in answers(state)[0].text
    assert ledger.calls("one") == []
