"""What LangGraph tells a tool call about its task. The only module that reads keys which LangGraph keeps to itself.

`integration/test_identity.py` fails when a version of LangGraph says something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.prebuilt import ToolRuntime

from milepost.errors import InvalidConfig

_DURABILITY = "__pregel_durability"
_RESUME_MAP = "__pregel_resume_map"
_CHECKPOINT_MAP = "checkpoint_map"


@dataclass(frozen=True, slots=True)
class Task:
    """The task that a tool call runs in. None of it but `thread` may become part of a call's key: only `thread`
    survives every way of running a call again."""

    thread: str
    ns: str
    task: str
    checkpoint: str
    """The checkpoint of its own graph that the task started from."""
    started_from: Mapping[str, str]
    """Namespace -> checkpoint, of its own graph and of every graph around it."""
    durability: str
    """"sync", "async" or "exit"."""
    answers: Mapping[str, Any]
    """Interrupt id -> answer, of the resume map that this run was started with."""


def task_of(runtime: ToolRuntime[Any, Any]) -> Task:
    """The task of a tool call. Raises `InvalidConfig` outside a graph with a checkpointer."""
    info = runtime.execution_info
    inner: Mapping[str, Any] = runtime.config.get("configurable", {})
    if info is None or info.thread_id is None:
        raise InvalidConfig(
            "a tool call outside of a thread cannot be recorded: compile the graph with a checkpointer and pass a "
            "thread_id",
            what="thread_id",
            value="None",
        )
    started_from: Mapping[str, str] = inner.get(_CHECKPOINT_MAP) or {}
    return Task(
        info.thread_id,
        info.checkpoint_ns,
        info.task_id,
        info.checkpoint_id,
        started_from,
        inner.get(_DURABILITY) or "async",
        inner.get(_RESUME_MAP) or {},
    )


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
    human: str | None
    """Id, or else position, of the last human message before it."""


def asked_in(messages: Any, call_id: str | None) -> Asked | None:
    """Who asks for the call: the last AI message that has one of this id, or None."""
    if not isinstance(messages, list):
        return None
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if not isinstance(message, AIMessage):
            continue
        times = sum(call["id"] == call_id for call in message.tool_calls)
        if times:
            return Asked(message.id, position, times, len(message.tool_calls), _human(messages, position))
    return None


def _human(messages: list[Any], before: int) -> str | None:
    for position in range(before - 1, -1, -1):
        if messages[position].type == "human":
            return messages[position].id or str(position)
    return None
