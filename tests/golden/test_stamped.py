"""A store that a saver with a schema wrote stays readable, and a store from before schemas can be declared."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from exactly import same
from golden import conversation
from milepost.connect import connect
from milepost.errors import SchemaMismatch
from milepost.schema import Schema, Step, map_channel, rename_channel
from typing_extensions import TypedDict

HERE = Path(__file__).parent
THREAD: Any = {"configurable": {"thread_id": "stamped", "checkpoint_ns": ""}}


class Stored(TypedDict, total=False):
    count: int
    lines: list[str]


class Later(TypedDict, total=False):
    number: int
    lines: list[str]


FIRST = Schema(Stored, version=1, name="golden", drift="refuse")
SECOND = Schema(Later, version=2, name="golden", upgrades=[Step(1, 2, rename_channel("count", "number"))])


def make(folder: Path) -> None:
    """How the folder here was made. It was written once, and is kept."""
    with connect(f"file:{folder / 'stamped'}", schema=FIRST) as saver:
        checkpoint: Any = {
            "v": 4,
            "id": "1ef4f797-8335-6428-8001-8a1503f9b875",
            "ts": "2026-11-30T00:00:00+00:00",
            "channel_values": {"count": 3, "lines": [f"line {number} " * 9 for number in range(9)]},
            "channel_versions": {"count": 2, "lines": 2},
            "versions_seen": {"node": {"count": 1}},
            "updated_channels": ["count"],
        }
        config = saver.put(THREAD, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"count": 2, "lines": 2})
        saver.put_writes(config, [("count", 4), ("lines", ["last"])], conversation.TASK, "~__pregel_pull, node")


def test_its_stamps_are_understood(tmp_path: Path) -> None:
    shutil.copytree(HERE / "format-1" / "stamped", tmp_path / "store")
    url = f"file:{tmp_path / 'store'}"
    with connect(url, schema=FIRST) as saver:
        found = saver.get_tuple(THREAD)
        assert found is not None
        lines = [f"line {number} " * 9 for number in range(9)]
        assert found.checkpoint["channel_values"] == {"count": 3, "lines": lines}
    with connect(url, schema=SECOND) as saver:
        found = saver.get_tuple(THREAD)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"number": 3, "lines": lines}
        assert found.checkpoint["versions_seen"] == {"node": {"number": 1}}
        assert [write[1:] for write in found.pending_writes or ()] == [("number", 4), ("lines", ["last"])]
    for unknown in (Schema(Stored, version=3, name="golden"), Schema(Stored, version=1, name="another")):
        with connect(url, schema=unknown) as saver, pytest.raises(SchemaMismatch, match="version 1 of schema 'golden'"):
            saver.get_tuple(THREAD)


def test_a_store_from_before_schemas_is_declared(tmp_path: Path) -> None:
    shutil.copytree(HERE / "format-1" / "plain", tmp_path / "store")
    config: Any = {"configurable": {"thread_id": "golden/../thread ü"}}
    url = f"file:{tmp_path / 'store'}"
    with connect(url, schema=FIRST) as saver, pytest.raises(SchemaMismatch, match="without a schema"):
        saver.get_tuple(config)
    step = Step(1, 2, map_channel("large", str.upper), rename_channel("messages", "talk"))
    schema = Schema(Later, version=2, name="golden", unstamped=1, upgrades=[step])
    with connect(url, schema=schema) as saver:
        before = saver.get_tuple(config)
        assert before is not None
        values = before.checkpoint["channel_values"]
        assert values["large"] == "X" * 20_000
        assert values["talk"] == conversation.messages(60)
        assert "messages" not in values
        assert [told.changed for told in saver.migrate(history=True)] == [3]
    with connect(url, schema=Schema(Later, version=2, name="golden")) as saver:
        after = saver.get_tuple(config)
        assert after is not None
        found = after.checkpoint["channel_values"]
        rest = values.keys() - {"talk", "snapshot"}
        assert found.keys() == values.keys()
        assert [channel for channel in rest if not same(found[channel], values[channel])] == []
        assert (found["talk"], found["snapshot"]) == (values["talk"], values["snapshot"])
