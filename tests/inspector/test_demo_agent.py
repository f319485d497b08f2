from __future__ import annotations

from collections import Counter
from typing import Any

import milepost
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command
from milepost.tools import Ledger
from milepost_inspector.demo import agent, records
from milepost_inspector.demo.weigh import weigh

START: Any = {"messages": [("user", "Settle every refund that waits.")]}
CONFIG: RunnableConfig = {"configurable": {"thread_id": "t"}, "recursion_limit": 100}


class Effects:
    """An outside world in this process."""

    def __init__(self) -> None:
        self.payloads: dict[str, dict[str, object]] = {}
        self.attempts: Counter[str] = Counter()

    def __call__(self, record: str, payload: dict[str, object]) -> int:
        self.payloads[record] = payload
        self.attempts[record] += 1
        return self.attempts[record]


@pytest.mark.parametrize(("count", "batch"), [(1, 1), (7, 3), (6, 3), (5, 100)])
def test_every_record_has_one_effect_and_is_in_the_totals(count: int, batch: int) -> None:
    rows = records.load(count)
    effects = Effects()
    with milepost.connect("memory:") as saver:
        result = agent.build(rows, effects, batch, saver).invoke(START, CONFIG)
    settled = [records.settle(row) for row in rows]
    assert effects.payloads == {one.refund: records.payload(one) for one in settled}
    assert set(effects.attempts.values()) == {1}
    assert result["totals"] == records.tally(settled)
    assert result["__interrupt__"][0].value["totals"] == result["totals"]


@pytest.mark.parametrize(("answer", "closed"), [("approve", True), ("refuse", False)])
def test_the_books_are_closed_only_on_approval(answer: str, closed: bool) -> None:
    effects = Effects()
    with milepost.connect("memory:") as saver:
        graph = agent.build(records.load(3), effects, 2, saver)
        graph.invoke(START, CONFIG)
        result = graph.invoke(Command(resume=answer), CONFIG)
    assert effects.attempts["close"] == int(closed)
    assert ("books closed" in result["messages"][-1].text) is closed


def test_what_the_world_has_done_is_not_asked_of_it_again() -> None:
    """A worker was killed after each effect: the world is asked what became of it, and the state is as if it had not."""
    rows = records.load(3)
    effects = Effects()
    crashed: set[str] = set()

    def effect(record: str, payload: dict[str, object]) -> int:
        number = effects(record, payload)
        if record not in crashed:
            crashed.add(record)
            raise TimeoutError(record)
        return number

    with milepost.connect("memory:") as saver:
        ledger = Ledger(saver, agent.classes(lambda record: effects.attempts[record]), lease=0.01, skew=0)
        graph = agent.build(rows, effect, 2, saver, [ledger.middleware()])
        graph.invoke(START, CONFIG)
        result = graph.invoke(Command(resume="approve"), CONFIG)
    assert set(effects.attempts.values()) == {1}
    assert crashed == {*(row["refund_id"] for row in rows), "close"}
    assert result["totals"] == records.tally(map(records.settle, rows))
    assert "books closed" in result["messages"][-1].text


def test_the_weight_is_that_of_really_serialising_every_checkpoint() -> None:
    with milepost.connect("memory:") as saver:
        agent.build(records.load(40), Effects(), 10, saver).invoke(START, CONFIG)
        weight = weigh(saver, CONFIG)
        saved = list(saver.list(CONFIG))
    serde = JsonPlusSerializer()
    whole = [len(serde.dumps_typed(one.checkpoint)[1]) for one in saved]
    assert len(saved[0].checkpoint["channel_values"]["messages"]) > 40
    assert weight.checkpoints == sum(whole)
    assert weight.final == whole[0]
    assert weight.writes == sum(len(serde.dumps_typed(w[2])[1]) for one in saved for w in one.pending_writes or ())


def test_the_weight_of_no_thread_is_nothing() -> None:
    with milepost.connect("memory:") as saver:
        weight = weigh(saver, CONFIG)
    assert (weight.checkpoints, weight.writes, weight.final) == (0, 0, 0)
