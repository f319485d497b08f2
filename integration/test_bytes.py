"""What a growing conversation takes on the disk: exact figures, so they are tests (G1 to G3 of the benchmark)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import milepost
import pytest
from bench.agents import conversation, message
from bench.measure import Bench, Blocking, Sample
from bench.rivals import OURS
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from milepost.flavour import run


class WholeStates(InMemorySaver):
    """What a saver that stores whole states would have written: the official SQLite saver does."""

    written = 0

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self.written += len(JsonPlusSerializer().dumps_typed(checkpoint)[1])
        return super().put(config, checkpoint, metadata, new_versions)


@cache
def _files(steps: int) -> int:
    with TemporaryDirectory() as folder:
        bench = Bench(OURS, "sync", Path(folder), Sample())
        with milepost.connect(f"file:{folder}/store?durability=os") as saver:
            run(conversation(bench, Blocking(saver), steps))
        return OURS.bytes(Path(folder))


def _messages(steps: int) -> int:
    serde = JsonPlusSerializer()
    return len(serde.dumps_typed([message(number) for number in range(steps)])[1])


@pytest.mark.parametrize(("steps", "part"), [(100, 0.035), (300, 0.0115)])
def test_a_conversation_takes_a_small_part_of_what_whole_states_take(steps: int, part: float) -> None:
    saver = WholeStates()
    with TemporaryDirectory() as folder:
        run(conversation(Bench(OURS, "sync", Path(folder), Sample()), Blocking(saver), steps))
    assert _files(steps) <= part * saver.written


def test_bytes_grow_with_the_steps_and_not_with_their_square() -> None:
    assert _files(1000) / _files(100) <= 11
    assert (_files(1000) - _files(900)) / (_files(200) - _files(100)) <= 1.1


@pytest.mark.parametrize("steps", [100, 300, 1000])
def test_a_conversation_takes_little_more_than_its_messages(steps: int) -> None:
    assert _files(steps) <= 1.5 * _messages(steps)
