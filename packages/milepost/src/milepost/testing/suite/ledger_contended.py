"""The ledger: calls that several workers want, and what fails in between."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from milepost.errors import LeaseLost
from milepost.ledger import (
    CallInDoubt,
    CallInProgress,
    CallStopped,
    CallSuperseded,
    CallUnrecorded,
    LedgerError,
    PayloadMismatch,
    Succeeded,
    applied,
    current_call,
    idempotent,
    keyed,
    not_applied,
    unsafe,
)
from milepost.testing.chain import Chain
from milepost.testing.faults import Plan
from milepost.testing.lab import Lab
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.workers import Worker, quick, wants


class CallsContended(Behaviours):
    """Whoever lost a call acts no more, and what he knows still counts where nobody knows better."""

    @needs("ledger")
    async def test_a_zombie_is_told(self, lab: Lab) -> None:
        tools = {"charge": quick(idempotent)}
        slow = Worker(lab, lease=0, tools=tools)
        call = await slow.run(wants())
        worker = Worker(lab, lab.open(), tools=tools)
        other = await worker.run(wants())
        with pytest.raises(CallSuperseded):
            await slow.check(call)
        call.over = False  # as one sees it who did not ask
        with pytest.raises(CallSuperseded):
            await slow.settle(call, Succeeded("late"))
        await worker.check(other)
        assert await worker.settle(other, Succeeded("paid")) is None
        assert await slow.do(wants()) == "paid"

    @needs("ledger")
    async def test_a_zombie_gets_the_winners_result(self, lab: Lab) -> None:
        tools = {"charge": quick(idempotent)}
        slow = Worker(lab, lease=0, tools=tools)
        call = await slow.run(wants())
        assert await Worker(lab, tools=tools).do(wants(), "paid") == "paid"
        entry = await slow.settle(call, Succeeded("late"))
        assert entry is not None
        assert entry.result == "paid"

    @needs("ledger")
    async def test_a_late_truth_counts(self, lab: Lab) -> None:
        tools = {"charge": quick(unsafe)}
        slow = Worker(lab, lease=0, tools=tools)
        call = await slow.run(wants())
        worker = Worker(lab, tools=tools)
        with pytest.raises(CallInDoubt):
            await worker.do(wants())
        assert await slow.settle(call, Succeeded("paid")) is None
        assert await worker.do(wants()) == "paid"

    @needs("ledger")
    async def test_a_thread_that_is_anothers(self, lab: Lab) -> None:
        first, second = Worker(lab), Worker(lab, lab.open())
        async with first.face.lease("thread") as lease:
            call = await first.run(wants())
            assert call.fence == lease.fence
            async with second.face.lease("thread", steal=True):
                with pytest.raises(CallSuperseded):
                    await first.check(call)
                assert lease.lost
                call.over = False
                with pytest.raises(CallSuperseded):
                    await first.settle(call, Succeeded("late"))
                with pytest.raises(LedgerError) as stopped:
                    await first.do(wants(call="c2"))
                assert isinstance(stopped.value.__cause__, LeaseLost)
                assert await second.do(wants(call="c3")) == "done"
                assert await first.do(wants(call="c4", key="g", scope="global")) == "done"
        assert [record.state for record in await second.calls()] == ["started", "succeeded"]

    @needs("ledger")
    async def test_check_renews_the_lease(self, lab: Lab) -> None:
        worker = Worker(lab)
        call = await worker.run(wants())
        before, trail = call.deadline, len((await worker.calls())[0].trail)
        await worker.check(call)
        assert call.deadline >= before
        assert len((await worker.calls())[0].trail) == trail
        await worker.settle(call, Succeeded("paid"))
        with pytest.raises(CallSuperseded):
            await worker.check(call)

    @needs("ledger")
    async def test_the_trail_tells_everything(self, lab: Lab) -> None:
        tools = {"charge": quick(unsafe)}
        await Worker(lab, lease=0, tools=tools, owner="first").run(wants())
        second = Worker(lab, tools=tools, owner="second")
        with pytest.raises(CallInDoubt):
            await second.do(wants())
        await second.resolve((await second.calls())[0].key, not_applied(), by="anna", thread_id="thread")
        await second.do(wants())
        trail = [(entry.state, entry.attempt, entry.by) for entry in (await second.calls())[0].trail]
        assert trail == [
            ("started", 0, "first"),
            ("in_doubt", 0, "second"),
            ("failed", 0, "anna"),
            ("started", 1, "second"),
            ("succeeded", 1, "second"),
        ]

    @needs("ledger")
    async def test_the_same_key_for_something_else(self, lab: Lab) -> None:
        worker = Worker(lab)
        await worker.do(wants(key="order-1"))
        for other in (wants(key="order-1", arguments={"amount": 6}), wants("mail", key="order-1")):
            with pytest.raises(PayloadMismatch) as paused:
                await worker.do(other)
            assert paused.value.payload["choices"] == ["adopt"]
            for _ in range(2):
                with pytest.raises(PayloadMismatch):
                    await worker.do(replace(other, answer=not_applied()))
        adopted = wants(key="order-1", arguments={"amount": 6})
        assert await worker.do(replace(adopted, answer=applied()), "again") == "done"
        assert await worker.do(adopted, "again") == "done", "it is bound for good"
        assert len(worker.performed) == 1

    @needs("ledger")
    @pytest.mark.parametrize("verdict", [applied("paid"), not_applied()])
    @pytest.mark.parametrize("way", ["resolve", "resume"])
    async def test_a_way_out_for_other_arguments_in_doubt(self, lab: Lab, verdict: Any, way: str) -> None:
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        other = wants(key="order-1", arguments={"amount": 6})
        with pytest.raises(CallInDoubt):
            await worker.do(wants(key="order-1"), TimeoutError("no answer"))
        with pytest.raises(PayloadMismatch) as paused:
            await worker.do(other)
        assert paused.value.payload["choices"] == ["applied", "not_applied"]
        answered = replace(other, answer=verdict)
        if way == "resolve":
            await worker.resolve("order-1", verdict, thread_id="thread")
            if verdict.kind == "applied":
                with pytest.raises(PayloadMismatch) as paused:
                    await worker.do(other)
                assert paused.value.payload["choices"] == ["adopt"]
        expected = "paid" if verdict.kind == "applied" else "now"
        assert await worker.do(answered if expected == "paid" or way == "resume" else other, "now") == expected
        assert await worker.do(other, "again") == expected
        assert (await worker.calls())[0].arguments == {"amount": 6}
        assert len(worker.performed) == 1 + (expected == "now")

    @needs("ledger")
    async def test_a_new_argument_left_to_its_default_is_no_other_call(self, lab: Lab) -> None:
        worker = Worker(lab)
        assert await worker.do(wants(), "paid") == "paid"
        more = {"amount": 5, "currency": "EUR"}
        assert await worker.do(wants(arguments=more, filled=frozenset({"currency"}))) == "paid"
        for other in (wants(arguments=more), wants(arguments={**more, "amount": 6}, filled=frozenset({"currency"}))):
            with pytest.raises(PayloadMismatch):
                await worker.do(other)
        assert len(worker.performed) == 1

    @needs("ledger")
    async def test_a_record_of_an_earlier_release_is_of_the_call_as_that_showed_it(self, lab: Lab) -> None:
        told = quick(unsafe, fingerprint=lambda arguments: arguments["amount"])
        worker = Worker(lab, tools={"told": told})
        spelled = {"amount": {"of": 5, "at": "noon"}}
        now: dict[str, Any] = {"arguments": {"amount": {"of": 5}}, "former": spelled}
        filled: dict[str, Any] = {
            "arguments": {"amount": {"of": 5}, "currency": "EUR"},
            "former": {**spelled, "currency": "EUR"},
            "filled": frozenset({"currency"}),
        }
        for tool in ("charge", "told"):
            await worker.do(wants(tool, call=tool, arguments=spelled), "paid")
            assert await worker.do(wants(tool, call=tool, **now)) == "paid"
            assert await worker.do(wants(tool, call=tool, **filled)) == "paid"
            others: tuple[Any, ...] = (None, {"amount": {"of": 5, "at": "one"}}, {"amount": object()})
            for former in others:
                with pytest.raises(PayloadMismatch):
                    await worker.do(wants(tool, call=tool, **(now | {"former": former})))
        with pytest.raises(PayloadMismatch):
            await worker.do(wants("told", call="told", **(now | dict[str, Any](former={}))))
        assert len(worker.performed) == 2


class CallsFaults(Behaviours):
    """A reply that is lost costs nothing but the time to ask again."""

    @needs("ledger")
    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_a_lost_reply_to_a_claim(self, lab: Lab, moment: Any) -> None:
        plan = Plan()
        worker = Worker(lab, lab.faulty(plan))
        await worker.do(wants(call="first"))
        plan.arm(moment)
        with pytest.raises(LedgerError):
            await worker.do(wants())
        plan.disarm()
        # Nothing was performed under that claim, and this worker knows it; others do not.
        if moment == "after":
            with pytest.raises(CallInProgress):
                await Worker(lab).do(wants())
        assert await worker.do(wants(), "paid") == "paid"
        assert await Worker(lab).do(wants()) == "paid"
        assert [attempt for _, attempt in worker.performed] == [0, 0]

    @needs("ledger")
    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_a_lost_reply_to_a_settlement(self, lab: Lab, moment: Any) -> None:
        plan = Plan()
        worker = Worker(lab, lab.faulty(plan))
        call = await worker.run(wants())
        plan.arm(moment)
        assert await worker.settle(call, Succeeded("paid")) is None
        assert plan.calls == 2
        plan.disarm()
        assert await worker.do(wants()) == "paid"
        assert worker.performed == []
        assert [entry.state for entry in (await worker.calls())[0].trail] == ["started", "succeeded"]

    @needs("ledger")
    async def test_a_store_that_is_gone_when_the_effect_is_done(self, lab: Lab) -> None:
        plan = Plan()
        worker = Worker(lab, lab.faulty(plan))
        call = await worker.run(wants())
        plan.arm("before", times=100)
        with pytest.raises(CallUnrecorded):
            await worker.settle(call, Succeeded("paid"))
        plan.disarm()
        assert await worker.do(wants()) == "paid"
        assert worker.performed == []

    @needs("ledger")
    async def test_a_store_that_is_gone_when_the_tool_raises(self, lab: Lab) -> None:
        plan = Plan()
        worker = Worker(lab, lab.faulty(plan), tools={"charge": quick(unsafe)})
        await worker.do(wants(call="first"))

        def charge() -> None:
            plan.arm("before", times=100)
            raise TimeoutError("no answer")

        with pytest.raises(CallUnrecorded) as stopped:
            await worker.perform(wants(), charge)
        assert isinstance(stopped.value.__cause__, TimeoutError)
        plan.disarm()
        with pytest.raises(CallInDoubt):
            await worker.do(wants())

    @needs("ledger")
    async def test_what_a_store_that_was_gone_has_not_heard_is_told_to_who_asks_again(self, lab: Lab) -> None:
        plan = Plan()
        worker = Worker(lab, lab.faulty(plan), tools={"charge": quick(idempotent)})
        await worker.do(wants(call="first"))
        keys: list[str] = []

        def charge(error: BaseException | None = None) -> str:
            keys.append(current_call().key)
            if len(keys) < 3:
                plan.arm("before", times=100)
            if error is not None:
                raise error
            return "paid"

        with pytest.raises(TimeoutError):
            await worker.perform(wants(human="h"), lambda: charge(TimeoutError("no answer")))
        plan.disarm()
        # The model was told of an error, and asks for the same.
        known = frozenset({("m1", "c1"), ("m2", "c2")})
        again = wants(message="m2", call="c2", human="h", branch=known, failed=(("m1", "c1"),))
        with pytest.raises(CallUnrecorded):
            await worker.perform(again, charge)
        plan.disarm()
        # Its record is another's, which it goes by.
        assert (await worker.perform(again, charge)).result == "paid"
        assert len(keys) == 2
        assert len(set(keys)) == 1

    @needs("ledger")
    @pytest.mark.parametrize("make", [unsafe, idempotent])
    async def test_an_exception_that_cannot_say_what_it_is(self, lab: Lab, make: Any) -> None:
        class Speechless(Exception):
            def __str__(self) -> str:
                return str(self.code)  # type: ignore[attr-defined]

            __repr__ = __str__

        worker = Worker(lab, tools={"charge": quick(make)})
        with pytest.raises(CallInDoubt if make is unsafe else Speechless):
            await worker.do(wants(), Speechless())
        (record,) = await worker.calls()
        assert (record.state, record.told) == ("in_doubt", True)
        assert record.reason.startswith("Speechless: ")
        asks = quick(make, reconcile=lambda _: (_ for _ in ()).throw(Speechless()))
        worker = Worker(lab, tools={"charge": asks})
        if make is unsafe:
            with pytest.raises(CallInDoubt, match="reconcile raised Speechless"):
                await worker.do(wants())

    @needs("ledger")
    async def test_every_request_carried_out_twice(self, lab: Lab) -> None:
        plan = Plan()
        worker = Worker(lab, lab.faulty(plan), tools={"charge": quick(keyed, window="24h")})
        await worker.do(wants(call="first"))
        plan.arm("twice", times=1000)
        with pytest.raises(TimeoutError):
            await worker.do(wants(), TimeoutError())
        assert await worker.do(wants(), "paid") == "paid"
        assert await worker.do(wants(human="h", message="m2"), "adopted?") == "adopted?"
        plan.disarm()
        trail = [entry.state for entry in (await worker.calls())[1].trail]
        assert trail == ["started", "in_doubt", "started", "succeeded"]

    @needs("ledger")
    @pytest.mark.parametrize("moment", ["before", "after"])
    @pytest.mark.parametrize("story", ["adopted", "reconciled", "retried"])
    async def test_whatever_request_fails(self, lab: Lab, moment: Any, story: str) -> None:
        tools = {
            "adopted": quick(keyed, window="24h"),
            "reconciled": quick(unsafe, reconcile=lambda _: applied("found")),
            "retried": quick(idempotent),
        }
        for number in range(6):
            plan, thread = Plan(), f"{story} {number}"
            old = wants(story, thread=thread, human="h")
            witness = Worker(lab, lease=0, tools=tools)
            if story == "adopted":
                await witness.do(old, "found")
                request = wants(story, thread=thread, message="m2", human="h")
            else:
                await witness.run(old)
                request = old
            worker = Worker(lab, lab.faulty(plan), lease=0, tools=tools)
            await worker.calls("nothing")
            plan.arm(moment, number)
            for _ in range(4):
                with contextlib.suppress(LedgerError, CallUnrecorded):
                    assert await worker.do(request, "found") == "found"
            plan.disarm()
            assert await Worker(lab, tools=tools).do(request, "again") == "found"
            assert len(worker.performed) == int(story == "retried")
            assert [record.state for record in await witness.calls(thread)] == ["succeeded"]

    @needs("ledger")
    async def test_a_result_that_cannot_be_stored(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        with pytest.raises(CallUnrecorded, match="cannot be stored"):
            await worker.do(wants(), object())
        with pytest.raises(CallInDoubt, match="cannot be stored"):
            await worker.do(wants())
        assert len(worker.performed) == 1

    @needs("ledger", "damage", "durable")
    async def test_damage_is_no_permission(self, lab: Lab) -> None:
        worker = Worker(lab)
        await Chain(lab.saver).put({"n": 1})
        assert await worker.do(wants(), "paid") == "paid"
        await lab.close()
        refused = 0
        media = dict(lab.subject.media())
        for name, data in media.items():
            for place in range(0, len(data), 7):
                broken = bytearray(data)
                broken[place] ^= 0x41
                lab.subject.overwrite(name, bytes(broken))
                worker = Worker(lab, lab.open())
                try:
                    assert await worker.do(wants(), "twice") == "paid"
                except CallStopped:
                    refused += 1
                assert worker.performed == [], f"byte {place} of {name} had it performed again"
                await lab.close()
                for other in lab.subject.media().keys() - media.keys():
                    lab.subject.overwrite(other, None)
                lab.subject.overwrite(name, data)
        assert refused, "no damage was ever met"
