"""What happens while a call is performed, and when it ends, as coroutines over `Hands`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, cast

from milepost.callstore import CallAnswer, CallChange, CallQuery, CallRow, CallStore, Joined, Joins, State
from milepost.codec.calls import (
    call_key,
    fingerprint,
)
from milepost.errors import InvalidConfig, LeaseLost, MilepostError, Unavailable, Unserializable
from milepost.lease import check as check_lease
from milepost.ledger.arrival import Arrival
from milepost.ledger.basis import Plan, facts_of
from milepost.ledger.bubbling import GraphInterrupt
from milepost.ledger.call import Call, Done, Replay, performing
from milepost.ledger.errors import (
    CallStopped,
    CallUnrecorded,
    LedgerError,
)
from milepost.ledger.hands import Hands
from milepost.ledger.plain import passed
from milepost.ledger.request import (
    CallRequest,
    Failed,
    InDoubt,
    Outcome,
    Succeeded,
    Suspended,
)
from milepost.ledger.words import words
from milepost.observe import hushed, log

_TRIES: Final = 3
"""How often an outcome is sent to a store that does not answer, and how often it is fitted to a record that changed."""


class Core(Arrival):
    """The ledger's decisions over one saver."""

    # While it is performed.

    async def check(self, hands: Hands, call: Call) -> None:
        """See `Call.check`."""
        if call.mark is None:
            return
        if call.over:
            raise call.superseded()
        backend = self.saver.operations.shared.backend
        if call.pledge and isinstance(backend, Joins) and backend.joined(call.joined):
            raise InvalidConfig(
                f"{call.tool!r} has settled its call with a transaction that is still open, which this would wait for: check "
                "before that, or after the transaction",
                what="check",
            )
        store = await self.store(hands)
        asked = self.monotonic()
        change = self.book.renewal(call.record_key, call.mark, self.settings.lease)
        try:
            check_lease(self.saver.operations.shared, call.thread)
            answer = await store.claim(call.home, change, fence=call.fence)
        except LeaseLost as exc:
            self.refused(call.thread, exc)
            self._end(call)
            raise call.superseded() from exc
        except Unavailable as exc:
            raise LedgerError(
                f"whether {call.tool!r} may still act could not be asked: {exc.message}", **facts_of(call)
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
        if not step or step.startswith("~"):
            raise InvalidConfig(
                f"the step is {step!r}: name it by a text that does not begin with ~",
                what="step",
                value=repr(step)[:200],
            )
        if call.over:
            raise call.superseded()
        mark = fingerprint(f"{call.tool}.{step}", [list(args), dict(kwargs)])
        policy = replace(call.policy, key=None, compensate=None, fingerprint=None)
        parent = call.info.first
        info = replace(
            parent,
            arguments=[list(args), dict(kwargs)],
            fingerprint=mark,
            step=step,
            step_of=call.generation,
            earlier=(),
            claim=0,
            compensable=False,
            human="",
        )
        # The call itself has waited for its checkpoints.
        request = CallRequest(tool=call.tool, thread=call.thread, policy=policy)
        plan = Plan(request, policy, call.home, call_key(call.home, info), info, call.fence)
        if not call.recorded:
            return await hands.do(lambda: function(*args, **kwargs))
        return (await self.performed(hands, plan, lambda: function(*args, **kwargs))).result

    async def join(self, call: Call, connection: object, result: Any) -> None:
        """See `Call.settle_with`."""
        backend = self.saver.operations.shared.backend
        if call.policy.kind != "transactional" or not isinstance(backend, Joins) or call.mark is None:
            raise InvalidConfig(
                f"{call.tool!r} is {call.policy.kind}: only the calls of a transactional tool are settled with a transaction",
                what="connection",
            )
        if call.over:
            raise call.superseded()
        store = backend.joining(connection)
        change = self._change(call, "succeeded", outcome={"result": result}, began=call.began)
        try:
            answer = await store.settle(call.home, change, fence=call.fence)
        except LeaseLost as exc:
            self.refused(call.thread, exc)
            raise call.superseded() from exc
        if not answer.done:
            raise call.superseded()
        call.pledge, call.joined = change.stamp, connection
        call.transaction = await cast("Joined", store).transaction()

    # Ending.

    def classify(self, call: Call, error: BaseException) -> Outcome:
        """What an exception of the tool says about its effect."""
        if call.abandoned:
            return InDoubt(f"its run was left while it was performed ({words(error)})")
        if isinstance(error, GraphInterrupt | CallStopped):
            return Suspended()
        # Of a transaction that did not come to its end, nothing is left.
        undone = call.policy.kind == "transactional" and not call.pledge and isinstance(error, Exception)
        if undone or isinstance(error, call.policy.not_applied):
            return Failed(words(error))
        return InDoubt(words(error), ended=not _cancelled(error))

    async def settle(self, hands: Hands, call: Call, outcome: Outcome) -> Replay | None:
        """Store what became of the call, durably.

        Returns another worker's result where that one has taken the call over and finished it. Raises
        `CallSuperseded` where it has not, and `CallUnrecorded` where the outcome could not be stored.
        """
        if call.mark is None or call.over:
            return None
        try:
            with self._lasting(call):
                return await self._settle(hands, call, outcome)
        finally:
            self._end(call)

    async def _settle(self, hands: Hands, call: Call, outcome: Outcome) -> Replay | None:
        assert call.mark is not None
        store = await self.store(hands)
        if call.policy.kind == "transactional":
            call.committed = await self._committed(store, call)
            if call.committed:
                return None
            outcome = await self._uncommitted(store, call, outcome)
        change = self._ending(call, outcome)
        row: CallRow | None = None
        for _ in range(_TRIES):
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

    async def _uncommitted(self, store: CallStore, call: Call, outcome: Outcome) -> Outcome:
        """What an execution means whose transaction, if there was one, has not settled it."""
        backend = self.saver.operations.shared.backend
        if not call.pledge:
            returned = InDoubt("it returned without having been settled", ended=True)
            return returned if isinstance(outcome, Succeeded) else outcome
        if isinstance(backend, Joins) and backend.joined(call.joined):
            raise CallUnrecorded(
                f"{call.tool!r} ended, and the transaction that settles its call is still open: end it in the tool",
                **facts_of(call),
            )
        if await cast("Joined", store).committed(call.transaction):
            reason = (
                "its transaction was committed without what settles it: that was in a savepoint which was rolled back"
            )
            return InDoubt(reason, ended=True)
        return outcome if isinstance(outcome, Suspended) else Failed("its transaction was rolled back")

    async def _committed(self, store: CallStore, call: Call) -> bool:
        """Whether the transaction that was to settle the call has done so."""
        if not call.pledge:
            return False
        page = await store.calls(CallQuery(call.home, (call.record_key,)), None, 1)
        return any(row.stamp == call.pledge for row in page.rows)

    def _ending(self, call: Call, outcome: Outcome) -> CallChange:
        if isinstance(outcome, Succeeded):
            try:
                return self._change(call, "succeeded", outcome={"result": outcome.result}, began=call.began)
            except Unserializable as exc:
                reason = f"it was performed, and what it returned cannot be stored: {exc.message}"
                self._unstorable(call, reason)
                raise CallUnrecorded(f"{call.tool!r}: {reason}", **facts_of(call)) from exc
        if isinstance(outcome, Failed):
            return self._change(call, "failed", outcome={"reason": outcome.error}, note=outcome.error)
        if isinstance(outcome, Suspended):
            return self._change(call, "suspended", lease=0.0, note=passed(call.passed))
        # The owner acts no more: the world may still, for as long as an effect takes since the last check.
        spent = self.monotonic() - call.checked
        return self._in_doubt(call, outcome.reason, told=outcome.ended, lease=-spent if outcome.ended else None)

    def _in_doubt(self, call: Call, reason: str, *, told: bool, lease: float | None = None) -> CallChange:
        outcome = {"reason": reason, "told": told}
        return self._change(call, "in_doubt", outcome=outcome, began=call.began, note=reason, lease=lease)

    def _change(self, call: Call, state: State, **how: Any) -> CallChange:
        """The change of the record of `call` from the attempt at hand."""
        assert call.mark is not None
        return self.book.change(call.home, call.record_key, call.mark, state, **how)

    def _unstorable(self, call: Call, reason: str) -> None:
        """Have the next arrival say why there is no result."""
        change = self._in_doubt(call, reason, told=True)
        with self._lock:
            self._kept[call.home, call.record_key] = change

    async def _stored(self, store: CallStore, call: Call, change: CallChange) -> CallAnswer:
        for left in reversed(range(_TRIES)):
            try:
                with self.watch("settle", call.thread) as event:
                    answer = await store.settle(call.home, change, fence=call.fence)
                    if event:
                        event.facts["state"] = change.state
                    return answer
            except LeaseLost as exc:
                self.refused(call.thread, exc)
                raise call.superseded() from exc
            except Unavailable as exc:
                if left:
                    continue
                with self._lock:
                    self._kept[call.home, call.record_key] = change
                raise CallUnrecorded(
                    f"{call.tool!r} was performed in thread {call.thread!r}, and that could not be stored: "
                    f"{exc.message}. Run the thread again in this process, or settle the call with Ledger.resolve.",
                    **facts_of(call),
                ) from exc
        raise AssertionError("unreachable")

    def _end(self, call: Call) -> None:
        if not call.over:
            call.over = True
            if call.places:
                self.boundary.ends(call.thread, call.places, self.settings.on_unsettled)

    # All of it.

    async def perform(self, hands: Hands, request: CallRequest, function: Callable[[], Any]) -> Done | Replay:
        """See `milepost.ledger.Ledger.perform`."""
        policy = self.policy(request)
        if not policy.effectful:
            call = self._unrecorded(request, policy)
            with performing(call):
                return Done(call, await hands.do(function))
        with self.bubbling(request):
            plan = self.plan(request)
        return await self.performed(hands, plan, function)

    async def performed(
        self, hands: Hands, plan: Plan, function: Callable[[], Any], *, keep: bool = True
    ) -> Done | Replay:
        """`perform` what is planned. Without `keep`, what it returns is not recorded."""
        with self.bubbling(plan.request):
            entry = await self._enter(hands, plan)
        if isinstance(entry, Replay):
            return entry
        call = entry.call
        try:
            with performing(call):
                result = await hands.do(function)
        except GeneratorExit:
            # Who is closed can wait for no store: the record stays as it is, and its lease will end.
            self._end(call)
            raise
        except BaseException as exc:
            return await self._failed(hands, plan, call, exc)
        other = await self.settle(hands, call, Succeeded(result if keep else None))
        if call.policy.kind == "transactional" and other is None and not call.committed:
            raise CallUnrecorded(
                f"{call.tool!r} returned, and no transaction that settles its call was committed: call "
                "current_call().settle_with(connection) within the transaction that has the effect, and end it there",
                **facts_of(call),
            )
        return Done(call, result) if other is None else other

    async def _failed(self, hands: Hands, plan: Plan, call: Call, error: BaseException) -> Replay:
        """Settle a call whose function raised, and find out what can be found out. Raises, or returns the result."""
        outcome = self.classify(call, error)
        call.in_doubt = isinstance(outcome, InDoubt)
        try:
            await self.settle(hands, call, outcome)
        except CallStopped as exc:
            # The record stays as it is, and its lease will end: nothing is claimed that is not known.
            log.warning("a call that raised could not be settled: %s", hushed(exc.message, call.thread))
            if isinstance(error, Exception) and call.in_doubt and not plan.policy.retries:
                raise exc from error
            raise error from None
        if not isinstance(error, Exception) or not call.in_doubt:
            raise error
        if plan.policy.retries:
            error.add_note(f"The outcome of this call of {call.tool!r} is unknown. It may be retried under its key.")
            raise error
        try:
            return await self._inquire(hands, plan, call, error)
        except CallStopped as exc:
            raise exc from error

    async def _inquire(self, hands: Hands, plan: Plan, call: Call, error: Exception) -> Replay:
        """Find out what became of a call that raised and may not be retried. Raises `error` only where it is known that
        nothing was done."""
        with self._lasting(call):
            store = await self.store(hands)
            for _ in self.looks(plan):
                answer = await store.calls(CallQuery(plan.home, (call.record_key,)), None, 1)
                row = answer.rows[0] if answer.rows else None
                if row is not None and row.state == "failed":
                    break
                if row is None or row.state not in ("in_doubt", "succeeded"):
                    raise call.superseded()
                record = self.book.open(row)
                if row.state == "succeeded":
                    return Replay(record, record.result)
                # A verdict that the run was resumed with is about what was before this attempt.
                plan.request = replace(plan.request, answer=None)
                if await self._doubt(hands, store, plan, row, record, answer.now) is not None:
                    break
            else:
                raise self.in_progress(plan, None)
        call.in_doubt = False
        raise error

    @contextmanager
    def _lasting(self, call: Call) -> Generator[None]:
        """Let errors of the store stop the run after the call: what became of it is not recorded, or cannot be read."""
        try:
            yield
        except CallStopped:
            raise
        except MilepostError as exc:
            raise CallUnrecorded(
                f"{call.tool!r} ended in thread {call.thread!r}, and what became of it could not be recorded: {exc.message}. "
                "Run the thread again, or settle the call with Ledger.resolve.",
                **facts_of(call),
            ) from exc


def _cancelled(error: BaseException) -> bool:
    """Whether an exception comes from a cancellation: that stops no thread which the function has begun."""
    seen: set[int] = set()
    ahead: list[BaseException | None] = [error]
    while ahead:
        one = ahead.pop()
        if one is None or id(one) in seen:
            continue
        if isinstance(one, asyncio.CancelledError):
            return True
        seen.add(id(one))
        ahead += (one.__cause__, one.__context__)
    return False
