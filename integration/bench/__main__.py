"""``python -m integration.bench [--store redis] [--only W1 W5] [--rounds 3] [--flavour sync] [--to FILE]``."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from .measure import FLAVOURS, Flavour, run_all
from .plain_redis import PLAIN, REDIS, VALKEY
from .postgres import OFFICIAL, POSTGRES
from .report import figures_table, goals_table, verdicts
from .rivals import MEMORY, Rival
from .workloads import WORKLOADS

STORES: dict[str, tuple[Rival, ...]] = {
    "files": (),
    "postgres": (POSTGRES, OFFICIAL, MEMORY),
    "redis": (REDIS, VALKEY, PLAIN, MEMORY),
}
"""Who is compared; with "files", whom the workload names."""


def main() -> int:
    """Run the benchmark; 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="workloads, such as W1 or 'W1 N=100'")
    parser.add_argument("--store", choices=list(STORES), default="files", help="which of our stores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flavour", choices=FLAVOURS, action="append", help="default: both")
    parser.add_argument("--to", type=Path, help="write the tables here, too")
    options = parser.parse_args()
    chosen = [
        replace(workload, rounds=options.rounds, rivals=STORES[options.store] or workload.rivals)
        for workload in WORKLOADS
        if not options.only or {workload.name, workload.name.partition(" ")[0]} & set(options.only)
    ]
    if not chosen:
        parser.error(f"no such workload; there are {', '.join(workload.name for workload in WORKLOADS)}")
    flavours: list[Flavour] = options.flavour or list(FLAVOURS)
    start = time.perf_counter()
    results = run_all(chosen, flavours, lambda line: print(line, file=sys.stderr, flush=True))
    text = f"{goals_table(results)}\n\n{figures_table(results)}\n\n{time.perf_counter() - start:.0f} s in all\n"
    print(text)
    if options.to:
        options.to.write_text(text)
    return int(any(one.word == "MISSED" for one in verdicts(results)))


if __name__ == "__main__":
    sys.exit(main())
