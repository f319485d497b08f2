"""What interrupted copies, restores, deletions and erasures leave behind: nothing of a thread stays for ever."""

from __future__ import annotations

from milepost.maintenance import Amount
from milepost.store import Batch, Pack
from milepost.testing.chain import Chain
from milepost.testing.lab import Lab
from milepost.testing.suite.basis import Behaviours

PACKS = (Pack(7, 1, 2, b"two items" * 20), Pack(7, 3, 1, b"one item"))


async def packs_alone(lab: Lab, thread: str = "left") -> None:
    """What a copy or a restore leaves that ended before its first checkpoint."""
    await lab.store.setup()
    await lab.store.load(thread, Batch(packs=PACKS))


class Leftovers(Behaviours):
    """What is left of a thread without a checkpoint is told of, and goes."""

    async def test_packs_alone_are_no_thread(self, lab: Lab) -> None:
        await packs_alone(lab)
        async for saver in lab.views():
            assert await saver.threads() == ()
            stats = await saver.stats("left")
            assert (stats.threads, stats.checkpoints, stats.writes, stats.packs) == (0, 0, 0, 2)
            assert (await saver.stats())[:4] == (0, 0, 0, 2)

    async def test_packs_alone_are_erased(self, lab: Lab) -> None:
        await packs_alone(lab)
        (erased,) = await lab.saver.erase(["left"])
        assert (erased.error, erased.before) == ("", Amount(packs=2, bytes=sum(len(pack.data) for pack in PACKS)))
        async for saver in lab.views():
            assert (await saver.stats("left"))[:4] == (0, 0, 0, 0)
        assert await lab.store.outline("left") is None
        (erased,) = await lab.saver.erase(["left"])
        assert (erased.error, erased.before) == ("", Amount())

    async def test_packs_alone_are_deleted(self, lab: Lab) -> None:
        await packs_alone(lab)
        await lab.saver.delete_thread("left")
        assert await lab.store.outline("left") is None
        chain = Chain(lab.saver, "left")
        await chain.put({"n": 1})
        assert await chain.ids() == ["0001"]
        assert (await lab.saver.stats("left")).packs <= 1

    async def test_packs_alone_go_with_maintenance(self, lab: Lab) -> None:
        await packs_alone(lab)
        report = await lab.saver.maintain(threads=["left"])
        assert [(one.outcome, one.before.packs, one.after) for one in report.threads] == [("changed", 2, Amount())]
        assert await lab.store.outline("left") is None
