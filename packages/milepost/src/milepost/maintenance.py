"""What changes threads as a whole: pruning, deleting runs, merging packs, copying. Plans with `milepost.retention`,
carried out by the store under compare-and-set: a thread that was written to meanwhile is planned anew, or left alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from milepost.codec import Codec, Header
from milepost.compacting import Compacted
from milepost.errors import Conflict, Corrupt, InvalidConfig
from milepost.observe import log
from milepost.packing import KEEP_WHOLE, groups, uses
from milepost.places import COUNTERS, FORKS, PINNED
from milepost.retention import Lineage, Place, Retention, after, entered, live_spans, same
from milepost.store import Batch, Chart, CheckpointRow, Drop, Query, Span, Store

TRIES = 32
"""How often a thread is planned anew because it was written to."""
PAGE = 256
STEP = 1000
"""Checkpoints that go in one step, at most: what a put of the thread may have to wait for."""
STEP_BYTES = 8 << 20
"""Bytes of packs that are written anew in one step, at most, unless a single one is larger."""
Choice = Callable[[Lineage], Collection[Place] | None]
"""From a lineage to the checkpoints that stay; None when the whole thread goes."""


Compact = Callable[[Chart], Awaitable[Compacted | None]]


@dataclass(frozen=True, slots=True)
class Amount:
    """How much there is of a thread."""

    checkpoints: int = 0
    writes: int = 0
    packs: int = 0
    bytes: int = 0
    """Of headers, pending writes and packs."""

    @classmethod
    def of(cls, chart: Chart) -> Amount:
        written = [write for writes in chart.writes.values() for write in writes]
        return cls(
            checkpoints=len(chart.rows),
            writes=len(written),
            packs=len(chart.packs),
            bytes=sum(len(row.header) for row in chart.rows)
            + sum(len(write.value) for write in written)
            + sum(chart.sizes),
        )

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.checkpoints + other.checkpoints,
            self.writes + other.writes,
            self.packs + other.packs,
            self.bytes + other.bytes,
        )


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """What is to be done to one thread. Nothing of it is done yet; `carry_out` does exactly this, or stops."""

    thread: str
    checkpoints: tuple[Place, ...]
    """Those that go, as (namespace, id)."""
    deleted: bool
    """Whether the whole thread goes."""
    compacted: tuple[str, ...]
    """Channels of the latest checkpoint that a new one makes smaller."""
    before: Amount
    after: Amount
    chart: Chart = field(repr=False)
    entering: Batch | None = field(repr=False)
    """The smaller checkpoint, which comes before anything goes."""
    steps: tuple[Drop, ...] = field(repr=False)


async def keep_latest(store: Store, codec: Codec, threads: Sequence[str]) -> None:
    """See `Saver.prune`."""
    for thread in threads:
        await _shorten(store, codec, thread, Lineage.latest)


async def delete_for_runs(store: Store, codec: Codec, runs: Sequence[str]) -> None:
    """See `Saver.delete_for_runs`."""
    doomed = frozenset(runs)
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

        def stays(lineage: Lineage, thread: str = thread) -> Collection[Place]:
            return {
                place for place, row in lineage.rows.items() if not _of_run(codec.header(thread, row).metadata, doomed)
            }

        await _shorten(store, codec, thread, stays)


async def drop_checkpoints(store: Store, codec: Codec, thread: str, doomed: Collection[Place]) -> None:
    """Remove these checkpoints of a thread."""
    await _shorten(store, codec, thread, lambda lineage: {place for place in lineage.rows if place not in doomed})


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
        plan = await plan_thread(store, codec, thread, choose)
        if plan is None or (await carry_out(store, plan)).done:
            return
    raise Conflict(
        f"thread {thread!r} was written to {TRIES} times while it was to be shortened: try again when it is quiet",
        thread=thread,
    )


def by_policy(policies: Sequence[Retention], thread: str, now: float, held: Collection[Place] | None = None) -> Choice:
    """What stays of `thread` by `policies`; with `held`, these as well, and then the thread stays."""

    def choose(lineage: Lineage) -> Collection[Place] | None:
        if held is None and lineage.idle(policies, thread, now):
            return None
        return lineage.kept(policies, thread, now, held or ())

    return choose


async def plan_thread(
    store: Store, codec: Codec, thread: str, choose: Choice, *, merge: bool = False, compact: Compact | None = None
) -> ThreadPlan | None:
    """What it takes for only the chosen checkpoints, and what they need, to stay. None when that is nothing.

    With `merge`, small packs become large ones. `compact` says how to make the latest checkpoint smaller before that.
    Raises `Corrupt` when a header does not verify, and what `compact` raises.
    """
    chart = await store.chart(thread)
    if chart is None:
        return None
    lineage = _lineage(codec, thread, chart)
    chosen = choose(lineage)
    steps: list[Drop] = []
    end = chart
    smaller = await compact(chart) if compact is not None and chosen is not None else None
    if smaller is not None:
        end = entered(chart, smaller.batch)
        lineage = _lineage(codec, thread, end)
        chosen = choose(lineage)
    if chosen is None:
        steps = [Drop(tuple({*lineage.rows, *chart.writes}))]
        end = after(chart, steps[0])
    else:
        kept = lineage.needed(chosen)
        whole = end
        for step in _prunings(lineage, whole, kept):
            steps.append(step)
            end = after(end, step)
        for step in await _rewritings(store, codec, thread, whole, kept, merge=merge):
            # One step less: what is written anew in the last one goes with it.
            small = len(steps) == 1 and not steps[0].repacked and len(steps[0].checkpoints) + len(step.packs) < STEP
            steps[-1:] = [_both(steps[-1], step)] if small else [*steps[-1:], step]
            end = after(end, step)
    if not steps and smaller is None:
        return None
    rows = {(row.ns, row.id) for row in end.rows}
    gone = tuple((row.ns, row.id) for row in chart.rows if (row.ns, row.id) not in rows)
    channels, entering = ((), None) if smaller is None else (smaller.channels, smaller.batch)
    before, rest = Amount.of(chart), Amount.of(end)
    return ThreadPlan(thread, gone, chosen is None, channels, before, rest, chart, entering, tuple(steps))


def _lineage(codec: Codec, thread: str, chart: Chart) -> Lineage:
    headers: dict[Place, Header] = {}

    def header(row: CheckpointRow) -> Header:
        place = (row.ns, row.id)
        if place not in headers:
            headers[place] = codec.header(thread, row)
        return headers[place]

    return Lineage(
        {(row.ns, row.id): row for row in chart.rows},
        channels=lambda row: header(row).layouts.keys(),
        deltas=lambda row: (header(row).metadata.get(COUNTERS) or {}).keys(),
        root_of=lambda row: (header(row).metadata.get("parents") or {}).get(""),
        forked=lambda row: header(row).metadata.get("source") in FORKS,
        pinned=lambda row: bool(header(row).metadata.get(PINNED)),
        written=frozenset(place for place, writes in chart.writes.items() if writes),
    )


def _prunings(lineage: Lineage, chart: Chart, kept: Collection[Place]) -> Iterator[Drop]:
    """Steps after each of which every checkpoint that is left is whole: children go before their ancestors."""
    left = dict(lineage.rows)
    sizes = dict(zip(chart.packs, chart.sizes, strict=True))
    gone = sorted(left.keys() - set(kept), key=lambda place: left[place].key, reverse=True)
    while gone or sizes:
        batch = set(gone[:STEP])
        remaining = left.keys() - batch
        # In a cycle of parents what is left may need what was to go.
        batch -= lineage.needed(remaining)
        if not batch:
            batch = set(gone)
        gone = [place for place in gone if place not in batch]
        left = {place: row for place, row in left.items() if place not in batch}
        parents = [
            (ns, id, lineage.parent_among(lineage.rows[ns, id], left))
            for (ns, id), row in left.items()
            if row.parent is not None and (ns, row.parent) in batch
        ]
        for ns, id, parent in parents:
            left[ns, id] = replace(left[ns, id], parent=parent)
        at_hand = replace(chart, packs=tuple(sizes), sizes=tuple(sizes.values()))
        dead = [use.span for use in uses(at_hand, live_spans(chart, left)) if not use.used]
        for span in dead:
            del sizes[span]
        if batch or dead:
            yield Drop(tuple(sorted(batch)), tuple(parents), tuple(dead))
        if not gone:
            return


async def _rewritings(
    store: Store, codec: Codec, thread: str, chart: Chart, kept: Collection[Place], *, merge: bool
) -> list[Drop]:
    live = live_spans(chart, kept)
    found = uses(chart, live)
    merged = [group.packs for group in groups(found)] if merge else []
    taken = {use.span for packs in merged for use in packs}
    work = merged + [[use] for use in found if use.worn and use.span not in taken]
    steps: list[Drop] = []
    size = STEP_BYTES
    for packs in work:
        spans = [use.span for use in packs]
        wanted = set(spans)
        data = [pack for pack in await store.fetch(thread, spans) if Span(*pack[:3]) in wanted]
        if len(data) < len(spans):
            continue  # somebody was faster: this plan will not be carried out
        new = codec.repack(thread, data[0], live) if len(packs) == 1 else []
        if len(new) != 1:
            # One pack with holes in it rather than many small ones.
            new = [codec.merge(thread, data, live)]
            if len(packs) == 1 and len(new[0].data) > packs[0].size * KEEP_WHOLE:
                continue  # it has holes already
        if size + (more := sum(len(pack.data) for pack in new)) > STEP_BYTES:
            steps.append(Drop())
            size = 0
        size += more
        steps[-1] = _both(steps[-1], Drop(packs=tuple(spans), repacked=tuple(new)))
    return steps


def _both(one: Drop, other: Drop) -> Drop:
    return Drop(
        (*one.checkpoints, *other.checkpoints),
        (*one.parents, *other.parents),
        (*one.packs, *other.packs),
        (*one.repacked, *other.repacked),
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a plan was carried out."""

    done: bool
    """Not when the thread was written to: then what is left of the plan is void."""
    gone: int
    """How many checkpoints went."""
    now: Amount


Archive = Callable[[Drop, Chart], Any]


async def carry_out(store: Store, plan: ThreadPlan, archive: Archive | None = None) -> Progress:
    """Do what `plan` says, step by step; each leaves a thread that is whole. Stops when the thread is not as planned.

    `archive` is awaited before each step with what is about to go.
    """
    chart, gone = plan.chart, 0
    if plan.entering is not None:
        expected = entered(chart, plan.entering)
        await store.rewrite(plan.thread, plan.entering, chart.token)
        found = await store.chart(plan.thread)
        if found is None or not same(found, expected):
            return Progress(False, 0, Amount() if found is None else Amount.of(found))
        chart = found
    for number, step in enumerate(plan.steps):
        if archive is not None and step.checkpoints:
            await archive(step, chart)
        expected = after(chart, step)
        done = await store.drop(plan.thread, step, chart.token)
        if not done or number + 1 < len(plan.steps):
            # After a lost reply, what was done looks as if somebody else had been here.
            found = await store.chart(plan.thread)
            if found is None:
                whole = not expected.rows and not expected.writes
                return Progress(whole, len(plan.checkpoints) if whole else gone, Amount())
            if not same(found, expected):
                return Progress(False, gone, Amount.of(found))
        else:
            found = expected
        gone += len(chart.rows) - len(found.rows)
        chart = found
    return Progress(True, gone, Amount.of(chart))
