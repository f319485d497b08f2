"""What a growing conversation takes: exact figures, so they are tests (G1 to G3 of the benchmark).

Where a test compares with what another saver takes for 1,000 steps, that is reckoned from its 300 steps: it stores the
whole list in each step, so it takes at least nine tenths of (1000 / 300)^2 times as much. (Measured: 10.5 times.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import milepost
import pytest
import subjects
from bench import plain_redis, postgres
from bench.agents import conversation, message
from bench.measure import Bench, Blocking, Sample
from bench.plain_redis import REDIS, STACK, VALKEY
from bench.postgres import OFFICIAL, POSTGRES
from bench.rivals import OURS, Rival
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from milepost.flavour import run

_LIKE_1000 = 0.9 * (1000 / 300) ** 2


class WholeStates(InMemorySaver):
    """What a saver that stores whole states would have written: the official SQLite saver does."""

    written = 0

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self.written += len(JsonPlusSerializer().dumps_typed(checkpoint)[1])
        return super().put(config, checkpoint, metadata, new_versions)


@dataclass(frozen=True)
class Taken:
    """Bytes."""

    stored: int
    logged: float
    """What the server wrote ahead."""


@cache
def _taken(rival: Rival, steps: int) -> Taken:
    if reason := rival.missing():
        pytest.skip(reason)
    if rival.store == "postgres":
        subjects.required(lambda: postgres.server().url())
    if rival.store == "redis":
        subjects.required(lambda: plain_redis.server().url())
        _warm(rival)
    return _measured(rival, steps)


@cache
def _warm(rival: Rival) -> None:
    """A server takes memory for its first scripts and connections, and keeps it."""
    _measured(rival, 100)


def _measured(rival: Rival, steps: int) -> Taken:
    with TemporaryDirectory() as name:
        folder, sample = Path(name), Sample()
        bench = Bench(rival, "sync", folder, sample)
        opened = milepost.connect(f"file:{folder}/store?durability=os") if rival is OURS else rival.blocking(folder)
        with opened as saver:
            run(conversation(bench, Blocking(saver), steps))
        return Taken(rival.bytes(folder), sample.numbers.get("log bytes", 0))


def _messages(steps: int) -> int:
    serde = JsonPlusSerializer()
    return len(serde.dumps_typed([message(number) for number in range(steps)])[1])


@pytest.mark.parametrize(("steps", "part"), [(100, 0.035), (300, 0.0115)])
def test_a_conversation_takes_a_small_part_of_what_whole_states_take(steps: int, part: float) -> None:
    saver = WholeStates()
    with TemporaryDirectory() as folder:
        run(conversation(Bench(OURS, "sync", Path(folder), Sample()), Blocking(saver), steps))
    assert _taken(OURS, steps).stored <= part * saver.written


@pytest.mark.parametrize(
    ("ours", "peer", "at_100", "at_1000"),
    [(POSTGRES, OFFICIAL, 0.10, 0.010), (REDIS, VALKEY, 0.03, 0.0035), (REDIS, STACK, 0.09, 0.012)],
    ids=lambda value: value.name if isinstance(value, Rival) else None,
)
def test_a_conversation_takes_a_small_part_of_what_it_takes_elsewhere(
    ours: Rival, peer: Rival, at_100: float, at_1000: float
) -> None:
    assert _taken(ours, 100).stored <= at_100 * _taken(peer, 100).stored
    assert _taken(ours, 1000).stored <= at_1000 * _LIKE_1000 * _taken(peer, 300).stored
    if ours is POSTGRES:
        assert _taken(ours, 1000).logged <= 0.012 * _LIKE_1000 * _taken(peer, 300).logged


@pytest.mark.parametrize("rival", [OURS, POSTGRES, REDIS], ids=lambda rival: rival.name)
def test_bytes_grow_with_the_steps_and_not_with_their_square(rival: Rival) -> None:
    found = {steps: _taken(rival, steps) for steps in (100, 200, 900, 1000)}
    assert found[1000].stored / found[100].stored <= 11
    # Tables and tables of hashes grow by leaps.
    leap = 0 if rival is OURS else 1 << 17
    assert found[1000].stored - found[900].stored <= 1.1 * (found[200].stored - found[100].stored) + leap
    assert found[1000].logged <= 11 * found[100].logged


@pytest.mark.parametrize("steps", [100, 300, 1000])
def test_a_conversation_takes_little_more_than_its_messages(steps: int) -> None:
    assert _taken(OURS, steps).stored <= 1.5 * _messages(steps)
