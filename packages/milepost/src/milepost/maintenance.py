"""What changes threads as a whole: pruning, deleting runs, merging packs, copying. Plans with `milepost.retention`,
carried out by the store under compare-and-set: a thread that was written to meanwhile is planned anew, or left alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

from milepost.codec import Codec
from milepost.collector import unhurried
from milepost.compacting import Compacted
from milepost.errors import Conflict, Corrupt, InvalidConfig
from milepost.filling import Filling
from milepost.observe import hushed, log
from milepost.packing import KEEP_WHOLE, Use, groups, uses
from milepost.parents import Place
from milepost.places import ATTACHMENTS
from milepost.retention import Lineage, Retention
from milepost.store import Batch, Drop, Mark, Outline, Query, Span, Store
from milepost.survey import Choice, Survey

TRIES = 32
"""How often a thread is planned anew because it was written to."""
PAGE = 256
STEP = 10_000
"""Checkpoints, pending writes and packs that go in one step, at most, unless a single checkpoint has more: what a put of
the thread may have to wait for."""
STEP_BYTES = 8 << 20
"""Bytes of packs that are written anew in one step, at most, unless a single one is larger."""

Compact = Callable[[Survey], Awaitable[Compacted | None]]


@dataclass(frozen=True, slots=True)
class Amount:
    """How much there is of a thread."""

    checkpoints: int = 0
    writes: int = 0
    packs: int = 0
    bytes: int = 0
    """Of headers, pending writes and packs, roughly."""

    @classmethod
    def of(cls, outline: Outline) -> Amount:
        strays = outline.strays.values()
        return cls(
            checkpoints=len(outline.marks),
            writes=sum(mark.writes for mark in outline.marks) + sum(count for count, _ in strays),
            packs=len(outline.packs),
            bytes=sum(mark.size + mark.written for mark in outline.marks)
            + sum(size for _, size in strays)
            + sum(outline.sizes),
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
    attachments: tuple[str, ...]
    """The addresses of what compaction has moved, and moves, out of the thread's state."""
    before: Amount
    after: Amount
    token: str = field(repr=False)
    """Names the state of the thread that this is for."""
    entering: Batch | None = field(repr=False)
    """The smaller checkpoint, which comes before anything goes."""
    steps: tuple[Drop, ...] = field(repr=False)
    amounts: tuple[Amount, ...] = field(repr=False)
    """What is left after each step."""


async def keep_latest(store: Store, codec: Codec, threads: Sequence[str]) -> None:
    """See `Saver.prune`."""
    for thread in threads:
        await _shorten(store, codec, thread, Lineage.latest)


async def delete_for_runs(store: Store, codec: Codec, runs: Sequence[str]) -> None:
    """See `Saver.delete_for_runs`."""
    doomed = frozenset(runs)

    def stays(lineage: Lineage) -> Collection[Place]:
        return {
            place
            for place, row in lineage.rows.items()
            if (facts := lineage.facts(row)) is None or facts.run not in doomed
        }

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
                    log.warning("delete_for_runs passes over a checkpoint: %s", hushed(exc.message, found.thread))
        if (after := page.cursor) is None:
            break
    for thread in sorted(touched):
        await _shorten(store, codec, thread, stays)


async def drop_checkpoints(store: Store, codec: Codec, thread: str, doomed: Collection[Place]) -> None:
    """Remove these checkpoints of a thread."""
    await _shorten(store, codec, thread, lambda lineage: {place for place in lineage.rows if place not in doomed})


async def disown(store: Store, codec: Codec, thread: str, places: AbstractSet[Place], *, rows: bool = True) -> None:
    """Remove these checkpoints, with `rows`, and what they alone refer to; of those that are not there, the pending writes."""
    outline = await store.outline(thread)
    if outline is None:
        return
    if rows and places & {mark[:2] for mark in outline.marks}:
        await drop_checkpoints(store, codec, thread, places)
    for place in places & outline.strays.keys():
        await drop_strays(store, codec, thread, place)


async def drop_strays(store: Store, codec: Codec, thread: str, place: Place) -> None:
    """Remove the pending writes of a checkpoint that is never going to be there, and what they alone refer to."""
    for _ in range(TRIES):
        outline = await store.outline(thread)
        if outline is None or place not in outline.strays:
            return
        left = {other: size for other, size in outline.strays.items() if other != place}
        survey = Survey(store, codec, thread, replace(outline, strays=left))
        dead = [use.span for use in uses(outline, await survey.live(survey.marks)) if not use.used]
        if await store.drop(thread, Drop((place,), packs=tuple(dead)), outline.token) is not None:
            return


def _of_run(metadata: Mapping[str, Any], runs: frozenset[str]) -> bool:
    run = metadata.get("run_id")
    return run is not None and str(run) in runs


async def copy_thread(store: Store, codec: Codec, source: str, target: str) -> None:
    """See `Saver.copy_thread`."""
    if source == target:
        raise InvalidConfig(f"thread {source!r} cannot be copied onto itself", what="target", value=repr(target))
    outline, there = await store.outline(source), await store.outline(target)
    if outline is None:
        return
    strangers = {mark[:2] for mark in there.marks} - {mark[:2] for mark in outline.marks} if there else ()
    if strangers:
        raise Conflict(
            f"thread {target!r} has {len(strangers)} checkpoints that {source!r} has not: delete it first, or copy to "
            "another id",
            thread=target,
        )
    after: tuple[str, ...] | None = None
    async with Filling(store, target, "copy_thread") as filling:
        while (batch := await store.export(source, after, PAGE)) is not None:
            await filling.load(codec.reseal(source, target, batch))
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
    Raises `Corrupt` when a header that has to be read does not verify, and what `compact` raises.
    """
    outline = await store.outline(thread)
    if outline is None:
        return None
    survey = Survey(store, codec, thread, outline)
    kept = await survey.chosen(choose)
    smaller = await compact(survey) if compact is not None and kept is not None else None
    if smaller is not None:
        survey.enter(smaller.batch)
        kept = await survey.chosen(choose)
    # What is not stored yet cannot be merged.
    ahead = frozenset[Span]() if smaller is None else frozenset(Span(*pack[:3]) for pack in smaller.batch.packs)
    steps = await (_deletion(survey) if kept is None else _shortening(store, codec, survey, kept, ahead, merge=merge))
    if not steps and smaller is None:
        return None
    amounts = tuple(_amounts(survey, steps))
    gone = frozenset(place for step in steps for place in step.checkpoints)
    channels, entering = ((), None) if smaller is None else (smaller.channels, smaller.batch)
    return ThreadPlan(
        thread=thread,
        checkpoints=tuple(place for place in survey.marks if place in gone),
        deleted=kept is None,
        compacted=channels,
        attachments=tuple(id for ns, id in survey.marks if ns == ATTACHMENTS),
        before=Amount.of(outline),
        after=amounts[-1] if amounts else Amount.of(survey.outline),
        token=outline.token,
        entering=entering,
        steps=(*(replace(step, more=True) for step in steps[:-1]), *steps[-1:]),
        amounts=amounts,
    )


async def _deletion(survey: Survey) -> list[Drop]:
    """All of the thread goes. Of a large one the latest checkpoints, and what they need, go last, and at once: until then
    it has not changed."""
    outline = survey.outline
    everything = Drop((*survey.marks, *outline.strays))
    if _weight(survey, everything) <= STEP:
        return [everything]
    kept = await survey.chosen(Lineage.heads) or set()
    steps = [*_prunings(survey, kept), *_disposals(uses(outline, await survey.live(kept)))]
    return [*_joined(survey, steps), Drop((*kept, *outline.strays))]


async def _shortening(
    store: Store, codec: Codec, survey: Survey, kept: set[Place], ahead: Collection[Span], *, merge: bool
) -> list[Drop]:
    live = await survey.live(kept)
    found = uses(survey.outline, live)
    with unhurried(len(survey.marks)):
        steps = [*_prunings(survey, kept), *_disposals(found)]
    stored = [use for use in found if use.span not in ahead]
    return _joined(survey, [*steps, *await _rewritings(store, codec, survey.thread, stored, live, merge=merge)])


def _prunings(survey: Survey, kept: Collection[Place]) -> Iterator[Drop]:
    """Steps after each of which every checkpoint that is left is whole: children go before their ancestors."""
    marks, lineage = survey.marks, survey.lineage
    left = set(marks)
    parents = {(ns, id): parent for ns, id in kept if (parent := marks[ns, id].parent) is not None}
    for batch in _batches(survey, kept):
        gone = set(batch)
        left -= gone
        moved = [
            (place, lineage.parent_among(marks[place]._replace(parent=parent), left))
            for place, parent in parents.items()
            if (place[0], parent) in gone
        ]
        for place, parent in moved:
            parents[place] = parent or ""
        yield Drop(tuple(batch), tuple((*place, parent) for place, parent in moved))


def _batches(survey: Survey, kept: Collection[Place]) -> Iterator[list[Place]]:
    """What is not kept, as much as one step takes at a time. What is a cycle of parents goes together, as the last."""
    batch: list[Place] = []
    room, marks = STEP, survey.marks
    order, cycles = _children_first(marks, kept)
    for place in order:
        weight = 1 + marks[place].writes
        if batch and weight > room:
            yield batch
            batch, room = [], STEP
        batch.append(place)
        room -= weight
    if batch or cycles:
        yield [*batch, *cycles]


def _children_first(marks: Mapping[Place, Mark], kept: Collection[Place]) -> tuple[list[Place], list[Place]]:
    """What is not kept, each before its parent; and those that have no such order, because they are each other's ancestors."""
    parents = {place: (place[0], mark.parent) for place, mark in marks.items() if place not in kept}
    waiting: dict[tuple[str, str | None], int] = dict.fromkeys(parents, 0)
    for parent in parents.values():
        if parent in waiting:
            waiting[parent] += 1
    order = [place for place in parents if not waiting[place]]
    for place in order:
        ns, parent_id = parents[place]
        if parent_id is not None and (above := (ns, parent_id)) in waiting:
            waiting[above] -= 1
            if not waiting[above]:
                order.append(above)
    done = set(order)
    # Calls of subgraphs before the roots that they are reached by: whoever is killed in between leaves no orphans.
    order.sort(key=lambda place: ":" not in place[0])
    return order, [place for place in parents if place not in done]


def _disposals(found: Sequence[Use]) -> Iterator[Drop]:
    """Steps that delete the packs of which nothing is used."""
    dead = [use.span for use in found if not use.used]
    for at in range(0, len(dead), STEP):
        yield Drop(packs=tuple(dead[at : at + STEP]))


async def _rewritings(
    store: Store, codec: Codec, thread: str, found: Sequence[Use], live: Sequence[Span], *, merge: bool
) -> list[Drop]:
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


def _weight(survey: Survey, step: Drop) -> int:
    marks, strays = survey.marks, survey.outline.strays
    writes = sum(marks[place].writes if place in marks else strays[place][0] for place in step.checkpoints)
    return len(step.checkpoints) + writes + len(step.packs)


def _joined(survey: Survey, steps: Sequence[Drop]) -> list[Drop]:
    """The same in fewer steps, where two are not too much for one. Packs are written anew in one of them at most."""
    joined: list[Drop] = []
    for step in steps:
        last = joined[-1] if joined else None
        if last is not None and not last.repacked and _weight(survey, last) + _weight(survey, step) <= STEP:
            joined[-1] = _both(last, step)
        else:
            joined.append(step)
    return joined


def _both(one: Drop, other: Drop) -> Drop:
    return Drop(
        (*one.checkpoints, *other.checkpoints),
        (*one.parents, *other.parents),
        (*one.packs, *other.packs),
        (*one.repacked, *other.repacked),
    )


def _amounts(survey: Survey, steps: Sequence[Drop]) -> Iterator[Amount]:
    """What is left after each step."""
    left = Amount.of(survey.outline)
    sizes = dict(zip(survey.outline.packs, survey.outline.sizes, strict=True))
    for step in steps:
        marks = [survey.marks[place] for place in step.checkpoints if place in survey.marks]
        strays = [survey.outline.strays[place] for place in step.checkpoints if place not in survey.marks]
        left += Amount(
            checkpoints=-len(marks),
            writes=-sum(mark.writes for mark in marks) - sum(count for count, _ in strays),
            packs=len(step.repacked) - len(step.packs),
            bytes=sum(len(pack.data) for pack in step.repacked)
            - sum(sizes[span] for span in step.packs)
            - sum(mark.size + mark.written for mark in marks)
            - sum(size for _, size in strays),
        )
        # Where neither checkpoints nor writes are left, no pack is.
        yield left if left.checkpoints or left.writes else Amount()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a plan was carried out."""

    done: bool
    """Not when the thread was written to: then what is left of the plan is void."""
    gone: int
    """How many checkpoints went."""
    now: Amount


Ready = Callable[[Drop], Awaitable[bool]]
"""Whether a step may be done."""


async def carry_out(store: Store, plan: ThreadPlan, ready: Ready | None = None) -> Progress:
    """Do what `plan` says, step by step; each leaves a thread that is whole. Stops when the thread is not as planned.

    Each step names the state that the one before left, so that nobody else's write goes unnoticed, and the thread need not
    be read again. `ready` is awaited before each step.
    """
    token: str | None = plan.token
    gone, now, stored = 0, plan.before, frozenset(plan.checkpoints)
    if plan.entering is not None:
        token = await store.rewrite(plan.thread, plan.entering, plan.token)
    for number, step in enumerate(plan.steps):
        if not token:
            return Progress(False, gone, now)
        if ready is not None and not await ready(step):
            return Progress(False, gone, now)
        token = await store.drop(plan.thread, step, token)
        last = number + 1 == len(plan.steps)
        # After a lost reply, a thread that was deleted looks as if somebody else had been here.
        if token is None and not (last and plan.deleted and await store.outline(plan.thread) is None):
            return Progress(False, gone, now)
        gone, now = gone + sum(place in stored for place in step.checkpoints), plan.amounts[number]
    if not plan.steps and not token:
        return Progress(False, gone, now)
    return Progress(True, gone, plan.after)
