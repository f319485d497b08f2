"""A trial: a thread that is worked on by one worker after the other, the first of which dies at a chosen point."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import milepost
import psycopg
from ledger_points import POINTS, Death
from ledger_worker import Cell, Life, Word, database_of, live, receipt, reference
from milepost.tools import Ledger
from milepost.tools.adapter import verdict_of
from milepost_inspector.demo.world import ask
from stores import environment

LIVES = 12
"""Workers after which a thread must have ended."""


_one_at_a_time = threading.Lock()
"""Who starts a process also asks how all others ended, and an exit code can be read only once."""


def context() -> ForkServerContext:
    """New processes, without the time that importing LangChain takes."""
    found = multiprocessing.get_context("forkserver")
    # Where to find a module the server learns from its environment alone, and it passes over what it does not find.
    os.environ.update(environment())
    found.set_forkserver_preload(
        ["ledger_worker", "langchain.agents", "milepost_files", "milepost_postgres", "milepost_redis"]
    )
    return found


@dataclass(frozen=True)
class World:
    """The outside world: a process of its own."""

    port: int
    log: Path

    def effects(self, thread: str) -> Counter[str]:
        """Order -> how often it was charged."""
        found: Counter[str] = Counter()
        for line in self.log.read_text().splitlines():
            name, _, rest = json.loads(line)["id"].partition("/")
            if name == thread:
                found[rest.partition("#")[0]] += 1
        return found


def booked(url: str, thread: str) -> Counter[str]:
    """Order -> how often it was charged, by the rows of transactional tools."""
    with psycopg.connect(database_of(url)) as connection:
        rows = connection.execute("SELECT name, count(*) FROM charge WHERE thread = %s GROUP BY name", [thread])
        return Counter(dict(rows.fetchall()))


@contextmanager
def running_world(log: Path) -> Generator[World]:
    """Start it, and end it."""
    command = [sys.executable, "-m", "milepost_inspector.demo.world", str(log)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield World(int(process.stdout.readline()), log)
        finally:
            process.kill()


@dataclass
class Outcome:
    """What became of a thread."""

    killed: int = 0
    lives: int = 0
    paused: int = 0
    words: list[Word] = field(default_factory=list)
    effects: Counter[str] = field(default_factory=Counter)

    @property
    def last(self) -> Word:
        return self.words[-1] if self.words else Word(error="nobody said anything")


def all_deaths(seen: Word) -> list[Death]:
    """Every point and occurrence that a worker comes to which nobody kills."""
    counts = dict(seen.seen)
    return [Death(point, number) for point in POINTS for number in range(1, counts.get(point, 0) + 1)]


def expected(cell: Cell) -> Counter[str]:
    """Order -> how often it is to be charged."""
    return Counter(order for turn in cell.turns for order, _ in turn)


def right(cell: Cell, outcome: Outcome) -> bool:
    """Whether each charge was made as often as asked for, and the agent knows of each."""
    return outcome.effects == expected(cell) and (cell.restless or outcome.last.said == said(cell))


def said(cell: Cell) -> str:
    """The agent's last word, if every call has come to its end."""
    return "; ".join(f"charged {cents} for {order}" for turn in cell.turns for order, cents in turn)


def verdicts(world: World, thread: str, word: Word) -> dict[str, Any]:
    """Interrupt id -> what a person says who looks at the outside world."""
    found: dict[str, Any] = {}
    for id, question in word.asked:
        order, cents = question["arguments"]["order"], question["arguments"]["cents"]
        known = {"op": "find", "id": reference(thread, order, question["key"])}
        took_place = ask(world.port, known)["effects"] > 0
        found[id] = {"verdict": "applied", "result": receipt(order, cents)} if took_place else "not_applied"
    return found


def settle_by_hand(url: str, thread: str, word: Word, found: Mapping[str, Any]) -> None:
    """The same through `Ledger.resolve`, as an operator would."""
    with milepost.connect(url) as saver:
        ledger = Ledger(saver)
        for id, question in word.asked:
            verdict, _ = verdict_of(found[id])
            ledger.resolve(question["key"], verdict, by="operator", thread_id=thread)


class Worker:
    """A process that lives one life."""

    def __init__(self, life: Life, target: Callable[[Life, Connection], None] = live) -> None:
        self._life = life
        processes = context()
        self._ours, theirs = processes.Pipe(duplex=False)
        self._process = processes.Process(target=target, args=(life, theirs), daemon=True)
        with _one_at_a_time:
            self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        found = self._process.pid
        assert found is not None
        return found

    def wait_until_stopped(self) -> None:
        """Until the worker has stopped itself by SIGSTOP."""
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][0] != "T":
            assert self._process.is_alive(), "it ended before it was to be stopped"

    def go_on(self) -> None:
        """Let a stopped worker go on, which knows nothing of what happened meanwhile."""
        assert self._life.death is not None
        Path(self._life.death.stop).touch()
        os.kill(self.pid, signal.SIGCONT)

    def last_word(self) -> Word | None:
        """What it said in the end; None when it was killed."""
        try:
            word: Word | None = self._ours.recv()
        except EOFError:
            word = None
        self._ours.close()
        with _one_at_a_time:
            self._process.join()
        assert word is not None or self._process.exitcode == -signal.SIGKILL, self._process.exitcode
        return word


def trial(cell: Cell, url: str, thread: str, world: World, deaths: Sequence[Death] = ()) -> Outcome:
    """Work on a thread until it ends; the first workers die as `deaths` say, one after the other."""
    outcome = Outcome()
    answers: dict[str, Any] = {}
    while outcome.lives < LIVES and not (outcome.words and outcome.last.said):
        death = deaths[outcome.lives] if outcome.lives < len(deaths) else None
        outcome.lives += 1
        word = Worker(Life(cell, url, thread, world.port, outcome.lives, death, answers)).last_word()
        answers = {}
        if word is None:
            outcome.killed += 1
            continue
        outcome.words.append(word)
        if word.asked:
            outcome.paused += 1
            found = verdicts(world, thread, word)
            if cell.flavour == "blocking":
                settle_by_hand(url, thread, word, found)
            else:
                answers = found
    outcome.effects = booked(url, thread) if cell.kind == "transactional" else world.effects(thread)
    return outcome
