"""Maintenance of many threads: retention and merging, with the hooks around them, and a report."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeGuard, cast

from milepost.callstore import CALL_PAGE, UNSETTLED, CallQuery, CallStore
from milepost.codec import Codec
from milepost.codec.calls import CallInfo, about_call
from milepost.compacting import Compacted, Compaction, History, compacted
from milepost.errors import Corrupt, InvalidConfig, Unavailable
from milepost.maintenance import Amount, Ready, ThreadPlan, by_policy, carry_out, plan_thread
from milepost.observe import Watch, hushed, log, thread_hash
from milepost.parents import Place
from milepost.places import ATTACHMENTS
from milepost.retention import Retention, live_spans
from milepost.store import Batch, Drop, Store
from milepost.survey import Survey

TRIES = 3
"""How often a thread that is written to meanwhile is planned, before it is left for another time."""
PAGE = 64

Outcome = Literal["changed", "unchanged", "moved", "leased", "vetoed", "failed"]


Progress = Callable[[int, "ThreadReport | None"], object]
Watching = Callable[[str, str], Watch]
"""Begins to observe an operation on a thread."""
Ask = Callable[..., Awaitable[Any]]
"""Calls a hook in the flavour of whoever maintains: `milepost.sides.Side.ask`."""


class Hooks:
    """What to call around the maintenance of a thread. Subclass it; each method but `archiving` and `erasing` may also be a
    coroutine function, where maintenance is async.

    Nothing is held while a hook runs: a run may go on with the thread, which is then planned anew, or take a lease, and then
    it is left alone. A hook that raises stops the maintenance of that thread, and what was not handed to `archive` before
    is still there.
    """

    blocking: ClassVar[tuple[str, ...]] = ()
    """Names of the methods that wait for a disk or a network and are no coroutine functions. Where maintenance is async,
    they are called in another thread, and hold up no event loop."""

    def before(self, plan: ThreadPlan) -> object:
        """Asked before anything is done. None and True agree, False keeps the thread as it is, and a list or set of
        (namespace, checkpoint id) keeps those, and what they need. Anything else is an error, and nothing is done. Asked
        again when the thread was written to meanwhile and more is to go than in the plan it saw."""
        return None

    def archiving(self, thread: str) -> AbstractContextManager[object]:
        """Entered before that is read which `archive` takes, and left when it has returned: by this a hook can tell
        whether the thread was erased in between."""
        return nullcontext()

    def archive(self, thread: str, batch: Batch) -> object:
        """Takes checkpoints that are about to go, with their pending writes and the packs of both, beside the ancestors that
        their delta channels are rebuilt from, some of which may stay, and first of all the attachments of the thread.
        They go as soon as it has returned; with False, which says that it did not take them,
        they stay, and the thread is planned anew. May be called several times for a thread, and again with the same
        after a crash."""
        return None

    def after(self, report: ThreadReport) -> object:
        """Told what was done. Not called for threads at which nothing was to be done. What it raises is the `error` of the
        report, whose outcome stays "changed"."""
        return None

    def erasing(self, thread: str) -> AbstractContextManager[object]:
        """Entered before a thread is erased, and left when `erase` has returned: by this a hook can remember what has to
        be removed even if the process ends in between, and tell of it by `unfinished`."""
        return nullcontext()

    def erase(self, thread: str) -> object:
        """Asked to remove what `archive` took of a thread, when that is gone. Returns how many things it removed, or
        None. May be called again with the same."""
        return None

    def unfinished(self) -> Iterable[str]:
        """The threads whose erasure did not come to its end."""
        return ()


@dataclass(frozen=True, slots=True)
class ThreadReport:
    """What became of one thread."""

    thread: str
    outcome: Outcome
    """ "moved": it was written to again and again. "leased": somebody drives it. "failed": see `error`; whatever was done
    before is done."""
    checkpoints: int = 0
    """How many went."""
    deleted: bool = False
    """Whether the whole thread went."""
    compacted: tuple[str, ...] = ()
    """The channels of the latest checkpoint that are smaller in a new one."""
    before: Amount = field(default_factory=Amount)
    after: Amount = field(default_factory=Amount)
    error: str = ""

    def facts(self) -> dict[str, Any]:
        """What an event tells."""
        return {
            "outcome": self.outcome,
            "checkpoints": self.checkpoints,
            "deleted": self.deleted,
            "compacted": len(self.compacted),
            "freed": self.before.bytes - self.after.bytes,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What maintenance did, or with `dry_run` would do."""

    dry_run: bool
    seen: int
    """How many threads were looked at."""
    threads: tuple[ThreadReport, ...]
    """Those at which something was to be done."""

    @property
    def checkpoints(self) -> int:
        """How many checkpoints went."""
        return sum(report.checkpoints for report in self.threads)

    @property
    def freed(self) -> int:
        """By how many bytes the threads became smaller."""
        return sum(report.before.bytes - report.after.bytes for report in self.threads)

    @property
    def failed(self) -> tuple[ThreadReport, ...]:
        """The threads that could not be maintained."""
        return tuple(report for report in self.threads if report.outcome == "failed")


@dataclass(frozen=True, slots=True)
class Erased:
    """What was removed of one thread for good."""

    thread: str
    before: Amount
    attachments: int
    """How many of the checkpoints were attachments of compaction."""
    archived: int
    """What the hook removed from its archive."""
    error: str = ""
    """Why something may be left: then try again."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was loaded from an archive into one thread."""

    thread: str
    checkpoints: int
    writes: int
    attachments: int = 0
    cut: int = 0
    """Bytes at the end of the archive that were passed over, as no whole step: one that a crash kept from being carried
    out leaves them, and so does whoever cuts the file short."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to do, to which threads."""

    policies: tuple[Retention, ...] = ()
    threads: tuple[str, ...] | None = None
    """None: all of them."""
    compaction: Compaction = field(default_factory=Compaction)
    hooks: Hooks = field(default_factory=Hooks)
    merge: bool = True
    dry_run: bool = False
    ledger: bool = False
    """Whether the store keeps one, whose unsettled calls hold checkpoints."""
    clock: Callable[[], float] = time.time
    progress: Progress | None = None
    """Called after each thread: how many were looked at, and what became of the last one."""
    stop: Callable[[], bool] = lambda: False
    """Asked before each thread."""

    def now(self) -> float:
        """What the clock says. Raises `InvalidConfig` for what is no time: by that, everything could be old."""
        now: object = self.clock()
        if isinstance(now, bool) or not isinstance(now, int | float) or not math.isfinite(now):
            raise InvalidConfig(
                f"clock returned {now!r:.200}: it must return the seconds since the epoch, as a finite number",
                what="clock",
                value=repr(now),
            )
        return float(now)


def policies_of(policy: object) -> tuple[Retention, ...]:
    """One policy, several, or None. Raises `InvalidConfig`."""
    if policy is None:
        return ()
    if isinstance(policy, Retention):
        return (policy,)
    if isinstance(policy, Sequence) and all(isinstance(one, Retention) for one in policy):
        return tuple(policy)
    raise InvalidConfig(f"policy is {policy!r}: it must be a Retention, or a list of them", what="policy")


class Asker:
    """Calls hooks in the flavour of whoever maintains, and lets it be seen."""

    def __init__(self, hooks: Hooks, ask: Ask, watch: Watching) -> None:
        self.hooks = hooks
        self._ask = ask
        self._watch = watch

    def has(self, name: str) -> bool:
        """Whether the hook does anything."""
        return getattr(type(self.hooks), name) is not getattr(Hooks, name)

    async def ask(self, name: str, thread: str, *given: object, size: int = 0, **facts: object) -> Any:
        """The answer of the hook `name`. It is observed with `facts`, and with the bytes that it was handed."""
        if not self.has(name):
            return None
        with self._watch("hook", thread) as event:
            if event is not None:
                event.bytes, event.facts = size, {"hook": name, **facts}
            answer = await self._ask(getattr(self.hooks, name), *given, blocks=name in self.hooks.blocking)
            if event is not None and name == "erase":
                event.facts["archived"] = answer if isinstance(answer, int) else 0
            return answer

    async def erase(self, thread: str) -> int:
        """How many things the hook `erase` removed. Raises `InvalidConfig` for an answer that is no number."""
        answer = await self.ask("erase", thread, thread)
        if answer is None or (isinstance(answer, int) and answer >= 0):
            return int(answer or 0)
        raise InvalidConfig(
            f"the hook `erase` returned {answer!r:.200}: it must return how many things it removed, or None",
            what="erase",
        )


async def maintain(store: Store, codec: Codec, order: Order, history: History, ask: Ask, watch: Watching) -> Report:
    """See `milepost.saver.Saver.maintain`."""
    asker = Asker(order.hooks, ask, watch)
    reports: list[ThreadReport] = []
    seen = 0
    order.now()  # wrong for one thread, it is wrong for all
    after: tuple[str, ...] | None = None
    while True:
        threads, after = await _page(store, order, after)
        for thread in threads:
            if order.stop():
                return Report(order.dry_run, seen, tuple(reports))
            seen += 1
            with watch("maintain", thread) as event:
                report = await _thread(_Job(store, codec, order, history, asker, thread))
                if event is not None:
                    told = {} if report is None else report.facts()
                    event.facts = {"outcome": "unchanged", "dry_run": order.dry_run, **told}
            if report is not None:
                reports.append(report)
            if order.progress is not None:
                order.progress(seen, report)
        if after is None:
            return Report(order.dry_run, seen, tuple(reports))


async def _page(
    store: Store, order: Order, after: tuple[str, ...] | None
) -> tuple[Iterable[str], tuple[str, ...] | None]:
    if order.threads is not None:
        return dict.fromkeys(order.threads), None
    page = await store.threads(after, PAGE)
    return [row.thread for row in page.rows], page.cursor


async def _thread(job: _Job) -> ThreadReport | None:
    """None when nothing was to be done."""
    try:
        report = await job.run()
        if report is not None and report.outcome == "changed" and not job.order.dry_run:
            return await _told(job.asker, report)
    except Unavailable:
        raise
    except Exception as exc:
        error = f"{type(exc).__name__}: {exc}"
        log.warning("thread %s could not be maintained: %s", thread_hash(job.thread), hushed(error, job.thread))
        report = job.report("failed", error=error)
    return report


async def _told(asker: Asker, report: ThreadReport) -> ThreadReport:
    """`report`, with what `Hooks.after` raises."""
    try:
        await asker.ask("after", report.thread, report, **report.facts())
    except Unavailable:
        raise
    except Exception as exc:
        error, thread = f"{type(exc).__name__}: {exc}", report.thread
        log.warning(
            "thread %s was maintained, and the hook after it failed: %s", thread_hash(thread), hushed(error, thread)
        )
        return replace(report, error=error)
    return report


class _Job:
    """The maintenance of one thread."""

    def __init__(self, store: Store, codec: Codec, order: Order, history: History, asker: Asker, thread: str) -> None:
        self.order = order
        self.asker = asker
        self.thread = thread
        self._store = store
        self._codec = codec
        self._history = history
        self._compacted: tuple[str, ...] = ()
        self._before: Amount | None = None
        self._now = Amount()
        self._gone = 0

    async def run(self) -> ThreadReport | None:
        order = self.order
        asks, archives = self.asker.has("before"), self.asker.has("archive")
        for _ in range(TRIES):
            plan = await self._plan(None)
            if plan is not None and await self._store.holder(self.thread) is not None:
                self._before, self._now = self._before or plan.before, plan.before
                return self.report("leased")
            held = None if plan is None else await self._unsettled()
            if held is not None:
                plan = await self._plan(held)
            if plan is None:
                return None if self._before is None else self.report("changed")
            self._before, self._now = self._before or plan.before, plan.before
            wanted = _wanted(await self.asker.ask("before", self.thread, plan, **_planned(plan)))
            if wanted is None:
                return self.report("vetoed")
            if wanted:
                asked, plan = plan, await self._plan({*(held or ()), *wanted})
                if plan is None:
                    return self.report("vetoed")
                if not set(plan.checkpoints).issubset(asked.checkpoints):
                    continue  # it was written to meanwhile
            if (asks or held is not None) and not await self._free(held):
                continue
            if order.dry_run:
                self._gone, self._now, self._compacted = len(plan.checkpoints), plan.after, plan.compacted
                return self.report("changed", deleted=plan.deleted)
            progress = await carry_out(self._store, plan, self._readiness(plan, held, archives=archives))
            self._gone += progress.gone
            self._now = progress.now
            if progress.done:
                self._compacted = plan.compacted
                return self.report("changed", deleted=plan.deleted)
        return self.report("moved")

    async def _free(self, held: Collection[Place] | None) -> bool:
        """Whether nobody has taken the thread, or begun a call whose checkpoints are not `held`, while a hook ran."""
        if await self._store.holder(self.thread) is not None:
            return False
        begun = await self._unsettled()
        return begun is None or (held is not None and begun.issubset(held))

    async def _unsettled(self) -> set[Place] | None:
        """The checkpoints of calls of which the ledger does not know what became; None when there are no such calls."""
        if not self.order.ledger:
            return None
        ledger = cast("CallStore", self._store)
        held: set[Place] | None = None
        after: tuple[str, ...] | None = None
        while True:
            page = await ledger.calls(CallQuery(self.thread, states=UNSETTLED), after, CALL_PAGE)
            for row in page.rows:
                call = self._codec.unseal(row.call, about_call(row.thread, row.key, "call"))
                info = CallInfo.unpack(call)
                held = {*(held or ()), *info.checkpoints, *info.earlier}
            if (after := page.cursor) is None:
                return held

    async def _plan(self, held: Collection[Place] | None) -> ThreadPlan | None:
        order, now = self.order, self.order.now()
        choose = by_policy(order.policies, self.thread, now, held)

        def compact(survey: Survey) -> Coroutine[Any, Any, Compacted | None]:
            return compacted(
                self._store, self._codec, survey, order.compaction, self._history, now, dry_run=order.dry_run
            )

        wanted = compact if order.compaction.compactors else None
        return await plan_thread(self._store, self._codec, self.thread, choose, merge=order.merge, compact=wanted)

    def _readiness(self, plan: ThreadPlan, held: Collection[Place] | None, *, archives: bool) -> Ready:
        """Has the hook take what a step deletes, and with the first step what any message may name; and sees whether the
        thread is still free, which a lease or a call that begins between two steps leaves to be asked."""
        beside = [(ATTACHMENTS, address) for address in plan.attachments]
        asked = True  # right before the first step

        async def ready(step: Drop) -> bool:
            nonlocal beside, asked
            if archives and step.checkpoints:
                hooks = self.order.hooks
                with hooks.archiving(self.thread):
                    places = await self._with_ancestors(step.checkpoints)
                    batch = await batch_of(self._store, self.thread, {*places, *beside})
                    counts = {"checkpoints": len(batch.rows), "writes": len(batch.writes), "packs": len(batch.packs)}
                    given: dict[str, Any] = {"size": size_of(batch), **counts}
                    taken = await self.asker.ask("archive", self.thread, self.thread, batch, **given)
                beside, asked = [], False
                if taken is False:
                    return False
            known, asked = asked, False
            return known or await self._free(held)

        return ready

    async def _with_ancestors(self, places: Collection[Place]) -> set[Place]:
        """`places`, with what their delta channels are rebuilt from, also where that stays in the thread."""
        outline = await self._store.outline(self.thread)
        if outline is None:
            return set(places)
        survey = Survey(self._store, self._codec, self.thread, outline)
        try:
            needed = await survey.chosen(lambda lineage: lineage.rows.keys() & places)
        except Corrupt as exc:
            # Nobody is to keep for ever what cannot be read, nor the rest of the thread with it.
            said = hushed(exc.message, self.thread)
            log.warning("what thread %s loses is archived without its ancestors: %s", thread_hash(self.thread), said)
            needed = None
        return {*places, *(needed or ())}

    def report(self, outcome: Outcome, *, deleted: bool = False, error: str = "") -> ThreadReport:
        before = self._before or Amount()
        return ThreadReport(self.thread, outcome, self._gone, deleted, self._compacted, before, self._now, error)


def _planned(plan: ThreadPlan) -> dict[str, Any]:
    """What an event tells of a plan."""
    return {
        "checkpoints": len(plan.checkpoints),
        "deleted": plan.deleted,
        "compacted": len(plan.compacted),
        "freed": plan.before.bytes - plan.after.bytes,
    }


def _wanted(answer: object) -> set[Place] | None:
    """What `Hooks.before` wants to be kept; None for everything."""
    if answer is False:
        return None
    if answer is None or answer is True:
        return set()
    places = cast("Collection[object]", answer) if isinstance(answer, list | tuple | set | frozenset) else ()
    found = {(pair[0], pair[1]) for pair in places if _is_place(pair)}
    if len(found) < len(set(map(repr, places))) or (not places and answer not in ([], (), set())):
        raise InvalidConfig(
            f"the hook `before` returned {answer!r:.200}: it must return None or True, which agree, False, or a list of "
            "pairs (namespace, checkpoint id) to keep",
            what="before",
        )
    return found


def _is_place(pair: object) -> TypeGuard[Place]:
    return isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)


async def batch_of(store: Store, thread: str, places: Collection[Place]) -> Batch:
    """Checkpoints, with their pending writes and the packs of both, as something that can be loaded again."""
    found = await store.rows(thread, sorted(places))
    rows = sorted(found.rows, key=lambda row: (row.key, row.ns))
    spans = live_spans(rows, (row for *_, row in found.writes))
    return Batch(tuple(rows), found.writes, tuple(await store.fetch(thread, spans) if spans else ()))


def size_of(batch: Batch) -> int:
    """Bytes of headers, pending writes and packs."""
    headers = sum(len(row.header) for row in batch.rows)
    return headers + sum(len(row.value) for *_, row in batch.writes) + sum(len(pack.data) for pack in batch.packs)
