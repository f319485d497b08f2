"""Speed and bytes beside other savers.

Without options everything is measured, and what docs/benchmark.md shows is written. A run of a part writes to
build/bench, unless --to names a folder. The samples go to build/bench/results.json after each workload.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .goals import verdicts
from .machine import described
from .measure import FLAVOURS, Flavour, Results, Workload, run_rounds
from .report import ROUNDS, goals_table, write
from .rivals import STORES, Store
from .workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
SHOWN = ROOT / "docs" / "benchmark"
SCRATCH = ROOT / "build" / "bench"


def chosen(only: Sequence[str], stores: Sequence[Store], rounds: int, *, small: bool) -> list[Workload]:
    """The workloads of these names, or all; among savers of these stores."""
    return [
        replace(
            workload,
            rounds=rounds,
            rivals=tuple(rival for rival in workload.rivals if rival.store in (*stores, "memory")),
        )
        for workload in WORKLOADS
        if not (small and workload.large) and (not only or {workload.name, workload.name.partition(" ")[0]} & set(only))
    ]


def _options() -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="python -m integration.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], help="workloads, such as W1 or 'W1 N=100'")
    parser.add_argument("--store", choices=STORES, action="append", help="default: all of them")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"in each everybody has a turn; default: {ROUNDS}")
    parser.add_argument("--flavour", choices=FLAVOURS, action="append", help="default: both")
    parser.add_argument("--size", choices=("full", "small"), default="full", help="small: no workload of minutes")
    parser.add_argument("--to", type=Path, help="the folder to write to")
    parser.add_argument("--load", type=Path, nargs="+", help="run nothing: write what these results.json hold together")
    parser.add_argument("--list", action="store_true", help="list the workloads")
    return parser, parser.parse_args()


def main() -> int:
    """Run the benchmark; 1 if a goal is missed."""
    parser, options = _options()
    if options.list:
        print("\n".join(f"{one.name}: {one.about}{' (large)' if one.large else ''}" for one in WORKLOADS))
        return 0
    results = Results()
    whole = options.size == "full" and not (options.only or options.store or options.flavour)
    if options.load:
        for path in options.load:
            results.load(path)
    else:
        workloads = chosen(options.only, options.store or STORES, options.rounds, small=options.size == "small")
        if not workloads or options.rounds < 1:
            parser.error(f"nothing to run; there are {', '.join(workload.name for workload in WORKLOADS)}")
        results.about.append(described())
        _run(workloads, options.flavour or FLAVOURS, results)
    folder = options.to or (SHOWN if whole and not options.load else SCRATCH)
    write(results, folder)
    print(f"{goals_table(results)}\n\nwritten to {folder}")
    return int(any(one.word == "MISSED" for one in verdicts(results)))


def _run(workloads: Sequence[Workload], flavours: Sequence[Flavour], results: Results) -> None:
    SCRATCH.mkdir(parents=True, exist_ok=True)
    chance = random.Random(1)
    for workload in workloads:
        run_rounds(workload, flavours, results, chance, lambda line: print(line, file=sys.stderr, flush=True))
        results.save(SCRATCH / "results.json")


if __name__ == "__main__":
    sys.exit(main())
