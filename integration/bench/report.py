"""The goals of the stores, and a table of what was measured beside each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from .measure import FLAVOURS, Flavour, Results, Sample
from .plain_redis import REDIS, VALKEY
from .postgres import OFFICIAL, POSTGRES
from .rivals import MEMORY, OURS, PREALLOCATED, SQLITE, Rival

Figure = Callable[[Sample], float]


def _quantile(name: str, part: float) -> Figure:
    return lambda sample: sample.quantile(name, part)


def _number(name: str) -> Figure:
    return lambda sample: sample.numbers[name]


def _added(sample: Sample) -> float:
    """What the saver adds to a run of W6."""
    return sample.quantile("run", 0) - sample.quantile("run without", 0)


@dataclass(frozen=True)
class Goal:
    """A ratio that must hold, in each flavour that is named."""

    name: str
    about: str
    workload: str
    figure: Figure
    must: float
    stretch: float | None = None
    against: Rival = SQLITE
    ours: Rival = OURS
    sense: Literal["times faster", "part of"] = "times faster"
    """Whether the ratio is theirs by ours, or ours by theirs."""
    flavours: tuple[Flavour, ...] = FLAVOURS
    must_async: float | None = None


_W1 = "W1 N={}".format
GOALS = (
    Goal("G1", "bytes, N=1000", _W1(1000), _number("bytes"), 0.0035, 0.0015, sense="part of"),
    Goal("G3", "bytes, N=100", _W1(100), _number("bytes"), 0.035, sense="part of"),
    Goal("G4", "put p10, last tenth, N=1000", _W1(1000), _quantile("last put", 0.1), 10, 20),
    Goal("G5", "put p50, N=100", _W1(100), _quantile("put", 0.5), 2.4),
    Goal("G5", "put p50, N=300", _W1(300), _quantile("put", 0.5), 4),
    Goal("G5", "put p50, N=1000", _W1(1000), _quantile("put", 0.5), 8),
    Goal("G6", "processor time, N=1000", _W1(1000), _number("cpu"), 6),
    Goal("G7", "get, warm, N=1000", _W1(1000), _quantile("get", 0), 1.5, 3),
    Goal("G7", "get, cold, N=1000", _W1(1000), _quantile("cold get", 0), 1.5, 3),
    Goal("G8", "list 10, N=300", _W1(300), _quantile("list 10", 0), 1.3, 2),
    Goal("G8", "list 100, N=300", _W1(300), _quantile("list 100", 0), 1.3, 2),
    Goal("G9", "list with a filter, N=1000", _W1(1000), _quantile("list filter", 0), 20),
    Goal("G10", "puts a second, 32 workers", "W4 x32", _number("seconds per put"), 1.5, must_async=2),
    Goal("G11", "put p10, tiny state", "W5", _quantile("put", 0.1), 1.3),
    Goal("G11", "put p10, tiny state, preallocated", "W5", _quantile("put", 0.1), 2, ours=PREALLOCATED),
    Goal("G12", "a run of 50 steps", "W6", _quantile("run", 0), 1.3),
    Goal("G12", "what the saver adds to it", "W6", _added, 1.0),
    Goal("G13", "100 parallel put_writes", "W7", _quantile("fan", 0), 2.5, must_async=3.5),
    Goal("G14", "delete a thread, N=1000", _W1(1000), _quantile("delete", 0), 1000),
    Goal("G15", "put p50, N=300", _W1(300), _quantile("put", 0.5), 1, against=MEMORY),
    Goal("G15", "put p50, N=1000", _W1(1000), _quantile("put", 0.5), 1, against=MEMORY),
)

_postgres = partial(Goal, ours=POSTGRES, against=OFFICIAL)
POSTGRES_GOALS = (
    _postgres("G1", "bytes, N=1000", _W1(1000), _number("bytes"), 0.01, 0.007, sense="part of"),
    _postgres("G3", "bytes, N=100", _W1(100), _number("bytes"), 0.1, sense="part of"),
    _postgres("G4", "put p10, last tenth, N=1000", _W1(1000), _quantile("last put", 0.1), 25, 50),
    _postgres("G5", "put p50, N=100", _W1(100), _quantile("put", 0.5), 4, 8),
    _postgres("G5", "put p50, N=300", _W1(300), _quantile("put", 0.5), 8, 14),
    _postgres("G5", "put p50, N=1000", _W1(1000), _quantile("put", 0.5), 15, 28),
    _postgres("G7", "get, warm, N=1000", _W1(1000), _quantile("get", 0), 1.5, 3),
    _postgres("G7", "get, cold, N=1000", _W1(1000), _quantile("cold get", 0), 2, 3),
    _postgres("G8", "list 10, N=300", _W1(300), _quantile("list 10", 0), 2, 3.5),
    _postgres("G8", "list 100, N=300", _W1(300), _quantile("list 100", 0), 2, 3.5),
    _postgres("G9", "list with a filter, N=1000", _W1(1000), _quantile("list filter", 0), 1.5),
    _postgres("G10", "puts a second, 32 workers", "W4 x32", _number("seconds per put"), 2, 4, must_async=5),
    _postgres("G11", "put p10, tiny state", "W5", _quantile("put", 0.1), 1.1),
    _postgres("G11", "put_writes p10, tiny state", "W5", _quantile("put_writes", 0.1), 1.1),
    _postgres("G11", "processor time of the client, tiny state", "W5", _number("cpu"), 2),
    _postgres("G12", "a run of 50 steps", "W6", _quantile("run", 0), 2, 3),
    _postgres("G12", "what the saver adds to it", "W6", _added, 2.5),
    _postgres("G13", "100 parallel put_writes", "W7", _quantile("fan", 0), 1.7, 3, must_async=3.5),
    _postgres("G14", "delete a thread, N=1000", _W1(1000), _quantile("delete", 0), 30, 70),
    _postgres("G15", "put p50, N=300", _W1(300), _quantile("put", 0.5), 1, against=MEMORY),
    _postgres("G15", "put p50, N=1000", _W1(1000), _quantile("put", 0.5), 1, against=MEMORY),
)

_redis = partial(Goal, ours=REDIS, against=VALKEY)
REDIS_GOALS = (
    _redis("G1", "bytes, N=1000", _W1(1000), _number("bytes"), 0.0035, 0.0015, sense="part of"),
    _redis("G3", "bytes, N=100", _W1(100), _number("bytes"), 0.03, sense="part of"),
    _redis("G4", "put p10, last tenth, N=1000", _W1(1000), _quantile("last put", 0.1), 8, 14),
    _redis("G5", "put p50, N=100", _W1(100), _quantile("put", 0.5), 2.3),
    _redis("G5", "put p50, N=300", _W1(300), _quantile("put", 0.5), 5),
    _redis("G5", "put p50, N=1000", _W1(1000), _quantile("put", 0.5), 6),
    _redis("G6", "processor time of the client, N=1000", _W1(1000), _number("cpu"), 6),
    _redis("G7", "get, warm, N=1000", _W1(1000), _quantile("get", 0), 1.4, 2),
    _redis("G8", "list 10, N=300", _W1(300), _quantile("list 10", 0), 2.5),
    _redis("G8", "list 100, N=300", _W1(300), _quantile("list 100", 0), 2.5),
    _redis("G9", "list with a filter, N=1000", _W1(1000), _quantile("list filter", 0), 50),
    _redis("G10", "puts a second, 32 workers", "W4 x32", _number("seconds per put"), 2.5),
    _redis("G11", "put p10, tiny state", "W5", _quantile("put", 0.1), 1.3, must_async=1.7),
    _redis("G12", "a run of 50 steps", "W6", _quantile("run", 0), 1.3),
    _redis("G12", "what the saver adds to it", "W6", _added, 1.3, against=MEMORY, sense="part of"),
    _redis("G13", "100 parallel put_writes", "W7", _quantile("fan", 0), 3, must_async=10),
    _redis("G15", "put p50, N=300", _W1(300), _quantile("put", 0.5), 1, against=MEMORY),
    _redis("G15", "put p50, N=1000", _W1(1000), _quantile("put", 0.5), 1, against=MEMORY),
)


@dataclass(frozen=True)
class Verdict:
    """A goal in one flavour, and what was measured."""

    goal: Goal
    flavour: Flavour
    ratio: float

    @property
    def must(self) -> float:
        goal = self.goal
        return goal.must_async if self.flavour == "async" and goal.must_async is not None else goal.must

    @property
    def word(self) -> str:
        if self._meets(self.goal.stretch):
            return "stretch met"
        return "met" if self._meets(self.must) else "MISSED"

    def _meets(self, bound: float | None) -> bool:
        if bound is None:
            return False
        return self.ratio >= bound if self.goal.sense == "times faster" else self.ratio <= bound

    def show(self, value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:.3g}x" if self.goal.sense == "times faster" else f"{value:.2%}"


def verdicts(results: Results) -> Iterator[Verdict]:
    """Every goal whose workload was run."""
    for goal in (*GOALS, *POSTGRES_GOALS, *REDIS_GOALS):
        for flavour in goal.flavours:
            ours = results.best(goal.workload, goal.ours, flavour, goal.figure)
            theirs = results.best(goal.workload, goal.against, flavour, goal.figure)
            if ours is not None and theirs is not None:
                least = max(ours, 1e-9)
                ratio = theirs / least if goal.sense == "times faster" else ours / max(theirs, 1e-9)
                yield Verdict(goal, flavour, ratio)
    for rival in (OURS, POSTGRES, REDIS):
        yield from _linear(results, rival)


def _linear(results: Results, ours: Rival) -> Iterator[Verdict]:
    """G2: bytes grow with the steps, not with their square."""
    growth = Goal("G2", "bytes(1000) / bytes(100)", "", _number("bytes"), 11, sense="part of", against=ours)
    marginal = replace(growth, about="bytes a step, 300-1000 by 100-300", must=1.1)
    for flavour in FLAVOURS:
        small = results.best(_W1(100), ours, flavour, _number("bytes"))
        middle = results.best(_W1(300), ours, flavour, _number("bytes"))
        large = results.best(_W1(1000), ours, flavour, _number("bytes"))
        if small and middle and large:
            yield Verdict(growth, flavour, large / small)
            yield Verdict(marginal, flavour, ((large - middle) / 700) / ((middle - small) / 200))


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
            parts = [min(sample.quantile(name, part) for sample in samples) * 1e3 for part in (0.1, 0.5, 0.95)]
            shown = " | ".join(f"{part:.3g}" for part in parts)
            lines.append(f"| {workload} | {rival} | {flavour} | {name}, ms | {shown} |")
        for name in samples[0].numbers:
            least = min(sample.numbers[name] for sample in samples)
            shown = f"{least / 1e6:.3g} MB" if name == "bytes" else f"{least:.3g} s"
            lines.append(f"| {workload} | {rival} | {flavour} | {name} | | {shown} | |")
    return "\n".join(lines)
