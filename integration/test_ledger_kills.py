"""SIGKILL at every point of a tool call: how often is the outside world asked for an effect?

``pytest integration/test_ledger_kills.py --ledger-matrix full`` tries every cell of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger_agents import SHAPES, Shape
from ledger_points import Death
from ledger_trial import World, expected, running_world, trial
from ledger_worker import Cell


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("world") / "log.jsonl") as running:
        yield running


@pytest.mark.parametrize("shape", SHAPES)
def test_without_a_ledger_a_killed_worker_leaves_repeated_effects(shape: Shape, tmp_path: Path, world: World) -> None:
    cell = Cell(shape, "sync", "keyed", "blocking", ledger=False)
    thread = f"baseline of {shape}"
    outcome = trial(cell, f"file:{tmp_path}/store", thread, world, [Death("after effect", 2)])
    assert outcome.killed == 1
    assert outcome.last.said
    assert outcome.effects.total() > expected(cell).total()
