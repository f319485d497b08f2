"""Subgraphs whose node was renamed: their namespaces are found under the former name, and moved by a migration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langgraph.types import Interrupt

from milepost import schema as ms
from milepost.compaction import Context
from milepost.errors import SchemaMismatch, Unavailable
from milepost.schema import Schema, Step
from milepost.schema.image import Image
from milepost.schema.tasks import Tasks, question_id
from milepost.testing.chain import Chain, at, checkpoint, inside
from milepost.testing.faults import Plan
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.migration import KEYS, migrated
from milepost.testing.suite.releases import FIRST, STEP, One, Two

_INNER = Step(1, 2, ms.rename_channel("a", "c"))
OLD = {"": FIRST, "old": Schema(One, version=1, name="child"), "kept": Schema(One, version=1, name="kept")}
NEW = {
    "": Schema(
        Two,
        version=2,
        name="s",
        upgrades=[Step(1, 2, *STEP.changes, ms.rename_node("old", "new"), ms.rename_node("kept", "stays"))],
    ),
    "new": Schema(Two, version=2, name="child", upgrades=[_INNER]),
    "stays": Schema(Two, version=2, name="kept", upgrades=[_INNER]),
}
ALONE = {ns: Schema(Two, version=2, name=schema.name) for ns, schema in NEW.items()}
"""The later release, once nothing of the first is left."""


def _call(node: str) -> str:
    """The namespace of the call that the root's checkpoint "0002" of the scene makes."""
    image = Image("t", "", "0002", {"channel_values": {}, "channel_versions": {}, "versions_seen": {}}, {"step": 2})
    ((task, _), *_) = Tasks(image).made(node)
    return f"{node}:{task}"


WAS, IS = _call("old"), _call("new")


async def _scene(lab: Lab, **options: Any) -> Face:
    """A root that waits in a call of a subgraph, and a subgraph that remembers, under the first release."""
    saver = lab.open(schema=OLD, **options)
    root = Chain(saver, "t")
    await root.put({"a": 1, "branch:to:old": None})
    await root.put({"a": 2, "branch:to:old": None})
    for ns, ids in ((WAS, ("0003", "0004")), ("kept", ("0005", "0006"))):
        chain = Chain(saver, "t", ns)
        for number, id in enumerate(ids):
            await chain.put({"a": number, "b": [f"{ns} {number}"]}, id=id, metadata={"parents": {"": "0002"}})
        await chain.writes(("a", 9), ("__interrupt__", ["?"]), task="1")
    await root.writes(("__interrupt__", ["?"]), task=WAS.partition(":")[2], path="~__pregel_pull, old", id="0002")
    return saver


async def _seen(saver: Face) -> list[Any]:
    """All that the later release sees of the subgraphs."""
    found: list[Any] = []
    for ns in (IS, "stays"):
        for one in await saver.list(at("t", ns)):
            assert one.config == at("t", ns, one.checkpoint["id"])
            waiting = sorted(one.pending_writes or (), key=repr)
            found.append((one.checkpoint["id"], one.checkpoint["channel_values"], one.parent_config, waiting))
        latest = await saver.got(at("t", ns))
        found.append((latest.checkpoint["id"], latest.metadata))
    return found


def _asking(ns: str, answered: int, name: str = "ask") -> tuple[str, Interrupt]:
    """The task of node `name` at checkpoint "0004" of the subgraph `ns` of the scene, and what it asks after so many
    answers."""
    empty: dict[str, Any] = {"channel_values": {}, "channel_versions": {}, "versions_seen": {}}
    tasks = Tasks(Image("t", ns, "0004", empty, {"step": 2}))
    ((task, _), *_) = tasks.made(name)
    return task, Interrupt(value=answered, id=question_id(tasks.space(name, task), answered))


async def _spaces(saver: Face) -> set[str]:
    return {inside(one.config)["checkpoint_ns"] for one in await saver.list(None)}


async def _question_ids(saver: Face) -> dict[str, str]:
    return (
        saver.saver.question_ids(at("t")) if saver.flavour == "blocking" else await saver.saver.aquestion_ids(at("t"))
    )


class Moves(Behaviours):
    """Namespaces under a former name."""

    async def test_namespaces_move_with_their_nodes(self, lab: Lab) -> None:
        keys = KEYS
        old = await _scene(lab, keys=keys)
        before = await _seen(lab.open(schema=NEW, keys=keys))
        assert [id for id, *_ in before] == ["0004", "0003", "0004", "0006", "0005", "0006"]
        new = lab.open(schema=NEW, keys=keys)
        dry = await migrated(new, mode="dry-run", history=True)
        assert await _spaces(old) == {"", WAS, "kept"}
        done = await migrated(new, history=True)
        assert done == dry
        assert [(one.changed, one.refused) for one in done] == [(6, ())]
        # Without a declaration that a node was renamed, and in all that was read before.
        for reader in (lab.open(schema=ALONE, keys=keys), lab.open(schema=NEW, keys=keys), new):
            assert_same(await _seen(reader), before)
        assert await _spaces(lab.open(keys=keys)) == {"", IS, "stays"}
        assert [one.changed for one in await migrated(new, history=True)] == [0]
        assert [(one.waiting, one.head) for one in await new.threads()] == [(True, "0002")]
        # What is kept of them goes and comes with them.
        await new.prune(["t"])
        before = await _seen(new)
        assert [one.changed for one in await migrated(new, mode="undo")] == [3]
        assert await _spaces(lab.open(keys=keys)) == {"", WAS, "kept"}
        assert_same(await _seen(lab.open(schema=NEW, keys=keys)), before)
        assert [id for id, *_ in before] == ["0004", "0004", "0006", "0006"]
        assert (await old.stats()).checkpoints == 3
        await migrated(new, history=True)
        assert [one.changed for one in await migrated(lab.open(keys=keys), mode="finalise")] == [3]
        assert (await old.stats()).checkpoints == 3
        with pytest.raises(SchemaMismatch):
            await old.got(at("t"))

    async def test_what_a_migration_notes_is_shown_to_nobody(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=OLD), "t")
        await chain.put({"a": 1})
        await chain.put({"a": 2})
        new = lab.open(schema=NEW)
        assert [one.changed for one in await migrated(new, history=True)] == [2]
        told: list[Mapping[str, Any]] = []

        def look(_: Mapping[str, Any], context: Context) -> None:
            told.append(context.metadata)

        await new.maintain(compact=look, quiet=0, dry_run=True)
        told.append((await new.got(at("t"))).metadata)
        assert len(told) == 2
        assert not [name for metadata in told for name in metadata if name.startswith("__")]

    async def test_what_lies_under_a_former_name_is_pinned_there(self, lab: Lab) -> None:
        old = await _scene(lab)
        new = lab.open(schema=NEW)
        assert await new.pin(at("t", "stays")) == at("t", "stays", "0006")
        assert (await new.got(at("t", "stays"))).metadata["pinned"] is True  # type: ignore[typeddict-item]  # (a key of ours)
        await new.unpin(at("t", "stays", "0006"))
        assert await _spaces(old) == {"", WAS, "kept"}
        assert "pinned" not in (await old.got(at("t", "kept"))).metadata

    async def test_who_writes_meanwhile_writes_to_where_it_moved(self, lab: Lab) -> None:
        await _scene(lab)
        runner, writer = lab.open(schema=NEW), lab.open(schema=NEW)
        values = {}
        for saver in (runner, writer):
            for ns in (IS, "stays"):
                values[ns] = (await saver.got(at("t", ns))).checkpoint["channel_values"]
        await migrated(lab.open(schema=NEW), history=True)
        # Reading the root tells them that the thread has changed, and not yet where to.
        await runner.got(at("t"))
        for ns, id, next in ((IS, "0004", "0007"), ("stays", "0006", "0008")):
            await writer.put_writes(at("t", ns, id), [("c", 7)], "2")
            put: Any = {**checkpoint(next, {"c": 7}), "channel_values": {**values[ns], "c": 7}}
            await runner.put(at("t", ns, id), put, {"step": 9, "parents": {"": "0002"}})
            assert (await runner.got(at("t", ns))).checkpoint["id"] == next
            assert ("2", "c", 7) in ((await writer.got(at("t", ns, id))).pending_writes or ())
        alone = lab.open(schema=ALONE)
        assert await _spaces(alone) == {"", IS, "stays"}
        assert (await alone.got(at("t", IS))).checkpoint["channel_values"]["c"] == 7
        assert ("2", "c", 7) in ((await alone.got(at("t", IS, "0004"))).pending_writes or ())
        (undone,) = await migrated(lab.open(schema=NEW), mode="undo")
        assert len(undone.refused) == 4
        assert "written to since" in undone.refused[0]
        assert (await alone.got(at("t", "stays"))).checkpoint["id"] == "0008"

    async def test_a_move_that_fails_is_repeated(self, lab: Lab) -> None:
        await _scene(lab)
        before = await _seen(lab.open(schema=NEW))
        plan = Plan()
        faulty = lab.faulty(plan, schema=NEW)
        await faulty.setup()
        failures = 0
        for number in range(64):
            plan.arm("after", number)
            try:
                await migrated(faulty, threads=["t"], history=True)
            except Unavailable:
                failures += 1
            ended = plan.calls <= number
            plan.disarm()
            assert_same(await _seen(lab.open(schema=NEW)), before)
            if ended:
                break
        else:
            raise AssertionError("a migration has no end")
        assert failures
        assert [one.changed for one in await migrated(faulty, threads=["t"], history=True)] == [0]
        assert_same(await _seen(lab.open(schema=ALONE)), before)
        assert (await faulty.stats("t")).checkpoints == 12

    async def test_a_namespace_moves_as_a_whole_or_not_at_all(self, lab: Lab) -> None:
        old = await _scene(lab)
        await old.put(at("t", "kept"), checkpoint("0001", {"a": 1, "c": 2}), {"step": 0, "parents": {"": "0001"}})
        (told,) = await migrated(lab.open(schema=NEW))
        assert len(told.refused) == 2
        assert "'c' already" in told.refused[0]
        assert "made a call of a subgraph that cannot be upgraded" in told.refused[1]
        assert await _spaces(lab.open()) == {"", IS, "kept"}
        again = lab.open(schema=NEW)
        assert (await again.got(at("t", "stays"))).checkpoint["channel_values"]["c"] == 1
        assert (await again.got(at("t"))).checkpoint["channel_values"]["c"] == 2

    async def test_what_another_node_stored_under_that_name_stays(self, lab: Lab) -> None:
        await _scene(lab)
        await lab.open(schema=ALONE).put(at("t", "stays"), checkpoint("0009", {"c": 1}), {"step": 9, "parents": {}})
        (told,) = await migrated(lab.open(schema=NEW))
        assert "has checkpoints of its own" in told.refused[0]
        assert (await lab.open(schema=NEW).got(at("t", "stays"))).checkpoint["id"] == "0009"

    async def test_writes_ahead_of_their_checkpoint_do_not_move(self, lab: Lab) -> None:
        old = await _scene(lab)
        await old.put_writes(at("t", WAS, "0007"), [("a", 1)], "3")
        (told,) = await migrated(lab.open(schema=NEW))
        assert "'0007'" in told.refused[0]
        assert await _spaces(lab.open()) == {"", WAS, "stays"}

    @pytest.mark.parametrize("cycle", [False, True])
    async def test_names_that_are_passed_on_move_nothing(self, lab: Lab, cycle: bool) -> None:
        old = await _scene(lab)
        await old.put(at("t", "old"), checkpoint("0007", {"a": 1}), {"step": 0, "parents": {"": "0002"}})
        steps = [ms.rename_node("kept", "spare"), ms.rename_node("old", "kept")]
        steps += [ms.rename_node("spare", "old")] if cycle else []
        new = lab.open(schema=Schema(One, version=2, name="s", upgrades=[Step(1, 2, *steps)]))
        before = [one for one in await old.list(at("t", None)) if inside(one.config)["checkpoint_ns"]]
        dry = await migrated(new, mode="dry-run", history=True)
        assert await migrated(new, history=True) == dry
        ((changed, refused),) = ((one.changed, one.refused) for one in dry)
        # The root's first checkpoint has made no call.
        assert changed == 1
        assert [("passed on" in why, "made a call" in why) for why in refused] == [(True, False)] * 3 + [(False, True)]
        assert await old.list(at("t", None), filter={"parents": {"": "0002"}}) == before

    async def test_a_name_that_another_node_had_is_no_place_to_move_to(self, lab: Lab) -> None:
        """Half way, what has moved there would look like what the other node has stored."""
        old = await _scene(lab)
        steps = [ms.rename_node("free", "spare"), ms.rename_node("kept", "free")]
        new = lab.open(schema=Schema(One, version=2, name="s", upgrades=[Step(1, 2, *steps)]))
        (told,) = await migrated(new)
        assert "passed on" in told.refused[0]
        assert await _spaces(old) == {"", WAS, "kept"}
        assert (await new.got(at("t", "free"))).checkpoint["id"] == "0006"

    @pytest.mark.parametrize("pruned", [False, True])
    async def test_a_new_node_may_have_the_former_name_of_another(self, lab: Lab, pruned: bool) -> None:
        """What it stores is its own, of whatever is read first and by whom."""
        for ns, id in (("kept", "0005"), ("stays", "0006")):
            writer = lab.open(schema=NEW)
            if ns == "kept":
                await Chain(writer, "t").put({"c": 1})
            assert await writer.get(at("t", ns)) is None
            await writer.put(at("t", ns), checkpoint(id, {"c": 1}), {"step": 1, "parents": {"": "0001"}})
        if pruned:
            await Chain(lab.open(schema=NEW), "t").put({"c": 2}, id="0009")
            await lab.open(schema=NEW).prune(["t"])
        for order in (("kept", "stays"), ("stays", "kept")):
            reader = lab.open(schema=NEW)
            for ns in order:
                found = await reader.got(at("t", ns))
                assert found.checkpoint["id"] == {"kept": "0005", "stays": "0006"}[ns]
                assert found.metadata == {"step": 1, "parents": {"": "0001"}}
        assert [one.refused for one in await migrated(lab.open(schema=NEW), history=True)] == [()]
        assert await _spaces(lab.open()) == {"", "kept", "stays"}

    async def test_a_former_name_that_is_taken_is_refused(self, lab: Lab) -> None:
        await _scene(lab)
        new = lab.open(schema=NEW)
        values = (await new.got(at("t", "stays"))).checkpoint["channel_values"]
        put: Any = {**checkpoint("0009", {"c": 7}), "channel_values": {**values, "c": 7}}
        await Chain(new, "t").put({"c": 3}, id="0008")
        # The node goes on where it is, also for who knows nothing of the calls before.
        await new.put(at("t", "stays", "0006"), put, {"step": 9, "parents": {"": "0008"}})
        other = lab.open(schema=NEW)
        with pytest.raises(SchemaMismatch, match="holds what node 'stays' has stored"):
            await other.got(at("t", "kept"))
        assert (await other.got(at("t", "stays"))).checkpoint["id"] == "0009"
        assert [one.refused for one in await migrated(lab.open(schema=NEW), history=True)] == [()]
        assert (await lab.open(schema=ALONE).got(at("t", "stays"))).checkpoint["id"] == "0009"
        await lab.open(schema=NEW).put(at("t", "kept"), checkpoint("0010", {"c": 1}), {"step": 1, "parents": {}})
        assert (await lab.open(schema=NEW).got(at("t", "stays"))).checkpoint["id"] == "0009"

    @pytest.mark.parametrize("rewritten", [False, True])
    @pytest.mark.parametrize("cycle", [False, True])
    async def test_questions_of_nodes_whose_names_are_passed_on(self, lab: Lab, cycle: bool, rewritten: bool) -> None:
        saver = lab.open(schema=FIRST)
        chain = Chain(saver, "t")
        for _ in range(2):
            await chain.put({"branch:to:m": None, "branch:to:n": None})
        for node in ("m", "n"):
            space = _call(node)
            asked = Interrupt(value=f"by the former {node}", id=question_id(space, 0))
            await chain.writes(("__interrupt__", [asked]), task=space.partition(":")[2], path=f"~__pregel_pull, {node}")
        steps = [ms.rename_node("m", "z"), ms.rename_node("n", "m"), *([ms.rename_node("z", "n")] if cycle else [])]
        new = lab.open(schema=Schema(One, version=2, name="s", upgrades=[Step(1, 2, *steps)]))
        if rewritten:
            assert [(one.changed, one.refused) for one in await migrated(new)] == [(1, ())]
        found = (await new.got(at("t"))).pending_writes or []
        now = {one[0].value: (task, one[0].id) for task, _, one in found}
        for before, after in (("m", "n" if cycle else "z"), ("n", "m")):
            space = _call(after)
            assert now[f"by the former {before}"] == (space.partition(":")[2], question_id(space, 0))
        with pytest.raises(SchemaMismatch, match="answer by the ids that get_state gives"):
            await _question_ids(new)

    async def test_subgraphs_of_nodes_that_exchanged_their_names(self, lab: Lab) -> None:
        old = lab.open(schema=FIRST)
        chain = Chain(old, "t")
        for _ in range(2):
            await chain.put({"branch:to:m": None, "branch:to:n": None})
        for id, ns in (("0003", "m"), ("0004", "n"), ("0005", _call("m")), ("0006", _call("n"))):
            await old.put(at("t", ns), checkpoint(id, {"a": 1}), {"step": 1, "parents": {"": "0002"}})
        steps = [ms.rename_node("m", "z"), ms.rename_node("n", "m"), ms.rename_node("z", "n")]
        schema = Schema(One, version=2, name="s", upgrades=[Step(1, 2, *steps)])
        new = lab.open(schema=schema)
        for ns, id, then in (
            ("n", "0003", "0007"),
            ("m", "0004", "0008"),
            (_call("n"), "0005", ""),
            (_call("m"), "0006", ""),
        ):
            assert (await new.got(at("t", ns))).checkpoint["id"] == id
            if then:
                await new.put(at("t", ns, id), checkpoint(then, {"a": 2}), {"step": 2, "parents": {"": "0002"}})
                for reader in (new, lab.open(schema=schema)):
                    assert (await reader.got(at("t", ns))).checkpoint["id"] == then

    @pytest.mark.parametrize("space", [0, 1], ids=["called", "kept"])
    async def test_releases_take_turns_at_one_task(self, lab: Lab, space: int) -> None:
        """What each has written of a task of a subgraph is of the same task, whatever it calls the node around it."""
        path = "~__pregel_pull, ask"
        names = [(_call(name) for name in ("old", "middle", "new")), ("kept", "halfway", "stays")][space]
        was, halfway, now = names
        first = await _scene(lab)
        turns: list[tuple[Face, str]] = [(first, was)]
        steps = [
            Step(1, 2, *STEP.changes, ms.rename_node("old", "middle"), ms.rename_node("kept", "halfway")),
            Step(2, 3, ms.rename_node("middle", "new"), ms.rename_node("halfway", "stays")),
        ]
        third = Schema(Two, version=3, name="s", upgrades=steps)
        turns += [(lab.open(schema=Schema(Two, version=2, name="s", upgrades=steps[:1])), halfway)]
        turns += [(lab.open(schema=third), now)]
        await first.put(at("t", was, "0003"), checkpoint("0004", {"a": 5}), {"step": 2, "parents": {"": "0002"}})
        for answered, (saver, ns) in enumerate(turns):
            assert (await saver.got(at("t", ns))).checkpoint["id"] == ("0006" if space else "0004")
            task, asked = _asking(ns, answered)
            place = at("t", ns, "0004")
            await saver.put_writes(place, [("__interrupt__", [asked])], task, path)
            if answered:
                await saver.put_writes(place, [("__resume__", [*range(answered)])], task, path)
        task, asked = _asking(now, 2)
        expected = {(task, "__interrupt__", asked.id), (task, "__resume__", "[0, 1]")}

        async def found(reader: Face) -> set[tuple[str, str, str]]:
            writes = (await reader.got(at("t", now, "0004"))).pending_writes or ()
            special = [(task, channel, value) for task, channel, value in writes if task != "1"]
            return {
                (task, channel, value[0].id if "int" in channel else str(value)) for task, channel, value in special
            }

        assert await found(turns[2][0]) == expected
        assert await found(lab.open(schema=third)) == expected
        assert [one.refused for one in await migrated(lab.open(schema=third), history=True)] == [()]
        for schema in (third, Schema(Two, version=3, name="s")):
            assert await found(lab.open(schema=schema)) == expected
        assert [one.refused for one in await migrated(lab.open(schema=third), mode="undo")] == [()]
        assert await found(lab.open(schema=third)) == expected

    async def test_who_read_it_where_it_had_moved_finds_it_where_it_came_back(self, lab: Lab) -> None:
        await _scene(lab)
        saver, other = lab.open(schema=NEW), lab.open(schema=NEW)
        before = {ns: (await saver.got(at("t", ns))).checkpoint for ns in (IS, "stays")}
        await migrated(other, history=True)
        for ns, whole in before.items():
            assert (await saver.got(at("t", ns))).checkpoint == whole
        (undone,) = await migrated(other, mode="undo")
        assert undone.refused == ()
        for ns, whole in before.items():
            assert (await saver.got(at("t", ns))).checkpoint == whole

    async def test_a_task_that_nobody_can_name_is_refused_as_such(self, lab: Lab) -> None:
        """And the other threads go on."""
        old = await _scene(lab)
        other = Chain(old, "u")
        await other.put({"a": 1})
        await old.put_writes(
            at("t", WAS, "0004"), [("a", 1)], "2", "~__pregel_push, ~__pregel_pull, ask, 0000000000, 0000000001"
        )
        new = lab.open(schema=NEW)
        place = at("t", IS, "0004")
        with pytest.raises(SchemaMismatch, match=f"'{WAS}' cannot be read as one of '{IS}'") as refused:
            await new.got(place)
        facts = refused.value.facts
        assert (facts["thread"], facts["ns"], facts["checkpoint"]) == ("t", WAS, "0004")
        with pytest.raises(SchemaMismatch):
            await new.list(at("t", IS))
        for mode in ("dry-run", "rewrite"):
            told = {one.thread: one for one in await migrated(new, mode=mode, history=True)}
            assert f"'{WAS}' cannot be read" in told["t"].refused[0]
            assert (told["u"].changed, told["u"].refused) == (1, ())
