"""The lease of a thread: one owner at a time, fences that only grow, and writes of a former owner that are refused."""

from __future__ import annotations

import pytest

from milepost.errors import LeaseLost, Unavailable
from milepost.fences import NOBODY
from milepost.store import CheckpointRow, Drop, Pack, Span, Store, WriteRow
from milepost.testing.chain import Chain, at
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
