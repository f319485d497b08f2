"""A thread that somebody shortens before each write to it: what was not stored is not taken for stored."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.base import Checkpoint, empty_checkpoint
from milepost.errors import Conflict
from milepost.memory import CallPort, MemoryBackend, MemoryStore
from milepost.saver import Saver
from milepost.schema import Schema, Step, rename_node
from milepost.store import Drop, Port, Put, Wrote


class State(TypedDict, total=False):
    a: int


class Shortened(MemoryStore):
    async def _shorten(self, thread: str) -> None:
        outline = await self.outline(thread)
        assert outline is not None
        assert await self.drop(thread, Drop(()), outline.token)

    async def put(self, thread: str, *args: Any, **options: Any) -> Put:
        await self._shorten(thread)
        return await super().put(thread, *args, **options)

    async def put_writes(self, thread: str, *args: Any, **options: Any) -> Wrote:
        await self._shorten(thread)
        return await super().put_writes(thread, *args, **options)


class Backend(MemoryBackend):
    def __init__(self, over: MemoryBackend) -> None:
        super().__init__()
        self._data = over._data
        self._store = self.over(CallPort())

    def over(self, port: Port) -> MemoryStore:
        return Shortened(self._data, port)


def checkpoint(id: str) -> Checkpoint:
    return {**empty_checkpoint(), "id": id, "channel_values": {"a": id}, "channel_versions": {"a": id}}


def test_a_write_under_a_former_name_fails_and_nothing_is_stored() -> None:
    backend = MemoryBackend()
    child: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "old"}}
    first = Saver(backend)
    first.put(child, checkpoint("1"), {}, {"a": "1"})
    renamed = Schema(State, version=2, name="s", upgrades=[Step(1, 2, rename_node("old", "new"))])
    saver = Saver(Backend(backend), schema={"": renamed})
    found = saver.get_tuple({"configurable": {"thread_id": "t", "checkpoint_ns": "new"}})
    assert found is not None
    with pytest.raises(Conflict, match="nothing was stored"):
        saver.put(found.config, checkpoint("2"), {}, {"a": "2"})
    with pytest.raises(Conflict, match="nothing was stored"):
        saver.put_writes(found.config, [("a", 3)], "task")
    kept = first.get_tuple(child)
    assert kept is not None
    assert (kept.checkpoint["id"], kept.pending_writes) == ("1", [])


def test_where_nothing_was_renamed_everything_is_sent_at_last() -> None:
    backend = MemoryBackend()
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    start = Saver(backend).put(config, checkpoint("1"), {}, {"a": "1"})
    saver = Saver(Backend(backend))
    found = saver.get_tuple(start)
    assert found is not None
    second = saver.put(found.config, checkpoint("2"), {}, {})
    saver.put_writes(second, [("a", 3)], "task")
    kept = Saver(backend).get_tuple(config)
    assert kept is not None
    assert (kept.checkpoint["channel_values"], kept.pending_writes) == ({"a": "2"}, [("task", "a", 3)])
