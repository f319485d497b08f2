"""Rewriting what is stored to the schema version of the running code, thread by thread, while the application runs.

A checkpoint is rewritten in its place, with its pending writes, in one step that the store refuses if anything of the
thread was written since it was looked at. What it was before is kept beside it, in a namespace of its own that nobody
lists, until `finalise` removes it or `undo` puts it back.

The checkpoints of a subgraph whose node was renamed get a namespace of another name. They are copied there, one namespace
at a time and the innermost first, and then removed where they were if nothing of the thread was written since. Whoever
reads meanwhile takes those under the former name (`milepost.spaces`), and writes on if they are there still.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, cast

from milepost.codec import Codec
from milepost.codec.codec import of_checkpoint
from milepost.codec.layout import Kept, Layout
from milepost.codec.shelf import Shelf
from milepost.dependents import Dependents
from milepost.errors import OF_WHAT_IS_STORED, Corrupt, InvalidConfig, MilepostError, SchemaMismatch
from milepost.former import TRIES, Former, busy, is_kept_of, written_to
from milepost.moving import Moves, Moving
from milepost.parents import Place, ancestors
from milepost.places import BEFORE, NAMED, WAS, channel_name, spaces_of
from milepost.rebuilding import Moved, Rebuilding
from milepost.retention import live_spans
from milepost.schema import Schema
from milepost.schema.image import INTERRUPT, Image
from milepost.schema.questions import asked_as
from milepost.schema.schema import settled
from milepost.schema.schemas import call_of
from milepost.schema.spaces import depth, upper
from milepost.schema.stamps import Stamp, decode
from milepost.store import Batch, Chart, CheckpointRow, Drop, Pack, Snapshot, Store, WriteRow
from milepost.upgrading import Upgrader

Mode = Literal["rewrite", "dry-run", "finalise", "undo"]
MODES: Final[tuple[Mode, ...]] = ("rewrite", "dry-run", "finalise", "undo")

BATCH: Final = 64
"""Checkpoints rewritten in one step, at most."""
BATCH_BYTES: Final = 8 << 20
"""After so many bytes of new packs a step has enough."""


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
    cursor: str = field(default="", compare=False)
    """Given as `after` to another run, that one begins behind this thread. "" where the threads were named."""


@dataclass(slots=True)
class _Run:
    """How far one thread is."""

    thread: str
    dry: bool
    history: bool
    tries: int = 0
    stored: Mapping[tuple[str | None, int | None], int] | None = None
    done: dict[Place, Image] = field(default_factory=dict)
    """By where they were found."""
    refused: dict[Place, str] = field(default_factory=dict)
    moved: dict[str, dict[str, tuple[bytes, tuple[WriteRow, ...]]]] = field(default_factory=dict)
    """Namespace -> what was copied of it: checkpoint id -> as it was then."""
    asked: set[Place] = field(default_factory=set)
    """The checkpoints whose questions were looked at."""
    stuck: set[str] = field(default_factory=set)
    """Namespaces that stay where they are, because some of their checkpoints cannot be upgraded."""

    def over(self, place: Place) -> bool:
        return place in self.done or place in self.refused

    def copied(self, row: CheckpointRow, writes: tuple[WriteRow, ...]) -> bool:
        return self.moved[row.ns].get(row.id) == (row.header, writes)

    def did(self, chart: Chart, work: _Work, images: Mapping[Place, Image]) -> None:
        for row in work.rows:
            image = images.get((row.ns if work.now is None else work.now, row.id))
            if image is not None:
                self.done[row.ns, row.id] = image
                if work.now is not None:
                    self.moved[row.ns][row.id] = (row.header, written_to(chart, row))


@dataclass(frozen=True, slots=True)
class _Work:
    """A step of a migration: `rows` to be rewritten in their place, or copied to namespace `now`. Without any, `gone`
    is what goes where it was."""

    rows: Sequence[CheckpointRow]
    now: str | None = None
    gone: tuple[Place, ...] = ()


class Cursor(NamedTuple):
    """How far a run over all threads of a store is."""

    page: tuple[str, ...] | None = None
    """Where the page of threads begins that it is at."""
    thread: str | None = None
    """The last one of that page that is done."""

    def __str__(self) -> str:
        return json.dumps([self.thread, *(self.page or ())])

    @classmethod
    def of(cls, text: object) -> Cursor:
        """The inverse of `str`. Raises `InvalidConfig`."""
        try:
            found: Any = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            found = None
        if isinstance(found, list) and found and all(isinstance(part, str) for part in cast("list[object]", found)):
            return cls(tuple(found[1:]) or None, found[0])
        raise InvalidConfig(
            f"after is {text!r:.200}: it must be the `cursor` of what an earlier run has told", what="after"
        )

    def rest(self, threads: Sequence[str]) -> Sequence[str]:
        """What is left of the page. All of it, if the last thread that was done is not there any more."""
        return threads[threads.index(self.thread) + 1 :] if self.thread in threads else threads


class Migrator:
    """Works on one store with one schema (or one per namespace). `codec` must be its own, for it learns of items before
    the store has them, and exact: what it reads is stored again. What no change speaks of is not even read."""

    def __init__(self, store: Store, codec: Codec, upgrader: Upgrader) -> None:
        self._store = store
        self._codec = codec
        self._upgrader = upgrader
        self._former = Former(store, codec, self._written_to, lambda ns: upgrader.schema(ns) is not None)

    async def thread(self, thread: str, mode: Mode, *, history: bool) -> Migrated:
        """Carry out `mode` on one thread. Raises `Conflict` if it is written to faster than it can be rewritten, and
        `Corrupt` if what was rewritten is not what it should be: then it was put back."""
        if mode in ("finalise", "undo"):
            try:
                changed, left = await (self._finalise(thread) if mode == "finalise" else self._former.undo(thread))
            except Corrupt as exc:
                # What is damaged may need what would go. The other threads go on.
                return Migrated(thread, refused=(exc.message,))
            return Migrated(thread, changed=changed, refused=left)
        run = _Run(thread, dry=mode == "dry-run", history=history)
        moving = Moving(self._codec, self._upgrader, self._image, history=history)
        while run.tries < TRIES:
            try:
                chart = await self._store.chart(thread)
            except Corrupt as exc:
                run.refused["", ""] = exc.message
                break
            if chart is None:
                break
            batch, images = Batch(), dict[Place, Image]()
            try:
                work = await self._work(run, moving, chart)
                if work is not None and work.rows:
                    batch, images = await self._batch(run, chart, work)
            except Moved:
                # It was written to meanwhile, and may be another one now.
                self._codec.reset(thread)
                run.tries += 1
                continue
            if work is None:
                break
            if not work.rows:
                # All of a namespace is where it belongs now.
                if await self._store.drop(thread, Drop(work.gone), chart.token) is None:
                    run.tries += 1
                continue
            if batch.rows and await self._store.rewrite(thread, batch, chart.token) is None:
                # What was learned of new items is void.
                self._codec.reset(thread)
                run.tries += 1
                continue
            if batch.rows:
                await self._compare(thread, batch, images)
            run.did(chart, work, images)
        self._codec.reset(thread)
        if run.tries == TRIES:
            raise busy(thread)
        return Migrated(thread, run.stored or {}, len(run.done), tuple(run.refused.values()))

    async def _finalise(self, thread: str) -> tuple[int, tuple[str, ...]]:
        """Remove what was there before, unless something that an older release has stored since is rebuilt from it."""
        # Between the look and the removal a thread that is in use may be written to often.
        for _ in range(4 * TRIES):
            chart = await self._store.chart(thread)
            if chart is None:
                return 0, ()
            if self._upgrader.frees:
                dependents = Dependents(self._codec, self._upgrader, thread, chart)
                waiting = sorted(dependents.of(_rewritten(chart)))
                if waiting:
                    return 0, (_needs_what_is_kept(thread, waiting[0], dependents.unread.get(waiting[0])),)
            removed = await self._former.finalise(thread, chart, checked=self._upgrader.frees)
            if removed is not None:
                return removed, ()
        raise busy(thread)

    async def _work(self, run: _Run, moving: Moving, chart: Chart) -> _Work | None:
        """What is to be done next, of a thread as it is now; None when there is nothing more."""
        heads = _heads(chart.rows)
        moves = await moving.of(chart, run.thread, heads)
        run.refused |= moves.refused
        run.stuck |= moves.stuck
        looked = heads | self._below(run, chart, heads)
        if not run.history:
            looked |= Dependents(self._codec, self._upgrader, run.thread, chart).of(looked | _rewritten(chart))
        stale = self._stale(run, chart, moves, looked)
        # The innermost first: what called it is not of this version before it has moved.
        for ns in sorted(moves.spaces, key=lambda ns: (-ns.count("|"), ns)):
            if ns in run.stuck or (run.dry and ns in run.moved):
                continue
            if ns not in run.moved:
                await self._rehearse(run, chart, ns, moves.spaces[ns])
                if ns in run.stuck:
                    continue
            rows = [row for row in chart.rows if row.ns == ns]
            left = [row for row in rows if not run.copied(row, written_to(chart, row))]
            gone = [(row.ns, row.id) for row in chart.rows if row.ns == ns or is_kept_of(row, ns)]
            return _Work(left, moves.spaces[ns], tuple(gone))
        held = {place for ns in run.stuck for place in moves.callers.get(ns, ())}
        held |= {(moves.spaces.get(ns, ns), id) for ns, id in held}
        for row in stale:
            if (row.ns, row.id) in held:
                run.refused[row.ns, row.id] = (
                    f"checkpoint {row.id!r} of thread {run.thread!r} made a call of a subgraph that cannot be upgraded"
                )
        rows = [row for row in stale if (row.ns, row.id) not in held]
        if not rows:
            asking = [row for row in chart.rows if (row.ns, row.id) in heads and (row.ns, row.id) not in held]
            rows = [row for row in asking if await self._asks_anew(run, chart, row)]
        return _Work(rows) if rows else None

    async def _asks_anew(self, run: _Run, chart: Chart, row: CheckpointRow) -> bool:
        """Whether a checkpoint keeps the id of a question that a subgraph of it asks under another one now."""
        written, place = written_to(chart, row), (row.ns, row.id)
        if not self._upgrader.renames_nodes or row.ns.startswith(BEFORE) or run.over(place) or place in run.asked:
            return False
        run.asked.add(place)
        if all(channel_name(write.channel) != INTERRUPT for write in written):
            return False
        try:
            image = await self._image(Snapshot(run.thread, row, written, chart.generation), row.ns)
            return (await self._asking(image)).writes != image.writes
        except OF_WHAT_IS_STORED as exc:
            run.refused[place] = exc.message
            return False

    async def _asking(self, image: Image) -> Image:
        """`image`, with the ids of now for what subgraphs of it ask."""

        async def below(ns: str) -> Image | None:
            found = await self._store.get(image.thread, ns, None)
            return None if found is None else await self._image(found.snapshots[0], ns)

        ids = await self._upgrader.question_ids(image, below)
        writes = [
            replace(write, value=asked_as(ids.get((write.task, write.idx), {}), write.value))
            if write.channel == INTERRUPT
            else write
            for write in image.writes
        ]
        return replace(image, writes=writes)

    def _below(self, run: _Run, chart: Chart, heads: Collection[Place]) -> set[Place]:
        """The ancestors that the delta channels of `heads` are rebuilt from: without these, they cannot be read."""
        rows = {(row.ns, row.id): row for row in chart.rows}
        below: set[Place] = set()
        for ns, id in () if run.history else heads:
            if ns.startswith(BEFORE) or not self._upgrader.counts(ns):
                continue
            below.add((ns, id))
            with suppress(MilepostError):  # it is refused as what it is, when its turn comes
                missing = self._upgrader.unsettled(run.thread, rows[ns, id])
                for place, row in ancestors(rows, (ns, id)):
                    if not missing:
                        break
                    below.add(place)
                    missing -= self._upgrader.settled(run.thread, row, missing)
        return below

    def _stale(self, run: _Run, chart: Chart, moves: Moves, looked: Collection[Place]) -> list[CheckpointRow]:
        """The checkpoints to rewrite in their place, oldest first. `run` learns of which versions those are that were
        looked at first."""
        versions: Counter[tuple[str | None, int | None]] = Counter()
        stale: list[CheckpointRow] = []
        for row in sorted(chart.rows, key=lambda row: (row.key, row.ns)):
            ns = moves.spaces.get(row.ns, row.ns)
            place = (row.ns, row.id)
            if row.ns.startswith(BEFORE) or not (run.history or ns != row.ns or place in looked):
                continue
            if not (self._upgrader.counts(ns) or ns != row.ns):
                continue
            schema = self._upgrader.schema(ns) if ns == row.ns and not run.over(place) else None
            try:
                stamps = self._stamps(run.thread, row, written_to(chart, row))
                decoded = [None if one is None else decode(one) for one in stamps]
                first = decoded[0]
                versions[(first.name, first.version) if first else (None, None)] += 1
                if schema and any(self._differs(schema, ns, one) for one in decoded):
                    stale.append(row)
                elif schema:
                    self._upgrader.check(schema, run.thread, row)
            except MilepostError as exc:
                # Damaged, of a newer form, or of another shape: the others go on.
                run.refused.setdefault(place, exc.message)
        if run.stored is None:
            run.stored = versions
        return stale

    def _differs(self, schema: Schema, ns: str, found: Stamp | None) -> bool:
        """Whether a stamp says anything else than `schema`, of namespace `ns`, or than those of subgraphs that something is
        sent to: then what it is on is rewritten, if that can be."""
        if found is None:
            return True
        as_it_is = found.since <= schema.version < found.version and not schema.downgrades
        if (found.name, found.version) != (schema.name, schema.version):
            return not as_it_is
        below = ((self._upgrader.below(ns, node), stamp) for node, stamp in found.below.items())
        return any(child is not None and self._differs(child, "", decode(stamp)) for child, stamp in below)

    def _stamps(self, thread: str, row: CheckpointRow, writes: Iterable[WriteRow]) -> list[bytes | None]:
        """Those of a checkpoint and of its pending writes. Raises `Corrupt`."""
        stamps = [self._codec.header(thread, row).stamp]
        stamps += (self._codec.write_layout(thread, row.ns, row.id, one)[1] for one in writes)
        return stamps

    async def _rehearse(self, run: _Run, chart: Chart, ns: str, now: str) -> None:
        """Find out whether all of a namespace can move: it does as a whole, or not at all."""
        rows = {row.id: row for row in chart.rows if row.ns == ns}
        waiting = sorted({id for space, id in chart.writes if space == ns} - rows.keys())
        images: dict[Place, Image] = {}
        for row in rows.values():
            snapshot = Snapshot(run.thread, row, written_to(chart, row), chart.generation)
            try:
                images[ns, row.id] = await self._image(snapshot, now)
            except OF_WHAT_IS_STORED as exc:
                run.refused[ns, row.id] = exc.message
        if waiting:
            run.refused[ns, waiting[0]] = (
                f"namespace {ns!r} of thread {run.thread!r} has pending writes of checkpoint {waiting[0]!r}, which is not "
                "there (yet): migrate again when the thread is quiet"
            )
        elif there := {row.id for row in chart.rows if row.ns == now} - rows.keys():
            run.refused[ns, min(there)] = (
                f"namespace {now!r} of thread {run.thread!r}, which {ns!r} is called now, has checkpoints of its own, such "
                f"as {min(there)!r}: nothing says which of the two goes on"
            )
        if any(space == ns for space, _ in run.refused):
            run.stuck.add(ns)
            return
        run.moved[ns] = {}
        if run.dry:
            run.done |= images

    async def _batch(self, run: _Run, chart: Chart, work: _Work) -> tuple[Batch, dict[Place, Image]]:
        """As much of `work` as goes in one step, and what it means. What cannot be upgraded is refused."""
        entered: list[CheckpointRow] = []
        writes: list[tuple[str, str, WriteRow]] = []
        packs: list[Pack] = []
        images: dict[Place, Image] = {}
        size = 0
        for row in work.rows[:BATCH]:
            ns = row.ns if work.now is None else work.now
            snapshot = Snapshot(run.thread, row, written_to(chart, row), chart.generation)
            try:
                image, new, written, fresh = await self._rewritten(snapshot, ns, _children(chart, row))
            except OF_WHAT_IS_STORED as exc:
                run.refused[row.ns, row.id] = exc.message
                if work.now is not None:
                    run.stuck.add(row.ns)
                continue
            images[ns, row.id] = image
            if run.dry:
                continue
            entered.append(new)
            writes += ((ns, row.id, write) for write in written)
            packs += fresh
            for before, waiting in self._former.keep(chart, snapshot, ns):
                entered.append(before)
                writes += ((before.ns, row.id, write) for write in waiting)
            size += sum(len(pack.data) for pack in fresh)
            if size > BATCH_BYTES:
                break
        return Batch(tuple(entered), tuple(writes), tuple(packs)), images

    async def _written_to(self, snapshot: Snapshot, ns: str) -> Image:
        """A checkpoint whose writes are as they are to be, as one of namespace `ns`: what it was rebuilt from may have been
        rewritten since."""
        return await self._image(snapshot, ns, state=False)

    async def _image(self, snapshot: Snapshot, ns: str, *, state: bool = True) -> Image:
        """A checkpoint as it is to be, as one of namespace `ns`; without `state`, its writes are."""
        codec, thread, row = self._codec, snapshot.thread, snapshot.row
        schema = self._upgrader.schema(ns)
        header = codec.header(thread, row)
        fetched = await self._packs(snapshot)
        shelf = codec.shelf(thread, fetched)
        names = await self._names(snapshot, ns, header.metadata)
        try:
            if schema is None:
                image = self._upgrader.plain(snapshot, header, shelf, names, keep=True)
            else:
                past = await self._rebuilding(schema, thread, ns, row.ns).past(snapshot, header) if state else None
                image, _ = self._upgrader.read(schema, snapshot, header, shelf, names, past=past, keep=True)
        except MilepostError as exc:
            raise of_checkpoint(exc, thread, row) from exc
        codec.remember(thread, snapshot.generation, row, replace(header, layouts={}), fetched)
        return image if ns == row.ns else self._upgrader.respaced(image, ns)

    def _rebuilding(self, schema: Schema, thread: str, ns: str, space: str) -> Rebuilding:
        return Rebuilding(self._store, self._codec, self._upgrader, schema, thread, ns, space)

    async def _names(self, snapshot: Snapshot, ns: str, metadata: Mapping[str, Any]) -> Sequence[str]:
        """What releases call the namespace of `snapshot`, which is `ns` now, the oldest first."""
        callers = {depth(space): id for space, id in (metadata.get("parents") or {}).items()}
        lies = snapshot.row.ns

        async def read(space: str) -> Image | None:
            id = callers.get(depth(space))
            for place in dict.fromkeys((space, upper(lies, depth(space)))) if id else ():
                found = await self._store.get(snapshot.thread, place, id)
                if found is not None:
                    try:
                        return await self._image(found.snapshots[0], space)
                    except (Corrupt, SchemaMismatch):
                        break  # refused by itself, and what it has called stays where it is
            return None

        return await self._upgrader.called(ns, read)

    async def _rewritten(
        self, snapshot: Snapshot, ns: str, children: Sequence[CheckpointRow]
    ) -> tuple[Image, CheckpointRow, list[WriteRow], list[Pack]]:
        """A checkpoint as it is to be in namespace `ns`, in memory and encoded. `children` are those who have gone on from
        it."""
        codec, thread, row = self._codec, snapshot.thread, snapshot.row
        image = await self._asking(await self._image(snapshot, ns))
        schema = self._upgrader.schema(ns)
        if image.gone and schema is not None and children:
            deltas = self._upgrader.deltas(schema, thread, (row, *children))
            image.writes += settled(write for write in image.gone if write.channel in deltas)
        checkpoint: Any = image.checkpoint
        if schema is not None and image.version is not None and schema.renames_since(image.version):
            image.metadata = {**image.metadata, WAS: [*dict.fromkeys((*image.was, image.version))]}
        if ns != row.ns and (above := self._upgrader.schema(call_of(ns)[0])) is not None:
            image.metadata = {**image.metadata, NAMED: [above.version, ns]}
        metadata: Any = image.metadata
        # Where nobody has declared a schema, what is there keeps the stamps that it has.
        stamp = self._upgrader.stamp(ns, image.values) if schema else codec.header(thread, row).stamp
        draft = codec.draft(thread, ns, row.id, None, checkpoint, metadata, {}, stamp)
        placed = codec.place(draft)
        codec.learn(placed, snapshot.generation)
        packs = list(placed.packs)
        written: list[WriteRow] = []
        for write in image.writes:
            written_now = [(write.channel, write.value)]
            stamp = self._upgrader.write_stamp(ns, written_now) if schema else write.stamp
            drafts = codec.draft_writes(thread, written_now, write.task, write.path, stamp)
            drafts[0].idx = write.idx
            some = codec.place_writes(thread, ns, row.id, drafts)
            codec.learn_writes(some, [True], snapshot.generation)
            for one in some.rows:
                packs += [one.pack] if one.pack else []
                written.append(one._replace(pack=None))
        return image, placed.row._replace(parent=row.parent, key=row.key, at=row.at), written, packs

    async def _packs(self, snapshot: Snapshot) -> Sequence[Pack]:
        spans = live_spans([snapshot.row], snapshot.writes)
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
                # With those that it is rebuilt from: they are of the same step, or of a later one.
                await self._former.undo(thread, only=images.keys())
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
            values = {
                channel: self._again(thread, channel, layout, image.values.get(channel), shelf)
                for channel, layout in header.layouts.items()
            }
            rows = {(row.task, row.idx): row for row in snapshot.writes}
            made = {(write.task, write.idx): write.value for write in image.writes}
            written = {place: self._written(snapshot, row, made.get(place), shelf) for place, row in rows.items()}
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

    def _written(self, snapshot: Snapshot, row: WriteRow, made: Any, shelf: Shelf) -> tuple[str, str, Any]:
        channel, at = channel_name(row.channel), snapshot.row
        layout, _ = self._codec.write_layout(snapshot.thread, at.ns, at.id, row)
        return row.path, channel, self._again(snapshot.thread, channel, layout, made, shelf)

    def _again(self, thread: str, channel: str, layout: Layout, made: Any, shelf: Shelf) -> Any:
        """What was stored for `made`, in the same form."""
        if isinstance(made, Kept) and shelf.holds(layout):
            return Kept(layout)
        return self._codec.value(thread, channel, layout, shelf)

    def _same(self, one: Any, other: Any) -> bool:
        """Equal, or the same bytes: as NaN is, and values without an equality of their own."""
        try:
            if one == other:
                return True
        except Exception:  # noqa: S110  # the application's code: the bytes decide
            pass
        if isinstance(one, Kept) or isinstance(other, Kept):
            return False
        serde = self._codec.serde
        return serde.dumps_typed(one) == serde.dumps_typed(other)


def _needs_what_is_kept(thread: str, place: Place, unread: str | None) -> str:
    """Why a thread is not finalised; `unread`, why a checkpoint could not be looked at."""
    if unread is not None:
        return (
            f"it cannot be told whether checkpoint {place[1]!r} of thread {thread!r} is rebuilt from what would be removed: "
            f"{unread}"
        )
    return (
        f"checkpoint {place[1]!r} of thread {thread!r} was stored by an older release since, and has delta channels that are "
        "rebuilt from what would be removed: migrate the thread again first"
    )


def _rewritten(chart: Chart) -> set[Place]:
    """The checkpoints of which is kept what was before."""
    return {(spaces_of(row.ns)[0], row.id) for row in chart.rows if row.ns.startswith(BEFORE)}


def _children(chart: Chart, row: CheckpointRow) -> Sequence[CheckpointRow]:
    return [one for one in chart.rows if one.parent == row.id and one.ns == row.ns]


def _heads(rows: Iterable[CheckpointRow]) -> set[Place]:
    latest: dict[str, CheckpointRow] = {}
    for row in rows:
        if row.ns not in latest or row.key > latest[row.ns].key:
            latest[row.ns] = row
    return {(row.ns, row.id) for row in latest.values()}
