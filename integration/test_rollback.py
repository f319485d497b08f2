"""Rollback in real graphs, and by workers that are killed within it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import milepost
import pytest
from driving import place, thread
from langchain_core.messages import HumanMessage
from ledger_agents import build
from ledger_points import Death, Points
from ledger_trial import Worker, World, running_world
from ledger_worker import Cell, Flavour, Life, charge_tools, wiring
from milepost.tools import Ledger
from rollback_worker import roll_back
from stores import url_of

TWO = ((("a", 5),), (("b", 7),))
"""Charges, each of which follows the other."""

DEATHS = (
    Death("before claim", 1),
    Death("before effect", 1),
    Death("after effect", 1),
    Death("after settle", 2),
    Death("before claim", 3),
    Death("before effect", 2),
    Death("after effect", 2),
    Death("after settle", 4),
    Death("after put", 1),
)
"""Before, within and after each of two compensations, and once the fork is stored. What is claimed and settled is the call
that is undone, and within that what undoes it."""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("world") / "log.jsonl") as running:
        yield running


def _charged(life: Life) -> None:
    """Two charges, in a thread that is then at its end."""
    with milepost.connect(life.url) as saver:
        points = Points(None)
        graph = build("ToolNode", TWO, charge_tools(life, points), wiring(life, saver, points), saver)
        graph.invoke({"messages": [HumanMessage("charge them", id="h")]}, thread(life.thread), durability="sync")


def _seen(world: World, name: str) -> list[str]:
    """What the outside world did for a thread, in order."""
    lines = [json.loads(line)["id"].partition("/") for line in world.log.read_text().splitlines()]
    return [what.partition("#")[0] for thread_id, _, what in lines if thread_id == name]


@dataclass(frozen=True)
class Outcome:
    """What is left of a rollback that was killed, and of another one."""

    seen: list[str]
    states: list[str]
    forks: list[str]
    """All of the thread's, the latest checkpoint first."""
    fork: str
    """What the second rollback has answered."""

    @property
    def right(self) -> bool:
        return (
            self.seen == ["a", "b", "undo b", "undo a"]
            and self.states == ["compensated", "compensated"]
            and self.forks == [self.fork]
        )


def _killed(url: str, name: str, world: World, death: Death, flavour: Flavour) -> Outcome:
    life = Life(Cell("ToolNode", "sync", "keyed", flavour), url, name, world.port, 1, death)
    _charged(replace(life, cell=replace(life.cell, flavour="blocking"), death=None))
    assert Worker(life, roll_back).last_word() is None
    word = Worker(replace(life, run=2, death=None), roll_back).last_word()
    assert word is not None
    with milepost.connect(url) as saver:
        head, *_ = found = list(saver.list(thread(name)))
        forks = [one for one in found if one is head or "rollback" in one.metadata]
        states = [record.state for record in Ledger(saver).calls(name) if not record.info.step]
    ids = [place(one.config)["checkpoint_id"] for one in forks]
    return Outcome(_seen(world, name), [str(state) for state in states], ids, word.said)


@pytest.mark.parametrize("backend", ["files", "postgres", "redis"])
def test_killed_around_any_compensation_each_effect_is_undone_once(backend: str, tmp_path: Path, world: World) -> None:
    url = url_of(backend, tmp_path)

    def tried(number: int) -> Outcome:
        flavour: Flavour = "blocking" if number % 2 else "async"
        return _killed(url, f"{backend} {tmp_path.name} {number}", world, DEATHS[number], flavour)

    with ThreadPoolExecutor(len(DEATHS)) as pool:
        outcomes = list(pool.map(tried, range(len(DEATHS))))
    assert [one for one in zip(DEATHS, outcomes, strict=True) if not one[1].right] == []
