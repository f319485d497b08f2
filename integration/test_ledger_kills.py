"""SIGKILL at every point of a tool call: how often is the outside world asked for an effect?

``--ledger-matrix full`` tries every point and occurrence of every cell, not a few of each; ``--ledger-kills N`` kills so
many workers at random.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import psycopg
import pytest
from ledger_agents import SHAPES, Shape
from ledger_points import POINTS, Death
from ledger_trial import Outcome, Worker, World, all_deaths, expected, right, running_world, said, trial
from ledger_worker import KINDS, MODES, TABLE, Cell, Kind, Life, Mode, database_of
from stores import url_of

CELLS = list(product(SHAPES, MODES, KINDS))
FEW = 4
"""Deaths of a cell, where not all of them are tried."""
TOGETHER = 8
"""Trials of a cell at a time: most of a trial is the wait for the dead worker's lease to end."""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("world") / "log.jsonl") as running:
        yield running


@pytest.fixture
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A name for threads, which no other test has: the world is shared."""
    return f"{request.node.name} {tmp_path.name}".replace("/", " ")


@pytest.fixture
def files(tmp_path: Path) -> str:
    return url_of("files", tmp_path)


@pytest.fixture
def store(kind: Kind, tmp_path: Path) -> str:
    """Where a kind of tool can be tried."""
    url = url_of("postgres" if kind == "transactional" else "files", tmp_path)
    if kind == "transactional":
        with psycopg.connect(database_of(url), autocommit=True) as connection:
            # Workers of pytest make the table at the same time.
            connection.execute("SELECT pg_advisory_lock(7)")
            connection.execute(TABLE)
    return url


def _some(deaths: list[Death], cell: int, whole: bool) -> list[Death]:
    """All of them, or a few: other ones in each cell, so that together the cells have all."""
    stride = max(len(deaths) // FEW, 1)
    return deaths if whole else deaths[cell % stride :: stride][:FEW]


def _trials(cell: Cell, url: str, name: str, world: World, deaths: Sequence[Death]) -> Iterator[tuple[Death, Outcome]]:
    """Each death in a thread of its own, a few of them at a time."""

    def tried(death: Death) -> tuple[Death, Outcome]:
        return death, trial(cell, url, f"{name} {death.point} {death.occurrence}", world, [death])

    with ThreadPoolExecutor(TOGETHER) as pool:
        yield from pool.map(tried, deaths)


@pytest.mark.timeout(3600)  # the full matrix has sixty deaths and more in a cell, and waits for a lease in most of them
@pytest.mark.parametrize(("shape", "mode", "kind"), CELLS)
def test_killed_at_any_point_each_effect_is_made_once(
    shape: Shape,
    mode: Mode,
    kind: Kind,
    name: str,
    store: str,
    world: World,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    number = CELLS.index((shape, mode, kind))
    cell = Cell(shape, mode, kind, "blocking" if number % 2 else "async")
    unharmed = trial(cell, store, f"{name} unharmed", world)
    assert right(cell, unharmed), unharmed
    deaths = _some(all_deaths(unharmed.last), number, pytestconfig.getoption("--ledger-matrix") == "full")
    wrong = []
    for death, outcome in _trials(cell, store, name, world, deaths):
        assert outcome.killed == 1 or mode == "exit", "whoever is killed in a put at the exit has ended already"
        if not right(cell, outcome):
            wrong.append((death, outcome))
    record_property("once with the ledger", (len(deaths) - len(wrong), len(deaths)))
    assert wrong == []


@pytest.mark.parametrize("kind", ["keyed", "reconcile"])
@pytest.mark.parametrize("backend", ["postgres", "redis"])
def test_killed_around_an_effect_on_every_store(
    backend: str, kind: Kind, name: str, tmp_path: Path, world: World
) -> None:
    """Which store it is makes no difference to the other tests: what differs has its tests in the behaviour suite."""
    cell, url = Cell("create_agent", "async", kind, "async"), url_of(backend, tmp_path)
    for point in ("after claim", "after effect", "after settle"):
        outcome = trial(cell, url, f"{name} {point}", world, [Death(point, 2)])
        assert outcome.killed == 1
        assert right(cell, outcome), (point, outcome)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", SHAPES)
def test_without_a_ledger_effects_are_repeated(
    shape: Shape,
    mode: Mode,
    name: str,
    files: str,
    world: World,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    """The baseline: the same agents, deaths and outside world."""
    cell = Cell(shape, mode, "keyed", "blocking", ledger=False)
    whole = pytestconfig.getoption("--ledger-matrix") == "full"
    deaths = all_deaths(trial(cell, files, f"{name} unharmed", world).last) if whole else []
    deaths = deaths or [Death("after effect", 1), Death("after effect", 3), Death("before put", 1)]
    outcomes = [outcome for _, outcome in _trials(cell, files, name, world, deaths)]
    good = sum(right(cell, outcome) for outcome in outcomes)
    record_property("once without it", (good, len(outcomes)))
    assert good < len(outcomes)
    assert all(outcome.effects >= expected(cell) for outcome in outcomes if outcome.last.said)


@pytest.mark.timeout(3600)  # as above
def test_killed_over_and_over(name: str, files: str, world: World, pytestconfig: pytest.Config) -> None:
    kills, chance = (
        int(pytestconfig.getoption("--ledger-kills") or 0),
        random.Random(pytestconfig.getoption("--kill-seed")),
    )
    killed = threads = 0
    assert kills
    outside: list[Kind] = [kind for kind in KINDS if kind != "transactional"]
    reachable = [point for point in POINTS if "put" not in point]
    while killed < kills:
        threads += 1
        shape, mode = chance.choice(SHAPES), chance.choice(MODES)
        kind = chance.choice(outside)
        cell = Cell(shape, mode, kind, chance.choice(["blocking", "async"]))
        points = reachable if mode == "exit" else POINTS
        deaths = [Death(chance.choice(points), chance.randint(1, 3)) for _ in range(chance.randint(2, 5))]
        outcome = trial(cell, files, f"{name} {threads}", world, deaths)
        assert right(cell, outcome), (cell, deaths, outcome)
        killed += outcome.killed


# Zombies.


def _while_stopped(cell: Cell, point: str, name: str, url: str, world: World, folder: Path) -> tuple[Counter[str], str]:
    """A worker is stopped at a point for longer than its lease, another takes over; then it goes on."""
    zombie = Worker(Life(cell, url, name, world.port, 1, Death(point, 1, str(folder / "go on"))))
    zombie.wait_until_stopped()
    outcome = trial(cell, url, name, world)
    assert outcome.last.said == said(cell), outcome
    zombie.go_on()
    word = zombie.last_word()
    assert word is not None
    # Whatever it has written: the thread still ends as it did.
    after = trial(cell, url, name, world)
    assert after.last.said == said(cell), after
    return after.effects, word.error


@pytest.mark.parametrize("flavour", ["blocking", "async"])
@pytest.mark.parametrize("kind", ["keyed", "reconcile", "person"])
@pytest.mark.parametrize("point", ["after claim", "before check", "after effect", "before settle"])
def test_a_worker_that_was_stopped_for_too_long_does_no_harm(
    point: str, kind: Kind, flavour: str, name: str, files: str, world: World, tmp_path: Path
) -> None:
    cell = Cell("create_agent", "sync", kind, "async" if flavour == "async" else "blocking", solo=True)
    effects, error = _while_stopped(cell, point, name, files, world, tmp_path)
    assert effects == {"a": 1}
    if point in ("after claim", "before check"):
        assert "CallSuperseded" in error


# Many workers.


@pytest.mark.parametrize("kind", ["keyed", "reconcile"])
def test_workers_that_share_a_thread_share_its_calls(kind: Kind, name: str, files: str, world: World) -> None:
    cell = Cell("ToolNode", "sync", kind, "blocking", solo=True)
    # The thread is at the point where the tool is next.
    begun = Worker(Life(cell, files, name, world.port, 0, Death("before call", 1)))
    assert begun.last_word() is None
    # Nobody dies from here on, so nobody is to be taken for dead.
    workers = [Worker(Life(cell, files, name, world.port, number, lease=60.0)) for number in range(1, 5)]
    words = [worker.last_word() for worker in workers]
    assert [word and word.said for word in words] == [said(cell)] * 4
    assert world.effects(name) == expected(cell)


def test_workers_that_share_a_key_share_its_call(name: str, files: str, world: World) -> None:
    cell = Cell("ToolNode", "exit", "person", "blocking", solo=True, everywhere=True)
    names = [f"{name} {number}" for number in range(4)]
    workers = [Worker(Life(cell, files, one, world.port, number, lease=60.0)) for number, one in enumerate(names)]
    words = [worker.last_word() for worker in workers]
    assert [word and word.said for word in words] == [said(cell)] * 4
    assert sum((world.effects(one) for one in names), Counter()) == {"a": 1}


# What is taken out is missed.


@pytest.mark.parametrize(
    ("part", "cell"),
    [
        ("no barrier", Cell("create_agent", "slow", "keyed", "async", solo=True, restless=True)),
        ("no barrier", Cell("sub-agent", "slow", "keyed", "async", solo=True, restless=True)),
        ("blind retry", Cell("create_agent", "sync", "reconcile", "async", solo=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else value.shape,
)
def test_a_ledger_without_one_of_its_parts_fails(part: str, cell: Cell, name: str, files: str, world: World) -> None:
    whole = trial(cell, files, f"{name} whole", world, [Death("after effect", 1)])
    assert right(cell, whole), whole
    maimed = replace(cell, ablation=part)
    # Not in a race with the store: what a worker without a barrier runs ahead of does not become durable at all.
    death = Death("after effect", 1, slow=60.0 if cell.mode == "slow" else 0.0)
    assert not right(maimed, trial(maimed, files, f"{name} maimed", world, [death]))
