"""The saver: LangGraph's checkpointer over any store. What a method does is a coroutine of `milepost.operations`."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, cast, get_args

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from milepost import maintenance, overview
from milepost.codec import Codec, Memory, Vault
from milepost.codec.drafts import Draft, DraftWrite
from milepost.codec.values import Serializer
from milepost.errors import InvalidConfig
from milepost.flavour import run
from milepost.heads import FORK, Named
from milepost.keeping import Keeping
from milepost.lease import ThreadLease, terms_of
from milepost.observe import Listener
from milepost.operations import Operations
from milepost.places import (
    NAMED,
    Place,
    check_callable,
    check_channels,
    check_checkpoint,
    check_dict,
    check_id,
    check_limit,
    check_list,
    check_thread,
    check_writes,
    configurable,
    full_metadata,
    place_of,
)
from milepost.reading import query_of
from milepost.runs import Run
from milepost.schema import Schema, Schemas
from milepost.shared import Shared
from milepost.sides import AsyncSide, BlockingSide
from milepost.store import Backend, Query, Stats, Status, ThreadRow
from milepost.tenants import TenantBackend
from milepost.units import flag
from milepost.versions import next_version

SaverT = TypeVar("SaverT", bound="Saver")

GUARDS = ("none", "head")
"""What the option ``guard`` may be."""


class _Done:
    """Awaitable, any number of times, without effect."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


_DONE = _Done()


class Saver(Keeping, BaseCheckpointSaver[str]):
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
        guard: with "head", a step of a run is put only on the thread's latest checkpoint; if another run, or an update,
            came in between, it raises `Conflict`. Forks, updates and namespaces of subgraphs are not checked, nor is
            what goes on from a checkpoint that was read by its id: time travel.
        schema: the version of the graph's state and how older checkpoints become ones of it; or a dict from namespaces
            to such. See `milepost.schema`. Without one, what is stored is taken as it is.

        tenant: see only the threads of this tenant. What a saver of one tenant is asked for is never found among the
            threads of another, whatever the ids; a saver without a tenant sees all there is, under names that
            begin with the tenant's.

    Where there is a schema, reading raises `SchemaMismatch` for what it does not lead from.
    Every method raises `InvalidConfig` or `TooLarge` for arguments that cannot be right, before anything is read or
    written; `Unavailable` when the store cannot be reached; `Corrupt`, `FormatTooNew` or `Unserializable` for what
    cannot be read.
    """

    place: str = ""
    """Where the store is, as the URL says it, without options and credentials; "" if it was opened without a URL."""

    def __init__(
        self,
        backend: Backend,
        *,
        serde: SerializerProtocol | None = None,
        keys: Mapping[str, bytes] | None = None,
        memory: int = 64 << 20,
        setup: bool = True,
        schema: Schema | Mapping[str, Schema] | None = None,
        guard: str = "none",
        tenant: str | None = None,
    ) -> None:
        _check_arguments(serde, keys)
        if guard not in GUARDS:
            raise InvalidConfig(f"guard is {guard!r}: it must be {' or '.join(map(repr, GUARDS))}", what="guard")
        schemas = None if schema is None else Schemas(schema)
        super().__init__(serde=serde or Serializer())
        self._shared = Shared(
            backend if tenant is None else TenantBackend(backend, tenant),
            None if keys is None else Vault(keys, tenant=tenant),
            Memory(memory, merging="merging" in backend.capabilities),
            setup=setup,
            schemas=schemas,
            guards=guard == "head",
        )
        self._bound: tuple[SerializerProtocol, Operations] | None = None

    # Life.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        place = self.place or self._shared.backend.name
        return f"<{type(self).__name__} of {place}{', closed' if self._shared.closed else ''}>"

    def __copy__(self) -> Self:
        clone = object.__new__(type(self))
        vars(clone).update(vars(self))
        return clone

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied deeply: open the store by its URL where it is to be used"
        )

    def close(self) -> None:
        """Give back connections and files, for all clones of this saver. Idempotent."""
        self._shared.closed = True
        self._shared.backend.close()

    async def aclose(self) -> None:
        """`close` for callers inside an event loop."""
        self._shared.closed = True
        await self._shared.backend.aclose()

    def setup(self) -> Awaitable[None]:
        """Create or upgrade the store. Happens by itself on first use; safe to repeat, and from many processes.

        Done when it returns. What it returns may be awaited, as with LangGraph's async savers, and need not be.
        """
        run(self._ops.open(self._blocking(), anew=True))
        return _DONE

    async def asetup(self) -> None:
        """`setup`, async."""
        await self._ops.open(self._async(), anew=True)

    def observe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with a `milepost.observe.Event` for each operation; returns how to stop that."""
        return self._shared.observers.add(check_callable(listener, "listener"))

    @property
    def schemas(self) -> Schemas | None:
        """The schemas it was given, by namespace; None without one."""
        return self._shared.schemas

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
        return run(self._ops.get_tuple(self._blocking(), *self._asked(config)))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """`get_tuple`, async."""
        return await self._ops.get_tuple(self._async(), *self._asked(config))

    def question_ids(self, config: RunnableConfig) -> dict[str, str]:
        """The ids of the questions (interrupts) that wait at the checkpoint of `config`: of each the id of now, and,
        where the schema declares that nodes were renamed, every id that it had before -> its id of now.

        LangGraph makes these ids of the names of nodes, and takes an answer to an id that it does not know for none:
        who has kept ids of questions from a former release looks them up here, and resumes with what is found.
        """
        return run(self._ops.question_ids(self._blocking(), place_of(config)))

    async def aquestion_ids(self, config: RunnableConfig) -> dict[str, str]:
        """`question_ids`, async."""
        return await self._ops.question_ids(self._async(), place_of(config))

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

        Nothing is held open between two checkpoints. A damaged one is reported and left out; so is, where `config` is None,
        one that cannot be read for another reason. Of a thread that is named, that is raised.
        """
        query = query_of(self._ops.codec, config, filter, before)
        return self._list(query, filter, check_limit(limit))

    def _list(self, query: Query, wanted: dict[str, Any] | None, limit: int | None) -> Iterator[CheckpointTuple]:
        after: tuple[str, ...] | None = None
        most = limit
        while limit is None or limit > 0:
            found, after = run(self._ops.page(self._blocking(), query, wanted, after, most))
            yield from found[:limit]
            if after is None:
                return
            limit, most = _left(limit, most, len(found))

    async def _alist(
        self, query: Query, wanted: dict[str, Any] | None, limit: int | None
    ) -> AsyncIterator[CheckpointTuple]:
        after: tuple[str, ...] | None = None
        most = limit
        while limit is None or limit > 0:
            found, after = await self._ops.page(self._async(), query, wanted, after, most)
            for item in found[:limit]:
                yield item
            if after is None:
                return
            limit, most = _left(limit, most, len(found))

    def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """`list`, async."""
        query = query_of(self._ops.codec, config, filter, before)
        return self._alist(query, filter, check_limit(limit))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The writes and the seed that rebuild delta channels, read along the parents in pages.

        The contract is LangGraph's (``BaseCheckpointSaver.get_delta_channel_history``); a chain of parents that was
        made a cycle ends where it closes. Raises `Corrupt` if something is damaged on the way, which says from where it can
        be gone on (see there).
        """
        return run(self._ops.history(self._blocking(), place_of(config), check_channels(channels)))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """`get_delta_channel_history`, async."""
        return await self._ops.history(self._async(), place_of(config), check_channels(channels))

    def threads(self, *, status: Status | None = None) -> Iterator[ThreadRow]:
        """All threads, or those of this `milepost.store.ThreadRow.status`, in an order of the store's own, without
        reading any channel data. Of threads whose owner crashed or failed the latest checkpoint's header is read."""
        return self._threads(_status(status))

    def _threads(self, status: Status | None) -> Iterator[ThreadRow]:
        after: tuple[str, ...] | None = None
        while True:
            page = run(overview.with_statuses(self._ops, self._blocking(), after))
            yield from (row for row in page.rows if status in (None, row.status))
            if (after := page.cursor) is None:
                return

    def athreads(self, *, status: Status | None = None) -> AsyncIterator[ThreadRow]:
        """`threads`, async."""
        return self._athreads(_status(status))

    async def _athreads(self, status: Status | None) -> AsyncIterator[ThreadRow]:
        after: tuple[str, ...] | None = None
        while True:
            page = await overview.with_statuses(self._ops, self._async(), after)
            for row in page.rows:
                if status in (None, row.status):
                    yield row
            if (after := page.cursor) is None:
                return

    def stats(self, thread_id: str | None = None) -> Stats:
        """Counts and bytes of a thread, or of the store."""
        return run(self._ops.stats(self._blocking(), thread_id))

    async def astats(self, thread_id: str | None = None) -> Stats:
        """`stats`, async."""
        return await self._ops.stats(self._async(), thread_id)

    # Who drives a thread.

    def lease(
        self,
        thread_id: str,
        *,
        ttl: float = 30.0,
        wait: float | None = 0.0,
        steal: bool | str = False,
        owner: str | None = None,
    ) -> ThreadLease:
        """The lease of a thread, to be used as ``with saver.lease(…):`` or ``async with``.

        In the block this code drives the thread, and whoever else asks for the lease waits or is refused. Every put and
        every pending write of the thread made in the block (in LangGraph's threads and tasks too) carries the fence of
        the lease, and raises `LeaseLost`, storing nothing, once another one has taken the thread. Inside the block the
        same thread may be leased again: that is the same lease. Writes made outside of a lease are not checked.

        Args:
            thread_id: the thread; it need not exist.
            ttl: seconds after which the lease of an owner who crashed is over, by the store's clock. A thread, or a
                task, renews it at a third of that.
            wait: how many seconds to wait for a lease that somebody else holds; None is for ever.
            steal: take it over then: from anybody, or only from the owner of this name (see `Busy`).
            owner: a name for errors and listings; by default host and process. Each lease adds a part of its own.

        Entering raises `Busy` when somebody else holds it, and `Unavailable`.
        """
        openers = (lambda: self._ops.open(self._blocking()), lambda: self._ops.open(self._async()))
        shared = self._shared
        terms = terms_of(ttl, wait, steal, owner)
        return ThreadLease(shared, check_thread(thread_id), terms, openers, shared.observers)

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
        raises, until its task writes again or the parent is read again. (A blocking put inside a running event loop
        cannot wait for async writes of that same loop.) Putting an id again replaces it, and does not make it the latest.

        Raises `Unserializable` (with channel and path), and `ThreadDeleted` for a late put of a deleted thread.
        """
        return run(self._ops.put(self._blocking(), *self._draft(config, checkpoint, metadata, new_versions)))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """`put`, async. Cancelled, it has stored all or nothing by the time the await ends."""
        return await self._ops.put(self._async(), *self._draft(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the pending writes of a task, also before their checkpoint is put.

        An ordinary write is stored only if its place (task, position) is empty; a special one (error, interrupt,
        resume, scheduled) replaces the one before. Decided write by write.
        """
        run(self._ops.put_writes(self._blocking(), *self._draft_writes(config, writes, task_id, task_path)))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """`put_writes`, async. Cancelled, it has stored all or nothing by the time the await ends."""
        await self._ops.put_writes(self._async(), *self._draft_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str, *, force: bool = False) -> None:
        """Remove everything of a thread, in all namespaces. Late writes of its past are refused from then on.

        Raises `UnsettledCalls` when the ledger has calls of the thread of which nobody knows whether they changed the
        world; with `force` the records of those calls stay, and everything else goes.
        """
        run(self._ops.delete_thread(self._blocking(), check_thread(thread_id), force=flag(force, "force")))

    async def adelete_thread(self, thread_id: str, *, force: bool = False) -> None:
        """`delete_thread`, async."""
        await self._ops.delete_thread(self._async(), check_thread(thread_id), force=flag(force, "force"))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of these runs (metadata ``run_id``), in all threads, with their writes.

        Children of what goes are given to the nearest ancestor that stays. What a delta channel of a checkpoint that
        stays is rebuilt from, stays too.
        """
        run(self._ops.maintain(self._blocking(), maintenance.delete_for_runs, check_list(run_ids, "run_ids")))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """`delete_for_runs`, async."""
        await self._ops.maintain(self._async(), maintenance.delete_for_runs, check_list(run_ids, "run_ids"))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of a thread: all namespaces, history, writes and order. A no-op without a source. Safe to repeat.
        Holds the lease of the target meanwhile, unless a run does: maintenance leaves it alone.

        Raises `Conflict` when the target has checkpoints that the source has not, and when the source is shortened, or one
        of the two deleted, meanwhile: what was copied by then may be left of the target.
        """
        source, target = check_thread(source_thread_id, "source"), check_thread(target_thread_id, "target")
        run(self._ops.copy_thread(self._blocking(), source, target))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """`copy_thread`, async."""
        source, target = check_thread(source_thread_id, "source"), check_thread(target_thread_id, "target")
        await self._ops.copy_thread(self._async(), source, target)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Shorten threads.

        ``keep_latest`` keeps the latest checkpoint of each namespace with its writes, writes that wait for their
        checkpoint, and the ancestors that its delta channels are rebuilt from; ``delete`` (or ``delete_all``, as
        LangGraph's server says) removes everything. Unknown threads are skipped. The namespace of a single call of a
        subgraph goes with the root checkpoint that made the call. Pinned checkpoints stay, with what replaying them reads;
        so does what going on from a latest checkpoint reads that is a fork, or an update.
        A lease is not asked for: `maintain` leaves threads alone that somebody drives.

        Raises `Conflict` when a thread is written to faster than it can be planned.
        """
        run(self._ops.prune(self._blocking(), check_list(thread_ids, "thread_ids"), strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """`prune`, async."""
        await self._ops.prune(self._async(), check_list(thread_ids, "thread_ids"), strategy)

    def get_next_version(self, current: Any, channel: None = None) -> Any:
        """The version after `current`: see `milepost.versions.next_version`."""
        return next_version(current)

    # For the parts of Milepost that stand on a saver.

    @property
    def operations(self) -> Operations:
        """What the methods do, with the serializer of now."""
        return self._ops

    def blocking_side(self) -> BlockingSide:
        """The store, for callers that block."""
        return self._blocking()

    def async_side(self) -> AsyncSide:
        """The store, for callers in the running event loop."""
        return self._async()

    @property
    def _ops(self) -> Operations:
        # Read at call time: clones carry another serializer, and users assign one after construction.
        serde = self.serde
        if self._bound is None or self._bound[0] is not serde:
            if (schemas := self._shared.schemas) is not None:
                _check_serde(schemas, serde)
            self._bound = (serde, Operations(self._shared, Codec(serde, self._shared.memory, self._shared.vault)))
        return self._bound[1]

    def _blocking(self) -> BlockingSide:
        return self._shared.blocking()

    def _async(self) -> AsyncSide:
        return self._shared.asynchronous()

    def _asked(self, config: RunnableConfig) -> tuple[Place, Mapping[str, str] | None, Run | None]:
        place = place_of(config)
        return place, self._above(config), self._shared.runs.reads(place, config.get("configurable", {}))

    def _draft(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[Place, Draft, object, Run | None]:
        place, id = place_of(config), check_checkpoint(checkpoint)
        check_dict(new_versions, "new_versions")
        codec, merged = self._ops.codec, full_metadata(config, metadata)
        schemas = self._shared.schemas
        schema = None if schemas is None else schemas.of(place.ns)
        known = None if schema is None else schema.shape.channels
        stamp = None if schemas is None else schemas.stamp(place.ns, checkpoint["channel_values"])
        spaces = self._shared.spaces
        ns = place.ns if spaces is None else spaces.known(place.thread, place.ns)
        if spaces is not None and (named := spaces.named(place.ns)):
            merged = cast("CheckpointMetadata", {**merged, NAMED: named})
        draft = codec.draft(place.thread, ns, id, place.id, checkpoint, merged, new_versions, stamp, known)
        inner = config.get("configurable", {})
        source = FORK if isinstance(inner.get("checkpoint_id"), Named) else metadata.get("source")
        return place, draft, source, self._shared.runs.of(place, inner)

    def _draft_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> tuple[Place, builtins.list[DraftWrite], Run | None]:
        place = place_of(config)
        if place.id is None:
            raise InvalidConfig(
                f"put_writes for thread {place.thread!r} without a checkpoint_id: writes belong to a checkpoint",
                what="checkpoint_id",
                value="None",
            )
        task, path = check_id(task_id, "task_id"), check_id(task_path, "task_path")
        named = check_writes(writes)
        schemas = self._shared.schemas
        stamp = None if schemas is None else schemas.write_stamp(place.ns, named)
        drafts = self._ops.codec.draft_writes(place.thread, named, task, path, stamp)
        return place, drafts, self._shared.runs.of(place, config.get("configurable", {}))

    def _above(self, config: RunnableConfig) -> Mapping[str, str] | None:
        """The checkpoints that called the subgraph of `config`, by namespace, where that matters."""
        found = None if self._shared.spaces is None else configurable(config).get("checkpoint_map")
        return found if isinstance(found, Mapping) else None


def _status(status: Status | None) -> Status | None:
    if status is not None and status not in get_args(Status):
        raise InvalidConfig(
            f"status is {status!r}: it must be one of {', '.join(map(repr, get_args(Status)))}",
            what="status",
            value=repr(status),
        )
    return status


def _left(limit: int | None, most: int | None, found: int) -> tuple[int | None, int | None]:
    """How many checkpoints are wanted still, and how many to look at next: where a filter passes few, more each time."""
    return (None, None) if limit is None or most is None else (limit - found, 2 * most)


def _check_serde(schemas: Schemas, serde: object) -> None:
    if schemas.renames_classes and (not isinstance(serde, Serializer) or serde.custom):
        raise InvalidConfig(
            "the schema's upgrades rename classes, which needs Milepost's own serializer: leave serde out, or pass a "
            "milepost.codec.values.Serializer without an ext hook of your own",
            what="serde",
            value=repr(serde)[:200],
        )


def _check_arguments(serde: object, keys: object) -> None:
    if serde is not None and not any(
        all(callable(getattr(serde, name, None)) for name in pair)
        for pair in (("dumps_typed", "loads_typed"), ("dumps", "loads"))
    ):
        raise InvalidConfig(
            f"serde is {serde!r}: it must have dumps_typed and loads_typed, as LangGraph's serializers do", what="serde"
        )
    if keys is not None and not (
        isinstance(keys, Mapping)
        and all(isinstance(name, str) and isinstance(key, bytes) for name, key in keys.items())
    ):
        raise InvalidConfig("keys must be a dict from key ids (str) to keys (bytes)", what="keys")
