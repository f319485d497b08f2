"""What stays the same when LangGraph runs a tool call again: each way of it, measured.

A row of `SCENARIOS` runs a graph in a way that ends with a second look at the same logical call (or at what might be
taken for it), and compares what the call was told the first time with what it was told the second time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import milepost
from driving import Durability, Graph, graph_of, thread
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.graph import END, START, MessagesState
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt
from milepost.saver import Saver
from milepost.tools.conversation import Conversation
from milepost.tools.pregel import task_of

ONE = thread("one")
FOREVER = threading.Event()


@dataclass(frozen=True)
class Row:
    """What a second look at a call finds. True is "same", False is "differs", None is "there was no second look"."""

    again: bool
    call: bool | None = None
    message: bool | None = None
    place: bool | None = None
    """Checkpoint id, task id and namespace: all of them the same, or all of them another."""
    others: int = 0
    """Runs of finished siblings beyond their first."""
    next: tuple[str, ...] | None = None
    """What LangGraph says comes next, where the row is about that."""


NEVER = Row(again=False)
SAME = Row(again=True, call=True, message=True, place=True)
MOVED = replace(SAME, place=False)
NEW = Row(again=True, call=False, message=False, place=False)

Sighting = Mapping[str, Any]


class Log:
    """What the calls were told, kept in a file, which outlives a killed process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, request: Any) -> int:
        """Write down a call that is about to run; returns how often its tool has been about to run."""
        task = task_of(request.runtime)
        messages = request.state["messages"]
        asked = Conversation(messages).asked(request.tool_call["id"])
        assert asked is not None
        line = {
            "name": request.tool_call["name"],
            "call": request.tool_call["id"],
            "message": asked.id,
            "checkpoint": task.checkpoint,
            "task": task.task,
            "ns": task.ns,
        }
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return len(self.of(request.tool_call["name"]))

    def of(self, name: str) -> list[Sighting]:
        """Every time a tool was about to run."""
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in lines if line["name"] == name]

    def row(self, name: str = "pay", *, sibling: str | None = None) -> Row:
        """The second time beside the first, and how often a finished sibling ran again."""
        seen = self.of(name)
        others = len(self.of(sibling)) - 1 if sibling else 0
        if len(seen) < 2:
            return replace(NEVER, others=others)
        first, second = seen[0], seen[1]
        places = {first[key] == second[key] for key in ("checkpoint", "task", "ns")}
        assert len(places) == 1, f"checkpoint, task and namespace no longer go together: {first} and {second}"
        return Row(
            again=True,
            call=first["call"] == second["call"],
            message=first["message"] == second["message"],
            place=places.pop(),
            others=others,
        )


@tool
def pay(what: str = "") -> str:
    """Pay."""
    return f"paid {what}"


@tool
def look_up(what: str = "") -> str:
    """Look something up."""
    return f"found {what}"


@tool
def ask(what: str = "") -> str:
    """Ask a person."""
    return f"{what} {interrupt('may I?')}"


def _fresh(names: Sequence[str]) -> AIMessage:
    calls = [{"name": name, "args": {}, "id": uuid.uuid4().hex, "type": "tool_call"} for name in names]
    return AIMessage("", tool_calls=calls, id=uuid.uuid4().hex)


def build(
    saver: Saver,
    log: Log,
    names: Sequence[str] = ("pay",),
    *,
    shared: bool = False,
    retry: bool = False,
    before: Callable[[str, int], None] = lambda _, __: None,
    model: Callable[[Any], AIMessage] | None = None,
    rounds: int = 1,
) -> Graph:
    """A model that asks for `names`, and their ToolNode: a task for each call, or one that all of them share."""

    def think(state: MessagesState) -> dict[str, Any]:
        answered = sum(isinstance(one, AIMessage) and bool(one.tool_calls) for one in state["messages"])
        if answered >= rounds:
            return {"messages": [AIMessage("done", id=uuid.uuid4().hex)]}
        return {"messages": [model(state) if model else _fresh(names)]}

    def route(state: MessagesState) -> str | list[Send]:
        last = state["messages"][-1]
        calls = last.tool_calls if isinstance(last, AIMessage) else []
        if shared or not calls:
            return "tools" if calls else END
        return [Send("tools", [call]) for call in calls]

    def wrap(request: Any, execute: Any) -> Any:
        before(request.tool_call["name"], log.note(request))
        return execute(request)

    tools = ToolNode([pay, look_up, ask], wrap_tool_call=wrap, handle_tool_errors=False)
    builder = graph_of(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", tools, retry_policy=RetryPolicy(initial_interval=0.001) if retry else None)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route, ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


# Killed workers.


@dataclass(frozen=True)
class Fate:
    """How a worker dies. It stops the saver first, where LangGraph would let the work run ahead of it."""

    at: str
    """"tool", or a name of a saver's method with "before" or "after": the one for the tool's writes."""
    hold_put: int | None = None
    """From this superstep on, no put ends any more."""
    hold_writes: bool = False
    """No `put_writes` ends any more."""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Held(Saver):
    """A saver that never answers some calls, and kills its process at others."""

    fate: Fate

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        if self.fate.hold_put is not None and metadata.get("step", 0) >= self.fate.hold_put:
            FOREVER.wait()
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        if self.fate.hold_writes:
            FOREVER.wait()
        from_tool = "tools" in task_path or any("ToolMessage" in repr(type(v)) or _tool(v) for _, v in writes)
        if from_tool and self.fate.at == "before put_writes":
            _die()
        super().put_writes(config, writes, task_id, task_path)
        if from_tool and self.fate.at == "after put_writes":
            _die()


def _tool(value: Any) -> bool:
    return isinstance(value, list) and any(getattr(one, "type", "") == "tool" for one in value)


def work(folder: str, fate: Fate | None, durability: Durability, start: Any) -> None:
    """The life of a worker."""
    with milepost.connect(f"file:{folder}/store") as opened:
        saver = opened if fate is None else Held(opened.backend)
        if isinstance(saver, Held) and fate is not None:
            saver.fate = fate

        def before(_: str, __: int) -> None:
            if fate is not None and fate.at == "tool":
                while fate.hold_put is not None and not fate.hold_writes and not _written(opened):
                    pass
                _die()

        graph = build(saver, Log(Path(folder) / "log"), before=before)
        graph.invoke(start, ONE, durability=durability)


def _written(saver: Saver) -> bool:
    """Whether the model's writes are stored, on a checkpoint that is stored too."""
    stored = saver.get_tuple(ONE)
    return stored is not None and stored.metadata.get("step") == 0 and bool(stored.pending_writes)


def _killed(folder: Path, fate: Fate, durability: Durability) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["langgraph.prebuilt", "milepost", "milepost_files"])
    start = {"messages": [HumanMessage("pay", id="h")]}
    worker = context.Process(target=work, args=(str(folder), fate, durability, start))
    worker.start()
    worker.join()
    assert worker.exitcode == -signal.SIGKILL


def _resumed_after(fate: Fate, durability: Durability, folder: Path) -> Row:
    _killed(folder, fate, durability)
    log = Log(folder / "log")
    with milepost.connect(f"file:{folder}/store") as saver:
        graph = build(saver, log)
        # Not `next`: it is empty where every task has written, though nothing of it is in a checkpoint yet.
        begun = saver.get_tuple(ONE) is not None
        graph.invoke(None if begun else {"messages": [HumanMessage("pay", id="h")]}, ONE)
    return log.row()


def killed_sync(folder: Path) -> Row:
    return _resumed_after(Fate("tool"), "sync", folder)


def killed_async_writes_durable(folder: Path) -> Row:
    """The model's pending writes were stored, the checkpoint with its message was not."""
    return _resumed_after(Fate("tool", hold_put=1), "async", folder)


def killed_async_nothing_durable(folder: Path) -> Row:
    return _resumed_after(Fate("tool", hold_put=1, hold_writes=True), "async", folder)


def killed_exit(folder: Path) -> Row:
    return _resumed_after(Fate("tool"), "exit", folder)


def killed_before_writes(folder: Path) -> Row:
    return _resumed_after(Fate("before put_writes"), "sync", folder)


def killed_after_writes(folder: Path) -> Row:
    _killed(folder, Fate("after put_writes"), "sync")
    log = Log(folder / "log")
    with milepost.connect(f"file:{folder}/store") as saver:
        graph = build(saver, log)
        waiting = graph.get_state(ONE).next
        result = graph.invoke(None, ONE)
    assert result["messages"][-1].content == "done", "the thread was unfinished, and is finished now"
    return replace(log.row(), next=waiting)


# Within a process.


def _memory(folder: Path) -> tuple[Saver, Log]:
    return milepost.connect("memory:"), Log(folder / "log")


def _begin(graph: Graph) -> Any:
    return graph.invoke({"messages": [HumanMessage("pay", id="h")]}, ONE)


def retried_task(folder: Path) -> Row:
    saver, log = _memory(folder)

    def before(name: str, time: int) -> None:
        if name == "pay" and time == 1:
            while not log.of("look_up"):
                pass
            raise ConnectionError("try again")

    graph = build(saver, log, ("look_up", "pay"), shared=True, retry=True, before=before)
    _begin(graph)
    return log.row(sibling="look_up")


def _interrupted(folder: Path, *, shared: bool) -> Row:
    saver, log = _memory(folder)
    graph = build(saver, log, ("look_up", "ask"), shared=shared)
    assert _begin(graph)["__interrupt__"]
    graph.invoke(Command(resume="yes"), ONE)
    return log.row("ask", sibling="look_up")


def interrupted_alone(folder: Path) -> Row:
    saver, log = _memory(folder)
    graph = build(saver, log, ("ask",))
    _begin(graph)
    graph.invoke(Command(resume="yes"), ONE)
    return log.row("ask")


def interrupted_beside_sends(folder: Path) -> Row:
    return _interrupted(folder, shared=False)


def interrupted_in_a_shared_task(folder: Path) -> Row:
    return _interrupted(folder, shared=True)


def _after_model(graph: Graph) -> RunnableConfig:
    """The checkpoint whose next tasks are the tools."""
    return next(state.config for state in graph.get_state_history(ONE) if "tools" in state.next)


def time_travel(folder: Path) -> Row:
    saver, log = _memory(folder)
    graph = build(saver, log, ("look_up", "pay"))
    _begin(graph)
    graph.invoke(None, _after_model(graph))
    return log.row(sibling="look_up")


def forked_by_update(folder: Path) -> Row:
    saver, log = _memory(folder)
    graph = build(saver, log, ("look_up", "pay"))
    _begin(graph)
    chosen = _after_model(graph)
    asked = graph.get_state(chosen).values["messages"][-1]
    # The same message again, under its id: a fork whose next tasks are the same calls.
    graph.invoke(None, graph.update_state(chosen, {"messages": [asked]}, "model"))
    return log.row(sibling="look_up")


def addressed_head(folder: Path) -> Row:
    saver, log = _memory(folder)
    failed: list[bool] = []

    def before(name: str, _: int) -> None:
        if name == "pay" and not failed:
            while not log.of("look_up"):
                pass
            failed.append(True)
            raise ConnectionError("gone")

    graph = build(saver, log, ("look_up", "pay"), before=before)
    with suppress(ConnectionError):
        _begin(graph)
    graph.invoke(None, graph.get_state(ONE).config)
    return log.row(sibling="look_up")


def asked_again(folder: Path) -> Row:
    saver, log = _memory(folder)
    _begin(build(saver, log, rounds=2))
    return log.row()


def id_repeated_later(folder: Path) -> Row:
    saver, log = _memory(folder)

    def model(_: Any) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": "pay", "args": {}, "id": "call_0"}], id=uuid.uuid4().hex)

    _begin(build(saver, log, model=model, rounds=2))
    return log.row()


def two_workers(folder: Path) -> Row:
    """Both have read the thread before either has stored a result."""
    _killed(folder, Fate("tool"), "sync")
    log = Log(folder / "log")
    log.path.unlink()
    together = threading.Barrier(2)

    def before(_: str, __: int) -> None:
        together.wait()

    with milepost.connect(f"file:{folder}/store") as saver:
        graphs = [build(saver, log, before=before) for _ in range(2)]
        workers = [threading.Thread(target=lambda g=graph: g.invoke(None, ONE)) for graph in graphs]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return log.row()


SCENARIOS: dict[str, tuple[Callable[[Path], Row], Row]] = {
    "SIGKILL in the tool, sync": (killed_sync, SAME),
    "SIGKILL in the tool, async, only the model's writes durable": (killed_async_writes_durable, MOVED),
    "SIGKILL in the tool, async, nothing durable": (killed_async_nothing_durable, NEW),
    "SIGKILL in the tool, exit": (killed_exit, NEW),
    "SIGKILL after the tool returned, before its put_writes": (killed_before_writes, SAME),
    "SIGKILL after put_writes": (killed_after_writes, replace(NEVER, next=())),
    "RetryPolicy on one task with two calls": (retried_task, replace(SAME, others=1)),
    "interrupt() in the tool, resumed": (interrupted_alone, SAME),
    "parallel calls through Send, one interrupts": (interrupted_beside_sends, SAME),
    "the same calls in one task": (interrupted_in_a_shared_task, replace(SAME, others=1)),
    "time travel to after the model": (time_travel, replace(MOVED, others=1)),
    "a fork by update_state": (forked_by_update, replace(MOVED, others=1)),
    "invoke(None) at the head's own id": (addressed_head, replace(MOVED, others=1)),
    "the model asks again": (asked_again, NEW),
    "a provider repeats an id in a later turn": (id_repeated_later, replace(NEW, call=True)),
    "two workers resume one thread": (two_workers, SAME),
}
