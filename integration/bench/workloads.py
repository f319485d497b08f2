"""What is measured. Every workload verifies what it reads back: a fast wrong answer is a failure."""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import START, MessagesState, StateGraph

from .measure import Bench, Client, Sample, Workload
from .rivals import MEMORY, OURS, PREALLOCATED, SQLITE

_chance = random.Random(7)
_WORDS = ["".join(_chance.choices("etaoinshrdlucmfwyp", k=_chance.randint(2, 11))) for _ in range(3000)]
TEXT = 1400
"""Characters of a message's text; with its other fields it takes about 1.85 KB."""


def message(number: int) -> BaseMessage:
    """The message of step `number`: of a person, of a model that calls a tool, or of the tool."""
    chance = random.Random(number)
    text = " ".join(chance.choices(_WORDS, k=TEXT // 5))[:TEXT]
    id = str(UUID(int=chance.getrandbits(128), version=4))
    if number % 3 == 0:
        return HumanMessage(text, id=id)
    call = f"call_{chance.getrandbits(64):016x}"
    if number % 3 == 1:
        calls = [{"name": "search", "args": {"query": text[:200], "limit": number}, "id": call}]
        usage = {"input_tokens": 10 * number, "output_tokens": 300, "total_tokens": 10 * number + 300}
        details = {"model_name": "a-model", "finish_reason": "tool_calls"}
        return AIMessage(text, id=id, tool_calls=calls, usage_metadata=usage, response_metadata=details)
    return ToolMessage(text, id=id, tool_call_id=call, name="search")


class Agent:
    """A thread as LangGraph stores it: after each step the writes of its task, then the checkpoint on top of them."""

    def __init__(self, client: Client, thread: str, saver_version: Callable[..., Any]) -> None:
        self._client = client
        self._next = saver_version
        self.config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        self._versions: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.step = -2

    async def advance(self, sample: Sample, update: dict[str, Any], values: dict[str, Any]) -> None:
        """One superstep: `update` is what its task wrote, `values` what has come of it."""
        self.step += 1
        if self.step >= 0:
            task = str(uuid6(clock_seq=self.step))
            writes = [*update.items(), ("branch:to:model", None)]
            await sample.timed(
                "put_writes", self._client.put_writes(self.config, writes, task, "~__pregel_pull, model")
            )
        changed = {**values, "branch:to:model": None}
        new = {channel: self._next(self._versions.get(channel), None) for channel in changed}
        self.values.update(changed)
        self._versions.update(new)
        checkpoint: Checkpoint = {
            "v": 4,
            "id": str(uuid6(clock_seq=self.step)),
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": dict(self.values),
            "channel_versions": dict(self._versions),
            "versions_seen": {"model": {"branch:to:model": new["branch:to:model"]}},
            "updated_channels": sorted(changed),
        }
        source = "input" if self.step < 0 else "loop"
        metadata = {"source": source, "step": self.step, "parents": {}}
        self.config = await sample.timed("put", self._client.put(self.config, checkpoint, metadata, new))


def _agent(client: Client, thread: str = "agent") -> Agent:
    return Agent(client, thread, client.saver.get_next_version)


def _check(found: CheckpointTuple | None, agent: Agent) -> None:
    assert found is not None
    assert found.checkpoint["channel_values"] == agent.values
    assert found.metadata.get("step") == agent.step


async def conversation(bench: Bench, client: Client, steps: int) -> Agent:
    """An agent loop: a list that grows by a message a step, and small channels beside it."""
    sample, agent = bench.sample, _agent(client)
    messages: list[BaseMessage] = []
    fresh = [message(number) for number in range(steps)]
    with sample.cpu("cpu"):
        for number, new in enumerate(fresh):
            messages = [*messages, new]
            update = {"messages": [new], "turns": number}
            await agent.advance(sample, update, {"messages": messages, "turns": number, "notes": "unchanged"})
    tenth = max(steps // 10, 1)
    sample.seconds["first put"] = sample.seconds["put"][:tenth]
    sample.seconds["last put"] = sample.seconds["put"][-tenth:]
    return agent


async def w1(steps: int, bench: Bench) -> None:
    """W1, and on what it leaves: W2 at every size, W3 (list 10, list 100 at 300; a filter at 1,000), W8 at 1,000."""
    sample = bench.sample
    async with bench.client() as client:
        agent = await conversation(bench, client, steps)
        for _ in range(5):
            _check(await sample.timed("get", client.get({"configurable": {"thread_id": "agent"}})), agent)
        for _ in range(3):
            _check(await sample.timed("get by id", client.get(agent.config)), agent)
        await _lists(sample, client, steps)
        if not bench.rival.durable:
            await sample.timed("delete", client.delete("agent"))
            return
    bench.weigh("bytes")
    async with bench.client() as client:
        _check(await sample.timed("cold get", client.get({"configurable": {"thread_id": "agent"}})), agent)
        await sample.timed("delete", client.delete("agent"))
        assert await client.get({"configurable": {"thread_id": "agent"}}) is None


async def _lists(sample: Sample, client: Client, steps: int) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "agent", "checkpoint_ns": ""}}
    if steps >= 1000:
        for _ in range(3):
            found = await sample.timed("list filter", client.list(config, filter={"step": steps // 2}))
            assert [len(one.checkpoint["channel_values"]["messages"]) for one in found] == [steps // 2 + 2]
    elif steps >= 300:
        for limit in (10, 10, 10, 100):
            found = await sample.timed(f"list {limit}", client.list(config, limit=limit))
            lengths = [len(one.checkpoint["channel_values"]["messages"]) for one in found]
            assert lengths == list(range(steps, steps - limit, -1))


async def w4(workers: int, bench: Bench) -> None:
    """200 threads of 10 steps, from so many workers."""
    sample = bench.sample
    async with bench.client() as client:
        agents = [_agent(client, f"thread {number}") for number in range(200)]

        async def live(agent: Agent) -> None:
            messages: list[BaseMessage] = []
            for step in range(10):
                messages = [*messages, message(step)]
                await agent.advance(sample, {"messages": messages[-1:]}, {"messages": messages})

        start = time.perf_counter()
        with sample.cpu("cpu"):
            await client.together([partial(live, agent) for agent in agents], workers)
        sample.numbers["seconds per put"] = (time.perf_counter() - start) / (200 * 10)
        for agent in agents[::40]:
            _check(await client.get(agent.config), agent)


async def w5(bench: Bench) -> None:
    """A tiny state, 500 steps: nothing but overhead."""
    sample = bench.sample
    async with bench.client() as client:
        agent = _agent(client)
        with sample.cpu("cpu"):
            for step in range(500):
                await agent.advance(sample, {"count": step}, {"count": step})
        for _ in range(100):
            _check(await sample.timed("get", client.get(agent.config)), agent)


class Steps(MessagesState):
    """The state of W6."""

    steps: Annotated[int, operator.add]


def _two_nodes(saver: Any) -> Any:
    fresh = [message(number) for number in range(50)]
    builder = StateGraph(Steps)

    def speak(state: Steps) -> dict[str, Any]:
        return {"messages": [fresh[state["steps"]]], "steps": 1}

    def onwards(here: str, state: Steps) -> str:
        return "__end__" if state["steps"] == len(fresh) else {"model": "tools", "tools": "model"}[here]

    for name in ("model", "tools"):
        builder.add_node(name, speak)
        builder.add_conditional_edges(name, partial(onwards, name), ["model", "tools", "__end__"])
    builder.add_edge(START, "model")
    return builder.compile(checkpointer=saver)


async def w6(bench: Bench) -> None:
    """A compiled graph of 2 nodes, 50 steps, with durability "sync"; and the same without a saver."""
    sample = bench.sample
    options: dict[str, Any] = {"durability": "sync"}
    async with bench.client() as client:
        graph, bare = _two_nodes(client.saver), _two_nodes(None)
        for number in range(3):
            config = {"configurable": {"thread_id": str(number)}, "recursion_limit": 100}
            done = await sample.timed("run", client.invoke(graph, {"steps": 0}, config, **options))
            assert len(done["messages"]) == 50
            found = await client.get({"configurable": {"thread_id": str(number)}})
            assert found is not None
            assert found.checkpoint["channel_values"]["messages"] == done["messages"]
            await sample.timed("run without", client.invoke(bare, {"steps": 0}, {"recursion_limit": 100}))


async def w7(bench: Bench) -> None:
    """100 parallel tasks write on one checkpoint; then it is read."""
    sample = bench.sample
    async with bench.client() as client:
        for number in range(5):
            agent = _agent(client, f"fan {number}")
            await agent.advance(Sample(), {}, {"messages": [message(0)]})
            jobs: list[Callable[[], Coroutine[Any, Any, None]]] = [
                partial(
                    client.put_writes, agent.config, [("messages", [message(task)])], f"task-{task:03}", f"~{task:03}"
                )
                for task in range(100)
            ]
            await sample.timed("fan", client.together(jobs, 32 if bench.flavour == "sync" else 100))
            found = await sample.timed("get", client.get(agent.config))
            assert found is not None
            written = {task: value for task, _, value in found.pending_writes or ()}
            assert written == {f"task-{task:03}": [message(task)] for task in range(100)}


_ALL = (OURS, SQLITE, MEMORY)
WORKLOADS = (
    Workload("W1 N=100", "agent loop of 100 steps, then W2", partial(w1, 100), _ALL),
    Workload("W1 N=300", "agent loop of 300 steps, then W2 and W3", partial(w1, 300), _ALL),
    Workload("W1 N=1000", "agent loop of 1,000 steps, then W2, W3 and W8", partial(w1, 1000), _ALL),
    *(Workload(f"W4 x{n}", f"200 threads of 10 steps, {n} workers", partial(w4, n), _ALL) for n in (1, 8, 32)),
    Workload("W5", "tiny state, 500 steps", w5, (OURS, PREALLOCATED, SQLITE, MEMORY)),
    Workload("W6", "compiled graph, 50 steps", w6, _ALL),
    Workload("W7", "100 parallel put_writes", w7, _ALL),
)
