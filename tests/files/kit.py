"""What the tests of the file store share: small states that say whether they are whole, and other processes."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Self

import pytest
from files import worker
from files.states import At, content
from milepost.errors import Corrupt
from milepost.flavour import run
from milepost.store import Loaded, Query, Store


def whole(loaded: Loaded, writer: int = 1) -> bool:
    """Whether a checkpoint made by `put` is there with everything that it refers to: what the codec would find out."""
    snapshot = loaded.snapshots[0]
    number = int(snapshot.row.id)
    packs = {pack.first: pack.data for pack in loaded.packs[snapshot.thread] if pack.writer == writer}
    return snapshot.row.header.startswith(f"header {number} ".encode()) and all(
        packs.get(item) == content(item) for item in range(number + 1)
    )


def newest_whole(store: Store, thread: str) -> int:
    """Number of the newest checkpoint that is whole, found as the saver does it; -1 when there is none."""
    loaded = run(store.get(thread, "", None))
    while loaded is not None and not whole(loaded):
        row = loaded.snapshots[0].row
        with contextlib.suppress(Corrupt):
            loaded = None if row.parent is None else run(store.get(thread, "", row.parent))
        if loaded is None or loaded.snapshots[0].row.id == row.id:
            page = run(store.page(Query(thread=thread, ns="", before=row.id), None, 1))
            loaded = page if page.snapshots else None
    return -1 if loaded is None else int(loaded.snapshots[0].row.id)


def log_of(path: Path) -> Path:
    """The only log of a store."""
    (found,) = path.glob("threads/*/*.log")
    return found


class Worker:
    """Another process at work on a store; see worker.py. As a context manager it leaves none behind."""

    def __init__(self, path: Path, verb: str, *arguments: object, timeout: float = 5.0, at: At | None = None) -> None:
        context = _context()
        self._acknowledged, connection = context.Pipe(duplex=False)
        self._process = context.Process(target=worker.main, args=(connection, path, timeout, at, verb, *arguments))
        self._process.start()
        connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait()
        self._acknowledged.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int | None:
        self._process.join(60)
        return self._process.exitcode

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wait_stopped(self) -> None:
        """Return when the process has stopped itself."""
        while True:
            shown = subprocess.run(
                ["ps", "-o", "stat=", "-p", str(self.pid)], capture_output=True, text=True, check=True
            )
            if shown.stdout.startswith("T"):
                return
            time.sleep(0.005)

    def next(self) -> str:
        """The next step that the process acknowledges."""
        said: str = self._acknowledged.recv()
        return said

    def rest(self) -> list[str]:
        """All further steps that it acknowledges until it ends."""
        said: list[str] = []
        with contextlib.suppress(EOFError):
            while True:
                said.append(self._acknowledged.recv())
        return said

    def finish(self) -> list[str]:
        """`rest`, for a process that must end well."""
        said = self.rest()
        assert self.wait() == 0
        return said


@functools.cache
def _context() -> ForkServerContext:
    """Processes forked from one that has imported everything: imports take longer than all that the tests do."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "files.worker"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


def done(path: Path, verb: str, *arguments: object) -> list[str]:
    """What a process acknowledges that does its work and ends well."""
    with Worker(path, verb, *arguments) as process:
        return process.finish()
