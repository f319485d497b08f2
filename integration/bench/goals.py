"""The goals of the stores, and what was measured of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from .measure import FLAVOURS, Flavour, Results, Sample
from .plain_redis import REDIS, STACK, VALKEY
from .postgres import OFFICIAL, POSTGRES
from .rivals import MEMORY, OURS, PREALLOCATED, SQLITE, Rival

Figure = Callable[[Sample], float | None]


def quantile(name: str, part: float) -> Figure:
    return lambda sample: sample.quantile(name, part)


def number(name: str) -> Figure:
    return lambda sample: sample.numbers.get(name)


def added(sample: Sample) -> float | None:
    """What the saver adds to a run of W6."""
    run, without = sample.quantile("run", 0), sample.quantile("run without", 0)
    return None if run is None or without is None else run - without


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


def _deltas(ours: Rival, against: Rival) -> Iterator[Goal]:
    """G16: a plain list here against a delta channel there."""
    for steps in (300, 1000):
        goal = partial(Goal, workload=f"G16 N={steps}", ours=ours, against=against)
        yield goal("G16", f"bytes, {steps} supersteps", figure=number("bytes"), must=0.6, sense="part of")
        yield goal("G16", f"get_state, {steps} supersteps", figure=quantile("state", 0), must=2)
        yield goal("G16", f"the run of {steps} supersteps", figure=quantile("run", 0), must=1)


GOALS = (
    Goal("G1", "bytes, N=1000", _W1(1000), number("bytes"), 0.0035, 0.0015, sense="part of"),
    Goal("G3", "bytes, N=100", _W1(100), number("bytes"), 0.035, sense="part of"),
    Goal("G4", "put p10, last tenth, N=1000", _W1(1000), quantile("last put", 0.1), 10, 20),
    Goal("G5", "put p50, N=100", _W1(100), quantile("put", 0.5), 2.4),
    Goal("G5", "put p50, N=300", _W1(300), quantile("put", 0.5), 4),
    Goal("G5", "put p50, N=1000", _W1(1000), quantile("put", 0.5), 8),
    Goal("G6", "processor time, N=1000", _W1(1000), number("cpu"), 6),
    Goal("G7", "get, warm, N=1000", _W1(1000), quantile("get", 0), 1.5, 3),
    Goal("G7", "get, cold, N=1000", _W1(1000), quantile("cold get", 0), 1.5, 3),
    Goal("G8", "list 10, N=300", _W1(300), quantile("list 10", 0), 1.3, 2),
    Goal("G8", "list 100, N=300", _W1(300), quantile("list 100", 0), 1.3, 2),
    Goal("G9", "list with a filter, N=1000", _W1(1000), quantile("list filter", 0), 20),
    Goal("G10", "puts a second, 32 workers", "W4 x32", number("seconds per put"), 1.5, must_async=2),
    Goal("G11", "put p10, tiny state", "W5", quantile("put", 0.1), 1.3),
    Goal("G11", "put p10, tiny state, preallocated", "W5", quantile("put", 0.1), 2, ours=PREALLOCATED),
    Goal("G12", "a run of 50 steps", "W6", quantile("run", 0), 1.3),
    Goal("G12", "what the saver adds to it", "W6", added, 1.0),
    Goal("G13", "100 parallel put_writes", "W7", quantile("fan", 0), 2.5, must_async=3.5),
    Goal("G14", "delete a thread, N=1000", _W1(1000), quantile("delete", 0), 1000),
    Goal("G15", "put p50, N=300", _W1(300), quantile("put", 0.5), 1, against=MEMORY),
    Goal("G15", "put p50, N=1000", _W1(1000), quantile("put", 0.5), 1, against=MEMORY),
    *_deltas(OURS, SQLITE),
    Goal("W10", "bytes of a deep agent's state", "W10", number("bytes"), 0.05, sense="part of"),
)

_postgres = partial(Goal, ours=POSTGRES, against=OFFICIAL)
POSTGRES_GOALS = (
    _postgres("G1", "bytes, N=1000", _W1(1000), number("bytes"), 0.01, 0.007, sense="part of"),
    _postgres("G3", "bytes, N=100", _W1(100), number("bytes"), 0.1, sense="part of"),
    _postgres("G4", "put p10, last tenth, N=1000", _W1(1000), quantile("last put", 0.1), 25, 50),
    _postgres("G5", "put p50, N=100", _W1(100), quantile("put", 0.5), 4, 8),
    _postgres("G5", "put p50, N=300", _W1(300), quantile("put", 0.5), 8, 14),
    _postgres("G5", "put p50, N=1000", _W1(1000), quantile("put", 0.5), 15, 28),
    _postgres("G2", "bytes written ahead, N=1000", _W1(1000), number("log bytes"), 0.012, sense="part of"),
    _postgres("G6", "processor time, N=1000", _W1(1000), number("cpu"), 12, 25),
    _postgres("G7", "get, warm, N=1000", _W1(1000), quantile("get", 0), 1.5, 3),
    _postgres("G7", "get, cold, N=1000", _W1(1000), quantile("cold get", 0), 2, 3),
    _postgres("G8", "list 10, N=300", _W1(300), quantile("list 10", 0), 2, 3.5),
    _postgres("G8", "list 100, N=300", _W1(300), quantile("list 100", 0), 2, 3.5),
    _postgres("G9", "list with a filter, N=1000", _W1(1000), quantile("list filter", 0), 1.5),
    _postgres("G10", "puts a second, 32 workers", "W4 x32", number("seconds per put"), 2, 4, must_async=5),
    _postgres("G11", "put p10, tiny state", "W5", quantile("put", 0.1), 1.1),
    _postgres("G11", "put_writes p10, tiny state", "W5", quantile("put_writes", 0.1), 1.1),
    _postgres("G11", "processor time of the client, tiny state", "W5", number("client cpu"), 2),
    _postgres("G12", "a run of 50 steps", "W6", quantile("run", 0), 2, 3),
    _postgres("G12", "what the saver adds to it", "W6", added, 2.5),
    _postgres("G13", "100 parallel put_writes", "W7", quantile("fan", 0), 1.7, 3, must_async=3.5),
    _postgres("G14", "delete a thread, N=1000", _W1(1000), quantile("delete", 0), 30, 70),
    _postgres("G15", "put p50, N=300", _W1(300), quantile("put", 0.5), 1, against=MEMORY),
    _postgres("G15", "put p50, N=1000", _W1(1000), quantile("put", 0.5), 1, against=MEMORY),
    *_deltas(POSTGRES, OFFICIAL),
    _postgres("W8", "prune 10,000 steps", "W8", quantile("prune", 0), 0.3, sense="part of"),
    _postgres("W8", "delete 10,000 steps", "W8", quantile("delete", 0), 1),
    _postgres("W9", "get of a delta channel's thread", "W9", quantile("get", 0), 1),
    _postgres("W9", "history of a delta channel", "W9", quantile("history", 0), 1),
    _postgres("W10", "bytes of a deep agent's state", "W10", number("bytes"), 0.05, sense="part of"),
)

_redis = partial(Goal, ours=REDIS, against=VALKEY)
REDIS_GOALS = (
    _redis("G1", "bytes, N=1000", _W1(1000), number("bytes"), 0.0035, 0.0015, sense="part of"),
    _redis("G3", "bytes, N=100", _W1(100), number("bytes"), 0.03, sense="part of"),
    _redis("G4", "put p10, last tenth, N=1000", _W1(1000), quantile("last put", 0.1), 8, 14),
    _redis("G5", "put p50, N=100", _W1(100), quantile("put", 0.5), 2.3),
    _redis("G5", "put p50, N=300", _W1(300), quantile("put", 0.5), 5),
    _redis("G5", "put p50, N=1000", _W1(1000), quantile("put", 0.5), 6),
    _redis("G6", "processor time, N=1000", _W1(1000), number("cpu"), 6),
    _redis("G7", "get, warm, N=1000", _W1(1000), quantile("get", 0), 1.4, 2),
    _redis("G8", "list 10, N=300", _W1(300), quantile("list 10", 0), 2.5),
    _redis("G8", "list 100, N=300", _W1(300), quantile("list 100", 0), 2.5),
    _redis("G9", "list with a filter, N=1000", _W1(1000), quantile("list filter", 0), 50),
    _redis("G10", "puts a second, 32 workers", "W4 x32", number("seconds per put"), 2.5),
    _redis("G11", "put p10, tiny state", "W5", quantile("put", 0.1), 1.3, must_async=1.7),
    _redis("G12", "a run of 50 steps", "W6", quantile("run", 0), 1.3),
    _redis("G12", "what the saver adds to it", "W6", added, 1.3, against=MEMORY, sense="part of"),
    _redis("G13", "100 parallel put_writes", "W7", quantile("fan", 0), 3, must_async=10),
    _redis("G15", "put p50, N=300", _W1(300), quantile("put", 0.5), 1, against=MEMORY),
    _redis("G15", "put p50, N=1000", _W1(1000), quantile("put", 0.5), 1, against=MEMORY),
    *_deltas(REDIS, VALKEY),
    _redis("W10", "bytes of a deep agent's state", "W10", number("bytes"), 0.05, sense="part of"),
)

_stack = partial(Goal, ours=REDIS, against=STACK)
STACK_GOALS = (
    _stack("G1", "bytes, N=1000", _W1(1000), number("bytes"), 0.012, 0.006, sense="part of"),
    _stack("G3", "bytes, N=100", _W1(100), number("bytes"), 0.09, sense="part of"),
    _stack("G4", "put p10, last tenth, N=1000", _W1(1000), quantile("last put", 0.1), 50, 90),
    _stack("G5", "put p50, N=100", _W1(100), quantile("put", 0.5), 12),
    _stack("G5", "put p50, N=300", _W1(300), quantile("put", 0.5), 25),
    _stack("G5", "put p50, N=1000", _W1(1000), quantile("put", 0.5), 35),
    _stack("G6", "processor time, N=1000", _W1(1000), number("cpu"), 30),
    _stack("G7", "get, warm, N=1000", _W1(1000), quantile("get", 0), 10, 14),
    _stack("G8", "list 10, N=300", _W1(300), quantile("list 10", 0), 8, flavours=("async",)),
    _stack("G8", "list 100, N=300", _W1(300), quantile("list 100", 0), 8, flavours=("async",)),
    _stack("G10", "puts a second, 32 workers", "W4 x32", number("seconds per put"), 8, must_async=6),
    _stack("G11", "put p10, tiny state", "W5", quantile("put", 0.1), 5, must_async=8),
    _stack("G12", "a run of 50 steps", "W6", quantile("run", 0), 3),
    _stack("G13", "100 parallel put_writes", "W7", quantile("fan", 0), 3, must_async=10),
    _stack("G14", "delete a thread, N=1000", _W1(1000), quantile("delete", 0), 100),
    _stack("W10", "bytes of a deep agent's state", "W10", number("bytes"), 0.05, sense="part of"),
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
    for goal in (*GOALS, *POSTGRES_GOALS, *REDIS_GOALS, *STACK_GOALS):
        for flavour in goal.flavours:
            ours = results.best(goal.workload, goal.ours.name, flavour, goal.figure)
            theirs = results.best(goal.workload, goal.against.name, flavour, goal.figure)
            if ours is not None and theirs is not None:
                least = max(ours, 1e-9)
                ratio = theirs / least if goal.sense == "times faster" else ours / max(theirs, 1e-9)
                yield Verdict(goal, flavour, ratio)
    for rival in (OURS, POSTGRES, REDIS):
        yield from _linear(results, rival)


def _linear(results: Results, ours: Rival) -> Iterator[Verdict]:
    """G2: bytes grow with the steps, not with their square."""
    growth = Goal("G2", "bytes(1000) / bytes(100)", "", number("bytes"), 11, sense="part of", against=ours)
    marginal = replace(growth, about="bytes a step, 300-1000 by 100-300", must=1.1)
    for flavour in FLAVOURS:
        small = results.best(_W1(100), ours.name, flavour, number("bytes"))
        middle = results.best(_W1(300), ours.name, flavour, number("bytes"))
        large = results.best(_W1(1000), ours.name, flavour, number("bytes"))
        if small and middle and large:
            yield Verdict(growth, flavour, large / small)
            yield Verdict(marginal, flavour, ((large - middle) / 700) / ((middle - small) / 200))
