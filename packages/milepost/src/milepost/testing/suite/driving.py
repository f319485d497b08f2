"""Blocks of code that hold a thread's lease, and what is told of threads that are left."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from typing import Any

import pytest

from milepost.errors import Busy, InvalidConfig, LeaseLost, Unavailable
from milepost.lease import check
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.faults import Plan
from milepost.testing.lab import Lab
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.leases import LONG, OVER, store_of

SOON = 0.05
"""A lease of this many seconds has its heartbeat within a test. Nothing goes wrong where that is late."""


class Driving(Behaviours):
    """`Saver.lease`: a block of code that drives a thread alone."""

    @pytest.mark.parametrize("late", ["put", "ordinary write", "special write"])
    async def test_writes_in_the_block_carry_the_fence(self, lab: Lab, late: str) -> None:
        mine, other = Chain(lab.saver), lab.open()

        async def write_late() -> None:
            if late == "put":
                await lab.saver.put(mine.at(), checkpoint("0009", {"x": 9}))
            else:
                await lab.saver.put_writes(
                    mine.at(), [("x" if late == "ordinary write" else "__interrupt__", 9)], "late"
                )

        await mine.put({"x": 1})
        async with lab.saver.lease("thread", ttl=LONG) as lease:
            await mine.put({"x": 2})
            await mine.writes(("x", 1))
            await lab.saver.check(lease)
            async with other.lease("thread", steal=True) as taken:
                assert taken.fence > lease.fence
                assert not lease.lost
                for _ in range(2):
                    with pytest.raises(LeaseLost) as caught:
                        await write_late()
                    assert (caught.value.thread, caught.value.found) == ("thread", taken.fence)
                    assert lease.lost, "a write that was refused says it"
                await other.put(mine.at("0002"), checkpoint("0003", {"x": 3}))
                await lab.saver.put(at("another"), checkpoint("0001", {"x": 1}))
        async for saver in lab.views():
            assert await saver.ids(at("thread")) == ["0003", "0002", "0001"]
            assert len((await saver.got(at("thread", "", "0002"))).pending_writes or ()) == 1

    async def test_a_check_asks_the_store(self, lab: Lab) -> None:
        async with lab.saver.lease("thread", ttl=LONG) as lease:
            store = await store_of(lab.saver)
            held = await store.holder("thread")
            await lab.saver.check(lease)
            renewed = await store.holder("thread")
            assert held is not None
            assert renewed is not None
            assert renewed.expires >= held.expires
            async with lab.open().lease("thread", steal=True) as taken:
                assert not lease.lost
                for _ in range(2):
                    with pytest.raises(LeaseLost) as caught:
                        await lab.saver.check(lease)
                    assert (caught.value.thread, caught.value.found) == ("thread", taken.fence)
                    assert lease.lost
                with pytest.raises(LeaseLost):
                    await lab.saver.put(at("thread"), checkpoint("0001", {"x": 1}))
        with pytest.raises(LeaseLost):
            await lab.saver.check(lease)

    async def test_a_check_that_is_not_answered(self, lab: Lab) -> None:
        plan = Plan()
        face = lab.faulty(plan)
        async with face.lease("thread", ttl=LONG) as lease:
            plan.arm("before")
            with pytest.raises(Unavailable):
                await face.check(lease)
            plan.disarm()
            assert not lease.lost
            await face.check(lease)

    async def test_what_a_former_owner_was_refused_is_nothing_to_his_successor(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        held, taken, refused = (threading.Event() for _ in range(3))

        async def former() -> None:
            try:
                async with lab.saver.lease("thread"):
                    held.set()
                    await lab.happens(taken.is_set)
                    with pytest.raises(LeaseLost):
                        await chain.writes(("x", 1))
                    with pytest.raises(LeaseLost):
                        await lab.saver.put(chain.at(), checkpoint("0009", {"x": 9}))
            finally:
                refused.set()

        async def successor() -> None:
            await lab.happens(held.is_set)
            async with lab.saver.lease("thread", steal=True):
                taken.set()
                await lab.happens(refused.is_set)
                await chain.put({"x": 2})

        await lab.together(former, successor)
        assert await chain.ids() == ["0002", "0001"]

    async def test_busy_says_who_and_since_when(self, lab: Lab) -> None:
        other = lab.open()
        async with lab.saver.lease("thread", owner="the first") as lease:
            assert lease.owner.startswith("the first:")
            with pytest.raises(Busy) as caught:
                async with other.lease("thread"):
                    raise AssertionError("two at once")
            assert caught.value.thread == "thread"
            assert caught.value.owner == lease.owner
            assert caught.value.since < caught.value.expires
            assert lease.owner in str(caught.value)
            with pytest.raises(Busy):
                async with other.lease("thread", wait=SOON):
                    raise AssertionError("two at once")
            with pytest.raises(Busy):
                async with other.lease("thread", steal="somebody else"):
                    raise AssertionError("two at once")
            async with other.lease("another", owner="the first"):
                await lab.saver.check(lease)
        async with other.lease("thread") as next_one:
            assert next_one.fence > lease.fence

    async def test_taken_from_the_owner_that_was_named(self, lab: Lab) -> None:
        other = lab.open()
        async with lab.saver.lease("thread") as lease:
            async with other.lease("thread", steal=lease.owner) as taken:
                with pytest.raises(Busy) as caught:
                    async with lab.open().lease("thread", steal=lease.owner):
                        raise AssertionError("it was taken from another one")
                assert caught.value.owner == taken.owner
            async with other.lease("thread"):
                """The one who lost it has not given back what is another's."""

    async def test_those_who_wait_get_it_one_by_one(self, lab: Lab) -> None:
        savers = [lab.open() for _ in range(4)]
        inside: list[int] = []
        done: list[int] = []

        async def drive(number: int) -> None:
            async with savers[number].lease("thread", wait=None) as lease:
                inside.append(number)
                assert inside == [number]
                found = await savers[number].get(at("thread"))
                items = [*found.checkpoint["channel_values"]["m"], number] if found else [number]
                id = f"{len(items):04}"
                await savers[number].put(found.config if found else at("thread"), checkpoint(id, {"m": items}))
                done.append(lease.fence)
                inside.remove(number)

        await lab.together(*[lambda number=number: drive(number) for number in range(4)])
        assert done == sorted(set(done))
        assert sorted((await lab.saver.got(at("thread"))).checkpoint["channel_values"]["m"]) == [0, 1, 2, 3]

    async def test_what_is_started_in_the_block_carries_the_fence(self, lab: Lab) -> None:
        async with lab.saver.lease("thread"), lab.open().lease("thread", steal=True):

            async def late(number: int) -> None:
                with pytest.raises(LeaseLost):
                    await lab.saver.put_writes(at("thread", "", "1"), [("x", number)], f"task {number}")

            await lab.together(*[lambda number=number: late(number) for number in range(3)])
        assert (await lab.saver.stats("thread")).writes == 0

    async def test_the_same_code_may_take_it_again(self, lab: Lab) -> None:
        async with lab.saver.lease("thread") as outer:
            async with lab.saver.lease("thread") as inner:
                assert (inner.fence, inner.owner) == (outer.fence, outer.owner)
            await lab.saver.check(outer)
            with pytest.raises(Busy):
                async with lab.open().lease("thread"):
                    raise AssertionError("the inner block gave the lease back")

    async def test_a_lease_is_for_one_block(self, lab: Lab) -> None:
        async with lab.saver.lease("thread") as lease:
            pass
        with pytest.raises(RuntimeError):
            async with lab.saver.lease("thread"):
                lease.__enter__()
        with pytest.raises(RuntimeError):
            _ = lab.saver.saver.lease("thread").fence

    async def test_who_is_still_at_work_after_the_block_is_told(self, lab: Lab) -> None:
        shared = lab.saver.saver.operations.shared
        async with lab.saver.lease("thread") as lease:
            at_work = copy_context()
            at_work.run(check, shared, "thread")
        with pytest.raises(LeaseLost):
            await lab.saver.check(lease)
        with pytest.raises(LeaseLost):
            at_work.run(check, shared, "thread")
        check(shared, "thread")

    @pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
    async def test_who_is_told_to_end_is_counted(self, lab: Lab, end: type[BaseException]) -> None:
        store = await store_of(lab.saver)
        with pytest.raises(end):
            async with lab.saver.lease("thread"):
                raise end
        after = await store.acquire("thread", "next", LONG)
        assert (after.tries, after.error.partition(":")[0]) == (1, end.__name__)

    async def test_a_block_that_raises_gives_it_back(self, lab: Lab) -> None:
        with pytest.raises(ZeroDivisionError):
            async with lab.saver.lease("thread"):
                raise ZeroDivisionError
        async with lab.open().lease("thread") as lease:
            assert lease.tries == 0
            lease.fail(ValueError("no good\0\ud800" * 1000))
        async with lab.saver.lease("thread") as lease:
            assert lease.tries == 1

    async def test_writes_after_the_block_go_their_way_until_another_takes_it(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        async with lab.saver.lease("thread"):
            await chain.put({"x": 1})
        await chain.put({"x": 2})
        async with lab.open().lease("thread"):
            await chain.put({"x": 3})
        assert await chain.ids() == ["0003", "0002", "0001"]

    async def test_the_heartbeat_keeps_it(self, lab: Lab) -> None:
        plan = Plan()
        face = lab.faulty(plan)
        async with face.lease("thread", ttl=SOON) as lease:
            plan.disarm()
            await lab.happens(lambda: plan.calls >= 3)
            assert not lease.lost
            await face.put(at("thread"), checkpoint("0001", {"x": 1}))

    async def test_a_heartbeat_that_finds_it_lost(self, lab: Lab) -> None:
        async with lab.saver.lease("thread", ttl=SOON) as lease, lab.open().lease("thread", steal=True):
            await lab.happens(lambda: lease.lost)
            with pytest.raises(LeaseLost):
                await lab.saver.check(lease)
            with pytest.raises(LeaseLost):
                await lab.saver.put(at("thread"), checkpoint("0001", {"x": 1}))
            # The heartbeat tells of its own loss, whenever that is.
            assert [event.error for event in lab.saver.events if event.op == "put"] == ["LeaseLost"]

    async def test_a_heartbeat_that_does_not_get_through(self, lab: Lab) -> None:
        plan = Plan()
        face = lab.faulty(plan)
        async with face.lease("thread", ttl=SOON) as lease:
            plan.arm("before", 0, 1 << 30)
            await lab.happens(lambda: lease.lost)
            plan.disarm()
            with pytest.raises(LeaseLost):
                await lab.saver.check(lease)
            with pytest.raises(LeaseLost):
                await face.put(at("thread"), checkpoint("0001", {"x": 1}))
            assert plan.calls == 0, "it is not even asked"
        assert await lab.saver.get(at("thread")) is None

    async def test_a_lease_whose_reply_is_lost_is_given_back(self, lab: Lab) -> None:
        plan = Plan()
        face = lab.faulty(plan)
        await face.setup()
        plan.arm("after")
        with pytest.raises(Unavailable):
            async with face.lease("thread"):
                raise AssertionError("nobody knows whether it is held")
        plan.disarm()
        async with lab.saver.lease("thread") as lease:
            assert lease.tries == 0

    async def test_a_task_that_is_cancelled_while_it_waits(self, lab: Lab) -> None:
        saver, other = lab.saver.saver, lab.open().saver

        async def inside() -> None:
            async with saver.lease("thread"):
                entered = asyncio.Event()

                async def drive() -> None:
                    entered.set()
                    async with other.lease("thread", wait=None):
                        raise AssertionError("two at once")

                task = asyncio.create_task(drive())
                await entered.wait()
                await asyncio.sleep(0.05)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        await lab.inside_a_loop(inside)
        async with lab.open().lease("thread") as lease:
            assert lease.tries == 0

    async def test_it_is_observed(self, lab: Lab) -> None:
        other = lab.open()
        async with lab.saver.lease("thread"):
            with pytest.raises(Busy):
                async with other.lease("thread"):
                    raise AssertionError("two at once")
        assert [(event.op, event.outcome, event.error) for event in lab.saver.events] == [("lease", "ok", "")]
        assert [(event.op, event.outcome, event.error) for event in other.events] == [("lease", "error", "Busy")]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"ttl": 0}, {"ttl": -1}, {"ttl": True}, {"ttl": "30"}, {"ttl": float("nan")}, {"ttl": float("inf")}, {"wait": -1},
            {"wait": "no"}, {"wait": float("nan")}, {"steal": 1}, {"steal": None}, {"owner": "a\0b"}, {"owner": 1.5},
        ],
    )  # fmt: skip
    async def test_arguments_that_are_refused(self, lab: Lab, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidConfig) as caught:
            lab.saver.saver.lease("thread", **wrong)
        assert caught.value.what == next(iter(wrong))
        with pytest.raises(InvalidConfig):
            lab.saver.saver.lease("")


class Statuses(Behaviours):
    """What goes on in a thread, as listings tell it."""

    async def test_what_goes_on(self, lab: Lab) -> None:
        for name in ("idle", "waits", "runs", "runs and waits", "crashed", "crashed and waits", "failed", "well again"):
            chain = Chain(lab.saver, name)
            await chain.put({"x": 1})
            if name.endswith("waits"):
                await chain.writes(("__interrupt__", "well?"))
        store = await store_of(lab.saver)
        for name in ("crashed", "crashed and waits", "well again"):
            await store.acquire(name, "crashes", OVER)
        await store.acquire("failed", "fails", LONG)
        await store.release("failed", "fails", "ValueError: no")
        first, second = lab.open().lease("well again"), lab.open().lease("runs and waits")
        async with first, second, lab.saver.lease("runs", owner="me") as lease:
            rows = {row.thread: row for row in await lab.saver.threads()}
        assert {name: row.status for name, row in rows.items()} == {
            "idle": "idle",
            "waits": "waiting",
            "runs": "running",
            "runs and waits": "running",
            "crashed": "abandoned",
            "crashed and waits": "waiting",
            "failed": "abandoned",
            "well again": "running",
        }
        assert rows["runs"].lease.owner == lease.owner
        assert (rows["crashed"].tries, rows["failed"].tries, rows["runs"].tries) == (1, 1, 0)
        assert rows["failed"].lease.error == "ValueError: no"
        for status, names in {
            "idle": {"idle", "runs", "well again"},
            "waiting": {"waits", "runs and waits", "crashed and waits"},
            "running": set[str](),
            "abandoned": {"crashed", "failed"},
        }.items():
            assert {row.thread for row in await lab.saver.threads(status=status)} == names
        with pytest.raises(InvalidConfig):
            await lab.saver.threads(status="dead")

    async def test_work_that_is_left(self, lab: Lab) -> None:
        """A thread whose owner is gone is abandoned only if a run would go on from its latest checkpoint."""
        ended: dict[str, dict[str, Any]] = {"end": {}, "had more": {"__pregel_tasks": [], "join:a+b:c": {"a"}}}
        left: dict[str, dict[str, Any]] = {
            "not begun": {"__start__": {"x": 1}},
            "a node": {"branch:to:n": None},
            "a task": {"__pregel_tasks": ["a send"]},
            "a join": {"join:a+b:c": {"b", "a"}},
            "something unseen": {"seen": 1},
        }
        store = await store_of(lab.saver)
        seen = {"__start__": {"__start__": 1}, "node": {"seen": 2}, "__interrupt__": {"x": 1}}
        for name, values in {**ended, **left, "an input": {}, "a write": {}}.items():
            versions = {"__start__": 1, "x": 2, **dict.fromkeys(values, 3)}
            made = checkpoint("0001", {"x": 1, **values}, versions, versions_seen=seen)
            await lab.saver.put(at(name), made, {"source": "input" if name == "an input" else "loop"})
            if name == "a write":
                await lab.saver.put_writes(at(name, "", "0001"), [("x", 1)])
            await store.acquire(name, "crashes", OVER)
        await lab.saver.put_writes(at("only a write", "", "0001"), [("x", 1)])
        await store.acquire("only a write", "crashes", OVER)
        abandoned = {row.thread for row in await lab.saver.threads(status="abandoned")}
        assert abandoned == {*left, "an input", "a write", "only a write"}
        assert {row.thread for row in await lab.saver.threads(status="idle")} == {*ended}

    async def test_a_process_that_is_told_to_end_leaves_work(self, lab: Lab) -> None:
        await Chain(lab.saver).put({"x": 1})
        with pytest.raises(SystemExit):
            async with lab.saver.lease("thread"):
                raise SystemExit
        [row] = await lab.saver.threads(status="abandoned")
        assert row.lease.error.startswith("SystemExit")
