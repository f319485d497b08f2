"""What LangGraph tells a tool call about its task. The only module that reads keys which LangGraph keeps to itself.

`integration/test_identity.py` fails when a version of LangGraph says something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.prebuilt import ToolNode, ToolRuntime

from milepost.codec.calls import Checkpoints
from milepost.errors import InvalidConfig
from milepost.ledger.request import EPOCH
from milepost.places import check_thread

_DURABILITY = "__pregel_durability"
_RESUME_MAP = "__pregel_resume_map"
_CHECKPOINT_MAP = "checkpoint_map"
_SCRATCHPAD = "__pregel_scratchpad"
_PATH = "langgraph_path"
_PULL = "__pregel_pull"


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
    pulled: bool
    """It was started by an edge, not by a `Send`: a ToolNode then performs all calls of the last message in it."""
    answered: bool
    """It has answers to interrupts, which whoever asks next in it takes in their order."""
    plain: Any
    """What the run was resumed with without saying which question that answers; None without such an answer."""
    epoch: str
    """Of the config: see `EPOCH`."""


def task_of(runtime: ToolRuntime[Any, Any]) -> Task:
    """The task of a tool call. Raises `InvalidConfig` outside a graph with a checkpointer, and for a thread that cannot be."""
    info = runtime.execution_info
    inner: Mapping[str, Any] = runtime.config.get("configurable", {})
    if info is None or info.thread_id is None:
        raise InvalidConfig(
            "a tool call outside of a thread cannot be recorded: compile the graph with a checkpointer and pass a "
            "thread_id",
            what="thread_id",
            value="None",
        )
    path = runtime.config.get("metadata", {}).get(_PATH) or ()
    return Task(
        # LangGraph hands on what the config has: a number, or a UUID.
        check_thread(info.thread_id),
        info.checkpoint_ns,
        info.task_id,
        info.checkpoint_id,
        inner.get(_CHECKPOINT_MAP) or {},
        inner.get(_DURABILITY) or "async",
        _PULL in path,
        _has_answers(inner.get(_SCRATCHPAD)),
        _plain_answer(inner.get(_SCRATCHPAD)),
        str(inner.get(EPOCH) or ""),
    )


def answers_here() -> Mapping[str, Any]:
    """Interrupt id -> answer, of the resume map that the run at hand was started with."""
    return _here().get(_RESUME_MAP) or {}


def started_here() -> Checkpoints:
    """What the task started from that this is called in; empty outside of one."""
    return innermost_first(_here().get(_CHECKPOINT_MAP) or {})


def innermost_first(started_from: Mapping[str, str]) -> Checkpoints:
    """`Task.started_from`, for a `CallRequest`.

    A functional task counts as a graph around what it calls, of which LangGraph names the checkpoint of the graph that it is a
    task of: that checkpoint is in the namespace of the outermost of those that have it.
    """
    outermost: dict[str, str] = {}
    for ns, id in started_from.items():
        outermost.setdefault(id, ns)
    return tuple((ns, id) for id, ns in outermost.items())[::-1]


def _here() -> Mapping[str, Any]:
    return (var_child_runnable_config.get() or {}).get("configurable") or {}


def is_of_tool_node(execute: Callable[..., Any]) -> bool:
    """Whether what a wrapper is to call is the ToolNode's own, and no other wrapper."""
    return getattr(execute, "__module__", None) == ToolNode.__module__


def withhold_plain_answer(runtime: ToolRuntime[Any, Any]) -> None:
    """Have what runs in the task find no plain answer. Other tasks of the step may have asked for it, and keep it: so it is
    not taken, but hidden."""
    scratchpad = runtime.config.get("configurable", {}).get(_SCRATCHPAD)
    if scratchpad is not None:
        # It is frozen, of this task alone, and what lies in its config is copied on the way to the tool.
        object.__setattr__(scratchpad, "get_null_resume", lambda _take=False: None)


def _has_answers(scratchpad: Any) -> bool:
    return scratchpad is not None and (bool(scratchpad.resume) or _plain_answer(scratchpad) is not None)


def _plain_answer(scratchpad: Any) -> Any:
    return None if scratchpad is None else scratchpad.get_null_resume()
