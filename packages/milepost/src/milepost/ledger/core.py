"""What happens when a call arrives, and when it ends: each written once, as coroutines over `Hands`."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, cast

from milepost.callstore import CallAnswer, CallChange, CallQuery, CallRow, CallStore
from milepost.codec.calls import (
    MAX_KEY,
    CallInfo,
    call_key,
    digest,
    fingerprint,
    handle_of_own,
    match_of,
)
from milepost.errors import InvalidConfig, LeaseLost, MilepostError, TooLarge, Unavailable, Unserializable
from milepost.lease import check as check_lease
from milepost.lease import fence_for
from milepost.ledger.boundary import Boundary, Key
from milepost.ledger.bubbling import GraphInterrupt
from milepost.ledger.call import Call, Done, Replay, Run, performing
from milepost.ledger.errors import (
    BarrierTimeout,
    CallInDoubt,
    CallInProgress,
    CallPaused,
    CallStopped,
    CallUnrecorded,
    CompensationPending,
    LedgerError,
    NotDurable,
    OrphanFound,
    PayloadMismatch,
    pause_id,
)
from milepost.ledger.hands import AsyncHands, BlockingHands, Hands
from milepost.ledger.policy import ToolPolicy, Verdict
from milepost.ledger.record import Book, CallRecord
from milepost.ledger.request import (
    CallRequest,
    Failed,
    InDoubt,
    OnOrphan,
    Outcome,
    Succeeded,
    Suspended,
)
from milepost.observe import log
from milepost.operations import AsyncSide, BlockingSide, Operations
from milepost.places import check_id, check_thread
from milepost.store import Query

_ROUNDS: Final = 64
"""How often an arrival looks at a record that others keep changing, before it gives up."""
_SETTLE_TRIES: Final = 3
_FIRST_LOOK, _LAST_LOOK = 0.02, 0.5
"""Seconds between two looks at a record that another worker holds: first, and at most."""


class OverSaver(Protocol):
    """What the ledger needs of a saver."""

    @property
    def operations(self) -> Operations: ...

    def blocking_side(self) -> BlockingSide: ...

    def async_side(self) -> AsyncSide: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a ledger; durations in seconds."""

    tools: Mapping[str, ToolPolicy]
    default: ToolPolicy
    lease: float
    wait_timeout: float
    barrier_timeout: float
    skew: float
    tenant: str
    owner: str
    on_orphan: OnOrphan
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    hands: tuple[type[BlockingHands], type[AsyncHands]] = (BlockingHands, AsyncHands)


@dataclass(slots=True)
class Plan:
    """A request, worked out."""

    request: CallRequest
    policy: ToolPolicy
    home: str
    key: str
    info: CallInfo
    fence: int | None = None
    beside: tuple[str, ...] = ()
    waited: float = field(default=0.0)

    @property
    def at(self) -> Key | None:
        """The checkpoint that the task started from."""
        checkpoints = self.request.checkpoints
        return (self.request.thread, *checkpoints[0]) if checkpoints else None


class Core:
    """The ledger's decisions over one saver."""

    def __init__(self, saver: OverSaver, settings: Settings, boundary: Boundary) -> None:
        self.saver = saver
        self.settings = settings
        self.boundary = boundary
        self.monotonic = settings.monotonic
        self._lock = threading.Lock()
        self._unconfirmed: dict[tuple[str, str], str] = {}
        """(home, key) -> the stamp of a claim whose reply was lost: nothing was performed under it."""
        self._kept: dict[tuple[str, str], CallChange] = {}
        """Outcomes that could not be stored yet."""

    def blocking(self) -> Hands:
        return self.settings.hands[0](self.saver.blocking_side())

    def asynchronous(self) -> Hands:
        return self.settings.hands[1](self.saver.async_side())

    @property
    def book(self) -> Book:
        return Book(self.saver.operations.codec, self.settings.clock, self.settings.owner)

    async def store(self, hands: Hands) -> CallStore:
        return cast("CallStore", await self.saver.operations.open(hands.side))

    def fence(self, home: str) -> int | None:
        """What a change carries here; a key of global scope is no thread's."""
        return fence_for(self.saver.operations.shared, home) if home else None

    # Arriving.

    def policy(self, request: CallRequest) -> ToolPolicy:
        """The class of the request's tool."""
        return request.policy or self.settings.tools.get(request.tool, self.settings.default)

    def plan(self, request: CallRequest) -> Plan:
        """Key and fingerprint. Raises `InvalidConfig` for what cannot be recognised again."""
        policy, settings = self.policy(request), self.settings
        thread = check_thread(request.thread) if request.thread else ""
        shown = policy.fingerprint(request.arguments) if policy.fingerprint else dict(request.arguments)
        mark = fingerprint(request.tool, shown)
        own, scope = request.key, request.scope
        if own is None and policy.key is not None:
            own, scope = policy.key(request.arguments), policy.scope
        if own is None and request.call is None:
            raise InvalidConfig(
                f"the call of {request.tool!r} has neither an id nor a key: declare key=… for the tool", what="key"
            )
        if not thread and (own is None or scope != "global"):
            raise InvalidConfig(
                f"the call of {request.tool!r} is made outside of a thread: name one, or use a key of scope 'global'",
                what="thread",
            )
        info = CallInfo(
            tool=request.tool,
            arguments=shown,
            fingerprint=mark,
            kind=policy.kind,
            handle="",
            tenant=settings.tenant,
            message=request.message,
            call=request.call,
            position=request.position,
            apart=mark if request.repeats or (request.message is None and own is None) else "",
            epoch=request.epoch,
            own=None if own is None else _check_key(own),
            human=request.human,
            checkpoints=request.checkpoints,
            window=policy.window,
            max_duration=policy.max_duration,
            compensable=policy.compensate is not None,
        )
        key = call_key(thread, info)
        handle = key if own is None else handle_of_own(thread, settings.tenant, own, scope)
        home = "" if own is not None and scope == "global" else thread
        fence = self.fence(home)
        return Plan(request, policy, home, key, replace(info, handle=handle), fence)

    async def enter(self, hands: Hands, request: CallRequest) -> Run | Replay:
        """See `milepost.ledger.Ledger.enter`."""
        policy = self.policy(request)
        if not policy.effectful:
            return Run(self._unrecorded(request, policy))
        with self._bubbling(request):
            return await self._enter(hands, self.plan(request))

    async def _enter(self, hands: Hands, plan: Plan) -> Run | Replay:
        if not plan.request.durable and plan.info.own is None:
            raise NotDurable(
                f"{plan.info.tool!r} changes the world, and this run stores nothing before its end (durability "
                '"exit"): run with durability="sync" or "async", or declare a key of your own for the tool',
                **_facts(plan),
            )
        store = await self.store(hands)
        await self._flush(store, plan)
        if plan.info.own is None:
            await self._barrier(hands, plan)
        return await self._arrive(hands, store, plan)

    async def _arrive(self, hands: Hands, store: CallStore, plan: Plan) -> Run | Replay:
        change = self._first(plan)
        for _ in range(_ROUNDS):
            answer = await self._claim(store, plan, change)
            row = answer.row
            if answer.done and row is not None:
                return Run(self._began(plan, row))
            if row is None:
                await self._orphans(store, plan, answer.kin)
                change = self._first(plan)
                continue
            following = await self._found(hands, store, plan, row, answer.now)
            if isinstance(following, Replay):
                return following
            change = following or self._first(plan)
        raise self._in_progress(plan, None)

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
            return await store.claim(plan.home, change, beside=plan.beside, after=after, fence=plan.fence)
        except Unavailable:
            # Whether it was applied is not known, but that nothing was performed under this stamp is.
            if change.expect is None:
                with self._lock:
                    self._unconfirmed[plan.home, plan.key] = change.stamp
            raise

    def _began(self, plan: Plan, row: CallRow) -> Call:
        call = Call(
            self,
            thread=plan.request.thread,
            home=plan.home,
            record_key=row.key,
            info=self.book.info(row),
            policy=plan.policy,
            mark=row.mark,
            until=row.until,
            fence=plan.fence,
            at=plan.at,
        )
        if plan.at is not None:
            self.boundary.begins(plan.at)
        return call

    def _unrecorded(self, request: CallRequest, policy: ToolPolicy) -> Call:
        info = CallInfo(
            request.tool, None, "", policy.kind, digest("readonly", secrets.token_hex(16)), call=request.call
        )
        return Call(
            self,
            thread=request.thread,
            home=request.thread,
            record_key="",
            info=info,
            policy=policy,
            mark=None,
            until=float("inf"),
            fence=None,
            at=None,
        )

    # What is found on arrival.

    async def _found(
        self, hands: Hands, store: CallStore, plan: Plan, row: CallRow, now: float
    ) -> Replay | CallChange | None:
        """What a record says: the result, a claim to make, or None to look again."""
        book = self.book
        record = book.open(row)
        if record.info.fingerprint != plan.info.fingerprint:
            raise self._pause(
                PayloadMismatch,
                plan,
                record,
                f"the key is recorded for a call of {record.tool!r} with other arguments",
                found=record.info.fingerprint,
                expected=plan.info.fingerprint,
            )
        if row.state == "succeeded":
            return Replay(record, record.result)
        if row.state in ("compensating", "compensation_failed"):
            raise self._pause(CompensationPending, plan, record, "it is being undone, or could not be undone")
        if row.state == "compensated":
            return self._again(plan, row, generation=row.generation + 1, attempt=0, outcome={}, note="performed anew")
        if row.state == "failed":
            return self._again(plan, row, attempt=row.attempt + 1, outcome={}, note="tried again")
        if row.state == "suspended":
            return self._again(plan, row, note="resumed")
        if row.state == "started":
            if row.until > now:
                await self._wait(hands, plan, record, row.until - now)
                return None
            await self.expired(store, row, plan.fence)
            return None
        return await self._doubt(hands, store, plan, row, record, now)

    def _again(self, plan: Plan, row: CallRow, **how: Any) -> CallChange:
        return self.book.change(plan.home, row.key, row.mark, "started", lease=self.settings.lease, **how)

    async def expired(self, store: CallStore, row: CallRow, fence: int | None) -> CallAnswer:
        """An expired lease means in doubt, never free."""
        reason = f"{row.owner} did not say what became of it before its lease ended"
        change = self.book.change(row.thread, row.key, row.mark, "in_doubt", outcome={"reason": reason}, note=reason)
        return await store.settle(row.thread, replace(change, owner=row.owner), fence=fence)

    async def _doubt(
        self, hands: Hands, store: CallStore, plan: Plan, row: CallRow, record: CallRecord, now: float
    ) -> Replay | CallChange | None:
        """An outcome that is not known: wait until nobody can act any more, then retry, reconcile, or ask a person."""
        request, policy = plan.request, plan.policy
        if policy.kind == "transactional":
            # What was not committed with its record did not happen; whoever still tries fails at the record.
            return self._again(plan, row, attempt=row.attempt + 1, outcome={}, note="not committed")
        quiet = row.until + record.info.max_duration + self.settings.skew
        if policy.retries and (policy.window is None or now - row.started + policy.max_duration < policy.window):
            if now < quiet and not record.told:
                await self._wait(hands, plan, record, quiet - now)
                return None
            return self._again(plan, row, attempt=row.attempt + 1, outcome={}, note="retried with the same key")
        if request.answer is not None and request.answer.kind != "unknown":
            await self.judge(store, row, request.answer, request.answered_by or "a person", plan.fence)
            return None
        if policy.reconcile is not None:
            if now < quiet:
                await self._wait(hands, plan, record, quiet - now)
                return None
            verdict = await hands.do(policy.reconcile, record)
            if not isinstance(verdict, Verdict):
                raise InvalidConfig(
                    f"reconcile of {record.tool!r} returned {verdict!r}: applied(…), not_applied() or unknown()",
                    what="reconcile",
                )
            if verdict.kind != "unknown":
                await self.judge(store, row, verdict, "reconcile", plan.fence)
                return None
        raise self._pause(CallInDoubt, plan, record, f"nobody knows whether it took place ({record.reason})")

    async def judge(self, store: CallStore, row: CallRow, verdict: Verdict, by: str, fence: int | None) -> CallAnswer:
        """Record a verdict on a call that is in doubt."""
        if verdict.kind == "applied":
            state, outcome = "succeeded", {"result": verdict.result}
        else:
            state, outcome = "failed", {"reason": verdict.note or f"not applied, says {by}"}
        change = self.book.change(
            row.thread,
            row.key,
            row.mark,
            cast("Any", state),
            outcome=outcome,
            by=by,
            note=f"{verdict.kind}. {verdict.note}".strip(),
        )
        return await store.settle(row.thread, replace(change, owner=row.owner), fence=fence)

    async def _wait(self, hands: Hands, plan: Plan, record: CallRecord, needed: float) -> None:
        left = self.settings.wait_timeout - plan.waited
        if left <= 0:
            raise self._in_progress(plan, record)
        look = min(max(plan.waited, _FIRST_LOOK), _LAST_LOOK, max(needed, _FIRST_LOOK), left)
        await hands.sleep(look)
        plan.waited += look

    # Orphans.

    async def _orphans(self, store: CallStore, plan: Plan, kin: Sequence[CallRow]) -> None:
        """Look at equal calls: adopt the one whose message is gone, or make sure that there is none."""
        request, book = plan.request, self.book
        how = request.orphans or self.settings.on_orphan
        known: list[str] = []
        for row in sorted(kin, key=lambda row: (row.started, row.key)):
            info = book.info(row)
            if how == "run" or self._explained(info, request):
                known.append(row.key)
                continue
            record = book.open(row)
            if request.answer is not None and request.answer.kind != "unknown":
                adopts = request.answer.kind == "applied"
            elif how == "auto" and plan.policy.retries:
                adopts = True
            else:
                raise self._pause(
                    OrphanFound,
                    plan,
                    record,
                    "an equal call is recorded whose message is not in the state any more: is this that call",
                    choices=("adopt", "run"),
                    orphan=record.key,
                )
            if not adopts:
                known.append(row.key)
                continue
            await self._adopt(store, plan, row, info)
            return
        plan.beside = (*plan.beside, *known)

    @staticmethod
    def _explained(info: CallInfo, request: CallRequest) -> bool:
        """Whether a record is of a message at hand."""
        if info.message is None:
            return request.message is None and info.position <= request.position
        return info.message == request.message or (info.message, info.call or "") in request.branch

    async def _adopt(self, store: CallStore, plan: Plan, row: CallRow, info: CallInfo) -> None:
        """Bind an orphan's record to the call at hand, and let it be found under its key."""
        new = plan.info
        bound = replace(
            info,
            message=new.message,
            call=new.call,
            position=new.position,
            apart=new.apart,
            checkpoints=new.checkpoints,
        )
        book = self.book
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
        look = _FIRST_LOOK
        for key in missing:
            done = boundary.expect(key)
            try:
                while not done.done():
                    found = await store.page(Query(thread=key[0], ns=key[1], id=key[2]), None, 1, items=False)
                    if found.snapshots:
                        boundary.committed(key)
                        break
                    if left <= 0:
                        raise BarrierTimeout(
                            f"{plan.info.tool!r} was not performed: checkpoint {key[2]!r} of thread {thread!r}, from "
                            f"which its task started, was not stored within {self.settings.barrier_timeout:g} s",
                            missing=key,
                            **_facts(plan),
                        )
                    pause = min(look, left)
                    await hands.until(done, pause)
                    left, look = left - pause, min(2 * look, _LAST_LOOK)
            finally:
                boundary.forget(key, done)

    # While it is performed.

    async def check(self, hands: Hands, call: Call) -> None:
        """See `Call.check`."""
        if call.mark is None:
            return
        if call.over:
            raise call.superseded()
        store = await self.store(hands)
        asked = self.monotonic()
        change = self.book.renewal(call.record_key, call.mark, self.settings.lease)
        try:
            check_lease(self.saver.operations.shared, call.thread)
            answer = await store.claim(call.home, change, fence=call.fence)
        except LeaseLost as exc:
            self._end(call)
            raise call.superseded() from exc
        except Unavailable as exc:
            raise LedgerError(
                f"whether {call.tool!r} may still act could not be asked: {exc.message}", **_facts_of(call)
            ) from exc
        if not answer.done or answer.row is None:
            self._end(call)
            raise call.superseded()
        call.mark, call.until, call.checked = answer.row.mark, answer.row.until, asked

    async def step(
        self,
        hands: Hands,
        call: Call,
        step: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """See `Call.once`."""
        if not step:
            raise InvalidConfig(f"the step is {step!r}: name it by a text", what="step", value=repr(step)[:200])
        mark = fingerprint(f"{call.tool}.{step}", [list(args), dict(kwargs)])
        policy = replace(call.policy, key=None, compensate=None, fingerprint=None)
        parent = call.info
        info = replace(
            parent,
            arguments=[list(args), dict(kwargs)],
            fingerprint=mark,
            step=step,
            step_of=call.generation,
            compensable=False,
            human="",
        )
        request = CallRequest(tool=call.tool, thread=call.thread, policy=policy, checkpoints=parent.checkpoints)
        plan = Plan(request, policy, call.home, call_key(call.home, info), info, call.fence)
        if not call.recorded:
            return await hands.do(lambda: function(*args, **kwargs))
        return (await self._performed(hands, plan, lambda: function(*args, **kwargs))).result

    # Ending.

    def classify(self, call: Call, error: BaseException) -> Outcome:
        """What an exception of the tool says about its effect."""
        if isinstance(error, GraphInterrupt | CallStopped):
            return Suspended()
        if isinstance(error, call.policy.not_applied):
            return Failed(f"{type(error).__name__}: {error}")
        return InDoubt(f"{type(error).__name__}: {error}")

    async def settle(self, hands: Hands, call: Call, outcome: Outcome) -> Replay | None:
        """Store what became of the call, durably.

        Returns another worker's result where that one has taken the call over and finished it. Raises
        `CallSuperseded` where it has not, and `CallUnrecorded` where the outcome could not be stored.
        """
        if call.mark is None or call.over:
            return None
        try:
            return await self._settle(hands, call, outcome)
        finally:
            self._end(call)

    async def _settle(self, hands: Hands, call: Call, outcome: Outcome) -> Replay | None:
        assert call.mark is not None
        store = await self.store(hands)
        change = self._ending(call, outcome)
        for _ in range(_SETTLE_TRIES):
            answer = await self._stored(store, call, change)
            row = answer.row
            if answer.done:
                return None
            if row is None or (row.generation, row.attempt) != (call.mark.generation, call.mark.attempt):
                break
            if row.state == "in_doubt" and not isinstance(outcome, InDoubt):
                # Somebody gave us up; but this attempt is still the last one, and knows.
                change = replace(change, expect=row.mark)
                continue
            break
        if row is not None and row.state == "succeeded":
            record = self.book.open(row)
            return Replay(record, record.result)
        if isinstance(outcome, InDoubt | Suspended):
            return None
        raise call.superseded()

    def _ending(self, call: Call, outcome: Outcome) -> CallChange:
        assert call.mark is not None
        book, spent = self.book, self.monotonic() - call.checked
        if isinstance(outcome, Succeeded):
            try:
                return book.change(
                    call.home, call.record_key, call.mark, "succeeded", outcome={"result": outcome.result}
                )
            except Unserializable as exc:
                reason = f"it was performed, and what it returned cannot be stored: {exc.message}"
                self._unstorable(call, reason)
                raise CallUnrecorded(f"{call.tool!r}: {reason}", **_facts_of(call)) from exc
        if isinstance(outcome, Failed):
            return book.change(
                call.home,
                call.record_key,
                call.mark,
                "failed",
                outcome={"reason": outcome.error},
                note=outcome.error,
            )
        if isinstance(outcome, Suspended):
            return book.change(call.home, call.record_key, call.mark, "suspended", lease=0.0)
        # The owner acts no more: the world may still, for as long as an effect takes since the last check.
        return book.change(
            call.home,
            call.record_key,
            call.mark,
            "in_doubt",
            outcome={"reason": outcome.reason, "told": True},
            note=outcome.reason,
            lease=-spent,
        )

    def _unstorable(self, call: Call, reason: str) -> None:
        """Have the next arrival say why there is no result."""
        assert call.mark is not None
        change = self.book.change(
            call.home, call.record_key, call.mark, "in_doubt", outcome={"reason": reason, "told": True}, note=reason
        )
        with self._lock:
            self._kept[call.home, call.record_key] = change

    async def _stored(self, store: CallStore, call: Call, change: CallChange) -> CallAnswer:
        for left in reversed(range(_SETTLE_TRIES)):
            try:
                return await store.settle(call.home, change, fence=call.fence)
            except LeaseLost as exc:
                raise call.superseded() from exc
            except Unavailable as exc:
                if left:
                    continue
                with self._lock:
                    self._kept[call.home, call.record_key] = change
                raise CallUnrecorded(
                    f"{call.tool!r} was performed in thread {call.thread!r}, and that could not be stored: "
                    f"{exc.message}. Run the thread again in this process, or settle the call with Ledger.resolve.",
                    **_facts_of(call),
                ) from exc
        raise AssertionError("unreachable")

    async def _flush(self, store: CallStore, plan: Plan) -> None:
        """Store an outcome that this process could not store before."""
        key = (plan.home, plan.key)
        if key not in self._kept:
            return
        with self._lock:
            change = self._kept.get(key)
        if change is not None:
            await store.settle(plan.home, change, fence=plan.fence)
            with self._lock:
                self._kept.pop(key, None)

    def _end(self, call: Call) -> None:
        if not call.over:
            call.over = True
            if call.at is not None:
                self.boundary.ends(call.at)

    # All of it.

    async def perform(self, hands: Hands, request: CallRequest, function: Callable[[], Any]) -> Done | Replay:
        """See `milepost.ledger.Ledger.perform`."""
        policy = self.policy(request)
        if not policy.effectful:
            call = self._unrecorded(request, policy)
            with performing(call):
                return Done(call, await hands.do(function))
        with self._bubbling(request):
            plan = self.plan(request)
        return await self._performed(hands, plan, function)

    async def _performed(self, hands: Hands, plan: Plan, function: Callable[[], Any]) -> Done | Replay:
        with self._bubbling(plan.request):
            entry = await self._enter(hands, plan)
        if isinstance(entry, Replay):
            return entry
        call = entry.call
        try:
            with performing(call):
                result = await hands.do(function)
        except BaseException as exc:
            return await self._failed(hands, plan, call, exc)
        other = await self.settle(hands, call, Succeeded(result))
        return Done(call, result) if other is None else other

    async def _failed(self, hands: Hands, plan: Plan, call: Call, error: BaseException) -> Replay:
        """Settle a call whose function raised, and find out what can be found out. Raises, or returns the result."""
        outcome = self.classify(call, error)
        try:
            await self.settle(hands, call, outcome)
        except CallStopped as exc:
            # The record stays as it is, and its lease will end: nothing is claimed that is not known.
            log.warning("a call that raised could not be settled: %s", exc.message)
            raise error from None
        if not isinstance(outcome, InDoubt) or not isinstance(error, Exception):
            raise error
        if plan.policy.retries:
            error.add_note(f"The outcome of this call of {call.tool!r} is unknown. It may be retried under its key.")
            raise error
        store = await self.store(hands)
        for _ in range(_ROUNDS):
            answer = await store.calls(CallQuery(plan.home, (call.record_key,)), None, 1)
            row = answer.rows[0] if answer.rows else None
            if row is None or row.state not in ("in_doubt", "succeeded"):
                raise error
            record = self.book.open(row)
            if row.state == "succeeded":
                return Replay(record, record.result)
            try:
                following = await self._doubt(hands, store, plan, row, record, answer.now)
            except CallStopped as exc:
                raise exc from error
            if following is not None:
                raise error
        raise error

    # Stopping.

    @contextmanager
    def _bubbling(self, request: CallRequest) -> Generator[None, None, None]:
        """Let errors of the store stop the run, instead of being told to the model."""
        try:
            yield
        except CallStopped:
            raise
        except MilepostError as exc:
            raise LedgerError(
                f"{request.tool!r} was not performed: {exc.message}",
                **{**exc.facts, "thread": request.thread, "tool": request.tool},
            ) from exc

    def _in_progress(self, plan: Plan, record: CallRecord | None) -> CallInProgress:
        by = "another worker" if record is None else record.owner
        return CallInProgress(
            f"{plan.info.tool!r} is being performed in thread {plan.request.thread!r} by {by}, or might still be; this "
            f"run waited {plan.waited:.1f} s. Run the thread again later.",
            owner=by,
            until=None if record is None else record.until,
            **_facts(plan),
        )

    def _pause(
        self,
        kind: type[CallPaused],
        plan: Plan,
        record: CallRecord,
        why: str,
        choices: tuple[str, ...] = ("applied", "not_applied"),
        **facts: Any,
    ) -> CallPaused:
        payload = {
            "kind": kind.__name__,
            "tool": plan.info.tool,
            "arguments": plan.info.arguments,
            "key": record.key,
            "thread": plan.request.thread,
            "state": record.state,
            "started": record.started,
            "updated": record.updated,
            "attempt": record.attempt,
            "why": why,
            "choices": list(choices),
        }
        return kind(
            f"the call of {plan.info.tool!r} in thread {plan.request.thread!r} waits for a person: {why}. "
            f"Settle it with Ledger.resolve({record.key!r}, …), then run the thread again.",
            **_facts(plan),
            **facts,
            id=pause_id(plan.home, plan.key),
            payload=payload,
        )


def _facts(plan: Plan) -> dict[str, Any]:
    return {"thread": plan.request.thread, "key": plan.key, "tool": plan.info.tool}


def _facts_of(call: Call) -> dict[str, Any]:
    return {"thread": call.thread, "key": call.record_key, "tool": call.tool}


def _check_key(key: object) -> str:
    text = check_id(key, "key")
    if not text:
        raise InvalidConfig("the key of a call is empty", what="key", value="''")
    if len(text) > MAX_KEY:
        raise TooLarge(
            f"the key of a call has {len(text)} characters; at most {MAX_KEY} are stored. Use a hash of it.",
            what="key",
            size=len(text),
            limit=MAX_KEY,
        )
    return text
