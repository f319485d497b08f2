"""What keeps threads small, over the operations of a saver: maintenance, erasure, archives, attachments."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import DeltaChannelHistory

from milepost import archive, maintenance, sweeping, upkeep
from milepost.codec.codec import of_checkpoint
from milepost.errors import Conflict, Corrupt, InvalidConfig, MilepostError, SchemaMismatch
from milepost.filling import Filling
from milepost.observe import log, thread_hash
from milepost.operations import TRIES, Operations, restless
from milepost.places import ATTACHMENTS, PINNED, Place, check_file
from milepost.reading import PAGE
from milepost.retention import live_spans
from milepost.schema.schema import Where
from milepost.sides import Side
from milepost.store import CheckpointRow, Query, Store
from milepost.tenants import TenantBackend, bare_name, full_name


async def keep(ops: Operations, side: Side, order: upkeep.Order) -> upkeep.Report:
    """See `milepost.saver.Saver.maintain`."""

    async def history(thread: str, ns: str, id: str, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        # What is rebuilt is stored again.
        return await Operations(ops.shared, ops.codec.exact()).history(side, Place(thread, ns, id), channels)

    def current(thread: str, row: CheckpointRow, stamp: bytes | None) -> bool:
        schema = ops.upgrader.schema(row.ns) if ops.upgrader else None
        try:
            return schema is None or not schema.judge(stamp, Where(thread, row.ns, row.id)).steps
        except SchemaMismatch:
            return False

    order = replace(
        order,
        ledger="ledger" in ops.shared.backend.capabilities,
        compaction=replace(order.compaction, current=current),
    )
    return await upkeep.maintain(await ops.open(side), ops.codec, order, history, side.ask, ops.watch)


async def erase(ops: Operations, side: Side, thread: str, hooks: upkeep.Hooks, *, force: bool) -> upkeep.Erased:
    """See `milepost.saver.Saver.erase`."""
    store = await ops.open(side)
    before, attachments, archived = maintenance.Amount(), 0, 0
    failure: Exception | None = None
    with ops.watch("erase", thread) as event:
        # Whatever happens from here on is told in the report: the threads before this one are gone.
        try:
            with suppress(Corrupt):  # what nobody can read any more goes as well
                before, attachments = await _amount(store, thread)
            with hooks.erasing(thread):
                await ops.delete_thread(side, thread, force=force)
                archived = await upkeep.Asker(hooks, side.ask, ops.watch).erase(thread)
        except Exception as exc:
            failure = exc
        if event is not None:
            event.bytes = before.bytes
            event.facts = {
                "checkpoints": before.checkpoints,
                "writes": before.writes,
                "attachments": attachments,
                "archived": archived,
            }
            if failure is not None:
                event.outcome, event.error = "error", type(failure).__name__
    error = "" if failure is None else f"{type(failure).__name__}: {failure}"
    return upkeep.Erased(thread, before, attachments, archived, error)


async def _amount(store: Store, thread: str) -> tuple[maintenance.Amount, int]:
    """How much there is of a thread, and how many attachments."""
    outline = await store.outline(thread)
    if outline is None:
        return maintenance.Amount(), 0
    return maintenance.Amount.of(outline), sum(mark.ns == ATTACHMENTS for mark in outline.marks)


async def sweep(ops: Operations, side: Side, hooks: upkeep.Hooks, *, dry_run: bool) -> sweeping.Swept:
    """See `milepost.saver.Saver.sweep`."""
    asker = upkeep.Asker(hooks, side.ask, ops.watch)
    return await sweeping.sweep(await ops.open(side), asker, ops.watch, dry_run=dry_run)


async def restore(ops: Operations, side: Side, path: str | os.PathLike[str], thread: str | None) -> upkeep.Restored:
    """See `milepost.saver.Saver.restore`."""
    with ops.watch("restore", thread or "") as event:
        restored, size = await _restored(ops, await ops.open(side), path, thread)
        if event is not None:
            event.thread, event.bytes = thread_hash(restored.thread), size
            event.facts = {
                "checkpoints": restored.checkpoints,
                "writes": restored.writes,
                "attachments": restored.attachments,
                "cut": restored.cut,
            }
        return restored


async def _restored(
    ops: Operations, store: Store, path: str | os.PathLike[str], thread: str | None
) -> tuple[upkeep.Restored, int]:
    """What was loaded, and how many bytes it is."""
    path = check_file(path, "path")
    if archive.is_being_erased(path):
        raise InvalidConfig(
            f"the archive {path} is of a thread whose erasure has not come to its end: let sweep finish it, or erase the "
            "thread again",
            what="path",
            value=repr(str(path)),
        )
    name, found, cut = archive.whole(path)
    source = _own(ops, name, path)
    target = thread or source
    if cut:
        log.warning("the archive of thread %s ends inside a step: %d bytes are passed over", thread_hash(source), cut)
    there = await store.outline(target)
    strangers = {mark[:2] for mark in there.marks} - {(row.ns, row.id) for row in found.rows} if there else ()
    if strangers:
        raise Conflict(
            f"thread {target!r} has {len(strangers)} checkpoints that are not in {path}: restore it to another "
            "thread id",
            thread=target,
        )
    live = live_spans(found.rows, (row for *_, row in found.writes))
    # What a tenant's saver has sealed names the thread as the tenant does.
    sealed, bare = bare_name(source), bare_name(target)
    packs = ops.codec.regroup(sealed, bare, found.packs, live)
    batch = ops.codec.reseal(sealed, bare, replace(found, packs=()))
    async with Filling(store, target, "restore") as filling:
        for at in range(0, len(packs), PAGE):
            await filling.load(replace(batch, rows=(), writes=(), packs=tuple(packs[at : at + PAGE])))
        await filling.load(replace(batch, rows=(), packs=()))
        for at in range(0, len(batch.rows), PAGE):
            await filling.load(replace(batch, rows=batch.rows[at : at + PAGE], writes=(), packs=()))
    ops.codec.reset(target)
    ops.shared.runs.revived(target)
    attachments = sum(row.ns == ATTACHMENTS for row in batch.rows)
    size = upkeep.size_of(replace(batch, packs=tuple(packs)))
    return upkeep.Restored(target, len(batch.rows) - attachments, len(batch.writes), attachments, cut), size


def _own(ops: Operations, name: str, path: str | os.PathLike[str]) -> str:
    """The id that the thread `name` of an archive has for this saver. Raises `InvalidConfig` when it is not its tenant's."""
    backend = ops.shared.backend
    if not isinstance(backend, TenantBackend):
        return name
    if name != full_name(backend.tenant, bare := bare_name(name)):
        raise InvalidConfig(
            f"the archive {path} is not of a thread of tenant {backend.tenant!r}: restore it with the saver of its own "
            "tenant, or with one of the whole store",
            what="path",
            value=repr(str(path)),
        )
    return bare


async def pin(ops: Operations, side: Side, place: Place, *, value: bool) -> RunnableConfig:
    """See `milepost.saver.Saver.pin`."""
    thread, ns, id = place
    with ops.watch("pin" if value else "unpin", thread):
        store = await ops.open(side)
        for _ in range(TRIES):
            space = await ops.space(side, store, place, again=True)
            page = await store.page(Query(thread, space, id), None, 1, items=False)
            if not page.snapshots:
                raise InvalidConfig(
                    f"thread {thread!r} has no checkpoint {'' if id is None else repr(id) + ' '}in namespace {ns!r} to pin",
                    what="checkpoint_id",
                    value=repr(id),
                )
            row, generation = page.snapshots[0].row, page.snapshots[0].generation
            if bool(ops.codec.header(thread, row).metadata.get(PINNED)) is value:
                return place.config(row.id)
            # If a drop has changed its parent since, the generation is another one.
            answer = await store.put(thread, ops.codec.pinned(thread, row, pin=value), (), generation)
            if not answer.stale:
                return place.config(row.id)
    raise restless(thread)


async def attachment(ops: Operations, side: Side, thread: str, address: str) -> str | bytes | None:
    """See `milepost.saver.Saver.attachment`."""
    with ops.watch("attachment", thread):
        store = await ops.open(side)
        loaded = await store.get(thread, ATTACHMENTS, address)
        if loaded is None:
            return None
        row = loaded.snapshots[0].row
        shelf = ops.codec.shelf(thread, loaded.packs.get(thread, ()))
        try:
            return cast("str | bytes", ops.codec.values(thread, ops.codec.header(thread, row), shelf)["content"])
        except MilepostError as exc:
            raise of_checkpoint(exc, thread, row) from exc
