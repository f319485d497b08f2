"""``milepost maintain``, ``milepost sweep``, ``milepost import`` and ``milepost erase``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from milepost.archive import ArchiveFolder
from milepost.retention import Retention
from milepost.saver import Saver
from milepost.upkeep import Hooks, Report, ThreadReport
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from milepost_inspector import targets
from milepost_inspector.stores import check_threads, existing, lasting

_SHOWN = 20
"""Threads shown one by one."""


def add_to(commands: Any) -> None:
    """Add the commands to the parser's."""
    maintain = commands.add_parser(
        "maintain",
        help="shorten threads by policy, compact them, and give back space",
        description="Without a limit every checkpoint stays, and small packs are merged. Safe while the application "
        "runs. Exit code 1 if a thread could not be maintained.",
    )
    maintain.add_argument("--url", help="the store (default: MILEPOST_URL)")
    maintain.add_argument("--thread", action="append", metavar="ID", help="only this thread; may be repeated")
    stays = maintain.add_argument_group("what stays")
    stays.add_argument("--keep-last", type=int, metavar="N", help="the newest checkpoints of each namespace")
    stays.add_argument("--keep-for", metavar="TIME", help="checkpoints put within this time, such as 30d")
    stays.add_argument(
        "--thin",
        action="append",
        default=[],
        type=_pair,
        metavar="AGE:INTERVAL",
        help="of those older than AGE one for each INTERVAL, such as 7d:1h; may be repeated",
    )
    for what, text in (
        ("waiting", "where somebody is asked something or a step is half done"),
        ("forks", "where branches part"),
        ("pinned", 'with a true "pinned" in their metadata'),
    ):
        stays.add_argument(
            f"--keep-{what}", action=argparse.BooleanOptionalAction, default=True, help=f"checkpoints {text} (yes)"
        )
    stays.add_argument("--idle-thread", metavar="TIME", help="delete threads that were not used for so long")
    stays.add_argument("--threads", metavar="PATTERN", help="only threads whose id matches, such as 'customer-*'")
    stays.add_argument("--namespaces", metavar="PATTERN", help="only namespaces that match; '' is the root alone")
    smaller = maintain.add_argument_group("what gets smaller")
    smaller.add_argument(
        "--compact", action="append", default=[], metavar="MODULE:NAME", help="a compactor; may be repeated"
    )
    smaller.add_argument("--compact-over", metavar="SIZE", help="only latest checkpoints larger than this, such as 1MB")
    smaller.add_argument(
        "--quiet", default="60s", metavar="TIME", help="only threads that were quiet for so long (60s)"
    )
    smaller.add_argument("--graph", metavar="MODULE:NAME", help="the graph, to compact its delta channels too")
    smaller.add_argument("--merge", action=argparse.BooleanOptionalAction, default=True, help="merge small packs (yes)")
    maintain.add_argument("--archive", type=Path, metavar="FOLDER", help="first archive there what goes")
    maintain.add_argument("--dry-run", action="store_true", help="tell what would be done, and do nothing")
    maintain.add_argument("--json", action="store_true", help="for programs")
    maintain.set_defaults(run=_maintain)
    sweep = commands.add_parser(
        "sweep",
        help="remove what interrupted copies, restorations, deletions and erasures have left",
        description="Safe while the application runs. Exit code 1 if somebody has to look after something.",
    )
    sweep.add_argument("--url", help="the store (default: MILEPOST_URL)")
    sweep.add_argument("--archive", type=Path, metavar="FOLDER", help="and what is left of erased threads there")
    sweep.add_argument("--dry-run", action="store_true", help="tell what would be done, and do nothing")
    sweep.add_argument("--json", action="store_true", help="for programs")
    sweep.set_defaults(run=_sweep)
    load = commands.add_parser(
        "import",
        help="load what maintenance archived",
        description="Checkpoints go to the thread they were of, if nothing is left of that, or to --thread.",
    )
    load.add_argument("archive", type=Path, nargs="+", metavar="FILE", help="written by milepost maintain --archive")
    load.add_argument("--url", help="the store (default: MILEPOST_URL)")
    load.add_argument("--thread", metavar="ID", help="load them into this thread")
    load.set_defaults(run=_import)
    erase = commands.add_parser(
        "erase",
        help="remove everything of threads",
        description="Exit code 1 if something may be left: then run it again.",
    )
    erase.add_argument("thread", nargs="+", metavar="ID")
    erase.add_argument("--url", help="the store (default: MILEPOST_URL)")
    erase.add_argument("--archive", type=Path, metavar="FOLDER", help="and their archives there")
    erase.add_argument("--force", action="store_true", help="also those with unsettled calls, whose records stay")
    erase.add_argument("--json", action="store_true", help="for programs")
    erase.set_defaults(run=_erase)


def _pair(text: str) -> tuple[str, str]:
    age, _, interval = text.partition(":")
    if not age or not interval:
        raise argparse.ArgumentTypeError(f"{text!r} must be AGE:INTERVAL, such as 7d:1h")
    return age, interval


def _maintain(options: argparse.Namespace) -> int:
    policy = Retention(
        keep_last=options.keep_last,
        keep_for=options.keep_for,
        thin=options.thin,
        keep_waiting=options.keep_waiting,
        keep_forks=options.keep_forks,
        keep_pinned=options.keep_pinned,
        idle_thread=options.idle_thread,
        threads=options.threads,
        namespaces=options.namespaces,
    )
    given: dict[str, Any] = {
        "threads": options.thread,
        "compact": [targets.named(text) for text in options.compact],
        "compact_over": options.compact_over,
        "quiet": options.quiet,
        "graph": None if options.graph is None else targets.find(options.graph),
        "merge": options.merge,
        "dry_run": options.dry_run,
    }
    with existing(options.url) as saver, _progress(saver, options) as progress:
        check_threads(saver, options.thread or ())
        report = saver.maintain(policy, **given, hooks=_hooks(saver, options), progress=progress)
    if options.json:
        _print(
            {
                "dry_run": report.dry_run,
                "seen": report.seen,
                "checkpoints": report.checkpoints,
                "freed": report.freed,
                "threads": [asdict(one) for one in report.threads],
            }
        )
    else:
        _tell(report)
    return int(bool(report.failed))


def _hooks(saver: Saver, options: argparse.Namespace) -> Hooks | None:
    return None if options.archive is None else ArchiveFolder(options.archive, tenant=saver.tenant)


def _tell(report: Report) -> None:
    done = "to be done" if report.dry_run else "done"
    shown = [one for one in report.threads if report.dry_run or one.outcome != "changed"]
    for one in shown[:_SHOWN]:
        print(f"{one.thread}: {_words(one)}")
    if len(shown) > _SHOWN:
        print(f"and {len(shown) - _SHOWN} threads more")
    changed = [one for one in report.threads if one.outcome == "changed"]
    print(
        f"{len(changed)} of {report.seen} threads {done}: {report.checkpoints} checkpoints, "
        f"{sum(one.deleted for one in changed)} whole threads, {sum(bool(one.compacted) for one in changed)} compacted, "
        f"{report.freed} bytes given back"
    )


def _words(report: ThreadReport) -> str:
    if report.outcome != "changed":
        return report.error or {
            "moved": "written to all the time, left for another time",
            "leased": "somebody drives it, left for another time",
            "vetoed": "a hook has kept it as it is",
        }.get(report.outcome, report.outcome)
    what = "the whole thread" if report.deleted else f"{report.checkpoints} of {report.before.checkpoints} checkpoints"
    smaller = f", {', '.join(report.compacted)} compacted" if report.compacted else ""
    return f"{what}{smaller}, {report.before.bytes} bytes to {report.after.bytes}"


@contextmanager
def _progress(
    saver: Saver, options: argparse.Namespace
) -> Generator[Callable[[int, ThreadReport | None], object] | None, None, None]:
    """Shows a bar where somebody looks."""
    console = Console(stderr=True)
    if options.json or not console.is_terminal:
        yield None
        return
    total = len(options.thread) if options.thread else saver.stats().threads
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("maintain", total=total)

        def show(seen: int, report: ThreadReport | None) -> None:
            name = "" if report is None else escape(report.thread[:40])
            progress.update(bar, completed=seen, description=name)

        yield show


def _import(options: argparse.Namespace) -> int:
    with lasting(options.url) as saver:
        for path in options.archive:
            restored = saver.restore(path, options.thread)
            attachments = f", {restored.attachments} attachments" if restored.attachments else ""
            cut = f"; {restored.cut} bytes at its end are no whole step" if restored.cut else ""
            print(
                f"{restored.thread}: {restored.checkpoints} checkpoints, {restored.writes} pending writes{attachments} "
                f"from {path}{cut}"
            )
    return 0


def _erase(options: argparse.Namespace) -> int:
    with existing(options.url) as saver:
        reports = saver.erase(options.thread, hooks=_hooks(saver, options), force=options.force)
    if options.json:
        _print([asdict(one) for one in reports])
    else:
        for one in reports:
            archived = f", {one.archived} archives" if options.archive else ""
            print(
                f"{one.thread}: {one.error}"
                if one.error
                else f"{one.thread}: {one.before.checkpoints} checkpoints, {one.before.writes} pending writes, "
                f"{one.attachments} attachments{archived} removed"
            )
    return int(any(one.error for one in reports))


def _sweep(options: argparse.Namespace) -> int:
    with existing(options.url) as saver:
        swept = saver.sweep(hooks=_hooks(saver, options), dry_run=options.dry_run)
    if options.json:
        told = [asdict(one) for one in swept.leftovers]
        _print({"dry_run": swept.dry_run, "bytes": swept.bytes, "leftovers": told})
    else:
        shown = [one for one in swept.leftovers if options.dry_run or one.error]
        for one in shown[:_SHOWN]:
            print(f"{one.kind} {one.thread or one.name}: {one.error or f'{one.bytes} bytes'}")
        if len(shown) > _SHOWN:
            print(f"and {len(shown) - _SHOWN} leftovers more")
        removed = sum(one.removed for one in swept.leftovers)
        print(f"{len(swept.leftovers)} leftovers, {removed} removed, {swept.bytes} bytes given back")
    return int(bool(swept.left))


def _print(found: object) -> None:
    print(json.dumps(found, indent=2, ensure_ascii=False))
