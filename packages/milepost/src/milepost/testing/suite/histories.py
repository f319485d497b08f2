"""Delta channels from one release to the next: what they are rebuilt from is what reading the ancestors would give."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it

from milepost import schema as ms
from milepost.places import COUNTERS
from milepost.schema import Schema, Step
from milepost.testing.chain import Chain
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.delta import rebuilt, walked
from milepost.testing.suite.migration import migrated


class Narrow(TypedDict, total=False):
    """Without the delta channel."""

    n: int


class State(TypedDict, total=False):
    """All of it."""

    n: int
    d: list[str]


FIRST = Schema(State, version=1, name="s")


def second(*changes: ms.Change, **options: Any) -> Schema:
    """The next release."""
    return Schema(State, version=2, name="s", upgrades=[Step(1, 2, *changes)] if changes else [], **options)


def upper(lines: list[str]) -> list[str]:
    """In capitals."""
    return [line.upper() for line in lines]


def same(channel: str, value: Any) -> list[tuple[str, Any]]:
    """A write as it was."""
    return [(channel, value)]


def since(number: int) -> dict[str, Any]:
    """The metadata of a checkpoint so many steps after the delta channel's last snapshot."""
    return {COUNTERS: {"d": [number, number]}}


ADDS: dict[str, list[ms.Change]] = {
    "default": [ms.add_channel("d", ["default"])],
    "renamed": [ms.add_channel("e", factory=lambda: ["default"]), ms.rename_channel("e", "d")],
    "mapped": [ms.add_channel("d", ["DEFAULT"]), ms.map_channel("d", lambda lines: [line.lower() for line in lines])],
    "instead": [ms.drop_channel("n"), ms.add_channel("n", 1), ms.add_channel("d", ["default"])],
    "free": [ms.map_state(lambda state: {**state, "d": ["default"]}, writes=same)],
}


async def _run(chain: Chain, steps: int) -> None:
    for number in range(1, steps + 1):
        await chain.writes(("d", f"line {number}"), task=f"task {number}")
        await chain.put({"n": number}, changed=("n", "d"), metadata=since(number))


class Histories(Behaviours):
    """`Saver.get_delta_channel_history` where the ancestors are of another version."""

    @pytest.mark.parametrize("kind", ADDS)
    async def test_a_channel_that_an_upgrade_made_keeps_what_it_began_with(self, lab: Lab, kind: str) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1})
        await chain.put({"n": 2})
        chain.saver = new = lab.open(schema=second(*ADDS[kind]))
        assert (await new.got(chain.latest)).checkpoint["channel_values"]["d"] == ["default"]
        await _run(chain, 3)
        for saver in (new, lab.open(schema=second(*ADDS[kind]))):
            history = await saver.history(chain.latest, ["d"])
            assert_same(await walked(saver, chain.latest, ["d"]), history)
            assert history["d"].get("seed") == ["default"]
            assert [value for _, _, value in history["d"]["writes"]] == ["line 1", "line 2", "line 3"]
        assert await rebuilt(new, chain.at("0004")) == ["default", "line 1", "line 2"]
        # What it began with stays as long as it is needed, and the upgrade may go when all is rewritten.
        await new.prune(["thread"])
        expected = ["default", "line 1", "line 2", "line 3"]
        assert await rebuilt(new, chain.latest) == expected
        await migrated(new, history=True)
        assert await rebuilt(lab.open(schema=second()), chain.latest) == expected

    async def test_snapshots_that_are_carried_along_are_not_mixed_up(self, lab: Lab) -> None:
        """A put goes on from what was migrated meanwhile: of the snapshots that it refers to, one is another now."""
        long = {name: [f"{name} {number} " + "words " * 50 for number in range(3)] for name in ("d", "e", "f")}
        snapshots = {name: _DeltaSnapshot(lines) for name, lines in long.items()}
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1, **snapshots})
        slow = lab.open()
        await slow.got(chain.latest)
        new = lab.open(schema=second(ms.map_channel("d", upper)))
        await migrated(new)
        await migrated(new, mode="finalise")
        chain.saver = slow
        await chain.put({"n": 2}, changed=("n",))
        for saver in (slow, lab.open()):
            values = (await saver.got(chain.latest)).checkpoint["channel_values"]
            expected = {"n": 2, **snapshots, "d": _DeltaSnapshot(upper(long["d"]))}
            assert_same({name: expected[name] for name in values}, values)
            for name, lines in expected.items():
                if name not in values:
                    assert (await saver.history(chain.latest, [name]))[name].get("seed") == lines

    async def test_a_channel_that_was_there_is_not_begun_anew(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1, "d": _DeltaSnapshot(["seed"])}, metadata=since(0))
        await _run(chain, 2)
        chain.saver = lab.open(schema=second(ms.map_channel("d", upper, update=str.upper), ms.add_channel("n", 7)))
        await _run(chain, 1)
        assert_same(await walked(chain.saver, chain.latest, ["d"]), await chain.saver.history(chain.latest, ["d"]))
        assert await rebuilt(chain.saver, chain.latest) == ["SEED", "LINE 1", "LINE 2", "line 1"]

    async def test_two_releases_side_by_side(self, lab: Lab) -> None:
        old = Schema(Narrow, version=1, name="s")
        new = second(ms.add_channel("d", ["default"]), readable_from=1)
        chain = Chain(lab.open(schema=old))
        await chain.put({"n": 1})
        chain.saver = lab.open(schema=new)
        await _run(chain, 2)
        await chain.put({"n": 2, "d": _DeltaSnapshot(["default", "line 1", "line 2"])}, metadata=since(0))
        chain.saver = lab.open(schema=old)
        await chain.saver.got(chain.latest)
        await chain.put({"n": 3})
        chain.saver = lab.open(schema=new)
        assert (await chain.values())["d"] == ["default"]
        await _run(chain, 1)
        assert await rebuilt(chain.saver, chain.latest) == ["default", "line 1"]
        assert_same(await walked(chain.saver, chain.latest, ["d"]), await chain.saver.history(chain.latest, ["d"]))

    @pytest.mark.parametrize("begun", ["snapshot", "default", "nothing"])
    async def test_after_a_migration_of_heads_the_upgrades_may_go(self, lab: Lab, begun: str) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 0})
        if begun == "snapshot":
            await chain.put({"n": 0, "d": _DeltaSnapshot(["seed"])}, metadata=since(0))
        change = ms.map_channel("d", upper, update=str.upper)
        if begun == "default":
            change = ms.add_channel("d", ["default"])
            chain.saver = lab.open(schema=second(change))
            await chain.saver.got(chain.latest)
        await _run(chain, 3)
        saver = lab.open(schema=second(change))
        expected = await rebuilt(saver, chain.latest)
        needed = 4
        old = 1 if begun == "default" else needed
        (planned,) = await migrated(saver, mode="dry-run")
        assert (planned.changed, sum(planned.stored.values())) == (old, needed)
        (seen,) = await migrated(lab.open(), mode="dry-run")
        assert sum(seen.stored.values()) == 4
        alone = lab.open(schema=second())
        (left,) = await migrated(alone, mode="dry-run")
        assert left.refused
        (told,) = await migrated(saver)
        assert (told.changed, told.refused) == (old, ())
        assert await rebuilt(alone, chain.latest) == expected
        (left,) = await migrated(alone, mode="dry-run")
        assert (left.changed, left.refused) == (0, ())
        await migrated(saver, mode="finalise")
        await alone.prune(["thread"])
        assert await rebuilt(alone, chain.latest) == expected

    @pytest.mark.parametrize("steps", [1, 2])
    async def test_what_is_mapped_and_dropped_later_is_not_mapped(self, lab: Lab, steps: int) -> None:
        """Not even read, so that its class may be gone."""
        change, drop = ms.map_channel("d", upper), ms.drop_channel("d")
        ways = [Step(1, 2, change, drop)] if steps == 1 else [Step(1, 2, change), Step(2, 3, drop)]
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1, "d": ["line"]})
        await chain.writes(("n", 2), ("d", ["written"]), task="task")
        saver = lab.open(schema=Schema(State, version=1 + steps, name="s", upgrades=ways))
        for _ in range(2):
            found = await saver.got(chain.latest)
            assert found.checkpoint["channel_values"] == {"n": 1}
            assert found.pending_writes == [("task", "n", 2), ("task", "__no_writes__", None)]
            (told,) = await migrated(saver)
            assert told.refused == ()

    @pytest.mark.parametrize("kind", ["dropped", "restarted"])
    @pytest.mark.parametrize("history", [False, True])
    async def test_what_a_node_that_is_no_more_has_written_stays(self, lab: Lab, kind: str, history: bool) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 0})
        for number in range(1, 4):
            await chain.writes(("d", f"line {number}"), ("n", 0), task=f"task {number}", path="~__pregel_pull, gone")
            await chain.put({"n": number}, changed=("n", "d"), metadata=since(number))
        await chain.writes(("d", "waiting"), task="task", path="~__pregel_pull, gone")
        saver = lab.open(schema=second(ms.drop_node("gone", to="other" if kind == "restarted" else None)))
        expected = ["line 1", "line 2", "line 3"]
        assert await rebuilt(saver, chain.latest) == expected
        (told,) = await migrated(saver, history=history)
        assert (told.changed, told.refused) == (4, ())
        found = await lab.open(schema=second()).got(chain.latest)
        assert found.pending_writes == [("task", "d", "waiting")]
        for view in (saver, lab.open(schema=second())):
            assert await rebuilt(view, chain.latest) == expected
        await migrated(saver, mode="undo")
        assert await rebuilt(lab.open(schema=FIRST), chain.latest) == expected

    async def test_compaction_waits_until_the_head_is_of_this_version(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"n": 1, "d": ["a", "b"]})
        schema = second(ms.map_channel("d", upper))
        first: dict[str, Any] = {"compact": lambda state, _: {"d": state["d"][:1]}, "quiet": 0}
        for saver in (lab.open(schema=schema), lab.open(schema=second())):
            assert (await saver.maintain(**first)).threads == ()
        new = lab.open(schema=schema)
        assert (await new.got(chain.latest)).checkpoint["channel_values"]["d"] == ["A", "B"]
        await migrated(new)
        assert [one.compacted for one in (await new.maintain(**first)).threads] == [("d",)]
        assert (await new.got(chain.latest)).checkpoint["channel_values"] == {"n": 1, "d": ["A"]}
