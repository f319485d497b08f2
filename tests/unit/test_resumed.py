"""A saver that did not write a thread itself finds out what is stored when it reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from milepost.memory import MemoryBackend
from milepost.observe import Event
from milepost.saver import Saver

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "own": dict,
    "sealed": lambda: {"keys": {"k": b"0" * 32}},
    "official": lambda: {"serde": JsonPlusSerializer()},
    "encrypted": lambda: {"serde": EncryptedSerializer.from_pycryptodome_aes(key=b"1" * 16)},
}


def checkpoint(number: int, messages: list[Any]) -> Checkpoint:
    return {
        **empty_checkpoint(),
        "id": f"{number:04}",
        "channel_values": {"messages": messages, "topic": "x" * 500},
        "channel_versions": {"messages": number, "topic": 1},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_one_more_message_costs_one_item(kind: str) -> None:
    backend, options = MemoryBackend(), KINDS[kind]()
    first, second = Saver(backend, **options), Saver(backend, **options)
    messages: list[Any] = [HumanMessage(f"{n} " * 200, id=str(n)) for n in range(300)]
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    first.put(config, checkpoint(1, messages), {}, {"messages": 1, "topic": 1})

    found = second.get_tuple(config)
    assert found is not None
    events: list[Event] = []
    second.observe(events.append)
    longer = [*found.checkpoint["channel_values"]["messages"], HumanMessage("one more " * 50, id="new")]
    second.put(found.config, checkpoint(2, longer), {}, {"messages": 2})
    assert (events[-1].items_new, events[-1].items_reused) == (1, 301)
    again = first.get_tuple(config)
    assert again is not None
    assert again.checkpoint["channel_values"] == {"messages": longer, "topic": "x" * 500}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_pruned_meanwhile_is_sent_again(kind: str) -> None:
    backend, options = MemoryBackend(), KINDS[kind]()
    first, second = Saver(backend, **options), Saver(backend, **options)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    messages: list[Any] = [HumanMessage(f"{n} " * 200, id=str(n)) for n in range(10)]
    start = first.put(config, checkpoint(1, messages), {}, {"messages": 1, "topic": 1})
    second.put(start, checkpoint(2, ["gone"]), {}, {"messages": 2})
    second.prune(["t"])

    events: list[Event] = []
    first.observe(events.append)
    first.put(start, checkpoint(3, messages), {}, {})
    assert events[-1].outcome == "stale"
    found = second.get_tuple(config)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"messages": messages, "topic": "x" * 500}
