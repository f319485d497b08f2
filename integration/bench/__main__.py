"""``python -m integration.bench [--store redis] [--only W1 W5] [--rounds 3] [--flavour sync] [--to FILE]``."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from .goals import verdicts
from .measure import FLAVOURS, Flavour, Results, Workload, run_all
from .report import figures_table, goals_table
from .rivals import STORES, Store
from .workloads import WORKLOADS


def chosen(only: list[str], stores: list[Store], rounds: int, *, small: bool) -> list[Workload]:
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


def main() -> int:
    """Run the benchmark; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="workloads, such as W1 or 'W1 N=100'")
    parser.add_argument("--store", choices=STORES, action="append", help="default: all of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flavour", choices=FLAVOURS, action="append", help="default: both")
    parser.add_argument(
        "--size", choices=("full", "small"), default="full", help="small: what takes minutes is left out"
    )
    parser.add_argument("--to", type=Path, help="write the tables here, too")
    options = parser.parse_args()
    workloads = chosen(options.only, options.store or list(STORES), options.rounds, small=options.size == "small")
    if not workloads:
        parser.error(f"no such workload; there are {', '.join(workload.name for workload in WORKLOADS)}")
    flavours: list[Flavour] = options.flavour or list(FLAVOURS)
    results = Results()
    start = time.perf_counter()
    run_all(workloads, flavours, results, lambda line: print(line, file=sys.stderr, flush=True))
    text = f"{goals_table(results)}\n\n{figures_table(results)}\n\n{time.perf_counter() - start:.0f} s in all\n"
    print(text)
    if options.to:
        options.to.write_text(text)
    return int(any(one.word == "MISSED" for one in verdicts(results)))


if __name__ == "__main__":
    sys.exit(main())
