"""Numbers that nobody else draws, for what a store must be able to tell from what was before."""

from __future__ import annotations

import os
import random
import time
from typing import Final

_SEEDED: Final = 1.0
"""Seconds for which a seed is used."""


class _Dice:
    """The numbers of this process."""

    def __init__(self) -> None:
        self._random = random.Random()  # noqa: S311  # nothing is kept secret by these numbers
        self._process = 0
        self._until = 0.0

    def draw(self) -> int:
        """A random number of 63 bits, not negative. No secret: who knows many of them can tell the next.

        Not the system's each time: to ask it, a thread gives up the interpreter, and waits for it among all others. Not
        those of `random` either, which an application may set going from the same number everywhere. For what must never
        be drawn twice, since a thread's data would be lost, there is `secrets`.
        """
        # Whoever goes on from the same memory would draw the same: a child of this process, also one of a server that
        # forks without Python's knowledge, and a machine that was restored from a snapshot.
        now = time.monotonic()
        if os.getpid() != self._process or not 0.0 <= self._until - now <= _SEEDED:
            self._random.seed()
            self._process = os.getpid()
            self._until = now + _SEEDED
        return self._random.getrandbits(63)


_dice = _Dice()
draw: Final = _dice.draw
