"""What happens when a call arrives, as coroutines over `Hands`."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from milepost.callstore import CallAnswer, CallChange, CallQuery, CallRow, CallStore
from milepost.codec.calls import (
    CallInfo,
    Checkpoints,
    digest,
    fingerprint,
    match_of,
)
from milepost.errors import InvalidConfig, LeaseLost, Unavailable
from milepost.ledger.basis import FIRST_LOOK, LAST_LOOK, Basis, Plan, Question, facts, told
from milepost.ledger.call import Call, Replay, Run
from milepost.ledger.errors import (
    BarrierTimeout,
    CallInDoubt,
    CallPaused,
    CompensationPending,
    NotDurable,
    OrphanFound,
    PayloadMismatch,
)
from milepost.ledger.hands import Hands
from milepost.ledger.plain import is_for, taken
from milepost.ledger.policy import ToolPolicy, Verdict
from milepost.ledger.record import CallRecord
from milepost.ledger.request import (
    CallRequest,
    OnOrphan,
)
from milepost.store import Query

if TYPE_CHECKING:
    from milepost.ledger.core import Core

OF_NO_EFFECT: Final = ("failed", "compensated")
"""States of calls that have changed nothing, or nothing that is left."""
_ROUNDS: Final = 64
"""How often an arrival looks at a record that others keep changing, before it gives up."""


class Arrival(Basis):
    """What happens when a call arrives."""

    async def enter(self, hands: Hands, request: CallRequest) -> Run | Replay:
        """See `milepost.ledger.Ledger.enter`."""
        policy = self.policy(request)
        if not policy.effectful:
            return Run(self._unrecorded(request, policy))
        with self.bubbling(request):
            return await self._enter(hands, self.plan(request))

    async def recorded(self, hands: Hands, request: CallRequest) -> Replay | None:
        """What came of a call that cannot be performed here, as nobody has its function any more: None where nothing did.
        Where nobody knows, `reconcile` or a person says, as of an `unsafe` one."""
        with self.bubbling(request):
            plan = self.plan(replace(request, policy=replace(self.policy(request), kind="unsafe")))
            store = await self.store(hands)
            for _ in self.looks(plan):
                page = await store.calls(CallQuery(plan.home, (plan.key,)), None, 1)
                row = page.rows[0] if page.rows else None
                if row is None or row.state in OF_NO_EFFECT or row.state == "suspended":
                    return None
                # Only the function could spell the arguments as they are recorded.
                plan.info = replace(plan.info, fingerprint=self.book.info(row).fingerprint)
                found = await self._found(hands, store, plan, row, page.now)
                if isinstance(found, Replay):
                    return found
            raise self.in_progress(plan, None)

    async def _enter(self, hands: Hands, plan: Plan) -> Run | Replay:
        if not plan.request.durable and plan.info.own is None:
            raise NotDurable(
                f"{plan.info.tool!r} changes the world, and this run stores nothing before its end (durability "
                '"exit"): run with durability="sync" or "async", or declare a key of your own for the tool',
                **facts(plan),
            )
        store = await self.store(hands)
        await self.flush(store, plan)
        if plan.info.own is None:
            await self._barrier(hands, plan)
        return await self._arrive(hands, store, plan)

    async def _arrive(self, hands: Hands, store: CallStore, plan: Plan) -> Run | Replay:
        change = self._first(plan)
        for _ in self.looks(plan):
            answer = await self._claim(store, plan, change)
            row = answer.row
            if answer.done and row is not None:
                if change.expect is None and self.book.info(row).checkpoints != plan.info.checkpoints:
                    # Taken by an earlier arrival, from elsewhere, that never learned of it.
                    change = self._again(plan, row)
                    continue
                return Run(self._began(plan, row))
            if row is None:
                await self._orphans(hands, store, plan, answer)
                change = self._first(plan)
                continue
            following = await self._found(hands, store, plan, row, answer.now)
            if isinstance(following, Replay):
                return following
            change = following or self._first(plan)
        raise self.in_progress(plan, None)

    @staticmethod
    def looks(plan: Plan) -> Iterator[None]:
        """Some rounds of looking at a record; those in which it is waited for are limited by `wait_timeout` alone."""
        left = _ROUNDS
        while left > 0:
            waited = plan.waited
            yield
            left -= plan.waited == waited

    def _first(self, plan: Plan) -> CallChange:
        """The claim of a call that has no record yet."""
        book = self.book
        change = book.change(
            plan.home,
            plan.key,
            None,
            "started",
            lease=self.settings.lease,
            call=book.seal_info(plan.home, plan.key, plan.info),
            match=match_of(plan.info),
        )
        with self._lock:
            stamp = self._unconfirmed.pop((plan.home, plan.key), None)
        return change if stamp is None else replace(change, stamp=stamp)

    async def _claim(self, store: CallStore, plan: Plan, change: CallChange) -> CallAnswer:
        after = tuple(dict.fromkeys(id for _, id in plan.request.checkpoints)) if plan.home else ()
        try:
            with self.watch("claim", plan.request.thread) as event:
                self.refuse_the_deleted(plan.request)
                answer = await store.claim(plan.home, change, beside=plan.beside, after=after, fence=plan.fence)
                if event and answer.row is not None:
                    event.facts["state"], event.facts["claimed"] = answer.row.state, answer.done
                return answer
        except LeaseLost as exc:
            self.refused(plan.request.thread, exc)
            raise
        except Unavailable:
            # Whether it was applied is not known, but that nothing was performed under this stamp is.
            if change.expect is None:
                with self._lock:
                    self._unconfirmed[plan.home, plan.key] = change.stamp
            raise

    def _began(self, plan: Plan, row: CallRow) -> Call:
        call = Call(
            cast("Core", self),
            thread=plan.request.thread,
            home=plan.home,
            record_key=row.key,
            info=self.book.info(row),
            policy=plan.policy,
            mark=row.mark,
            until=row.until,
            fence=plan.fence,
            places=plan.request.checkpoints,
            began=self.book.began(row),
        )
        plain = plan.request.plain
        if plain and not is_for(plain, self.book.open(row).trail):
            call.passed = plain
        if call.places:
            self.boundary.begins(call.thread, call.places, self.settings.on_unsettled)
        return call

    def _unrecorded(self, request: CallRequest, policy: ToolPolicy) -> Call:
        info = CallInfo(
            request.tool, None, "", policy.kind, digest("readonly", secrets.token_hex(16)), call=request.call
        )
        return Call(
            cast("Core", self),
            thread=request.thread,
            home=request.thread,
            record_key="",
            info=info,
            policy=policy,
            mark=None,
            until=float("inf"),
            fence=None,
        )

    # What is found on arrival.

    async def _found(
        self, hands: Hands, store: CallStore, plan: Plan, row: CallRow, now: float
    ) -> Replay | CallChange | None:
        """What a record says: the result, a claim to make, or None to look again."""
        book = self.book
        record = book.open(row)
        if row.state in ("compensating", "compensation_failed"):
            raise self._undoing(plan, record)
        if not _same(plan, record):
            return await self._mismatch(hands, store, plan, row, record, now)
        if row.state == "succeeded":
            return Replay(record, record.result)
        if row.state == "compensated":
            return self._again(plan, row, generation=row.generation + 1, attempt=0, outcome={}, note="performed anew")
        if row.state == "failed":
            return self._again(plan, row, attempt=row.attempt + 1, outcome={}, note="tried again")
        if row.state == "suspended":
            return self._again(plan, row, note=taken(plan.request.plain, record.trail))
        if row.state == "started":
            await self._under_way(hands, store, plan, row, now)
            return None
        return await self._doubt(hands, store, plan, row, record, now)

    async def _under_way(self, hands: Hands, store: CallStore, plan: Plan, row: CallRow, now: float) -> None:
        """A record that somebody has begun: say what became of it, if it was this process, or wait until it is in doubt."""
        if await self.flush(store, plan, row.key):
            return
        if row.until > now:
            await self.wait(hands, plan, self.book.open(row), row.until - now)
        else:
            await self.expired(store, row, plan.fence)

    def _undoing(self, plan: Plan, record: CallRecord) -> CallPaused:
        why, way = "it is being undone", "Repeat Ledger.rollback"
        if record.state == "compensation_failed":
            why = "it could not be undone"
            way += f", or say that it was undone by hand, Ledger.resolve({record.key!r}, applied(), …)"
        return self.pause(Question(CompensationPending, plan, record, ()), why, f"{way}; then run the thread again.")

    async def _mismatch(
        self, hands: Hands, store: CallStore, plan: Plan, row: CallRow, record: CallRecord, now: float
    ) -> CallChange | None:
        """The key is recorded for other arguments: only a person can say that it is the call at hand all the same."""
        choices = {"succeeded": ("adopt",), "suspended": ("run",)}.get(row.state, ("applied", "not_applied"))
        question = Question(PayloadMismatch, plan, record, choices)
        given = self.given(plan, question)
        verdict = "applied" if plan.taken == row.key else "unknown" if given is None else given[0].kind
        bound = replace(
            record.info, tool=plan.info.tool, arguments=plan.info.arguments, fingerprint=plan.info.fingerprint
        )
        note = "bound to the arguments at hand"
        if row.state == "compensated":
            return self._again(plan, row, generation=row.generation + 1, attempt=0, outcome={}, info=bound, note=note)
        if row.state == "failed":
            return self._again(plan, row, attempt=row.attempt + 1, outcome={}, info=bound, note=note)
        if row.state == "started" and row.until <= now:
            await self.expired(store, row, plan.fence)
            return None
        if given is not None and row.state == "started":
            await self.wait(hands, plan, record, row.until - now)
            return None
        if given is not None and row.state == "in_doubt":
            if verdict == "applied":
                plan.taken = row.key
            await self._answered(hands, store, plan, row, record, given, now)
            return None
        if verdict == "applied" and row.state == "succeeded":
            call = self.book.seal_info(plan.home, row.key, bound)
            change = self.book.change(plan.home, row.key, row.mark, row.state, call=call, note=note)
            await store.settle(plan.home, replace(change, owner=row.owner), fence=plan.fence)
            return None
        if verdict == "not_applied" and row.state == "suspended":
            return self._again(plan, row, info=bound, note=note)
        raise self.pause(
            question,
            f"the key is recorded for a call of {record.tool!r} with other arguments",
            found=record.info.fingerprint,
            expected=plan.info.fingerprint,
        )

    async def _answered(
        self,
        hands: Hands,
        store: CallStore,
        plan: Plan,
        row: CallRow,
        record: CallRecord,
        given: tuple[Verdict, str],
        now: float,
    ) -> None:
        """Record the verdict that the run was resumed with, once nobody can act any more whom it could prove wrong."""
        answer, by = given
        quiet = row.until + record.info.max_duration + self.settings.skew
        if answer.kind == "not_applied" and now < quiet and not record.told:
            await self.wait(hands, plan, record, quiet - now)
            return
        await self.judge(store, row, answer, by, plan.fence)
        plan.request = replace(plan.request, answer=None)

    def _again(self, plan: Plan, row: CallRow, info: CallInfo | None = None, **how: Any) -> CallChange:
        """A claim of a call that has a record, as a call of `info`."""
        book, record = self.book, self.book.open(row)
        info, earlier = info or record.info, record.info.earlier
        if row.state == "in_doubt" and plan.policy.kind != "transactional":
            earlier = _places_of(record)
        elif row.state in OF_NO_EFFECT:
            earlier = ()
        call = book.seal_info(plan.home, row.key, _from_here(plan, row, info, earlier))
        return book.change(plan.home, row.key, row.mark, "started", lease=self.settings.lease, call=call, **how)

    async def _doubt(
        self, hands: Hands, store: CallStore, plan: Plan, row: CallRow, record: CallRecord, now: float
    ) -> Replay | CallChange | None:
        """An outcome that is not known: wait until nobody can act any more, then retry, reconcile, or ask a person."""
        policy, found = plan.policy, ""
        if policy.kind == "transactional" and not record.told:
            # What was not committed with its record did not happen; whoever still tries fails at the record.
            return self._again(plan, row, attempt=row.attempt + 1, outcome={}, note="not committed")
        quiet = row.until + record.info.max_duration + self.settings.skew
        if policy.retries and (policy.window is None or now - row.started + policy.max_duration < policy.window):
            if now < quiet and not record.told:
                await self.wait(hands, plan, record, quiet - now)
                return None
            return self._again(plan, row, attempt=row.attempt + 1, outcome={}, note="retried with the same key")
        question = Question(CallInDoubt, plan, record)
        if (given := self.given(plan, question)) is not None:
            await self._answered(hands, store, plan, row, record, given, now)
            return None
        if policy.reconcile is not None:
            if now < quiet:
                await self.wait(hands, plan, record, quiet - now)
                return None
            verdict = await self.asked(hands, policy, record)
            if verdict.kind != "unknown":
                await self.judge(store, row, verdict, "reconcile", plan.fence)
                return None
            found = verdict.note
        known = "; ".join(part for part in (record.reason, found) if part)
        raise self.pause(question, f"nobody knows whether it took place ({known})")

    # Orphans.

    async def _orphans(self, hands: Hands, store: CallStore, plan: Plan, answer: CallAnswer) -> None:
        """Look at equal calls: adopt the one whose message is gone, or which is in doubt and was answered with an error;
        or make sure that there is none."""
        request, book = plan.request, self.book
        how = request.orphans or self.settings.on_orphan
        known: list[str] = []
        orphans: list[CallRow] = []
        for row in sorted(answer.kin, key=lambda row: (row.started, row.key)):
            # What did not take place, or was undone, is nobody's effect.
            info = book.info(row)
            told_again = self._told_again(info, request)
            if row.state == "started" and told_again and how != "run":
                # Whoever was at it has ended, and could not say so.
                await self._under_way(hands, store, plan, row, answer.now)
                return
            again = row.state == "in_doubt" and told_again
            if row.state in OF_NO_EFFECT or how == "run" or (self._explained(info, request) and not again):
                known.append(row.key)
            else:
                orphans.append(row)
        if orphans and self._adopts(plan, orphans, how):
            await self._adopt(store, plan, orphans[0], book.info(orphans[0]))
            return
        plan.beside = (*plan.beside, *known, *(row.key for row in orphans))

    def _adopts(self, plan: Plan, orphans: Sequence[CallRow], how: OnOrphan) -> bool:
        """Whether the first of these records is of the call at hand. Asks a person where that is not for the class of the tool to
        say; the answer that it is not is about all of them."""
        book, request = self.book, plan.request
        first, *others = (book.open(row) for row in orphans)
        question = Question(OrphanFound, plan, first, ("adopt", "run"), tuple(others))
        given = self.given(plan, question)
        if given is not None:
            plan.request = replace(request, answer=None)
            return given[0].kind == "applied"
        if how == "auto" and plan.policy.retries:
            return True
        again = first.state == "in_doubt" and self._told_again(first.info, request)
        raise self.pause(
            question,
            "an equal call was answered with an error, and nobody knows whether it took place: is this that call"
            if again
            else "an equal call is recorded whose message is not in the state any more: is this that call",
            orphan=first.key,
        )

    @staticmethod
    def _told_again(info: CallInfo, request: CallRequest) -> bool:
        """Whether a call was answered with an error, and the model was told to try again."""
        # A record that another call of the same message has adopted is that call's.
        return info.message != request.message and any(ids in request.failed for ids in info.asked_by)

    @staticmethod
    def _explained(info: CallInfo, request: CallRequest) -> bool:
        """Whether a record is of a message at hand."""
        if info.message is None:
            return request.message is None and info.position <= request.position
        return info.message == request.message or not request.branch.isdisjoint(info.asked_by)

    async def _adopt(self, store: CallStore, plan: Plan, row: CallRow, info: CallInfo) -> None:
        """Bind an orphan's record to the call at hand, and let it be found under its key."""
        new, book = plan.info, self.book
        bound = replace(
            info,
            message=new.message,
            call=new.call,
            position=new.position,
            apart=new.apart,
            former=(*info.former, info.wording),
        )
        # The effect was made from where it was, and is one of the call at hand from now on.
        bound = _from_here(plan, row, bound, _places_of(book.open(row)))
        change = book.change(
            plan.home,
            row.key,
            row.mark,
            row.state,
            call=book.seal_info(plan.home, row.key, bound),
            alias=plan.key,
            note=f"adopted by call {new.call!r} of message {new.message!r}",
        )
        await store.settle(plan.home, replace(change, owner=row.owner), fence=plan.fence)

    # The barrier.

    async def _barrier(self, hands: Hands, plan: Plan) -> None:
        """Wait until the checkpoints that the task rests on are durable: else a crash forgets who asked for the call."""
        thread, boundary = plan.request.thread, self.boundary
        missing = boundary.missing((thread, ns, id) for ns, id in plan.request.checkpoints)
        if not missing:
            return
        store = await self.saver.operations.open(hands.side)
        left = self.settings.barrier_timeout
        look = FIRST_LOOK
        for key in missing:
            done = boundary.expect(key)
            try:
                while not done.done():
                    self.refuse_the_deleted(plan.request)
                    found = await store.page(Query(thread=key[0], ns=key[1], id=key[2]), None, 1, items=False)
                    if found.snapshots:
                        boundary.committed(key)
                        break
                    if left <= 0:
                        raise self.pause(
                            Question(BarrierTimeout, plan, None, ()),
                            f"checkpoint {key[2]!r}, from which its task started, was not stored within "
                            f"{self.settings.barrier_timeout:g} s, so nothing durable asks for it"
                            + (_UNSTORED if key[1] else ""),
                            missing=key,
                        )
                    pause = min(look, left)
                    await hands.until(done, pause)
                    left, look = left - pause, min(2 * look, LAST_LOOK)
            finally:
                boundary.forget(key, done)


_UNSTORED: Final = (
    " (a subgraph that is compiled with checkpointer=False stores none, ever: its tools cannot be recorded)"
)
_NOWHERE: Final = ("", "")
"""In the place of checkpoints of which nobody knows which they are."""


def _places_of(record: CallRecord) -> Checkpoints:
    """Every checkpoint that the effect of a call may have been made from."""
    info = record.info
    return (*info.earlier, *info.checkpoints, *(() if info.checkpoints and record.placed else (_NOWHERE,)))


def _from_here(plan: Plan, row: CallRow, info: CallInfo, earlier: Checkpoints) -> CallInfo:
    """`info` of a record that the call at hand takes over with the next entry of the trail."""
    here = plan.info.checkpoints
    left = tuple(place for place in dict.fromkeys(earlier) if place not in here)
    return replace(info, checkpoints=here, earlier=left, claim=len(row.trail))


def _same(plan: Plan, record: CallRecord) -> bool:
    """Whether a record is of the arguments at hand: also where the tool has got new ones since, left to their defaults,
    and where an earlier release has recorded them."""
    request, wanted = plan.request, record.info.fingerprint
    if wanted == plan.info.fingerprint:
        return True
    if request.former is not None and _print(plan, request.former) == wanted:
        return True
    if plan.policy.fingerprint is not None or not isinstance(record.arguments, dict):
        return False
    new = request.filled - record.arguments.keys()
    spellings = [spelling for spelling in (request.arguments, request.former) if spelling is not None and new]
    return any(
        _print(plan, {name: value for name, value in spelling.items() if name not in new}) == wanted
        for spelling in spellings
    )


def _print(plan: Plan, arguments: Mapping[str, Any]) -> str | None:
    """The fingerprint that the call would have with these arguments; None where there is none."""
    how = plan.policy.fingerprint
    try:
        shown = arguments if how is None else told("fingerprint", how, replace(plan.request, arguments=arguments))
        return fingerprint(plan.info.tool, shown)
    except InvalidConfig:
        return None
