"""What interrupted copies, restores, deletions and erasures leave behind: nothing of a thread stays for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from milepost.archive import ArchiveFolder
from milepost.errors import Conflict, InvalidConfig, ThreadDeleted
from milepost.filling import Filling
from milepost.ledger import Succeeded
from milepost.maintenance import Amount
from milepost.observe import thread_hash
from milepost.places import ATTACHMENTS
from milepost.retention import Retention
from milepost.store import Batch, Drop, Pack
from milepost.sweeping import Swept
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.suite.bounded import grown, later
from milepost.testing.workers import Worker, wants

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


async def _all_of(lab: Lab, thread: str) -> Batch:
    """The thread as one batch, in however many parts its store exports it."""
    part = await lab.store.export(thread, None, 1000)
    assert part is not None
    whole = part
    while part.cursor is not None:
        part = await lab.store.export(thread, part.cursor, 1000)
        assert part is not None
        rows, writes, packs = whole.rows + part.rows, whole.writes + part.writes, whole.packs + part.packs
        whole = Batch(rows, writes, packs, calls=whole.calls + part.calls)
    return whole


def _told(swept: Swept) -> list[tuple[str, str, bool]]:
    return [(one.kind, one.thread, one.removed) for one in swept.leftovers]


class Sweeps(Behaviours):
    """`sweep` finds what was left, and takes nothing that is under way or counts."""

    async def test_what_is_alone_goes(self, lab: Lab) -> None:
        for number in range(3):
            await packs_alone(lab, f"left {number}")
        chain = await grown(lab.saver, "stays", 3)
        await grown(lab.saver, "attached", 2)
        export = await _all_of(lab, "attached")
        rows = tuple(row._replace(ns=ATTACHMENTS, parent=None) for row in export.rows)
        await lab.store.load("attachments", Batch(rows=rows, packs=export.packs))
        before = await lab.saver.list(chain.latest)
        wanted = ["attachments", "left 0", "left 1", "left 2"]
        dry = await lab.saver.sweep(dry_run=True)
        assert sorted(_told(dry)) == [("thread", name, False) for name in wanted]
        lab.saver.events.clear()
        swept = await lab.saver.sweep()
        assert {(one.thread, one.bytes) for one in swept.leftovers} == {
            (one.thread, one.bytes) for one in dry.leftovers
        }
        assert sorted(_told(swept)) == [("thread", name, True) for name in wanted]
        told = [event for event in lab.saver.events if event.op == "sweep"]
        assert {(event.thread, event.facts["removed"]) for event in told} == {
            (thread_hash(name), True) for name in wanted
        }
        assert sum(event.bytes for event in told) == swept.bytes > 4 * len(PACKS[0].data)
        async for saver in lab.views():
            assert sorted(row.thread for row in await saver.threads()) == ["attached", "stays"]
            assert [await lab.store.outline(name) for name in wanted] == [None] * 4
            assert_same(before, await saver.list(chain.latest))
            assert _told(await saver.sweep()) == []

    async def test_many_pages(self, lab: Lab) -> None:
        await lab.store.setup()
        names = [f"{number:03}" for number in range(70)]
        for name in names:
            await lab.store.load(name, Batch(packs=PACKS[1:]))
        assert sorted(_told(await lab.saver.sweep())) == [("thread", name, True) for name in names]
        assert (await lab.saver.stats()).packs == 0

    async def test_what_is_being_filled_is_left_alone(self, lab: Lab) -> None:
        await grown(lab.saver, "source", 3)
        export = await _all_of(lab, "source")
        async with Filling(lab.store, "target", "copy_thread") as filling:
            await filling.load(Batch(packs=export.packs))
            assert _told(await lab.saver.sweep()) == []
            report = await lab.saver.maintain(threads=["target"])
            assert [one.outcome for one in report.threads] == ["leased"]
            outline = await lab.store.outline("target")
            await filling.load(replace(export, packs=()))
        assert outline is not None
        assert len(outline.packs) == len(export.packs)
        assert [len(await lab.saver.list(at(name))) for name in ("source", "target")] == [3, 3]
        assert _told(await lab.saver.sweep()) == []

    async def test_what_was_planned_before_takes_nothing_that_comes(self, lab: Lab) -> None:
        await packs_alone(lab)
        outline = await lab.store.outline("left")
        assert outline is not None
        await packs_alone(lab)
        assert await lab.store.drop("left", Drop(packs=outline.packs), outline.token) is None
        again = await lab.store.outline("left")
        assert again is not None
        assert len(again.packs) == 2

    async def test_a_copy_that_ended_in_the_middle(self, lab: Lab) -> None:
        await grown(lab.saver, "source", 3)
        begun = checkpoint("0004", {"__start__": {"x": 1}}, {"__start__": 1})
        await lab.saver.put(at("source", "", "0003"), begun, {"source": "input"})
        export = await _all_of(lab, "source")
        half = replace(export, rows=tuple(row for row in export.rows if row.id == "0004"))
        for _ in range(2):
            with pytest.raises(OSError, match="the source is gone"):
                await self._half(lab, half)
            swept = await lab.saver.sweep()
            assert _told(swept) == [("copy", "target", False)]
            assert swept.left == swept.leftovers
            assert len(await lab.saver.list(at("target"))) == 1, "somebody may have gone on with it"
            assert await lab.saver.threads(status="abandoned") == (), "it is no work of a run"
        await lab.saver.copy_thread("source", "target")
        assert len(await lab.saver.list(at("target"))) == 4
        assert _told(await lab.saver.sweep()) == []

    async def _half(self, lab: Lab, batch: Batch) -> None:
        async with Filling(lab.store, "target", "copy_thread") as filling:
            await filling.load(batch)
            raise OSError("the source is gone")

    @pytest.mark.parametrize("parts", ["packs first", "writes first", "checkpoints first"])
    async def test_what_is_deleted_while_it_is_filled(self, lab: Lab, parts: str) -> None:
        """Whoever fills it is told, in the middle and at the end, and nothing of it comes back."""
        chain = await grown(lab.saver, "source", 4)
        await chain.writes(("n", 1))
        export = await _all_of(lab, "source")
        packs, writes = Batch(packs=export.packs), Batch(writes=export.writes)
        rows = [Batch(rows=export.rows[:2]), Batch(rows=export.rows[2:])]
        given = {
            "packs first": [packs, writes, *rows],
            "writes first": [writes, *rows, packs],
            "checkpoints first": [*rows, writes, packs],
        }[parts]
        for deleted in range(1, len(given) + 1):
            with pytest.raises(Conflict, match="was deleted, or shortened, while copy_thread filled it") as caught:
                await self._filled(lab, given, deleted)
            assert caught.value.thread == "target"
            assert await lab.store.outline("target") is None
            assert _told(await lab.saver.sweep()) == []
        await self._filled(lab, given, None)
        assert [len(await lab.saver.list(at(name))) for name in ("source", "target")] == [4, 4]

    async def _filled(self, lab: Lab, batches: Sequence[Batch], deleted: int | None) -> None:
        async with Filling(lab.store, "target", "copy_thread") as filling:
            for number, batch in enumerate(batches, 1):
                await filling.load(batch)
                if number == deleted:
                    await lab.saver.delete_thread("target")

    async def test_what_comes_after_such_a_deletion_stays(self, lab: Lab) -> None:
        await grown(lab.saver, "source", 4)
        export = await _all_of(lab, "source")
        new = Chain(lab.saver, "target")

        async def fill() -> None:
            async with Filling(lab.store, "target", "restore") as filling:
                await filling.load(export)
                await lab.saver.delete_thread("target")
                await new.put({"n": 1}, id="of its own")
                await filling.load(export)

        with pytest.raises(Conflict, match="filled it"):
            await fill()
        assert await new.ids() == ["of its own"]
        assert _told(await lab.saver.sweep()) == [("copy", "target", False)], "it may be half of something"

    async def test_a_part_that_is_loaded_again_hides_no_deletion(self, lab: Lab) -> None:
        """As a store does that tells of some packs once more. Here the deletion comes between the look and the load."""
        await grown(lab.saver, "source", 4)
        export = await _all_of(lab, "source")

        async def fill() -> None:
            async with Filling(lab.store, "target", "copy_thread") as filling:
                await filling.load(export)
                await lab.saver.delete_thread("target")
                await lab.store.load("target", Batch(packs=export.packs))
                await filling.load(Batch(packs=export.packs))

        with pytest.raises(Conflict, match="filled it"):
            await fill()
        assert await lab.store.outline("target") is None

    async def test_what_counts_stays(self, lab: Lab) -> None:
        chain = await grown(lab.saver, "deleted", 2)
        await lab.saver.delete_thread("deleted")
        await lab.saver.put_writes(at("ahead", "", "0001"), [("n", 1)])
        await lab.store.acquire("leased", "me", 3600.0)
        assert _told(await lab.saver.sweep()) == []
        with pytest.raises(ThreadDeleted):
            await lab.saver.put(chain.at("0002"), checkpoint("0003", {"n": 3}))
        assert (await lab.saver.stats("ahead")).writes == 1
        assert await lab.store.holder("leased") is not None

    @needs("ledger")
    async def test_records_of_calls_stay(self, lab: Lab) -> None:
        await grown(lab.saver, steps=2)
        worker = Worker(lab)
        call = await worker.run(wants())
        await worker.settle(call, Succeeded("paid"))
        await lab.saver.maintain(Retention(idle_thread="1d"), clock=later(9))
        assert await lab.saver.list(None) == []
        assert _told(await lab.saver.sweep()) == []
        assert (await worker.do(wants())) == "paid"

    async def test_within_a_tenant(self, lab: Lab) -> None:
        mine = lab.open(tenant="mine")
        await mine.put(at("stays"), checkpoint("0001", {"n": 1}))
        await packs_alone(lab)
        assert _told(await mine.sweep()) == []
        store = mine.saver.blocking_side().store if lab.flavour == "blocking" else mine.saver.async_side().store
        await store.load("left", Batch(packs=PACKS))
        assert _told(await mine.sweep()) == [("thread", "left", True)]
        await store.load("left", Batch(packs=PACKS))
        assert await mine.erase_tenant() == 1
        assert await store.outline("left") is None
        assert _told(await lab.saver.sweep()) == [("thread", "left", True)]


class _Full(ArchiveFolder):
    def erase(self, thread: str) -> object:
        raise OSError("the disk of the archive is gone")


class Erasures(Behaviours):
    """An erasure that ended between the thread and its archive is brought to its end."""

    async def _half_erased(self, lab: Lab) -> ArchiveFolder:
        await grown(lab.saver, steps=5)
        folder = lab.archive()
        await lab.saver.maintain(Retention(keep_last=2), hooks=folder)
        (erased,) = await lab.saver.erase(["thread"], hooks=lab.archive(_Full))
        assert (erased.error, erased.before.checkpoints) == ("OSError: the disk of the archive is gone", 2)
        return folder

    async def test_a_sweep_removes_the_archive(self, lab: Lab) -> None:
        folder = await self._half_erased(lab)
        path = folder.path_of("thread")
        with pytest.raises(InvalidConfig, match="erasure"):
            await lab.saver.restore(path, "it comes back")
        assert _told(await lab.saver.sweep()) == []
        assert _told(await lab.saver.sweep(hooks=folder, dry_run=True)) == [("archive", "thread", False)]
        swept = await lab.saver.sweep(hooks=lab.archive(_Full))
        assert [one.error for one in swept.left] == ["OSError: the disk of the archive is gone"]
        assert path.exists()
        assert _told(await lab.saver.sweep(hooks=folder)) == [("archive", "thread", True)]
        assert not path.exists()
        assert _told(await lab.saver.sweep(hooks=folder)) == []

    async def test_an_erasure_again_removes_it_too(self, lab: Lab) -> None:
        folder = await self._half_erased(lab)
        await grown(lab.saver, steps=1)
        (left,) = (await lab.saver.sweep(hooks=folder)).leftovers
        assert (left.kind, left.removed, "erase it again" in left.error) == ("archive", False, True)
        assert len(await lab.saver.list(at("thread"))) == 1, "it may be somebody new"
        (erased,) = await lab.saver.erase(["thread"], hooks=folder)
        assert (erased.error, erased.archived) == ("", 1)
        assert _told(await lab.saver.sweep(hooks=folder)) == []

    @needs("ledger")
    async def test_one_that_was_refused_leaves_no_trace(self, lab: Lab) -> None:
        await grown(lab.saver, steps=5)
        folder = lab.archive()
        await lab.saver.maintain(Retention(keep_last=2), hooks=folder)
        await Worker(lab).run(wants())
        (erased,) = await lab.saver.erase(["thread"], hooks=folder)
        assert erased.error.startswith("UnsettledCalls")
        assert _told(await lab.saver.sweep(hooks=folder)) == []
        assert (await lab.saver.restore(folder.path_of("thread"), "old")).checkpoints == 3

    async def test_in_the_folder_of_several_tenants(self, lab: Lab) -> None:
        root = lab.subject.directory / "archive"
        for name in ("one", "two"):
            saver = lab.open(tenant=name)
            for number in range(3):
                await saver.put(at("thread", "", f"{number}"), checkpoint(f"{number + 1}", {"n": number}))
            await saver.maintain(Retention(keep_last=1), hooks=ArchiveFolder(root, tenant=name))
            await saver.erase(["thread"], hooks=_Full(root, tenant=name))
        one = ArchiveFolder(root, tenant="one")
        assert _told(await lab.open(tenant="one").sweep(hooks=one)) == [("archive", "thread", True)]
        (left,) = (await lab.saver.sweep(hooks=ArchiveFolder(root))).leftovers
        assert (left.kind, left.thread[-6:], left.removed) == ("archive", "thread", True)
        assert [path.name for path in root.iterdir()] == ["erasures.milepost-log"]
