"""The ledger: a finished call is never performed again, and an interrupted one never without authority."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import ToolMessage
from langgraph.types import Command

from milepost.callstore import CallQuery
from milepost.errors import Conflict, InvalidConfig
from milepost.ledger import (
    CallInDoubt,
    CallInProgress,
    InDoubt,
    OrphanFound,
    PayloadMismatch,
    Replay,
    Succeeded,
    Suspended,
    applied,
    idempotent,
    keyed,
    not_applied,
    readonly,
    unknown,
    unsafe,
)
from milepost.ledger.bubbling import GraphInterrupt
from milepost.testing.chain import Chain
from milepost.testing.faults import Plan
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.workers import Worker, quick, wants


class Refused(Exception):
    """The API said no."""


def _timed_out() -> TimeoutError:
    """What a time-out around something that is awaited raises."""
    error = TimeoutError("no answer")
    error.__cause__ = asyncio.CancelledError()
    return error


class CallsOnce(Behaviours):
    """What a finished call returned is returned again."""

    @needs("ledger")
    async def test_a_finished_call_is_not_performed_again(self, lab: Lab) -> None:
        first = Worker(lab)
        assert await first.do(wants(), "paid") == "paid"
        assert await first.do(wants(), "again") == "paid"
        second = Worker(lab, await lab.reopen())
        assert await second.do(wants(), "again") == "paid"
        assert (len(first.performed), len(second.performed)) == (1, 0)
        (record,) = await second.calls()
        assert (record.state, record.tool, record.arguments) == ("succeeded", "charge", {"amount": 5})
        assert record.downstream_key == first.performed[0][0]

    @needs("ledger")
    async def test_what_makes_another_call(self, lab: Lab) -> None:
        worker = Worker(lab)
        requests = [
            wants(),
            wants(call="c2"),
            wants(message="m2"),
            wants(thread="other"),
            wants(epoch="2"),
            wants(message="m", call="1c1"),
            wants(message="m1c", call="1"),
            wants(message=None, position=1),
            wants(message=None, position=2),
            wants(repeats=True),
            wants(repeats=True, arguments={"amount": 6}),
        ]
        for number, request in enumerate(requests):
            assert await worker.do(request, number) == number
        for number, request in enumerate(requests):
            assert await worker.do(request, "again") == number
        assert len({key for key, _ in worker.performed}) == len(requests)
        other = Worker(lab, tenant="acme")
        assert await other.do(wants(), "theirs") == "theirs"

    @needs("ledger")
    async def test_where_the_task_started_does_not_matter(self, lab: Lab) -> None:
        worker, chain = Worker(lab), Chain(lab.saver)
        for number in range(2):
            await chain.put({"n": number})
        for number, place in enumerate([("", "0001"), ("", "0002")]):
            assert await worker.do(wants(checkpoints=(place,)), number) == 0

    @needs("ledger")
    async def test_results_keep_their_type(self, lab: Lab) -> None:
        message = ToolMessage("no", tool_call_id="c1", artifact={"rows": [1, 2]}, status="error", id="t")
        results: list[Any] = [
            message,
            Command(update={"messages": [message]}, goto="next"),
            [message, Command(update={"n": 1})],
            {"a": (1, 2), "b": None},
            None,
        ]
        for number, result in enumerate(results):
            await Worker(lab).do(wants(call=f"c{number}"), result)
        replaying = Worker(lab, await lab.reopen())
        for number, result in enumerate(results):
            assert_same(result, await replaying.do(wants(call=f"c{number}"), "again"))

    @needs("ledger")
    async def test_readonly_tools_are_not_recorded(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": readonly})
        assert [await worker.do(wants(), number) for number in range(2)] == [0, 1]
        assert await worker.calls() == []

    @needs("ledger")
    async def test_two_workers_at_once(self, lab: Lab) -> None:
        workers = [Worker(lab, wait_timeout="60s"), Worker(lab, lab.open(), wait_timeout="60s")]
        results = await lab.together(
            *(lambda worker=worker, number=number: worker.do(wants(), number) for number, worker in enumerate(workers))
        )
        assert results[0] == results[1]
        assert sum(len(worker.performed) for worker in workers) == 1

    @needs("ledger")
    async def test_claims_and_settlements_are_observed(self, lab: Lab) -> None:
        worker = Worker(lab)
        await worker.do(wants())
        await worker.do(wants())
        events = [(event.op, event.outcome, event.facts) for event in lab.saver.events]
        assert events == [
            ("claim", "ok", {"state": "started", "claimed": True}),
            ("settle", "ok", {"state": "succeeded"}),
            ("claim", "ok", {"state": "succeeded", "claimed": False}),
        ]

    @needs("ledger")
    async def test_one_round_trip_each(self, lab: Lab) -> None:
        plan = Plan()
        worker = Worker(lab, lab.faulty(plan))
        await worker.do(wants(call="first"))
        plan.disarm()
        call = await worker.run(wants())
        assert plan.calls == 1
        await worker.settle(call, Succeeded("paid"))
        assert plan.calls == 2
        assert isinstance(await worker.enter(wants()), Replay)
        assert plan.calls == 3

    @needs("ledger")
    async def test_one_round_trip_beside_equal_calls(self, lab: Lab) -> None:
        plan = Plan()
        worker = Worker(lab, lab.faulty(plan))
        for call in ("c1", "c2"):
            await worker.do(wants(call=call, human="h1"))
        known = frozenset({("m1", "c1"), ("m1", "c2")})
        third = wants(message="m2", human="h1", branch=known, alike=tuple(known))
        plan.disarm()
        await worker.run(third)
        assert plan.calls == 1
        # Who does not say which calls are alike has to look at them.
        await worker.run(wants(message="m3", human="h1", branch=known | {("m2", "c1")}))
        assert plan.calls == 3
        with pytest.raises(OrphanFound):
            await worker.run(replace(third, message="m4", alike=(("m1", "c1"),), branch=frozenset()))

    @needs("ledger")
    async def test_a_call_in_doubt_that_was_answered_with_an_error_is_asked_for_again(self, lab: Lab) -> None:
        tools = {"charge": quick(idempotent), "send": quick(unsafe)}
        worker = Worker(lab, lease=0, tools=tools)
        for tool in tools:
            told, known = (("m1", tool),), frozenset({("m1", tool), ("m2", tool)})
            first = await worker.run(wants(tool, call=tool, human="h1"))
            await worker.settle(first, InDoubt("no answer", ended=True))
            again = wants(tool, message="m2", call=tool, human="h1", branch=known, failed=told)
            if tool == "send":
                with pytest.raises(OrphanFound, match="answered with an error"):
                    await worker.run(again)
                continue
            call = await worker.run(again)
            assert (call.key, call.attempt) == (first.key, 1)
            await worker.settle(call, Succeeded("paid"))
            # What is known, or was not answered with an error, is another call.
            more = wants(tool, message="m3", call=tool, human="h1", branch=known, failed=told)
            assert (await worker.run(more)).key != first.key

    @needs("ledger")
    async def test_a_call_that_is_asked_for_again_before_it_is_in_doubt_is_the_same(self, lab: Lab) -> None:
        tools = {"charge": quick(idempotent), "send": quick(unsafe)}
        leases: dict[str, Any] = {"charge": "1h", "send": 0}
        stops = {"charge": CallInProgress, "send": OrphanFound}
        for tool, stop in stops.items():
            first = await Worker(lab, lease=leases[tool], tools=tools).run(wants(tool, call=tool, human="h1"))
            known = frozenset({("m1", tool), ("m2", tool)})
            again = wants(tool, message="m2", call=tool, human="h1", branch=known, failed=(("m1", tool),))
            with pytest.raises(stop):
                await Worker(lab, tools=tools).run(again)
            (record,) = [record for record in await Worker(lab).calls() if record.tool == tool]
            assert record.downstream_key == first.key

    @needs("ledger")
    async def test_equal_calls_that_are_asked_for_again_adopt_a_record_each(self, lab: Lab) -> None:
        worker = Worker(lab, lease=0, tools={"charge": quick(idempotent)})
        told, known = (("m1", "c1"), ("m1", "c2")), frozenset({("m1", "c1"), ("m1", "c2"), ("m2", "c3"), ("m2", "c4")})
        first: list[str] = []
        for _, call in told:
            begun = await worker.run(wants("charge", call=call, human="h1"))
            await worker.settle(begun, InDoubt("no answer", ended=True))
            first.append(begun.key)
        again: list[str] = []
        for call in ("c3", "c4"):
            request = wants("charge", message="m2", call=call, human="h1", branch=known, failed=told)
            begun = await worker.run(request)
            again.append(begun.key)
            # What the first one leaves open is its own all the same.
            await worker.settle(begun, InDoubt("no answer", ended=True))
        assert sorted(again) == sorted(first)

    @needs("ledger")
    async def test_many_calls_of_a_thread(self, lab: Lab) -> None:
        worker = Worker(lab)
        for number in range(12):
            await worker.do(wants(call=f"c{number:02}", arguments={"n": number}), number)
        records = await worker.calls()
        assert [record.arguments["n"] for record in records] == list(range(12))
        store = await worker.store()
        found: list[str] = []
        after: tuple[str, ...] | None = None
        while True:
            page = await store.calls(CallQuery(None), after, 5)
            found += [row.key for row in page.rows]
            if (after := page.cursor) is None:
                break
        assert sorted(found) == sorted(record.key for record in records)


class CallsInDoubt(Behaviours):
    """An outcome that nobody knows is decided by a key, by the world, or by a person."""

    @needs("ledger")
    async def test_a_live_lease_is_another_workers(self, lab: Lab) -> None:
        await Worker(lab).run(wants())
        with pytest.raises(CallInProgress) as stopped:
            await Worker(lab, lab.open()).do(wants())
        assert stopped.value.tool == "charge"
        with pytest.raises(Conflict):
            await Worker(lab).resolve((await Worker(lab).calls())[0].key, applied("paid"), thread_id="thread")

    @needs("ledger")
    async def test_an_expired_lease_is_in_doubt_and_never_free(self, lab: Lab) -> None:
        tools = {"charge": quick(unsafe)}
        await Worker(lab, lease=0, tools=tools).run(wants())
        worker = Worker(lab, await lab.reopen(), tools=tools)
        for _ in range(2):
            with pytest.raises(CallInDoubt) as paused:
                await worker.do(wants())
            assert isinstance(paused.value, GraphInterrupt)
            ((interrupt,),) = paused.value.args
            assert interrupt.id == paused.value.id
            assert len(interrupt.id) == 32
            assert interrupt.value["arguments"] == {"amount": 5}
        assert worker.performed == []
        (record,) = await worker.pending()
        assert (record.state, record.attempt) == ("in_doubt", 0)

    @needs("ledger")
    async def test_a_person_decides(self, lab: Lab) -> None:
        tools = {"charge": quick(unsafe)}
        lost, worker = Worker(lab, lease=0, tools=tools), Worker(lab, tools=tools)
        keys = [(await lost.run(wants(call=call))).record_key for call in ("c1", "c2")]
        record = await worker.resolve(keys[0], applied("paid"), note="saw it in the bank's list")
        assert (record.state, record.result) == ("succeeded", "paid")
        await worker.resolve(keys[1], not_applied(), by="anna")
        assert await worker.do(wants(call="c1")) == "paid"
        assert await worker.do(wants(call="c2"), "now") == "now"
        assert [attempt for _, attempt in worker.performed] == [1]
        assert await worker.pending() == []
        last = (await worker.calls())[0].trail[-1]
        assert (last.state, last.by) == ("succeeded", "operator")
        assert "saw it in the bank's list" in last.note
        with pytest.raises(Conflict):
            await worker.resolve(keys[0], not_applied(), thread_id="thread")
        with pytest.raises(InvalidConfig):
            await worker.resolve("no such key", applied())
        no_call: Any = 5
        with pytest.raises(InvalidConfig, match="its record"):
            await worker.resolve(no_call, applied())

    @needs("ledger")
    async def test_a_key_is_found_without_its_thread(self, lab: Lab) -> None:
        worker = Worker(lab)
        for thread in ("thread", "other"):
            await worker.do(wants(thread=thread, key="own"))
        await worker.do(wants(thread="other"))
        settled = next(record for record in await worker.calls("other") if record.info.own is None)
        with pytest.raises(Conflict, match="nothing to decide"):
            await worker.resolve(settled.key, applied())
        with pytest.raises(InvalidConfig, match="in several threads"):
            await worker.resolve("own", applied())

    @needs("ledger")
    async def test_a_verdict_in_the_resume_map(self, lab: Lab) -> None:
        tools = {"charge": quick(unsafe)}
        await Worker(lab, lease=0, tools=tools).run(wants())
        worker = Worker(lab, tools=tools)
        assert await worker.do(wants(answer=applied("paid"), answered_by="anna")) == "paid"
        assert [entry.by for entry in (await worker.calls())[0].trail][-1] == "anna"

    @needs("ledger")
    async def test_a_verdict_is_about_one_attempt(self, lab: Lab) -> None:
        """Whoever sends it twice, or at once from two places, has not judged the attempt that it led to."""
        worker = Worker(lab)
        with pytest.raises(CallInDoubt) as first:
            await worker.do(wants(), TimeoutError())
        (seen,) = await worker.pending()
        answered = wants(answer=not_applied(), answered_by="anna", answer_to=first.value.id)
        with pytest.raises(CallInDoubt) as second:
            await worker.do(answered, TimeoutError())
        assert first.value.id != second.value.id
        assert [first.value.payload["attempt"], second.value.payload["attempt"]] == [0, 1]
        with pytest.raises(CallInDoubt) as again:
            await worker.do(answered, "not asked about")
        assert again.value.id == second.value.id
        with pytest.raises(Conflict, match="performed again since attempt 0"):
            await worker.resolve(seen, not_applied())
        assert [attempt for _, attempt in worker.performed] == [0, 1]
        assert await worker.do(replace(answered, answer_to=second.value.id), "now") == "now"

    @needs("ledger")
    async def test_a_verdict_settles_one_question(self, lab: Lab) -> None:
        """Also one that does not say to which it is the answer."""
        lost = await Worker(lab, lease=0, tools={"charge": quick(unsafe)}).run(wants(human="h1"))
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        told = wants(message="m2", call="c2", human="h1")
        with pytest.raises(OrphanFound) as orphan:
            await worker.do(told)
        assert orphan.value.orphan == lost.record_key
        # That it is this call does not say what became of it.
        with pytest.raises(CallInDoubt) as doubt:
            await worker.do(replace(told, answer=applied()))
        assert orphan.value.id != doubt.value.id
        assert worker.performed == []
        assert await worker.do(replace(told, answer=applied("paid"))) == "paid"

    @needs("ledger")
    @pytest.mark.parametrize("make", [idempotent, lambda **more: keyed(window="24h", **more)])
    async def test_a_key_is_authority(self, lab: Lab, make: Any) -> None:
        tools = {"charge": quick(make)}
        lost = await Worker(lab, lease=0, tools=tools).run(wants())
        worker = Worker(lab, tools=tools)
        assert await worker.do(wants()) == "done"
        assert worker.performed == [(lost.key, 1)]
        assert len(lost.key) <= 64

    @needs("ledger")
    async def test_a_key_is_no_authority_after_its_window(self, lab: Lab) -> None:
        tools = {"charge": replace(quick(keyed, window="1s"), window=0)}
        await Worker(lab, lease=0, tools=tools).run(wants())
        with pytest.raises(CallInDoubt):
            await Worker(lab, tools=tools).do(wants())

    @needs("ledger")
    async def test_nobody_decides_while_a_zombie_can_act(self, lab: Lab) -> None:
        asked: list[str] = []

        def reconcile(record: Any) -> Any:
            asked.append(record.key)
            return not_applied()

        for number, policy in enumerate((keyed(window="24h"), unsafe(reconcile=reconcile))):
            request = wants(call=f"c{number}", policy=policy)
            await Worker(lab, lease=0).run(request)
            worker = Worker(lab)
            with pytest.raises(CallInProgress):
                await worker.do(request)
            assert (asked, worker.performed) == ([], [])

    @needs("ledger")
    async def test_nobody_says_no_while_a_zombie_can_act(self, lab: Lab) -> None:
        lost = await Worker(lab, lease=0).run(wants())
        worker = Worker(lab)
        with pytest.raises(CallInDoubt):
            await worker.do(wants())
        with pytest.raises(CallInProgress):
            await worker.do(wants(answer=not_applied(), answered_by="anna"))
        with pytest.raises(Conflict, match="may still take effect"):
            await worker.resolve(lost.record_key, not_applied())
        assert (await worker.resolve(lost.record_key, applied("seen"))).result == "seen"
        with pytest.raises(CallInDoubt):
            await worker.do(wants(call="c2"), TimeoutError())
        # Its own worker says that it does not act any more.
        assert await worker.do(wants(call="c2", answer=not_applied()), "now") == "now"

    @needs("ledger")
    @pytest.mark.parametrize("error", [asyncio.CancelledError, _timed_out], ids=["cancelled", "timed out"])
    async def test_a_cancellation_stops_no_thread(self, lab: Lab, error: Callable[[], BaseException]) -> None:
        """What the function had begun may go on: so its worker does not say that it acts no more."""
        tools = {"keyed": keyed(window="24h"), "unsafe": unsafe}
        worker = Worker(lab, tools=tools)
        for tool in tools:
            with pytest.raises((asyncio.CancelledError, TimeoutError, CallInDoubt)):
                await worker.do(wants(tool, call=tool), error())
            with pytest.raises(CallInProgress):
                await worker.do(wants(tool, call=tool, answer=not_applied(), answered_by="anna"))
        by_tool = {record.tool: record for record in await worker.pending()}
        with pytest.raises(Conflict, match="may still take effect"):
            await worker.resolve(by_tool["unsafe"].key, not_applied())
        assert [by_tool[tool].until >= by_tool[tool].started + 3600 for tool in tools] == [True, True]
        assert (await worker.resolve(by_tool["unsafe"].key, applied("seen"))).result == "seen"
        assert len(worker.performed) == 2
        soon = Worker(lab, lease=0, tools={"keyed": quick(keyed, window="24h")})
        with pytest.raises((asyncio.CancelledError, TimeoutError)):
            await soon.do(wants("keyed", call="c2"), error())
        assert await soon.do(wants("keyed", call="c2"), "now") == "now"

    @needs("ledger")
    @pytest.mark.parametrize("verdict", [applied("paid"), not_applied(), unknown()])
    async def test_reconcile_decides(self, lab: Lab, verdict: Any) -> None:
        seen: list[Any] = []

        def reconcile(record: Any) -> Any:
            seen.append((record.tool, record.arguments, record.downstream_key, record.state))
            return verdict

        tools = {"charge": quick(unsafe, reconcile=reconcile)}
        lost = await Worker(lab, lease=0, tools=tools).run(wants())
        worker = Worker(lab, tools=tools)
        if verdict.kind == "unknown":
            with pytest.raises(CallInDoubt):
                await worker.do(wants())
        else:
            assert await worker.do(wants(), "now") == ("paid" if verdict.kind == "applied" else "now")
            assert worker.performed == ([] if verdict.kind == "applied" else [(lost.key, 1)])
        assert seen == [("charge", {"amount": 5}, lost.key, "in_doubt")]

    @needs("ledger")
    @pytest.mark.parametrize(
        "broken", [lambda _: True, lambda record: record.info.checkpoints[0]], ids=["no verdict", "raises"]
    )
    async def test_a_reconcile_that_fails_has_found_out_nothing(self, lab: Lab, broken: Any) -> None:
        worker = Worker(lab, tools={"charge": quick(unsafe, reconcile=broken)})
        for _ in range(2):
            with pytest.raises(CallInDoubt, match="reconcile"):
                await worker.do(wants(), IndexError("no answer"))
        assert len(worker.performed) == 1
        mended = Worker(lab, tools={"charge": quick(unsafe, reconcile=lambda _: applied("paid"))})
        assert await mended.do(wants()) == "paid"

    @needs("ledger")
    async def test_what_exceptions_say(self, lab: Lab) -> None:
        tools = {"charge": quick(unsafe, not_applied=(Refused,))}
        worker = Worker(lab, tools=tools)
        with pytest.raises(Refused):
            await worker.do(wants(call="c1"), Refused("card declined"))
        with pytest.raises(CallInDoubt) as paused:
            await worker.do(wants(call="c2"), TimeoutError("no answer"))
        assert isinstance(paused.value.__cause__, TimeoutError)
        with pytest.raises(KeyboardInterrupt):
            await worker.do(wants(call="c3"), KeyboardInterrupt())
        records = await worker.calls()
        assert [record.state for record in records] == ["failed", "in_doubt", "in_doubt"]
        assert records[0].reason == "Refused: card declined"
        assert await worker.do(wants(call="c1"), "paid") == "paid"
        assert worker.performed[-1][1] == 1

    @needs("ledger")
    async def test_an_exception_of_a_keyed_tool_goes_to_who_retries(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": keyed(window="24h")})
        with pytest.raises(TimeoutError):
            await worker.do(wants(), TimeoutError("no answer"))
        # Its own worker has said that it acts no more: nobody has to wait for that.
        assert await worker.do(wants()) == "done"
        assert [attempt for _, attempt in worker.performed] == [0, 1]

    @needs("ledger")
    async def test_an_exception_that_reconcile_explains(self, lab: Lab) -> None:
        verdicts = {"c1": applied("paid"), "c2": not_applied()}
        policy = quick(unsafe, reconcile=lambda record: verdicts[record.info.call])
        worker = Worker(lab, tools={"charge": policy})
        assert await worker.do(wants(call="c1"), TimeoutError("no answer")) == "paid"
        with pytest.raises(TimeoutError):
            await worker.do(wants(call="c2"), TimeoutError("no answer"))
        assert [record.state for record in await worker.calls()] == ["succeeded", "failed"]

    @needs("ledger")
    async def test_an_interrupt_in_a_tool(self, lab: Lab) -> None:
        worker = Worker(lab)
        with pytest.raises(GraphInterrupt):
            await worker.do(wants(), GraphInterrupt(()))
        assert await worker.states() == [("suspended", 0, 0)]
        assert await worker.do(wants(), "after") == "after"

    @needs("ledger")
    async def test_effects_around_an_interrupt(self, lab: Lab) -> None:
        worker = Worker(lab)
        charged: list[int] = []

        def charge(amount: int) -> str:
            charged.append(amount)
            return f"receipt {amount}"

        call = await worker.run(wants())
        assert await worker.step(call, "charge", charge, 5) == "receipt 5"
        await worker.settle(call, Suspended())
        call = await worker.run(wants())
        assert await worker.step(call, "charge", charge, 5) == "receipt 5"
        assert await worker.step(call, "fee", charge, 1) == "receipt 1"
        with pytest.raises(PayloadMismatch):
            await worker.step(call, "charge", charge, 6)
        assert charged == [5, 1]
        await worker.settle(call, Succeeded("all"))
        keys = {record.downstream_key for record in await worker.calls()}
        assert len(keys) == 3
        assert any(key.endswith(":0:charge") for key in keys)

    @needs("ledger")
    async def test_the_pause_of_a_step_names_it(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": unsafe})

        def lost(amount: int) -> None:
            raise TimeoutError(f"no answer about {amount}")

        call = await worker.run(wants())
        with pytest.raises(CallInDoubt, match="step 'capture' of the call of 'charge'") as paused:
            await worker.step(call, "capture", lost, 5)
        assert paused.value.facts["payload"]["step"] == "capture"
        await worker.settle(call, Suspended())
        with pytest.raises(CallInDoubt) as paused:
            await worker.do(wants(call="c2"), TimeoutError("no answer"))
        assert paused.value.facts["payload"]["step"] is None
