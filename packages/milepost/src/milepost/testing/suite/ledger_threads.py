"""The ledger: which calls are the same call, what it waits for, and how records live with their threads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage

from milepost.callstore import CallQuery
from milepost.errors import InvalidConfig, ThreadDeleted, UnsettledCalls
from milepost.ledger import (
    BarrierTimeout,
    CallInDoubt,
    Failed,
    InDoubt,
    LedgerError,
    NotDurable,
    OrphanFound,
    Succeeded,
    Suspended,
    Unsettled,
    applied,
    idempotent,
    keyed,
    not_applied,
    readonly,
    unsafe,
)
from milepost.places import COUNTERS
from milepost.store import MAX_ID
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.faults import Plan
from milepost.testing.lab import Lab
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.workers import Worker, quick, wants


class CallsOrphans(Behaviours):
    """An equal call whose message is gone is the same call, or a person says that it is not."""

    @needs("ledger")
    async def test_a_call_worded_anew_takes_over_the_record(self, lab: Lab) -> None:
        tools = {"charge": quick(keyed, window="24h")}
        worker = Worker(lab, tools=tools)
        old = wants(message="m1", call="c1", human="h1")
        assert await worker.do(old, "paid") == "paid"
        new = wants(message="m2", call="c2", human="h1", branch=frozenset({("m2", "c2")}))
        assert await worker.do(new, "twice") == "paid"
        assert await Worker(lab, await lab.reopen(), tools=tools).do(new, "twice") == "paid"
        # The next legitimate repeat is another call: its record is not an orphan any more.
        third = wants(message="m3", call="c3", human="h1", branch=frozenset({("m2", "c2"), ("m3", "c3")}))
        worker = Worker(lab, tools=tools)
        assert await worker.do(third, "second") == "second"
        assert await worker.do(third) == await worker.do(third)
        assert await worker.do(old) == "paid"
        (record, _) = await worker.calls()
        assert (record.info.message, record.info.call) == ("m2", "c2")
        assert record.aliases

    @needs("ledger")
    async def test_an_unfinished_orphan_is_finished_under_its_own_key(self, lab: Lab) -> None:
        tools = {"charge": quick(keyed, window="24h")}
        lost = await Worker(lab, lease=0, tools=tools).run(wants(human="h1"))
        worker = Worker(lab, tools=tools)
        new = wants(message="m2", call="c2", human="h1")
        assert await worker.do(new) == "done"
        assert worker.performed == [(lost.key, 1)]

    @needs("ledger")
    async def test_an_unsafe_orphan_pauses(self, lab: Lab) -> None:
        worker = Worker(lab)
        await worker.do(wants(human="h1"), "paid")
        new = wants(message="m2", call="c2", human="h1")
        with pytest.raises(OrphanFound) as paused:
            await worker.do(new)
        assert paused.value.payload["choices"] == ["adopt", "run"]
        answers = {"adopt": applied(), "run": not_applied()}
        again = replace(new, answer=answers["run"])
        assert await worker.do(again, "second") == "second"
        third = wants(message="m3", call="c3", human="h1", branch=frozenset({("m2", "c2")}), answer=answers["adopt"])
        assert await worker.do(third) == "paid"
        assert len(worker.performed) == 2

    @needs("ledger")
    async def test_what_is_no_orphan(self, lab: Lab) -> None:
        worker = Worker(lab)
        await worker.do(wants(human="h1"))
        others = [
            wants(call="c2", human="h1"),  # of the same message
            wants(message="m2", human="h1", branch=frozenset({("m1", "c1"), ("m1", "c2")})),  # its message is there
            wants(message="m3", human="h2"),  # answers another human message
            wants(message="m4", human="h1", arguments={"amount": 6}),
            wants(message="m5"),
        ]
        for number, request in enumerate(others):
            assert await worker.do(request, number) == number
        assert await worker.do(wants(message="m6", human="h1", orphans="run"), "run") == "run"

    @needs("ledger")
    async def test_orphans_are_listed(self, lab: Lab) -> None:
        worker = Worker(lab)
        for call in ("c1", "c2"):
            await worker.do(wants(call=call))
        await worker.do(wants(key="own"))
        found = await worker.orphans("thread", [("m1", "c1")])
        assert [record.info.call for record in found] == ["c2"]
        assert len(await worker.orphans("thread")) == 2

    @needs("ledger")
    async def test_a_call_of_an_agent_is_no_orphan_while_its_agent_is_at_hand(self, lab: Lab) -> None:
        worker = Worker(lab)

        def says(message: str) -> dict[str, Any]:
            call = {"name": "charge", "args": {}, "id": "c1", "type": "tool_call"}
            return {"messages": [AIMessage("", id=message, tool_calls=[call])]}

        async def orphans() -> list[str | None]:
            return [record.info.message for record in await worker.orphans("thread")]

        await lab.saver.put(at("thread"), checkpoint("0001", says("outer")))
        await lab.saver.put(at("thread", "tools:1"), checkpoint("0002", says("inner")))
        await worker.do(wants(message="outer", checkpoints=(("", "0001"),)))
        await worker.do(wants(message="inner", checkpoints=(("tools:1", "0002"), ("", "0001"))))
        await worker.do(wants(message="lost", checkpoints=(("tools:1", "0002"), ("", "0001"))))
        assert await orphans() == ["lost"]
        await lab.saver.put(at("thread", "", "0001"), checkpoint("0003", {"n": 1}))
        assert await orphans() == ["outer", "lost"]
        await lab.saver.put(at("thread"), checkpoint("0004", {"n": 2}))
        assert await orphans() == ["outer", "inner", "lost"], "the state has nothing of what came after 0001"
        counted: Any = {"source": "loop", "step": 2, "parents": {}, COUNTERS: {"messages": (1, 1)}}
        await lab.saver.put(at("thread", "", "0004"), checkpoint("0005", {"n": 3}), counted)
        with pytest.raises(InvalidConfig, match="branch"):
            await orphans()


class CallsKeys(Behaviours):
    """A key of the user's names a call in the place of its ids."""

    @needs("ledger")
    async def test_a_key_of_a_thread_and_one_of_all(self, lab: Lab) -> None:
        worker = Worker(lab)
        ran: list[int] = []

        def send(number: int) -> int:
            ran.append(number)
            return number

        assert await worker.once("welcome", send, 1, thread_id="a") == 1
        assert await worker.once("welcome", send, 1, thread_id="a") == 1
        assert await worker.once("welcome", send, 1, thread_id="b") == 1
        assert ran == [1, 1]
        assert await worker.once("invoice-7", send, 2, scope="global", thread_id="a") == 2
        assert await worker.once("invoice-7", send, 2, scope="global", thread_id="b") == 2
        assert await Worker(lab, lab.open()).once("invoice-7", send, 2, scope="global") == 2
        assert ran == [1, 1, 2]
        (record,) = await worker.calls("")
        assert (record.key, record.downstream_key) == ("invoice-7", "invoice-7:0")
        downstream = {record.downstream_key for thread in ("a", "b") for record in await worker.calls(thread)}
        assert len(downstream) == 2, "an API would take two threads' calls for one"

    @needs("ledger")
    @pytest.mark.parametrize("scope", ["thread", "global"])
    async def test_tenants_and_epochs_tell_keys_of_ones_own_apart(self, lab: Lab, scope: str) -> None:
        workers = [Worker(lab, tenant=tenant) for tenant in ("", "a", "b")]
        requests = [wants(key="invoice-1", scope=scope, epoch=epoch) for epoch in ("", "2", "3")]
        asked = [(worker, request) for worker in workers for request in requests]
        for number, (worker, request) in enumerate(asked):
            assert await worker.do(request, number) == number
        for number, (worker, request) in enumerate(asked):
            assert await worker.do(request, "again") == number
        assert len({key for worker in workers for key, _ in worker.performed}) == len(asked)
        records = await workers[0].calls("" if scope == "global" else "thread")
        assert [record.info.own for record in records] == ["invoice-1"] * len(asked)
        assert "invoice-1" in [record.key for record in records], "as without tenants and epochs"

    @needs("ledger")
    @pytest.mark.parametrize("thread", [17, 0, UUID(int=1)], ids=repr)
    async def test_a_thread_is_its_text(self, lab: Lab, thread: Any) -> None:
        worker = Worker(lab, default=quick(unsafe))
        assert await worker.do(wants(thread=thread), "first") == "first"
        assert await worker.do(wants(thread=str(thread)), "again") == "first"
        assert await worker.once("own", str, 1, thread_id=thread) == "1"
        with pytest.raises(CallInDoubt) as doubted:
            await worker.do(wants(thread=thread, call="c2"), TimeoutError("lost"))
        await worker.resolve(doubted.value.facts["key"], applied(), thread_id=thread)
        states = await worker.states(str(thread))
        assert states == await worker.states(thread) == [("succeeded", 0, 0)] * 3

    @needs("ledger")
    async def test_a_key_of_the_tools_class(self, lab: Lab) -> None:
        policy = unsafe(key=lambda arguments: f"order-{arguments['id']}", scope="global")
        worker = Worker(lab, tools={"charge": policy})
        for number, thread in enumerate(("a", "b")):
            request = wants(thread=thread, message=f"m{number}", arguments={"id": 4})
            assert await worker.do(request, number) == 0

    @needs("ledger")
    async def test_keys_and_arguments_that_cannot_be(self, lab: Lab) -> None:
        worker = Worker(lab)
        for arguments in ({"x": float("nan")}, {"x": {1: 2}}, {"x": object()}, {"x": {1, 2}}, {"x": b"1"}):
            with pytest.raises(LedgerError, match="arguments"):
                await worker.do(wants(arguments=arguments))
        for key in ("", "a\0b", "\ud800", "x" * 513):
            with pytest.raises(LedgerError):
                await worker.do(wants(key=key))
        with pytest.raises(LedgerError):
            await worker.do(wants(call=None))
        assert worker.performed == []
        shown = unsafe(fingerprint=lambda arguments: arguments["id"])
        assert await worker.do(wants(policy=shown, arguments={"id": 1, "client": object()})) == "done"

    @needs("ledger")
    @pytest.mark.parametrize("key", ["a:b", "a|b", "[a]*", "é漢\U0001f600", "x" * 512, "\u4e2d" * 512, "%", "'"])
    async def test_hostile_keys(self, lab: Lab, key: str) -> None:
        worker = Worker(lab)
        thread = "t:*" + "é" * 40
        for scope in ("thread", "global"):
            for number in range(2):
                assert await worker.do(wants(thread=thread, key=key, scope=scope), number) == 0
        assert [record.key for record in await worker.calls("")] == [key]
        assert all(len(record.downstream_key) <= 64 for record in await worker.calls(thread))
        await worker.do(wants(thread="x" * MAX_ID, key=key))
        assert [record.key for record in await worker.calls("x" * MAX_ID)] == [key]


class CallsOfThreads(Behaviours):
    """Records live with their thread."""

    @needs("ledger")
    async def test_a_deletion_does_not_forget_the_unknown(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        await Chain(lab.saver).put({"n": 1})
        await worker.do(wants(call="done"))
        call = await worker.run(wants())
        with pytest.raises(UnsettledCalls) as refused:
            await lab.saver.delete_thread("thread")
        assert refused.value.count == 1
        assert await lab.saver.get(at("thread")) is not None
        await lab.saver.delete_thread("thread", force=True)
        assert await lab.saver.get(at("thread")) is None
        assert await worker.states() == [("started", 0, 0)]
        assert await worker.settle(call, Succeeded("paid")) is None
        await lab.saver.delete_thread("thread")
        assert await worker.calls() == []

    @needs("ledger")
    async def test_settled_calls_go_with_their_thread(self, lab: Lab) -> None:
        worker = Worker(lab)
        await Chain(lab.saver).put({"n": 1})
        for thread in ("thread", "other"):
            await worker.do(wants(thread=thread))
        call = await worker.run(wants(call="asks"))
        await worker.settle(call, Suspended())
        await lab.saver.delete_thread("thread")
        assert await worker.calls() == []
        assert len(await worker.calls("other")) == 1

    @needs("ledger")
    async def test_a_late_call_of_a_deleted_past_is_refused(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        await Chain(lab.saver).put({"n": 1})
        place = (("", "0001"),)
        await worker.do(wants(checkpoints=place))
        await lab.saver.delete_thread("thread")
        with pytest.raises(LedgerError) as refused:
            await worker.do(wants(checkpoints=place))
        assert isinstance(refused.value.__cause__, ThreadDeleted)
        assert len(worker.performed) == 1

    @needs("ledger")
    @pytest.mark.parametrize("how", ["prune", "runs"])
    async def test_no_upkeep_forgets_a_call(self, lab: Lab, how: str) -> None:
        worker = Worker(lab)
        for number in range(1, 4):
            parent = f"{number - 1:04}" if number > 1 else None
            await lab.saver.put(at("thread", "", parent, run_id="r"), checkpoint(f"{number:04}", {"n": number}))
        await worker.do(wants(call="done"), "paid")
        await worker.run(wants())
        if how == "prune":
            await lab.saver.prune(["thread"])
        else:
            await lab.saver.delete_for_runs(["r"])
        async for saver in lab.views():
            worker = Worker(lab, saver)
            assert sorted(await worker.states()) == [("started", 0, 0), ("succeeded", 0, 0)]
            assert await worker.do(wants(call="done")) == "paid"

    @needs("ledger")
    async def test_what_no_checkpoint_can_reach_may_be_forgotten(self, lab: Lab) -> None:
        tools = {"set": quick(idempotent), "charge": quick(keyed, window="24h")}
        worker = Worker(lab, tools=tools)
        for message in ("m1", "m2"):  # The second takes over the record of the first.
            await worker.do(wants("set", message=message, human="h1"))
        await worker.do(wants("set", message="kept", call="c1"))
        await worker.do(wants("set", message="waits", call="c1"))
        await worker.do(wants("set", key="own"))
        await worker.do(wants(message="in its window"))
        lost = await worker.run(wants("set", message="unsettled"))
        call = {"name": "set", "args": {}, "id": "c1", "type": "tool_call"}
        here = await lab.saver.put(
            at("thread"), checkpoint("0001", {"m": [AIMessage("", id="kept", tool_calls=[call])]})
        )
        await lab.saver.put_writes(here, [("m", {"deep": [AIMessage("", id="waits", tool_calls=[call])]})], "task")
        await worker.do(wants("set", message="later"))
        assert await worker.forget(older_than="1h") == []
        (planned,) = await worker.forget(dry_run=True)
        assert (planned.info.message, len(planned.aliases)) == ("m2", 1)
        assert len(await worker.calls()) == 7
        assert [record.key for record in await worker.forget()] == [planned.key]
        async for saver in lab.views():
            worker = Worker(lab, saver, tools=tools)
            left = [record.info.message for record in await worker.calls() if record.info.own is None]
            assert left == ["kept", "waits", "in its window", "unsettled", "later"]
            assert await worker.forget() == []
            assert await worker.do(wants("set", message="kept", call="c1"), "again") == "done"
        # Neither it, nor what it was also found by, is there.
        for number, message in enumerate(("m1", "m2", "m3")):
            request = wants(
                "set", message=message, human="h1", orphans="pause", branch=frozenset({("m1", "c1"), ("m2", "c1")})
            )
            assert await worker.do(request, number) == number
        store = await worker.store()
        records = {record.info.message: record for record in await worker.calls()}
        rows = (await store.calls(CallQuery("thread"), None, 100)).rows
        revisions = {row.key: row.revision for row in rows}
        kept = records["kept"].key
        await store.forget(
            "thread", [(lost.record_key, revisions[lost.record_key]), (kept, revisions[kept] + 1), ("?", 1)]
        )
        assert {row.key for row in (await store.calls(CallQuery("thread"), None, 100)).rows} == set(revisions)
        await store.forget("thread", [(kept, revisions[kept])] * 2)
        assert len(await worker.calls()) == len(revisions) - 1

    @needs("ledger")
    async def test_what_was_tried_again_after_a_checkpoint_is_not_forgotten(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"set": quick(idempotent, not_applied=(ValueError,))})
        with pytest.raises(ValueError, match="declined"):
            await worker.do(wants("set"), ValueError("declined"))
        await lab.saver.put(at("thread"), checkpoint("0001", {"n": 1}))
        await worker.do(wants("set"))
        assert await worker.forget() == [], "a rollback to the checkpoint has to find it"

    @needs("ledger")
    async def test_a_copy_knows_what_was_done(self, lab: Lab) -> None:
        tools = {"charge": quick(keyed, window="24h")}
        worker = Worker(lab, lease=0, tools=tools)
        await Chain(lab.saver).put({"n": 1})
        await worker.do(wants(call="done"), "paid")
        await worker.do(wants(key="own"), "paid")
        lost = await worker.run(wants())
        await worker.step(lost, "fee", lambda: "fee")
        await lab.saver.copy_thread("thread", "copy")
        assert await worker.states("copy") == [
            ("succeeded", 0, 0),
            ("succeeded", 0, 0),
            ("in_doubt", 0, 0),
            ("succeeded", 0, 0),
        ]
        assert await worker.do(wants(thread="copy", call="done")) == "paid"
        assert await worker.do(wants(thread="copy", key="own")) == "paid"
        assert {record.trail[-1].note for record in await worker.calls("copy")} == {"copied from thread 'thread'"}
        worker.performed.clear()
        assert await worker.do(wants(thread="copy")) == "done"
        assert worker.performed == [(lost.key, 1)], "the API knows the call by its old key"
        again = await worker.run(wants(thread="copy", call="c2"))
        assert await worker.step(again, "fee", lambda: "another") == "another"

    @needs("ledger")
    async def test_a_copy_knows_a_call_in_all_its_wordings(self, lab: Lab) -> None:
        tools = {"set": quick(idempotent)}
        worker = Worker(lab, lease=0, tools=tools)
        await Chain(lab.saver).put({"n": 1})
        lost = await worker.run(wants("set", message="m1", human="h1"))
        await worker.step(lost, "fee", lambda: "fee")
        call = lost
        for number, message in enumerate(("m2", "m3", "m3")):
            call = await worker.run(wants("set", message=message, human="h1"))
            assert call.attempt == number + 1
            assert await worker.step(call, "fee", lambda: "again") == "fee"
        await worker.settle(call, Succeeded("done"))
        await lab.saver.copy_thread("thread", "copy")
        await lab.saver.copy_thread("copy", "second")
        for thread in ("thread", "copy", "second"):
            for message in ("m1", "m2", "m3"):
                request = wants("set", thread=thread, message=message, human="h1", orphans="pause")
                assert await worker.do(request, "again") == "done"
            assert len(await worker.calls(thread)) == 2, "the call, and its step"
        assert worker.performed == []

    @needs("ledger")
    async def test_a_call_is_kept_while_any_of_its_wordings_is(self, lab: Lab) -> None:
        tools = {"set": quick(idempotent)}
        worker = Worker(lab, tools=tools)
        call = {"name": "set", "args": {}, "id": "c1", "type": "tool_call"}
        for message in ("m1", "m2"):
            await worker.do(wants("set", message=message, human="h1"))
        await lab.saver.put(at("thread"), checkpoint("0001", {"messages": [AIMessage("", id="m1", tool_calls=[call])]}))
        assert await worker.forget(dry_run=True) == []
        assert await worker.orphans("thread") == []
        other = wants("set", message="m3", human="h1", branch=frozenset({("m1", "c1")}))
        assert await worker.do(other, "meant") == "meant", "the message at hand explains the record"

    @needs("ledger")
    async def test_everything_is_sealed(self, lab: Lab) -> None:
        keys = {"k1": b"0" * 32}
        face = lab.open(keys=keys)
        await Chain(face).put({"n": 1})
        worker = Worker(lab, face)
        await worker.do(wants(arguments={"card": "4111-secret"}), "result-secret")
        await face.copy_thread("thread", "copy")
        store = await worker.store()
        (row,) = (await store.calls(CallQuery("thread"), None, 10)).rows
        assert b"secret" not in row.call + row.outcome + b"".join(row.trail)
        replaying = Worker(lab, lab.open(keys=keys))
        for thread in ("thread", "copy"):
            assert await replaying.do(wants(thread=thread, arguments={"card": "4111-secret"})) == "result-secret"
        with pytest.raises(LedgerError):
            await Worker(lab, lab.open()).do(wants(arguments={"card": "4111-secret"}))


class CallsBarrier(Behaviours):
    """Nothing is performed before the checkpoint that asked for it is durable."""

    @needs("ledger")
    async def test_a_checkpoint_that_does_not_come(self, lab: Lab) -> None:
        worker = Worker(lab, barrier_timeout=0)
        with pytest.raises(BarrierTimeout) as stopped:
            await worker.do(wants(checkpoints=(("", "0001"),)))
        assert stopped.value.missing == ("thread", "", "0001")
        await Chain(lab.open()).put({"n": 1})
        assert await worker.do(wants(checkpoints=(("", "0001"),))) == "done"
        with pytest.raises(BarrierTimeout):
            await worker.do(wants(call="c2", checkpoints=(("sub", "s1"), ("", "0001"))))
        assert await worker.do(wants(call="c3", key="own", checkpoints=(("sub", "s1"),))) == "done"

    @needs("ledger")
    async def test_a_checkpoint_on_its_way(self, lab: Lab) -> None:
        plan = Plan()
        saver = lab.faulty(plan)
        worker = Worker(lab, saver, barrier_timeout="60s")
        order: list[str] = []
        await Chain(saver, "other").put({"n": 1})
        plan.arm("hang")

        async def put() -> None:
            await Chain(saver).put({"n": 1})

        async def call() -> None:
            await lab.until(plan.hanging)
            await worker.perform(wants(checkpoints=(("", "0001"),)), lambda: order.append("performed"))

        async def later() -> None:
            await lab.until(plan.hanging)
            order.append("released")
            plan.release()

        # The request was carried out, so who asks the store finds the checkpoint; who waits is told when its reply comes.
        await lab.together(put, call, later)
        assert "performed" in order

    @needs("ledger")
    async def test_known_checkpoints_cost_nothing(self, lab: Lab) -> None:
        plan = Plan()
        saver = lab.faulty(plan)
        worker = Worker(lab, saver)
        await Chain(saver).put({"n": 1})
        # With a thread's first call, a cluster notes that it has some.
        await worker.run(wants(call="c0", arguments={"amount": 1}))
        plan.disarm()
        await worker.run(wants(checkpoints=(("", "0001"),)))
        assert plan.calls == 1
        reading = lab.faulty(plan)
        worker = Worker(lab, reading)
        await reading.got(at("thread"))
        plan.disarm()
        await worker.run(wants(call="c2", checkpoints=(("", "0001"),)))
        assert plan.calls == 1

    @needs("ledger")
    async def test_a_run_that_stores_nothing(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"look": readonly})
        with pytest.raises(NotDurable):
            await worker.do(wants(durable=False))
        assert await worker.do(wants("look", durable=False)) == "done"
        assert await worker.do(wants(durable=False, key="own")) == "done"

    @needs("ledger")
    async def test_a_checkpoint_over_an_unsettled_call(self, lab: Lab) -> None:
        """The ledger whose call it is says what becomes of it; of several, the strictest."""
        refusing, warning = Worker(lab, on_unsettled="refuse"), Worker(lab, on_unsettled="warn")
        ignoring = Worker(lab, on_unsettled="ignore")
        chain = Chain(lab.saver)
        await chain.put({"n": 1})
        at_first = (("", "0001"),)

        async def go_on(id: str) -> None:
            await lab.saver.put(at("thread", "", "0001"), checkpoint(id, {"n": 2}))

        ignored = await ignoring.run(wants(call="c1", checkpoints=at_first))
        await Chain(lab.saver, "thread", "sub").put({"n": 1})
        await go_on("0002")
        warned = await warning.run(wants(call="c2", checkpoints=at_first))
        with pytest.warns(RuntimeWarning, match="not settled"):
            await go_on("0003")
        refused = await refusing.run(wants(call="c3", checkpoints=at_first))
        with pytest.raises(Unsettled):
            await go_on("0004")
        await refusing.settle(refused, Failed("no"))
        await warning.settle(warned, InDoubt("?"))
        await go_on("0005")
        await ignoring.settle(ignored, Failed("no"))

    @needs("ledger")
    async def test_a_checkpoint_over_a_call_of_another_namespace(self, lab: Lab) -> None:
        """Over calls of a namespace lie its own checkpoints and those of the graphs around it: not those of graphs within,
        or beside."""
        worker = Worker(lab, on_unsettled="refuse")
        spaces = ("", "a:1", "a:1|b:2", "a:12")
        chains = {ns: Chain(lab.saver, "thread", ns) for ns in spaces}
        for chain in chains.values():
            for n in (1, 2):
                await chain.put({"n": n})
        number = 10

        async def refuses(ns: str, parent: str = "0002") -> bool:
            nonlocal number
            number += 1
            try:
                await lab.saver.put(at("thread", ns, parent), checkpoint(f"00{number}", {"n": number}))
            except Unsettled:
                return True
            return False

        places = (("a:1", "0002"), ("", "0002"))
        call = await worker.run(wants(checkpoints=places))
        assert [ns for ns in spaces if await refuses(ns)] == ["", "a:1"]
        assert [ns for ns in spaces if await refuses(ns, "0001")] == ["", "a:1"], "a fork is one as well"
        # While the store is slow, the checkpoints that the call rests on are still being put when it runs.
        await lab.saver.put(at("thread", "a:1", "0001"), checkpoint("0002", {"n": 2}))
        await worker.settle(call, Failed("no"))
        assert [ns for ns in spaces if await refuses(ns)] == []
