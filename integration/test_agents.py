"""An agent with a scripted model: tools, an approval, and memory from one conversation turn to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driving import Durability, Flavour, Graph, thread
from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from milepost.saver import Saver

ONE = thread("one")


class Scripted(BaseChatModel):
    """Asks for a tool after a human's message, and sums up after the tools' answers."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        last = messages[-1]
        turn = sum(isinstance(message, HumanMessage) for message in messages)
        if isinstance(last, HumanMessage):
            names = ["pay", "look_up"] if "pay" in str(last.content) else ["look_up"]
            calls = [{"name": name, "args": {"what": f"{turn}"}, "id": f"{name}-{turn}"} for name in names]
            answer = AIMessage("", tool_calls=calls, id=f"call-{turn}")
        else:
            results = [str(one.content) for one in messages if isinstance(one, ToolMessage)]
            answer = AIMessage(f"turn {turn}: {', '.join(results)}", id=f"answer-{turn}")
        return ChatResult(generations=[ChatGeneration(message=answer)])


@tool
def look_up(what: str) -> str:
    """Find something."""
    return f"found {what}"


@tool
def pay(what: str) -> str:
    """Pay, if somebody agrees."""
    return f"paid {what}" if interrupt({"pay": what}) == "yes" else f"refused {what}"


def _agent(saver: BaseCheckpointSaver[Any], **options: Any) -> Graph:
    agent: Graph = create_agent(Scripted(), [look_up, pay], checkpointer=saver, **options)
    return agent


def _texts(state: dict[str, Any]) -> list[tuple[str, str]]:
    return [(type(message).__name__, str(message.content)) for message in state["messages"]]


async def test_an_agent_talks_pays_and_remembers(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    transcripts = []
    for checkpointer in (saver, InMemorySaver()):
        agent = _agent(checkpointer)
        first = await flavour.invoke(agent, {"messages": [HumanMessage("find")]}, ONE, durability=durability)
        asked = await flavour.invoke(agent, {"messages": [HumanMessage("pay")]}, ONE, durability=durability)
        assert [one.value for one in asked["__interrupt__"]] == [{"pay": "2"}]
        waiting = await flavour.state(agent, ONE)
        assert waiting.next
        done = await flavour.invoke(agent, Command(resume="yes"), ONE, durability=durability)
        transcripts.append((_texts(first), _texts(done)))
        assert (await flavour.state(agent, ONE)).values == done
    assert transcripts[0] == transcripts[1]
    assert transcripts[0][1][-1] == ("AIMessage", "turn 2: found 1, paid 2, found 2")


async def test_the_store_beside_the_checkpointer_is_left_alone(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    store = InMemoryStore()
    store.put(("people",), "ann", {"likes": "tea"})
    agent = _agent(saver, store=store)
    await flavour.invoke(agent, {"messages": [HumanMessage("find")]}, ONE, durability=durability)
    await flavour.prune(saver, ["one"])
    assert [item.value for item in store.search(("people",))] == [{"likes": "tea"}]
