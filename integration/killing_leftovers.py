"""Copies, restorations and erasures that are killed at each of their calls, and what a sweep makes of what is left; and
sweeps in one process while another one copies.

Run as a script: ``killing_leftovers.py copy|restore|erase|race URL FOLDER``. It prints how often it killed, or copied.
Everything is done in forked processes: the one that forks them never opens a store.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import milepost
from killing_upkeep import Killer, in_child, prepare
from milepost import ArchiveFolder, Retention, chores, filling, maintenance
from milepost.flavour import run
from milepost.saver import Saver
from milepost.store import Store
from milepost.testing.chain import at, inside
from milepost.testing.same import assert_same

KEPT = 2
COPIES = 8


class Dies(ArchiveFolder):
    """Kills its process before or after the archive of an erased thread goes."""

    def __init__(self, folder: Path, moment: str) -> None:
        super().__init__(folder)
        self._moment = moment

    def erase(self, thread: str) -> object:
        if self._moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        removed = super().erase(thread)
        if self._moment == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return removed


def _small_batches() -> None:
    maintenance.PAGE = chores.PAGE = 24  # type: ignore[attr-defined]
    # Long enough for nobody: it is over when the next process looks.
    filling.TTL = 0.001  # type: ignore[misc]


def mortal(url: str, kill: tuple[int, str] | None, what: Callable[[Saver], object]) -> None:
    """Do `what`, and be killed at a call of the store."""
    _small_batches()
    with milepost.connect(url) as saver:
        saver.stats("nobody")  # set up
        if kill is not None:
            store: Any = saver.blocking_side().store
            store._port = Killer(store._port, *kill)
        what(saver)


def archived(url: str, folder: Path, thread: str) -> None:
    """A thread of which most is in an archive."""
    with milepost.connect(url) as saver:
        saver.copy_thread("origin", thread)
        report = saver.maintain(Retention(keep_last=KEPT), threads=[thread], hooks=ArchiveFolder(folder))
        assert [one.outcome for one in report.threads] == ["changed"]


def swept(saver: Saver, store: Store, thread: str, **options: Any) -> list[tuple[str, bool]]:
    """What a sweep tells of a thread, as soon as nobody holds its lease."""
    while run(store.holder(thread)) is not None:
        pass
    leftovers = saver.sweep(**options).leftovers
    return [(one.kind, one.removed) for one in leftovers if one.thread == thread]


def check_filled(url: str, thread: str, again: Callable[..., object]) -> None:
    """What is left of a copy or a restoration is gone or told; done again, it is whole, and nothing is left beside it."""
    _small_batches()
    with milepost.connect(url) as saver:
        store = saver.backend.blocking()
        told = swept(saver, store, thread)
        outline = run(store.outline(thread))
        if outline is None:
            assert told in ([], [("thread", True)]), told
        else:
            assert outline.marks or outline.strays
            assert told in ([], [("copy", False)]), told
            # A copy that nobody heard of, but whose lease was given back, is whole.
            assert told or len(outline.marks) == saver.stats(whole(saver, again)).checkpoints
        again(saver)
        assert swept(saver, store, thread) == []
        assert_same(contents(saver, thread), contents(saver, whole(saver, again)))
        saver.erase([thread])
        assert saver.stats(thread).packs == 0


def whole(saver: Saver, again: Callable[..., object]) -> str:
    """The name of a thread that was filled in the same way, and by nobody who was killed."""
    name = f"whole {again.__name__}"
    if not saver.stats(name).checkpoints:
        again(saver, name)
    return name


def contents(saver: Saver, thread: str) -> list[Any]:
    """All that can be read of a thread, without its name."""
    found = list(saver.list(at(thread, None)))
    for item in found:
        for config in (item.config, item.parent_config):
            if config is not None:
                assert inside(config).pop("thread_id") == thread
    return [tuple(item) for item in found]


def fill_kills(url: str, folder: Path, mode: str) -> int:
    """Kill a copy or a restoration before every call, and after some; returns how often."""
    if mode == "restore":
        assert in_child(archived, url, folder, "archived") == 0
    path = ArchiveFolder(folder).path_of("archived")
    killed = number = 0
    while True:
        for moment in ("before", "after") if number % 4 == 1 else ("before",):
            thread = f"{moment} {number}"

            def copy(saver: Saver, target: str = thread) -> None:
                saver.copy_thread("origin", target)

            def restore(saver: Saver, target: str = thread) -> None:
                saver.restore(path, target)

            again = copy if mode == "copy" else restore
            code = in_child(mortal, url, (number, moment), again)
            if code == 0:
                return killed
            assert code == -signal.SIGKILL, code
            assert in_child(check_filled, url, thread, again) == 0, f"killed {moment} call {number}"
            killed += 1
        number += 1


def check_erased(url: str, folder: Path, thread: str) -> None:
    """A sweep brings an erasure to its end if the thread is gone, and tells of it otherwise; then it is erased again."""
    hooks = ArchiveFolder(folder)
    with milepost.connect(url) as saver:
        store = saver.backend.blocking()
        told = swept(saver, store, thread, hooks=hooks)
        left = saver.stats(thread).checkpoints
        if left:
            assert left >= KEPT
            assert told in ([], [("archive", False)]), told
            assert hooks.path_of(thread).exists()
            (erased,) = saver.erase([thread], hooks=hooks)
            assert (erased.error, erased.archived) == ("", 1)
        else:
            assert told == [("archive", True)], told
        assert not hooks.path_of(thread).exists()
        assert swept(saver, store, thread, hooks=hooks) == []
        assert saver.stats(thread)[:4] == (0, 0, 0, 0)


def erase_kills(url: str, folder: Path) -> int:
    """Kill an erasure before and after every call, and around the removal of the archive; returns how often."""
    killed = number = 0
    over = False
    while not over:
        for moment in ("before", "after"):
            kinds: list[tuple[tuple[int, str] | None, str]] = [((number, moment), "")]
            if not number:
                kinds.append((None, moment))
            for kill, dies in kinds:
                thread = f"{moment} {number}{dies}"
                assert in_child(archived, url, folder, thread) == 0

                def erase(saver: Saver, thread: str = thread, dies: str = dies) -> None:
                    saver.erase([thread], hooks=Dies(folder, dies))

                code = in_child(mortal, url, kill, erase)
                if code == 0:
                    over = True
                    continue
                assert code == -signal.SIGKILL, code
                assert in_child(check_erased, url, folder, thread) == 0, f"killed {moment} call {number} {dies}"
                killed += 1
        number += 1
    return killed


def tidy(url: str, stop: int) -> None:
    """Maintain and sweep until `stop` can be read."""
    with milepost.connect(url) as saver:
        names = [f"copy {number}" for number in range(COPIES)]
        while not select.select([stop], [], [], 0)[0]:
            report = saver.maintain(threads=names)
            assert not report.failed, report
            assert not [one for one in saver.sweep().leftovers if one.kind == "thread"]


def race(url: str) -> int:
    """Copy while another process tidies up; returns how often."""
    assert in_child(prepare, url) == 0
    stop, stopping = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            tidy(url, stop)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    maintenance.PAGE = 2
    with milepost.connect(url) as saver:
        for number in range(COPIES):
            saver.copy_thread("origin", f"copy {number}")
        os.write(stopping, b"s")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "tidying failed"
        for number in range(COPIES):
            assert_same(contents(saver, "origin"), contents(saver, f"copy {number}"))
    return COPIES


if __name__ == "__main__":
    mode, url, folder = sys.argv[1:]
    if mode == "race":
        print(race(url))
    else:
        assert in_child(prepare, url) == 0
        print(erase_kills(url, Path(folder) / "archive") if mode == "erase" else fill_kills(url, Path(folder), mode))
