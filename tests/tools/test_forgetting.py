"""Where the calls are looked for that a checkpoint may still ask for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.types import Command, Send
from milepost.codec.values import Placeholder
from milepost.errors import Conflict
from milepost.ledger.forgetting import asked_in
from pydantic import BaseModel

CALL = {"name": "charge", "args": {}, "id": "c", "type": "tool_call"}


@dataclass(slots=True)
class Slotted:
    messages: Any


class Model(BaseModel):
    messages: Any


def asking(id: str) -> AIMessage:
    return AIMessage("", id=id, tool_calls=[CALL])


def test_messages_are_found_wherever_they_lie() -> None:
    loop: list[Any] = [HumanMessage("go"), 1, None, b"", "text"]
    loop.append(loop)
    values = {
        "messages": [asking("list"), loop],
        "slotted": Slotted((asking("slots"),)),
        "model": {"deep": [Model(messages={"a": asking("model")})]},
        "sends": [Send("tools", {"state": [asking("send")]}), Command(update={"messages": asking("command")})],
        "bounded": deque([asking("deque")], maxlen=2),
        "objects": np.array([[asking("array"), 1.5]], dtype=object),
        "numbers": np.zeros(3),
    }
    found = {message for message, call in asked_in(values, "thread") if call == "c"}
    assert found == {"list", "slots", "model", "send", "command", "deque", "array"}


def test_what_cannot_be_looked_into_is_no_permission() -> None:
    hidden = Placeholder("app.State", "not importable", 0, b"")
    with pytest.raises(Conflict, match=r"app\.State"):
        list(asked_in({"state": [hidden]}, "thread"))
