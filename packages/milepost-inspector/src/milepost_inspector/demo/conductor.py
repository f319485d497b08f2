"""Starts the world and the workers, kills workers, asks the person, and collects what the report needs."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import milepost
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from milepost.saver import Saver
from milepost.tools import MARK
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from milepost_inspector.demo import records, world
from milepost_inspector.demo.audit import Audit, audit
from milepost_inspector.demo.weigh import Weight, weigh
from milepost_inspector.errors import UsageError

POLL = 0.02
"""Seconds between two looks at the progress."""

Ask = Callable[[Mapping[str, Any]], str]
"""Shows a person what the agent asks, and returns the answer."""


class DemoError(Exception):
    """The demo cannot go on: a process of it failed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    url: str
    thread: str
    log: Path
    """Where the world writes; what the workers print on standard error goes beside it."""
    records: int
    batch: int
    kills: int
    seed: int
    ledger: bool = True
    """Record tool calls, so that none is performed twice."""

    @property
    def config(self) -> RunnableConfig:
        """Names the thread."""
        return {"configurable": {"thread_id": self.thread}}


@dataclass(frozen=True, slots=True)
class Kill:
    """What the store held when a worker was gone."""

    run: int
    records: int
    """Records that had had their effect."""
    step: int | None
    """Superstep of the last checkpoint, None when there was none yet."""
    kept: int
    """Tasks of the next superstep whose results were on record: those that need not run again."""


@dataclass(slots=True)
class Outcome:
    """What happened."""

    plan: Plan
    runs: int = 0
    kills: list[Kill] = field(default_factory=list)
    approved: bool = False
    last_words: str = ""
    audit: Audit = field(default_factory=Audit)
    replayed: int = 0
    """Calls that were asked for again and answered from the ledger, by the messages of the last state."""
    weight: Weight = field(default_factory=Weight)
    checkpoints: int = 0
    stored: int = 0
    """Bytes of the thread in the store."""
    seconds: float = 0.0


def check(saver: Saver, url: str, *, ledger: bool) -> None:
    """Raises `milepost.MilepostError` for a store that does not answer, and `UsageError` for one that does not do for
    the demo."""
    if not saver.backend.capabilities >= {"durable", "shared"}:
        raise UsageError(f"{url} lives and dies with one process; the demo needs a store that others see")
    if ledger and "ledger" not in saver.backend.capabilities:
        raise UsageError(f"{url} keeps no ledger of tool calls: run the demo with --no-ledger")
    saver.get_tuple({"configurable": {"thread_id": "demo"}})


def conduct(plan: Plan, console: Console, ask: Ask) -> Outcome:
    """Run the whole job.

    Raises `milepost.MilepostError` when the store cannot be opened, `UsageError` when it is no store for several
    processes, `DemoError` when a process fails, and ``OSError`` when the log cannot be written. No process is left behind, however this ends.
    """
    started = time.monotonic()
    outcome = Outcome(plan)
    config = plan.config
    with milepost.connect(plan.url) as saver:
        check(saver, plan.url, ledger=plan.ledger)
        plan.log.touch()
        with _process("world", plan, [str(plan.log)]) as outside:
            job = _Job(outcome, console, saver, _port(outside))
            with job.processes:
                job.run(ask)
        final = saver.get_tuple(config)
        values: dict[str, Any] = final.checkpoint["channel_values"] if final else {}
        _errors(plan).unlink()
        outcome.audit = audit(
            plan.log,
            records.load(plan.records),
            values.get("totals", {}),
            approved=outcome.approved,
            once=plan.ledger,
        )
        outcome.replayed = sum(_replayed(message) for message in values.get("messages", ()))
        stats = saver.stats(plan.thread)
        outcome.checkpoints, outcome.stored = stats.checkpoints, stats.bytes
        with console.status("serialising every checkpoint whole, for comparison"):
            outcome.weight = weigh(saver, config)
    outcome.seconds = time.monotonic() - started
    return outcome


class _Job:
    """The run in progress."""

    def __init__(self, outcome: Outcome, console: Console, saver: milepost.Saver, port: int) -> None:
        self.outcome = outcome
        self.plan = outcome.plan
        self.console = console
        self.saver = saver
        self.port = port
        self.dice = random.Random(outcome.plan.seed)  # noqa: S311  # kills are to be repeatable
        self.processes = contextlib.ExitStack()
        self.spare = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        plan = self.plan
        arguments = ["--url", plan.url, "--thread", plan.thread, "--world", str(self.port)]
        arguments += ["--records", str(plan.records), "--batch", str(plan.batch)]
        arguments += ["--ledger" if plan.ledger else "--no-ledger"]
        return self.processes.enter_context(_process("worker", plan, arguments))

    def run(self, ask: Ask) -> None:
        """From the first worker to the last word."""
        share = self.plan.records / max(self.plan.kills, 1)
        targets = [int(share * (number + self.dice.uniform(0.1, 0.9))) for number in range(self.plan.kills)]
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=self.console) as progress:
            bar = progress.add_task("records", total=self.plan.records)
            word = None
            while word is None:
                word = self._work(targets, lambda done: progress.update(bar, completed=done))
        if "question" in word:
            answer = ask(word["question"])
            self.outcome.approved = answer == "approve"
            with self.console.status("another process goes on with the answer"):
                word = self._work([], lambda _: None, answer)
        self.outcome.last_words = (word or {}).get("end", "")

    def _work(
        self, targets: list[int], show: Callable[[int], None], answer: str | None = None
    ) -> dict[str, Any] | None:
        """One worker from its order to its end: its last word, or None when it was killed."""
        self.outcome.runs += 1
        worker = self.spare
        if answer is None:
            # The next one imports LangChain, which takes seconds, while this one works. After the answer comes none.
            self.spare = self._start()
        assert worker.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(json.dumps({"run": self.outcome.runs, "answer": answer}).encode() + b"\n")
            worker.stdin.flush()
        killed = False
        while worker.poll() is None:
            done = self._done()
            show(done)
            if targets and done >= targets[0]:
                targets.pop(0)
                # The wait is about a superstep long, so that some kills fall between two of them.
                time.sleep(self.dice.uniform(0.0, 0.3))
                worker.kill()
                killed = True
                break
            time.sleep(POLL)
        out, _ = worker.communicate()
        if worker.returncode == 0:
            show(self._done())
            word: dict[str, Any] = json.loads(out)
            return word
        if not killed:
            raise DemoError(f"worker {self.outcome.runs} failed (exit {worker.returncode}): {_last_line(self.plan)}")
        self._record_kill()
        return None

    def _record_kill(self) -> None:
        head = self.saver.get_tuple(self.plan.config)
        kept = {task for task, _, _ in head.pending_writes or ()} if head else set()
        kill = Kill(self.outcome.runs, self._done(), head.metadata.get("step") if head else None, len(kept))
        self.outcome.kills.append(kill)
        self.console.print(f"SIGKILL to worker {kill.run} at record {kill.records}; a new process goes on")

    def _done(self) -> int:
        return min(world.ask(self.port, {"op": "count"})["distinct"], self.plan.records)


def _replayed(message: Any) -> bool:
    return isinstance(message, ToolMessage) and MARK in message.response_metadata


@contextlib.contextmanager
def _process(module: str, plan: Plan, arguments: list[str]) -> Generator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", f"milepost_inspector.demo.{module}", *arguments]
    with _errors(plan).open("ab") as errors:
        # A session of its own: Ctrl-C reaches the conductor alone, which then ends the others.
        process = subprocess.Popen(  # noqa: S603  # our own interpreter and modules
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _port(outside: subprocess.Popen[bytes]) -> int:
    replies: IO[bytes] | None = outside.stdout
    assert replies is not None
    line = replies.readline()
    if not line:
        raise DemoError("the outside world did not start")
    return int(line)


def _errors(plan: Plan) -> Path:
    return plan.log.with_suffix(".err")


def _last_line(plan: Plan) -> str:
    lines = _errors(plan).read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
