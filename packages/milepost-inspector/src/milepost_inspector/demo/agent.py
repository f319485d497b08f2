"""The agent: a LangChain agent with a scripted chat model, and tools whose effects go to the outside world."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Required

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command, interrupt
from milepost.ledger import ToolPolicy
from milepost.tools import CallRecord, Verdict, applied, not_applied, readonly, unsafe

from milepost_inspector.demo.audit import CLOSE
from milepost_inspector.demo.records import Row, Settlement, payload, settle

CLOSED = "books closed"

Effect = Callable[[str, dict[str, object]], int]
"""Performs the effect on a record with a payload, and returns how many times the record has had one."""


def add_totals(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    """The reducer of `totals`: sums by key."""
    return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}


class State(AgentState[Any]):
    """The agent's state: its messages, and what it has settled so far."""

    # Appended, never replaced: `add_messages` would compare all messages with all again for each of 100 tool results.
    messages: Required[Annotated[list[AnyMessage], operator.add]]
    totals: Annotated[dict[str, int], add_totals]


class ScriptedModel(BaseChatModel):
    """A chat model that answers from the messages alone: fetch a batch, settle each row of it, then close."""

    batch_size: int

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Runnable[Any, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._decide(messages))])

    def _decide(self, messages: Sequence[BaseMessage]) -> AIMessage:
        results = [message for message in messages if isinstance(message, ToolMessage)]
        last = results[-1] if results else None
        if last is not None and last.name == "close_books":
            return AIMessage(f"All done: {last.text}")
        if last is not None and last.name == "fetch_refunds":
            rows: list[Row] = json.loads(last.text)
            if rows:
                calls = [_call("settle_refund", row["refund_id"], payload(settle(row))) for row in rows]
                return AIMessage(f"Settling {len(rows)} refunds.", tool_calls=calls)
            return AIMessage("Nothing is left.", tool_calls=[_call("close_books", "close", {})])
        done = sum(message.name == "settle_refund" for message in results)
        arguments = {"skip": done, "limit": self.batch_size}
        return AIMessage("Next batch.", tool_calls=[_call("fetch_refunds", f"fetch-{done}", arguments)])


def _call(name: str, id: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "args": arguments, "id": id, "type": "tool_call"}


def settled(settlement: Settlement, call_id: str | None) -> Command[Any]:
    """What `settle_refund` returns once the effect has taken place."""
    totals = {f"{settlement.decision} count": 1}
    if settlement.cents:
        totals[f"{settlement.decision} {settlement.currency} cents"] = settlement.cents
    text = f"{settlement.refund}: {settlement.decision}"
    done = ToolMessage(text, tool_call_id=call_id or "", name="settle_refund")
    return Command(update={"messages": [done], "totals": totals})


def tools_for(rows: Sequence[Row], effect: Effect) -> list[BaseTool]:
    """The agent's tools over these rows."""

    @tool
    def fetch_refunds(skip: int, limit: int) -> str:
        """The refunds that wait, as JSON, from the given place on."""
        return json.dumps(rows[skip : skip + limit], ensure_ascii=False)

    @tool
    def settle_refund(
        refund: str,
        decision: str,
        cents: int,
        currency: str,
        category: str,
        call_id: Annotated[str, InjectedToolCallId],
    ) -> Command[Any]:
        """Pay, reject, or hand to a reviewer. This is the effect in the outside world."""
        settlement = Settlement(refund, decision, cents, currency, category)  # type: ignore[arg-type]  # from the model
        effect(refund, payload(settlement))
        return settled(settlement, call_id)

    @tool
    def close_books(state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Ask a person to approve the totals, and close the books if they do."""
        answer: str = interrupt({"question": "Close the books with these totals?", "totals": state["totals"]})
        if answer != "approve":
            return f"not closed: the answer was {answer!r}"
        effect(CLOSE, {"totals": state["totals"]})
        return CLOSED

    return [fetch_refunds, settle_refund, close_books]


def classes(count: Callable[[str], int]) -> dict[str, ToolPolicy]:
    """The tools' classes for the ledger; `count` asks the world how many effects a record has had."""

    def was_it_settled(call: CallRecord) -> Verdict:
        settlement = Settlement(**call.arguments)
        return applied(settled(settlement, call.info.call)) if count(settlement.refund) else not_applied()

    def were_they_closed(_: CallRecord) -> Verdict:
        return applied(CLOSED) if count(CLOSE) else not_applied()

    # The world answers at once: half a second after its request, an effect has taken place or never will.
    return {
        "fetch_refunds": readonly(),
        "settle_refund": unsafe(reconcile=was_it_settled, max_duration="0.5s"),
        "close_books": unsafe(reconcile=were_they_closed, max_duration="0.5s"),
    }


def build(
    rows: Sequence[Row],
    effect: Effect,
    batch: int,
    checkpointer: BaseCheckpointSaver[Any],
    middleware: Sequence[AgentMiddleware[Any, Any, Any]] = (),
) -> CompiledStateGraph[Any, Any, Any, Any]:
    """The agent, ready to run."""
    return create_agent(
        ScriptedModel(batch_size=batch),
        tools_for(rows, effect),
        state_schema=State,
        checkpointer=checkpointer,
        middleware=middleware,
    )
