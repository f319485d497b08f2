"""Small packs that lie one behind another, on their way to be stored as one."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import islice, pairwise

from milepost.codec.pack import COMPRESS_OVER
from milepost.store import Pack

RUN = 40
"""So many packs in a row are merged, as soon as they are there."""
MOST = 256
"""More are not merged at once."""
_LEAST = 4
"""Fewer stay as they are where a gap follows them."""


class Loose:
    """The small packs of one writer that the store has acknowledged, and that were not merged yet."""

    __slots__ = ("_packs", "size")

    def __init__(self) -> None:
        self._packs: list[Pack] = []
        """By their first item."""
        self.size = 0
        """Bytes of them all."""

    def add(self, pack: Pack) -> None:
        """A pack was stored. A large one is not worth it."""
        if len(pack[3]) > COMPRESS_OVER:
            return
        packs = self._packs
        if not packs or pack[1] > packs[-1][1]:
            packs.append(pack)
        else:  # those of parallel tasks come in any order
            bisect.insort(packs, pack)
        self.size += len(pack[3])

    def due(self) -> Sequence[Pack]:
        """What is to be merged now: packs between which no address lies that may still be on its way."""
        while len(self._packs) >= RUN:
            run = self._run()
            if len(run) >= RUN or _LEAST <= len(run) < len(self._packs):
                return run
            if len(run) == len(self._packs):
                break
            self.done(run)  # too few, and a gap behind them: they stay as they are
        return ()

    def _run(self) -> Sequence[Pack]:
        for at, (one, other) in enumerate(pairwise(islice(self._packs, MOST)), 1):
            if one[1] + one[2] != other[1]:
                return self._packs[:at]
        return self._packs[:MOST]

    def done(self, run: Sequence[Pack]) -> None:
        """These packs were merged, or never will be."""
        gone = {pack[1] for pack in run}
        self._packs = [pack for pack in self._packs if pack[1] not in gone]
        self.size = sum(len(pack[3]) for pack in self._packs)

    def clear(self) -> None:
        """What there was may not be stored any more."""
        self._packs.clear()
        self.size = 0
