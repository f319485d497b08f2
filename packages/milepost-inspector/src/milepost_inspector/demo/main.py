"""`milepost demo`: prepares the folder, runs the job, asks the person, prints the report."""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self
from urllib.parse import quote

import milepost
from milepost.testing import servers
from rich.console import Console
from rich.table import Table

from milepost_inspector.demo import conductor, records, report
from milepost_inspector.errors import UsageError

MARK = "made-by-milepost-demo"
"""A file that marks a folder as the demo's own, which the next run may empty."""


def run(options: argparse.Namespace, console: Console) -> int:
    """Run the demo as the options say, and return its exit code."""
    available = len(records.load())
    if options.records > available:
        raise UsageError(f"--records {options.records}: there are only {available} records")
    folder: Path = options.dir
    _check(folder, keep=options.keep)
    with _store(options.url or _url(folder / "state")) as url:
        if options.url:
            # What earlier runs left goes only when this one can begin.
            with milepost.connect(url) as saver:
                conductor.check(saver, url, ledger=True)
        _prepare(folder, keep=options.keep)
        return _demonstrate(options, url, console)


def _demonstrate(options: argparse.Namespace, url: str, console: Console) -> int:
    folder: Path = options.dir
    thread = f"demo-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    plan = conductor.Plan(
        url=url,
        thread=thread,
        log=folder / f"world-{thread}.jsonl",
        records=options.records,
        batch=options.batch,
        kills=options.kills,
        seed=options.seed,
    )
    plans = [plan]
    if not options.ledger:
        without = f"{thread}-without"
        plans.insert(0, replace(plan, thread=without, log=folder / f"world-{without}.jsonl", ledger=False))
    answers: list[str] = []

    def ask(question: Mapping[str, Any]) -> str:
        if not answers:
            answers.append(_ask(question, console, ask_nobody=options.yes))
        else:
            console.print(f"The agent waits for approval: {answers[0]}, as before")
        return answers[0]

    try:
        outcomes = [_conducted(one, console, ask) for one in plans]
    except conductor.DemoError as error:
        print(f"milepost: {error}", file=sys.stderr)
        return 1
    return 0 if report.report(outcomes, console, kept=options.url not in _SERVERS) else 1


def _conducted(plan: conductor.Plan, console: Console, ask: conductor.Ask) -> conductor.Outcome:
    console.print(
        f"{plan.records} records in batches of {plan.batch}; {plan.kills} kills; "
        f"{'with' if plan.ledger else 'without'} the ledger; the store is {plan.url}",
        soft_wrap=True,
    )
    return conductor.conduct(plan, console, ask)


@contextmanager
def _store(url: str) -> Generator[str]:
    """The URL of the store. One of `_SERVERS` alone is a server that is started for the demo, and gone after it."""
    if url not in _SERVERS:
        yield url
        return
    try:
        server = _SERVERS[url]()
    except servers.MissingServer as exc:
        raise UsageError(str(exc)) from exc
    with server:
        yield server.url()


def _valkey() -> Server:
    try:
        from milepost.testing import servers_redis  # noqa: PLC0415  # the client is an extra
    except ImportError as exc:
        raise UsageError('valkey: needs a client: pip install "milepost[redis]"') from exc
    return servers_redis.Redis(settings={"appendonly": "yes"})


class Server(Protocol):
    """What is started for the demo: from `milepost.testing`."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def url(self) -> str: ...


_SERVERS: Final[Mapping[str, Callable[[], Server]]] = {
    "postgres:": servers.Postgres,
    "postgresql:": servers.Postgres,
    "valkey:": _valkey,
}
"""By what stands for a URL: a server of the machine's own binaries."""


def _url(store: Path) -> str:
    path = quote(store.as_posix())
    return f"file:{path}" if store.is_absolute() else f"file:./{path}"


def _check(folder: Path, *, keep: bool) -> None:
    """Raises `UsageError` where `_prepare` would remove what is somebody else's."""
    if folder.exists() and not keep and not (folder / MARK).exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} holds something that the demo has not made: name another with --dir")


def _prepare(folder: Path, *, keep: bool) -> None:
    if folder.exists() and not keep:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def _ask(question: Mapping[str, Any], console: Console, *, ask_nobody: bool) -> str:
    table = Table(title="The agent waits for approval", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for key, value in sorted(question["totals"].items()):
        name, cents, _ = key.rpartition(" cents")
        table.add_row(*((name, f"{value / 100:,.2f}") if cents else (key, f"{value:,}")))
    console.print(table)
    console.print(question["question"], end=" ")
    if ask_nobody or not sys.stdin.isatty():
        console.print("approved by --yes" if ask_nobody else "approved: there is no terminal to ask at")
        return "approve"
    try:
        answer = console.input("\\[y/N] ")
    except EOFError:
        console.print("refused: the input has ended")
        return "refuse"
    return "approve" if answer.strip().lower() in {"y", "yes"} else "refuse"
