"""An edge that gives each tool call a task of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import END
from langgraph.types import Send


def fan_out(
    node: str = "tools", *, messages_key: str = "messages", otherwise: str = END
) -> Callable[[Any], list[Send] | str]:
    """The condition of an edge from the model to the ToolNode `node`: one task for each call that has no answer yet.

    In a task that several calls share, all of them run again when one of them fails or interrupts, and answers to
    interrupts are told apart only by their order. Goes to `otherwise` when the last AI message asks for nothing::

        builder.add_conditional_edges("model", fan_out("tools"), ["tools", END])
    """

    def route(state: Any) -> list[Send] | str:
        messages: list[Any] = (
            state
            if isinstance(state, list)
            else state[messages_key]
            if isinstance(state, dict)
            else getattr(state, messages_key)
        )
        asking = next((at for at in range(len(messages) - 1, -1, -1) if isinstance(messages[at], AIMessage)), None)
        if asking is None:
            return otherwise
        answered = Counter(one.tool_call_id for one in messages[asking:] if isinstance(one, ToolMessage))
        asked = Counter(call["id"] for call in messages[asking].tool_calls)
        calls = [call for call in messages[asking].tool_calls if answered[call["id"]] < asked[call["id"]]]
        return [Send(node, [call]) for call in calls] or otherwise

    return route
