"""The operations of a saver, each written once as a coroutine over a `Side`: a store in one flavour, and how to wait in it.
Those that read are in `milepost.reading`.

The blocking methods of `milepost.saver.Saver` run them to their end, the async ones await them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig

from milepost import maintenance
from milepost.codec import Codec, Memory
from milepost.codec.drafts import Draft, DraftWrite, Placed
from milepost.errors import (
    Conflict,
    InvalidConfig,
    LeaseLost,
    ThreadDeleted,
)
from milepost.late import disown_late
from milepost.lease import fence_for, refused
from milepost.migrating import Migrated, Migrator, Mode
from milepost.overlooking import overlooked
from milepost.places import Place, check_thread
from milepost.reading import PAGE, Reading
from milepost.runs import Run
from milepost.schema import Schemas
from milepost.sides import Side
from milepost.store import (
    Put,
    Stats,
    Store,
    ThreadPage,
)
from milepost.upgrading import Upgrader

TRIES = 4
"""How often a put whose thread moves on to another generation is fitted to it, before everything is sent."""


class Operations(Reading):
    """The operations of a saver with one serializer."""

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
                event.items_new, event.items_reused = placed.new, placed.reused
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
