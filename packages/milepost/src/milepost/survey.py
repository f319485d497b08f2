"""A thread that is to be shortened: its outline, and as many of its headers as whoever plans has to know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from milepost.codec import Codec
from milepost.codec.layout import is_snapshot
from milepost.collector import unhurried
from milepost.parents import Place
from milepost.places import COMPACTED, COUNTERS, FORKS, PINNED
from milepost.retention import Facts, Lineage, live_spans
from milepost.store import Batch, CheckpointRow, Mark, Outline, Span, Store, WriteRow

_PAGE = 1000
"""Checkpoints that are read at a time, at most."""
_LATEST = 32
"""The newest checkpoints of each namespace, whose headers are read in any case."""
_AHEAD = 64
"""Ancestors that are read along with a checkpoint that a delta channel is looked for in; each time twice as many."""

Choice = Callable[[Lineage], Collection[Place] | None]
"""From a lineage to the checkpoints that stay; None when the whole thread goes."""


class Survey:
    """What is known of one thread. Whatever is read after the outline is of the same state, or a step that was planned by
    it is refused: the outline's token names the state before anything else was read."""

    def __init__(self, store: Store, codec: Codec, thread: str, outline: Outline) -> None:
        self.thread = thread
        self.outline = outline
        self._store = store
        self._codec = codec
        self._rows: dict[Place, CheckpointRow] = {}
        self._writes: dict[Place, list[WriteRow]] = {}
        self._read: set[Place] = set()
        self._facts: dict[Place, Facts] = {}
        self._asked: set[Place] = set()
        with unhurried(len(outline.marks)):
            self.marks: dict[Place, Mark] = {(mark.ns, mark.id): mark for mark in outline.marks}
            self.lineage = self._seen()

    def _seen(self) -> Lineage:
        written = frozenset(place for place, mark in self.marks.items() if mark.writes)
        return Lineage(self.marks, self._ask, written.union(self.outline.strays))

    async def chosen(self, choose: Choice) -> set[Place] | None:
        """The checkpoints that stay by `choose`, with all that they need. It is asked again as long as it wants to know
        of headers that were not read. Raises `Corrupt` when one of those does not verify."""
        ahead = 0
        # What every choice keeps, and most choices keep alone.
        await self.read((ns, row.id) for ns, rows in self.lineage.spaces.items() for row in rows[:_LATEST])
        while True:
            self._asked.clear()
            chosen = choose(self.lineage)
            kept = None if chosen is None else self.lineage.needed(chosen, originals=False)
            if not self._asked:
                return kept
            await self.read({above for place in self._asked for above in self._upwards(place, ahead)})
            ahead = 2 * ahead or _AHEAD

    async def read(self, places: Iterable[Place]) -> None:
        """Have these checkpoints, with their pending writes, at hand."""
        wanted = sorted(set(places) - self._read)
        for at in range(0, len(wanted), _PAGE):
            batch = await self._store.rows(self.thread, wanted[at : at + _PAGE])
            self._take(batch)
        self._read.update(wanted)

    def row(self, place: Place) -> CheckpointRow | None:
        """A checkpoint that was read; None when it is gone."""
        return self._rows.get(place)

    def facts(self, place: Place) -> Facts:
        """What the header says of a checkpoint that was read."""
        if place not in self._facts:
            row = self._rows.get(place)
            self._facts[place] = Facts() if row is None else self._opened(row)
        return self._facts[place]

    async def live(self, kept: Collection[Place]) -> tuple[Span, ...]:
        """The items that `kept` and pending writes without a checkpoint refer to."""
        if not self.outline.packs:
            return ()
        places = [*kept, *self.outline.strays]
        await self.read(places)
        rows = [self._rows[place] for place in kept if place in self._rows]
        return live_spans(rows, (write for place in places for write in self._writes.get(place, ())))

    def enter(self, batch: Batch) -> None:
        """Take into account that new checkpoints were entered, or are to be, with their packs."""
        self._take(batch)
        places = [(row.ns, row.id) for row in batch.rows]
        self._read.update(places)
        marks = [
            Mark(row.ns, row.id, row.parent, row.key, row.at, len(row.header), self.facts(place).pinned)
            for place, row in zip(places, batch.rows, strict=True)
        ]
        self.marks |= zip(places, marks, strict=True)
        packs = dict(zip(self.outline.packs, self.outline.sizes, strict=True))
        packs |= {Span(*pack[:3]): len(pack.data) for pack in batch.packs}
        self.outline = replace(
            self.outline,
            marks=tuple(self.marks.values()),
            packs=tuple(packs),
            sizes=tuple(packs.values()),
        )
        self.lineage = self._seen()

    def _take(self, batch: Batch) -> None:
        self._rows |= {(row.ns, row.id): row for row in batch.rows}
        for ns, id, write in batch.writes:
            self._writes.setdefault((ns, id), []).append(write)

    def _ask(self, mark: Mark) -> Facts | None:
        place = (mark.ns, mark.id)
        if place in self._read:
            return self.facts(place)
        self._asked.add(place)
        return None

    def _upwards(self, place: Place, ahead: int) -> Iterator[Place]:
        yield place
        for _ in range(ahead):
            parent = self.marks[place].parent
            if parent is None or (place[0], parent) not in self.marks:
                return
            place = (place[0], parent)
            yield place

    def _opened(self, row: CheckpointRow) -> Facts:
        header = self._codec.header(self.thread, row)
        metadata = header.metadata
        run = metadata.get("run_id")
        return Facts(
            channels=header.layouts.keys(),
            deltas={*(metadata.get(COUNTERS) or {}), *(name for name, at in header.layouts.items() if is_snapshot(at))},
            parents=metadata.get("parents") or {},
            stamp=header.stamp,
            forked=metadata.get("source") in FORKS,
            pinned=bool(metadata.get(PINNED)),
            run=None if run is None else str(run),
            compacted=COMPACTED in metadata,
        )
