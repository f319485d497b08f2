"""The agents that the ledger's tests kill: three shapes of graph around one tool with an effect in the outside world.

All of them ask for the charges of `TURNS`, in order, each turn in one AI message whose ids are new every time that the
model is called.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

from driving import Graph, graph_of
from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, MessagesState
from langgraph.prebuilt import ToolNode
from langgraph.types import Send

Shape = Literal["create_agent", "ToolNode", "sub-agent"]
SHAPES: tuple[Shape, ...] = ("create_agent", "ToolNode", "sub-agent")

TURNS: tuple[tuple[tuple[str, int], ...], ...] = ((("a", 5), ("b", 7)), (("a", 5),))
"""(order, cents) of each charge. The last one repeats the first: on purpose, so it must be performed."""

NAMED: tuple[tuple[tuple[str, int], ...], ...] = ((("a", 5), ("b", 7)), (("c", 5),))
"""For keys that are made of the order: another charge needs another order."""

Wrapper = Callable[[Any, Callable[[Any], Any]], Any]


class Scripted(BaseChatModel):
    """Asks for the charges of one turn after the other."""

    turns: Any
    tool: str = "charge"
    restless: bool = False
    """Another number of cents each time that it is called."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.answer(messages))])

    def answer(self, messages: Sequence[BaseMessage]) -> AIMessage:
        """The next turn, or the last word with everything that the tools have said."""
        asked = sum(isinstance(one, AIMessage) for one in messages)
        if asked >= len(self.turns):
            said = [str(one.content) for one in messages if isinstance(one, ToolMessage)]
            return AIMessage("; ".join(said), id=uuid.uuid4().hex)
        more = random.SystemRandom().randrange(1, 1_000_000) if self.restless else 0
        calls = [
            {
                "name": self.tool,
                "args": {"order": order, "cents": cents + more},
                "id": uuid.uuid4().hex,
                "type": "tool_call",
            }
            for order, cents in self.turns[asked]
        ]
        return AIMessage("", tool_calls=calls, id=uuid.uuid4().hex)


class Wiring:
    """How the calls of a graph are wrapped: what `ToolNode` takes, and the same as middleware of an agent."""

    restless = False

    def __init__(self, wrap: Wrapper | None, awrap: Wrapper | None, middleware: Callable[[], Sequence[Any]]) -> None:
        self.wrap = wrap
        self.awrap = awrap
        self.middleware = middleware


def _agent(turns: Any, tools: Sequence[BaseTool], wiring: Wiring, saver: BaseCheckpointSaver[Any] | None) -> Graph:
    model = Scripted(turns=turns, tool=tools[0].name, restless=wiring.restless)
    agent: Graph = create_agent(model, list(tools), middleware=list(wiring.middleware()), checkpointer=saver)
    return agent


def _hand_built(turns: Any, tools: Sequence[BaseTool], wiring: Wiring, saver: BaseCheckpointSaver[Any] | None) -> Graph:
    model = Scripted(turns=turns, tool=tools[0].name, restless=wiring.restless)

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.answer(state["messages"])]}

    def fan_out(state: MessagesState) -> str | list[Send]:
        last = state["messages"][-1]
        assert isinstance(last, AIMessage)
        return [Send("tools", [call]) for call in last.tool_calls] or END

    builder = graph_of(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", ToolNode(list(tools), wrap_tool_call=wiring.wrap, awrap_tool_call=wiring.awrap))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", fan_out, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def _nested(turns: Any, tools: Sequence[BaseTool], wiring: Wiring, saver: BaseCheckpointSaver[Any] | None) -> Graph:
    """An agent whose only tool hands the work to another agent, which keeps its state in the same thread."""
    within = _agent(turns, tools, wiring, None)

    @tool
    def delegate(order: str, cents: int) -> str:
        """Have another agent do it."""
        said = within.invoke({"messages": [("user", f"{order}: {cents}")]})
        return str(said["messages"][-1].content)

    @tool("delegate")
    async def adelegate(order: str, cents: int) -> str:
        """Have another agent do it."""
        said = await within.ainvoke({"messages": [("user", f"{order}: {cents}")]})
        return str(said["messages"][-1].content)

    delegate.coroutine = adelegate.coroutine  # type: ignore[attr-defined]  # both are structured tools
    return _agent(((("all", 0),),), [delegate], wiring, saver)


def build(
    shape: Shape,
    turns: Any,
    tools: Sequence[BaseTool],
    wiring: Wiring,
    saver: BaseCheckpointSaver[Any],
    *,
    restless: bool = False,
) -> Graph:
    """The graph of a shape."""
    wiring.restless = restless
    made = {"create_agent": _agent, "ToolNode": _hand_built, "sub-agent": _nested}[shape]
    return made(turns, tools, wiring, saver)
