"""Prints what the demo did."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from milepost_inspector.demo.conductor import Outcome

SHOWN = 5
"""Problems printed in full; of the rest only the number."""


def report(outcome: Outcome, console: Console) -> bool:
    """Print the tables and the verdict, and return whether every record is right."""
    if outcome.kills:
        console.print(_kills(outcome))
    console.print(_summary(outcome))
    _where(outcome, console)
    problems = outcome.audit.problems
    for problem in problems[:SHOWN]:
        console.print(f"[red]wrong:[/] {escape(problem)}")
    if len(problems) > SHOWN:
        console.print(f"[red]wrong:[/] and {len(problems) - SHOWN} more")
    if problems:
        console.print(f"[bold red]FAILED[/]: {len(problems)} differences between the records and what happened")
    else:
        console.print(f"[bold green]OK[/]: {outcome.plan.records} of {outcome.plan.records} records are right")
    return not problems


def _kills(outcome: Outcome) -> Table:
    table = Table(title="Kills")
    for column in ("worker", "killed at record", "last checkpoint", "calls kept beside it", "effects redone after it"):
        table.add_column(column, justify="right")
    for kill in outcome.kills:
        step = "none" if kill.step is None else f"step {kill.step}"
        redone = outcome.audit.repeated[kill.run + 1]
        table.add_row(str(kill.run), f"{kill.records:,}", step, str(kill.kept), str(redone))
    return table


def _summary(outcome: Outcome) -> Table:
    audit, weight, plan = outcome.audit, outcome.weight, outcome.plan
    whole = weight.checkpoints + weight.writes
    table = Table(title="Result", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("records settled rightly", f"{audit.settled:,} of {plan.records:,}")
    table.add_row("worker processes", f"{outcome.runs}, {len(outcome.kills)} of them killed")
    table.add_row("effects in the outside world", f"{audit.effects:,}, {audit.repeated.total():,} of them repeated")
    if plan.ledger:
        table.add_row("calls asked for again, answered by the ledger", f"{outcome.replayed:,}")
    table.add_row("approval", "books closed" if outcome.approved else "refused, books left open")
    table.add_row("checkpoints written", f"{outcome.checkpoints:,}")
    table.add_row("bytes stored", f"{outcome.stored:,}")
    table.add_row("the last state alone", f"{weight.final:,}")
    table.add_row("whole states and writes would be", f"{whole:,}")
    if outcome.stored:
        table.add_row("whole states / stored", f"{whole / outcome.stored:.1f} times")
    table.add_row("seconds", f"{outcome.seconds:.1f}")
    return table


def _where(outcome: Outcome, console: Console) -> None:
    plan = outcome.plan
    look = (
        f"The state lies in {plan.url} as thread {plan.thread}; the world's log is {plan.log}. To look at it:\n"
        "    import milepost\n"
        f"    with milepost.connect({plan.url!r}) as saver:\n"
        f'        for saved in saver.list({{"configurable": {{"thread_id": {plan.thread!r}}}}}, limit=5):\n'
        '            print(saved.metadata["step"], saved.checkpoint["channel_values"].get("totals"))'
    )
    console.print(escape(look), soft_wrap=True)
