"""Free functions of an upgrade over delta channels: they see what was written all over the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it

from milepost import migrating
from milepost import schema as ms
from milepost.errors import SchemaMismatch, Unavailable
from milepost.places import COUNTERS
from milepost.schema import Schema
from milepost.testing.chain import Chain, at
from milepost.testing.faults import Plan
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.delta import DeltaRun, rebuilt, walked
from milepost.testing.suite.histories import FIRST, same, second, since, upper
from milepost.testing.suite.migration import migrated


class Lines:
    """A delta channel that a list of lines is in, without LangGraph."""

    def __init__(self, lines: Sequence[str] = ()) -> None:
        self._lines = list(lines)

    def from_checkpoint(self, seed: Any) -> Lines:
        """A channel that holds what was stored."""
        return Lines(seed.value if type(seed) is _DeltaSnapshot else seed or ())

    def replay_writes(self, writes: Sequence[tuple[str, str, Any]]) -> None:
        """Append what was written."""
        self._lines += [line for _, _, line in writes]

    def get(self) -> list[str]:
        """What it holds."""
        return self._lines


def louder(state: dict[str, Any]) -> Mapping[str, Any]:
    """The next release's state: lines in capitals, and how many there are."""
    lines = state.get("d", [])
    return {**state, "d": upper(lines), "total": len(lines)}


def loudly(channel: str, value: Any) -> list[tuple[str, Any]]:
    """A write to it."""
    return [(channel, value.upper() if channel == "d" else value)]


LOUDER = ms.map_state(louder, writes=loudly, deltas={"d": Lines()})
SECOND = second(LOUDER)
ALONE = second()


async def _thread(lab: Lab) -> DeltaRun:
    """One of the first release, with a snapshot, a fork and a pending write."""
    run = DeltaRun(Chain(lab.open(schema=FIRST)))
    await run.start()
    for number in range(4):
        await run.step(("", f"task {number}", [f"line {number}", f"more {number}"]), snapshot=number == 1)
    fork = await run.step(parent="0003", snapshot=True)
    further = await run.step(("", "further", ["further"]), parent=fork)
    await run.step(("", "last", ["last"]), parent=further)
    await run.step(("", "task 5", ["line 5"]), parent="0005")
    await run.chain.writes(("d", "waiting"), task="task 6")
    return run


async def _goes_on(run: DeltaRun, saver: Face) -> None:
    """A step of the next release."""
    run.chain.saver = saver
    await run.step(("", "task 6", ["NEXT"]))


async def _check(saver: Face, run: DeltaRun) -> None:
    """Every checkpoint of the first release is as the next one has it."""
    found = await saver.list(at("thread"))
    assert len(found) == len(run.at)
    for one in found:
        _check_one(one, run)
        _check_one(await saver.got(one.config), run)


def _check_one(found: CheckpointTuple, run: DeltaRun) -> None:
    id, values = found.checkpoint["id"], found.checkpoint["channel_values"]
    lines = run.at[id]
    if "total" in values:
        assert_same(upper(lines), values["d"], f"at {id}")
        assert values["total"] == len(lines)


class FreeFunctions(Behaviours):
    """`map_state` of states with delta channels."""

    async def test_it_sees_what_lies_in_the_ancestors(self, lab: Lab) -> None:
        run = await _thread(lab)
        saver = lab.open(schema=SECOND)
        await _check(saver, run)
        head = await saver.got(run.chain.latest)
        assert head.checkpoint["channel_values"]["total"] == len(run.live)
        assert [one for one in head.pending_writes or () if one[1] == "d"] == [("task 6", "d", "WAITING")]
        # Reading has stored nothing.
        first = lab.open(schema=FIRST)
        for id, lines in run.at.items():
            assert_same(lines, await rebuilt(first, run.chain.at(id)), f"at {id}")
        before = upper(run.live)
        await _goes_on(run, saver)
        for view in (saver, lab.open(schema=SECOND)):
            assert await rebuilt(view, run.chain.latest) == [*before, "WAITING"]
            assert_same(await walked(view, run.chain.latest, ["d"]), await view.history(run.chain.latest, ["d"]))

    async def test_it_sees_what_the_changes_before_it_have_made(self, lab: Lab) -> None:
        run = await _thread(lab)
        renamed = ms.rename_channel("d", "e")
        mapped = ms.map_channel("e", lambda lines: [f"-{line}" for line in lines], update=lambda line: f"-{line}")
        counted = ms.map_state(
            lambda state: {"n": state["n"], "d": state.get("e", [])},
            writes=lambda channel, value: [("d" if channel == "e" else channel, value)],
            deltas={"e": Lines()},
        )
        again = ms.map_state(louder, writes=loudly)
        saver = lab.open(schema=second(renamed, mapped, counted, again))
        for id, lines in run.at.items():
            values = (await saver.got(run.chain.at(id))).checkpoint["channel_values"]
            assert values["d"] == [f"-{line}".upper() for line in lines]
            assert values["total"] == len(lines)

    async def test_an_ancestor_of_a_version_before(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1, "d": _DeltaSnapshot(["seed"])}, metadata=since(0))
        await chain.writes(("d", "one"), task="a")
        middle = Schema(
            FIRST.states, version=2, name="s", upgrades=[ms.Step(1, 2, ms.map_channel("d", upper, update=str.upper))]
        )
        chain.saver = lab.open(schema=middle)
        await chain.put({"n": 2}, changed=("n", "d"), metadata=since(1))
        await chain.writes(("d", "two"), task="b")
        await chain.put({"n": 3}, changed=("n", "d"), metadata=since(2))
        steps = [*middle.upgrades, ms.Step(2, 3, LOUDER)]
        saver = lab.open(schema=Schema(FIRST.states, version=3, name="s", upgrades=steps))
        assert (await saver.got(chain.latest)).checkpoint["channel_values"]["d"] == ["SEED", "ONE", "TWO"]
        # Of what is no more on any way to the version that the function begins with, nobody knows what it was.
        steps = [ms.Step(1, 3, LOUDER), ms.Step(2, 3, LOUDER)]
        saver = lab.open(schema=Schema(FIRST.states, version=3, name="s", upgrades=steps))
        with pytest.raises(SchemaMismatch, match="cannot be given the delta channels 'd': checkpoint '0001'"):
            await saver.got(chain.latest)

    async def test_what_nothing_says_how_to_rebuild_is_refused_before_anything_goes_on(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1, "d": _DeltaSnapshot(["seed"])}, metadata=since(0))
        free = ms.map_state(dict, writes=same)
        saver = lab.open(schema=second(free))
        assert (await saver.got(chain.latest)).checkpoint["channel_values"]["d"] == ["seed"]
        await chain.writes(("d", "line"), task="task")
        await chain.put({"n": 2}, changed=("n", "d"), metadata=since(1))
        with pytest.raises(SchemaMismatch, match="delta channels 'd'"):
            await saver.got(chain.latest)
        (told,) = await migrated(saver)
        assert told.changed == 0
        assert "delta channels 'd'" in told.refused[0]
        dropped = lab.open(schema=second(ms.drop_channel("d"), free, ms.add_channel("d", ["default"])))
        assert (await dropped.got(chain.latest)).checkpoint["channel_values"] == {"n": 2, "d": ["default"]}

    async def test_a_reducer_that_raises_is_told(self, lab: Lab) -> None:
        class Broken(Lines):
            def from_checkpoint(self, seed: Any) -> Lines:
                return self

            def replay_writes(self, writes: Sequence[tuple[str, str, Any]]) -> None:
                raise ValueError("no such lines")

        run = await _thread(lab)
        saver = lab.open(schema=second(ms.map_state(louder, writes=loudly, deltas={"d": Broken()})))
        with pytest.raises(SchemaMismatch, match=r"the reducer of 'd' raised .*no such lines"):
            await saver.got(run.chain.latest)

    @pytest.mark.parametrize("history", [False, True])
    @pytest.mark.parametrize("moment", ["after", "twice"])
    async def test_a_migration_leaves_everything_readable_wherever_it_stops(
        self, lab: Lab, moment: Any, history: bool
    ) -> None:
        run = await _thread(lab)
        run.chain.saver = lab.open(schema=SECOND)
        # The next release goes on from where the first one had gone on already.
        await run.step(parent="0005")
        expected = await rebuilt(lab.open(schema=SECOND), run.chain.latest)
        run.at = {id: lines for id, lines in run.at.items() if id != run.chain.head} | {str(run.chain.head): expected}
        plan = Plan()
        faulty = lab.faulty(plan, schema=SECOND)
        await faulty.setup()
        for number in range(0, 400, 7):
            plan.arm(moment, number)
            failed = False
            try:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(migrating, "BATCH", 1)
                    await migrated(faulty, threads=["thread"], history=history)
            except Unavailable:
                failed = True
            ended = plan.calls <= number
            plan.disarm()
            await _check(lab.open(schema=SECOND), run)
            if ended:
                break
            assert failed or moment == "twice"
        else:
            raise AssertionError("a migration has no end")
        (told,) = await migrated(faulty, threads=["thread"], history=history)
        assert told.refused == ()
        assert await rebuilt(lab.open(schema=ALONE), run.chain.latest) == expected
        await migrated(faulty, mode="finalise")
        await _check(lab.open(schema=SECOND if not history else ALONE), run)
        assert await rebuilt(lab.open(schema=ALONE), run.chain.latest) == expected

    @pytest.mark.parametrize("history", [False, True])
    async def test_a_migration_is_undone(self, lab: Lab, history: bool) -> None:
        run = await _thread(lab)
        before = await lab.open(schema=FIRST).list(at("thread"))
        saver = lab.open(schema=SECOND)
        (told,) = await migrated(saver, history=history)
        assert (told.changed, told.refused) == (len(run.at) if history else 1, ())
        await _check(lab.open(schema=SECOND), run)
        (undone,) = await migrated(saver, mode="undo")
        assert (undone.changed, undone.refused) == (told.changed, ())
        assert_same(before, await lab.open(schema=FIRST).list(at("thread")))

    async def test_what_a_refused_checkpoint_is_rebuilt_from_stays(self, lab: Lab) -> None:
        run = await _thread(lab)

        def fails(state: dict[str, Any]) -> Mapping[str, Any]:
            if "last" in state.get("d", ()):
                raise ValueError("not this one")
            return louder(state)

        failing = lab.open(schema=second(ms.map_state(fails, writes=loudly, deltas={"d": Lines()})))
        (told,) = await migrated(failing, history=True)
        refused = [text for text in told.refused if "not this one" in text]
        held = [text for text in told.refused if "are rebuilt from it" in text]
        assert len(refused) == 1
        assert len(held) == 2
        assert told.changed == len(run.at) - 3
        saver = lab.open(schema=SECOND)
        await _check(saver, run)
        (told,) = await migrated(saver, history=True)
        assert (told.changed, told.refused) == (3, ())
        await _check(lab.open(schema=ALONE), run)

    @pytest.mark.parametrize("kind", ["declared", "free"])
    async def test_what_it_sees_is_not_pruned(self, lab: Lab, kind: str) -> None:
        """The key that a channel is made of now has the name of another one that lies nearer."""
        changes = {
            "declared": [ms.drop_channel("d"), ms.rename_channel("e", "d")],
            "free": [
                ms.map_state(
                    lambda state: {"n": state["n"], "d": state["e"]},
                    writes=lambda channel, value: [("d" if channel == "e" else channel, value)],
                    deltas={"e": Lines()},
                )
            ],
        }
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1, "d": "plain", "e": _DeltaSnapshot(["seed"])}, metadata={COUNTERS: {"e": [0, 0]}})
        for number in range(1, 4):
            await chain.writes(("e", f"line {number}"), task=f"task {number}")
            metadata = {COUNTERS: {"e": [number, number]}}
            await chain.put({"n": number, "d": "plain"}, changed=("n", "d", "e"), metadata=metadata)
        chain.saver = saver = lab.open(schema=second(*changes[kind]))
        expected = ["seed", "line 1", "line 2", "line 3", "next"]
        await saver.got(chain.latest)
        await chain.writes(("d", "next"), task="task")
        await chain.put({"n": 5}, changed=("n", "d"), metadata=since(1))
        assert await rebuilt(saver, chain.latest) == expected
        await saver.prune(["thread"])
        assert await rebuilt(lab.open(schema=second(*changes[kind])), chain.latest) == expected
