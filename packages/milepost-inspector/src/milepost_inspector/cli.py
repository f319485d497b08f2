"""The command line. `main` returns the exit code: 0 done, 1 the work itself failed, 2 it could not be started."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from milepost.errors import MilepostError
from rich.console import Console

from milepost_inspector import schemas, upkeep
from milepost_inspector.errors import UsageError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `milepost` command with `arguments` (those of the process with None)."""
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (MilepostError, UsageError, OSError) as error:
        print(f"milepost: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("milepost: interrupted; every process of it has ended", file=sys.stderr)
        return INTERRUPTED
    return code


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    whole = argparse.ArgumentParser(
        prog="milepost", description="Looks after what Milepost, a checkpointer for LangGraph, has stored."
    )
    whole.add_argument("--version", action="version", version=f"milepost {version('milepost')}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="run an agent over real records, kill it over and over, and check that nothing is lost",
        description="An agent settles refunds from a CSV through tool calls, in worker processes that are killed with "
        "SIGKILL and resumed by new ones. Exit code 0 only if every record is right.",
    )
    demo.add_argument(
        "--url", help="the store (default: a fresh folder store in --dir; postgres: or valkey: starts a server)"
    )
    demo.add_argument("--dir", type=Path, default=Path("milepost-demo"), help="folder of the demo (./milepost-demo)")
    demo.add_argument("--records", type=_count, default=5000, metavar="N", help="how many records, at most 5000 (5000)")
    demo.add_argument("--batch", type=_count, default=100, metavar="N", help="records per superstep (100)")
    demo.add_argument("--kills", type=_count_or_none, default=5, metavar="K", help="how many workers to kill (5)")
    demo.add_argument("--seed", type=int, default=1, metavar="S", help="of the moments of the kills (1)")
    demo.add_argument(
        "--ledger",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="record tool calls, so that none is performed twice; with --no-ledger the job is done first without and "
        "then with it, and both stand in one table (with)",
    )
    demo.add_argument("--keep", action="store_true", help="keep what earlier runs left in --dir")
    demo.add_argument("--yes", action="store_true", help="approve without asking")
    demo.set_defaults(run=_demo)
    schemas.add_to(commands)
    upkeep.add_to(commands)
    return whole


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def _count_or_none(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def _demo(options: argparse.Namespace) -> int:
    try:
        from milepost_inspector.demo import main as demo  # noqa: PLC0415  # an extra, and slow to import
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in {"langchain", "langchain_core", "langgraph"}:
            raise
        raise UsageError(
            f"the demo needs {error.name}, which is not installed: pip install 'milepost-inspector[demo]'"
        ) from error
    return demo.run(options, Console())
