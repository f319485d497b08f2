"""Rewriting what is stored to the schema version of the running code, thread by thread, while the application runs.

A checkpoint is rewritten in its place, with its pending writes, in one step that the store refuses if anything of the
thread was written since it was looked at. What it was before is kept beside it, in a namespace of its own that nobody
lists, until `finalise` removes it or `undo` puts it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from milepost import maintenance
from milepost.codec import Codec
from milepost.codec.shelf import Shelf
from milepost.errors import Conflict, Corrupt, MilepostError
from milepost.places import BEFORE, channel_name, store_name
from milepost.schema import Schema
from milepost.schema.image import Image
from milepost.schema.stamps import decode
from milepost.store import Batch, Chart, CheckpointRow, Pack, Snapshot, Store, WriteRow, merge_spans
from milepost.upgrading import Upgrader

Mode = Literal["rewrite", "dry-run", "finalise", "undo"]
MODES: Final[tuple[Mode, ...]] = ("rewrite", "dry-run", "finalise", "undo")

BATCH: Final = 64
"""Checkpoints rewritten in one step, at most."""
BATCH_BYTES: Final = 8 << 20
"""After so many bytes of new packs a step has enough."""
TRIES: Final = 32
"""How often a thread is looked at anew because it was written to."""

Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Migrated:
    """What became of one thread, or in a dry run would become."""

    thread: str
    stored: Mapping[tuple[str | None, int | None], int] = field(default_factory=dict)
    """(schema, version) -> how many of the checkpoints looked at are of it; None without a stamp."""
    changed: int = 0
    """Checkpoints rewritten; with "finalise", former ones removed; with "undo", put back."""
    refused: tuple[str, ...] = ()
    """Why some could not be: they are as they were."""


class Migrator:
    """Works on one store with one schema (or one per namespace). `codec` must be its own: it learns of items before
    the store has them."""

    def __init__(self, store: Store, codec: Codec, upgrader: Upgrader) -> None:
        self._store = store
        self._codec = codec
        self._upgrader = upgrader

    async def thread(self, thread: str, mode: Mode, *, history: bool) -> Migrated:
        """Carry out `mode` on one thread. Raises `Conflict` if it is written to faster than it can be rewritten, and
        `Corrupt` if what was rewritten is not what it should be: then it was put back."""
        if mode == "finalise":
            return await self._finalise(thread)
        if mode == "undo":
            return await self._undo(thread)
        refused: dict[Place, str] = {}
        done: dict[Place, Image] = {}
        stored: Mapping[tuple[str | None, int | None], int] | None = None
        tries = 0
        while tries < TRIES:
            chart = await self._store.chart(thread)
            if chart is None:
                break
            rows, versions = self._stale(thread, chart, history=history, but=refused.keys() | done.keys())
            stored = versions if stored is None else stored
            if not rows:
                break
            batch, images = await self._batch(thread, chart, rows, refused, dry=mode == "dry-run")
            if batch.rows and not await self._store.rewrite(thread, batch, chart.token):
                # What was learned of new items is void.
                self._codec.reset(thread)
                tries += 1
                continue
            if batch.rows:
                await self._compare(thread, batch, images)
            done |= images
        self._codec.reset(thread)
        if tries == TRIES:
            raise _busy(thread)
        return Migrated(thread, stored or {}, len(done), tuple(refused.values()))

    def _stale(
        self, thread: str, chart: Chart, *, history: bool, but: Collection[Place]
    ) -> tuple[list[CheckpointRow], Mapping[tuple[str | None, int | None], int]]:
        """The checkpoints to rewrite, oldest first, and of which versions those are that were looked at."""
        heads = _heads(chart.rows)
        versions: Counter[tuple[str | None, int | None]] = Counter()
        stale: list[CheckpointRow] = []
        for row in sorted(chart.rows, key=lambda row: (row.key, row.ns)):
            schema = self._upgrader.schema(row.ns)
            place = (row.ns, row.id)
            if row.ns.startswith(BEFORE) or not (history or place in heads) or not self._upgrader.counts(row.ns):
                continue
            header = self._codec.header(thread, row)
            stamp = None if header.stamp is None else decode(header.stamp)
            versions[(stamp.name, stamp.version) if stamp else (None, None)] += 1
            writes = chart.writes.get(place, ())
            stamps = [header.stamp, *(self._codec.write_layout(thread, row.ns, row.id, one)[1] for one in writes)]
            if schema and place not in but and any(_differs(schema, one) for one in stamps):
                stale.append(row)
        return stale, versions

    async def _batch(
        self, thread: str, chart: Chart, rows: Sequence[CheckpointRow], refused: dict[Place, str], *, dry: bool
    ) -> tuple[Batch, dict[Place, Image]]:
        """As much of `rows` as goes in one step, and what it means. Those that cannot be upgraded go into `refused`."""
        kept = {(row.ns, row.id) for row in chart.rows}
        entered: list[CheckpointRow] = []
        writes: list[tuple[str, str, WriteRow]] = []
        packs: list[Pack] = []
        images: dict[Place, Image] = {}
        size = 0
        for row in rows[:BATCH]:
            snapshot = Snapshot(thread, row, tuple(chart.writes.get((row.ns, row.id), ())), chart.generation)
            try:
                image, new, written, fresh = await self._rewritten(snapshot)
            except MilepostError as exc:
                refused[row.ns, row.id] = exc.message
                continue
            images[row.ns, row.id] = image
            if dry:
                continue
            entered.append(new)
            writes += ((row.ns, row.id, write) for write in written)
            packs += fresh
            if (BEFORE + row.ns, row.id) not in kept:
                before, waiting = self._codec.rehome(thread, snapshot, BEFORE + row.ns)
                entered.append(before)
                writes += (
                    (before.ns, row.id, _named(write, BEFORE + channel_name(write.channel))) for write in waiting
                )
            size += sum(len(pack.data) for pack in fresh)
            if size > BATCH_BYTES:
                break
        return Batch(tuple(entered), tuple(writes), tuple(packs)), images

    async def _rewritten(self, snapshot: Snapshot) -> tuple[Image, CheckpointRow, list[WriteRow], list[Pack]]:
        """A checkpoint as it is to be, in memory and encoded."""
        codec, thread, row = self._codec, snapshot.thread, snapshot.row
        schema = self._upgrader.schema(row.ns)
        assert schema is not None
        header = codec.header(thread, row)
        fetched = await self._packs(snapshot)
        image, _ = self._upgrader.read(schema, snapshot, header, codec.shelf(thread, fetched))
        codec.remember(thread, snapshot.generation, row, replace(header, layouts={}), fetched)
        checkpoint: Any = image.checkpoint
        metadata: Any = image.metadata
        draft = codec.draft(thread, row.ns, row.id, None, checkpoint, metadata, {}, schema.stamp)
        placed = codec.place(draft)
        codec.learn(placed, snapshot.generation)
        packs = list(placed.packs)
        written: list[WriteRow] = []
        for write in image.writes:
            drafts = codec.draft_writes(
                thread, [(write.channel, write.value)], write.task, write.path, schema.write_stamp
            )
            drafts[0].idx = write.idx
            some = codec.place_writes(thread, row.ns, row.id, drafts)
            codec.learn_writes(some, [True], snapshot.generation)
            for one in some.rows:
                packs += [one.pack] if one.pack else []
                written.append(replace(one, pack=None))
        return image, replace(placed.row, parent=row.parent, key=row.key, at=row.at), written, packs

    async def _packs(self, snapshot: Snapshot) -> Sequence[Pack]:
        spans = merge_spans([*snapshot.row.spans, *(span for write in snapshot.writes for span in write.spans)])
        return await self._store.fetch(snapshot.thread, spans) if spans else ()

    async def _compare(self, thread: str, batch: Batch, images: Mapping[Place, Image]) -> None:
        """Read back what was rewritten. If it is not what it should be, put back what was there, and raise `Corrupt`."""
        headers = {(row.ns, row.id): row.header for row in batch.rows}
        for (ns, id), image in images.items():
            loaded = await self._store.get(thread, ns, id)
            if loaded is None or loaded.snapshots[0].row.header != headers[ns, id]:
                continue  # it was removed, or put again, since
            wrong = self._difference(loaded.snapshots[0], loaded.packs.get(thread, ()), image)
            if wrong is not None:
                await self._undo(thread, only=(ns, id))
                raise Corrupt(
                    f"checkpoint {id!r} of thread {thread!r} was not read back as it was rewritten ({wrong}): what was "
                    "there before was put back",
                    thread=thread,
                    ns=ns,
                    checkpoint=id,
                    damage=wrong,
                )

    def _difference(self, snapshot: Snapshot, packs: Sequence[Pack], image: Image) -> str | None:
        codec, thread = self._codec, snapshot.thread
        shelf = codec.shelf(thread, packs)
        try:
            header = codec.header(thread, snapshot.row)
            values = codec.values(thread, header, shelf)
            rows = {(row.task, row.idx): row for row in snapshot.writes}
            written = {place: self._written(snapshot, row, shelf) for place, row in rows.items()}
        except MilepostError as exc:
            return exc.message
        body = {key: value for key, value in image.checkpoint.items() if key != "channel_values"}
        if not (self._same(header.checkpoint, body) and self._same(header.metadata, image.metadata)):
            return "its versions or metadata differ"
        if values.keys() != image.values.keys():
            return f"it has the channels {sorted(values)}, not {sorted(image.values)}"
        for channel, value in image.values.items():
            if not self._same(values[channel], value):
                return f"the value of channel {channel!r} differs"
        for write in image.writes:
            found = written.get((write.task, write.idx))
            # A special write may have been replaced since.
            if found is None or (write.idx >= 0 and not self._same(found, (write.path, write.channel, write.value))):
                return f"the pending write {write.idx} of task {write.task!r} differs"
        return None

    def _written(self, snapshot: Snapshot, row: WriteRow, shelf: Shelf) -> tuple[str, str, Any]:
        channel, at = channel_name(row.channel), snapshot.row
        layout, _ = self._codec.write_layout(snapshot.thread, at.ns, at.id, row)
        return row.path, channel, self._codec.value(snapshot.thread, channel, layout, shelf)

    def _same(self, one: Any, other: Any) -> bool:
        """Equal, or the same bytes: as NaN is, and values without an equality of their own."""
        try:
            if one == other:
                return True
        except Exception:  # noqa: S110  # the application's code: the bytes decide
            pass
        serde = self._codec.serde
        return serde.dumps_typed(one) == serde.dumps_typed(other)

    # What was before.

    async def _finalise(self, thread: str) -> Migrated:
        chart = await self._store.chart(thread)
        former = {(row.ns, row.id) for row in chart.rows if row.ns.startswith(BEFORE)} if chart else set[Place]()
        if former:
            await maintenance.drop_checkpoints(self._store, self._codec, thread, former)
        return Migrated(thread, changed=len(former))

    async def _undo(self, thread: str, only: Place | None = None) -> Migrated:
        """Put back what was there before. A checkpoint that was written to since stays as it is, unless it is `only`."""
        for _ in range(TRIES):
            chart = await self._store.chart(thread)
            if chart is None:
                return Migrated(thread)
            there = {(row.ns, row.id) for row in chart.rows}
            refused: list[str] = []
            former: set[Place] = set()
            rows: list[CheckpointRow] = []
            writes: list[tuple[str, str, WriteRow]] = []
            for row in chart.rows:
                place = (row.ns.removeprefix(BEFORE), row.id)
                if not row.ns.startswith(BEFORE) or only not in (None, place):
                    continue
                if place in there:
                    original = self._original(thread, chart, row)
                    if only is None and (since := await self._since(thread, chart, original)):
                        refused.append(f"checkpoint {row.id!r} of thread {thread!r} was written to since: {since}")
                        continue
                    rows.append(original.row)
                    writes += ((*place, write) for write in original.writes)
                former.add((row.ns, row.id))
            if not rows or await self._store.rewrite(thread, Batch(tuple(rows), tuple(writes)), chart.token):
                if former:
                    await maintenance.drop_checkpoints(self._store, self._codec, thread, former)
                return Migrated(thread, changed=len(rows), refused=tuple(refused))
        raise _busy(thread)

    def _original(self, thread: str, chart: Chart, row: CheckpointRow) -> Snapshot:
        """What is kept of a checkpoint, where it belongs."""
        kept = Snapshot(thread, row, tuple(chart.writes.get((row.ns, row.id), ())), chart.generation)
        original, waiting = self._codec.rehome(thread, kept, row.ns.removeprefix(BEFORE))
        named = (_named(write, channel_name(write.channel).removeprefix(BEFORE)) for write in waiting)
        return Snapshot(thread, original, tuple(named), chart.generation)

    async def _since(self, thread: str, chart: Chart, original: Snapshot) -> str:
        """What was written to a checkpoint after it was rewritten, in words; "" for nothing."""
        row = original.row
        schema = self._upgrader.schema(row.ns)
        if schema is None:
            return "its namespace has no schema any more"
        header = self._codec.header(thread, row)
        shelf = self._codec.shelf(thread, await self._packs(original))
        image, _ = self._upgrader.read(schema, original, header, shelf)
        rewritten = {(write.task, write.idx) for write in image.writes}
        present = chart.writes.get((row.ns, row.id), ())
        new = {channel_name(write.channel) for write in present if (write.task, write.idx) not in rewritten}
        return f"pending writes to {', '.join(map(repr, sorted(new)))}" if new else ""


def _differs(schema: Schema, stamp: bytes | None) -> bool:
    """Whether a stamp says anything else than the schema's own: then what it is on is rewritten, if that can be."""
    if stamp is None:
        return True
    found = decode(stamp)
    as_it_is = found.since <= schema.version < found.version and not schema.downgrades
    return (found.name, found.version) != (schema.name, schema.version) and not as_it_is


def _heads(rows: Iterable[CheckpointRow]) -> set[Place]:
    latest: dict[str, CheckpointRow] = {}
    for row in rows:
        if row.ns not in latest or row.key > latest[row.ns].key:
            latest[row.ns] = row
    return {(row.ns, row.id) for row in latest.values()}


def _named(write: WriteRow, channel: str) -> WriteRow:
    return replace(write, channel=store_name(channel), pack=None)


def _busy(thread: str) -> Conflict:
    return Conflict(
        f"thread {thread!r} was written to {TRIES} times while it was to be migrated: try again when it is quiet",
        thread=thread,
    )
