"""Who asks for a tool call, and what else the conversation says of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, ToolCall, ToolMessage

_KEPT = 16
"""Conversations that are kept sorted out: those of the tasks that run at the same time share their list."""
_ALIKE = 64
"""How many equal calls are told at most."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The AI message that asks for a call."""

    id: str | None
    position: int
    """In the list of messages."""
    times: int
    """How often the message uses the call's id."""
    calls: int
    """How many tool calls the message asks for."""
    human: str
    """Id, or else position, of the last human message before it; "" when there is none."""


class Conversation:
    """A list of messages, sorted out once."""

    def __init__(self, messages: list[Any]) -> None:
        self._messages = messages
        self._length = len(messages)
        self._last = messages[-1] if messages else None
        self._asked: dict[str | None, Asked] = {}
        self._answers: dict[str, tuple[int, ToolMessage]] = {}
        self._alike: dict[Hashable, list[tuple[str, str]]] = {}
        branch: set[tuple[str, str]] = set()
        human = ""
        for position, message in enumerate(messages):
            if isinstance(message, HumanMessage):
                human = message.id or str(position)
            elif isinstance(message, ToolMessage):
                self._answers[message.tool_call_id] = position, message
            elif isinstance(message, AIMessage) and message.tool_calls:
                ids = [call["id"] for call in message.tool_calls]
                for id in ids:
                    self._asked[id] = Asked(message.id, position, ids.count(id), len(ids), human)
                if message.id is not None:
                    branch.update((message.id, id) for id in ids if id is not None)
                for call in message.tool_calls if message.id is not None and human else ():
                    if call["id"] is not None:
                        self._alike.setdefault(_words(call, human), []).append((message.id or "", call["id"]))
        self.branch = frozenset(branch)
        """(message id, call id) of every call that the conversation knows."""
        self._failed = {
            (asked.id or "", id)
            for id, (position, answer) in self._answers.items()
            if answer.status == "error" and (asked := self._asked.get(id)) is not None and position > asked.position
        }

    def describes(self, messages: list[Any]) -> bool:
        """Whether this is still what `messages` say."""
        return (
            messages is self._messages
            and len(messages) == self._length
            and (not messages or messages[-1] is self._last)
        )

    def beside(self, asked: Asked) -> list[ToolCall]:
        """All calls that the message of `asked` asks for."""
        calls: list[ToolCall] = self._messages[asked.position].tool_calls
        return calls

    def asked(self, call_id: str | None) -> Asked | None:
        """Who asks for the call: the last message that has one of this id."""
        return self._asked.get(call_id)

    def alike(self, call: ToolCall, asked: Asked) -> tuple[tuple[str, str], ...]:
        """(message id, call id) of the last other calls that say the same for the same human message, but for `failed`."""
        failed = self.failed(call, asked)
        return tuple(ids for ids in self._equal(call, asked) if ids != (asked.id, call["id"]) and ids not in failed)

    def failed(self, call: ToolCall, asked: Asked) -> tuple[tuple[str, str], ...]:
        """Those of other messages that were answered with an error."""
        return tuple(ids for ids in self._equal(call, asked) if ids[0] != asked.id and ids in self._failed)

    def _equal(self, call: ToolCall, asked: Asked) -> list[tuple[str, str]]:
        return self._alike.get(_words(call, asked.human), [])[-_ALIKE:]

    def answer(self, call_id: str | None) -> ToolMessage | None:
        """What has been answered to the call since it was asked for."""
        asked = self._asked.get(call_id)
        position, message = self._answers.get(call_id or "", (-1, None))
        return message if asked is not None and position > asked.position else None


def _words(call: ToolCall, human: str) -> Hashable:
    """Equal for calls that say the same. Some that do may differ in it."""
    try:
        arguments: Hashable = frozenset(call["args"].items())
    except TypeError:
        arguments = repr(call["args"])
    return human, call["name"], arguments


class Conversations:
    """The last few conversations, found again by their lists."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """After a fork."""
        self._lock = threading.Lock()
        self._known: OrderedDict[int, Conversation] = OrderedDict()

    def of(self, state: Any, messages_key: str) -> Conversation:
        """That of a graph's state, whichever form it has; an empty one where there is none."""
        if isinstance(state, dict):
            state = state.get(messages_key)
        elif not isinstance(state, list):
            state = getattr(state, messages_key, None)
        messages = state if isinstance(state, list) else []
        with self._lock:
            found = self._known.get(id(messages))
            if found is None or not found.describes(messages):
                # The list is kept alive with what is known of it, so that no other can have its address.
                found = self._known[id(messages)] = Conversation(messages)
            self._known.move_to_end(id(messages))
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found
