"""Compaction: the latest checkpoint gets smaller, nothing runs again, and nobody who waits is forgotten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it

from milepost.compaction import Context, offload_large, summarize, trim_messages
from milepost.errors import InvalidConfig
from milepost.retention import Retention
from milepost.testing.chain import Chain, at, checkpoint, id_of, inside
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.bounded import grown, later, words
from milepost.testing.suite.delta import DeltaRun, rebuilt
from milepost.upkeep import Report

LARGE = "result " * 20_000


def tool_call(number: int) -> list[AnyMessage]:
    """A question, a tool call and its large result."""
    call = {"name": "look_up", "args": {"n": number}, "id": f"call {number}", "type": "tool_call"}
    return [
        HumanMessage(f"question {number}", id=f"h{number}"),
        AIMessage("", tool_calls=[call], id=f"a{number}"),
        ToolMessage(f"{number} {LARGE}", tool_call_id=f"call {number}", id=f"t{number}"),
    ]


def outcomes(report: Report) -> Sequence[tuple[str, Sequence[str]]]:
    """What became of each thread, and which channels were made smaller."""
    return [(one.outcome, one.compacted) for one in report.threads]


class Compacts(Behaviours):
    """`maintain(compact=...)` enters a smaller head, by compare-and-set."""

    async def test_trimmed(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=12)
        old = await lab.saver.got(chain.latest)
        trim = trim_messages(last=4, channel="m")
        planned = await lab.saver.maintain(compact=trim, quiet=0, dry_run=True)
        assert len(await chain.ids()) == 12
        done = await lab.saver.maintain(compact=trim, quiet=0)
        assert planned.threads == done.threads
        assert outcomes(done) == [("changed", ("m",))]
        async for saver in lab.views():
            new = await saver.got(chain.latest)
            assert id_of(new.parent_config) == "0012"
            assert_same(old, await saver.got(chain.at("0012")))
            values = dict(old.checkpoint["channel_values"])
            assert_same({**values, "m": values["m"][-4:]}, new.checkpoint["channel_values"])
            for same in ("channel_versions", "versions_seen", "updated_channels"):
                assert_same(old.checkpoint[same], new.checkpoint[same])
            for same in ("step", "source"):
                assert new.metadata.get(same) == old.metadata.get(same)
            assert new.pending_writes == []
        # Twice is once.
        chain.saver = lab.saver
        ids = await chain.ids()
        assert [one.compacted for one in (await lab.saver.maintain(compact=trim, quiet=0)).threads] in ([], [()])
        assert await chain.ids() == ids

    async def test_the_run_goes_on_from_it(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=12)
        other = lab.open()
        await other.maintain(Retention(keep_last=1), compact=trim_messages(last=4, channel="m"), quiet=0)
        head = (await chain.ids())[0]
        assert await chain.ids() == [head]
        values = await chain.values()
        await lab.saver.put(
            at("thread", "", head),
            checkpoint("0013", {**values, "m": [*values["m"], HumanMessage("more", id="more")]}),
        )
        async for saver in lab.views():
            found = await saver.got(chain.latest)
            assert found.checkpoint["id"] == "0013"
            assert [one.id for one in found.checkpoint["channel_values"]["m"]] == ["8", "9", "10", "11", "more"]

    async def test_a_run_that_read_the_old_head_wins(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=12)
        await lab.open().maintain(compact=trim_messages(last=4, channel="m"), quiet=0)
        await chain.put({"m": [HumanMessage("on", id="on")], "n": 99})
        assert (await chain.values())["n"] == 99
        assert len(await chain.ids()) == 14

    async def test_only_at_a_settled_boundary(self, lab: Lab) -> None:
        trim = trim_messages(last=4, channel="m")
        waiting = await grown(lab.saver, "waiting", 8)
        await waiting.writes(("__interrupt__", "go on?"), task="t1")
        half = await grown(lab.saver, "half", 8)
        await half.writes(("n", 1), task="t1")
        calling = await grown(lab.saver, "calling", 8)
        await Chain(lab.saver, "calling", "node:1").put({"y": 1}, metadata={"parents": {"": "0008"}})
        called = await grown(lab.saver, "called", 8)
        await Chain(lab.saver, "called", "node:1").put({"y": 1}, metadata={"parents": {"": "0007"}})
        before = await lab.saver.list(None)
        report = await lab.saver.maintain(compact=trim, quiet=0, merge=False)
        assert [(one.thread, one.compacted) for one in report.threads] == [("called", ("m",))]
        assert_same(before, [item for item in await lab.saver.list(None) if "compacted" not in item.metadata])
        assert len(await called.ids()) == 9
        assert (await lab.saver.maintain(compact=trim, quiet="1h", merge=False)).threads == ()
        for chain in (waiting, half, calling):
            assert (await chain.ids())[0] == "0008"

    async def test_a_head_that_moves_meanwhile(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=8)
        numbers = iter(range(100, 200))

        whole = (await chain.values())["m"]

        async def slow(_: list[AnyMessage]) -> str:
            await chain.put({"m": whole, "n": next(numbers)})
            return "too late"

        def blocking(messages: list[AnyMessage]) -> str:
            from milepost.flavour import run  # noqa: PLC0415 - what a compactor may do

            return run(slow(messages))

        write: Any = blocking if lab.flavour == "blocking" else slow
        report = await lab.saver.maintain(compact=summarize(write, last=4, channel="m"), quiet=0)
        assert outcomes(report) == [("moved", ())]
        found = await lab.saver.list(chain.latest)
        assert len(found) == 8 + next(numbers) - 100
        assert not [item for item in found if "compacted" in item.metadata]

    async def test_a_dry_run_says_what_compaction_and_merging_do(self, lab: Lab) -> None:
        await grown(lab.saver, steps=12)

        def rewrite(state: Mapping[str, Any], _: Context) -> Mapping[str, Any] | None:
            first = HumanMessage(words(len(state["m"])), id=f"of {len(state['m'])}")
            return {"m": [first, *state["m"][3:]]} if len(state["m"]) > 3 else None

        for _ in range(3):
            compacting: dict[str, Any] = {"compact": rewrite, "quiet": 0}
            planned = [await lab.saver.maintain(Retention(keep_last=9), dry_run=True, **compacting) for _ in range(2)]
            done = await lab.saver.maintain(Retention(keep_last=9), **compacting)
            assert planned[0].threads == planned[1].threads == done.threads
            stats = await lab.saver.stats("thread")
            assert [stats.packs] == [one.after.packs for one in done.threads]

    async def test_summarized(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        messages: list[AnyMessage] = [SystemMessage("be brief", id="s")]
        messages += [HumanMessage(words(number), id=str(number)) for number in range(12)]
        await chain.put({"m": messages, "n": 1})
        told: list[list[AnyMessage]] = []

        def write(gone: list[AnyMessage]) -> str:
            told.append(gone)
            return f"{len(gone)} were dropped"

        compact = summarize(write, last=6, channel="m")
        await lab.saver.maintain(compact=compact, quiet=0, dry_run=True)
        assert told == []
        await lab.saver.maintain(compact=compact, quiet=0)
        await lab.saver.maintain(compact=compact, quiet=0)
        assert [[one.id for one in gone] for gone in told] == [[str(number) for number in range(8)]]
        async for saver in lab.views():
            found = (await saver.got(chain.latest)).checkpoint["channel_values"]["m"]
            assert [one.id for one in found if one.name is None] == ["s", "8", "9", "10", "11"]
            assert "8 were dropped" in found[1].content

    async def test_large_results_are_moved_out(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        messages = [one for number in range(3) for one in tool_call(number)]
        await chain.put({"messages": messages})
        await lab.saver.maintain(Retention(keep_last=1), compact=offload_large(over="64kB"), quiet=0)
        await lab.saver.maintain(Retention(keep_last=1), compact=offload_large(over="64kB"), quiet=0)
        await lab.saver.prune(["thread"])
        await lab.saver.copy_thread("thread", "copy")
        async for saver in lab.views():
            found = (await saver.got(chain.latest)).checkpoint["channel_values"]["messages"]
            assert [one.id for one in found] == [one.id for one in messages]
            for number in range(3):
                content = found[3 * number + 2].content
                assert len(content) < 800
                address = content.rpartition(" ")[2].rstrip("]")
                for thread in ("thread", "copy"):
                    assert await saver.attachment(thread, address) == f"{number} {LARGE}"
                assert await saver.attachment("nobody", address) is None
            assert await saver.attachment("thread", "sha256:00") is None
            assert {inside(item.config)["checkpoint_ns"] for item in await saver.list(None)} == {""}
        await lab.saver.delete_thread("thread")
        await lab.saver.delete_thread("copy")
        assert await lab.saver.threads() == ()

    async def test_delta_channels_get_a_snapshot(self, lab: Lab) -> None:
        run = DeltaRun(Chain(lab.saver))
        await run.start()
        for number in range(9):
            await run.step(("", f"t{number}", [number, words(number)]), snapshot=number == 2)
        await lab.saver.maintain(compact=lambda state, _: {"d": state["d"][-4:]}, quiet=0, merge=False)
        assert len(run.at) == len(await run.chain.ids()), "nobody knows how to rebuild the channel"
        await lab.saver.maintain(
            Retention(keep_last=1), compact=lambda state, _: {"d": state["d"][-4:]}, quiet=0, graph=_Graph()
        )
        async for saver in lab.views():
            found = await saver.got(run.chain.latest)
            assert_same(_DeltaSnapshot(run.live[-4:]), found.checkpoint["channel_values"]["d"])
            assert_same(run.live[-4:], await rebuilt(saver, run.chain.latest))
            assert found.metadata.get("counters_since_delta_snapshot", {}) == {}
        # Once somebody has gone on from there, what it was rebuilt from may go.
        run.chain.saver = lab.saver
        values = (await lab.saver.got(run.chain.latest)).checkpoint["channel_values"]
        await run.chain.put({**values, "n": 99}, parent=(await run.chain.ids())[0])
        await lab.saver.maintain(Retention(keep_last=2))
        assert len(await run.chain.ids()) == 2

    @pytest.mark.parametrize("how", ["keep_last", "keep_for", "prune"])
    async def test_a_run_that_began_before_keeps_its_delta_channels(self, lab: Lab, how: str) -> None:
        run = DeltaRun(Chain(lab.saver))
        await run.start()
        for number in range(6):
            await run.step(("", f"t{number}", [number]), snapshot=number == (5 if how == "keep_for" else 1))
        begun = (await run.chain.ids())[0]
        for left in (4, 2):  # as if a step took longer than `quiet`, twice
            await lab.saver.maintain(
                compact=lambda state, _, left=left: {"d": state["d"][-left:]}, quiet=0, graph=_Graph(), merge=False
            )
        if how == "prune":
            await lab.open().prune(["thread"])
        else:
            policy = Retention(keep_last=1) if how == "keep_last" else Retention(keep_for="1s")
            await lab.open().maintain(policy, clock=later(1))
        assert len(await run.chain.ids()) == (3 if how == "keep_for" else 7)
        await run.step(("", "late", ["late"]), parent=begun)
        async for saver in lab.views():
            assert_same([*range(6), "late"], await rebuilt(saver, run.chain.latest))

    async def test_a_subgraph_that_remembers(self, lab: Lab) -> None:
        root, child = Chain(lab.saver), Chain(lab.saver, ns="child")
        messages = [HumanMessage(words(number), id=str(number)) for number in range(9)]
        for number in range(1, 10):
            await root.put({"n": number})
            await child.put({"m": messages[:number]}, id=f"{number:04}c", metadata={"parents": {"": f"{number:04}"}})
        await root.put({"n": 10})
        trim = trim_messages(last=4, channel="m")
        assert (await lab.saver.maintain(compact=trim, quiet=0, merge=False)).threads == (), "the root has no messages"
        await child.writes(("m", "half done"))
        assert (await lab.saver.maintain(compact=trim, compact_namespace="child", quiet=0, merge=False)).threads == ()
        await root.put({"n": 11})
        await child.put({"m": messages}, id="0011c", metadata={"parents": {"": "0011"}})
        await root.put({"n": 12})
        report = await lab.saver.maintain(compact=trim, compact_namespace="child", quiet=0)
        assert outcomes(report) == [("changed", ("m",))]
        async for saver in lab.views():
            new = await saver.got(child.latest)
            assert (id_of(new.parent_config), new.metadata.get("parents")) == ("0011c", {"": "0011"})
            assert_same(messages[-4:], new.checkpoint["channel_values"]["m"])
            # As of a root checkpoint that is there, the subgraph is what it was.
            found = await saver.list(child.latest, before=root.at("0012"), limit=1)
            assert_same(messages, found[0].checkpoint["channel_values"]["m"])
        again = await lab.saver.maintain(compact=trim, compact_namespace="child", quiet=0)
        assert outcomes(again) == []
        with pytest.raises(InvalidConfig):
            await lab.saver.maintain(compact=trim, compact_namespace="child:0001")

    async def test_only_of_large_heads(self, lab: Lab) -> None:
        await grown(lab.saver, "large", 30)
        await grown(lab.saver, "small", 6)
        report = await lab.saver.maintain(
            compact=trim_messages(last=4, channel="m"), compact_over="10kB", quiet=0, merge=False
        )
        assert [one.thread for one in report.threads] == ["large"]

    async def test_several_in_turn_and_one_that_is_wrong(self, lab: Lab) -> None:
        await grown(lab.saver, steps=8)

        def second(state: Mapping[str, Any], context: Context) -> Mapping[str, Any]:
            return {"n": len(state["m"]), "text": context.thread}

        await lab.saver.maintain(compact=[trim_messages(last=4, channel="m"), second], quiet=0)
        values = await Chain(lab.saver).values()
        assert (len(values["m"]), values["n"], values["text"]) == (4, 4, "thread")
        bad: Sequence[Any] = (
            lambda *_: {"unknown": 1},
            lambda *_: [1],
            lambda *_: 1 // 0,
            lambda *_: {"m": None},
            lambda *_: {"m": ["text"]},
            lambda state, _: {"m": [*state["m"], ToolMessage("of no call", tool_call_id="1")]},
            lambda state, _: {"m": [*tool_call(1)[:2], *state["m"]]},
            summarize(lambda _: " ", last=2, channel="m"),
        )
        ids = await lab.saver.ids(at("thread"))
        for compact in bad:
            report = await lab.saver.maintain(compact=compact, quiet=0)
            assert [one.outcome for one in report.threads] == ["failed"]
        assert await lab.saver.ids(at("thread")) == ids
        await lab.saver.maintain(compact=lambda state, _: {"m": list(state["m"])}, quiet=0)
        assert await lab.saver.ids(at("thread")) == ids, "nothing is smaller"


class _Lists:
    """What LangGraph's delta channel does for lists."""

    def __init__(self, value: Any = None) -> None:
        self.value: list[Any] = list(value or [])

    def from_checkpoint(self, stored: Any) -> _Lists:
        return _Lists(stored.value if isinstance(stored, _DeltaSnapshot) else stored)

    def replay_writes(self, writes: Sequence[tuple[str, str, Any]]) -> None:
        self.value += [value for _, _, value in writes]

    def get(self) -> list[Any]:
        return self.value


class _Graph:
    """A compiled graph, as far as maintenance needs one."""

    channels: Mapping[str, Any] = {"d": _Lists(), "n": object()}
