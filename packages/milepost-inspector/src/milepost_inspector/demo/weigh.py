"""What a saver that stores the whole state at every step would have stored for the same thread."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


@dataclass(slots=True)
class Weight:
    """Bytes by LangGraph's own serializer."""

    checkpoints: int = 0
    """Every checkpoint, whole."""
    writes: int = 0
    """Every pending write."""
    final: int = 0
    """The last checkpoint alone."""


def weigh(saver: BaseCheckpointSaver[Any], config: RunnableConfig) -> Weight:
    """Serialise the checkpoints and pending writes of a thread as a whole-state saver does, and add up the bytes.

    The thread's `messages` must be a list that was only ever appended to: then the messages of an earlier checkpoint
    are the first ones of the last, and each needs to be serialised once.
    """
    serde = JsonPlusSerializer()

    def size(value: Any) -> int:
        return len(serde.dumps_typed(value)[1])

    weight = Weight()
    prefix: list[int] | None = None
    for saved in saver.list(config):
        values = saved.checkpoint["channel_values"]
        messages = values.get("messages", [])
        if prefix is None:
            prefix = [0, *itertools.accumulate(size(message) for message in messages)]
        whole = size(
            {**saved.checkpoint, "channel_values": {**values, "messages": []}} if messages else saved.checkpoint
        )
        whole += prefix[len(messages)] + _list_header(len(messages)) - _list_header(0)
        weight.final = weight.final or whole
        weight.checkpoints += whole
        weight.writes += sum(size(value) for _, _, value in saved.pending_writes or ())
    return weight


def _list_header(length: int) -> int:
    """Bytes that MessagePack spends on the length of a list."""
    return 1 if length < 16 else 3 if length < 1 << 16 else 5
