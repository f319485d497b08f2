from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from milepost_inspector.demo import records
from milepost_inspector.demo.audit import CLOSE, audit

ROWS = records.load(4)
TOTALS = records.tally(map(records.settle, ROWS))
CLOSING = {"totals": TOTALS}


def line(id: str, payload: Mapping[str, object], run: int = 1) -> dict[str, Any]:
    return {"id": id, "sum": records.checksum(payload), "run": run, "attempt": 1}


def perfect() -> list[dict[str, Any]]:
    settled = map(records.settle, ROWS)
    return [*(line(one.refund, records.payload(one)) for one in settled), line(CLOSE, CLOSING)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "world.jsonl"


def write(log: Path, lines: list[dict[str, Any]]) -> Path:
    log.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return log


def test_a_perfect_run_has_no_problems(log: Path) -> None:
    result = audit(write(log, perfect()), ROWS, TOTALS, approved=True)
    assert result.problems == []
    assert (result.settled, result.effects, result.repeated.total()) == (4, 5, 0)


def test_repeated_effects_are_counted_for_the_run_that_asked_again(log: Path) -> None:
    lines = perfect()
    lines.insert(3, {**lines[1], "run": 2})
    lines.insert(4, {**lines[1], "run": 3})
    lines.insert(5, {**lines[0], "run": 3})
    result = audit(write(log, lines), ROWS, TOTALS, approved=True)
    assert result.problems == []
    assert (result.effects, dict(result.repeated)) == (8, {2: 1, 3: 2})


def test_with_the_ledger_a_repeated_effect_is_a_problem(log: Path) -> None:
    lines = [*perfect(), line(CLOSE, CLOSING, run=2)]
    result = audit(write(log, lines), ROWS, TOTALS, approved=True, once=True)
    assert result.problems == ["close: performed again by worker 2"]
    assert audit(write(log, perfect()), ROWS, TOTALS, approved=True, once=True).problems == []


def test_a_record_without_an_effect_is_a_problem(log: Path) -> None:
    result = audit(write(log, perfect()[1:]), ROWS, TOTALS, approved=True)
    assert result.problems == ["RF-000001: no effect in the world's log"]
    assert result.settled == 3


def test_one_wrong_payload_among_right_ones_is_a_problem(log: Path) -> None:
    lines = [*perfect(), line("RF-000002", {"cents": 1})]
    result = audit(write(log, lines), ROWS, TOTALS, approved=True)
    assert result.problems == ["RF-000002: an effect with another payload than the record calls for"]


def test_an_effect_nobody_asked_for_is_a_problem(log: Path) -> None:
    lines = [*perfect(), line("RF-999999", {})]
    result = audit(write(log, lines), ROWS, TOTALS, approved=True)
    assert result.problems == ["line 6 of the world's log: nobody asked for 'RF-999999'"]


@pytest.mark.parametrize("text", ["{", "[]", '{"id": "RF-000001"}', '{"id": "x", "sum": "y", "run": "z"}', ""])
def test_an_unreadable_line_is_a_problem(log: Path, text: str) -> None:
    write(log, perfect())
    with log.open("a") as file:
        file.write(text + "\n")
    result = audit(log, ROWS, TOTALS, approved=True)
    assert result.problems == ["line 6 of the world's log cannot be read"]


def test_totals_that_differ_from_the_records_are_problems(log: Path) -> None:
    totals = {**TOTALS, "pay count": TOTALS["pay count"] + 1, "pay CHF cents": 5}
    result = audit(write(log, perfect()), ROWS, totals, approved=True)
    assert len(result.problems) == 2
    assert "pay CHF cents: the state says 5, the records 0" in result.problems


def test_books_are_closed_if_and_only_if_a_person_approved(log: Path) -> None:
    assert audit(write(log, perfect()), ROWS, TOTALS, approved=False).problems == [
        "line 5 of the world's log: nobody asked for 'close'"
    ]
    assert audit(write(log, perfect()[:-1]), ROWS, TOTALS, approved=True).problems == [
        "close: no effect in the world's log"
    ]
    assert audit(write(log, perfect()[:-1]), ROWS, TOTALS, approved=False).problems == []
