"""Prints what the demo did."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from milepost_inspector.demo.conductor import Outcome

SHOWN = 5
"""Problems printed in full; of the rest only the number."""


def report(outcomes: Sequence[Outcome], console: Console, *, kept: bool) -> bool:
    """Print the tables and the verdict, and return whether every record is right.

    Of several runs of the same job each has a column of the table; the last one's state is what is shown to look at, if the
    store is `kept` when the demo has ended.
    """
    for outcome in outcomes:
        if outcome.kills:
            console.print(_kills(outcome))
    console.print(_summary(outcomes))
    _where(outcomes[-1], console, kept=kept)
    verdicts = [_verdict(outcome, console) for outcome in outcomes]
    return all(verdicts)


def _verdict(outcome: Outcome, console: Console) -> bool:
    problems = outcome.audit.problems
    for problem in problems[:SHOWN]:
        console.print(f"[red]wrong:[/] {escape(problem)}")
    if len(problems) > SHOWN:
        console.print(f"[red]wrong:[/] and {len(problems) - SHOWN} more")
    if problems:
        console.print(f"[bold red]FAILED[/]: {len(problems)} differences between the records and what happened")
    elif outcome.plan.ledger:
        console.print(f"[bold green]OK[/]: {outcome.plan.records} of {outcome.plan.records} records are right")
    return not problems


def _kills(outcome: Outcome) -> Table:
    table = Table(title=f"Kills, {_way(outcome)}")
    for column in ("worker", "killed at record", "last checkpoint", "calls kept beside it", "effects redone after it"):
        table.add_column(column, justify="right")
    for kill in outcome.kills:
        step = "none" if kill.step is None else f"step {kill.step}"
        redone = outcome.audit.repeated[kill.run + 1]
        table.add_row(str(kill.run), f"{kill.records:,}", step, str(kill.kept), str(redone))
    return table


def _way(outcome: Outcome) -> str:
    return "with the ledger" if outcome.plan.ledger else "without it"


def _summary(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="Result", show_header=len(outcomes) > 1)
    table.add_column(no_wrap=True)
    for outcome in outcomes:
        table.add_column(_way(outcome), justify="right")
    columns = [_cells(outcome) for outcome in outcomes]
    for label in columns[-1]:
        table.add_row(label, *(column.get(label, "") for column in columns))
    return table


def _cells(outcome: Outcome) -> dict[str, str]:
    """The rows of the table for one run."""
    audit, weight, plan = outcome.audit, outcome.weight, outcome.plan
    whole = weight.checkpoints + weight.writes
    cells = {
        "records settled rightly": f"{audit.settled:,} of {plan.records:,}",
        "worker processes": f"{outcome.runs}, {len(outcome.kills)} killed",
        "effects, closing the books too" if outcome.approved else "effects": f"{audit.effects:,}",
        "effects repeated": f"{audit.repeated.total():,}",
    }
    if plan.ledger:
        cells["calls answered by the ledger"] = f"{outcome.replayed:,}"
    cells |= {
        "approval": "books closed" if outcome.approved else "refused, books left open",
        "checkpoints written": f"{outcome.checkpoints:,}",
        "bytes stored": f"{outcome.stored:,}",
        "bytes of the last state alone": f"{weight.final:,}",
        "bytes of whole states and writes": f"{whole:,}",
    }
    if outcome.stored:
        cells["whole states / stored"] = f"{whole / outcome.stored:.1f} times"
    cells["seconds"] = f"{outcome.seconds:.1f}"
    return cells


def _where(outcome: Outcome, console: Console, *, kept: bool) -> None:
    plan = outcome.plan
    if not kept:
        console.print(
            "The server that was started for the demo ends with it, and the state with the server; the world's log is "
            f"{escape(str(plan.log))}. To look at the state afterwards, name a server of your own with --url.",
            soft_wrap=True,
        )
        return
    look = (
        f"The state lies in {plan.url} as thread {plan.thread}; the world's log is {plan.log}. To look at it:\n"
        "    import milepost\n"
        f"    with milepost.connect({plan.url!r}) as saver:\n"
        f'        for saved in saver.list({{"configurable": {{"thread_id": {plan.thread!r}}}}}, limit=5):\n'
        '            print(saved.metadata["step"], saved.checkpoint["channel_values"].get("totals"))'
    )
    console.print(escape(look), soft_wrap=True)
