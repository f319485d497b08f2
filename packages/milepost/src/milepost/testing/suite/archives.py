"""Maintenance beside others: threads that somebody drives, archives, erasure, and the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest
from langchain_core.messages import HumanMessage, ToolMessage

from milepost import maintenance
from milepost.archive import ArchiveFolder, frames
from milepost.compaction import offload_large, trim_messages
from milepost.errors import Conflict, Corrupt, InvalidConfig
from milepost.flavour import run
from milepost.ledger import Succeeded, keyed
from milepost.maintaining import MAINTAINER
from milepost.maintenance import ThreadPlan
from milepost.observe import thread_hash
from milepost.retention import Retention
from milepost.store import Batch
from milepost.testing.chain import Chain, at, id_of, inside
from milepost.testing.faults import Plan
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.suite.bounded import grown, later, words
from milepost.testing.workers import Worker, quick, wants
from milepost.upkeep import Hooks, ThreadReport


class _Meanwhile(Hooks):
    """Somebody does `what`, once, while the hook `which` runs."""

    def __init__(self, lab: Lab, which: str, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._blocking = lab.flavour == "blocking"
        self._which: str | None = which
        self._what = what

    def _do(self, which: str) -> object:
        if which != self._which:
            return None
        self._which = None
        return run(self._what()) if self._blocking else self._what()

    def before(self, plan: ThreadPlan) -> object:
        return self._do("before")

    def archive(self, thread: str, batch: Batch) -> object:
        return self._do("archive")


class Guarded(Behaviours):
    """Threads that somebody drives, and what an unsettled call may need, are left alone."""

    async def test_a_thread_under_a_lease(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=6)
        async with lab.saver.lease("thread"):
            report = await lab.saver.maintain(Retention(keep_last=1, idle_thread="1d"), clock=later(9))
            assert [one.outcome for one in report.threads] == ["leased"]
            assert len(await chain.ids()) == 6
        await lab.saver.maintain(Retention(keep_last=1))
        assert len(await chain.ids()) == 1

    @pytest.mark.parametrize("which", ["before", "archive"])
    async def test_a_lease_that_is_taken_while_a_hook_runs(self, lab: Lab, which: str) -> None:
        chain = await grown(lab.saver, steps=6)
        async with AsyncExitStack() as stack:

            async def take() -> None:
                await stack.enter_async_context(lab.saver.lease("thread"))

            report = await lab.saver.maintain(Retention(keep_last=1), hooks=_Meanwhile(lab, which, take))
            assert [(one.outcome, one.checkpoints) for one in report.threads] == [("leased", 0)]
            assert len(await chain.ids()) == 6

    @needs("ledger")
    @pytest.mark.parametrize("which", ["before", "archive"])
    async def test_a_call_that_begins_while_a_hook_runs(self, lab: Lab, which: str) -> None:
        chain, worker = await grown(lab.saver, steps=6), Worker(lab)

        async def begin() -> None:
            await worker.run(wants(checkpoints=(("", "0003"),)))

        await lab.saver.maintain(Retention(keep_last=1), hooks=_Meanwhile(lab, which, begin))
        assert await chain.ids() == ["0006", "0003"]

    @needs("ledger")
    @pytest.mark.parametrize("begins", ["a lease", "a call"])
    async def test_what_begins_between_two_steps(self, lab: Lab, begins: str) -> None:
        chain, worker, store = await grown(lab.saver, steps=20), Worker(lab), type(lab.store)
        drop, left = store.drop, list[str]()
        async with AsyncExitStack() as stack:

            async def once(self: Any, *arguments: Any) -> Any:
                token = await drop(self, *arguments)
                if not left:
                    left.extend(await chain.ids())
                    if begins == "a lease":
                        await stack.enter_async_context(lab.saver.lease("thread"))
                    else:
                        await worker.run(wants(checkpoints=(("", left[-1]),)))
                return token

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(maintenance, "STEP", 8)
                patch.setattr(store, "drop", once)
                report = await lab.saver.maintain(Retention(keep_last=2))
            assert 2 < len(left) < 20
            if begins == "a lease":
                assert [one.outcome for one in report.threads] == ["leased"]
                assert await chain.ids() == left
            else:
                assert await chain.ids() == ["0020", "0019", left[-1]]

    @needs("ledger")
    async def test_what_an_unsettled_call_may_need(self, lab: Lab) -> None:
        chain, worker = await grown(lab.saver, steps=6), Worker(lab)
        await worker.do(wants(call="settled", checkpoints=(("", "0002"),)))
        call = await worker.run(wants(checkpoints=(("", "0003"),)))
        policy = Retention(keep_last=1, idle_thread="1d")
        await lab.saver.maintain(policy, clock=later(9))
        assert await chain.ids() == ["0006", "0003"]
        await worker.settle(call, Succeeded("paid"))
        await lab.saver.maintain(policy, clock=later(9))
        assert await chain.ids() == []

    @needs("ledger")
    async def test_what_any_attempt_of_an_unsettled_call_may_need(self, lab: Lab) -> None:
        tools = {"charge": quick(keyed, window="1h")}
        chain, worker = await grown(lab.saver, steps=6), Worker(lab, lease=0, tools=tools)
        for place in ("0003", "0004"):
            await worker.run(wants(checkpoints=(("", place),)))
        await lab.saver.maintain(Retention(keep_last=1), clock=later(9))
        assert await chain.ids() == ["0006", "0004", "0003"]


class Archives(Behaviours):
    """What goes can be archived first, and loaded again; what is erased is gone."""

    async def test_archived_and_restored(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=12)
        await chain.writes(("n", 1), id="0004", task="t", path="p")
        await grown(lab.saver, steps=4, ns="sub")
        before = await lab.saver.list(at("thread", None))
        folder = lab.archive()
        for last in (8, 4, 1):
            await lab.saver.maintain(Retention(keep_last=last, namespaces=""), hooks=folder)
        path = folder.path_of("thread")
        steps = list(frames(path))
        assert [len(step.batch.rows) for step in steps] == [4, 4, 3]
        # Each message was archived once.
        assert sum(len(pack.data) for step in steps for pack in step.batch.packs) < 40_000
        assert len(await chain.ids()) == 1
        with pytest.raises(Conflict):
            await lab.saver.restore(path)
        for _ in range(2):
            restored = await lab.saver.restore(path, "elsewhere")
            assert (restored.thread, restored.checkpoints, restored.writes) == ("elsewhere", 11, 1)
        old = [item for item in before if inside(item.config)["checkpoint_ns"] == ""][1:]
        async for saver in lab.views():
            found = await saver.list(at("elsewhere"))
            for one, other in zip(old, found, strict=True):
                assert id_of(one.config) == id_of(other.config)
                assert_same(one._replace(config={}, parent_config=None), other._replace(config={}, parent_config=None))
            # A parent that had gone before is not found again.
            wanted = [None if number in (9, 5, 1) else f"{number - 1:04}" for number in range(11, 0, -1)]
            assert [id_of(item.parent_config) for item in found] == wanted
        await lab.saver.delete_thread("thread")
        assert (await lab.saver.restore(path)).thread == "thread"
        assert len(await lab.saver.ids(at("thread"))) == 11

    async def test_an_archive_that_was_cut_short(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=9)
        folder = lab.archive()
        await lab.saver.maintain(Retention(keep_last=6), hooks=folder)
        path = folder.path_of("thread")
        whole = path.read_bytes()
        await lab.saver.maintain(Retention(keep_last=3), hooks=folder)
        both = path.read_bytes()
        assert both.startswith(whole)
        for cut in (len(whole) + 5, len(both) - 1):
            path.write_bytes(both[:cut])
            assert [len(step.batch.rows) for step in frames(path)] == [3]
        await lab.saver.maintain(Retention(keep_last=1), hooks=folder)
        assert [len(step.batch.rows) for step in frames(path)] == [3, 2]
        for left, torn in ((whole + both[len(whole) :][:30], 30), (whole + bytes(99), 99)):
            path.write_bytes(left)
            restored = await lab.saver.restore(path, f"what {torn} is left of")
            assert (restored.checkpoints, restored.cut) == (3, torn)
        await chain.put({"n": 10})
        for at_byte in (0, 5, 13, 40, len(whole) - 9):  # of the lengths, of their checksum, of the head, of the body
            damaged = whole[:at_byte] + bytes([whole[at_byte] ^ 1]) + whole[at_byte + 1 :]
            path.write_bytes(damaged)
            with pytest.raises(Corrupt):
                list(frames(path))
            report = await lab.saver.maintain(Retention(keep_last=1), hooks=folder, threads=["thread"])
            assert [one.outcome for one in report.threads] == ["failed"]
            assert path.read_bytes() == damaged, "what cannot be read is not written over"
        assert len(await chain.ids()) == 2, "what could not be archived stays"
        odd: Any
        for odd in (lab.subject.directory / "nothing", "", "a\0", "\ud800", "a" * 5000):
            with pytest.raises(InvalidConfig):
                await lab.saver.restore(odd)

    async def test_erased(self, lab: Lab) -> None:
        for thread in ("gone", "stays"):
            await grown(lab.saver, thread, 5)
            await grown(lab.saver, thread, 2, "sub")
        folder = lab.archive()
        await lab.saver.maintain(Retention(keep_last=2), hooks=folder)
        amount = (await lab.saver.stats("gone")).checkpoints
        gone, nobody = await lab.saver.erase(["gone", "nobody"], hooks=folder)
        assert (gone.before.checkpoints, gone.archived, gone.error) == (amount, 1, "")
        assert (nobody.before.checkpoints, nobody.archived, nobody.error) == (0, 0, "")
        assert not folder.path_of("gone").exists()
        assert folder.path_of("stays").exists()
        async for saver in lab.views():
            assert [row.thread for row in await saver.threads()] == ["stays"]
            assert (await saver.stats("gone"))[:4] == (0, 0, 0, 0)

    async def test_erased_while_it_is_archived(self, lab: Lab) -> None:
        await grown(lab.saver, steps=5)
        folder = lab.archive()
        again: list[object] = []

        class Slow(ArchiveFolder):
            async def archive(self, thread: str, batch: Batch) -> object:
                if not again:
                    again.append(await lab.saver.erase(["thread"], hooks=folder))
                    anew = Chain(lab.saver)
                    await anew.put({"n": "somebody new"}, id="0008")
                    await anew.put({"n": "who has gone on"}, id="0009")
                return super().archive(thread, batch)

        report = await lab.saver.maintain(Retention(keep_last=1), hooks=lab.archive(Slow))
        assert [one.outcome for one in report.threads] == ["changed"]
        (frame,) = frames(folder.path_of("thread"))
        assert [row.id for row in frame.batch.rows] == ["0008"], "of who was erased nothing came back"
        await lab.saver.erase(["thread"], hooks=folder)
        assert not folder.path_of("thread").exists()

    async def test_blocking_calls_where_a_loop_runs(self, lab: Lab) -> None:
        await grown(lab.saver, steps=5)
        folder, saver = lab.archive(), lab.saver.saver

        class Waits(Hooks):
            async def erase(self, thread: str) -> object:
                await asyncio.to_thread(int)
                return 1

        async def inside() -> None:
            report = saver.maintain(Retention(keep_last=2), hooks=folder)
            assert [(one.outcome, one.checkpoints) for one in report.threads] == [("changed", 3)]
            (erased,) = saver.erase(["thread"], hooks=Waits())
            assert (erased.error[:14], erased.before.checkpoints) == ("InvalidConfig:", 2)
            (erased,) = saver.erase(["thread"], hooks=folder)
            assert (erased.error, erased.archived) == ("", 1)

        await lab.inside_a_loop(inside)
        assert not folder.path_of("thread").exists()

    async def test_the_disk_of_an_archive_holds_up_no_loop(self, lab: Lab) -> None:
        await grown(lab.saver, steps=5)
        threads: list[int] = []

        class Noting(ArchiveFolder):
            def archive(self, thread: str, batch: Batch) -> object:
                threads.append(threading.get_ident())
                return super().archive(thread, batch)

            def erase(self, thread: str) -> object:
                threads.append(threading.get_ident())
                return super().erase(thread)

        hooks = lab.archive(Noting)
        await lab.saver.maintain(Retention(keep_last=2), hooks=hooks)
        (erased,) = await lab.saver.erase(["thread"], hooks=hooks)
        assert (erased.error, erased.archived) == ("", 1)
        assert [thread == threading.get_ident() for thread in threads] == 2 * [lab.flavour == "blocking"]

    @pytest.mark.parametrize("answer", [OSError("the disk is full"), "3", -1, [1]])
    async def test_what_a_hook_says_of_an_erasure(self, lab: Lab, answer: object) -> None:
        for thread in ("a", "b"):
            await grown(lab.saver, thread, 2)

        class Answers(Hooks):
            def erase(self, thread: str) -> object:
                if thread == "b":
                    return 3
                if isinstance(answer, Exception):
                    raise answer
                return answer

        first, second = await lab.saver.erase(["a", "b"], hooks=Answers())
        wanted = "OSError: the disk is full" if isinstance(answer, Exception) else "InvalidConfig: the hook `erase`"
        assert first.error.startswith(wanted)
        assert (first.before.checkpoints, first.archived) == (2, 0)
        assert (second.error, second.archived) == ("", 3)
        assert await lab.saver.list(None) == []

    async def test_what_an_archive_does_is_observed(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=5)
        await chain.writes(("n", 1), id="0002")
        folder = lab.archive()

        class Telling(ArchiveFolder):
            def before(self, plan: ThreadPlan) -> object:
                return None

            def after(self, report: ThreadReport) -> object:
                raise OSError("nobody listens")

        face = lab.open()
        await face.maintain(Retention(keep_last=2), hooks=lab.archive(Telling))
        await face.restore(folder.path_of("thread"), "elsewhere")
        await face.erase(["thread"], hooks=folder)
        told = [(event.op, event.outcome, event.error, event.facts.get("hook")) for event in face.events]
        assert told == [
            ("hook", "ok", "", "before"),
            ("hook", "ok", "", "archive"),
            ("hook", "error", "OSError", "after"),
            ("maintain", "ok", "", None),
            ("restore", "ok", "", None),
            ("delete_thread", "ok", "", None),
            ("hook", "ok", "", "erase"),
            ("erase", "ok", "", None),
        ]
        before, archive, after, _, restore, _, erasure, erase = face.events
        mine, other = thread_hash("thread"), thread_hash("elsewhere")
        assert [event.thread for event in face.events] == [mine] * 4 + [other] + [mine] * 3
        assert before.facts["checkpoints"] == archive.facts["checkpoints"] == after.facts["checkpoints"] == 3
        assert (archive.facts["writes"], restore.facts["writes"], restore.facts["checkpoints"]) == (1, 1, 3)
        assert (erase.facts["checkpoints"], erase.facts["archived"], erasure.facts["archived"]) == (2, 1, 1)
        assert all(event.bytes for event in (archive, restore, erase))

    async def test_tenants_in_one_folder(self, lab: Lab) -> None:
        root = lab.subject.directory / "archive"
        savers = {name: lab.open(tenant=name) for name in ("one", "two")}
        folders = {name: ArchiveFolder(root, tenant=name) for name in savers}
        for name, saver in savers.items():
            chain = Chain(saver)
            for _ in range(3):
                await chain.put({"of": name})
            await saver.maintain(Retention(keep_last=2), hooks=folders[name])
            with pytest.raises(InvalidConfig, match="tenant"):
                await saver.maintain(Retention(keep_last=1), hooks=ArchiveFolder(root))
        # Who looks after the whole store archives to the same files.
        await lab.saver.maintain(Retention(keep_last=1), hooks=ArchiveFolder(root))
        for name, saver in savers.items():
            assert (await saver.restore(folders[name].path_of("thread"), "old")).checkpoints == 2
            assert [item.checkpoint["channel_values"] for item in await saver.list(at("old"))] == 2 * [{"of": name}]
        with pytest.raises(InvalidConfig, match="'two'"):
            await savers["two"].restore(folders["one"].path_of("thread"), "stolen")
        (erased,) = await savers["one"].erase(["thread"], hooks=folders["one"])
        assert erased.archived == 1
        assert [folder.path_of("thread").exists() for folder in folders.values()] == [False, True]

    async def test_with_the_attachments(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        page = words(1) * 200
        for number in range(3):
            await chain.put({"m": [ToolMessage(page, tool_call_id="1", id="1")], "n": number})
        await lab.saver.maintain(compact=offload_large(over="3kB"), quiet=0)
        (note,) = (await chain.values())["m"]
        address = note.content.rpartition(" ")[2].rstrip("]")
        await chain.put({"m": [note], "n": 3})
        folder = lab.archive()
        await lab.saver.maintain(Retention(keep_last=1), hooks=folder)
        restored = await lab.saver.restore(folder.path_of("thread"), "old")
        assert restored.attachments == 1
        async for saver in lab.views():
            assert await saver.attachment("old", address) == page

    @needs("ledger")
    async def test_unsettled_calls_are_not_erased(self, lab: Lab) -> None:
        chain, worker = await grown(lab.saver, steps=2), Worker(lab)
        await worker.run(wants())
        (report,) = await lab.saver.erase(["thread"])
        assert "UnsettledCalls" in report.error
        assert len(await chain.ids()) == 2
        (report,) = await lab.saver.erase(["thread"], force=True)
        assert (report.error, await chain.ids()) == ("", [])


class Background(Behaviours):
    """`maintaining` works in the background, in one process at a time."""

    async def test_at_once_and_when_a_thread_has_grown(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=8)
        await grown(lab.saver, "other", 8)
        options: dict[str, Any] = {"every": 3600, "grown": "20kB", "quiet": 0}
        async with lab.saver.maintaining(Retention(keep_last=2), **options) as manager:
            await lab.happens(lambda: manager.rounds == 1)
            reports = [manager.last]
            assert len(await chain.ids()) == 2
            for number in range(60):
                await chain.put({"text": words(number)})
            await lab.happens(lambda: manager.rounds >= 2)
            reports.append(manager.last)
        assert [one.seen for one in reports if one is not None] == [2, 1], "then only the one that has grown"
        assert not manager.holds
        assert len(await Chain(lab.saver, "other").ids()) == 2

    async def test_when_a_head_has_passed_a_size(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        trim = trim_messages(last=4, channel="m")
        options: dict[str, Any] = {"every": 3600, "compact": trim, "compact_over": "20kB", "quiet": 0}
        async with lab.saver.maintaining(**options) as manager:
            await lab.happens(lambda: manager.rounds == 1)
            for number in range(60):
                await chain.put({"text": words(number), "m": []})
            messages = [HumanMessage(words(number), id=str(number)) for number in range(200)]
            assert manager.rounds == 1, "much was put, and the head is small"
            await chain.put({"m": messages})
            await lab.happens(lambda: manager.rounds >= 2)
        assert manager.last is not None
        assert [(one.thread, one.compacted) for one in manager.last.threads] == [("thread", ("m",))]
        assert_same(messages[-4:], (await chain.values())["m"])

    async def test_one_at_a_time(self, lab: Lab) -> None:
        await grown(lab.saver, steps=4)
        second = lab.open()
        async with second.maintaining(every=0.05) as other:
            await lab.happens(lambda: other.holds)
            async with lab.saver.maintaining(every=0.05) as manager:
                before = other.rounds
                await lab.happens(lambda: other.rounds > before + 2)
                assert not manager.holds
                assert manager.rounds == 0
        async with lab.saver.maintaining(every=0.05) as manager:
            await lab.happens(lambda: manager.holds and manager.rounds > 0)
        assert await lab.saver.get(at(MAINTAINER)) is None

    async def test_a_hook_that_hangs_holds_up_nobody_else(self, lab: Lab) -> None:
        chain, other = await grown(lab.saver, steps=6), await grown(lab.saver, "zz", 6)
        entered, go = threading.Event(), threading.Event()

        class Hangs(Hooks):
            def archive(self, thread: str, batch: Batch) -> object:
                entered.set()
                return asyncio.to_thread(go.wait) if lab.flavour == "async" else go.wait()

        options: dict[str, Any] = {"every": 3600, "hooks": Hangs(), "threads": ["thread"]}
        async with lab.saver.maintaining(Retention(keep_last=2), **options) as manager:
            try:
                await lab.happens(entered.is_set)
                before = await lab.saver.list(chain.latest)
                await chain.put({"n": "goes on"})
                assert len(before) == 6, "nothing goes before the hook has returned"
                assert_same(before, (await lab.saver.list(chain.latest))[1:])
                assert (await lab.open().maintain(Retention(keep_last=2), threads=["zz"])).checkpoints == 4
                assert await lab.store.holder(MAINTAINER) is not None
                async with lab.open().maintaining(every=3600) as second:
                    await lab.idle()
                    assert (second.holds, manager.rounds) == (False, 0)
            finally:
                go.set()
            await lab.happens(lambda: manager.rounds == 1)
        assert manager.last is not None
        assert [one.outcome for one in manager.last.threads] == ["changed"]
        assert (await chain.ids(), await other.ids()) == (["0007", "0006"], ["0006", "0005"])

    async def test_what_goes_wrong_is_tried_again(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=4)
        plan = Plan()
        faulty = lab.faulty(plan)
        plan.arm("before", times=3)
        async with faulty.maintaining(Retention(keep_last=1), every=0.05) as manager:
            await lab.happens(lambda: manager.rounds > 0)
        assert len(await chain.ids()) == 1
