"""Maintenance that is killed at each of its calls, and maintenance beside a run in another process.

Run as a script: ``killing_upkeep.py kills|race URL FOLDER``. It prints how often it killed, or maintained. Everything is
done in forked processes: the one that forks them never opens a store.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import milepost
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from milepost import ArchiveFolder, Retention, maintenance
from milepost.compaction import trim_messages
from milepost.flavour import run
from milepost.saver import Saver
from milepost.store import Port
from milepost.testing.chain import Chain, at, inside
from milepost.testing.lab import Face
from milepost.testing.same import assert_same
from milepost.testing.suite.bounded import words
from milepost.testing.suite.delta import rebuilt

STEPS = 12
POLICY = Retention(keep_last=3)
COMPACT = trim_messages(last=5, channel="m")


def in_child(work: Callable[..., None], *arguments: Any) -> int:
    """Do `work` in a forked process; its exit code, or minus the signal that killed it."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        work(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class Killer:
    """A port that kills its process before or after its call number `at`, from 0."""

    def __init__(self, port: Port, at: int, moment: str) -> None:
        self._port = port
        self._at = at
        self._moment = moment
        self._calls = 0

    async def call(self, request: object) -> object:
        number, self._calls = self._calls, self._calls + 1
        if number == self._at and self._moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        reply = await self._port.call(request)
        if number == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        return reply


def prepare(url: str) -> None:
    """The thread "origin": a growing list, a delta channel, a fork, pending writes, another namespace."""
    with milepost.connect(url) as saver:
        face = Face(saver, "blocking")
        run(_prepare(Chain(face, "origin"), Chain(face, "origin", "sub")))


async def _prepare(root: Chain, sub: Chain) -> None:
    messages: list[Any] = []
    for number in range(STEPS):
        messages.append(HumanMessage(words(number), id=str(number)))
        values: dict[str, Any] = {"m": list(messages), "n": number, "text": words(-number)}
        if number % 6 == 5:
            values["d"] = _DeltaSnapshot([f"snapshot {number}"])
        counters = {"counters_since_delta_snapshot": {"d": [1, 1]}}
        await root.put(values, changed=(*values, "d"), metadata=counters)
        if number < STEPS - 1:
            await root.writes(("d", number))
        await sub.put({"text": words(1000 + number)})
    await root.put({"n": -1}, id="0012x", parent="0004")
    await root.put({"m": messages, "n": -2}, id="0012y", parent="0012")


def maintain(url: str, thread: str, folder: str, kill: tuple[int, str] | None) -> None:
    """The whole maintenance, in small steps."""
    maintenance.STEP = 4
    with milepost.connect(url) as saver:
        if kill is not None:
            saver.copy_thread("origin", thread)
            store: Any = saver.blocking_side().store
            store._port = Killer(store._port, *kill)
        hooks = ArchiveFolder(folder)
        report = saver.maintain(POLICY, threads=[thread], compact=COMPACT, quiet=0, hooks=hooks)
        assert not report.failed, report
        assert [one.outcome for one in report.threads] in ([], ["changed"]), report


def check(url: str, thread: str, folder: str) -> None:
    """What is left reads as it did, and maintenance carries on from there to the same end."""
    with milepost.connect(url) as saver:
        run(_check(saver, thread, done=False))
    maintain(url, thread, folder, None)
    with milepost.connect(url) as saver:
        run(_check(saver, thread, done=True))


async def _check(saver: Saver, thread: str, *, done: bool) -> None:
    face = Face(saver, "blocking")
    everything = {_place(item): item for item in await face.list(at("origin", None))}
    found = {_place(item): item for item in await face.list(at(thread, None))}
    for place, item in found.items():
        if "compacted" in item.metadata:
            assert place[0] == ""
            assert (
                item.checkpoint["channel_values"]["m"] == everything["", "0012y"].checkpoint["channel_values"]["m"][-5:]
            )
            continue
        for field in ("checkpoint", "metadata", "pending_writes"):
            assert_same(getattr(everything[place], field), getattr(item, field), f"{field} of {place}")
        if not place[0]:
            assert_same(await rebuilt(face, at("origin", *place)), await rebuilt(face, at(thread, *place)), f"{place}")
    heads = [id for ns, id in found if not ns]
    assert heads[0] == "0012y" or "compacted" in found["", heads[0]].metadata
    if done:
        assert heads[:3] == [heads[0], "0012y", "0012x"]
        assert "compacted" in found["", heads[0]].metadata
        assert len([id for ns, id in found if ns == "sub"]) >= 3
        assert saver.maintain(POLICY, threads=[thread], compact=COMPACT, quiet=0).threads == ()


def _place(item: Any) -> tuple[str, str]:
    return str(inside(item.config)["checkpoint_ns"]), str(item.checkpoint["id"])


def kills(url: str, folder: Path) -> int:
    """Kill before every call, and after some, which is the same but for what happens between two; returns how often."""
    assert in_child(prepare, url) == 0
    count = number = 0
    while True:
        for moment in ("before", "after") if number % 4 == 1 else ("before",):
            thread, archive = f"{moment} {number}", str(folder / f"{moment}{number}")
            code = in_child(maintain, url, thread, archive, (number, moment))
            if code == 0:
                return count
            assert code == -signal.SIGKILL, code
            assert in_child(check, url, thread, archive) == 0, f"killed {moment} call {number}"
            count += 1
        number += 1


def write(url: str, steps: int, turns: int) -> None:
    """A run that goes on, whatever others do to its thread. `turns`: a pipe with a byte for each maintenance done."""
    with milepost.connect(url) as saver:
        run(_write(Chain(Face(saver, "blocking"), "race"), steps, turns))


async def _write(chain: Chain, steps: int, turns: int) -> None:
    messages: list[Any] = []
    for number in range(steps):
        messages.append(HumanMessage(words(number), id=str(number)))
        await chain.put({"m": list(messages), "n": number, "text": words(-number)})
        await chain.writes(("m", messages[-1]), ("n", number))
        if number % 10 == 9:
            assert_same(messages, (await chain.values())["m"])
            _wait_for_a_quiet_turn(turns)


def _wait_for_a_quiet_turn(turns: int) -> None:
    """A run that never stops may win every race. Of two turns from here the second met no write."""
    os.set_blocking(turns, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(turns, 4096):
            pass
    os.set_blocking(turns, True)
    for _ in range(2):
        assert os.read(turns, 1), "the maintenance failed"


def race(url: str, steps: int = 60) -> int:
    """Maintain while another process writes; returns how often something was done, at least every ten steps."""
    turns, turn = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(turn)
            write(url, steps, turns)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    count = 0
    with milepost.connect(url) as saver:
        code = None
        while code is None:
            report = saver.maintain(Retention(keep_last=3), threads=["race"])
            assert {one.outcome for one in report.threads} <= {"changed", "moved"}, report
            count += sum(one.outcome == "changed" for one in report.threads)
            os.write(turn, b"t")
            ended, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
        assert code == 0, "the run failed"
        saver.maintain(Retention(keep_last=3), threads=["race"])
    with milepost.connect(url) as fresh:
        found = list(fresh.list(at("race")))
        assert [item.checkpoint["id"] for item in found] == [f"{number:04}" for number in range(steps, steps - 3, -1)]
        for number, item in zip(range(steps, steps - 3, -1), found, strict=True):
            messages = [HumanMessage(words(one), id=str(one)) for one in range(number)]
            assert_same(messages, item.checkpoint["channel_values"]["m"])
            assert_same([("task", "m", messages[-1]), ("task", "n", number - 1)], item.pending_writes)
    return count


if __name__ == "__main__":
    mode, url, folder = sys.argv[1:]
    print(kills(url, Path(folder)) if mode == "kills" else race(url))
