"""A worker process that runs a graph until it is killed, and what must hold of its thread afterwards."""

from __future__ import annotations

import asyncio
import operator
import os
import resource
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import milepost
from driving import Durability, Graph, graph_of, place, thread
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.graph import END, START, add_messages
from langgraph.types import Send
from milepost.saver import Saver
from typing_extensions import TypedDict

ROUNDS = 8
WORKERS = "abc"


def _join(items: list[str], batches: Sequence[list[str]]) -> list[str]:
    return [*items, *(item for batch in batches for item in batch)]


class State(TypedDict):
    items: Annotated[list[str], operator.add]
    deltas: Annotated[list[str], DeltaChannel(_join, snapshot_frequency=9)]
    messages: Annotated[list[AnyMessage], add_messages]
    rounds: Annotated[int, operator.add]


def expected(rounds: int) -> list[str]:
    """What `items` and `deltas` are after so many rounds: every effect once, in the order of the tasks."""
    return [f"{number}.{worker}" for number in range(rounds) for worker in WORKERS]


def build(saver: BaseCheckpointSaver[Any]) -> Graph:
    """Rounds of parallel workers; each worker's effect goes into a plain and into a delta channel."""

    def work(task: dict[str, Any]) -> dict[str, Any]:
        effect = f"{task['round']}.{task['worker']}"
        return {"items": [effect], "deltas": [effect]}

    def close(state: State) -> dict[str, Any]:
        return {"rounds": 1, "messages": [AIMessage("x" * 1500, id=f"m{state['rounds']}")]}

    def spread(state: State) -> list[Send] | str:
        if state["rounds"] == ROUNDS:
            return END
        return [Send("work", {"round": state["rounds"], "worker": worker}) for worker in WORKERS]

    builder = graph_of(State)
    builder.add_node("work", work)
    builder.add_node("close", close)
    builder.add_conditional_edges(START, spread, ["work", END])
    builder.add_edge("work", "close")
    builder.add_conditional_edges("close", spread, ["work", END])
    return builder.compile(checkpointer=saver)


@dataclass(frozen=True)
class Death:
    """Where a worker kills itself. All that is not given does not happen."""

    verb: str = ""
    """"put" or "put_writes"."""
    call: int = 0
    """At which call of the verb, from 1."""
    after: bool = False
    """Once the store has answered, but before the saver's caller hears of it; else before the store is asked."""
    byte: int | None = None
    """The system kills the worker when a file grows by more than so many bytes over the largest there is."""


class Mortal(Saver):
    """A saver that dies on demand, and that tells which checkpoints it has acknowledged."""

    def live(self, death: Death, acknowledged: Connection) -> None:
        self._death = death
        self._told = acknowledged
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()

    def _enter(self, verb: str) -> bool:
        """Count the call, die if it is time; tells whether to die after it."""
        with self._lock:
            self._calls[verb] += 1
            here = verb == self._death.verb and self._calls[verb] == self._death.call
        if here and not self._death.after:
            os.kill(os.getpid(), signal.SIGKILL)
        return here

    def _leave(self, verb: str, fatal: bool, told: tuple[str, ...]) -> None:
        if fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        with self._lock:
            self._told.send((verb, *told))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        fatal = self._enter("put")
        stored = super().put(config, checkpoint, metadata, new_versions)
        self._leave("put", fatal, (checkpoint["id"],))
        return stored

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        fatal = self._enter("put")
        stored = await super().aput(config, checkpoint, metadata, new_versions)
        self._leave("put", fatal, (checkpoint["id"],))
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        fatal = self._enter("put_writes")
        super().put_writes(config, writes, task_id, task_path)
        self._leave("put_writes", fatal, (place(config)["checkpoint_id"], task_id))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        fatal = self._enter("put_writes")
        await super().aput_writes(config, writes, task_id, task_path)
        self._leave("put_writes", fatal, (place(config)["checkpoint_id"], task_id))


def live(folder: str, name: str, flavour: str, durability: Durability, death: Death, acknowledged: Connection) -> None:
    """The life of a worker: go on with the thread, or begin it, until it is finished or the worker is dead."""
    if death.byte is not None:
        largest = max((path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()), default=0)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + death.byte, resource.RLIM_INFINITY))
    with milepost.connect(f"file:{folder}") as opened:
        saver = Mortal(opened.backend)
        saver.live(death, acknowledged)
        graph, config = build(saver), thread(name)
        begun = saver.get_tuple(config) is not None
        start: Any = None if begun else {"items": [], "rounds": 0}
        if flavour == "async":
            asyncio.run(graph.ainvoke(start, config, durability=durability))
        else:
            graph.invoke(start, config, durability=durability)
        acknowledged.send(("finished",))
