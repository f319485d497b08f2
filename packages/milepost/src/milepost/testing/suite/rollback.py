"""Rollback: effects are undone, the last one first, each of them once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from milepost.errors import Busy, InvalidConfig, Unavailable
from milepost.ledger import (
    CallInProgress,
    CallStopped,
    CompensationFailed,
    CompensationPending,
    Irreversible,
    Suspended,
    ToolPolicy,
    applied,
    current_call,
    idempotent,
    keyed,
    not_applied,
    unknown,
    unsafe,
)
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.faults import Plan
from milepost.testing.lab import Face, Lab
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.workers import Worker, quick, wants


class Killed(BaseException):
    """The process ends here."""


class World:
    """What can be undone, and what was."""

    def __init__(self) -> None:
        self.undone: list[tuple[Any, Any]] = []
        """(arguments, result) of each compensation."""
        self.keys: list[str] = []
        self.trouble: dict[Any, BaseException] = {}

    def policy(self, make: Callable[..., ToolPolicy] = unsafe, **more: Any) -> ToolPolicy:
        return quick(make, compensate=self.undo, **more)

    def undo(self, record: Any, result: Any) -> object:
        self.keys.append(current_call().key)
        if trouble := self.trouble.pop(record.arguments["n"], None):
            raise trouble
        self.undone.append((record.arguments["n"], result))
        return object()  # as the objects of an API's client, which cannot be stored


async def _history(lab: Lab, worker: Worker, face: Face | None = None) -> None:
    """Three checkpoints, and a call from each."""
    chain = Chain(face or lab.saver)
    for number in range(1, 4):
        await chain.put({"n": number})
        place = (("", f"{number:04}"),)
        await worker.do(wants(call=f"c{number}", arguments={"n": number}, checkpoints=place), number * 10)


class Rollbacks(Behaviours):
    """Effects after a checkpoint are undone, and the thread goes on from there."""

    @needs("ledger")
    async def test_the_last_effect_is_undone_first(self, lab: Lab) -> None:
        world = World()
        worker = Worker(lab, tools={"charge": world.policy()})
        await _history(lab, worker)
        plan = await worker.rollback("0002", dry_run=True)
        assert [(undo.record.arguments["n"], undo.action) for undo in plan.calls] == [
            (3, "compensate"),
            (2, "compensate"),
        ]
        assert (plan.fork, world.undone) == (None, [])
        done = await worker.rollback("0002")
        assert world.undone == [(3, 30), (2, 20)]
        head = await lab.saver.got(at("thread"))
        assert head.config == done.fork
        assert head.parent_config == at("thread", "", "0002")
        assert head.checkpoint["channel_values"] == {"n": 2}
        assert head.metadata.get("source") == "fork"
        states = await worker.states()
        assert states.count(("compensated", 0, 0)) == 2
        # What is asked for again is performed again, as another generation.
        worker.performed.clear()
        assert await worker.do(wants(call="c2", arguments={"n": 2}), 21) == 21
        assert [key.rpartition(":")[2] for key, _ in worker.performed] == ["1"]
        assert await worker.do(wants(call="c1", arguments={"n": 1})) == 10

    @needs("ledger")
    async def test_twice_the_same(self, lab: Lab) -> None:
        world = World()
        worker = Worker(lab, tools={"charge": world.policy()})
        await _history(lab, worker)
        first = await worker.rollback("0001")
        again = Worker(lab, await lab.reopen(), tools={"charge": world.policy()})
        assert (await again.rollback("0001")).fork == first.fork
        assert len(world.undone) == 3

    @needs("ledger")
    async def test_a_new_call_is_no_orphan_of_what_was_undone(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": World().policy()})
        await Chain(lab.saver).put({"n": 1})
        request = wants(arguments={"n": 1}, human="h1", checkpoints=(("", "0001"),))
        await worker.do(request)
        await worker.rollback("0001")
        assert await worker.do(wants(message="m2", arguments={"n": 1}, human="h1"), "new") == "new"

    @needs("ledger")
    @pytest.mark.parametrize("number", [1, 2, 3])
    async def test_a_kill_within_a_compensation(self, lab: Lab, number: int) -> None:
        world = World()
        worker = Worker(lab, lease=0, tools={"charge": world.policy()})
        await _history(lab, worker)
        world.trouble[number] = Killed()
        with pytest.raises(Killed):
            await worker.rollback("0001")
        with pytest.raises(CompensationPending, match=r"Repeat Ledger\.rollback; then") as pending:
            await worker.do(wants(call=f"c{number}", arguments={"n": number}))
        assert pending.value.payload["choices"] == []
        worker = Worker(lab, await lab.reopen(), lease=0, tools={"charge": world.policy()})
        await worker.rollback("0001")
        assert [n for n, _ in world.undone] == [3, 2, 1]
        assert len(world.keys) == 4
        assert len(set(world.keys)) == 3, "a compensation is repeated under its key"
        assert (await lab.saver.got(at("thread"))).metadata.get("source") == "fork"

    @needs("ledger")
    async def test_a_compensation_that_fails(self, lab: Lab) -> None:
        world = World()
        worker = Worker(lab, tools={"charge": world.policy()})
        await _history(lab, worker)
        world.trouble[2] = RuntimeError("the bank is closed")
        with pytest.raises(CompensationFailed, match="the bank is closed") as failed:
            await worker.rollback("0001")
        assert isinstance(failed.value.__cause__, RuntimeError)
        assert [n for n, _ in world.undone] == [3]
        assert (await lab.saver.got(at("thread"))).checkpoint["id"] == "0003"
        assert [record.state for record in await worker.pending()] == ["compensation_failed", "in_doubt"]
        with pytest.raises(CompensationPending, match=r"Repeat Ledger.rollback, or .* Ledger.resolve\("):
            await worker.do(wants(call="c2", arguments={"n": 2}))
        await worker.rollback("0001")
        assert [n for n, _ in world.undone] == [3, 2, 1]

    @needs("ledger")
    @pytest.mark.parametrize("what", ["compensate", "reconcile"])
    async def test_a_function_that_is_async(self, lab: Lab, what: str) -> None:
        given: dict[str, Any] = {"compensate": lambda *_: None, "reconcile": lambda _: applied("paid")}
        ran: list[str] = []

        class Function:
            """An object that can be called, and whose calls have to be awaited."""

            async def __call__(self, *arguments: Any) -> Any:
                ran.append(what)
                return given[what](*arguments)

        tools = {"charge": quick(unsafe, **{**given, what: Function()})}
        worker = Worker(lab, lease=0, tools=tools, on_unsettled="ignore")
        await Chain(lab.saver).put({"n": 1})
        await worker.run(wants(arguments={"n": 1}, checkpoints=(("", "0001"),)))
        states = await worker.states()
        if lab.flavour == "blocking":
            with pytest.raises(InvalidConfig, match=f"{what} function of 'charge' is async") as refused:
                await worker.rollback("0001")
            assert refused.value.what == what
            assert await worker.states() == states
        else:
            await worker.rollback("0001")
            assert ("compensated", 0, 0) in await worker.states()
            assert ran == [what]

    @needs("ledger")
    async def test_what_cannot_be_undone(self, lab: Lab) -> None:
        world = World()
        worker = Worker(lab, tools={"charge": world.policy()})
        await _history(lab, worker)
        await worker.do(wants("mail", call="m", checkpoints=(("", "0002"),)), "sent")
        with pytest.raises(Irreversible) as refused:
            await worker.rollback("0001")
        assert (refused.value.tools, world.undone) == (["mail"], [])
        await worker.rollback("0001", accept_irreversible=["mail"])
        assert len(world.undone) == 3
        assert await worker.do(wants("mail", call="m"), "twice") == "sent"

    @needs("ledger")
    async def test_a_class_that_came_with_the_call(self, lab: Lab) -> None:
        world, worker = World(), Worker(lab)
        await Chain(lab.saver).put({"n": 1})

        def ship(n: int) -> str:
            return f"shipped {n}"

        policy = world.policy(fingerprint=lambda given: {"n": given["args"][0]})
        for n in (1, 2):
            assert await worker.once(f"order {n}", ship, n, policy=policy, thread_id="thread") == f"shipped {n}"
        # Another process has to be told.
        other = Worker(lab, await lab.reopen())
        plan = await other.rollback("0001", dry_run=True)
        assert [undo.action for undo in plan.calls] == ["undeclared", "undeclared"]
        with pytest.raises(InvalidConfig, match="has not been told how") as refused:
            await other.rollback("0001")
        assert (refused.value.what, world.undone) == ("tools", [])
        other = Worker(lab, other.face, tools={"ship": policy})
        assert [undo.action for undo in (await other.rollback("0001", dry_run=True)).calls] == ["compensate"] * 2
        other = Worker(lab, other.face)
        other.ledger.effect(key=str, policy=policy)(ship)
        await other.rollback("0001")
        assert world.undone == [(2, "shipped 2"), (1, "shipped 1")]

    @needs("ledger")
    async def test_effects_may_stay_that_nobody_says_how_to_undo(self, lab: Lab) -> None:
        world = World()
        await _history(lab, Worker(lab, tools={"charge": world.policy()}))
        worker = Worker(lab)
        with pytest.raises(InvalidConfig, match="charge"):
            await worker.rollback("0003")
        await worker.rollback("0003", accept_irreversible=["charge"])
        assert await worker.states() == [("succeeded", 0, 0)] * 3

    @needs("ledger")
    async def test_two_functions_of_one_name(self, lab: Lab) -> None:
        worlds, worker = (World(), World()), Worker(lab)
        await Chain(lab.saver).put({"n": 1})

        def by_land() -> Callable[[], str]:
            def ship() -> str:
                return "by land"

            return ship

        def ship() -> str:
            return "by sea"

        for number, function in enumerate((by_land(), by_land(), ship)):
            # The first two are one function, that was made twice.
            assert number != 2 or [undo.action for undo in (await worker.rollback("0001", dry_run=True)).calls] == [
                "compensate",
                "compensate",
            ]
            policy = worlds[number > 1].policy(fingerprint=lambda _: {"n": 1})
            await worker.once(f"order {number}", function, policy=policy, thread_id="thread")
        with pytest.raises(InvalidConfig, match="ship"):
            await worker.rollback("0001")
        assert worlds[0].undone + worlds[1].undone == []

    @needs("ledger")
    async def test_what_other_threads_may_rest_on(self, lab: Lab) -> None:
        world = World()
        everywhere = world.policy(key=lambda arguments: f"number {arguments['n']}", scope="global")
        worker = Worker(lab, tools={"charge": world.policy(), "everywhere": everywhere})
        await _history(lab, worker)
        for number, place in enumerate(("0001", "0003", "elsewhere")):
            given: dict[str, Any] = {"call": f"g{number}", "arguments": {"n": number}, "checkpoints": (("", place),)}
            await worker.do(wants("everywhere", **given))
        plan = await worker.rollback("0002", dry_run=True)
        assert [(undo.record.tool, undo.action) for undo in plan.calls] == [
            ("everywhere", "irreversible"),
            ("charge", "compensate"),
            ("charge", "compensate"),
        ]
        with pytest.raises(Irreversible, match="other threads"):
            await worker.rollback("0002")
        await worker.rollback("0002", accept_irreversible=["everywhere"])
        assert [n for n, _ in world.undone] == [3, 2]

    @needs("ledger")
    async def test_calls_in_doubt(self, lab: Lab) -> None:
        world = World()
        verdicts = {1: applied("paid"), 2: not_applied(), 3: unknown()}
        policy = world.policy(reconcile=lambda record: verdicts[record.arguments["n"]])
        tools = {"charge": policy, "plain": world.policy()}
        worker = Worker(lab, lease=0, tools=tools, on_unsettled="ignore")
        await Chain(lab.saver).put({"n": 1})
        for number in (1, 2, 3):
            await worker.run(wants(call=f"c{number}", arguments={"n": number}, checkpoints=(("", "0001"),)))
        await worker.run(wants("plain", call="c4", arguments={"n": 4}, checkpoints=(("", "0001"),)))
        await worker.rollback("0001")
        # Nobody knows of 3 and 4: a compensation bears that there is nothing to undo.
        assert world.undone == [(4, None), (3, None), (1, "paid")]
        assert sorted(state for state, *_ in await worker.states() if state != "succeeded") == [
            "compensated",
            "compensated",
            "compensated",
            "failed",
        ]

    @needs("ledger")
    async def test_a_call_that_is_being_performed(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": World().policy()})
        await Chain(lab.saver).put({"n": 1})
        await worker.run(wants(arguments={"n": 1}, checkpoints=(("", "0001"),)))
        with pytest.raises(CallInProgress):
            await worker.rollback("0001")

    @needs("ledger")
    async def test_what_there_is_nothing_to_undo_of(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": keyed(window="1h", not_applied=(ValueError,)), "safe": idempotent})
        await Chain(lab.saver).put({"n": 1})
        place = (("", "0001"),)
        with pytest.raises(ValueError, match="declined"):
            await worker.do(wants(checkpoints=place), ValueError("declined"))
        call = await worker.run(wants("asks", call="c2", checkpoints=place))
        await worker.settle(call, Suspended())
        plan = await worker.rollback("0001")
        assert [undo.action for undo in plan.calls] == ["nothing", "nothing"]
        call = await worker.run(wants("asks", call="c2", checkpoints=place))
        await worker.step(call, "charge", lambda: "paid")
        await worker.settle(call, Suspended())
        with pytest.raises(Irreversible):
            await worker.rollback("0001")

    @needs("ledger")
    async def test_only_what_comes_after(self, lab: Lab) -> None:
        world = World()
        worker = Worker(lab, tools={"charge": world.policy()})
        await _history(lab, worker)
        await lab.saver.put(at("thread", "", "0001"), checkpoint("0004", {"n": 1}))
        await worker.do(wants(call="c4", arguments={"n": 4}, checkpoints=(("sub:1", "x"), ("", "0004")), key="k"), 40)
        await worker.do(wants(call="c5", arguments={"n": 5}, key="unplaced"), 50)
        await worker.rollback("0002")
        assert [n for n, _ in world.undone] == [5, 3, 2]

    @needs("ledger")
    async def test_a_thread_that_is_held(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": World().policy()})
        await _history(lab, worker)
        async with lab.open().lease("thread"):
            with pytest.raises(Busy) as busy:
                await Worker(lab, lab.open()).rollback("0001", steal="somebody else")
            other = Worker(lab, lab.open(), tools={"charge": World().policy()})
            await other.rollback("0002", steal=busy.value.owner)
        with pytest.raises(InvalidConfig, match="no checkpoint"):
            await worker.rollback("nothing")

    @needs("ledger")
    async def test_a_store_that_fails_at_any_request(self, lab: Lab) -> None:
        plan, world = Plan(), World()
        face = lab.faulty(plan)
        worker = Worker(lab, face, lease=0, tools={"charge": world.policy()})
        await _history(lab, worker, face)
        for number in range(200):
            plan.arm("after", number)
            try:
                await worker.rollback("0001")
                break
            except (Unavailable, CompensationFailed, CallStopped):
                plan.disarm()
        else:
            raise AssertionError("it never came to its end")
        plan.disarm()
        assert number > 5
        assert {n for n, _ in world.undone} == {1, 2, 3}
        assert len(set(world.keys)) == 3
        assert [state for state, *_ in await worker.states()].count("compensated") == 3
