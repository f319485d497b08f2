"""A thread as LangGraph stores it, made without LangGraph: what most workloads drive savers with."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from .measure import Bench, Client, Sample

_chance = random.Random(7)
_WORDS = ["".join(_chance.choices("etaoinshrdlucmfwyp", k=_chance.randint(2, 11))) for _ in range(3000)]
TEXT = 1400
"""Characters of a message's text; with its other fields it takes about 1.85 KB."""


def words(chance: random.Random, length: int) -> str:
    """A text of so many characters."""
    return " ".join(chance.choices(_WORDS, k=length // 5))[:length]


def message(number: int) -> BaseMessage:
    """The message of step `number`: of a person, of a model that calls a tool, or of the tool."""
    chance = random.Random(number)
    text = words(chance, TEXT)
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


def agent_of(client: Client, thread: str = "agent") -> Agent:
    """An agent over a saver, with the versions that the saver makes."""
    return Agent(client, thread, client.saver.get_next_version)


def check(found: CheckpointTuple | None, agent: Agent) -> None:
    """Whether that is what the agent stored last."""
    assert found is not None
    assert found.checkpoint["channel_values"] == agent.values
    assert found.metadata.get("step") == agent.step


async def conversation(bench: Bench, client: Client, steps: int) -> Agent:
    """An agent loop: a list that grows by a message a step, and small channels beside it."""
    sample, agent = bench.sample, agent_of(client)
    messages: list[BaseMessage] = []
    fresh = [message(number) for number in range(steps)]
    with bench.costs():
        for number, new in enumerate(fresh):
            messages = [*messages, new]
            update = {"messages": [new], "turns": number}
            await agent.advance(sample, update, {"messages": messages, "turns": number, "notes": "unchanged"})
    tenth = max(steps // 10, 1)
    sample.seconds["first put"] = sample.seconds["put"][:tenth]
    sample.seconds["last put"] = sample.seconds["put"][-tenth:]
    return agent
