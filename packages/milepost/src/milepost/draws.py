"""Numbers that nobody else draws, for what a store must be able to tell from all that was before."""

from __future__ import annotations

import os
import random

_dice = random.Random()  # noqa: S311  # nothing is kept secret by these numbers
# A child would draw what its parent draws.
os.register_at_fork(after_in_child=_dice.seed)


def draw() -> int:
    """A random number of 63 bits, not negative. No secret: who knows many of them can tell the next.

    Not the system's: to ask it, a thread gives up the interpreter, and waits for it among all others with each call. Not
    those of `random` either, which an application may set going from the same number everywhere.
    """
    return _dice.getrandbits(63)
