"""What a run writes: tables in Markdown, a picture, and the samples themselves."""

from __future__ import annotations

from pathlib import Path

from .calls import calls_table
from .distances import floors_table
from .goals import number, quantile, verdicts
from .measure import Results
from .plot import plot
from .summary import remarks, summary_tables
from .workloads import WORKLOADS

ROUNDS = 3
"""With fewer, a moment in which the machine had other things to do decides."""


def write(results: Results, folder: Path) -> None:
    """The files that ``docs/benchmark.md`` shows."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "summary.md": f"{_origin(results)}\n\n{summary_tables(results)}\n\n{remarks(results)}",
        "goals.md": goals_table(results),
        "floors.md": floors_table(results),
        "calls.md": calls_table(results),
        "figures.md": figures_table(results),
    }
    for name, text in texts.items():
        (folder / name).write_text(text.rstrip() + "\n", "utf-8")
    (folder / "plot.svg").write_text(plot(results), "utf-8")


def _origin(results: Results) -> str:
    rounds: dict[str, int] = {}
    for (workload, _, _), samples in results.samples.items():
        rounds[workload] = max(rounds.get(workload, 0), len(samples))
    ran = ", ".join(f"{workload} ({found})" for workload, found in rounds.items())
    lines = [*(f"Measured on {one}." for one in results.about), "", f"Workloads (rounds): {ran}."]
    if {one.name for one in WORKLOADS} > rounds.keys() or min(rounds.values()) < ROUNDS:
        lines.append("**This is a part of the benchmark, or with few rounds: nothing to rely on.**")
    return "\n".join(lines)


def goals_table(results: Results) -> str:
    """Markdown: each goal with what was measured, what must be, what to aim at."""
    found = list(verdicts(results))
    missed = [one for one in found if one.word == "MISSED"]
    lines = [
        f"{len(found) - len(missed)} of {len(found)} are met.",
        "",
        "| goal | measured of | saver | against | flavour | ratio | must | stretch | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.goal.name} | {one.goal.about} | {one.goal.ours.name} | {one.goal.against.name} | {one.flavour} "
        f"| {one.show(one.ratio)} | {one.show(one.must)} | {one.show(one.goal.stretch)} | {one.word} |"
        for one in found
    ]
    return "\n".join(lines)


def figures_table(results: Results) -> str:
    """Markdown: p10, p50 and p95 in milliseconds, and numbers, of the best round of each."""
    lines = ["| workload | saver | flavour | what | p10 | p50 | p95 |", "|---|---|---|---|---|---|---|"]
    for (workload, rival, flavour), samples in results.samples.items():
        start = f"| {workload} | {rival} | {flavour} |"
        for name in dict.fromkeys(name for sample in samples for name in sample.seconds):
            parts = [results.best(workload, rival, flavour, quantile(name, part)) or 0 for part in (0.1, 0.5, 0.95)]
            lines.append(f"{start} {name}, ms | {' | '.join(f'{part * 1e3:.3g}' for part in parts)} |")
        for name in dict.fromkeys(name for sample in samples for name in sample.numbers):
            least = results.best(workload, rival, flavour, number(name)) or 0
            shown = f"{least / 1e6:.3g} MB" if "bytes" in name else f"{least:.3g} s"
            lines.append(f"{start} {name} | | {shown} | |")
    return "\n".join(lines)
