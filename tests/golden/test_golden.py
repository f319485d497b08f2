"""Stores written by the first release of each format stay readable, value for value."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from exactly import same
from golden import conversation
from milepost.connect import connect
from milepost.saver import Saver

HERE = Path(__file__).parent
KEYS = {"plain": None, "sealed": conversation.KEYS}


def make(folder: Path) -> None:
    """How the folders here were made. They were written once, and are kept."""
    for kind, keys in KEYS.items():
        with connect(f"file:{folder / kind}", keys=keys) as saver:
            conversation.write(saver, "golden/../thread ü")


def alike(channel: str, found: Any, expected: Any) -> bool:
    """Exactly the same; of messages, what they say (as with LangGraph, all fields count as set after a reload)."""
    return bool(found == expected) if channel in ("messages", "snapshot") else same(found, expected)


@pytest.fixture(params=sorted(KEYS))
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    shutil.copytree(HERE / "format-1" / request.param, tmp_path / "store")
    with connect(f"file:{tmp_path / 'store'}", keys=KEYS[request.param]) as saver:
        yield saver


def test_everything_is_still_there(saver: Saver) -> None:
    config: Any = {"configurable": {"thread_id": "golden/../thread ü"}}
    found = list(saver.list(config))[::-1]
    expected = conversation.checkpoints()
    assert [one.checkpoint["id"] for one in found] == [checkpoint["id"] for checkpoint, _ in expected]
    for step, (one, (checkpoint, _)) in enumerate(zip(found, expected, strict=True)):
        for channel, value in checkpoint["channel_values"].items():
            assert alike(channel, one.checkpoint["channel_values"][channel], value), channel
        assert {**one.checkpoint, "channel_values": {}} == {**checkpoint, "channel_values": {}}
        assert one.metadata == conversation.metadata(step)
    assert found[0].parent_config is None
    assert [one.parent_config for one in found[1:]] == [one.config for one in found[:-1]]
    writes = sorted(found[-1].pending_writes or [], key=lambda write: write[1])
    assert [(task, channel) for task, channel, _ in writes] == [
        (conversation.TASK, channel) for channel, _ in sorted(conversation.WRITES, key=lambda write: write[0])
    ]
    assert all(alike(write[1], write[2], dict(conversation.WRITES)[write[1]]) for write in writes)


def test_a_golden_thread_goes_on(saver: Saver) -> None:
    config: Any = {"configurable": {"thread_id": "golden/../thread ü"}}
    found = saver.get_tuple(config)
    assert found is not None
    values = found.checkpoint["channel_values"]
    longer = {**values, "messages": [*values["messages"], *conversation.messages(1)]}
    version = saver.get_next_version(found.checkpoint["channel_versions"]["messages"])
    checkpoint: Any = {
        **found.checkpoint,
        "id": "1ef4f797-8335-6428-8001-8a1503f9b879",
        "channel_values": longer,
        "channel_versions": {**found.checkpoint["channel_versions"], "messages": version},
    }
    saver.put(found.config, checkpoint, {"source": "loop", "step": 3}, {"messages": version})
    saver.prune(["golden/../thread ü"])
    again = saver.get_tuple(config)
    assert again is not None
    assert again.checkpoint["channel_values"].keys() == longer.keys()
    assert all(alike(channel, again.checkpoint["channel_values"][channel], value) for channel, value in longer.items())
