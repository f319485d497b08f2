"""Bounded state: retention by policy, merging of packs, and the hooks around both."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.messages import trim_messages as langchain_trim

from milepost.compaction import offload_large, summarize, trim_messages
from milepost.errors import InvalidConfig
from milepost.maintenance import ThreadPlan
from milepost.retention import Retention
from milepost.store import Batch
from milepost.testing.chain import Chain, at, id_of, inside
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.delta import DeltaRun, rebuilt
from milepost.upkeep import Hooks, Report, ThreadReport

DAY = 86400.0


def words(number: int, count: int = 60) -> str:
    """Text that no other number has, and that does not compress by much."""
    return " ".join(f"{(number * 7919 + place) * 2654435761 % 4294967291:x}" for place in range(count))


async def grown(saver: Face, thread: str = "thread", steps: int = 20, ns: str = "") -> Chain:
    """A conversation that grows by a message a step, beside a text that is another one each time."""
    chain = Chain(saver, thread, ns)
    messages: list[Any] = []
    for number in range(steps):
        messages.append(HumanMessage(words(number), id=str(number)))
        await chain.put({"m": list(messages), "n": number, "text": words(-number)})
    return chain


class Recorder(Hooks):
    """Notes what the hooks are told."""

    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.plans: list[ThreadPlan] = []
        self.batches: list[Batch] = []
        self.reports: list[ThreadReport] = []

    def before(self, plan: ThreadPlan) -> object:
        self.plans.append(plan)
        return self.answer

    def archive(self, thread: str, batch: Batch) -> object:
        self.batches.append(batch)
        return None

    def after(self, report: ThreadReport) -> object:
        self.reports.append(report)
        return None


def later(days: float) -> Any:
    """A clock that is so far ahead of everybody else's."""
    return lambda: time.time() + days * DAY


class Policies(Behaviours):
    """What `maintain` keeps by policy reads as before, and the rest is gone."""

    @pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf, "1", None, True])
    async def test_a_clock_that_tells_no_time(self, lab: Lab, now: Any) -> None:
        """By that, every thread would be old."""
        chain = await grown(lab.saver, steps=3)
        policy = Retention(keep_last=1, idle_thread="365d")
        with pytest.raises(InvalidConfig, match="clock returned"):
            await lab.saver.maintain(policy, clock=lambda: now)
        told = iter((time.time(), now))
        (report,) = (await lab.saver.maintain(policy, clock=lambda: next(told))).threads
        assert (report.outcome, "clock returned" in report.error) == ("failed", True)
        assert len(await chain.ids()) == 3

    async def test_the_newest_stay(self, lab: Lab) -> None:
        chain = await grown(lab.saver)
        wanted = await lab.saver.list(chain.latest, limit=5)
        report = await lab.saver.maintain(Retention(keep_last=5))
        assert (report.seen, report.checkpoints, report.threads[0].outcome) == (1, 15, "changed")
        async for saver in lab.views():
            found = await saver.list(chain.latest)
            assert found[-1].parent_config is None
            assert_same(wanted[:-1], found[:-1])
            assert_same(wanted[-1]._replace(parent_config=None), found[-1])

    async def test_a_dry_run_says_what_the_run_does(self, lab: Lab) -> None:
        for thread in ("a", "b"):
            await grown(lab.saver, thread)
            await grown(lab.saver, thread, 8, "sub")
        policy = Retention(keep_last=3)
        before = await lab.saver.list(None)
        planned = await lab.saver.maintain(policy, dry_run=True)
        assert_same(before, await lab.saver.list(None))
        done = await lab.saver.maintain(policy)
        assert (planned.dry_run, done.dry_run) == (True, False)
        assert sorted(planned.threads, key=lambda one: one.thread) == sorted(done.threads, key=lambda one: one.thread)
        for one in done.threads:
            stats = await lab.saver.stats(one.thread)
            assert stats[1:4] == (one.after.checkpoints, one.after.writes, one.after.packs) == (6, 0, stats.packs)
            assert one.after.bytes < one.before.bytes
        again = await lab.saver.maintain(policy)
        assert (again.seen, again.threads) == (2, ())

    async def test_ages(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=6)
        assert (await lab.saver.maintain(Retention(keep_for="30d"), clock=later(29))).checkpoints == 0
        assert (
            await lab.saver.maintain(Retention(thin=[("40d", "1d")]), clock=later(39), dry_run=True)
        ).checkpoints == 5
        await lab.saver.maintain(Retention(keep_for="30d", keep_last=2), clock=later(31))
        assert await chain.ids() == ["0006", "0005"]
        await lab.saver.maintain(Retention(keep_for="30d"), clock=later(31))
        assert await chain.ids() == ["0006"]

    async def test_thinned(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=6)
        # All of them are of the same moment, so that one of any interval is the last one of all.
        await lab.saver.maintain(Retention(thin=[("7d", "4000d")]), clock=later(8))
        assert len(await chain.ids()) <= 2
        assert (await chain.ids())[0] == "0006"

    async def test_no_limit_drops_nothing(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=4)
        before = await lab.saver.list(None)
        unlimited: tuple[Any, ...] = (None, Retention(), [], Retention(keep_last=0, threads="other*"))
        for policy in unlimited:
            assert (await lab.saver.maintain(policy, clock=later(999))).checkpoints == 0
        assert_same(before, await lab.saver.list(None))
        await lab.saver.maintain(Retention(keep_last=0))
        assert await chain.ids() == ["0004"]

    async def test_what_waits_stays(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=3)
        await chain.writes(("__interrupt__", "left?"), task="t1")
        await chain.writes(("text", "done"), task="t2")
        left = await lab.saver.got(chain.at())
        # Somebody forked before, and the thread went on there.
        for number in range(4):
            await chain.put({"n": number}, parent="0001" if not number else None)
        await lab.saver.maintain(Retention(keep_last=1))
        async for saver in lab.views():
            assert await saver.ids(chain.latest) == ["0007", "0003", "0001"]
            found = await saver.got(chain.at("0003"))
            assert_same(left._replace(parent_config=None), found._replace(parent_config=None))
            assert id_of(found.parent_config) == "0001"
            assert id_of((await saver.got(chain.at("0007"))).parent_config) == "0001"
        await lab.saver.maintain(Retention(keep_last=1, keep_waiting=False))
        assert await lab.saver.ids(chain.latest) == ["0007"]

    async def test_where_branches_part(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=6)
        for number in range(3):
            await chain.put({"n": -number}, parent="0003" if not number else None)
        await lab.saver.maintain(Retention(keep_last=4))
        assert await chain.ids() == ["0009", "0008", "0007", "0006", "0003"]
        await lab.saver.maintain(Retention(keep_last=4, keep_forks=False))
        assert await chain.ids() == ["0009", "0008", "0007", "0006"]

    async def test_what_is_pinned_stays(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(6):
            await chain.put({"n": number}, metadata={"pinned": number == 2})
        await chain.put({"n": 6}, config={"pinned": "for the audit"})
        await chain.put({"n": 7})
        await lab.saver.maintain(Retention(keep_last=1, idle_thread="1d"), clock=later(9))
        assert await chain.ids() == ["0008", "0007", "0003"]
        assert id_of((await lab.saver.got(chain.at("0007"))).parent_config) == "0003"
        await lab.saver.maintain(Retention(keep_last=1, keep_pinned=False))
        assert await chain.ids() == ["0008"]

    async def test_delta_channels_are_rebuilt(self, lab: Lab) -> None:
        run = DeltaRun(Chain(lab.saver))
        await run.start()
        for number in range(12):
            await run.step(("", f"t{number}", [number, words(number)]), snapshot=number == 4)
        await run.step(parent="0003")
        await run.step(("", "fork", ["fork"]))
        before = {id: await rebuilt(lab.saver, run.chain.at(id)) for id in run.at}
        await lab.saver.maintain(Retention(keep_last=3))
        kept = await run.chain.ids()
        async for saver in lab.views():
            for id in kept:
                assert_same(before[id], await rebuilt(saver, run.chain.at(id)), f"at {id}")
        assert len(kept) < len(before)

    async def test_calls_of_subgraphs_go_with_their_root(self, lab: Lab) -> None:
        root = await grown(lab.saver, steps=5)
        shared = Chain(lab.saver, ns="shared")
        calls = [Chain(lab.saver, ns=f"node:{number:04}") for number in range(1, 6)]
        for number, call in enumerate(calls, 1):
            for step in range(3):
                await call.put({"y": step}, metadata={"parents": {"": f"{number:04}"}})
        # What replaying checkpoint 4 reads of a subgraph that remembers is what was there then.
        for id in ("0002x", "0003x", "0003y", "0004x", "0005x"):
            await shared.put({"z": id}, id=id)
        await lab.saver.maintain(Retention(keep_last=2, namespaces=""))
        assert await root.ids() == ["0005", "0004"]
        assert [await call.ids() for call in calls] == [[], [], [], ["0003", "0002", "0001"], ["0003", "0002", "0001"]]
        assert len(await shared.ids()) == 5
        await lab.saver.maintain(Retention(keep_last=1))
        assert await root.ids() == ["0005"]
        assert [await call.ids() for call in calls] == [[], [], [], [], ["0003"]]
        assert await shared.ids() == ["0005x", "0004x"]
        found = await lab.saver.list(shared.latest, before=root.at("0005"), limit=1)
        assert [item.checkpoint["id"] for item in found] == ["0004x"]

    @pytest.mark.parametrize("how", ["maintain", "prune"])
    async def test_what_a_pinned_root_replays_with(self, lab: Lab, how: str) -> None:
        root, shared = await grown(lab.saver, steps=6), Chain(lab.saver, ns="shared")
        for id in ("0001x", "0002x", "0003x", "0005x"):
            await shared.put({"z": id}, id=id)
        await root.put({"n": 7}, id="0007", parent="0002", metadata={"source": "fork"})
        await root.put({"n": 8}, id="0008", parent="0006")
        await lab.saver.pin(root.at("0004"))
        await lab.saver.pin(root.at("0007"))
        if how == "prune":
            await lab.saver.prune(["thread"])
        else:
            await lab.saver.maintain(Retention(keep_last=1))
        # The fork reads as of its parent, the other as of itself.
        assert await root.ids() == ["0008", "0007", "0004", "0002"]
        assert await shared.ids() == ["0005x", "0003x", "0001x"]

    async def test_calls_without_a_root_are_swept(self, lab: Lab) -> None:
        root = await grown(lab.saver, steps=2)
        call, waiting = Chain(lab.saver, ns="node:1"), Chain(lab.saver, ns="node:2")
        for chain in (call, waiting):
            await chain.put({"y": 1}, metadata={"parents": {"": "0000"}})
        await waiting.writes(("__interrupt__", "go on?"))
        assert (await lab.saver.maintain(Retention(keep_last=9))).checkpoints == 0, "its root may be on its way"
        assert (await lab.saver.maintain(clock=later(2))).checkpoints == 0, "nobody said that anything may go"
        await lab.saver.maintain(Retention(keep_last=9), clock=later(2))
        assert (len(await root.ids()), await call.ids(), await waiting.ids()) == (2, [], ["0001"])

    async def test_policies_by_thread_and_namespace(self, lab: Lab) -> None:
        for thread in ("customer-1", "customer-2", "test-1"):
            await grown(lab.saver, thread, 6)
            await grown(lab.saver, thread, 6, "sub")
        policies = [
            Retention(threads="customer-*", namespaces="", keep_last=3),
            Retention(threads="test-*", keep_last=1),
        ]
        await lab.saver.maintain(policies, threads=["customer-1", "test-1", "nobody"])
        counts = {
            (thread, ns): len(await lab.saver.ids(at(thread, ns)))
            for thread in ("customer-1", "customer-2", "test-1")
            for ns in ("", "sub")
        }
        # The root's last one would read the one before it, replayed.
        assert list(counts.values()) == [3, 6, 6, 6, 1, 2]

    async def test_idle_threads_are_deleted(self, lab: Lab) -> None:
        await grown(lab.saver, "idle", 3)
        await grown(lab.saver, "idle", 3, "sub")
        waiting = await grown(lab.saver, "waiting", 3)
        await waiting.writes(("__interrupt__", "go on?"))
        policy = Retention(idle_thread="180d")
        assert (await lab.saver.maintain(policy, clock=later(179))).threads == ()
        report = await lab.saver.maintain(policy, clock=later(181))
        assert [(one.thread, one.deleted, one.checkpoints) for one in report.threads if one.deleted] == [
            ("idle", True, 6)
        ]
        async for saver in lab.views():
            assert [row.thread for row in await saver.threads()] == ["waiting"]
            assert (await saver.stats("idle"))[:4] == (0, 0, 0, 0)
        # Who speaks for the root speaks for the thread, and asks in every namespace whether somebody waits there.
        children = Retention(namespaces="sub", keep_last=1)
        inside = await grown(lab.saver, "waiting inside", 1)
        child = await grown(lab.saver, "waiting inside", 1, "sub")
        await child.writes(("__interrupt__", "go on?"))
        for policies in ([children, policy], [policy, children], [Retention(namespaces="", idle_thread="180d")]):
            await grown(lab.saver, "idle", 1)
            await lab.saver.maintain(policies, clock=later(181))
            assert {row.thread for row in await lab.saver.threads()} == {"waiting", "waiting inside"}
        assert len(await inside.ids()) == 1
        await lab.saver.maintain(Retention(idle_thread="180d", keep_waiting=False), clock=later(181))
        assert await lab.saver.threads() == ()

    async def test_limits_that_cannot_be_right(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=2)
        bad: Sequence[tuple[str, dict[str, Any]]] = (
            ("keep_last", {"keep_last": -1}),
            ("keep_last", {"keep_last": 1.5}),
            ("keep_last", {"keep_last": True}),
            ("keep_for", {"keep_for": "30 days"}),
            ("keep_for", {"keep_for": -1}),
            ("keep_for", {"keep_for": float("nan")}),
            ("idle_thread", {"idle_thread": "0d"}),
            ("thin[0]", {"thin": [("1d", "")]}),
            ("thin", {"thin": [("1d",)]}),
            ("thin", {"thin": "1d"}),
            ("threads", {"threads": 3}),
        )
        for what, options in bad:
            with pytest.raises(InvalidConfig) as caught:
                Retention(**options)
            assert caught.value.what == what
        for arguments in (
            {"policy": "keep 3"},
            {"threads": "thread"},
            {"hooks": Hooks},
            {"merge": "x"},
            {"dry_run": None},
            {"compact_namespace": 5},
            {"compact": langchain_trim},
            {"compact": trim_messages},
            {"compact": [trim_messages(last=2), summarize]},
            {"compact": offload_large},
        ):
            with pytest.raises(InvalidConfig):
                await lab.saver.maintain(**{"policy": None, **arguments})
        assert len(await chain.ids()) == 2

    async def test_runs_go_on_meanwhile(self, lab: Lab) -> None:
        chains = [await grown(lab.open(), steps=10, ns=ns) for ns in ("", "sub")]
        messages = [HumanMessage(words(number), id=str(number)) for number in range(40)]
        reports: list[Report] = []

        async def write(chain: Chain) -> None:
            for number in range(10, 40):
                await chain.put({"m": messages[: number + 1], "n": number})
                await chain.writes(("m", messages[: number + 1]))

        async def maintain() -> None:
            reports.extend([await lab.saver.maintain(Retention(keep_last=4)) for _ in range(10)])

        await lab.together(*[lambda chain=chain: write(chain) for chain in chains], maintain)
        assert {one.outcome for report in reports for one in report.threads} <= {"changed", "moved"}
        await lab.saver.maintain(Retention(keep_last=4))
        async for saver in lab.views():
            for chain in chains:
                found = await saver.list(chain.latest, limit=4)
                assert [item.checkpoint["id"] for item in found] == ["0040", "0039", "0038", "0037"]
                for number, item in zip((39, 38, 37, 36), found, strict=True):
                    assert_same(messages[: number + 1], item.checkpoint["channel_values"]["m"])
                    assert_same([("task", "m", messages[: number + 1])], item.pending_writes)


class Merging(Behaviours):
    """Many small packs become few large ones, and nobody can tell."""

    async def test_everything_reads_as_before(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=30)
        chain.saver = lab.open()  # neither writes so many of them that they are merged on the way
        for number in range(30, 60):
            m = [*(await chain.values())["m"], HumanMessage(words(number), id=str(number))]
            await chain.put({"m": m, "n": number, "text": words(-number)})
        for number in range(20):
            await chain.writes(("m", HumanMessage(words(1000 + number))), task=f"t{number}")
        await grown(lab.saver, steps=30, ns="sub")
        before = await lab.saver.list(None)
        stats = await lab.saver.stats("thread")
        report = await lab.saver.maintain()
        assert report.threads[0].checkpoints == 0
        async for saver in lab.views():
            assert_same(before, await saver.list(None))
            merged = await saver.stats("thread")
            assert stats.packs >= 80
            assert merged.packs <= 6
            assert merged.bytes < stats.bytes
        assert (await lab.saver.maintain()).threads == ()

    async def test_the_run_goes_on(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=30)
        for number in range(30, 90):
            values = await chain.values()
            await chain.put({**values, "m": [*values["m"], HumanMessage(words(number), id=str(number))]})
            if number % 7 == 0:
                await (lab.saver if number % 2 else lab.open()).maintain(Retention(keep_last=10))
        await lab.saver.maintain(Retention(keep_last=10))
        assert (await lab.saver.stats("thread")).packs < 30
        async for saver in lab.views():
            for item in await saver.list(chain.latest):
                count = int(item.checkpoint["id"])
                assert [one.content for one in item.checkpoint["channel_values"]["m"]] == [
                    words(number) for number in range(count)
                ]

    async def test_with_what_was_dropped_between(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        kept: list[Any] = []
        for number in range(80):
            kept += [HumanMessage(words(number), id=str(number))] if number % 9 else []
            await chain.put({"m": list(kept), "now": [words(2000 + number)] if number % 9 == 0 else []})
        await lab.saver.maintain(Retention(keep_last=1))
        async for saver in lab.views():
            values = (await saver.got(chain.latest)).checkpoint["channel_values"]
            assert_same({"m": kept, "now": []}, values)
            assert (await saver.stats("thread")).packs < 20
        chain.saver = lab.saver
        await chain.put({"m": kept[10:], "now": []})
        await lab.saver.maintain(Retention(keep_last=1))
        assert_same(kept[10:], (await chain.values())["m"])

    async def test_it_can_be_left_out(self, lab: Lab) -> None:
        await grown(lab.saver, steps=20)
        assert (await lab.saver.maintain(merge=False)).threads == ()


class Hooked(Behaviours):
    """Hooks see what is about to be done, may stop it, and lose nothing."""

    async def test_all_of_them_in_turn(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=8)
        await chain.writes(("n", 1), id="0002")
        hooks = Recorder()
        await lab.saver.maintain(Retention(keep_last=2), hooks=hooks)
        await lab.saver.maintain(Retention(keep_last=2), hooks=hooks)
        (plan,), (report,) = hooks.plans, hooks.reports
        gone = [("", f"{number:04}") for number in range(1, 7)]
        assert sorted(plan.checkpoints) == gone
        assert (report.outcome, report.checkpoints, report.before, report.after) == (
            "changed",
            6,
            plan.before,
            plan.after,
        )
        batch = hooks.batches[0]
        assert [(row.ns, row.id) for row in batch.rows] == gone
        assert [(id, row.channel) for _, id, row in batch.writes] == [("0002", "n")]
        # What was archived can be loaded again.
        await lab.saver.maintain(Retention(keep_last=2), hooks=hooks, dry_run=True)
        assert len(hooks.batches) == 1

    async def test_a_veto_of_a_thread(self, lab: Lab) -> None:
        await grown(lab.saver, "a", 5)
        await grown(lab.saver, "b", 5)
        before = await lab.saver.list(None)

        class Careful(Recorder):
            def before(self, plan: ThreadPlan) -> object:
                return plan.thread != "a"

        hooks = Careful()
        report = await lab.saver.maintain(Retention(keep_last=1), hooks=hooks)
        assert {one.thread: one.outcome for one in report.threads} == {"a": "vetoed", "b": "changed"}
        assert_same([item for item in before if inside(item.config)["thread_id"] == "a"], await lab.saver.list(at("a")))
        assert len(await lab.saver.ids(at("b"))) == 1

    @pytest.mark.parametrize(
        "answer", [0, 1, "", "keep", b"", [1], [("",)], ("", "0003"), {"": "0003"}, NotImplemented, iter(())]
    )
    async def test_an_answer_that_is_none(self, lab: Lab, answer: object) -> None:
        chain = await grown(lab.saver, steps=3)
        report = await lab.saver.maintain(Retention(keep_last=1), hooks=Recorder(answer))
        assert [(one.outcome, one.error[:14]) for one in report.threads] == [("failed", "InvalidConfig:")]
        assert len(await chain.ids()) == 3

    async def test_hooks_that_wait(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=3)

        class Waits(Hooks):
            async def before(self, plan: ThreadPlan) -> object:
                await asyncio.to_thread(int)
                return None

        report = await lab.saver.maintain(Retention(keep_last=1), hooks=Waits())
        wanted = ("changed", "", 1) if lab.flavour == "async" else ("failed", "InvalidConfig:", 3)
        assert (report.threads[0].outcome, report.threads[0].error[:14], len(await chain.ids())) == wanted

    async def test_more_would_go_than_a_hook_has_seen(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=3)
        seen: list[list[str]] = []

        class Careful(Hooks):
            async def before(self, plan: ThreadPlan) -> object:
                seen.append(sorted(id for _, id in plan.checkpoints))
                if len(seen) == 1:
                    await chain.put({"n": 4})
                return [("", "0001")]

        await lab.saver.maintain(Retention(keep_last=1), hooks=Careful())
        assert seen == [["0001", "0002"], ["0001", "0002", "0003"]]
        assert await chain.ids() == ["0004", "0001"]

    async def test_a_veto_of_a_checkpoint(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=6)
        await lab.saver.maintain(Retention(keep_last=1), hooks=Recorder([("", "0003"), ("", "nothing")]))
        assert await chain.ids() == ["0006", "0003"]

    @pytest.mark.parametrize("which", ["before", "archive", "after"])
    async def test_one_that_raises(self, lab: Lab, which: str) -> None:
        await grown(lab.saver, "a", 5)
        await grown(lab.saver, "b", 5)
        before = await lab.saver.list(at("a"))

        class Broken(Recorder):
            def fail(self, thread: str, name: str) -> None:
                if thread == "a" and name == which:
                    raise OSError("the disk of the archive is full")

            def before(self, plan: ThreadPlan) -> object:
                self.fail(plan.thread, "before")
                return None

            def archive(self, thread: str, batch: Batch) -> object:
                self.fail(thread, "archive")
                return None

            def after(self, report: ThreadReport) -> object:
                self.fail(report.thread, "after")
                return None

        report = await lab.saver.maintain(Retention(keep_last=1), hooks=Broken())
        outcome = "changed" if which == "after" else "failed"
        assert {one.thread: one.outcome for one in report.threads} == {"a": outcome, "b": "changed"}
        assert [one.thread for one in report.threads if "disk of the archive" in one.error] == ["a"]
        if which == "after":
            assert len(await lab.saver.ids(at("a"))) == 1
        else:
            assert_same(before, await lab.saver.list(at("a")))

    async def test_a_run_that_goes_on_while_one_hangs(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=5)

        class Slow(Recorder):
            def archive(self, thread: str, batch: Batch) -> object:
                super().archive(thread, batch)
                return chain.put({"n": 100 + len(self.batches)})

        if lab.flavour == "blocking":

            class Blocking(Slow):
                def archive(self, thread: str, batch: Batch) -> object:
                    from milepost.flavour import run  # noqa: PLC0415 - what a hook may do

                    return run(super().archive(thread, batch))  # type: ignore[arg-type]

            hooks: Slow = Blocking()
        else:
            hooks = Slow()
        report = await lab.saver.maintain(Retention(keep_last=2), hooks=hooks)
        assert [one.outcome for one in report.threads] == ["moved"]
        assert len(await chain.ids()) == 5 + len(hooks.batches)
        assert (await chain.values())["n"] == 100 + len(hooks.batches)

    async def test_events(self, lab: Lab) -> None:
        await grown(lab.saver, steps=5)
        lab.saver.events.clear()
        await lab.saver.maintain(Retention(keep_last=2))
        (event,) = [event for event in lab.saver.events if event.op == "maintain"]
        assert event.thread
        assert (event.facts["outcome"], event.facts["checkpoints"], event.facts["dry_run"]) == ("changed", 3, False)
        assert event.facts["freed"] > 0
