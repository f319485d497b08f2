"""What a saver offers to keep its threads small, and of the version that the code declares: the methods of
`milepost.saver.Saver` that no run calls."""

from __future__ import annotations

import inspect
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict, Unpack, cast

from langchain_core.runnables import RunnableConfig

from milepost import chores, overview
from milepost.archive import ArchiveFolder
from milepost.compacting import Compaction
from milepost.compaction import Compactor
from milepost.errors import InvalidConfig, Unavailable
from milepost.flavour import run
from milepost.lease import ThreadLease
from milepost.maintaining import MAINTAINER, TTL, Growth, Maintaining
from milepost.migrating import MODES, Cursor, Migrated, Mode
from milepost.operations import Operations
from milepost.places import check_callable, check_id, check_list, check_path, check_thread, place_of
from milepost.retention import Retention
from milepost.sides import AsyncSide, BlockingSide
from milepost.sweeping import Swept
from milepost.tenants import TenantBackend
from milepost.units import Duration, Size, flag, seconds, size
from milepost.upkeep import Erased, Hooks, Order, Progress, Report, Restored, policies_of


class Options(TypedDict, total=False):
    """What `milepost.saver.Saver.maintain` and its like take by name."""

    threads: Sequence[str] | None
    """Their ids; all of the store's with None. Unknown ones are skipped."""
    compact: Compactor | Sequence[Compactor]
    """One compactor or several, each seeing what those before it made: see `milepost.compaction`."""
    compact_namespace: str
    """Whose latest checkpoint is made smaller: the graph's, which is "" and the default, or that of a subgraph that
    remembers (``checkpointer=True``), such as "child"."""
    compact_over: Size | None
    """Only of threads whose latest checkpoint occupies more than this."""
    quiet: Duration
    """Only of threads whose latest checkpoint was put longer ago than this, a minute by default: a run that has read it
    goes on from it."""
    graph: Any
    """The compiled graph (or subgraph) of that namespace, so that its delta channels can be compacted too; they are left
    alone without it."""
    hooks: Hooks | None
    """What to call around each thread."""
    merge: bool
    """Whether to merge packs. True by default."""
    clock: Callable[[], float]
    """What time it is, in seconds since the epoch."""


class Keeping(ABC):
    """Maintenance and migration of the threads of a saver."""

    @property
    @abstractmethod
    def _ops(self) -> Operations: ...

    @abstractmethod
    def _blocking(self) -> BlockingSide: ...

    @abstractmethod
    def _async(self) -> AsyncSide: ...

    @abstractmethod
    def lease(
        self,
        thread_id: str,
        *,
        ttl: float = 30.0,
        wait: float | None = 0.0,
        steal: bool | str = False,
        owner: str | None = None,
    ) -> ThreadLease:
        """See `milepost.saver.Saver.lease`."""

    @property
    def tenant(self) -> str | None:
        """Whose threads this saver sees; None for the whole store."""
        backend = self._ops.shared.backend
        return backend.tenant if isinstance(backend, TenantBackend) else None

    def erase_tenant(self, *, force: bool = False) -> int:
        """Delete all threads of this saver's tenant, and tell how many there were: see `Saver.delete_thread`.

        What the ledger has of the tenant goes, too; with `force`, all but the records of unsettled calls.

        Raises `InvalidConfig` for a saver without a tenant.
        """
        return run(self._erase_tenant(self._blocking(), force=flag(force, "force")))

    async def aerase_tenant(self, *, force: bool = False) -> int:
        """`erase_tenant`, async."""
        return await self._erase_tenant(self._async(), force=flag(force, "force"))

    async def _erase_tenant(self, side: BlockingSide | AsyncSide, *, force: bool) -> int:
        if self.tenant is None:
            raise InvalidConfig(
                "this saver has no tenant, and does not erase a whole store: connect with tenant=…", what="tenant"
            )
        names: dict[str, None] = {}
        after: tuple[str, ...] | None = None
        while True:
            page = await self._ops.threads(side, after)
            names |= dict.fromkeys(row.thread for row in page.rows)
            if (after := page.cursor) is None:
                break
        begun = await overview.alone(self._ops, side) | await overview.called(self._ops, side)
        for name in {**names, **dict.fromkeys(sorted(begun))}:
            await self._ops.delete_thread(side, name, force=force)
        return len(names)

    def maintain(
        self,
        policy: Retention | Sequence[Retention] | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        **options: Unpack[Options],
    ) -> Report:
        """Make the latest checkpoint of threads smaller, shorten them by policy, give back what nothing refers to, and
        merge small packs into large ones.

        Compaction enters a new checkpoint whose parent is the latest one of the namespace, unless somebody waits there, a
        task of the next superstep has begun, or it is not `quiet` yet. No node runs because of it.

        Args:
            policy: what stays; of several, the first whose patterns match speaks for a thread and a namespace. None
                keeps every checkpoint.
            dry_run: change nothing; the report says what would be done, exactly, if nothing else happens.
            progress: called after each thread with how many were looked at, and what became of it.
            options: see `Options`.

        Runs may go on meanwhile. A thread that is written to is planned anew; after some tries it is left for another
        time ("moved"). A put waits for one step at most: `milepost.maintenance.STEP` rows, or `STEP_BYTES`.
        What happens to one thread, such as an error of a hook, stops no other; `Unavailable` ends it all.
        """
        order = replace(
            _order(policy, self.tenant, **options), dry_run=flag(dry_run, "dry_run"), progress=_progress(progress)
        )
        return run(chores.keep(self._ops, self._blocking(), order))

    async def amaintain(
        self,
        policy: Retention | Sequence[Retention] | None = None,
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
        **options: Unpack[Options],
    ) -> Report:
        """`maintain`, async. Hooks may be coroutine functions."""
        order = replace(
            _order(policy, self.tenant, **options), dry_run=flag(dry_run, "dry_run"), progress=_progress(progress)
        )
        return await chores.keep(self._ops, self._async(), order)

    def maintaining(
        self,
        policy: Retention | Sequence[Retention] | None = None,
        *,
        every: Duration = "5m",
        grown: Size | None = None,
        **options: Unpack[Options],
    ) -> Maintaining:
        """`maintain` in the background, while a ``with`` or ``async with`` block runs: at once, and then each `every`.

        Of all processes that use the store, one does it at a time; when that one ends, another takes over. The process
        that does it looks at a thread of its own without waiting, and without a scan, as soon as `quiet` is over, when

        - it has put `grown` bytes to it since it last looked, or
        - there is something to compact and the latest checkpoint has passed `compact_over`, by what the put knows: the
          bytes of its values before they are compressed, as far as this process has encoded them.

        Raises `Unavailable` for a saver that is closed.
        """
        order = _order(policy, self.tenant, **options)
        shared = self._ops.shared
        if shared.closed:
            raise Unavailable("the saver is closed: open it again", backend=shared.backend.name, op="maintaining")

        def over(names: Sequence[str] | None) -> Order:
            return replace(order, threads=order.threads if names is None else tuple(names), stop=manager.stopping)

        def once(names: Sequence[str] | None) -> Report:
            return run(chores.keep(self._ops, self._blocking(), over(names)))

        async def aonce(names: Sequence[str] | None) -> Report:
            return await chores.keep(self._ops, self._async(), over(names))

        def watch(growth: Growth | None) -> None:
            shared.growth = growth

        by, over_head = None if grown is None else size(grown, "grown"), order.compaction.over
        if not order.compaction.compactors:
            over_head = None
        growth = None
        if by is not None or over_head is not None:
            growth = Growth(by, over_head, order.compaction.ns, order.threads)
        lease = partial(self.lease, MAINTAINER, ttl=TTL, wait=0)
        manager = Maintaining(lease, (once, aonce), seconds(every, "every"), order.compaction.quiet, growth, watch)
        return manager

    def erase(
        self, thread_ids: Sequence[str], *, hooks: Hooks | None = None, force: bool = False
    ) -> tuple[Erased, ...]:
        """Remove everything of these threads: all namespaces, pending writes, items, attachments, records of calls, and
        what the `erase` of `hooks` removes from an archive.

        One that has unsettled calls in the ledger is left, and told, unless `force`: then the records of those stay.
        What stays of a thread is that it was deleted: its id, and ids of checkpoints, so that late writes are refused.
        """
        names, given = check_list(thread_ids, "thread_ids"), _hooks(hooks, self.tenant)
        flag(force, "force")
        return tuple(run(chores.erase(self._ops, self._blocking(), name, given, force=force)) for name in names)

    async def aerase(
        self, thread_ids: Sequence[str], *, hooks: Hooks | None = None, force: bool = False
    ) -> tuple[Erased, ...]:
        """`erase`, async."""
        names, given = check_list(thread_ids, "thread_ids"), _hooks(hooks, self.tenant)
        flag(force, "force")
        return tuple([await chores.erase(self._ops, self._async(), name, given, force=force) for name in names])

    def sweep(self, *, hooks: Hooks | None = None, dry_run: bool = False) -> Swept:
        """Find and remove what copies, restorations, deletions and erasures have left that were interrupted, and what
        deletions have left on purpose when it counts no more. With the `hooks` of the archive, also of its folder.

        Safe while the application runs: a thread is left alone while somebody holds its lease, as each copy and
        restoration does. What may still be used stays: tombstones for their time, records of calls, and threads with
        checkpoints. Of these, those that a copy or restoration has filled half are told, with what to do.

        A thread is looked at in bounded requests, each of a few threads. `Unavailable` ends a sweep; repeat it.
        """
        given = _hooks(hooks, self.tenant)
        return run(chores.sweep(self._ops, self._blocking(), given, dry_run=flag(dry_run, "dry_run")))

    async def asweep(self, *, hooks: Hooks | None = None, dry_run: bool = False) -> Swept:
        """`sweep`, async."""
        given = _hooks(hooks, self.tenant)
        return await chores.sweep(self._ops, self._async(), given, dry_run=flag(dry_run, "dry_run"))

    def restore(self, path: str | os.PathLike[str], thread_id: str | None = None) -> Restored:
        """Load an archive that `milepost.archive.ArchiveFolder` wrote: into the thread it is of, if nothing is left of
        that, or into `thread_id`.

        Checkpoints have the parents that they had when they were first archived: one whose parent had gone before has none.
        With them are the ancestors that their delta channels are rebuilt from. Safe to repeat. Keys that sealed what is
        archived must be among the saver's.

        Raises `Conflict` when the thread has checkpoints that are not in the archive, or is deleted meanwhile, and
        `Corrupt`.
        """
        name = None if thread_id is None else check_thread(thread_id)
        return run(chores.restore(self._ops, self._blocking(), check_path(path, "path"), name))

    async def arestore(self, path: str | os.PathLike[str], thread_id: str | None = None) -> Restored:
        """`restore`, async."""
        name = None if thread_id is None else check_thread(thread_id)
        return await chores.restore(self._ops, self._async(), check_path(path, "path"), name)

    def pin(self, config: RunnableConfig) -> RunnableConfig:
        """Have a checkpoint kept, whatever its age, until `unpin` or its thread's deletion, or that of its run: without a
        checkpoint id the one that is latest now. Returns its config.

        Its metadata has a true "pinned" from then on, and so has a copy of it. Nothing else of it changes, and a run that
        goes on from it does not notice.

        Raises `InvalidConfig` when there is no such checkpoint.
        """
        return run(chores.pin(self._ops, self._blocking(), place_of(config), value=True))

    async def apin(self, config: RunnableConfig) -> RunnableConfig:
        """`pin`, async."""
        return await chores.pin(self._ops, self._async(), place_of(config), value=True)

    def unpin(self, config: RunnableConfig) -> RunnableConfig:
        """Take back `pin`, and any other "pinned" in a checkpoint's metadata. Otherwise as `pin`."""
        return run(chores.pin(self._ops, self._blocking(), place_of(config), value=False))

    async def aunpin(self, config: RunnableConfig) -> RunnableConfig:
        """`unpin`, async."""
        return await chores.pin(self._ops, self._async(), place_of(config), value=False)

    def attachment(self, thread_id: str, address: str) -> str | bytes | None:
        """What compaction moved out of the thread's state to `address`; None when there is no such attachment."""
        return run(
            chores.attachment(self._ops, self._blocking(), check_thread(thread_id), check_id(address, "address"))
        )

    async def aattachment(self, thread_id: str, address: str) -> str | bytes | None:
        """`attachment`, async."""
        return await chores.attachment(self._ops, self._async(), check_thread(thread_id), check_id(address, "address"))

    def migrate(
        self,
        threads: Sequence[str] | None = None,
        *,
        mode: Mode = "rewrite",
        history: bool = False,
        after: str | None = None,
    ) -> Iterator[Migrated]:
        """Rewrite what is stored to the saver's schema, thread by thread; yields what became of each.

        Safe while the application runs, to be stopped at any moment and to be repeated: a checkpoint is rewritten in its
        place, in one step, if nothing of the thread was written since it was looked at, and read back and compared. A
        repetition reads the headers of each thread, and rewrites what is left.

        Args:
            threads: their ids; None is all.
            mode: "rewrite"; "dry-run", which tells what would be rewritten or refused and writes nothing; "finalise",
                which removes what is kept of rewritten checkpoints; or "undo", which puts that back.
            history: all checkpoints, and not only the latest of each namespace (with the ancestors that its delta
                channels are rebuilt from).
            after: the `Migrated.cursor` of an earlier run over all threads: those before it are not looked at. What was
                stored there since by an older release stays as it is.

        Raises `Conflict` when a thread is written to all the time, and `Corrupt` when a checkpoint was not read back as
        it was rewritten (it was put back then). A checkpoint that cannot be upgraded is told in `Migrated.refused`.
        """
        flag(history, "history")
        names, cursor = _migration(self._ops, mode, threads, after)
        return self._migrate(names, cursor, mode, history=history)

    def _migrate(self, names: Sequence[str] | None, cursor: Cursor, mode: Mode, *, history: bool) -> Iterator[Migrated]:
        for thread in names or ():
            yield run(self._ops.migrate(self._blocking(), thread, mode, history=history))
        while names is None:
            page = run(self._ops.threads(self._blocking(), cursor.page))
            for thread in cursor.rest([row.thread for row in page.rows]):
                done = run(self._ops.migrate(self._blocking(), thread, mode, history=history))
                yield replace(done, cursor=str(Cursor(cursor.page, thread)))
            if page.cursor is None:
                return
            cursor = Cursor(page.cursor)

    def amigrate(
        self,
        threads: Sequence[str] | None = None,
        *,
        mode: Mode = "rewrite",
        history: bool = False,
        after: str | None = None,
    ) -> AsyncIterator[Migrated]:
        """`migrate`, async."""
        flag(history, "history")
        names, cursor = _migration(self._ops, mode, threads, after)
        return self._amigrate(names, cursor, mode, history=history)

    async def _amigrate(
        self, names: Sequence[str] | None, cursor: Cursor, mode: Mode, *, history: bool
    ) -> AsyncIterator[Migrated]:
        for thread in names or ():
            yield await self._ops.migrate(self._async(), thread, mode, history=history)
        while names is None:
            page = await self._ops.threads(self._async(), cursor.page)
            for thread in cursor.rest([row.thread for row in page.rows]):
                done = await self._ops.migrate(self._async(), thread, mode, history=history)
                yield replace(done, cursor=str(Cursor(cursor.page, thread)))
            if page.cursor is None:
                return
            cursor = Cursor(page.cursor)


def _progress(progress: object) -> Progress | None:
    return None if progress is None else check_callable(progress, "progress")


def _hooks(hooks: object, tenant: str | None) -> Hooks:
    if hooks is not None and not isinstance(hooks, Hooks):
        raise InvalidConfig(f"hooks is {hooks!r}: it must be an instance of a subclass of milepost.Hooks", what="hooks")
    if isinstance(hooks, ArchiveFolder) and hooks.tenant != tenant:
        raise InvalidConfig(
            f"hooks is an archive for tenant {hooks.tenant!r}, and this saver's is {tenant!r}: pass "
            f"ArchiveFolder({str(hooks.folder)!r}, tenant={tenant!r})",
            what="hooks",
        )
    return hooks or Hooks()


def _takes_two(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # one of C, which does not say
        return True
    return True


def _compaction(compact: object, ns: object, over: object, quiet: object, graph: object) -> Compaction:
    compactors = tuple(compact) if isinstance(compact, Sequence) else (compact,)
    for compactor in compactors:
        if not callable(compactor):
            raise InvalidConfig(
                f"compact is {compactor!r}: it must be a compactor, such as milepost.compaction.trim_messages(last=50), "
                "or a list of them",
                what="compact",
            )
        if str(getattr(compactor, "__module__", "")).startswith("langchain_core."):
            raise InvalidConfig(
                f"compact is {compactor!r}, which is LangChain's and no compactor: use milepost.compaction.trim_messages",
                what="compact",
            )
        if not _takes_two(compactor):
            name = getattr(compactor, "__qualname__", repr(compactor))
            raise InvalidConfig(
                f"compact is {name}, which cannot be called with a state and a context: if it makes compactors, pass "
                f"what it returns, {name}(…), or the name of that",
                what="compact",
            )
    if not isinstance(ns, str):
        raise InvalidConfig(f"compact_namespace is {ns!r}: it must be a text", what="compact_namespace")
    if ":" in (space := check_id(ns, "compact_namespace")):
        raise InvalidConfig(
            f"compact_namespace is {ns!r}: nothing goes on from the namespace of a single call; name that of the graph "
            '("") or of a subgraph that remembers, such as "child"',
            what="compact_namespace",
        )
    channels = getattr(graph, "channels", {} if graph is None else None)
    if not isinstance(channels, Mapping):
        raise InvalidConfig(f"graph is {graph!r}: it must be a compiled graph", what="graph")
    return Compaction(
        compactors=cast("tuple[Compactor, ...]", compactors),
        ns=space,
        over=None if over is None else size(over, "compact_over"),
        quiet=0.0 if quiet in (0, "0", "0s") else seconds(quiet, "quiet"),
        channels=cast("Mapping[str, Any]", channels),
    )


def _migration(ops: Operations, mode: object, threads: object, after: object) -> tuple[Sequence[str] | None, Cursor]:
    """Which threads are meant, or from where on."""
    if mode not in MODES:
        raise InvalidConfig(f"mode is {mode!r}: it must be one of {', '.join(MODES)}", what="mode", value=repr(mode))
    if ops.shared.schemas is None and mode not in ("dry-run", "finalise"):
        raise InvalidConfig("a saver without a schema cannot migrate: pass schema=…", what="schema", value="None")
    if threads is not None and after is not None:
        raise InvalidConfig("after is for a run over all threads: leave it out, or the threads", what="after")
    return (
        None if threads is None else check_list(threads, "threads"),
        Cursor() if after is None else Cursor.of(after),
    )


def _order(
    policy: object,
    tenant: str | None,
    *,
    threads: object = None,
    compact: object = (),
    compact_namespace: object = "",
    compact_over: object = None,
    quiet: object = 60,
    graph: object = None,
    hooks: object = None,
    merge: object = True,
    clock: object = time.time,
    **unknown: object,
) -> Order:
    for name in unknown:
        raise InvalidConfig(f"{name} is no option of this: there are {', '.join(Options.__annotations__)}", what=name)
    names = None if threads is None else tuple(check_list(threads, "threads"))
    compaction = _compaction(compact, compact_namespace, compact_over, quiet, graph)
    return Order(
        policies_of(policy),
        names,
        compaction,
        _hooks(hooks, tenant),
        flag(merge, "merge"),
        clock=check_callable(clock, "clock"),
    )
