from __future__ import annotations

import io
from pathlib import Path

import pytest
from milepost_inspector.demo import conductor, main, report
from rich.console import Console


class Terminal(io.StringIO):
    """Somebody types Ctrl-D."""

    def isatty(self) -> bool:
        return True


def test_the_end_of_the_input_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal())
    console = Console(file=io.StringIO(), width=200)
    question = {"totals": {"records": 3}, "question": "Close the books?"}
    assert main._ask(question, console, ask_nobody=False) == "refuse"


@pytest.mark.parametrize("kept", [True, False])
def test_the_way_to_the_state_is_told_only_where_it_stays(kept: bool) -> None:
    console = Console(file=io.StringIO(), width=200)
    plan = conductor.Plan("postgresql://127.0.0.1:5/db", "t", Path("world.jsonl"), records=0, batch=1, kills=0, seed=1)
    report.report([conductor.Outcome(plan)], console, kept=kept)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert ("milepost.connect('postgresql://127.0.0.1:5/db')" in said) == kept
    assert "world.jsonl" in said
    assert "bytes of the last state alone" in said
    assert "bytes of whole states and writes" in said
