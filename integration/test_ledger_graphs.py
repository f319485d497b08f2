"""The ledger in graphs: a ToolNode of one's own, agents, sub-agents, approvals, forks and failures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, cast

import ledger_ablations
import milepost
import pytest
from driving import Durability, Flavour, Graph, graph_of, place, thread
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, ModelCallLimitMiddleware, ToolRetryMiddleware
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, ToolException, tool
from langgraph.graph import END, START, MessagesState
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt
from milepost.errors import MilepostError, Unavailable
from milepost.ledger import CallRequest, Failed, Run, ToolPolicy
from milepost.saver import Saver
from milepost.store import Backend
from milepost.tools import (
    EPOCH,
    CallSuperseded,
    Ledger,
    Misplaced,
    NotDurable,
    SharedTask,
    SharedTaskWarning,
    applied,
    current_call,
    fan_out,
    idempotent,
    keyed,
    not_applied,
    readonly,
    unsafe,
)
from typing_extensions import TypedDict

ONE = thread("one")
GO = {"messages": [HumanMessage("go", id="h")]}


@pytest.fixture
def memory() -> Iterator[Saver]:
    with milepost.connect("memory:") as saver:
        yield saver


class Effects:
    """What the outside world was asked for."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.keys: list[str] = []
        self.broken: dict[str, Exception] = {}
        """Order -> what the next call raises, after the effect."""

    def __call__(self, order: str) -> str:
        self.seen.append(order)
        self.keys.append(current_call().key)
        if order in self.broken:
            raise self.broken.pop(order)
        return f"charged {order}"

    def tool(self) -> BaseTool:
        @tool
        def charge(order: str) -> str:
            """Charge a card."""
            return self(order)

        return charge


def calls(*orders: str, name: str = "charge", ids: Sequence[str] = ()) -> list[Any]:
    return [
        {"name": name, "args": {"order": order}, "id": id, "type": "tool_call"}
        for order, id in zip(orders, ids or [f"{name}-{order}" for order in orders], strict=True)
    ]


def hand_built(
    saver: Saver,
    ledger: Ledger,
    tools: Sequence[BaseTool],
    turns: Sequence[AIMessage],
    *,
    shared: bool = False,
    handle: Any = False,
    retry: RetryPolicy | None = None,
) -> Graph:
    """A model that says `turns`, then "done", and a ToolNode."""

    def think(state: MessagesState) -> dict[str, Any]:
        said = sum(isinstance(one, AIMessage) for one in state["messages"])
        return {"messages": [turns[said] if said < len(turns) else AIMessage("done", id="end")]}

    def route(state: MessagesState) -> Any:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else END

    node = ToolNode(
        list(tools),
        handle_tool_errors=handle,
        wrap_tool_call=ledger.wrap_tool_call,
        awrap_tool_call=ledger.awrap_tool_call,
    )
    builder = graph_of(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", node, retry_policy=retry)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route if shared else fan_out("tools"), ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def asks(*orders: str, id: str = "asks", **more: Any) -> AIMessage:
    return AIMessage("", tool_calls=calls(*orders, **more), id=id)


def answers(state: Any) -> list[ToolMessage]:
    return [one for one in state["messages"] if isinstance(one, ToolMessage)]


def texts(state: Any) -> list[str]:
    return [str(one.content) for one in answers(state)]


def after_model(graph: Graph) -> Any:
    """The oldest checkpoint whose next tasks are the tools."""
    return [state.config for state in graph.get_state_history(ONE) if "tools" in state.next][-1]


# What is recorded is not performed again.


async def test_time_travel_reuses_what_was_performed(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"charge": unsafe})
    graph = hand_built(memory, ledger, [effects.tool()], [asks("a", "b"), asks("a", id="again", ids=["other"])])
    first = await flavour.invoke(graph, GO, ONE)
    assert texts(first) == ["charged a", "charged b", "charged a"]
    assert sorted(effects.seen) == ["a", "a", "b"], "the second charge of a was asked for on purpose"
    assert len(set(effects.keys)) == 3
    again = await flavour.invoke(graph, None, after_model(graph))
    assert texts(again) == texts(first)
    assert len(effects.seen) == 3
    assert [one.response_metadata["milepost"]["replay"] for one in answers(again)] == [True] * 3
    assert all("milepost" not in one.response_metadata for one in answers(first))


async def test_a_fork_by_update_state_reuses_what_was_performed(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    graph = hand_built(memory, Ledger(memory), [effects.tool()], [asks("a")])
    await flavour.invoke(graph, GO, ONE)
    fork = await flavour.update(graph, after_model(graph), {"messages": [asks("a")]}, "model")
    assert texts(await flavour.invoke(graph, None, fork)) == ["charged a"]
    assert effects.seen == ["a"]


async def test_another_epoch_is_performed_on_purpose(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    graph = hand_built(memory, Ledger(memory), [effects.tool()], [asks("a")])
    await flavour.invoke(graph, GO, ONE)
    chosen = place(after_model(graph))
    await flavour.invoke(graph, None, thread("one", checkpoint_id=chosen["checkpoint_id"], **{EPOCH: "2"}))
    assert effects.seen == ["a", "a"]
    assert len(set(effects.keys)) == 2


async def test_an_answer_that_is_in_the_state_is_kept(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory)
    node = ToolNode([effects.tool()], wrap_tool_call=ledger.wrap_tool_call, awrap_tool_call=ledger.awrap_tool_call)
    builder = graph_of(MessagesState)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    graph = builder.compile(checkpointer=memory)
    known = ToolMessage("refused by a person", tool_call_id="charge-a", id="t")
    end = await flavour.invoke(graph, {"messages": [asks("a", "b"), known]}, ONE)
    assert texts(end) == ["refused by a person", "charged b"]
    assert effects.seen == ["b"]


class Everything:
    """A tool for each form that a result can have."""

    def __init__(self) -> None:
        self.runs = 0

    def tools(self) -> list[BaseTool]:
        @tool(response_format="content_and_artifact")
        def artifact(order: str) -> tuple[str, dict[str, Any]]:
            """With an artifact."""
            self.runs += 1
            return f"see {order}", {"pages": (1, 2)}

        @tool
        def message(order: str, id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
            """A refusal of the API's."""
            self.runs += 1
            return ToolMessage(f"declined {order}", tool_call_id=id, status="error", name="message")

        @tool
        def command(order: str, id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
            """An update of the state."""
            self.runs += 1
            return Command(update={"messages": [ToolMessage(order, tool_call_id=id)], "log": [order]})

        @tool
        def both(order: str, id: Annotated[str, InjectedToolCallId]) -> list[Any]:
            """A list of a message and a command."""
            self.runs += 1
            return [ToolMessage(order, tool_call_id=id), Command(update={"log": ["both"]})]

        return [artifact, message, command, both]


def _bare(result: Any) -> Any:
    """A result without what the graph and the ledger have written into it."""
    if isinstance(result, ToolMessage):
        return result.model_copy(update={"id": None, "response_metadata": {}})
    if isinstance(result, Command):
        return "command", [(key, _bare(value)) for key, value in dict(result.update or {}).items()]
    return [_bare(one) for one in result] if isinstance(result, list) else result


async def test_results_keep_their_type(memory: Saver, flavour: Flavour) -> None:
    everything = Everything()
    ledger = Ledger(memory)
    seen: list[Any] = []

    def watched(request: Any, execute: Any) -> Any:
        seen.append(ledger.wrap_tool_call(request, execute))
        return seen[-1]

    async def awatched(request: Any, execute: Any) -> Any:
        seen.append(await ledger.awrap_tool_call(request, execute))
        return seen[-1]

    class State(MessagesState):
        log: list[str]

    for one in everything.tools():
        builder = graph_of(State)
        builder.add_node("tools", ToolNode([one], wrap_tool_call=watched, awrap_tool_call=awatched))
        builder.add_edge(START, "tools")
        graph, config = builder.compile(checkpointer=memory), thread(one.name)
        said = AIMessage("", tool_calls=calls("x", name=one.name), id="asks")
        await flavour.invoke(graph, {"messages": [said]}, config)
        start = [state.config for state in graph.get_state_history(config) if state.next == ("tools",)][-1]
        await flavour.invoke(graph, None, start)
        first, replay = seen[-2:]
        assert type(first) is type(replay)
        assert _bare(first) == _bare(replay)
    assert everything.runs == 4
    assert len(seen) == 8


# Unknown outcomes.


@pytest.mark.parametrize("by", ["resolve", "resume map"])
@pytest.mark.parametrize("verdict", ["applied", "not_applied"])
async def test_an_exception_leaves_a_call_to_a_person(memory: Saver, flavour: Flavour, by: str, verdict: str) -> None:
    effects = Effects()
    ledger = Ledger(memory)
    graph = hand_built(memory, ledger, [effects.tool()], [asks("a", "b")])
    effects.broken["a"] = TimeoutError("no answer")
    asked = await flavour.invoke(graph, GO, ONE)
    (question,) = asked["__interrupt__"]
    assert (question.value["tool"], question.value["arguments"]) == ("charge", {"order": "a"})
    assert "no answer" in question.value["why"]
    again = await flavour.invoke(graph, None, ONE)
    assert [one.id for one in again["__interrupt__"]] == [question.id], "it goes on asking, under the same id"
    if by == "resolve":
        (record,) = ledger.pending("one")
        assert record.key == question.value["key"]
        ledger.resolve(record.key, applied("charged by hand") if verdict == "applied" else not_applied(), by="ann")
        end = await flavour.invoke(graph, None, ONE)
    else:
        answer = {"verdict": verdict, "result": "charged by hand", "by": "ann"}
        end = await flavour.invoke(graph, Command(resume={question.id: answer}), ONE)
    if verdict == "applied":
        assert texts(end) == ["charged by hand", "charged b"]
        assert sorted(effects.seen) == ["a", "b"]
    else:
        assert texts(end) == ["charged a", "charged b"]
        assert sorted(effects.seen) == ["a", "a", "b"]
    record = next(one for one in ledger.calls("one") if one.arguments == {"order": "a"})
    assert "ann" in {entry.by for entry in record.trail}
    assert ledger.pending("one") == []


@pytest.mark.parametrize("verdict", [applied("found"), not_applied()])
async def test_reconcile_is_asked_before_a_person(memory: Saver, flavour: Flavour, verdict: Any) -> None:
    effects = Effects()
    asked: list[str] = []

    def reconcile(record: Any) -> Any:
        asked.append(record.downstream_key)
        return verdict

    policy = unsafe(reconcile=reconcile, max_duration=0.01)
    graph = hand_built(memory, Ledger(memory, {"charge": policy}, skew=0.0, lease=0.05), [effects.tool()], [asks("a")])
    effects.broken["a"] = TimeoutError("no answer")
    if verdict.kind == "applied":
        assert texts(await flavour.invoke(graph, GO, ONE)) == ["found"]
    else:
        with pytest.raises(TimeoutError):
            await flavour.invoke(graph, GO, ONE)
        assert texts(await flavour.invoke(graph, None, ONE)) == ["charged a"]
    assert asked == effects.keys[:1]
    assert len(effects.seen) == 1 + (verdict.kind == "not_applied")


async def test_a_tool_with_a_key_is_retried_with_the_same_key(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"charge": keyed(window="24h")})
    retry = RetryPolicy(initial_interval=0.001, retry_on=TimeoutError)
    graph = hand_built(memory, ledger, [effects.tool()], [asks("a")], retry=retry)
    effects.broken["a"] = TimeoutError("no answer")
    assert texts(await flavour.invoke(graph, GO, ONE)) == ["charged a"]
    assert len(effects.keys) == 2
    assert len(set(effects.keys)) == 1
    (record,) = ledger.calls("one")
    assert (record.state, record.attempt) == ("succeeded", 1)


async def test_a_retry_policy_does_not_repeat_what_is_unsafe(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    retry = RetryPolicy(initial_interval=0.001, max_attempts=5, retry_on=Exception)
    graph = hand_built(memory, Ledger(memory), [effects.tool()], [asks("a")], retry=retry)
    effects.broken["a"] = TimeoutError("no answer")
    assert (await flavour.invoke(graph, GO, ONE))["__interrupt__"]
    assert effects.seen == ["a"]


@pytest.mark.parametrize("policy", [keyed(window="24h"), idempotent()], ids=["keyed", "idempotent"])
async def test_the_model_reads_that_the_outcome_is_unknown(memory: Saver, flavour: Flavour, policy: Any) -> None:
    effects = Effects()
    graph = hand_built(memory, Ledger(memory, {"charge": policy}), [effects.tool()], [asks("a")], handle=True)
    effects.broken["a"] = TimeoutError("no answer")
    (answer,) = answers(await flavour.invoke(graph, GO, ONE))
    assert answer.status == "error"
    assert "outcome of this call is unknown" in answer.text
    assert "Do not repeat it" in answer.text


async def test_a_pause_passes_through_a_tool_node_that_handles_errors(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    graph = hand_built(memory, Ledger(memory), [effects.tool()], [asks("a")], handle=True)
    effects.broken["a"] = TimeoutError("no answer")
    end = await flavour.invoke(graph, GO, ONE)
    assert answers(end) == []
    assert end["__interrupt__"]


async def test_what_was_not_applied_is_told_as_ever_and_may_be_tried_again(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"charge": unsafe(not_applied=(ConnectionRefusedError,))})
    turns = [asks("a"), asks("a", id="again")]
    graph = hand_built(memory, ledger, [effects.tool()], turns, handle="it failed")
    effects.broken["a"] = ConnectionRefusedError("nobody there")
    assert texts(await flavour.invoke(graph, GO, ONE)) == ["it failed", "charged a"]
    assert [one.state for one in ledger.calls("one")] == ["failed", "succeeded"]


async def test_arguments_that_are_refused_never_reach_the_tool(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory)
    wrong: Any = {"name": "charge", "args": {"cents": 3}, "id": "w", "type": "tool_call"}
    turns = [AIMessage("", tool_calls=[wrong], id="wrong"), asks("a")]
    graph = hand_built(memory, ledger, [effects.tool()], turns, handle=True)
    first, second = texts(await flavour.invoke(graph, GO, ONE))
    assert "order" in first
    assert second == "charged a"
    assert [one.state for one in ledger.calls("one")] == ["failed", "succeeded"]


async def test_an_exception_that_a_tool_handles_itself_counts_as_one(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    one = effects.tool()
    one.handle_tool_error = True
    graph = hand_built(memory, Ledger(memory), [one], [asks("a")])
    effects.broken["a"] = ToolException("declined?")
    assert (await flavour.invoke(graph, GO, ONE))["__interrupt__"]
    declared = Ledger(memory, {"charge": unsafe(not_applied=(ToolException,))})
    graph = hand_built(memory, declared, [one], [asks("a")])
    effects.broken["a"] = ToolException("declined")
    assert texts(await flavour.invoke(graph, GO, thread("two"))) == ["declined"]


async def test_a_cancelled_call_is_in_doubt(memory: Saver) -> None:
    begun = asyncio.Event()
    runs: list[str] = []

    @tool
    async def charge(order: str) -> str:
        """Charge a card, slowly."""
        runs.append(order)
        begun.set()
        await asyncio.sleep(3600 if len(runs) == 1 else 0)
        return f"charged {order}"

    ledger = Ledger(memory, {"charge": unsafe(max_duration=0)}, lease=0, skew=0)
    graph = hand_built(memory, ledger, [charge], [asks("a")])
    running = asyncio.create_task(graph.ainvoke(GO, ONE))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [one.state for one in ledger.pending("one")] == ["in_doubt"]
    (question,) = (await graph.ainvoke(None, ONE))["__interrupt__"]
    assert runs == ["a"]
    end = await graph.ainvoke(Command(resume={question.id: "not_applied"}), ONE)
    assert texts(end) == ["charged a"]
    assert runs == ["a", "a"]


# Interrupts.


def approved(effects: Effects) -> BaseTool:
    @tool
    def charge(order: str) -> str:
        """Charge a card, if somebody agrees."""
        if interrupt({"charge": order}) != "yes":
            return f"refused {order}"
        return effects(order)

    return charge


async def test_a_tool_may_ask_and_is_performed_once_it_is_answered(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory)
    graph = hand_built(memory, ledger, [approved(effects)], [asks("a", "b")])
    asked = await flavour.invoke(graph, GO, ONE)
    assert effects.seen == []
    assert {one.state for one in ledger.calls("one")} == {"suspended"}
    resume = {one.id: "yes" if one.value == {"charge": "b"} else "no" for one in asked["__interrupt__"]}
    assert texts(await flavour.invoke(graph, Command(resume=resume), ONE)) == ["refused a", "charged b"]
    assert effects.seen == ["b"]


async def test_an_approval_is_no_verdict(memory: Saver, flavour: Flavour) -> None:
    """The person said yes before; whether the effect took place is another question."""
    effects = Effects()
    graph = hand_built(memory, Ledger(memory), [approved(effects)], [asks("a")])
    await flavour.invoke(graph, GO, ONE)
    effects.broken["a"] = TimeoutError("no answer")
    asked = await flavour.invoke(graph, Command(resume="yes"), ONE)
    (question,) = asked["__interrupt__"]
    assert question.value["kind"] == "CallInDoubt"
    again = await flavour.invoke(graph, Command(resume="yes"), ONE)
    assert [one.id for one in again["__interrupt__"]] == [question.id]
    end = await flavour.invoke(graph, Command(resume={question.id: "applied"}), ONE)
    assert effects.seen == ["a"]
    (answer,) = answers(end)
    assert "was performed" in answer.text


async def test_an_answer_that_is_no_verdict_stops_the_run(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    graph = hand_built(memory, Ledger(memory), [effects.tool()], [asks("a")], handle=True)
    effects.broken["a"] = TimeoutError("no answer")
    (question,) = (await flavour.invoke(graph, GO, ONE))["__interrupt__"]
    with pytest.raises(MilepostError, match="no verdict"):
        await flavour.invoke(graph, Command(resume={question.id: "perhaps"}), ONE)
    assert effects.seen == ["a"]


async def test_calls_that_share_a_task_are_warned_of_and_still_performed_once(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory)
    graph = hand_built(memory, ledger, [effects.tool()], [asks("a", "b")], shared=True)
    effects.broken["b"] = TimeoutError("no answer")
    with pytest.warns(SharedTaskWarning, match="fan_out"):
        (question,) = (await flavour.invoke(graph, GO, ONE))["__interrupt__"]
    end = await flavour.invoke(graph, Command(resume={question.id: "not_applied"}), ONE)
    assert texts(end) == ["charged a", "charged b"]
    assert sorted(effects.seen) == ["a", "b", "b"]


async def test_two_interrupting_calls_in_one_task_are_an_error(memory: Saver, flavour: Flavour) -> None:
    """Else the answer to the first question is taken for that to the second."""
    effects = Effects()
    graph = hand_built(memory, Ledger(memory), [approved(effects)], [asks("a", "b")], shared=True, handle=True)

    async def left_behind() -> None:
        """A run ends with the first question that it hears of, and leaves what asks the other one at work."""
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}), return_exceptions=True)

    with pytest.warns(SharedTaskWarning):
        await flavour.invoke(graph, GO, ONE)
    await left_behind()

    async def go_on() -> None:
        """Where the second call is cancelled before its question is heard, it is in doubt, and the first goes on."""
        for _ in range(5):
            questions = (await flavour.state(graph, ONE)).interrupts
            verdicts = {one.id: "not_applied" for one in questions if one.value.get("kind") == "CallInDoubt"}
            await flavour.invoke(graph, Command(resume=verdicts or "yes"), ONE)
            await left_behind()

    with pytest.raises(SharedTask, match="fan_out"):
        await go_on()
    await left_behind()
    assert "b" not in effects.seen
    # The way out that the error names.
    by_hand = [ToolMessage("by hand", tool_call_id=call["id"]) for call in calls("a", "b")]
    config = await flavour.update(graph, ONE, {"messages": by_hand}, "tools")
    end = await flavour.invoke(graph, None, config)
    assert texts(end) == ["by hand", "by hand"]
    assert end["messages"][-1].text == "done"


# Durability.


async def test_effects_that_nothing_remembers_are_refused(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    graph = hand_built(memory, Ledger(memory), [effects.tool()], [asks("a")], handle=True)
    with pytest.raises(NotDurable, match="exit"):
        await flavour.invoke(graph, GO, ONE, durability="exit")
    assert effects.seen == []


async def test_a_key_of_ones_own_serves_without_checkpoints(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"charge": unsafe(key=lambda arguments: f"order {arguments['order']}")})
    for number in range(2):
        turns = [asks("a", id=f"asks {number}", ids=[f"call {number}"])]
        graph = hand_built(memory, ledger, [effects.tool()], turns)
        end = await flavour.invoke(graph, GO, thread("own"), durability="exit")
        assert texts(end)[-1] == "charged a"
        memory.delete_thread("another")
    assert effects.seen == ["a"]


async def test_a_call_whose_checkpoint_does_not_become_durable_pauses_the_run(flavour: Flavour) -> None:
    effects = Effects()
    with milepost.connect("memory:") as opened:
        gate = threading.Event()

        async def held(put: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            # LangGraph puts from a thread, or a task.
            assert gate.wait(60) if flavour.name == "blocking" else await asyncio.to_thread(gate.wait, 60)
            return await put(*arguments, **options)

        saver = Saver(cast("Backend", Tampered(opened.backend, "put", held)))
        graph = hand_built(saver, Opening(saver, gate), [effects.tool()], [asks("a")])
        paused = await flavour.invoke(graph, GO, ONE, durability="async")
        (question,) = paused["__interrupt__"]
        assert (question.value["kind"], question.value["choices"]) == ("BarrierTimeout", [])
        assert effects.seen == []
        assert texts(await flavour.invoke(graph, None, ONE)) == ["charged a"]
    assert effects.seen == ["a"]


class Opening(Ledger):
    """A ledger that does not wait for checkpoints, and lets them go when it has been asked for a call."""

    def __init__(self, saver: Saver, gate: threading.Event) -> None:
        super().__init__(saver, barrier_timeout=0)
        self._gate = gate

    def wrap_tool_call(self, request: Any, execute: Any) -> Any:
        try:
            return super().wrap_tool_call(request, execute)
        finally:
            self._gate.set()

    async def awrap_tool_call(self, request: Any, execute: Any) -> Any:
        try:
            return await super().awrap_tool_call(request, execute)
        finally:
            self._gate.set()


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_a_key_of_global_scope_is_performed_once_in_all_threads(
    memory: Saver, flavour: Flavour, mode: Durability
) -> None:
    effects = Effects()
    policy = unsafe(key=lambda arguments: f"order {arguments['order']}", scope="global")
    graph = hand_built(memory, Ledger(memory, {"charge": policy}), [effects.tool()], [asks("a")])
    for name in ("one", "two"):
        (answer,) = answers(await flavour.invoke(graph, GO, thread(name), durability=mode))
        assert (answer.text, answer.tool_call_id) == ("charged a", "charge-a")
    assert effects.seen == ["a"]


# Agents.


class Says(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def agent(saver: Saver, tools: Sequence[BaseTool], turns: Sequence[AIMessage], middleware: Sequence[Any]) -> Graph:
    model = Says(messages=iter([*turns, AIMessage("done", id="end")]))
    made: Graph = create_agent(model, list(tools), middleware=list(middleware), checkpointer=saver)
    return made


async def test_a_retrying_middleware_repeats_only_what_was_not_applied(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"charge": unsafe(not_applied=(ConnectionRefusedError,))})
    retrying = ToolRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)
    graph = agent(memory, [effects.tool()], [asks("a"), asks("b", id="more")], [retrying, ledger.middleware()])
    effects.broken = {"a": ConnectionRefusedError("nobody there"), "b": TimeoutError("no answer")}
    end = await flavour.invoke(graph, GO, ONE)
    assert texts(end) == ["charged a"]
    (question,) = end["__interrupt__"]
    assert question.value["arguments"] == {"order": "b"}
    assert effects.seen == ["a", "a", "b"]


def mended_key(error: KeyError) -> str:
    """For ``handle_tool_errors``: LangGraph calls it with exceptions of other classes too, if a wrapper raises them."""
    return f"That did not work: {error}"


@pytest.mark.parametrize("policy", [keyed(window="24h"), idempotent], ids=["keyed", "idempotent"])
@pytest.mark.parametrize("by", ["middleware", "tuple", "handler"])
async def test_a_model_that_is_told_to_try_again_asks_for_the_same_call(
    memory: Saver, flavour: Flavour, policy: ToolPolicy, by: str
) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"charge": policy}, lease=0.05)
    turns = [asks("a"), asks("a", id="again", ids=["other"]), asks("a", id="on purpose", ids=["third"])]
    effects.broken = {"a": TimeoutError("no answer")}
    if by == "middleware":
        giving_up = ToolRetryMiddleware(max_retries=0)
        graph = agent(memory, [effects.tool()], turns, [giving_up, ledger.middleware()])
    else:
        handle: Any = (KeyError,) if by == "tuple" else mended_key
        graph = hand_built(memory, ledger, [effects.tool()], turns, handle=handle)
    end = await flavour.invoke(graph, GO, ONE)
    assert [one.status for one in answers(end)] == ["error", "success", "success"]
    told = answers(end)[0].text
    assert "The outcome of this call is unknown" in told
    assert "Do not repeat it" in told
    assert "no answer" in told
    assert effects.seen == ["a", "a", "a"]
    first, again, on_purpose = effects.keys
    assert first == again != on_purpose
    assert [record.state for record in ledger.calls("one")] == ["succeeded"] * 2


@pytest.mark.parametrize("inner", [ToolRetryMiddleware(), HumanInTheLoopMiddleware({"charge": False})])
async def test_a_middleware_between_the_ledger_and_the_tool_is_refused(
    memory: Saver, flavour: Flavour, inner: Any
) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"charge": keyed(window="24h")})
    graph = agent(memory, [effects.tool()], [asks("a")], [ledger.middleware(), inner])
    with pytest.raises(Misplaced, match="Name it last"):
        await flavour.invoke(graph, GO, ONE)
    assert effects.seen == []
    assert ledger.calls("one") == []
    # What does not wrap tool calls may be anywhere.
    limit = ModelCallLimitMiddleware(run_limit=10)
    graph = agent(memory, [effects.tool()], [asks("a")], [inner, ledger.middleware(), limit])
    assert texts(await flavour.invoke(graph, GO, thread("two"))) == ["charged a"]


async def test_what_a_person_edited_is_what_is_recorded(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory)
    review = HumanInTheLoopMiddleware(interrupt_on={"charge": True})
    graph = agent(memory, [effects.tool()], [asks("a")], [review, ledger.middleware()])
    assert (await flavour.invoke(graph, GO, ONE))["__interrupt__"]
    edited = {"name": "charge", "args": {"order": "b"}}
    decision = {"decisions": [{"type": "edit", "edited_action": edited}]}
    (text,) = texts(await flavour.invoke(graph, Command(resume=decision), ONE))
    assert text.endswith("charged b")
    assert effects.seen == ["b"]
    assert [one.arguments for one in ledger.calls("one")] == [{"order": "b"}]


async def test_a_sub_agent_asks_through_the_tool_that_called_it(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"delegate": readonly})

    def within() -> Graph:
        model = Says(messages=iter([asks("a"), AIMessage("inner done")]))
        made: Graph = create_agent(model, [effects.tool()], middleware=[ledger.middleware()])
        return made

    @tool
    def delegate(order: str) -> str:
        """Have another agent do it."""
        return str(inner.invoke({"messages": [HumanMessage(order, id="inner h")]})["messages"][-1].content)

    inner = within()
    graph = agent(memory, [delegate], [AIMessage("", tool_calls=calls("x", name="delegate"), id="d")], [])
    effects.broken["a"] = TimeoutError("no answer")
    (question,) = (await flavour.invoke(graph, GO, ONE))["__interrupt__"]
    assert question.value["arguments"] == {"order": "a"}
    end = await flavour.invoke(graph, Command(resume={question.id: {"verdict": "applied", "result": "ok"}}), ONE)
    assert texts(end) == ["inner done"]
    assert effects.seen == ["a"]


async def test_an_agent_hands_over_to_its_parent_again(memory: Saver, flavour: Flavour) -> None:
    """A command for the graph around is a result like any other."""
    runs: list[str] = []

    @tool
    def hand_over(order: str, id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Hand over."""
        runs.append(order)
        done = ToolMessage("handed over", tool_call_id=id, name="hand_over")
        return Command(goto="other", graph=Command.PARENT, update={"messages": [asks_for_it, done]})

    ledger = Ledger(memory)
    asks_for_it = AIMessage("", tool_calls=calls("x", name="hand_over"), id="asks")
    within = hand_built(memory, ledger, [hand_over], [asks_for_it])
    builder = graph_of(MessagesState)
    builder.add_node("inner", within)
    builder.add_node("other", lambda _: {"messages": [AIMessage("over", id="over")]})
    builder.add_edge(START, "inner")
    graph = builder.compile(checkpointer=memory)
    end = await flavour.invoke(graph, GO, ONE)
    assert (texts(end), end["messages"][-1].content) == (["handed over"], "over")
    assert runs == ["x"]
    (record,) = ledger.calls("one")
    assert record.state == "succeeded"


# Within the tool.


async def test_several_effects_in_one_tool(memory: Saver, flavour: Flavour) -> None:
    done: list[str] = []

    def step(name: str) -> str:
        done.append(f"{name} {current_call().key != ''}")
        return name

    @tool
    def charge(order: str) -> str:
        """Reserve, ask, then charge."""
        call = current_call()
        assert (call.tool, call.attempt, len(call.key) <= 64) == ("charge", 0, True)
        call.check()
        held = call.once("hold", step, f"hold {order}")
        if interrupt("charge it?") == "yes":
            return str(call.once("charge", step, f"charge {order}"))
        return str(held)

    ledger = Ledger(memory)
    graph = hand_built(memory, ledger, [charge], [asks("a")])
    assert (await flavour.invoke(graph, GO, ONE))["__interrupt__"]
    assert texts(await flavour.invoke(graph, Command(resume="yes"), ONE)) == ["charge a"]
    assert done == ["hold a True", "charge a True"]


def test_outside_of_a_tool_there_is_no_call() -> None:
    with pytest.raises(LookupError, match="body of a tool"):
        current_call()


async def test_tools_that_change_nothing_are_not_recorded(memory: Saver, flavour: Flavour) -> None:
    looks: list[str] = []

    @tool
    def look(order: str) -> str:
        """Look."""
        looks.append(order)
        return "seen"

    ledger = Ledger(memory, {"look": readonly})
    graph = hand_built(memory, ledger, [look], [AIMessage("", tool_calls=calls("a", name="look"), id="asks")])
    await flavour.invoke(graph, GO, ONE)
    await flavour.invoke(graph, None, after_model(graph))
    assert looks == ["a", "a"]
    assert ledger.calls("one") == []


# Identity where there is little of it.


async def test_a_provider_that_repeats_ids(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    turns = [asks("a", id="1", ids=["call_0"]), asks("a", id="2", ids=["call_0"])]
    graph = hand_built(memory, Ledger(memory), [effects.tool()], turns)
    assert texts(await flavour.invoke(graph, GO, ONE)) == ["charged a", "charged a"]
    assert effects.seen == ["a", "a"]


async def test_a_message_that_repeats_a_call_id(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory)
    graph = hand_built(memory, ledger, [effects.tool()], [asks("a", "b", ids=["call_0", "call_0"])])
    await flavour.invoke(graph, GO, ONE)
    assert sorted(effects.seen) == ["a", "b"]


async def test_messages_without_ids_are_told_apart_by_their_place(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory)

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], lambda left, right: [*left, *right]]

    turns: list[Any] = [AIMessage("", tool_calls=calls("a", ids=["0"])) for _ in range(2)]

    def think(state: State) -> Any:
        said = sum(isinstance(one, AIMessage) for one in state["messages"])
        return {"messages": [turns[said] if said < len(turns) else AIMessage("done")]}

    builder = graph_of(State)
    builder.add_node("model", think)
    node = ToolNode([effects.tool()], wrap_tool_call=ledger.wrap_tool_call, awrap_tool_call=ledger.awrap_tool_call)
    builder.add_node("tools", node)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", fan_out("tools"), ["tools", END])
    builder.add_edge("tools", "model")
    graph = builder.compile(checkpointer=memory)
    with pytest.warns(RuntimeWarning, match="without an id"):
        await flavour.invoke(graph, GO, ONE)
    assert effects.seen == ["a", "a"]
    await flavour.invoke(graph, None, after_model(graph))
    assert effects.seen == ["a", "a"]


async def test_a_call_that_no_message_asks_for(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory, messages_key="letters")
    graph = hand_built(memory, ledger, [effects.tool()], [asks("a")], handle=True)
    with pytest.raises(MilepostError, match="messages_key"):
        await flavour.invoke(graph, GO, ONE)
    assert effects.seen == []


async def test_the_same_key_for_other_arguments_pauses(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"charge": unsafe(key=lambda _: "always")})
    graph = hand_built(memory, ledger, [effects.tool()], [asks("a"), asks("b", id="more")])
    (question,) = (await flavour.invoke(graph, GO, ONE))["__interrupt__"]
    assert question.value["kind"] == "PayloadMismatch"
    assert effects.seen == ["a"]


# Calls whose message is gone.


async def _orphaned(saver: Saver, flavour: Flavour, ledger: Ledger, effects: Effects) -> Graph:
    """A thread whose call was recorded under a message that the model then words anew."""
    turns = [asks("a", id="first", ids=["1"])]
    graph = hand_built(saver, ledger, [effects.tool()], turns)
    await flavour.invoke(graph, GO, ONE)
    turns[0] = asks("a", id="second", ids=["2"])
    start = [state.config for state in graph.get_state_history(ONE) if state.next == ("model",)][-1]
    await flavour.invoke(graph, None, start)
    return graph


async def test_equal_calls_that_are_meant_cost_one_claim_each(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    turns = [asks("a", id=f"turn {number}", ids=[f"{number}"]) for number in range(3)]
    graph = hand_built(memory, Ledger(memory), [effects.tool()], turns)
    told: list[str] = []
    memory.observe(lambda event: told.append(event.op))
    await flavour.invoke(graph, GO, ONE)
    assert effects.seen == ["a", "a", "a"]
    assert told.count("claim") == told.count("settle") == 3


async def test_an_orphan_of_a_tool_with_keys_is_adopted(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory, {"charge": keyed(window="24h")})
    graph = await _orphaned(memory, flavour, ledger, effects)
    assert effects.seen == ["a"]
    (answer,) = answers((await flavour.state(graph, ONE)).values)
    assert (answer.text, answer.tool_call_id) == ("charged a", "2")


async def test_an_orphan_of_an_unsafe_tool_pauses(memory: Saver, flavour: Flavour) -> None:
    effects = Effects()
    ledger = Ledger(memory)
    graph = await _orphaned(memory, flavour, ledger, effects)
    (question,) = (await flavour.state(graph, ONE)).interrupts
    assert question.value["choices"] == ["adopt", "run"]
    end = await flavour.invoke(graph, Command(resume={question.id: "run"}), ONE)
    assert texts(end) == ["charged a"]
    assert effects.seen == ["a", "a"]


# What is taken out is missed: the rest of them is in test_ledger_kills.py.


@pytest.fixture
def take_out() -> Iterator[Callable[[str], None]]:
    yield ledger_ablations.take_out
    ledger_ablations.put_back()


@pytest.mark.parametrize("part", ["", "key from task id"])
async def test_a_fork_needs_keys_that_are_not_of_the_task(
    memory: Saver, flavour: Flavour, part: str, take_out: Callable[[str], None]
) -> None:
    take_out(part)
    effects = Effects()
    graph = hand_built(memory, Ledger(memory), [effects.tool()], [asks("a")])
    await flavour.invoke(graph, GO, ONE)
    fork = await flavour.update(graph, after_model(graph), {"messages": [asks("a")]}, "model")
    await flavour.invoke(graph, None, fork)
    assert effects.seen == (["a", "a"] if part else ["a"])


@pytest.mark.parametrize("part", ["", "no re-binding"])
async def test_an_adopted_orphan_must_be_bound_anew(
    memory: Saver, flavour: Flavour, part: str, take_out: Callable[[str], None]
) -> None:
    """Else the next call that is equal, in these words or others, and is meant, is taken for the orphan too."""
    take_out(part)
    effects = Effects()

    @tool
    def charge(order: str, currency: str = "EUR") -> str:
        """Charge a card."""
        assert currency == "EUR"
        return effects(order)

    turns = [asks("a", id="first", ids=["1"])]
    graph = hand_built(memory, Ledger(memory, {"charge": keyed(window="24h")}), [charge], turns)
    await flavour.invoke(graph, GO, ONE)
    meant = asks("a", id="third", ids=["3"])
    meant.tool_calls[0]["args"]["currency"] = "EUR"
    turns[:] = [asks("a", id="second", ids=["2"]), meant]
    start = [state.config for state in graph.get_state_history(ONE) if state.next == ("model",)][-1]
    end = await flavour.invoke(graph, None, start)
    assert texts(end) == ["charged a", "charged a"]
    assert effects.seen == (["a"] if part else ["a", "a"])


@pytest.mark.parametrize("part", ["", "unconditional settle"])
def test_a_zombie_must_not_settle_what_is_another_workers(
    memory: Saver, part: str, take_out: Callable[[str], None]
) -> None:
    """Its failure would hide the other's success, and the next arrival would perform the call again."""
    take_out(part)
    performed: list[str] = []
    policy = unsafe(reconcile=lambda _: not_applied(), max_duration=0.01)
    zombie, other = (Ledger(memory, {"pay": policy}, lease=0.01, skew=0.0, owner=name) for name in ("z", "o"))
    request = CallRequest(tool="pay", thread="one", message="m", call="c")
    entry = zombie.enter(request)
    assert isinstance(entry, Run)
    other.perform(request, lambda: performed.append("other"))
    with suppress(CallSuperseded):
        zombie.settle(entry.call, Failed("the connection was refused"))
    other.perform(request, lambda: performed.append("again"))
    assert performed == (["other", "again"] if part else ["other"])


# The store fails.


@pytest.mark.parametrize("verb", ["claim", "settle"])
@pytest.mark.parametrize("applied_first", [True, False], ids=["reply lost", "request lost"])
async def test_a_store_that_fails_stops_the_run_and_nothing_is_performed_twice(
    verb: str, applied_first: bool, flavour: Flavour
) -> None:
    effects = Effects()
    with milepost.connect("memory:") as opened:

        async def unanswered(operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            if applied_first:
                await operation(*arguments, **options)
            raise Unavailable("unreachable", backend="memory", op=verb)

        failing = Tampered(opened.backend, verb, unanswered)
        saver = Saver(cast("Backend", failing))
        graph = hand_built(saver, Ledger(saver, lease=0.05), [effects.tool()], [asks("a")], handle=True)
        with pytest.raises(MilepostError, match="unreachable"):
            await flavour.invoke(graph, GO, ONE)
        assert effects.seen == (["a"] if verb == "settle" else [])
        failing.verb = ""
        assert texts(await flavour.invoke(graph, None, ONE)) == ["charged a"]
    assert effects.seen == ["a"]


class Tampered:
    """A backend, one verb of whose stores is carried out by `tamper`, which is given it."""

    def __init__(self, backend: Backend, verb: str, tamper: Callable[..., Any]) -> None:
        self._backend = backend
        self.verb = verb
        self.tamper = tamper

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def blocking(self) -> Any:
        return _TamperedStore(self, self._backend.blocking())

    def asynchronous(self) -> Any:
        return _TamperedStore(self, self._backend.asynchronous())


class _TamperedStore:
    def __init__(self, backend: Tampered, store: Any) -> None:
        self._backend = backend
        self._store = store

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        return partial(self._backend.tamper, verb) if name == self._backend.verb else verb
