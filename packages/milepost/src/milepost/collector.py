"""Building many objects at once: without the garbage collector, whose passes over them would find nothing, and without
a Python function for each."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable
from itertools import repeat
from typing import Any, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])

_MANY = 64

_paused = False


class unhurried:  # noqa: N801  # used as a context, like a function
    """A context in which no garbage is collected, if about `count` objects are about to be built; else it does nothing.

    For computing only: never held across an await, nor while anything of the user's waits.
    """

    __slots__ = ("_pauses",)

    def __init__(self, count: int) -> None:
        self._pauses = count >= _MANY and gc.isenabled()

    def __enter__(self) -> None:
        global _paused  # noqa: PLW0603  # of the process, as the collector is
        if self._pauses:
            gc.disable()
            _paused = True

    def __exit__(self, *_: object) -> None:
        global _paused  # noqa: PLW0603  # (as above)
        if self._pauses:
            _paused = False
            gc.enable()


def many(kind: type[T], rows: Iterable[tuple[Any, ...]]) -> list[T]:
    """`rows` as named tuples of this kind, whose fields each of them has, in order."""
    return list(map(tuple.__new__, repeat(kind), rows))


def _resume_in_child() -> None:
    if _paused:
        gc.enable()


# A thread that had paused the collector is not there after a fork, so it cannot resume it.
os.register_at_fork(after_in_child=_resume_in_child)
