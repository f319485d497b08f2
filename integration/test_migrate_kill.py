"""A migration that is killed, over and over, and run again: every thread is as it was or as it should be."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import milepost
import pytest
from milepost import schema as ms
from milepost.schema import Schema, Step
from milepost.schema.image import Image
from milepost.schema.tasks import Tasks
from stores import environment, url_of
from typing_extensions import TypedDict

THREADS, STEPS, KILLS = 16, 5, 3


class Old(TypedDict, total=False):
    lines: list[str]
    gone: int


class New(TypedDict, total=False):
    rows: list[str]


def _upper(lines: list[str]) -> list[str]:
    return [line.upper() for line in lines]


OLD = Schema(Old, version=1, name="kill")
_CHANGES = (ms.map_channel("lines", _upper), ms.rename_channel("lines", "rows"), ms.drop_channel("gone"))
_UPGRADES = [Step(1, 2, *_CHANGES, ms.rename_node("old", "new"))]
NEW = {ns: Schema(New, version=2, name="kill", upgrades=_UPGRADES) for ns in ("", "new")}
"""The root, and the subgraph that its latest checkpoint has called."""
ALONE = Schema(New, version=2, name="kill")

WORKER = """
import os, signal, sys, threading
sys.path[:0] = {path!r}
import milepost
from test_migrate_kill import NEW
wanted, delay = int(sys.argv[1]), float(sys.argv[2])
with milepost.connect({url!r}, schema=NEW) as saver:
    for told in saver.migrate(history=True):
        wanted -= bool(told.changed)
        if told.changed and not wanted:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
"""


def _space(node: str) -> str:
    """The namespace of the subgraph in `node`."""
    checkpoint: dict[str, Any] = {"channel_values": {}, "channel_versions": {}, "versions_seen": {}}
    ((task, _), *_) = Tasks(Image("", "", f"{STEPS:04}", checkpoint, {"step": STEPS})).made(node)
    return f"{node}:{task}"


def _config(thread: int, id: str | None = None, ns: str = "") -> Any:
    return {"configurable": {"thread_id": str(thread), "checkpoint_ns": ns, "checkpoint_id": id}}


def _lines(thread: int, step: int) -> list[str]:
    return [f"thread {thread} line {number} " + "words " * 20 for number in range(step * 3)]


def _write(url: str) -> None:
    with milepost.connect(url, schema={"": OLD, "old": OLD}) as saver:
        for thread in range(THREADS):
            for ns, step in itertools.product(("", _space("old")), range(1, STEPS + 1)):
                checkpoint: Any = {
                    "v": 4,
                    "id": f"{step:04}",
                    "ts": "",
                    "channel_values": {"lines": _lines(thread, step), "gone": step},
                    "channel_versions": {"lines": step, "gone": step},
                    "versions_seen": {},
                }
                parent = f"{step - 1:04}" if step > 1 else None
                metadata: Any = {"step": step, "parents": {"": f"{STEPS:04}"} if ns else {}}
                saver.put(_config(thread, parent, ns), checkpoint, metadata, {"lines": step, "gone": step})
            for ns in ("", _space("old")):
                saver.put_writes(_config(thread, f"{STEPS:04}", ns), [("lines", ["last"]), ("gone", 0)], "task")


def _check(url: str, schema: Schema | dict[str, Schema]) -> None:
    with milepost.connect(url, schema=schema) as saver:
        for thread, ns in itertools.product(range(THREADS), ("", _space("new"))):
            found = list(saver.list(_config(thread, ns=ns)))
            assert [one.checkpoint["channel_values"] for one in found] == [
                {"rows": _upper(_lines(thread, step))} for step in range(STEPS, 0, -1)
            ]
            assert found[0].pending_writes == [("task", "rows", ["LAST"]), ("task", "__no_writes__", None)]


@pytest.mark.parametrize("store", ["files", "postgres", "redis"])
def test_a_migration_is_killed_and_run_again(store: str, tmp_path: Path) -> None:
    url = url_of(store, tmp_path)
    _write(url)
    text = WORKER.format(path=sys.path, url=url)
    choose = random.Random(2026)
    killed = 0
    for _ in range(KILLS):
        # Some threads that there was something to do for, and then somewhere within the next one. The worker sees to it by
        # itself: whoever watches it may come too late.
        when = [str(choose.randrange(1, 4)), str(choose.random() * 0.02)]
        worker = subprocess.run([sys.executable, "-c", text, *when], env=environment(), check=False)
        assert worker.returncode in (0, -signal.SIGKILL)
        killed += worker.returncode == -signal.SIGKILL
        _check(url, NEW)
    assert killed >= KILLS - 1
    with milepost.connect(url, schema=NEW) as saver:
        told = list(saver.migrate(history=True))
        assert len(told) == THREADS
        assert not any(one.refused for one in told)
        assert all(one.changed == 0 for one in saver.migrate(history=True))
    _check(url, {"": ALONE, "new": ALONE})
    with milepost.connect(url) as saver:
        assert sum(one.changed for one in saver.migrate(mode="finalise")) == 2 * THREADS * STEPS
        assert saver.stats().checkpoints == 2 * THREADS * STEPS
    _check(url, {"": ALONE, "new": ALONE})
