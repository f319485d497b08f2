"""SIGKILL at any moment: nothing acknowledged is lost, the thread reads intact, and each effect is there once.

``pytest integration/test_kill.py --kills 500 --kill-seed 1`` for more of it.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import killing
import milepost
import pytest
from driving import Durability, thread
from killing import Death
from milepost.saver import Saver

DEATHS = (signal.SIGKILL, signal.SIGXFSZ)


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """New processes, without the time that importing LangGraph takes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["langchain_core.messages", "langgraph.graph", "milepost", "milepost_files"])
    return context


class Witness:
    """Starts workers on one thread, and keeps what they were told to be stored."""

    def __init__(self, processes: ForkServerContext, folder: Path, name: str, flavour: str, mode: Durability) -> None:
        self._processes = processes
        self._folder = folder
        self._name = name
        self._life = (folder.as_posix(), name, flavour, mode)
        self.acknowledged: list[tuple[str, ...]] = []
        self.finished = False

    def watch(self, death: Death, *, kill_after: int | None = None, delay: float = 0.0) -> bool:
        """One worker's life; with `kill_after` it is killed after so many acknowledgements and a delay more.

        Tells whether it was killed. A worker that is neither killed nor finished is a failure.
        """
        ours, theirs = self._processes.Pipe(duplex=False)
        worker = self._processes.Process(target=killing.live, args=(*self._life, death, theirs), daemon=True)
        worker.start()
        theirs.close()
        heard = 0
        try:
            while True:
                told: tuple[str, ...] = ours.recv()
                heard += 1
                if told == ("finished",):
                    self.finished = True
                else:
                    self.acknowledged.append(told)
                if heard == kill_after:
                    time.sleep(delay)
                    worker.kill()
        except EOFError:
            ours.close()
        worker.join()
        assert self.finished or worker.exitcode in {-number for number in DEATHS}
        return worker.exitcode != 0

    def check(self) -> None:
        """What must hold after a death, of a store that a new process opens."""
        with milepost.connect(f"file:{self._folder.as_posix()}") as saver:
            graph, config = killing.build(saver), thread(self._name)
            history = list(graph.get_state_history(config))
            for snapshot in history:
                values = snapshot.values
                assert values.get("items", []) == killing.expected(killing.ROUNDS)[: len(values.get("items", []))]
                assert values.get("deltas", []) == values.get("items", [])
                assert len(values.get("messages", [])) == values.get("rounds", 0)
            self._nothing_is_lost(saver)
            if self.finished:
                values = graph.get_state(config).values
                assert values["items"] == values["deltas"] == killing.expected(killing.ROUNDS)
                assert [message.id for message in values["messages"]] == [f"m{n}" for n in range(killing.ROUNDS)]

    def _nothing_is_lost(self, saver: Saver) -> None:
        stored = {found.checkpoint["id"]: found for found in saver.list(thread(self._name))}
        latest = saver.get_tuple(thread(self._name))
        put = [told[1] for told in self.acknowledged if told[0] == "put"]
        assert set(put) <= stored.keys()
        assert not put or (latest is not None and latest.checkpoint["id"] >= max(put))
        for verb, checkpoint, *task in self.acknowledged:
            if verb == "put_writes" and checkpoint in stored:
                assert task[0] in {one for one, _, _ in stored[checkpoint].pending_writes or ()}


def _chosen() -> Iterator[Death]:
    for call in (1, 2, 5, 9):
        for verb in ("put", "put_writes"):
            for after in (False, True):
                yield Death(verb, call, after)


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("flavour", ["blocking", "async"])
def test_killed_in_and_around_each_call_of_the_store(
    processes: ForkServerContext, tmp_path: Path, flavour: str, durability: Durability
) -> None:
    witness = Witness(processes, tmp_path, "chosen", flavour, durability)
    killed = 0
    for death in _chosen():
        if witness.finished:
            break
        killed += witness.watch(death)
        witness.check()
    assert killed >= 8
    if not witness.finished:
        witness.watch(Death())
    witness.check()
    assert witness.finished


def _random_death(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.5:
        return {"death": Death(), "kill_after": chance.randint(1, 12), "delay": chance.uniform(0, 0.004)}
    return {"death": Death(byte=chance.randint(1, 6000))}


def test_killed_at_random(processes: ForkServerContext, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    kills = int(pytestconfig.getoption("--kills") or 0)
    chance = random.Random(pytestconfig.getoption("--kill-seed"))
    assert kills
    killed = threads = 0
    while killed < kills:
        threads += 1
        flavour, mode = chance.choice(["blocking", "async"]), chance.choice(["sync", "async"])
        witness = Witness(processes, tmp_path, f"thread {threads}", flavour, "sync" if mode == "sync" else "async")
        while not witness.finished:
            killed += witness.watch(**_random_death(chance))
            witness.check()
    # Every thread, once more, when all is over: later threads have not harmed earlier ones.
    with milepost.connect(f"file:{tmp_path.as_posix()}") as saver:
        graph = killing.build(saver)
        for number in range(1, threads + 1):
            values = graph.get_state(thread(f"thread {number}")).values
            assert values["items"] == values["deltas"] == killing.expected(killing.ROUNDS)
