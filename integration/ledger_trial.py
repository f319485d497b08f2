"""A trial: a thread that is worked on by one worker after the other, the first of which dies at a chosen point."""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import milepost
from ledger_points import Death
from ledger_worker import Cell, Life, Word, live, receipt, reference
from milepost.tools import Ledger
from milepost.tools.adapter import verdict_of
from milepost_inspector.demo.world import ask

LIVES = 12
"""Workers after which a thread must have ended."""


def context() -> ForkServerContext:
    """New processes, without the time that importing LangChain takes."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["ledger_worker", "langchain.agents", "milepost_files"])
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


def expected(cell: Cell) -> Counter[str]:
    """Order -> how often it is to be charged."""
    return Counter(order for turn in cell.turns for order, _ in turn)


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


def trial(cell: Cell, url: str, thread: str, world: World, deaths: list[Death]) -> Outcome:
    """Work on a thread until it ends; the first workers die as `deaths` say, one after the other."""
    outcome, processes = Outcome(), context()
    while outcome.lives < LIVES:
        death = deaths[outcome.lives] if outcome.lives < len(deaths) else None
        outcome.lives += 1
        ours, theirs = processes.Pipe(duplex=False)
        answers: dict[str, Any] = {}
        if outcome.words and outcome.last.asked:
            answers = verdicts(world, thread, outcome.words.pop())
        life = Life(cell, url, thread, world.port, outcome.lives, death, answers)
        worker = processes.Process(target=live, args=(life, theirs), daemon=True)
        worker.start()
        theirs.close()
        try:
            outcome.words.append(ours.recv())
        except EOFError:
            worker.join()
            assert worker.exitcode == -signal.SIGKILL, f"{cell}, {death}: a worker ended with {worker.exitcode}"
            outcome.killed += 1
            continue
        finally:
            ours.close()
        worker.join()
        if outcome.last.said:
            break
        if outcome.last.asked:
            outcome.paused += 1
            if cell.flavour == "blocking":
                word = outcome.words.pop()
                settle_by_hand(url, thread, word, verdicts(world, thread, word))
    outcome.effects = world.effects(thread)
    return outcome
