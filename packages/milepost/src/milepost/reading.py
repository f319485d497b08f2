"""How checkpoints are read: one, a page of a listing, the history of delta channels. Coroutines over a `Side`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
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

from milepost import flavour
from milepost.codec import Codec, Header
from milepost.codec.codec import facets, of_checkpoint
from milepost.codec.shelf import Shelf
from milepost.collector import unhurried
from milepost.equality import matches
from milepost.errors import Corrupt, FormatTooNew, MilepostError, SchemaMismatch, Unserializable
from milepost.heads import Named
from milepost.history import write_order
from milepost.observe import Event, Outcome, Watch, hushed, log, thread_hash
from milepost.overlooking import written_keys
from milepost.places import (
    ATTACHMENTS,
    BEFORE,
    Place,
    channel_name,
    check_id,
    check_names,
    configurable,
    place_of,
    shown,
)
from milepost.rebuilding import Moved, Rebuilding, again
from milepost.runs import Run
from milepost.schema.image import INTERRUPT, Image
from milepost.schema.questions import Below, asked_as, questions_of
from milepost.schema.schema import Where
from milepost.shared import Shared
from milepost.sides import Side
from milepost.store import Loaded, Query, Snapshot, Store
from milepost.upgrading import Upgrader

PAGE = 64
"""Checkpoints or threads fetched at a time."""

MOST = 4096
"""Checkpoints among which one is looked for that can be rebuilt."""


class Reading:
    """What a saver with one serializer reads."""

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
        self._tell(op, thread, "fallback", damage)

    def _report_all(self, op: str, thread: str, damages: Iterable[str], told: Collection[str] = ()) -> None:
        """`report` what a store found damaged, but for the checkpoints of which it is `told` better."""
        known = tuple(f"checkpoint {id!r} " for id in told)
        for damage in damages:
            if not damage.startswith(known):
                self.report(op, thread, damage)

    def _drifted(self, thread: str, text: str) -> None:
        """Tell that what is stored and what the graph knows are not the same."""
        self._tell("schema", thread, "drift", text)

    def _tell(self, op: str, thread: str, outcome: Outcome, text: str) -> None:
        """To the log and to observers. Without a `thread`, of none or of many."""
        name = ""
        if thread:
            name, text = thread_hash(thread), hushed(text, thread)
        log.warning("%s%s", f"thread {name}: " if name else "", text)
        observers = self.shared.observers
        if observers:
            observers.emit(Event(op, observers.backend, name, outcome, error=text))

    async def space(
        self, side: Side, store: Store, place: Place, above: Mapping[str, str] | None = None, *, again: bool = False
    ) -> str:
        """The namespace of the store that `place` means. `above` are the checkpoints that made a call, by namespace; `again`
        looks into the store also where it was found out that it is another one."""
        spaces = self.shared.spaces
        if spaces is None or not place.ns:
            return place.ns
        if again:
            await spaces.look_again(store, place.thread, place.ns)

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
        return await self._asked(side, found, image, above)

    async def _asked(
        self, side: Side, found: CheckpointTuple, image: Image | None, above: Mapping[str, str] | None = None
    ) -> CheckpointTuple:
        """What is read, whose questions have the ids of now."""
        if self.upgrader is None or image is None:
            return found
        ids = await self.upgrader.question_ids(image, self._below(side, image, above))
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
        return ids | await self.upgrader.every_question_id(read[1], self._below(side, read[1]))

    def _below(self, side: Side, image: Image, above: Mapping[str, str] | None = None) -> Below:
        """What subgraphs that were called from `image` have."""
        calling = {**(above or {}), image.ns: image.checkpoint["id"]}

        async def below(ns: str) -> Image | None:
            found = await self._read(side, Place(image.thread, ns, None), calling)
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
                try:
                    past = await self._past(store, snapshot, place.ns)
                    with unhurried(len(packs)):
                        found, header, image = self._tuple(snapshot, codec.shelf(thread, packs), place.ns, past)
                except Corrupt as exc:
                    # What is known of the thread may be what is damaged: whatever is put next is sent as a whole.
                    codec.reset(thread)
                    self._report_all("get", thread, loaded.damage, {snapshot.row.id})
                    if place.id is not None:
                        raise
                    self.report("get", thread, f"{exc.message}; this checkpoint is passed over")
                    if heads is not None:
                        heads.passed_over(place, snapshot.row.id)
                    loaded = await self._older(store, snapshot)
                    if loaded is None:
                        raise
                except MilepostError:
                    self._report_all("get", thread, loaded.damage)
                    raise
                else:
                    self._report_all("get", thread, loaded.damage)
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
        found, _, image = self._tuple(snapshot, shelf, ns, past)
        return await self._asked(side, found, image)

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
            told: list[str] = []

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
                        self.report("list", snapshot.thread, f"{exc.message}; this checkpoint is passed over")
                        told.append(snapshot.row.id)
                        continue
                    if wanted is None or matches(item.metadata, wanted):
                        found.append(item)
                return found

            try:
                if self.upgrader is not None and (self.upgrader.frees or self.shared.spaces is not None):
                    found = await read()
                else:  # nothing is awaited, and the collector would go through each checkpoint several times
                    with unhurried(sum(span.count for snapshot in loaded.snapshots for span in snapshot.row.spans)):
                        found = flavour.run(read())
            finally:
                self._report_all("list", query.thread or "", loaded.damage, told)
            if event:
                event.bytes = sum(len(pack.data) for packs in loaded.packs.values() for pack in packs)
            return found, loaded.cursor

    async def history(self, side: Side, place: Place, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """See `milepost.saver.Saver.get_delta_channel_history`."""
        with self.watch("history", place.thread):
            store = await self.open(side)

            async def walk(id: str | None) -> Mapping[str, DeltaChannelHistory]:
                space = await self.space(side, store, place, again=True)
                return await self._rebuilding(store, place.thread, place.ns, space).history(id, channels)

            try:
                return await again(partial(walk, place.id))
            except Corrupt as exc:
                whole = await self._whole(side, store, place, lambda one: again(partial(walk, one)))
                way = (
                    "; no checkpoint before it can be rebuilt either"
                    if whole is None
                    else f"; checkpoint {whole!r} before it can be rebuilt: pass it as checkpoint_id to go on from there"
                )
                raise Corrupt(exc.message + way, **{**exc.facts, "whole": whole}) from exc

    async def _whole(
        self, side: Side, store: Store, place: Place, rebuild: Callable[[str], Awaitable[object]]
    ) -> str | None:
        """The newest checkpoint before `place` that can be read and rebuilt, if from some one on it is none of them."""
        try:
            space = await self.space(side, store, place)
            found = await store.page(Query(thread=place.thread, ns=space, before=place.id), None, MOST, items=False)
        except MilepostError:  # more is wrong: the first error says what it was about
            return None
        ids = [snapshot.row.id for snapshot in found.snapshots]

        async def sound(id: str) -> bool:
            with suppress(MilepostError):
                if await self._read(side, Place(place.thread, place.ns, id)) is not None:
                    await rebuild(id)
                    return True
            return False

        # What one of them is rebuilt from, those after it mostly are too: so it is not each that has to be tried.
        low, high, whole = 0, len(ids), None
        while low < high:
            middle = (low + high) // 2
            if await sound(ids[middle]):
                whole, high = ids[middle], middle
            else:
                low = middle + 1
        return whole

    def _rebuilding(self, store: Store, thread: str, ns: str, space: str) -> Rebuilding:
        schema = self.upgrader.schema(ns) if self.upgrader else None
        return Rebuilding(store, self.codec, self.upgrader, schema, thread, ns, space)


def query_of(
    codec: Codec, config: RunnableConfig | None, wanted: Mapping[str, Any] | None, before: RunnableConfig | None
) -> Query:
    """What `milepost.saver.Saver.list` asks a store for. Raises `InvalidConfig`."""
    thread = ns = id = bound = None
    if config is not None:
        place = place_of(config)
        thread, id = place.thread, place.id
        ns = place.ns if configurable(config).get("checkpoint_ns") is not None else None
    if before is not None and (value := configurable(before).get("checkpoint_id")):
        bound = check_id(value, "before")
    if wanted is not None:
        check_names(wanted, "filter")
    match = partial(_passes, codec, wanted) if wanted and not codec.seals else None
    wanted_facets = {} if codec.seals else facets(wanted or {})
    return Query(thread, ns, id, bound, wanted_facets, match=match)


def _passes(codec: Codec, wanted: Mapping[str, Any], header: bytes) -> bool:
    try:
        return matches(codec.metadata("", "", "", header), wanted)
    except MilepostError:
        return True  # nobody knows what it says: whoever reads it is told what is wrong
