"""Which checkpoints of a thread cannot be upgraded any more once others are rewritten.

A free function sees the delta channels of a checkpoint as they were, which are rebuilt from what its ancestors have stored.
When these are of the new version, nobody can tell what that was.
"""

from __future__ import annotations

from collections.abc import Collection

from milepost.codec import Codec
from milepost.errors import MilepostError
from milepost.moving import Place
from milepost.places import BEFORE
from milepost.store import Chart, CheckpointRow
from milepost.upgrading import Upgrader


class Rebuilt:
    """Of a thread as `chart` has it, those that a free function has to see more of than lies there.

    What cannot be told of a checkpoint counts as if it needed its ancestors.
    """

    def __init__(self, codec: Codec, upgrader: Upgrader, thread: str, chart: Chart) -> None:
        self._codec = codec
        self._upgrader = upgrader
        self._thread = thread
        self._rows = {(row.ns, row.id): row for row in chart.rows if not row.ns.startswith(BEFORE)}
        self._known: dict[Place, bool] = {}

    def through(self, looked: Collection[Place]) -> set[Place]:
        """Those that are rebuilt from any of `looked`, or from one another."""
        found: set[Place] = set()
        passed = set(looked)
        for row in self._by_depth() if self._upgrader.frees else ():
            if row.parent is not None and (row.ns, row.parent) in passed:
                place = (row.ns, row.id)
                if self._wants(row):
                    found.add(place)
                if self._wants(row) or self._passes(row):
                    passed.add(place)
        return found

    def by(self, row: CheckpointRow) -> set[Place]:
        """The ancestors that `row` is rebuilt from; none if it is not one of those."""
        found: set[Place] = set()
        further = self._upgrader.frees and self._wants(row)
        while further and row.parent is not None and (row.ns, row.parent) in self._rows.keys() - found:
            row = self._rows[row.ns, row.parent]
            found.add((row.ns, row.id))
            further = self._wants(row) or self._passes(row)
        return found

    def first(self, rows: list[CheckpointRow]) -> list[CheckpointRow]:
        """`rows`, but those that are rebuilt before what they are rebuilt from."""
        if not self._upgrader.frees:
            return rows
        wanting = {(row.ns, row.id) for row in rows if self._wants(row)}
        first = [row for row in reversed(self._by_depth()) if (row.ns, row.id) in wanting]
        return [*first, *(row for row in rows if (row.ns, row.id) not in wanting)]

    def _wants(self, row: CheckpointRow) -> bool:
        """Whether a free function has to see more of a checkpoint than lies there."""
        place = (row.ns, row.id)
        if place not in self._known:
            schema = self._upgrader.schema(row.ns)
            try:
                header = self._codec.header(self._thread, row)
                wanting = schema is not None and self._upgrader.wanting(schema, self._thread, row, header) is not None
            except MilepostError:
                wanting = True
            self._known[place] = wanting
        return self._known[place]

    def _passes(self, row: CheckpointRow) -> bool:
        """Whether a checkpoint has delta channels that are rebuilt from its ancestors."""
        try:
            return bool(self._upgrader.unsettled(self._thread, row))
        except MilepostError:
            return True

    def _by_depth(self) -> list[CheckpointRow]:
        """Parents before their children; what is in a cycle last."""
        children: dict[tuple[str, str | None], list[CheckpointRow]] = {}
        for row in self._rows.values():
            parent = row.parent if row.parent is not None and (row.ns, row.parent) in self._rows else None
            children.setdefault((row.ns, parent), []).append(row)
        ordered = [row for (_, parent), some in children.items() if parent is None for row in some]
        for row in ordered:
            ordered += children.pop((row.ns, row.id), ())
        return ordered + [row for (_, parent), some in children.items() if parent is not None for row in some]
