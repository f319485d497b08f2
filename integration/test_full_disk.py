"""A disk that is really full, and then has room again: typed errors, the old head intact, and work that goes on.

The disk is a small file system in memory, mounted in a namespace of the test's own. Where the system does not allow
that, the injected errors of ``tests/files`` are what there is.
"""

from __future__ import annotations

import contextlib
import errno
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import milepost
import pytest
from langchain_core.runnables import RunnableConfig
from milepost.errors import Unavailable
from milepost.saver import Saver
from milepost.testing import at, checkpoint

ROOM = 300_000
"""Bytes of the file that is removed to make room."""
MOUNT = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" "$3" "$1" "$4"'


def mountable() -> bool:
    if not sys.platform.startswith("linux") or not all(map(shutil.which, ("unshare", "mount"))):
        return False
    tried = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, check=False
    )
    return tried.returncode == 0


@pytest.mark.skipif(not mountable(), reason="this system lets nobody mount a file system of his own")
@pytest.mark.parametrize("verb", ["put", "put_writes", "delete"])
def test_a_full_disk_that_is_given_room_again(tmp_path: Path, verb: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(disk), sys.executable, __file__, verb]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["acknowledged"] > 20
    assert said["refused"] > 3
    assert said["errno"] == ["ENOSPC"]


class Work:
    """One thread that grows by 4 KB a call, and what it was told to be stored."""

    def __init__(self, saver: Saver, verb: str, thread: str = "t") -> None:
        self._saver = saver
        self._thread = thread
        self._verb = verb
        self._chance = random.Random(verb)
        self._config = self._put(at(thread), 0, ["begin"])
        self._texts = ["begin"]
        self._written: dict[str, str] = {}
        self._number = 0
        self.acknowledged = 0
        self.refused = 0
        self.errnos: set[str] = set()

    def _put(self, config: RunnableConfig, number: int, texts: list[str]) -> RunnableConfig:
        version = {"texts": number + 1}
        made = checkpoint(f"{number:04}", {"texts": texts}, version)
        return self._saver.put(config, made, {"source": "loop", "step": number, "parents": {}}, {**version})

    def once(self) -> None:
        """One call, which is stored as a whole or raises `Unavailable`."""
        self._number += 1
        text = self._chance.randbytes(2000).hex()
        try:
            if self._verb == "put":
                self._config = self._put(self._config, self._number, [*self._texts, text])
                self._texts = [*self._texts, text]
            else:
                self._saver.put_writes(self._config, [("texts", [text])], f"task-{self._number:04}")
                self._written[f"task-{self._number:04}"] = text
        except Unavailable as exc:
            self.refused += 1
            self.errnos.add(errno.errorcode[exc.facts["errno"]])
        else:
            self.acknowledged += 1

    def check(self, saver: Saver) -> None:
        """All that was acknowledged is there, and nothing else."""
        found = saver.get_tuple(at(self._thread))
        assert found is not None
        assert found.config == self._config
        assert found.checkpoint["channel_values"] == {"texts": self._texts}
        assert {task: value for task, _, (value,) in found.pending_writes or ()} == self._written
        history = list(saver.list(at(self._thread)))
        assert len(history) == (1 + self.acknowledged if self._verb == "put" else 1)


def live(disk: Path, verb: str) -> dict[str, Any]:
    """Fill the disk, make room, go on. Checks what must hold, and tells what happened."""
    ballast = disk / "ballast"
    ballast.write_bytes(b"\1" * ROOM)
    url = f"file:{disk}/store"
    with milepost.connect(url) as saver:
        work = Work(saver, verb)
        while work.refused < 5:
            work.once()
        work.check(saver)
        with milepost.connect(url) as other:
            work.check(other)
        before = work.acknowledged
        ballast.unlink()
        for _ in range(10):
            work.once()
        assert work.acknowledged == before + 10, "there is room, and puts are still refused"
        work.check(saver)
    with milepost.connect(url) as saver:
        work.check(saver)
        saver.delete_thread("t")
        assert saver.get_tuple(at("t")) is None
    return {"acknowledged": work.acknowledged, "refused": work.refused, "errno": sorted(work.errnos)}


def delete(disk: Path) -> dict[str, Any]:
    """Fill the disk to its last byte, then make room with nothing but a deletion."""
    with milepost.connect(f"file:{disk}/store") as saver:
        work = Work(saver, "put")
        while work.refused < 5:
            work.once()
        with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\1" * 512):
                pass
        saver.delete_thread("t")
        assert saver.get_tuple(at("t")) is None
        again = Work(saver, "put", "another")
        for _ in range(10):
            again.once()
        assert again.acknowledged == 10, "deleting made no room"
        again.check(saver)
    return {"acknowledged": work.acknowledged, "refused": work.refused, "errno": sorted(work.errnos)}


if __name__ == "__main__":
    folder, what = Path(sys.argv[1]), sys.argv[2]
    print(json.dumps(delete(folder) if what == "delete" else live(folder, what)))
