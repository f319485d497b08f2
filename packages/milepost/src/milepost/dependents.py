"""Which checkpoints of a thread cannot be upgraded any more once what others were before they were rewritten is gone.

A free function sees the delta channels of a checkpoint as they were, which are rebuilt from what its ancestors have stored.
When these are of the new version, only what the migration keeps of them tells what that was.
"""

from __future__ import annotations

from collections.abc import Collection

from milepost.codec import Codec
from milepost.errors import MilepostError
from milepost.parents import Place, ancestors, by_depth
from milepost.places import BEFORE
from milepost.schema.schema import Midway
from milepost.store import Chart, CheckpointRow
from milepost.upgrading import Upgrader

_ANY = ""
"""A channel that no ancestor has a value of: for a checkpoint of which cannot be told what it is rebuilt from."""


class Dependents:
    """Of a thread as `chart` has it, those that a free function has to see more of than lies there."""

    def __init__(self, codec: Codec, upgrader: Upgrader, thread: str, chart: Chart) -> None:
        self._codec = codec
        self._upgrader = upgrader
        self._thread = thread
        self._rows = {(row.ns, row.id): row for row in chart.rows if not row.ns.startswith(BEFORE)}
        self._wanted: dict[Place, tuple[Midway | None, Collection[str]]] = {}
        self.unread: dict[Place, str] = {}
        """Why it cannot be told what a checkpoint is rebuilt from."""
        self._met: dict[tuple[Midway | None, str], dict[Place, bool]] = {}

    def of(self, looked: Collection[Place]) -> set[Place]:
        """Those that are rebuilt from any of `looked`, or from one another."""
        found: set[Place] = set()
        self._met.clear()
        for row in by_depth(self._rows.values()) if self._upgrader.frees else ():
            place = (row.ns, row.id)
            midway, names = self._wants(row)
            if place not in looked and any(self._meets(row, midway, name, looked, found) for name in names):
                found.add(place)
        return found

    def _wants(self, row: CheckpointRow) -> tuple[Midway | None, Collection[str]]:
        """The channels that a free function has to see and that have no value there, and by which schema."""
        place = (row.ns, row.id)
        if place not in self._wanted:
            schema = self._upgrader.schema(row.ns)
            try:
                header = self._codec.header(self._thread, row)
                found = None if schema is None else self._upgrader.wanting(schema, self._thread, row, header)
                self._wanted[place] = (None, ()) if found is None else (found[0], found[1].keys())
            except MilepostError as exc:
                self.unread[place] = exc.message
                self._wanted[place] = (None, (_ANY,))
        return self._wanted[place]

    def _there(self, row: CheckpointRow, midway: Midway | None, sought: Collection[str]) -> Collection[str]:
        """Which of `sought` have a value at an ancestor."""
        if midway is None:
            return ()
        try:
            header = self._codec.header(self._thread, row)
            lying = self._upgrader.seeds(midway, self._thread, row, header).keys()
            return (lying & {*sought}) | self._upgrader.made(midway, self._thread, row, header, sought)
        except MilepostError:
            return ()

    def _meets(
        self,
        row: CheckpointRow,
        midway: Midway | None,
        name: str,
        looked: Collection[Place],
        found: Collection[Place],
    ) -> bool:
        """Whether one channel of `row` is rebuilt from any of `looked` or `found`, to which nothing above is added later."""
        met = self._met.setdefault((midway, name), {})
        passed: list[Place] = []
        answer = False
        for place, above in ancestors(self._rows, (row.ns, row.id)):
            answer = place in looked or place in found or met.get(place, False)
            if answer or place in met or name in self._there(above, midway, (name,)):
                break
            passed.append(place)
        met.update(dict.fromkeys(passed, answer))
        return answer
