"""Whether an answer that names no question is for the one that a call's function has asked: its audit trail tells.

LangGraph keeps such an answer, and gives it to whoever asks next. Given while the run waited for a verdict, it is none to
what the function asks later.
"""

from __future__ import annotations

from collections.abc import Sequence

from milepost.ledger.record import Transition

_TAKEN = "resumed with the answer "
_PASSED = "asked beside the answer "


def taken(plain: str, trail: Sequence[Transition]) -> str:
    """The note of a claim that resumes a suspended call, of a run with the answer of digest `plain`."""
    asked = trail[_last_question(trail) :]
    return _TAKEN + plain if plain and all(entry.note != _PASSED + plain for entry in asked) else "resumed"


def passed(plain: str) -> str:
    """The note of a suspension: this answer is older than the question, and none to it."""
    return _PASSED + plain if plain else ""


def is_for(plain: str, trail: Sequence[Transition]) -> bool:
    """Whether the execution that the trail ends with may be given the answer."""
    current = [entry for entry in trail if entry.generation == trail[-1].generation]
    asked = _last_question(current)
    resumed = next((entry for entry in current[asked:] if entry.state == "started"), None)
    return asked < len(current) and resumed is not None and resumed.note == _TAKEN + plain


def _last_question(trail: Sequence[Transition]) -> int:
    """Where the last suspension begins; the length of the trail if there is none."""
    at = next((at for at in range(len(trail) - 1, -1, -1) if trail[at].state == "suspended"), len(trail))
    while 0 < at < len(trail) and trail[at - 1].state == "suspended":
        at -= 1
    return at
