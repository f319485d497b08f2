"""What a conversation says of the calls in it."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from milepost.tools.conversation import Conversation


def _call(id: str, name: str = "poll", **arguments: Any) -> Any:
    return {"name": name, "args": arguments, "id": id, "type": "tool_call"}


def test_calls_that_say_the_same_for_the_same_human_message() -> None:
    conversation = Conversation(
        [
            HumanMessage("first", id="h1"),
            AIMessage("", id="m1", tool_calls=[_call("a", job=1), _call("b", job=2)]),
            AIMessage("", id="m2", tool_calls=[_call("c", job=1), _call("d", "stop", job=1), _call("e", jobs=[1])]),
            AIMessage("", id="m3", tool_calls=[_call("f", jobs=[1]), _call("g", job=1)]),
            HumanMessage("second", id="h2"),
            AIMessage("", id="m4", tool_calls=[_call("h", job=1)]),
        ]
    )

    def alike(call: Any) -> Any:
        asked = conversation.asked(call["id"])
        assert asked is not None
        return conversation.alike(call, asked)

    assert alike(_call("g", job=1)) == (("m1", "a"), ("m2", "c"))
    assert alike(_call("f", jobs=[1])) == (("m2", "e"),)
    assert alike(_call("b", job=2)) == alike(_call("d", "stop", job=1)) == alike(_call("h", job=1)) == ()
