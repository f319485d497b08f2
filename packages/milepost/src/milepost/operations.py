"""The operations of a saver, each written once as a coroutine over a `Side`: a store in one flavour, and how to wait in it.

The blocking methods of `milepost.saver.Saver` run them to their end, the async ones await them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from milepost import flavour, maintenance
from milepost.codec import Codec, Header, Memory
from milepost.codec.codec import of_checkpoint
from milepost.codec.drafts import Draft, DraftWrite, Placed
from milepost.codec.shelf import Shelf
from milepost.collector import unhurried
from milepost.equality import matches
from milepost.errors import (
    Conflict,
    Corrupt,
    FormatTooNew,
    InvalidConfig,
    LeaseLost,
    MilepostError,
    SchemaMismatch,
    ThreadDeleted,
    Unserializable,
)
from milepost.heads import Named
from milepost.history import write_order
from milepost.late import disown_late
from milepost.lease import fence_for, refused
from milepost.migrating import Migrated, Migrator, Mode
from milepost.observe import Event, Watch, log, thread_hash
from milepost.overlooking import overlooked, written_keys
from milepost.places import ATTACHMENTS, BEFORE, Place, channel_name, check_thread, shown
from milepost.rebuilding import Moved, Rebuilding, again
from milepost.runs import Run
from milepost.schema import Schemas
from milepost.schema.image import INTERRUPT, Image
from milepost.schema.questions import Below, asked_as, questions_of
from milepost.schema.schema import Where
from milepost.shared import Shared
from milepost.sides import Side
from milepost.store import (
    Loaded,
    Put,
    Query,
    Snapshot,
    Stats,
    Store,
    ThreadPage,
)
from milepost.upgrading import Upgrader

PAGE = 64
"""Checkpoints or threads fetched at a time."""

TRIES = 4
"""How often a put whose thread moves on to another generation is fitted to it, before everything is sent."""


class Operations:
    """The operations of a saver with one serializer."""

    def __init__(self, shared: Shared, codec: Codec) -> None:
        self.shared = shared
        self.codec = codec
        self.upgrader = None if shared.schemas is None else Upgrader(codec, shared.schemas, self._drifted)

    async def open(self, side: Side, *, anew: bool = False) -> Store:
        """The store of `side`, set up; `anew`, also if it is."""
        if anew or not self.shared.ready:
            await side.store.setup()
            self.shared.ready = True
        return side.store

    def watch(self, op: str, thread: str = "") -> Watch:
        return Watch(self.shared.observers, op, thread)

    def report(self, op: str, thread: str, damage: str) -> None:
        """Tell that something stored was damaged and passed over."""
        log.warning("thread %s: %s", thread_hash(thread), damage)
        observers = self.shared.observers
        if observers:
            event = Event(op, observers.backend, thread_hash(thread), "fallback", error=damage)
            observers.emit(event)

    def _drifted(self, thread: str, text: str) -> None:
        """Tell that what is stored and what the graph knows are not the same."""
        log.warning("thread %s: %s", thread_hash(thread), text)
        observers = self.shared.observers
        if observers:
            observers.emit(Event("schema", observers.backend, thread_hash(thread), "drift", error=text))

    async def space(
        self, side: Side, store: Store, place: Place, above: Mapping[str, str] | None = None, *, again: bool = False
    ) -> str:
        """The namespace of the store that `place` means. `above` are the checkpoints that made a call, by namespace; `again`
        looks into the store also where it was found out that it is another one."""
        spaces = self.shared.spaces
        if spaces is None or not place.ns:
            return place.ns
        if again:
            spaces.forget_one(place.thread, place.ns)

        async def read(ns: str) -> Image | None:
            found = await self._read(side, Place(place.thread, ns, (above or {}).get(ns)), above)
            return None if found is None else found[1]

        return await spaces.find(store, self.codec, place.thread, place.ns, read)

    async def get_tuple(
        self, side: Side, place: Place, above: Mapping[str, str] | None = None, run: Run | None = None
    ) -> CheckpointTuple | None:
        """See `milepost.saver.Saver.get_tuple`."""
        heads = self.shared.heads
        read = await self._read(side, place, above)
        if read is None:
            if heads is not None and place.id is None:
                heads.nothing(place, run)
            return None
        found, image = read
        if heads is not None and place.id is not None:
            found = found._replace(config=place.config(Named(place.id)))
        if run is not None:
            run.has(found.checkpoint["id"])
        if self.upgrader is None or image is None:
            return found
        ids = await self.upgrader.question_ids(image, self._below(side, image.thread, above))
        if not ids:
            return found
        writes = [
            (one.task, one.channel, asked_as(ids.get((one.task, one.idx), {}), one.value)) for one in image.writes
        ]
        return found._replace(pending_writes=writes)

    async def question_ids(self, side: Side, place: Place) -> dict[str, str]:
        """See `milepost.saver.Saver.question_ids`."""
        read = await self._read(side, place)
        if read is None:
            return {}
        asked = (one for _, channel, one in read[0].pending_writes or () if channel == INTERRUPT)
        ids = {
            question.id: question.id for value in asked for question in questions_of(value) if hasattr(question, "id")
        }
        if self.upgrader is None or read[1] is None:
            return ids
        return ids | await self.upgrader.every_question_id(read[1], self._below(side, place.thread))

    def _below(self, side: Side, thread: str, above: Mapping[str, str] | None = None) -> Below:
        async def below(ns: str) -> Image | None:
            found = await self._read(side, Place(thread, ns, None), above)
            return None if found is None else found[1]

        return below

    async def _read(
        self, side: Side, place: Place, above: Mapping[str, str] | None = None
    ) -> tuple[CheckpointTuple, Image | None] | None:
        """A checkpoint, and where nodes were renamed what is known of its tasks."""
        if self.upgrader is None or not self.upgrader.frees:
            return await self._read_once(side, place, above)
        return await again(partial(self._read_once, side, place, above))

    async def _read_once(
        self, side: Side, place: Place, above: Mapping[str, str] | None
    ) -> tuple[CheckpointTuple, Image | None] | None:
        codec, thread = self.codec, place.thread
        with self.watch("get", thread) as event:
            store = await self.open(side)
            heads = self.shared.heads
            spaces = self.shared.spaces
            settled = spaces is not None and spaces.knows(thread, place.ns)
            space = place.ns if spaces is None else await self.space(side, store, place, above)
            loaded = await store.get(thread, space, place.id)
            if loaded is None and (settled or space != place.ns):
                # A migration may have moved it meanwhile, or its undoing have moved it back.
                space = await self.space(side, store, place, above, again=True)
                loaded = await store.get(thread, space, place.id)
            if loaded is None and place.id is None and space == place.ns:
                names = () if spaces is None else spaces.names(thread, place.ns)
                await self.shared.footing.nothing(store, codec, (thread, space), self.shared.schemas, names)
            while loaded is not None and loaded.snapshots:
                snapshot = loaded.snapshots[0]
                packs = loaded.packs.get(thread, ())
                self.shared.footing.stands((thread, snapshot.row.ns), snapshot.generation)
                for damage in loaded.damage:
                    self.report("get", thread, damage)
                try:
                    past = await self._past(store, snapshot, place.ns)
                    with unhurried(len(packs)):
                        found, header, image = self._tuple(snapshot, codec.shelf(thread, packs), place.ns, past)
                except Corrupt as exc:
                    # What is known of the thread may be what is damaged: whatever is put next is sent as a whole.
                    codec.reset(thread)
                    if place.id is not None:
                        raise
                    self.report("get", thread, exc.message)
                    if heads is not None:
                        heads.passed_over(place, snapshot.row.id)
                    loaded = await self._older(store, snapshot)
                    if loaded is None:
                        raise
                else:
                    codec.remember(thread, snapshot.generation, snapshot.row, header, packs, written_keys(found))
                    self.shared.pending.forgive((thread, place.ns, snapshot.row.id))
                    self.shared.pending.stored(thread, snapshot.row.id)
                    if boundary := self.shared.boundary:
                        boundary.committed((thread, place.ns, snapshot.row.id))
                    if event:
                        event.bytes = len(snapshot.row.header) + sum(len(pack.data) for pack in packs)
                    return found, image
            return None

    async def _older(self, store: Store, snapshot: Snapshot) -> Loaded | None:
        """What to fall back to from a damaged checkpoint: its parent, or else the newest one before it."""
        thread, row = snapshot.thread, snapshot.row
        if row.parent is not None and row.parent != row.id:
            # Damage may have taken the parent too: then the newest of the others is what is left.
            with suppress(Corrupt):
                loaded = await store.get(thread, row.ns, row.parent)
                if loaded is not None and loaded.snapshots[0].row.key < row.key:
                    return loaded
        found = await store.page(Query(thread=thread, ns=row.ns, before=row.id), None, 1)
        return found if found.snapshots else None

    async def _item(
        self, side: Side, store: Store, snapshot: Snapshot, shelf: Shelf, ns: str
    ) -> CheckpointTuple | None:
        """One of a listing; as it is now, if it was rewritten meanwhile, and None if it has gone."""
        try:
            past = await self._past(store, snapshot, ns)
        except Moved:
            thread, id = snapshot.thread, snapshot.row.id
            loaded = await store.get(thread, snapshot.row.ns, id)
            if loaded is None and ns:
                # It may have been given its name of now.
                loaded = await store.get(thread, await self.space(side, store, Place(thread, ns, None), again=True), id)
            if loaded is None:
                return None
            snapshot = loaded.snapshots[0]
            shelf = self.codec.shelf(snapshot.thread, loaded.packs.get(snapshot.thread, ()))
            past = await self._past(store, snapshot, ns)
        return self._tuple(snapshot, shelf, ns, past)[0]

    async def _past(self, store: Store, snapshot: Snapshot, ns: str) -> Mapping[str, Any]:
        """See `milepost.rebuilding.Rebuilding.past`; `ns` is the namespace of now."""
        if self.upgrader is None or not self.upgrader.frees:
            return {}
        thread, row = snapshot.thread, snapshot.row
        try:
            header = self.codec.header(thread, row)
            return await self._rebuilding(store, thread, ns, row.ns).past(snapshot, header)
        except MilepostError as exc:
            raise of_checkpoint(exc, thread, row) from exc

    def _tuple(
        self, snapshot: Snapshot, shelf: Shelf, ns: str, past: Mapping[str, Any]
    ) -> tuple[CheckpointTuple, Header, Image | None]:
        """Decode a checkpoint, as one of namespace `ns`, with its image where nodes were renamed. `past` is what `_past` gives.
        Raises `Corrupt`, `FormatTooNew` or `Unserializable`, which name it."""
        thread, row, codec = snapshot.thread, snapshot.row, self.codec
        header = codec.header(thread, row)
        place = Place(thread, ns, row.id)
        schema = self.upgrader.schema(ns) if self.upgrader else None
        image: Image | None = None
        try:
            if self.upgrader and (schema or self.upgrader.nested or self.shared.spaces is not None):
                names = () if self.shared.spaces is None else self.shared.spaces.names(thread, ns)
                image, upgraded = (
                    self.upgrader.read(schema, snapshot, header, shelf, names, past=past)
                    if schema
                    else (self.upgrader.plain(snapshot, header, shelf, names), False)
                )
                if ns != row.ns:
                    image = self.upgrader.respaced(image, ns)
                checkpoint, metadata = image.checkpoint, image.metadata
                writes = [(write.task, write.channel, write.value) for write in image.writes]
                if upgraded and schema:
                    # What the next put stores lies where it does if no change speaks of it.
                    lying = self.upgrader.lying(schema, Where(thread, row.ns, row.id), header)
                    header = replace(header, checkpoint=checkpoint, metadata=metadata, layouts=lying)
            else:
                checkpoint = {**header.checkpoint, "channel_values": codec.values(thread, header, shelf)}
                metadata = header.metadata
                ordered = sorted(snapshot.writes, key=write_order)
                written = codec.write_values([(snapshot, write) for write in ordered], shelf) if ordered else ()
                writes = [
                    (write.task, channel_name(write.channel), value)
                    for write, value in zip(ordered, written, strict=True)
                ]
        except MilepostError as exc:
            raise of_checkpoint(exc, thread, row) from exc
        found = CheckpointTuple(
            config=place.config(row.id),
            checkpoint=cast("Checkpoint", checkpoint),
            metadata=cast("CheckpointMetadata", shown(metadata)),
            parent_config=None if row.parent is None else place.config(row.parent),
            pending_writes=writes,
        )
        return found, header, image if self.shared.spaces is not None else None

    async def page(
        self,
        side: Side,
        query: Query,
        wanted: dict[str, Any] | None,
        after: tuple[str, ...] | None,
        limit: int | None,
    ) -> tuple[list[CheckpointTuple], tuple[str, ...] | None]:
        codec = self.codec
        with self.watch("list", query.thread or "") as event:
            store = await self.open(side)
            asked = query.ns
            if self.shared.spaces is not None and query.ns and query.thread is not None:
                place = Place(query.thread, query.ns, None)
                query = replace(query, ns=await self.space(side, store, place, again=True))
            loaded = await store.page(query, after, PAGE if limit is None else min(limit, PAGE))
            shelves = {thread: codec.shelf(thread, packs, several=True) for thread, packs in loaded.packs.items()}
            for damage in loaded.damage:
                self.report("list", query.thread or "", damage)

            async def read() -> list[CheckpointTuple]:
                found: list[CheckpointTuple] = []
                for snapshot in loaded.snapshots:
                    if snapshot.row.ns == ATTACHMENTS or (query.ns is None and snapshot.row.ns.startswith(BEFORE)):
                        continue
                    try:
                        if wanted is not None:
                            # What is not asked for is neither decoded nor refused.
                            header = codec.header(snapshot.thread, snapshot.row)
                            if not matches(header.metadata, wanted):
                                continue
                        ns = asked or snapshot.row.ns
                        shelf = shelves.get(snapshot.thread) or codec.shelf("", ())
                        if (item := await again(partial(self._item, side, store, snapshot, shelf, ns))) is None:
                            continue
                    except (Corrupt, FormatTooNew, Moved, SchemaMismatch, Unserializable) as exc:
                        # Of all threads, one that this release cannot read, or that is rewritten, holds up no other.
                        if query.thread is not None and not isinstance(exc, Corrupt):
                            raise
                        self.report("list", snapshot.thread, exc.message)
                        continue
                    if wanted is None or matches(item.metadata, wanted):
                        found.append(item)
                return found

            if self.upgrader is not None and self.upgrader.frees:
                found = await read()
            else:  # nothing is awaited, and the collector would go through each checkpoint several times
                with unhurried(sum(span.count for snapshot in loaded.snapshots for span in snapshot.row.spans)):
                    found = flavour.run(read())
            if event:
                event.bytes = sum(len(pack.data) for packs in loaded.packs.values() for pack in packs)
            return found, loaded.cursor

    async def history(self, side: Side, place: Place, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """See `milepost.saver.Saver.get_delta_channel_history`."""
        with self.watch("history", place.thread):
            store = await self.open(side)

            async def walk() -> Mapping[str, DeltaChannelHistory]:
                space = await self.space(side, store, place, again=True)
                return await self._rebuilding(store, place.thread, place.ns, space).history(place.id, channels)

            return await again(walk)

    def _rebuilding(self, store: Store, thread: str, ns: str, space: str) -> Rebuilding:
        schema = self.upgrader.schema(ns) if self.upgrader else None
        return Rebuilding(store, self.codec, self.upgrader, schema, thread, ns, space)

    async def put(
        self, side: Side, place: Place, draft: Draft, source: object = None, run: Run | None = None
    ) -> RunnableConfig:
        """See `milepost.saver.Saver.put`."""
        spot = (place.ns, draft.id)
        try:
            if run is not None:
                # Before it is stored: who is cancelled then does not come to say so.
                run.wrote(spot, (draft.id, *draft.ancestors))
            config = await self._put(side, place, draft, source, run)
            if run is not None:
                run.has(draft.id)
                run.refuse(f"checkpoint {draft.id!r}")
        except ThreadDeleted:
            self.shared.pending.late(place.thread, draft.id)
            if run is not None:
                run.cut = run.cut or draft.id
            await disown_late(
                self.shared, self.codec, side, place.thread, {spot, *(run.ahead() if run is not None else ())}
            )
            raise
        except LeaseLost as exc:
            refused(self.shared, place.thread, exc)
            raise
        except GeneratorExit:
            raise  # nothing can be awaited any more
        except BaseException as exc:
            if not isinstance(exc, Exception) and run is not None and run.cut is not None:
                # It may be stored, and nobody else will have it go.
                await disown_late(self.shared, self.codec, side, place.thread, [spot], wait=False)
            raise
        return config

    async def _put(self, side: Side, place: Place, draft: Draft, source: object, run: Run | None) -> RunnableConfig:
        shared, codec = self.shared, self.codec
        with self.watch("put", place.thread) as event:
            store = await self.open(side)
            if run is not None:
                run.refuse(f"checkpoint {draft.id!r}")
            fence = fence_for(shared, place.thread)
            if place.id is not None:
                key = (place.thread, place.ns, place.id)
                if ahead := shared.pending.ahead(key):
                    await side.wait(ahead)
                shared.pending.check(key, fence)
                if boundary := shared.boundary:
                    boundary.put_on(key, draft.id)
            rests = draft.ancestors if place.id is None else (place.id, *draft.ancestors)
            shared.pending.refuse_the_late(place.thread, draft.id, rests)
            heads = None if shared.heads is None else shared.heads.wanted(place, source, run)
            if told := overlooked(draft):
                self._drifted(place.thread, told)
            await self._stand(store, draft)
            placed = codec.place(draft, merging=True)
            answer = await self._store(store, place, placed, fence, heads)
            for attempt in range(TRIES):
                if not answer.stale:
                    break
                if event:
                    event.outcome = "stale"
                if draft.ns != place.ns:
                    draft.ns = await self.space(side, store, place, again=True)
                if draft.ns == place.ns:
                    await shared.footing.check(store, codec, (place.thread, draft.ns), answer.generation)
                if attempt + 1 < TRIES:
                    spans = codec.referred(draft)
                    packs = await store.fetch(place.thread, spans) if spans and answer.generation >= 0 else ()
                    codec.restart(draft, answer.generation, packs)
                await self._stand(store, draft)
                placed = codec.place(draft, everything=attempt + 1 == TRIES)
                answer = await self._store(store, place, placed, fence, heads)
            if answer.stale:
                raise restless(place.thread)
            if draft.ns == place.ns != "":
                await shared.footing.check(store, codec, (place.thread, draft.ns), answer.generation, put=draft.id)
            codec.learn(placed, answer.generation)
            shared.pending.stored(place.thread, draft.id)
            if shared.heads is not None and place.id is None:
                shared.heads.begun(place, run)
            if boundary := shared.boundary:
                boundary.committed((place.thread, place.ns, placed.row.id))
            if growth := shared.growth:
                head = codec.size(draft) if place.ns == growth.ns else None
                growth.note(place.thread, sum(len(pack.data) for pack in placed.packs), head)
            if event:
                event.bytes = placed.bytes
                event.items_new, event.items_reused = len(placed.fresh), placed.reused
        return place.config(placed.row.id)

    async def _stand(self, store: Store, draft: Draft) -> None:
        """Raise `Conflict` if delta channels of `draft` would be rebuilt from a parent that has gone: the thread was
        shortened under a run that another one had overtaken. In a thread that has gone as a whole, the store has its say."""
        parent = self.codec.unrooted(draft)
        if parent is None or (await store.rows(draft.thread, [(draft.ns, parent)])).rows:
            return
        if (await store.stats(draft.thread)).checkpoints:
            raise Conflict(
                f"checkpoint {draft.id!r} of thread {draft.thread!r} goes on from {parent!r}, which is not stored (any more): "
                f"its channels {sorted(draft.rests)} could not be rebuilt. Another run went on from there, and the thread was "
                "shortened; run again from the latest checkpoint.",
                thread=draft.thread,
                expected=parent,
            )

    async def _store(
        self, store: Store, place: Place, placed: Placed, fence: int | None, heads: Sequence[str] | None
    ) -> Put:
        generation = self._generation(place.thread, place.ns, placed.generation)
        return await store.put(
            place.thread, placed.row, placed.packs, generation, fence=fence, heads=heads, merged=placed.merged
        )

    async def put_writes(self, side: Side, place: Place, drafts: Sequence[DraftWrite], run: Run | None = None) -> None:
        """See `milepost.saver.Saver.put_writes`."""
        if not drafts:
            return
        pending, id = self.shared.pending, cast("str", place.id)
        op = pending.begin((place.thread, place.ns, id), drafts[0].task)
        error: BaseException | None = None
        try:
            if run is not None:
                run.refuse(f"a write of checkpoint {id!r}")
                run.wrote((place.ns, id), (id,))
            await self._put_writes(side, place, drafts)
            if run is not None:
                run.refuse(f"a write of checkpoint {id!r}")
        except GeneratorExit as exc:
            error = exc
            raise  # (as above)
        except BaseException as exc:
            error = exc
            if isinstance(exc, LeaseLost):
                refused(self.shared, place.thread, exc)
            stopped = isinstance(exc, ThreadDeleted) or not isinstance(exc, Exception)
            if stopped and run is not None and run.cut is not None:
                await disown_late(self.shared, self.codec, side, place.thread, [(place.ns, id)], rows=False, wait=False)
            raise
        finally:
            pending.end(op, error)

    async def _put_writes(self, side: Side, place: Place, drafts: Sequence[DraftWrite]) -> None:
        thread, ns, id = place.thread, place.ns, cast("str", place.id)
        shared, codec = self.shared, self.codec
        with self.watch("put_writes", thread) as event:
            store = await self.open(side)
            space = ns if shared.spaces is None else shared.spaces.known(thread, ns)
            fence = fence_for(shared, thread)
            shared.pending.refuse_the_late(thread, id, (id,))
            placed = codec.place_writes(thread, space, id, drafts)
            generation = self._generation(thread, ns, placed.generation)
            answer = await store.put_writes(thread, space, id, placed.rows, generation, fence=fence)
            for attempt in range(TRIES):
                if not answer.stale:
                    break
                if event:
                    event.outcome = "stale"
                codec.renew(thread, answer.generation)
                if space != ns:
                    space = await self.space(side, store, place, again=True)
                if space == ns:
                    await shared.footing.check(store, codec, (thread, space), answer.generation)
                placed = codec.place_writes(thread, space, id, drafts, everything=attempt + 1 == TRIES)
                generation = self._generation(thread, ns, placed.generation)
                answer = await store.put_writes(thread, space, id, placed.rows, generation, fence=fence)
            if answer.stale:
                raise restless(thread)
            if space == ns != "":
                await shared.footing.check(store, codec, (thread, space), answer.generation, written=id)
            codec.learn_writes(placed, answer.accepted, answer.generation)
            if event:
                event.bytes = sum(len(row.value) + len(row.pack.data if row.pack else b"") for row in placed.rows)

    def _generation(self, thread: str, ns: str, placed: int | None) -> int | None:
        """What a write to namespace `ns` depends on, whose addresses are of generation `placed`."""
        spaces = self.shared.spaces
        return placed if spaces is None else spaces.generation(thread, ns, placed)

    async def delete_thread(self, side: Side, thread: str, *, force: bool = False) -> None:
        with self.watch("delete_thread", thread):
            store = await self.open(side)
            runs = self.shared.runs.under_way(thread)
            await (store.delete_thread(thread, force=True) if force else store.delete_thread(thread))
            for run, newest in runs:
                run.cut = run.cut or newest
            self.codec.reset(thread)
            if self.shared.spaces is not None:
                self.shared.spaces.forget(thread)

    async def prune(self, side: Side, threads: Sequence[str], strategy: str) -> None:
        """See `milepost.saver.Saver.prune`."""
        if strategy == "keep_latest":
            await self.maintain(side, maintenance.keep_latest, threads)
        elif strategy in ("delete", "delete_all"):
            for thread in threads:
                await self.delete_thread(side, thread)
        else:
            raise InvalidConfig(
                f"unknown prune strategy {strategy!r}: use 'keep_latest', or 'delete' (also 'delete_all')",
                what="strategy",
                value=repr(strategy),
            )

    async def copy_thread(self, side: Side, source: str, target: str) -> None:
        """See `milepost.saver.Saver.copy_thread`."""
        await self.maintain(side, maintenance.copy_thread, source, target)
        self.shared.runs.revived(target)

    async def maintain(self, side: Side, what: Callable[..., Any], *arguments: Any) -> None:
        with self.watch(what.__name__):
            await what(await self.open(side), self.codec, *arguments)

    async def migrate(self, side: Side, thread: str, mode: Mode, *, history: bool) -> Migrated:
        """See `milepost.saver.Saver.migrate`."""
        shared = self.shared
        with self.watch("migrate", thread):
            # A memory of its own: what is put at the same time must not refer to what is not stored yet.
            codec = Codec(self.codec.serde, Memory(shared.memory.limit), shared.vault).exact()
            upgrader = Upgrader(codec, shared.schemas or Schemas({}), self._drifted)
            return await Migrator(await self.open(side), codec, upgrader).thread(thread, mode, history=history)

    async def threads(self, side: Side, after: tuple[str, ...] | None) -> ThreadPage:
        with self.watch("threads"):
            return await (await self.open(side)).threads(after, PAGE)

    async def stats(self, side: Side, thread: str | None) -> Stats:
        name = None if thread is None else check_thread(thread)
        with self.watch("stats", name or ""):
            return await (await self.open(side)).stats(name)


def restless(thread: str) -> Conflict:
    """The error for a write that met another generation of its thread each time."""
    return Conflict(
        f"thread {thread!r} was shortened {TRIES} times while it was to be written to: nothing was stored, try again",
        thread=thread,
    )
