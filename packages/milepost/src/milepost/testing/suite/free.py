"""Free functions of an upgrade over delta channels: they see what was written all over the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it

from milepost import migrating
from milepost import schema as ms
from milepost.errors import Corrupt, SchemaMismatch, Unavailable
from milepost.former import Former
from milepost.places import COUNTERS
from milepost.rebuilding import Rebuilding
from milepost.schema import Schema
from milepost.testing.chain import Chain, at, inside
from milepost.testing.faults import Plan
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.delta import DeltaRun, rebuilt, walked
from milepost.testing.suite.histories import FIRST, State, same, second, since, upper
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


class Raising(Lines):
    """One whose reducer may fail."""

    raises = False

    def from_checkpoint(self, seed: Any) -> Lines:
        """See `Lines`."""
        if self.raises:
            raise ValueError("cannot take it")
        return super().from_checkpoint(seed)


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

    @pytest.mark.parametrize("channel", ["d", "n"])
    async def test_one_write_becomes_several(self, lab: Lab, channel: str) -> None:
        """Of other channels too: those who go on from there find what the run found."""
        twice = ms.map_state(
            lambda state: {"d": state.get("d", []), "log": []},
            writes=lambda name, value: [("log", value), ("d", value)] if name == channel else [],
            deltas={"d": Lines()},
        )
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1}, metadata=since(0))
        await chain.writes((channel, "one"), ("other", "x"), (channel, "two"), task="task", path="p")
        expected = [("task", "log", "one"), ("task", "log", "two"), ("task", "d", "one"), ("task", "d", "two")]
        saver = lab.open(schema=second(twice))
        for _ in range(2):
            found = (await saver.got(chain.latest)).pending_writes or ()
            written = [one for one in found if one[1] != "__no_writes__"]
            assert sorted(written, key=expected.index) == expected
            (told,) = await migrated(saver)
            assert told.refused == ()
        chain.saver = saver
        await chain.put({"n": 2}, changed=("n", "d", "log"), metadata={COUNTERS: {"d": [1, 1], "log": [1, 1]}})
        history = await saver.history(chain.latest, ["d", "log"])
        assert [value for _, _, value in history["d"]["writes"]] == ["one", "two"]
        assert [value for _, _, value in history["log"]["writes"]] == ["one", "two"]

    async def test_a_write_that_waits_is_found_under_its_other_name(self, lab: Lab) -> None:
        renamed = ms.map_state(
            lambda state: {"n": state["n"], "e": state.get("d", [])},
            writes=lambda channel, value: [("e" if channel == "d" else channel, value)],
            deltas={"d": Lines()},
        )
        run = await _thread(lab)
        saver = run.chain.saver = lab.open(schema=second(renamed))
        head = run.chain.head
        assert (await saver.got(run.chain.at(head))).checkpoint["channel_values"]["e"] == run.live
        await run.chain.put({"n": 9}, changed=("n", "e"), metadata={COUNTERS: {"e": [1, 1]}})
        for view in (saver, lab.open(schema=second(renamed))):
            history = (await view.history(run.chain.latest, ["e"]))["e"]
            assert (history.get("seed"), history["writes"]) == (run.live, [("task 6", "e", "waiting")])

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
        with pytest.raises(SchemaMismatch, match="cannot be given the delta channels 'd', for checkpoint '0001'"):
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

    async def test_a_channel_is_rebuilt_from_before_it_was_written_to(self, lab: Lab) -> None:
        """Another one has its snapshot in between."""
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1}, changed=("n",))
        await chain.put({"n": 2, "d": _DeltaSnapshot(["seed"])}, metadata={COUNTERS: {"d": [0, 0]}})
        for number in (1, 2):
            await chain.writes(("e", f"line {number}"), task=f"task {number}")
            counters = {COUNTERS: {"d": [number, number], "e": [number, number]}}
            await chain.put({"n": 2 + number}, changed=("n", "e"), metadata=counters)

        def change(fails: bool) -> ms.Change:
            def function(state: dict[str, Any]) -> Mapping[str, Any]:
                if fails and state["n"] == 4:
                    raise ValueError("not this one")
                return {**state, "total": len(state.get("e", ()))}

            return ms.map_state(function, writes=same, deltas={"d": Lines(), "e": Lines()})

        async def totals(saver: Face) -> list[int]:
            return [one.checkpoint["channel_values"]["total"] for one in await saver.list(at("thread", id=None))]

        failing = lab.open(schema=second(change(fails=True)))
        (told,) = await migrated(failing, history=True)
        assert (told.changed, len(told.refused)) == (3, 1)
        saver = lab.open(schema=second(change(fails=False)))
        assert await totals(saver) == [2, 1, 0, 0]
        (undone,) = await migrated(saver, mode="undo")
        assert (undone.changed, undone.refused) == (3, ())
        # The next release goes on from the first one, and is migrated alone.
        chain.saver = saver
        await chain.put({"n": 5, "total": 0}, parent="0001", changed=("n", "total"), metadata={COUNTERS: {"d": [1, 1]}})
        (told,) = await migrated(saver)
        assert told.refused == ()
        assert await totals(lab.open(schema=second(change(fails=False)))) == [0, 2, 1, 0, 0]

    async def test_an_undone_migration_leaves_nothing_above_what_stays(self, lab: Lab) -> None:
        run = await _thread(lab)
        steps = [ms.Step(1, 2, LOUDER)]
        middle = lab.open(schema=Schema(FIRST.states, version=2, name="s", upgrades=steps))
        await migrated(middle, history=True)
        await _goes_on(run, middle)
        await run.step(("", "task 7", ["NEXT TOO"]))
        again = ms.map_state(louder, writes=loudly, deltas={"d": Lines()})
        third = Schema(FIRST.states, version=3, name="s", upgrades=[*steps, ms.Step(2, 3, again)])
        last = lab.open(schema=third)
        expected = [one.checkpoint["channel_values"] for one in await last.list(at("thread"))]
        (told,) = await migrated(last, history=True)
        assert told.refused == ()
        (undone,) = await migrated(last, mode="undo")
        assert [text for text in undone.refused if "written to since" in text]
        assert [text for text in undone.refused if "stays as it is" in text]
        found = [one.checkpoint["channel_values"] for one in await lab.open(schema=third).list(at("thread"))]
        assert_same(expected, found)

    async def test_what_is_not_read_back_is_put_back_as_a_whole(self, lab: Lab) -> None:
        run = await _thread(lab)
        before = await lab.open(schema=FIRST).list(at("thread"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(migrating.Migrator, "_difference", lambda *_: "a fault")
            with pytest.raises(Corrupt, match="what was there before was put back"):
                await migrated(lab.open(schema=SECOND), threads=["thread"], history=True)
        assert_same(before, await lab.open(schema=FIRST).list(at("thread")))
        await _check(lab.open(schema=SECOND), run)

    async def test_an_undone_migration_looks_at_writes_alone(self, lab: Lab) -> None:
        changes = (
            ms.map_state(lambda state: {"n": str(state["n"])}, writes=lambda name, value: [(name, str(value))]),
            ms.map_channel("n", lambda text: text + "!"),
            ms.rename_channel("n", "d"),
        )
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1, "d": ["dropped"]})
        await chain.writes(("n", 2), task="task")
        saver = lab.open(schema=second(*changes))
        await migrated(saver)
        assert (await saver.got(chain.latest)).checkpoint["channel_values"] == {"d": "1!"}
        (undone,) = await migrated(saver, mode="undo")
        assert (undone.changed, undone.refused) == (1, ())

    @pytest.mark.parametrize("meanwhile", ["migrated", "migrated as a whole", "pruned"])
    async def test_what_changes_while_it_is_read_is_read_anew(self, lab: Lab, meanwhile: str) -> None:
        run = await _thread(lab)
        saver, other = lab.open(schema=SECOND), lab.open(schema=SECOND)
        head = run.chain.at()
        if meanwhile == "pruned":
            run.chain.saver = other
            await run.chain.put({"n": 9, "d": _DeltaSnapshot(["NEW"]), "total": 1}, metadata=since(0))
        history = Rebuilding.history
        waiting = [True]

        async def slowly(self: Rebuilding, *given: Any, **options: Any) -> Any:
            if waiting:
                waiting.clear()
                if meanwhile == "pruned":
                    await other.prune(["thread"])
                else:
                    await migrated(other, history=meanwhile == "migrated as a whole")
            return await history(self, *given, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Rebuilding, "history", slowly)
            found = await saver.get(head)
            assert not waiting
            if meanwhile == "pruned":
                assert found is None
                return
            assert found is not None
            assert found.checkpoint["channel_values"]["d"] == upper(run.live)
            await migrated(other, mode="undo")
            waiting.append(True)
            await _check(saver, run)
            assert not waiting

    async def test_what_stays_keeps_what_it_needs_itself(self, lab: Lab) -> None:
        """Two channels whose snapshots alternate: what the one is rebuilt from has another one's further up."""
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1, "d": _DeltaSnapshot(["seed"])}, metadata={COUNTERS: {"d": [0, 0], "e": [1, 1]}})
        await chain.writes(("d", "one"), ("e", "one"), task="1")
        await chain.put({"n": 2}, changed=("n", "d", "e"), metadata={COUNTERS: {"d": [1, 1], "e": [2, 2]}})
        await chain.writes(("d", "two"), ("e", "two"), task="2")
        await chain.put({"n": 3, "e": _DeltaSnapshot(["one", "two"])}, metadata={COUNTERS: {"d": [2, 2], "e": [0, 0]}})
        await chain.writes(("d", "three"), ("e", "three"), task="3")
        values = {"n": 4, "d": _DeltaSnapshot(["seed", "one", "two", "three"])}
        await chain.put(values, changed=("n", "d", "e"), metadata={COUNTERS: {"d": [0, 0], "e": [1, 1]}})

        def change(fails: int) -> ms.Change:
            def function(state: dict[str, Any]) -> Mapping[str, Any]:
                if state["n"] == fails:
                    raise ValueError("not this one")
                return {**state, "total": [len(state.get(name, ())) for name in "de"]}

            return ms.map_state(function, writes=same, deltas={"d": Lines(), "e": Lines()})

        async def totals() -> list[list[int]]:
            saver = lab.open(schema=second(change(0)))
            return [one.checkpoint["channel_values"]["total"] for one in await saver.list(at("thread"))]

        before = await totals()
        assert before == [[4, 3], [3, 2], [2, 1], [1, 0]]
        for fails, expected in ((3, (3, 1)), (0, (1, 0))):
            (told,) = await migrated(lab.open(schema=second(change(fails))), history=True)
            assert (told.changed, len(told.refused)) == expected
            assert await totals() == before

    async def test_what_the_store_does_not_answer_is_no_refusal(self, lab: Lab) -> None:
        run = await _thread(lab)
        plan = Plan()
        faulty = lab.faulty(plan, schema=SECOND)
        await faulty.setup()
        for number in range(64):
            plan.arm("before", number, times=4)
            ended = False
            try:
                (told,) = await migrated(faulty, threads=["thread"], history=True)
                ended = True
                assert told.refused == ()
            except Unavailable:
                pass
            plan.disarm()
            await _check(lab.open(schema=SECOND), run)
            if ended:
                return
        raise AssertionError("a migration has no end")

    @pytest.mark.parametrize("history", [False, True])
    async def test_what_is_kept_for_an_undo_is_not_pruned_away(self, lab: Lab, history: bool) -> None:
        run = await _thread(lab)
        head = run.chain.at()
        saver = lab.open(schema=SECOND)
        await migrated(saver, history=history)
        await saver.prune(["thread"])
        (undone,) = await migrated(saver, mode="undo")
        assert undone.refused == ()
        assert await rebuilt(lab.open(schema=FIRST), head) == run.live
        assert (await saver.got(head)).checkpoint["channel_values"]["d"] == upper(run.live)

    @pytest.mark.parametrize("history", [False, True])
    async def test_a_run_of_the_older_release_goes_on_while_it_is_migrated(self, lab: Lab, history: bool) -> None:
        run = await _thread(lab)
        saver = lab.open(schema=SECOND)
        await migrated(saver, history=history)
        run.live.append("waiting")
        await run.step(("", "task 7", ["late"]))
        await run.step(("", "task 8", ["later"]))
        await _check(lab.open(schema=SECOND), run)
        # What it needs goes only when it is of this version itself.
        (told,) = await migrated(saver, mode="finalise")
        assert (told.changed, len(told.refused)) == (0, 1)
        await _check(lab.open(schema=SECOND), run)
        (told,) = await migrated(saver, history=history)
        assert (told.changed > 0, told.refused) == (True, ())
        (told,) = await migrated(saver, mode="finalise")
        assert (told.changed > 0, told.refused) == (True, ())
        await _check(lab.open(schema=SECOND), run)

    async def test_what_the_head_of_an_older_release_is_rebuilt_from_is_not_pruned(self, lab: Lab) -> None:
        run = await _thread(lab)
        saver = lab.open(schema=SECOND)
        await migrated(saver, history=True)
        run.live.append("waiting")
        await run.step(("", "task 7", ["late"]))
        await saver.prune(["thread"])
        for view in (saver, lab.open(schema=SECOND)):
            _check_one(await view.got(run.chain.latest), run)
        (told,) = await migrated(saver, history=True)
        assert told.refused == ()
        _check_one(await saver.got(run.chain.latest), run)

    async def test_what_an_older_release_stores_in_the_moment_of_finalising_is_kept(self, lab: Lab) -> None:
        run = await _thread(lab)
        saver = lab.open(schema=SECOND)
        await migrated(saver, history=True)
        run.live.append("waiting")
        finalise, stored = Former.finalise, list[str]()

        async def late(self: Former, thread: str, chart: Any, **options: Any) -> int | None:
            if not stored:
                stored.append(await run.step(("", "task 7", ["late"])))
            return await finalise(self, thread, chart, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Former, "finalise", late)
            (told,) = await migrated(saver, mode="finalise")
        assert (told.changed, len(told.refused)) == (0, 1)
        assert stored[0] in told.refused[0]
        await _check(lab.open(schema=SECOND), run)

    async def test_what_cannot_be_read_is_told_where_it_is_in_the_way_of_finalising(self, lab: Lab) -> None:
        run = await _thread(lab)
        saver = lab.open(schema=SECOND)
        await migrated(saver, history=True)
        run.chain.saver = lab.open(schema=Schema(State, version=9, name="s"))
        await run.step(("", "task 7", ["NEWER"]))
        (told,) = await migrated(saver, mode="finalise")
        assert told.changed == 0
        assert "written with version 9" in told.refused[0]

    async def test_a_reducer_that_raises_over_what_is_kept_is_told(self, lab: Lab) -> None:
        """It does not pass for a checkpoint that is rewritten again and again."""
        run = await _thread(lab)
        lines, whole = Raising(), ms.map_state(dict, writes=same, deltas={"d": Lines()})
        steps = [ms.Step(1, 2, ms.map_state(dict, writes=same, deltas={"d": lines})), ms.Step(2, 3, whole)]
        third = lab.open(schema=Schema(State, version=3, name="s", upgrades=steps))
        await migrated(third, history=True)
        run.chain.saver = lab.open(schema=Schema(State, version=2, name="s", upgrades=steps[:1]))
        await run.step(("", "task 7", ["late"]))
        other = Chain(third, "other")
        await other.put({"n": 1})
        lines.raises = True
        with pytest.raises(SchemaMismatch, match="cannot take it"):
            await third.got(run.chain.latest)
        assert "other" in {inside(one.config)["thread_id"] for one in await third.list(None)}
        assert any("cannot take it" in why for told in await migrated(third, history=True) for why in told.refused)

    async def test_what_a_newer_release_has_written_to_an_ancestor_is_not_seen(self, lab: Lab) -> None:
        run = await _thread(lab)
        run.chain.saver = lab.open(schema=SECOND)
        await run.chain.writes(("d", "NEWER"), id="0005", task="newer")
        await _check(lab.open(schema=SECOND), run)

    async def test_what_a_refused_checkpoint_is_rebuilt_from_is_kept(self, lab: Lab) -> None:
        run = await _thread(lab)

        def fails(state: dict[str, Any]) -> Mapping[str, Any]:
            if "last" in state.get("d", ()):
                raise ValueError("not this one")
            return louder(state)

        failing = lab.open(schema=second(ms.map_state(fails, writes=loudly, deltas={"d": Lines()})))
        (told,) = await migrated(failing, history=True)
        assert (told.changed, len(told.refused)) == (len(run.at) - 1, 1)
        assert "not this one" in told.refused[0]
        saver = lab.open(schema=SECOND)
        await _check(saver, run)
        (told,) = await migrated(saver, mode="finalise")
        assert (told.changed, len(told.refused)) == (0, 1)
        await _check(saver, run)
        (told,) = await migrated(saver, history=True)
        assert (told.changed, told.refused) == (1, ())
        (told,) = await migrated(saver, mode="finalise")
        assert (told.changed, told.refused) == (len(run.at), ())
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
