"""The rows of an answer that holds several kinds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from milepost.collector import many, unhurried
from milepost.store import CheckpointRow, Pack, WriteRow

from milepost_postgres import wire
from milepost_postgres.wire import CHECKPOINT, PACK, WRITE, Row

_kind = attrgetter("kind")
_pack = attrgetter("a", "b", "c", "data")
"""The fields of a row of that kind that a `Pack` has."""


class Found:
    """The rows of an answer by kind. They come in no order."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.kinds: list[list[Row]] = [[], [], [], []]
        for kind, some in groupby(sorted(rows, key=_kind), _kind):
            self.kinds[kind] = list(some)

    def batch(self) -> tuple[tuple[CheckpointRow, ...], tuple[tuple[str, str, WriteRow], ...], tuple[Pack, ...]]:
        """The rows as an export has them."""
        rows, writes, packs = self.kinds[CHECKPOINT], self.kinds[WRITE], self.kinds[PACK]
        return (
            tuple(map(wire.checkpoint, rows)),
            tuple((row.t4, row.t5, wire.write(row)) for row in writes),
            tuple(map(wire.pack, packs)),
        )

    def packs_of(self, key: int | None) -> list[Pack]:
        """The packs of the thread with this key, each once; with None, all."""
        rows = self.kinds[PACK] if key is None else [row for row in self.kinds[PACK] if row.ref == key]
        if not rows:
            return []
        with unhurried(len(rows)):
            writers, firsts, counts, data = zip(*map(_pack, rows), strict=True)
            packs = many(Pack, zip(writers, firsts, counts, data, strict=True))
            return list(dict(zip(zip(writers, firsts, strict=True), packs, strict=True)).values())
