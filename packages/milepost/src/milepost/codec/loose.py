"""Small packs that lie one behind another, on their way to be stored as one."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from milepost.codec.envelope import compressed
from milepost.codec.pack import COMPRESS_OVER
from milepost.store import Pack

RUN = 40
"""So many packs in a row are merged, as soon as they are there."""
LARGE = 96 << 10
"""Bytes after which they are merged without waiting for more: whoever needs one item of them reads all."""
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
        """A pack was stored. A large one is not worth it, nor one that only compression has made small."""
        if len(pack[3]) > COMPRESS_OVER or compressed(pack[3]):
            return
        packs = self._packs
        if not packs or pack[1] > packs[-1][1]:
            packs.append(pack)
        else:  # those of parallel tasks come in any order
            bisect.insort(packs, pack)
        self.size += len(pack[3])

    def due(self) -> Sequence[Pack]:
        """What is to be merged now: packs between which no address lies that may still be on its way."""
        while len(self._packs) >= RUN or self.size >= LARGE:
            run, full = self._run()
            if full or len(run) >= RUN or _LEAST <= len(run) < len(self._packs):
                return run
            if len(run) == len(self._packs):
                break
            self.done(run)  # too few, and a gap behind them: they stay as they are
        return ()

    def _run(self) -> tuple[Sequence[Pack], bool]:
        """The first packs that lie one behind another, and whether they are as many as may be."""
        packs = self._packs
        size = len(packs[0][3])
        for at in range(1, len(packs)):
            one, other = packs[at - 1], packs[at]
            if one[1] + one[2] != other[1]:
                return packs[:at], False
            size += len(other[3])
            if at == MOST or size > LARGE:
                return packs[:at], True
        return packs[:], False

    def done(self, run: Sequence[Pack]) -> None:
        """These packs were merged, or never will be."""
        gone = {pack[1] for pack in run}
        self._packs = [pack for pack in self._packs if pack[1] not in gone]
        self.size = sum(len(pack[3]) for pack in self._packs)

    def clear(self) -> None:
        """What there was may not be stored any more."""
        self._packs.clear()
        self.size = 0
