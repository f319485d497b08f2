"""The lease of a thread: one owner at a time, fences that only grow, and writes of a former owner that are refused."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

import pytest

from milepost.errors import Busy, InvalidConfig, LeaseLost, Unavailable
from milepost.fences import NOBODY
from milepost.lease import check
from milepost.store import CheckpointRow, Drop, Pack, Span, Store, WriteRow
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.faults import Moment, Plan
from milepost.testing.lab import Face, Lab
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.suite.identity import HOSTILE

LONG = 1000.0
OVER = 0.0
"""A lease of this many seconds is over as soon as it is taken: no test waits for a clock."""


async def store_of(face: Face) -> Store:
    """The store behind a saver, set up."""
    await face.setup()
    backend = face.saver.backend
    return backend.blocking() if face.flavour == "blocking" else backend.asynchronous()


def _row(id: str, parent: str | None = None, writer: int = 1) -> tuple[CheckpointRow, list[Pack]]:
    number = int(id)
    return CheckpointRow("", id, parent, b"header", (Span(writer, number, 1),)), [Pack(writer, number, 1, b"item")]


class Leases(Behaviours):
    """The verbs of a store, and the fence that its writes carry."""

    async def test_a_lease_has_one_owner(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        first = await store.acquire("t", "one", LONG)
        assert (first.owner, first.tries, first.error) == ("one", 0, "")
        assert first.fence > 0
        assert first.since < first.expires
        assert await store.acquire("t", "two", LONG) == first, "who asks is told who has it, and since when"
        assert (await store.acquire("u", "two", LONG)).owner == "two", "another thread has another lease"
        assert (await (await store_of(lab.open())).acquire("t", "two", LONG)) == first, "another saver sees it"

    async def test_who_holds_it_can_be_read(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        assert await store.holder("t") is None
        lease = await store.acquire("t", "one", LONG)
        async for saver in lab.views():
            assert await (await store_of(saver)).holder("t") == lease
        store = await store_of(lab.saver)
        await store.release("t", "one")
        assert await store.holder("t") is None
        await store.acquire("t", "two", OVER)
        assert await store.holder("t") is None, "it is over"

    async def test_taking_it_again_is_taking_it_once(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        first = await store.acquire("t", "one", OVER)
        again = await store.acquire("t", "one", LONG)
        assert again == first._replace(expires=again.expires)
        assert again.expires > first.expires
        assert (await store.acquire("t", "two", LONG)).owner == "one"

    async def test_each_owner_has_a_greater_fence(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        fences = [0]
        for number in range(6):
            lease = await store.acquire("t", f"owner {number}", OVER if number % 2 else LONG)
            assert lease.owner == f"owner {number}"
            fences.append(lease.fence)
            if not number % 2:
                await store.release("t", lease.owner)
        assert fences == sorted(set(fences))

    async def test_an_expired_lease_is_anybodys(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        first = await store.acquire("t", "one", OVER)
        second = await store.acquire("t", "two", OVER)
        assert second.owner == "two"
        assert second.fence > first.fence
        with pytest.raises(LeaseLost) as caught:
            await store.renew("t", "one", first.fence, LONG)
        assert (caught.value.thread, caught.value.fence, caught.value.found) == ("t", first.fence, second.fence)
        await store.release("t", "one")
        assert (await store.renew("t", "two", second.fence, LONG)).expires > second.expires, "nobody took it"
        assert (await store.acquire("t", "three", LONG)).owner == "two"

    async def test_a_hand_over_names_the_lease_that_it_ends(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        first = await store.acquire("t", "one", LONG)
        second = await store.acquire("t", "two", LONG, first.fence)
        assert second.owner == "two"
        assert second.fence > first.fence
        assert second.tries == 0, "the one before has not failed"
        late = await store.acquire("t", "three", LONG, first.fence)
        assert late == second, "somebody else came first"
        with pytest.raises(LeaseLost):
            await store.renew("t", "one", first.fence, LONG)

    async def test_what_was_given_back_is_free(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        first = await store.acquire("t", "one", LONG)
        await store.release("t", "two")
        assert (await store.acquire("t", "two", LONG)).owner == "one", "only its owner gives a lease back"
        await store.release("t", "one")
        with pytest.raises(LeaseLost):
            await store.renew("t", "one", first.fence, LONG)
        second = await store.acquire("t", "two", LONG)
        assert second.owner == "two"
        assert second.fence > first.fence

    async def test_owners_that_crash_or_fail_are_counted(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        await store.acquire("t", "crashes", OVER)
        assert (await store.acquire("t", "fails", LONG)).tries == 1
        await store.release("t", "fails", "ValueError: no\nsuch ä")
        third = await store.acquire("t", "crashes too", OVER)
        assert (third.tries, third.error) == (2, "ValueError: no\nsuch ä")
        fourth = await store.acquire("t", "is well", LONG)
        assert (fourth.tries, fourth.error) == (3, "ValueError: no\nsuch ä")
        await store.release("t", "is well")
        fifth = await store.acquire("t", "next", LONG)
        assert (fifth.tries, fifth.error) == (0, "")

    async def test_nobody_has_what_was_never_taken(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        await store.release("t", "one")
        with pytest.raises(LeaseLost) as caught:
            await store.renew("t", "one", 7, LONG)
        assert caught.value.found == NOBODY.fence

    async def test_a_write_of_a_former_owner_is_refused(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        old = (await store.acquire("t", "one", OVER)).fence
        await store.put("t", *_row("1"), None, fence=old)
        await store.put_writes("t", "", "1", [WriteRow("a", 0, "", "x", b"1")], None, fence=old)
        await store.renew("t", "one", old, OVER)
        await store.put("t", *_row("2", "1"), None, fence=old)
        before = await store.stats("t")
        new = (await store.acquire("t", "two", LONG)).fence
        for _ in range(2):
            with pytest.raises(LeaseLost) as caught:
                await store.put("t", *_row("3", "2"), None, fence=old)
            assert (caught.value.thread, caught.value.fence, caught.value.found) == ("t", old, new)
            with pytest.raises(LeaseLost):
                await store.put_writes("t", "", "2", [WriteRow("b", 0, "", "x", b"1")], None, fence=old)
            with pytest.raises(LeaseLost):
                await store.put_writes("t", "", "2", [WriteRow("b", -1, "", "x", b"1")], None, fence=old)
        assert (await store.stats("t"))[:4] == before[:4]
        await store.put("t", *_row("3", "2", writer=2), None, fence=new)
        await store.put_writes("t", "", "2", [WriteRow("b", 0, "", "x", b"2")], None, fence=new)
        await store.put_writes("t", "", "3", [WriteRow("c", 0, "", "x", b"3")], None)
        loaded = await store.get("t", "", "2")
        assert loaded is not None
        assert [write.value for write in loaded.snapshots[0].writes] == [b"2"]

    async def test_the_first_write_of_a_thread_carries_a_fence(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        old = (await store.acquire("t", "one", OVER)).fence
        new = (await store.acquire("t", "two", LONG)).fence
        with pytest.raises(LeaseLost):
            await store.put("t", *_row("1"), None, fence=old)
        with pytest.raises(LeaseLost):
            await store.put_writes("t", "", "1", [WriteRow("a", 0, "", "x", b"1")], None, fence=old)
        assert await store.get("t", "", None) is None
        await store.put_writes("t", "", "1", [WriteRow("a", 0, "", "x", b"1")], None, fence=new)
        await store.put("t", *_row("1"), None, fence=new)
        loaded = await store.get("t", "", None)
        assert loaded is not None
        assert len(loaded.snapshots[0].writes) == 1

    async def test_a_lease_outlives_what_the_thread_holds(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        held = await store.acquire("t", "one", LONG)
        await store.put("t", *_row("1"), None, fence=held.fence)
        await store.delete_thread("t")
        assert await store.acquire("t", "two", LONG) == held
        await store.put("t", *_row("2"), None, fence=held.fence)
        chart = await store.chart("t")
        assert chart is not None
        assert await store.drop("t", Drop((("", "2"),), packs=chart.packs), chart.token) is not None
        await store.delete_thread("t")
        new = await store.acquire("t", "two", LONG, held.fence)
        assert new.fence > held.fence
        with pytest.raises(LeaseLost):
            await store.put("t", *_row("3"), None, fence=held.fence)

    async def test_a_copy_has_a_lease_of_its_own(self, lab: Lab) -> None:
        await Chain(lab.saver, "source").put({"x": 1})
        await Chain(lab.saver, "target").put({"x": 1})
        store = await store_of(lab.saver)
        held = await store.acquire("target", "one", LONG)
        await store.acquire("source", "other", LONG)
        await lab.saver.delete_thread("target")
        await lab.saver.copy_thread("source", "target")
        assert await store.acquire("target", "two", LONG) == held

    @needs("durable")
    async def test_it_is_there_after_a_restart(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        bare = await store.acquire("bare", "one", LONG)
        held = await store.acquire("t", "one", LONG)
        await store.put("t", *_row("1"), None, fence=held.fence)
        await store.acquire("gone", "one", OVER)
        gone = await store.acquire("gone", "two", OVER)
        await store.put("gone", *_row("1"), None, fence=gone.fence)
        await store.delete_thread("gone")
        store = await store_of(await lab.reopen())
        assert await store.acquire("bare", "two", LONG) == bare
        assert await store.acquire("t", "two", LONG) == held
        assert (await store.renew("t", "one", held.fence, LONG)).fence == held.fence
        again = await store.acquire("gone", "three", LONG)
        assert again.fence > gone.fence
        assert again.tries == 2

    async def test_a_lease_alone_is_no_thread(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        held = await store.acquire("t", "one", LONG)
        assert await lab.saver.threads() == ()
        assert await lab.saver.list(None) == []
        assert await lab.saver.get(at("t")) is None
        assert (await store.stats("t"))[:4] == (0, 0, 0, 0)
        assert (await store.stats(None))[:4] == (0, 0, 0, 0)
        assert await store.chart("t") is None
        assert await store.export("t", None, 10) is None
        await store.delete_thread("t")
        chain = Chain(lab.saver, "t")
        await chain.put({"x": ["long"] * 100})
        await chain.put({"x": ["long"] * 100, "y": 1})
        assert (await chain.values())["y"] == 1
        [row] = await lab.saver.threads()
        await store.renew("t", "one", held.fence, LONG)
        [later] = await lab.saver.threads()
        assert later.updated_at == row.updated_at, "a heartbeat is no use of the thread"
        assert later._replace(bytes=row.bytes, lease=row.lease) == row

    async def test_many_want_it_and_one_gets_it(self, lab: Lab) -> None:
        stores = [await store_of(lab.open()) for _ in range(3)]
        calls = [lambda number=number: stores[number % 3].acquire("t", f"owner {number}", LONG) for number in range(12)]
        leases = await lab.together(*calls)
        assert len(set(leases)) == 1
        calls = [
            lambda number=number: stores[number % 3].acquire("t", f"thief {number}", LONG, leases[0].fence)
            for number in range(12)
        ]
        thieves = set(await lab.together(*calls))
        assert len(thieves) == 1, "one hand-over, and the others are told of it"
        assert thieves.pop().fence > leases[0].fence

    @pytest.mark.parametrize("moment", ["before", "after", "twice"])
    async def test_a_reply_that_is_lost(self, lab: Lab, moment: Moment) -> None:
        plan = Plan()
        face = lab.faulty(plan)
        await face.setup()
        backend = face.saver.backend
        store = backend.blocking() if face.flavour == "blocking" else backend.asynchronous()
        first = await store.acquire("t", "one", OVER)
        for call in (
            lambda: store.acquire("t", "two", LONG),
            lambda: store.renew("t", "two", 0, LONG),
            lambda: store.release("t", "two", "failed"),
        ):
            plan.arm(moment)
            if moment == "twice":
                await call()
            else:
                with pytest.raises(Unavailable):
                    await call()
                plan.disarm()
                if moment == "before":
                    await call()
        lease = await store.acquire("t", "three", LONG)
        assert lease.owner == "three"
        assert lease.fence > first.fence
        assert (lease.tries, lease.error) == (2, "failed"), "one crashed and one failed, each counted once"

    async def test_ids_do_not_meet(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        leases = {thread: await store.acquire(thread, f"owner of {thread[:100]}", LONG) for thread in HOSTILE}
        for thread, lease in leases.items():
            assert await store.acquire(thread, "other", LONG) == lease

    async def test_leases_compare_as_they_are(self, lab: Lab) -> None:
        """What a store answers is a `Lease` of plain values, whichever verb answers."""
        store = await store_of(lab.saver)
        lease = await store.acquire("t", "one", LONG)
        renewed = await store.renew("t", "one", lease.fence, LONG)
        for one in (lease, renewed):
            assert [type(part) for part in one] == [str, int, float, float, int, str]
        assert renewed._replace(expires=lease.expires) == lease


SOON = 0.05
"""A lease of this many seconds has its heartbeat within a test. Nothing goes wrong where that is late."""


class Driving(Behaviours):
    """`Saver.lease`: a block of code that drives a thread alone."""

    async def test_writes_in_the_block_carry_the_fence(self, lab: Lab) -> None:
        mine, other = Chain(lab.saver), lab.open()
        await mine.put({"x": 1})
        async with lab.saver.lease("thread") as lease:
            await mine.put({"x": 2})
            await mine.writes(("x", 1))
            lease.check()
            async with other.lease("thread", steal=True) as taken:
                assert taken.fence > lease.fence
                for call in (
                    lambda: lab.saver.put(mine.at(), checkpoint("0009", {"x": 9})),
                    lambda: lab.saver.put_writes(mine.at(), [("x", 9)], "late"),
                    lambda: lab.saver.put_writes(mine.at(), [("__interrupt__", 9)], "late"),
                ):
                    with pytest.raises(LeaseLost) as caught:
                        await call()
                    assert caught.value.thread == "thread"
                    assert caught.value.found == taken.fence
                await other.put(mine.at("0002"), checkpoint("0003", {"x": 3}))
                await lab.saver.put(at("another"), checkpoint("0001", {"x": 1}))
        async for saver in lab.views():
            assert await saver.ids(at("thread")) == ["0003", "0002", "0001"]
            assert len((await saver.got(at("thread", "", "0002"))).pending_writes or ()) == 1

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
                lease.check()
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
            outer.check()
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
            lease.check()
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
            while plan.calls < 3:
                await lab.idle()
            assert not lease.lost
            await face.put(at("thread"), checkpoint("0001", {"x": 1}))

    async def test_a_heartbeat_that_finds_it_lost(self, lab: Lab) -> None:
        async with lab.saver.lease("thread", ttl=SOON) as lease, lab.open().lease("thread", steal=True):
            while not lease.lost:
                await lab.idle()
            with pytest.raises(LeaseLost):
                lease.check()
            lab.saver.events.clear()
            with pytest.raises(LeaseLost):
                await lab.saver.put(at("thread"), checkpoint("0001", {"x": 1}))
            assert [(event.op, event.error) for event in lab.saver.events] == [("put", "LeaseLost")]

    async def test_a_heartbeat_that_does_not_get_through(self, lab: Lab) -> None:
        plan = Plan()
        face = lab.faulty(plan)
        async with face.lease("thread", ttl=SOON) as lease:
            plan.arm("before", 0, 1 << 30)
            while not lease.lost:
                await lab.idle()
            plan.disarm()
            with pytest.raises(LeaseLost):
                lease.check()
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
        if lab.flavour == "blocking":
            return
        other = lab.open()
        async with lab.saver.lease("thread"):
            entered = asyncio.Event()

            async def drive() -> None:
                entered.set()
                async with other.lease("thread", wait=None):
                    raise AssertionError("two at once")

            task = asyncio.create_task(drive())
            await entered.wait()
            await lab.idle()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
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
