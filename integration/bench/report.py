"""Tables of what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from .goals import number, quantile, verdicts
from .measure import Results


def goals_table(results: Results) -> str:
    """Markdown: each goal with what was measured, what must be, what to aim at."""
    lines = [
        "| goal | measured of | against | flavour | ratio | must | stretch | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.goal.name} | {one.goal.about} | {one.goal.against.name} | {one.flavour} | {one.show(one.ratio)} "
        f"| {one.show(one.must)} | {one.show(one.goal.stretch)} | {one.word} |"
        for one in verdicts(results)
    ]
    return "\n".join(lines)


def figures_table(results: Results, names: Sequence[str] = ()) -> str:
    """Markdown: p10, p50 and p95 in milliseconds, and numbers, of the best round of each."""
    lines = ["| workload | saver | flavour | what | p10 | p50 | p95 |", "|---|---|---|---|---|---|---|"]
    for (workload, rival, flavour), samples in results.samples.items():
        for name in samples[0].seconds:
            if names and name not in names:
                continue
            parts = [results.best(workload, rival, flavour, quantile(name, part)) or 0 for part in (0.1, 0.5, 0.95)]
            shown = " | ".join(f"{part * 1e3:.3g}" for part in parts)
            lines.append(f"| {workload} | {rival} | {flavour} | {name}, ms | {shown} |")
        for name in samples[0].numbers:
            least = results.best(workload, rival, flavour, number(name)) or 0
            shown = f"{least / 1e6:.3g} MB" if name.endswith("bytes") else f"{least:.3g} s"
            lines.append(f"| {workload} | {rival} | {flavour} | {name} | | {shown} | |")
    return "\n".join(lines)
