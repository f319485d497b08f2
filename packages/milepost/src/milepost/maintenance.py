"""What changes threads as a whole: pruning, deleting runs, copying. Plans with `milepost.retention`, carried out by the
store under compare-and-set: a thread that was written to meanwhile is planned anew."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from milepost.codec import Codec, Header
from milepost.errors import Conflict, Corrupt, InvalidConfig
from milepost.observe import log
from milepost.places import COUNTERS
from milepost.retention import Lineage, Place, live_spans
from milepost.store import Chart, CheckpointRow, Drop, Pack, Query, Span, Store

TRIES = 32
"""How often a thread is planned anew because it was written to."""
PAGE = 256
_KEEP_WHOLE = 0.75
"""A pack of which at least this part is live stays as it is."""

Choice = Callable[[Lineage, Callable[[CheckpointRow], Header]], Collection[Place]]
"""From a lineage to the checkpoints that should stay."""


async def keep_latest(store: Store, codec: Codec, threads: Sequence[str]) -> None:
    """See `Saver.prune`."""

    def stays(lineage: Lineage, header: Callable[[CheckpointRow], Header]) -> Collection[Place]:
        return lineage.latest(lambda row: (header(row).metadata.get("parents") or {}).get(""))

    for thread in threads:
        await _shorten(store, codec, thread, stays)


async def delete_for_runs(store: Store, codec: Codec, runs: Sequence[str]) -> None:
    """See `Saver.delete_for_runs`."""
    doomed = frozenset(runs)

    def stays(lineage: Lineage, header: Callable[[CheckpointRow], Header]) -> Collection[Place]:
        return {place for place, row in lineage.rows.items() if not _of_run(header(row).metadata, doomed)}

    touched: set[str] = set()
    after: tuple[str, ...] | None = None
    while doomed:
        page = await store.page(Query(runs=doomed), after, PAGE, items=False)
        for damage in page.damage:
            log.warning("delete_for_runs passes over what is damaged: %s", damage)
        for found in page.snapshots:
            if found.thread not in touched:
                try:
                    if _of_run(codec.header(found.thread, found.row).metadata, doomed):
                        touched.add(found.thread)
                except Corrupt as exc:
                    # It cannot be of any run; what it was stays for who looks after the damage.
                    log.warning("delete_for_runs passes over a checkpoint: %s", exc.message)
        if (after := page.cursor) is None:
            break
    for thread in sorted(touched):
        await _shorten(store, codec, thread, stays)


def _of_run(metadata: Mapping[str, Any], runs: frozenset[str]) -> bool:
    run = metadata.get("run_id")
    return run is not None and str(run) in runs


async def copy_thread(store: Store, codec: Codec, source: str, target: str) -> None:
    """See `Saver.copy_thread`."""
    if source == target:
        raise InvalidConfig(f"thread {source!r} cannot be copied onto itself", what="target", value=repr(target))
    chart, there = await store.chart(source), await store.chart(target)
    if chart is None:
        return
    strangers = {(row.ns, row.id) for row in there.rows} - {(row.ns, row.id) for row in chart.rows} if there else ()
    if strangers:
        raise Conflict(
            f"thread {target!r} has {len(strangers)} checkpoints that {source!r} has not: delete it first, or copy to "
            "another id",
            thread=target,
        )
    after: tuple[str, ...] | None = None
    while (batch := await store.export(source, after, PAGE)) is not None:
        await store.load(target, codec.reseal(source, target, batch))
        if (after := batch.cursor) is None:
            break
    codec.reset(target)


async def _shorten(store: Store, codec: Codec, thread: str, choose: Choice) -> None:
    for _ in range(TRIES):
        chart = await store.chart(thread)
        if chart is None:
            return
        drop = await _plan(store, codec, thread, chart, choose)
        if drop is None or await store.drop(thread, drop, chart.token):
            return
    raise Conflict(
        f"thread {thread!r} was written to {TRIES} times while it was to be shortened: try again when it is quiet",
        thread=thread,
    )


async def _plan(store: Store, codec: Codec, thread: str, chart: Chart, choose: Choice) -> Drop | None:
    headers: dict[Place, Header] = {}

    def header(row: CheckpointRow) -> Header:
        place = (row.ns, row.id)
        if place not in headers:
            headers[place] = codec.header(thread, row)
        return headers[place]

    lineage = Lineage(
        {(row.ns, row.id): row for row in chart.rows},
        channels=lambda row: header(row).layouts.keys(),
        deltas=lambda row: (header(row).metadata.get(COUNTERS) or {}).keys(),
    )
    kept = lineage.needed(choose(lineage, header))
    live = live_spans(chart, kept)
    dead, partly = _split_packs(chart.packs, live)
    repacked: list[Pack] = []
    for pack in await store.fetch(thread, partly) if partly else ():
        if (span := Span(pack.writer, pack.first, pack.count)) in partly:
            dead.append(span)
            repacked += codec.repack(thread, pack, live)
    gone = tuple(place for place in lineage.rows if place not in kept)
    if not gone and not dead:
        return None
    parents: list[tuple[str, str, str | None]] = []
    for ns, id in kept:
        row = lineage.rows[ns, id]
        if (parent := lineage.parent_among(row, kept)) != row.parent:
            parents.append((ns, id, parent))
    return Drop(gone, tuple(parents), tuple(dead), tuple(repacked))


def _split_packs(packs: Sequence[Span], live: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """(packs nothing refers to, packs so little of which is live that they should be written anew)."""
    starts = [span[:2] for span in live]
    dead: list[Span] = []
    partly: list[Span] = []
    for pack in packs:
        end = pack.first + pack.count
        used = 0
        for span in live[max(bisect_right(starts, (pack.writer, pack.first)) - 1, 0) :]:
            if (span.writer, span.first) >= (pack.writer, end):
                break
            if span.writer == pack.writer:
                used += max(min(end, span.first + span.count) - max(pack.first, span.first), 0)
        if not used:
            dead.append(pack)
        elif used < pack.count * _KEEP_WHOLE:
            partly.append(pack)
    return dead, partly
