"""What a reader wants to know first: how many times as much time, or bytes, others take. Never bare times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .goals import Figure, number, quantile
from .line_up import EVERYBODY, MILEPOSTS
from .measure import FLAVOURS, Flavour, Results
from .rivals import Rival

_W1 = "W1 N={}".format


@dataclass(frozen=True)
class Headline:
    """A figure that stands for a workload."""

    about: str
    workload: str
    figure: Figure
    plotted: bool = True


HEADLINES = (
    Headline("put, 100 steps, p50", _W1(100), quantile("put", 0.5)),
    Headline("put, 1,000 steps, p50", _W1(1000), quantile("put", 0.5)),
    Headline("put, 1,000 steps, p95", _W1(1000), quantile("put", 0.95), plotted=False),
    Headline("put, steps 900 to 1,000, p50", _W1(1000), quantile("last put", 0.5)),
    Headline("processor time, 1,000 steps", _W1(1000), number("cpu")),
    Headline("bytes, 100 steps", _W1(100), number("bytes"), plotted=False),
    Headline("bytes, 1,000 steps", _W1(1000), number("bytes")),
    Headline("get, 1,000 messages, p50", _W1(1000), quantile("get", 0.5)),
    Headline("get by a new client", _W1(1000), quantile("cold get", 0.5), plotted=False),
    Headline("list 10, 300 messages", _W1(300), quantile("list 10", 0.5)),
    Headline("list 100, 300 messages", _W1(300), quantile("list 100", 0.5), plotted=False),
    Headline("list with a filter, 1,000 steps", _W1(1000), quantile("list filter", 0.5)),
    Headline("put and writes, 32 workers", "W4 x32", number("seconds per put")),
    Headline("put, tiny state, p50", "W5", quantile("put", 0.5)),
    Headline("put, tiny state, p95", "W5", quantile("put", 0.95), plotted=False),
    Headline("run of a graph, 50 steps", "W6", quantile("run", 0.5)),
    Headline("100 parallel writes", "W7", quantile("fan", 0.5)),
    Headline("prune 10,000 steps", "W8", quantile("prune", 0.5)),
    Headline("delete a thread of 1,000 steps", _W1(1000), quantile("delete", 0.5)),
    Headline("delta channel, 1,000 updates", "W9", quantile("history", 0.5)),
    Headline("put, 200 files of 20 KB, p50", "W10", quantile("put", 0.5), plotted=False),
    Headline("bytes, 200 files of 20 KB", "W10", number("bytes")),
)


def peers(ours: Rival) -> tuple[Rival, ...]:
    """Those that `ours` is compared with."""
    return tuple(one for one in EVERYBODY if not one.ours and one.store in (ours.store, "memory"))


def ratio(results: Results, headline: Headline, ours: Rival, peer: Rival, flavour: Flavour) -> float | None:
    """How many times as much the peer takes as `ours`."""
    theirs = results.best(headline.workload, peer.name, flavour, headline.figure)
    mine = results.best(headline.workload, ours.name, flavour, headline.figure)
    return theirs / max(mine, 1e-9) if mine is not None and theirs is not None else None


def summary_tables(results: Results) -> str:
    """Markdown: for each of our stores, what the others take as a multiple of what it takes; blocking / async."""
    return "\n\n".join("\n".join(_summary(results, ours)) for ours in MILEPOSTS)


def _summary(results: Results, ours: Rival) -> Iterator[str]:
    others = peers(ours)
    yield f"**{ours.name.capitalize()}** is 1:"
    yield ""
    yield f"| | {' | '.join(one.name for one in others)} |"
    yield "|---" * (len(others) + 1) + "|"
    for headline in HEADLINES:
        cells = []
        for peer in others:
            found = [ratio(results, headline, ours, peer, flavour) for flavour in FLAVOURS]
            cells.append(" / ".join("-" if one is None else shown(one) for one in found) if any(found) else "")
        if any(cells):
            yield f"| {headline.about} | {' | '.join(cells)} |"


def shown(ratio: float) -> str:
    """A ratio in two digits."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def remarks(results: Results) -> str:
    """Markdown: what was left out and why, what could not be done, and what is to be known of the peers."""
    lines = [f"- {one.name}: {one.remark}." for one in EVERYBODY if one.remark]
    lines += [f"- {name} was left out: {reason}." for name, reason in results.left_out.items()]
    flaws: dict[tuple[str, str], set[str]] = {}
    for (workload, rival, _), samples in results.samples.items():
        for sample in samples:
            for flaw in sample.flaws:
                flaws.setdefault((rival, flaw), set()).add(workload)
    lines += [f"- {rival}, {', '.join(sorted(found))}: {flaw}." for (rival, flaw), found in flaws.items()]
    return "\n".join(lines)
