"""Was every record settled, and rightly? The world's log and the final state, against the records themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost_inspector.demo.records import Row, checksum, payload, settle, tally

CLOSE = "close"
"""The id of the effect that closes the books."""


@dataclass(slots=True)
class Audit:
    """What the world did, and everything that is wrong with it."""

    effects: int = 0
    settled: int = 0
    """Records whose every effect had the right payload."""
    repeated: Counter[int] = field(default_factory=Counter)
    """Worker run -> effects it asked for that the world had performed before."""
    problems: list[str] = field(default_factory=list)


def audit(log: Path, rows: Sequence[Row], totals: Mapping[str, int], *, approved: bool, once: bool = False) -> Audit:
    """Compare the log of the world, and the `totals` of the final state, with what `rows` call for.

    With `once`, an effect that was performed again is wrong too. Raises ``OSError`` when the log cannot be read.
    """
    result = Audit()
    settlements = [settle(row) for row in rows]
    expected = tally(settlements)
    due = {settlement.refund: checksum(payload(settlement)) for settlement in settlements}
    if approved:
        due[CLOSE] = checksum({"totals": expected})
    sums: dict[str, set[str]] = {}
    for number, effect in _lines(log, result.problems):
        result.effects += 1
        if effect["id"] in sums:
            result.repeated[effect["run"]] += 1
            if once:
                result.problems.append(f"{effect['id']}: performed again by worker {effect['run']}")
        if effect["id"] not in due:
            result.problems.append(f"line {number} of the world's log: nobody asked for {effect['id']!r}")
        sums.setdefault(effect["id"], set()).add(effect["sum"])
    for id, right in due.items():
        if id not in sums:
            result.problems.append(f"{id}: no effect in the world's log")
        elif sums[id] != {right}:
            result.problems.append(f"{id}: an effect with another payload than the record calls for")
        elif id != CLOSE:
            result.settled += 1
    for key in sorted({*expected, *totals}):
        if expected.get(key, 0) != totals.get(key, 0):
            result.problems.append(f"{key}: the state says {totals.get(key, 0)}, the records {expected.get(key, 0)}")
    return result


def _lines(log: Path, problems: list[str]) -> Iterable[tuple[int, dict[str, Any]]]:
    with log.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                effect = json.loads(line)
                known = {"id": str(effect["id"]), "sum": str(effect["sum"]), "run": int(effect["run"])}
            except (ValueError, KeyError, TypeError):
                problems.append(f"line {number} of the world's log cannot be read")
                continue
            yield number, known
