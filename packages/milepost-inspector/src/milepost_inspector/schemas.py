"""``milepost schema check``, ``milepost schema scan`` and ``milepost migrate``."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.migrating import Migrated, Mode
from milepost.saver import Saver
from milepost.schema import Release, compare
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from milepost_inspector import targets
from milepost_inspector.errors import UsageError
from milepost_inspector.stores import check_threads, existing

_SHOWN = 20
"""Refusals shown one by one."""


def add_to(commands: Any) -> None:
    """Add the commands to the parser's."""
    schema = commands.add_parser("schema", help="versions of the state: check the code, scan a store")
    kinds = schema.add_subparsers(required=True, metavar="COMMAND")
    check = kinds.add_parser(
        "check",
        help="fail if the state changed without a new version and an upgrade",
        description="Compares the state and nodes of a graph with those on record. Exit code 1, and the draft of an "
        "upgrade, if something changed that no schema declares.",
    )
    check.add_argument("target", metavar="MODULE:NAME", help="a compiled graph, a Schema, a dict of them, or a Saver")
    check.add_argument("--schema", metavar="MODULE:NAME", help="where the schemas are, if the graph has no saver")
    check.add_argument("--baseline", type=Path, required=True, help="the record, a JSON file to be kept with the code")
    check.add_argument("--update", action="store_true", help="write the record, if nothing is wrong")
    check.add_argument("--draft", type=Path, metavar="FILE", help="write the draft of an upgrade there")
    check.set_defaults(run=_check)
    scan = kinds.add_parser(
        "scan",
        help="which versions a store holds, and what could not be upgraded",
        description="Reads, and writes nothing. Exit code 1 if something could not be upgraded.",
    )
    _add_store(scan, needed=False)
    scan.add_argument("--json", action="store_true", help="for programs")
    scan.set_defaults(run=_scan)
    migrate = commands.add_parser(
        "migrate",
        help="rewrite what is stored to the version that the code declares",
        description="May be stopped at any moment and run again: what is done is not done twice, and with --cursor the "
        "threads that are done are not looked at. Exit code 1 if something could not be upgraded: that stays as it was.",
    )
    _add_store(migrate, needed=True)
    modes = migrate.add_mutually_exclusive_group()
    for mode, text in (
        ("dry-run", "tell what would be done to each thread, and do nothing"),
        ("finalise", "remove what is kept of rewritten checkpoints"),
        ("undo", "put back what is kept of rewritten checkpoints"),
    ):
        modes.add_argument(f"--{mode}", dest="mode", action="store_const", const=mode, help=text)
    migrate.add_argument("--json", action="store_true", help="for programs: a line for each thread")
    migrate.add_argument(
        "--cursor",
        type=Path,
        metavar="FILE",
        help="keep there how far it has come, and go on from there; removed when it is through",
    )
    migrate.set_defaults(run=_migrate, mode="rewrite")


def _add_store(parser: argparse.ArgumentParser, *, needed: bool) -> None:
    parser.add_argument("--url", help="the store (default: MILEPOST_URL, or that of the saver that --schema names)")
    parser.add_argument(
        "--schema",
        required=needed,
        metavar="MODULE:NAME",
        help="a Schema, a dict of them, a Saver, or a graph with one (an encrypted store needs a Saver, without --url)",
    )
    parser.add_argument("--history", action="store_true", help="all checkpoints, and not only the latest ones")
    parser.add_argument("--thread", action="append", metavar="ID", help="only this thread; may be repeated")


def _check(options: argparse.Namespace) -> int:
    now = targets.release(options.target, options.schema)
    path: Path = options.baseline
    if not path.exists():
        if not options.update:
            raise UsageError(f"there is no record at {path}: write the first one with --update")
        _write(path, now.dump())
        print(f"{path}: recorded {_names(now)}")
        return 0
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the baseline {path} cannot be read: {error}") from error
    findings = compare(Release.load(text), now)
    draft = "\n".join(f"# {found.ns or 'root'}\n{found.draft}" for found in findings if found.draft)
    for found in findings:
        print(found)
    if findings:
        if draft and options.draft:
            _write(options.draft, draft)
            print(f"\nThe draft of an upgrade is in {options.draft}.")
        elif draft:
            print(f"\nA draft, to be read with care:\n\n{draft}")
        return 1
    if options.update:
        _write(path, now.dump())
    print(f"{path}: nothing changed that was not declared ({_names(now)})")
    return 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error}") from error


def _names(release: Release) -> str:
    return ", ".join(
        f"{one.name} {'without a version' if one.version is None else one.version}" for one in release.records.values()
    )


def _scan(options: argparse.Namespace) -> int:
    threads: Counter[str] = Counter()
    checkpoints: Counter[str] = Counter()
    refused: list[Migrated] = []
    outdated = 0
    with _opened(options) as saver:
        for told in _each(saver, options, "dry-run", quiet=options.json):
            for (name, version), count in told.stored.items():
                label = _label(name, version)
                threads[label] += 1
                checkpoints[label] += count
            outdated += bool(told.changed)
            if told.refused:
                refused.append(told)
    if options.json:
        found: dict[str, Any] = {
            "versions": {
                name: {"threads": threads[name], "checkpoints": checkpoints[name]} for name in sorted(threads)
            },
            "outdated": outdated,
            "refused": {told.thread: list(told.refused) for told in refused},
        }
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return int(bool(refused))
    for label in sorted(threads):
        print(f"{label}: {threads[label]} threads, {checkpoints[label]} checkpoints looked at")
    if outdated or refused:
        print(f"{outdated} threads could be upgraded, {len(refused)} could not")
    elif options.schema:
        print("nothing is left to be upgraded")
    _show(refused)
    return int(bool(refused))


def _migrate(options: argparse.Namespace) -> int:
    changed = threads = 0
    refused: list[Migrated] = []
    mode: Mode = options.mode
    done = {
        "rewrite": "rewritten",
        "dry-run": "to be rewritten",
        "finalise": "removed for good, as they were before",
        "undo": "put back",
    }[mode]
    if options.cursor and options.thread:
        raise UsageError("--cursor is for all threads of a store: leave out --thread")
    mark = None if options.cursor is None else _Mark.read(options.cursor, mode, history=options.history)
    with _opened(options) as saver:
        for told in _each(saver, options, mode, quiet=False, mark=mark):
            changed += told.changed
            threads += bool(told.changed)
            if told.refused:
                refused.append(told)
            if options.json:
                print(json.dumps(_facts(told), ensure_ascii=False), flush=True)
            elif mode == "dry-run" and (told.changed or told.refused):
                print(f"{told.thread}: {told.changed} checkpoints {done}, {len(told.refused)} refused; {_stored(told)}")
            if mark is not None:
                mark.move(told)
    before = 0 if mark is None else mark.refused - len(refused)
    if mark is not None:
        mark.remove()
    if not options.json:
        earlier = f", and {before} before it was stopped" if before else ""
        print(f"{changed} checkpoints of {threads} threads {done}; {len(refused)} threads refused{earlier}")
        _show(refused)
    return int(bool(refused or before))


def _facts(told: Migrated) -> dict[str, Any]:
    stored = [
        {"schema": name, "version": version, "checkpoints": count} for (name, version), count in told.stored.items()
    ]
    return {"thread": told.thread, "stored": stored, "changed": told.changed, "refused": list(told.refused)}


def _stored(told: Migrated) -> str:
    return ", ".join(f"{count} of {_label(name, version)}" for (name, version), count in told.stored.items())


def _label(name: str | None, version: int | None) -> str:
    return "no schema" if name is None else f"{name} {version}"


@dataclass
class _Mark:
    """How far a migration has come, in a file."""

    path: Path
    mode: Mode
    history: bool
    cursor: str | None = None
    threads: int = 0
    refused: int = 0
    """Threads that something could not be upgraded of, in this run and those before."""

    @classmethod
    def read(cls, path: Path, mode: Mode, *, history: bool) -> _Mark:
        """Raises `UsageError` for the file of another migration."""
        if not path.exists():
            return cls(path, mode, history)
        try:
            found = json.loads(path.read_text("utf-8"))
            mark = cls(
                path, found["mode"], found["history"], found["cursor"], int(found["threads"]), int(found["refused"])
            )
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path} is not what a migration keeps with --cursor: {error!r}") from error
        if (mark.mode, mark.history) != (mode, history):
            theirs = f"{mark.mode}{' --history' if mark.history else ''}"
            raise UsageError(f"{path} is of another migration ({theirs}): finish that one, or remove the file")
        return mark

    def move(self, told: Migrated) -> None:
        """One thread further. The file is whole at any moment."""
        self.cursor, self.threads, self.refused = told.cursor, self.threads + 1, self.refused + bool(told.refused)
        facts = {name: value for name, value in vars(self).items() if name != "path"}
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text(json.dumps(facts), "utf-8")
        new.replace(self.path)

    def remove(self) -> None:
        """All threads are done."""
        self.path.unlink(missing_ok=True)


def _show(refused: list[Migrated]) -> None:
    for told in refused[:_SHOWN]:
        for reason in told.refused:
            print(f"  {told.thread}: {reason}")
    if len(refused) > _SHOWN:
        print(f"  and {len(refused) - _SHOWN} threads more")


@contextmanager
def _opened(options: argparse.Namespace) -> Generator[Saver]:
    given: Any = targets.saver_or_schemas(options.schema) if options.schema else None
    if isinstance(given, Saver):
        if options.url is None:
            with given:
                yield given
            return
        given = given.schemas.by_ns if given.schemas else None
    with existing(options.url, given) as saver:
        yield saver


def _each(
    saver: Saver, options: argparse.Namespace, mode: Mode, *, quiet: bool, mark: _Mark | None = None
) -> Iterable[Migrated]:
    """What became of each thread, with a progress bar where somebody looks."""
    console = Console(stderr=True)
    after, done = (None, 0) if mark is None else (mark.cursor, mark.threads)
    check_threads(saver, options.thread or ())
    found = saver.migrate(options.thread, mode=mode, history=options.history, after=after)
    if quiet or not console.is_terminal:
        yield from found
        return
    total = len(options.thread) if options.thread else saver.stats().threads
    # What goes to a file or a pipe must not be taken for what goes to the terminal.
    shown = sys.stdout.isatty()
    with Progress(console=console, transient=True, redirect_stdout=shown) as progress:
        bar = progress.add_task(mode, total=total, completed=done)
        for told in found:
            progress.update(bar, advance=1, description=escape(told.thread[:40]))
            yield told
