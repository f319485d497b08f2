"""The saver: LangGraph's checkpointer over any store, in both flavours from one text.

Each method is written once as a coroutine over a `_Side`: a store in one flavour, and how to wait in it. The blocking
methods run it to its end, the async ones await it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    writes_sort_key,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from milepost import maintenance
from milepost.codec import Codec, Memory, Vault
from milepost.codec.layout import Layout, spans_of
from milepost.codec.shelf import Shelf
from milepost.codec.values import Serializer
from milepost.errors import Corrupt, InvalidConfig, MilepostError
from milepost.flavour import run
from milepost.observe import Event, Listener, Observers, log, thread_hash
from milepost.pending import Op, Pending, running_loop
from milepost.places import Place, check_id, check_limit, check_list, check_thread, configurable, full_metadata, place_of
from milepost.store import Backend, Loaded, Query, Snapshot, Stats, Store, ThreadRow, WriteRow, merge_spans

T = TypeVar("T")
Self = TypeVar("Self", bound="Saver")

PAGE = 64
"""Checkpoints, ancestors or threads fetched at a time."""

_random = random.SystemRandom()


class _Side(Protocol):
    """A store in one flavour, and how to wait in it."""

    store: Store

    async def wait(self, ops: Sequence[Op]) -> None: ...


class _Blocking:
    def __init__(self, store: Store) -> None:
        self.store = store

    async def wait(self, ops: Sequence[Op]) -> None:
        here = running_loop()
        for op in ops:
            # What runs on this very loop cannot end while we block it.
            if here is None or op.loop is not here:
                op.done.result()


class _Async:
    def __init__(self, store: Store) -> None:
        self.store = store

    async def wait(self, ops: Sequence[Op]) -> None:
        for op in ops:
            await asyncio.wrap_future(op.done)


class _Shared:
    """What a saver shares with its clones (LangGraph copies a saver for every call in strict mode)."""

    def __init__(self, backend: Backend, vault: Vault | None, memory: Memory, *, setup: bool) -> None:
        self.backend = backend
        self.vault = vault
        self.memory = memory
        self.pending = Pending()
        self.observers = Observers(backend.name)
        self.ready = not setup


class Saver(BaseCheckpointSaver[str]):
    """A LangGraph checkpointer over `backend`, usable from any thread and any number of event loops.

    Get one from `milepost.connect`. The blocking and the async methods are the same code on the same store;
    ``graph.invoke`` and ``graph.ainvoke`` take the same object. A blocking call made inside a running event loop works,
    and blocks.

    Args:
        backend: the opened store. It is closed with the saver.
        serde: used as it is, instead of `milepost.codec.values.Serializer`.
        keys: encrypt what is stored: key id -> 16, 24 or 32 bytes. The first one seals, any of them opens.
        memory: bytes of encoded state that may be kept to find out what is stored already.
        setup: create or upgrade the store on first use.

    Every method raises `InvalidConfig` or `TooLarge` for arguments that cannot be right, before anything is read or
    written; `Unavailable` when the store cannot be reached; `Corrupt`, `FormatTooNew` or `Unserializable` for what
    cannot be read.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        serde: SerializerProtocol | None = None,
        keys: Mapping[str, bytes] | None = None,
        memory: int = 64 << 20,
        setup: bool = True,
    ) -> None:
        super().__init__(serde=serde or Serializer())
        self._shared = _Shared(backend, Vault(keys) if keys else None, Memory(memory), setup=setup)
        self._codec_: tuple[SerializerProtocol, Codec] | None = None

    # Life.

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self: Self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def close(self) -> None:
        """Give back connections and files, for all clones of this saver. Idempotent."""
        self._shared.backend.close()

    async def aclose(self) -> None:
        """`close` for callers inside an event loop."""
        await self._shared.backend.aclose()

    def setup(self) -> None:
        """Create or upgrade the store. Happens by itself on first use; safe to repeat, and from many processes."""
        self._shared.ready = False
        run(self._open(self._blocking()))

    async def asetup(self) -> None:
        """`setup`, async."""
        self._shared.ready = False
        await self._open(self._async())

    def observe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with a `milepost.observe.Event` for each operation; returns how to stop that."""
        return self._shared.observers.add(listener)

    @property
    def backend(self) -> Backend:
        """The store behind this saver."""
        return self._shared.backend

    # Reading.

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the thread's latest one; None when there is none.

        Pending writes come in the order in which LangGraph applies them. If the latest checkpoint is damaged, that is
        reported (an event, a log record) and the newest intact ancestor is returned; a checkpoint asked for by its id
        raises `Corrupt` instead.
        """
        return run(self._get_tuple(self._blocking(), place_of(config)))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, async."""
        return await self._get_tuple(self._async(), place_of(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest first.

        Args:
            config: whose; None is all threads, without ``checkpoint_ns`` all namespaces, with a ``checkpoint_id``
                exactly that checkpoint.
            filter: metadata that must be equal: ``metadata.get(key) == value`` for each item, the key taken literally
                (so ``None`` also finds checkpoints without the key).
            before: only checkpoints that come before the one of this ``checkpoint_id``; without an id, all.
            limit: at most so many; 0 is none, None is all. Negative numbers are refused.

        Nothing is held open between two checkpoints. A damaged one is reported and left out.
        """
        query = self._query(config, filter, before)
        return self._list(query, filter, check_limit(limit))

    def _list(self, query: Query, wanted: dict[str, Any] | None, limit: int | None) -> Iterator[CheckpointTuple]:
        after: tuple[str, ...] | None = None
        while limit is None or limit > 0:
            found, after = run(self._page(self._blocking(), query, wanted, after, limit))
            yield from found
            if after is None:
                return
            limit = None if limit is None else limit - len(found)

    async def _alist(
        self, query: Query, wanted: dict[str, Any] | None, limit: int | None
    ) -> AsyncIterator[CheckpointTuple]:
        after: tuple[str, ...] | None = None
        while limit is None or limit > 0:
            found, after = await self._page(self._async(), query, wanted, after, limit)
            for item in found:
                yield item
            if after is None:
                return
            limit = None if limit is None else limit - len(found)

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, async."""
        query = self._query(config, filter, before)
        return self._alist(query, filter, check_limit(limit))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The writes and the seed that rebuild delta channels, read along the parents in pages.

        The contract is LangGraph's (``BaseCheckpointSaver.get_delta_channel_history``); a chain of parents that was
        made a cycle ends where it closes.
        """
        return run(self._history(self._blocking(), place_of(config), channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, async."""
        return await self._history(self._async(), place_of(config), channels)

    def threads(self) -> Iterator[ThreadRow]:
        """All threads, in an order of the store's own, without reading any channel data."""
        after: tuple[str, ...] | None = None
        while True:
            page = run(self._threads(self._blocking(), after))
            yield from page.rows
            if (after := page.cursor) is None:
                return

    async def athreads(self) -> AsyncIterator[ThreadRow]:
        """`threads`, async."""
        after: tuple[str, ...] | None = None
        while True:
            page = await self._threads(self._async(), after)
            for row in page.rows:
                yield row
            if (after := page.cursor) is None:
                return

    def stats(self, thread_id: str | None = None) -> Stats:
        """Counts and bytes of a thread, or of the store."""
        return run(self._stats(self._blocking(), thread_id))

    async def astats(self, thread_id: str | None = None) -> Stats:
        """`stats`, async."""
        return await self._stats(self._async(), thread_id)

    # Writing.

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; its parent is the ``checkpoint_id`` of `config`.

        Values are encoded before anything else happens. When this returns, the checkpoint and everything it refers to
        is durable, and so are the writes that this process accepted for its parent: if one of those failed, this
        raises. Putting an id again replaces it, and does not make it the latest.

        Raises `Unserializable` (with channel and path), and `ThreadDeleted` for a late put of a deleted thread.
        """
        return run(self._put(self._blocking(), *self._drafted(config, checkpoint, metadata, new_versions)))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, async. Cancelled, it has stored all or nothing by the time the await ends."""
        return await self._put(self._async(), *self._drafted(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the pending writes of a task, also before their checkpoint is put.

        An ordinary write is stored only if its place (task, position) is empty; a special one (error, interrupt,
        resume, scheduled) replaces the one before. Decided write by write.
        """
        run(self._put_writes(self._blocking(), *self._drafted_writes(config, writes, task_id, task_path)))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`, async. Cancelled, it has stored all or nothing by the time the await ends."""
        await self._put_writes(self._async(), *self._drafted_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Remove everything of a thread, in all namespaces. Late writes of its past are refused from then on."""
        run(self._delete_thread(self._blocking(), check_thread(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """`delete_thread`, async."""
        await self._delete_thread(self._async(), check_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of these runs (metadata ``run_id``), in all threads, with their writes.

        Children of what goes are given to the nearest ancestor that stays. What a delta channel of a checkpoint that
        stays is rebuilt from, stays too.
        """
        run(self._maintain(self._blocking(), maintenance.delete_for_runs, check_list(run_ids, "run_ids")))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, async."""
        await self._maintain(self._async(), maintenance.delete_for_runs, check_list(run_ids, "run_ids"))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of a thread: all namespaces, history, writes and order. A no-op without a source.

        Raises `Conflict` when the target has checkpoints that the source has not.
        """
        source, target = check_thread(source_thread_id, "source"), check_thread(target_thread_id, "target")
        run(self._maintain(self._blocking(), maintenance.copy_thread, source, target))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, async."""
        source, target = check_thread(source_thread_id, "source"), check_thread(target_thread_id, "target")
        await self._maintain(self._async(), maintenance.copy_thread, source, target)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Shorten threads.

        ``keep_latest`` keeps the latest checkpoint of each namespace with its writes, writes that wait for their
        checkpoint, and the ancestors that its delta channels are rebuilt from; ``delete`` (or ``delete_all``, as
        LangGraph's server says) removes everything. Unknown threads are skipped.

        Raises `Conflict` when a thread is written to faster than it can be planned.
        """
        run(self._prune(self._blocking(), check_list(thread_ids, "thread_ids"), strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, async."""
        await self._prune(self._async(), check_list(thread_ids, "thread_ids"), strategy)

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        """The version after `current`: of its type, and greater. Fresh threads get LangGraph's padded labels, whose
        random part keeps the versions of sibling forks apart."""
        if current is None:
            number = 0
        elif isinstance(current, str):
            number = int(current.split(".")[0])
        else:
            return current + 1
        return f"{number + 1:032}.{_random.random():016}"

    # The coroutines. They await nothing but the side they are given.

    @property
    def _codec(self) -> Codec:
        # Read at call time: clones carry another serializer, and users assign one after construction.
        serde = self.serde
        if self._codec_ is None or self._codec_[0] is not serde:
            self._codec_ = (serde, Codec(serde, self._shared.memory, self._shared.vault))
        return self._codec_[1]

    def _blocking(self) -> _Blocking:
        return _Blocking(self._shared.backend.blocking())

    def _async(self) -> _Async:
        return _Async(self._shared.backend.asynchronous())

    async def _open(self, side: _Side) -> Store:
        if not self._shared.ready:
            await side.store.setup()
            self._shared.ready = True
        return side.store

    @contextmanager
    def _watch(self, op: str, thread: str = "") -> Iterator[Event]:
        observers = self._shared.observers
        event = Event(op, observers.backend)
        if not observers:
            yield event
            return
        event.thread = thread_hash(thread) if thread else ""
        start = observers.clock()
        try:
            yield event
        except BaseException as exc:
            event.outcome, event.error = "error", type(exc).__name__
            raise
        finally:
            event.seconds = observers.clock() - start
            observers.emit(event)

    def _report(self, op: str, thread: str, damage: str) -> None:
        """Tell that something stored was damaged and passed over."""
        log.warning("thread %s: %s", thread_hash(thread), damage)
        observers = self._shared.observers
        if observers:
            event = Event(op, observers.backend, thread_hash(thread), "fallback", error=damage)
            observers.emit(event)

    async def _get_tuple(self, side: _Side, place: Place) -> CheckpointTuple | None:
        codec = self._codec
        with self._watch("get", place.thread) as event:
            store = await self._open(side)
            loaded = await store.get(place.thread, place.ns, place.id)
            while loaded is not None and loaded.snapshots:
                snapshot = loaded.snapshots[0]
                packs = loaded.packs.get(place.thread, ())
                for damage in loaded.damage:
                    self._report("get", place.thread, damage)
                try:
                    found = self._tuple(codec, snapshot, codec.shelf(place.thread, packs), remember=packs)
                except Corrupt as exc:
                    named = _named(exc, snapshot)
                    if place.id is not None:
                        raise named from exc
                    self._report("get", place.thread, named.message)
                    loaded = await self._older(store, snapshot)
                    if loaded is None:
                        raise named from exc
                else:
                    event.bytes = len(snapshot.row.header) + sum(len(pack.data) for pack in packs)
                    return found
            return None

    async def _older(self, store: Store, snapshot: Snapshot) -> Loaded | None:
        """What to fall back to from a damaged checkpoint: its parent, or else the newest one before it."""
        thread, row = snapshot.thread, snapshot.row
        if row.parent is not None and row.parent != row.id:
            loaded = await store.get(thread, row.ns, row.parent)
            if loaded is not None and loaded.snapshots[0].row.key < row.key:
                return loaded
        loaded = await store.page(Query(thread=thread, ns=row.ns, before=row.id), None, 1)
        return loaded if loaded.snapshots else None

    def _tuple(
        self, codec: Codec, snapshot: Snapshot, shelf: Shelf, *, remember: Sequence[Any] | None = None
    ) -> CheckpointTuple:
        thread, row = snapshot.thread, snapshot.row
        header = codec.header(thread, row)
        if remember is not None:
            codec.remember(thread, snapshot.generation, row, header, remember)
        checkpoint = header.checkpoint
        checkpoint["channel_values"] = codec.values(thread, header, shelf)
        place = Place(thread, row.ns, row.id)
        return CheckpointTuple(
            config=place.config(row.id),
            checkpoint=cast("Checkpoint", checkpoint),
            metadata=cast("CheckpointMetadata", header.metadata),
            parent_config=None if row.parent is None else place.config(row.parent),
            pending_writes=[
                (write.task, write.channel, self._write_value(codec, snapshot, write, shelf))
                for write in sorted(snapshot.writes, key=_order)
            ],
        )

    def _write_value(self, codec: Codec, snapshot: Snapshot, write: WriteRow, shelf: Shelf) -> Any:
        layout = codec.write_layout(snapshot.thread, snapshot.row.ns, snapshot.row.id, write)
        return codec.value(snapshot.thread, write.channel, layout, shelf)

    def _query(
        self, config: RunnableConfig | None, wanted: dict[str, Any] | None, before: RunnableConfig | None
    ) -> Query:
        thread = ns = id = bound = None
        if config is not None:
            inner = configurable(config)
            place = place_of(config)
            thread, id = place.thread, place.id
            ns = place.ns if inner.get("checkpoint_ns") is not None else None
        if before is not None and (value := configurable(before).get("checkpoint_id")):
            bound = check_id(value, "before")
        if wanted is not None and not isinstance(wanted, Mapping):
            raise InvalidConfig(f"filter is {wanted!r}: it must be a dict of metadata", what="filter")
        match = None
        if wanted and self._shared.vault is None:
            codec = self._codec

            def match(header: bytes) -> bool:
                return _matches(codec.metadata("", "", "", header), wanted)

        return Query(thread, ns, id, bound, maintenance.searchable(wanted or {}), match)

    async def _page(
        self,
        side: _Side,
        query: Query,
        wanted: dict[str, Any] | None,
        after: tuple[str, ...] | None,
        limit: int | None,
    ) -> tuple[list[CheckpointTuple], tuple[str, ...] | None]:
        codec = self._codec
        with self._watch("list", query.thread or "") as event:
            store = await self._open(side)
            loaded = await store.page(query, after, PAGE if limit is None else min(limit, PAGE))
            shelves = {thread: codec.shelf(thread, packs) for thread, packs in loaded.packs.items()}
            for damage in loaded.damage:
                self._report("list", query.thread or "", damage)
            found: list[CheckpointTuple] = []
            for snapshot in loaded.snapshots:
                try:
                    item = self._tuple(codec, snapshot, shelves.get(snapshot.thread) or codec.shelf("", ()))
                except Corrupt as exc:
                    self._report("list", snapshot.thread, _named(exc, snapshot).message)
                    continue
                if wanted is None or _matches(item.metadata, wanted):
                    found.append(item)
            event.bytes = sum(len(pack.data) for packs in loaded.packs.values() for pack in packs)
            return found, loaded.cursor

    async def _history(
        self, side: _Side, place: Place, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        codec = self._codec
        writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Layout] = {}
        if not writes:
            return {}
        with self._watch("history", place.thread):
            store = await self._open(side)
            walked: set[str] = set()
            after: tuple[str, ...] | None = None
            while len(seeds) < len(writes):
                loaded = await store.lineage(place.thread, place.ns, place.id, list(writes), after, PAGE)
                if loaded is None:
                    break
                shelf = codec.shelf(place.thread, loaded.packs.get(place.thread, ()))
                for snapshot in loaded.snapshots:
                    if snapshot.row.id in walked:
                        loaded = replace(loaded, cursor=None)
                        break
                    walked.add(snapshot.row.id)
                    layouts = codec.header(place.thread, snapshot.row).layouts
                    for write in sorted(snapshot.writes, key=_order, reverse=True):
                        if write.channel in writes and write.channel not in seeds:
                            value = self._write_value(codec, snapshot, write, shelf)
                            writes[write.channel].append((write.task, write.channel, value))
                    seeds |= {ch: layouts[ch] for ch in writes if ch in layouts and ch not in seeds}
                after = loaded.cursor
                if after is None:
                    break
            spans = merge_spans(span for layout in seeds.values() for span in spans_of(layout))
            shelf = codec.shelf(place.thread, await store.fetch(place.thread, spans) if spans else ())
        result: dict[str, DeltaChannelHistory] = {}
        for channel, found in writes.items():
            result[channel] = {"writes": found[::-1]}
            if channel in seeds:
                result[channel]["seed"] = codec.value(place.thread, channel, seeds[channel], shelf)
        return result

    def _drafted(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[Codec, Place, Any]:
        place = place_of(config)
        id = check_id(checkpoint["id"], "checkpoint id")
        if not id:
            raise InvalidConfig("the checkpoint's id is empty", what="checkpoint id", value="''")
        codec = self._codec
        merged = full_metadata(config, metadata)
        draft = codec.draft(place.thread, place.ns, place.id, checkpoint, merged, new_versions)
        return codec, place, draft

    async def _put(self, side: _Side, codec: Codec, place: Place, draft: Any) -> RunnableConfig:
        shared = self._shared
        with self._watch("put", place.thread) as event:
            store = await self._open(side)
            if place.id is not None:
                key = (place.thread, place.ns, place.id)
                if ahead := shared.pending.ahead(key):
                    await side.wait(ahead)
                shared.pending.check(key)
            placed = codec.place(draft)
            answer = await store.put(place.thread, placed.row, placed.packs, placed.generation)
            if answer.stale:
                event.outcome = "stale"
                placed = codec.place(draft, everything=True)
                answer = await store.put(place.thread, placed.row, placed.packs, None)
            codec.learn(place.thread, placed, answer.generation)
            event.bytes = len(placed.row.header) + sum(len(pack.data) for pack in placed.packs)
            event.items_new, event.items_reused = len(placed.fresh), placed.reused
        return place.config(placed.row.id)

    def _drafted_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> tuple[Codec, Place, str, Any]:
        place = place_of(config)
        if place.id is None:
            raise InvalidConfig(
                f"put_writes for thread {place.thread!r} without a checkpoint_id: writes belong to a checkpoint",
                what="checkpoint_id",
                value="None",
            )
        task, path = check_id(task_id, "task_id"), check_id(task_path, "task_path")
        codec = self._codec
        for channel, _ in writes:
            check_id(channel, "channel")
        return codec, place, task, codec.draft_writes(place.thread, list(writes), task, path)

    async def _put_writes(self, side: _Side, codec: Codec, place: Place, task: str, drafts: Any) -> None:
        if not drafts:
            return
        thread, ns, id = place.thread, place.ns, cast("str", place.id)
        shared = self._shared
        op = shared.pending.begin((thread, ns, id), task)
        error: BaseException | None = None
        try:
            with self._watch("put_writes", thread) as event:
                store = await self._open(side)
                placed = codec.place_writes(thread, ns, id, drafts)
                answer = await store.put_writes(thread, ns, id, placed.rows, placed.generation)
                if answer.stale:
                    event.outcome = "stale"
                    placed = codec.place_writes(thread, ns, id, drafts, everything=True)
                    answer = await store.put_writes(thread, ns, id, placed.rows, None)
                codec.learn_writes(thread, placed, answer.accepted, answer.generation)
                event.bytes = sum(len(row.value) + len(row.pack.data if row.pack else b"") for row in placed.rows)
        except BaseException as exc:
            error = exc
            raise
        finally:
            shared.pending.end(op, error)

    async def _delete_thread(self, side: _Side, thread: str) -> None:
        with self._watch("delete_thread", thread):
            store = await self._open(side)
            await store.delete_thread(thread)
            self._codec.reset(thread)

    async def _prune(self, side: _Side, threads: Sequence[str], strategy: str) -> None:
        if strategy == "keep_latest":
            await self._maintain(side, maintenance.keep_latest, threads)
        elif strategy in ("delete", "delete_all"):
            for thread in threads:
                await self._delete_thread(side, thread)
        else:
            raise InvalidConfig(
                f"unknown prune strategy {strategy!r}: use 'keep_latest', or 'delete' (also 'delete_all')",
                what="strategy",
                value=repr(strategy),
            )

    async def _maintain(self, side: _Side, what: Callable[..., Any], *arguments: Any) -> None:
        with self._watch(what.__name__):
            await what(await self._open(side), self._codec, *arguments)

    async def _threads(self, side: _Side, after: tuple[str, ...] | None) -> Any:
        with self._watch("threads"):
            return await (await self._open(side)).threads(after, PAGE)

    async def _stats(self, side: _Side, thread: str | None) -> Stats:
        name = None if thread is None else check_thread(thread)
        with self._watch("stats", name or ""):
            return await (await self._open(side)).stats(name)


def _order(write: WriteRow) -> tuple[str, str, int]:
    return writes_sort_key(write.path, write.task, write.idx)


def _matches(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(key) == value for key, value in wanted.items())


def _named(exc: MilepostError, snapshot: Snapshot) -> Corrupt:
    row = snapshot.row
    where = f"checkpoint {row.id!r} of thread {snapshot.thread!r}" + (f", namespace {row.ns!r}" if row.ns else "")
    return Corrupt(
        f"{where} is damaged: {exc.message}",
        **{**exc.facts, "thread": snapshot.thread, "ns": row.ns, "checkpoint": row.id},
    )
