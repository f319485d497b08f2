"""Migration: what is stored becomes what the running code declares, in its place, and nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it
from langgraph.types import Send

from milepost import schema as ms
from milepost.errors import InvalidConfig, SchemaMismatch, Unavailable
from milepost.migrating import Migrated
from milepost.retention import Retention
from milepost.schema import Schema, Step
from milepost.store import Batch, Chart, CheckpointRow, Store
from milepost.testing.chain import Chain, at, checkpoint, id_of
from milepost.testing.faults import Plan
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.releases import FIRST, SECOND, Drifted, One, Two

ALONE = Schema(Two, version=2, name="s")
"""The second release, once nothing of the first is left: it declares no upgrade."""
LINES = [f"line {number} " + "words " * 30 for number in range(12)]
KEYS = {"k": bytes(range(32))}


async def migrated(saver: Face, **options: Any) -> list[Migrated]:
    """What `Saver.migrate` tells."""
    if saver.flavour == "blocking":
        return list(saver.saver.migrate(**options))
    return [one async for one in saver.saver.amigrate(**options)]


async def _scene(lab: Lab, thread: str = "t", **options: Any) -> Chain:
    """Three checkpoints of the first release; the last one waits."""
    saver = lab.open(schema=FIRST, **options)
    chain = Chain(saver, thread)
    for number in (1, 2, 3):
        await chain.put({"a": number, "b": LINES[: 3 * number], "gone": "g"}, config={"run_id": f"run {number}"})
    await chain.writes(("a", 9), ("gone", "g"), ("__interrupt__", ["?"]), task="1", path="p")
    await chain.writes(("b", LINES[:1]), task="2", path="q")
    return chain


def _shouted(count: int) -> list[str]:
    return [line.upper() for line in LINES[:count]]


def _same(found: list[CheckpointTuple], before: list[CheckpointTuple]) -> None:
    assert len(found) == len(before)
    for one, other in zip(found, before, strict=True):
        assert_same(_content(one), _content(other))


def _content(found: CheckpointTuple) -> Any:
    """Without the order of keys."""
    inner = {key: value for key, value in found.checkpoint.items() if key != "channel_values"}
    return sorted(found.checkpoint["channel_values"].items()), sorted(inner.items(), key=str), list(found)[2:]


async def _charted(lab: Lab, saver: Face, thread: str) -> tuple[Store, Chart]:
    store = lab.store_of(saver)
    chart = await store.chart(thread)
    assert chart is not None
    return store, chart


class Migration(Behaviours):
    """`Saver.migrate`, and the verb `rewrite` under it."""

    @pytest.mark.parametrize("keys", [None, KEYS])
    @pytest.mark.parametrize("history", [False, True])
    async def test_checkpoints_are_rewritten_in_their_place(self, lab: Lab, keys: Any, history: bool) -> None:
        chain = await _scene(lab, keys=keys)
        new = lab.open(schema=SECOND, keys=keys)
        before = await new.list(at("t"))
        (done,) = await migrated(new, history=history)
        assert done == Migrated("t", {("s", 1): 3 if history else 1}, 3 if history else 1)
        for reader in (new, lab.open(schema=SECOND, keys=keys)):
            _same(await reader.list(at("t")), before)
            _same(await reader.list(at("t", None)), before)
            _same(await reader.list(None), before)
        alone = lab.open(schema=ALONE, keys=keys)
        _same([await alone.got(at("t"))], before[:1])
        older = at("t", id="0001")
        if history:
            _same([await alone.got(older)], before[2:])
        else:
            with pytest.raises(SchemaMismatch):
                await alone.got(older)
        with pytest.raises(SchemaMismatch):
            await chain.saver.got(at("t"))
        # Once more there is nothing to do.
        assert [one.changed for one in await migrated(new, history=history)] == [0]
        (found,) = await alone.list(at("t"), filter={"run_id": "run 3"})
        assert id_of(found.config) == "0003"

    @pytest.mark.parametrize(
        "waits", [{"branch:to:old": None}, {"__pregel_tasks": [Send("old", {})]}, {"join:old+new:new": {"new"}}]
    )
    async def test_what_waits_for_a_node_that_the_graph_does_not_have_is_told(
        self, lab: Lab, waits: dict[str, Any]
    ) -> None:
        idle = {"join:old+new:new": set[str]()}
        for thread, values in (("idle", idle), ("waits", waits)):
            await Chain(lab.open(schema=FIRST), thread).put({"a": 1, **values})
        step = Step(1, 2, ms.add_channel("b", []))
        new = lab.open(schema=Schema(One, version=2, name="s", upgrades=[step], nodes=["new"]))
        for mode in ("dry-run", "rewrite"):
            found = {told.thread: told for told in await migrated(new, mode=mode)}
            assert (found["idle"].changed, found["idle"].refused) == (1, ())
            assert found["waits"].changed == 0
            (reason,) = found["waits"].refused
            assert "waits for node 'old'" in reason
        assert (await lab.open(schema=FIRST).got(at("waits"))).checkpoint["channel_values"] == {"a": 1, **waits}

    async def test_a_migrated_thread_goes_on(self, lab: Lab) -> None:
        await _scene(lab)
        new = lab.open(schema=SECOND)
        await migrated(new)
        found = await new.got(at("t"))
        inner: Any = {**found.checkpoint, "id": "0004"}
        await new.put(found.config, inner, found.metadata, {})
        await new.put_writes(at("t", id="0004"), [("c", 5)], "3")
        assert_same((await new.got(at("t"))).checkpoint["channel_values"], found.checkpoint["channel_values"])
        await new.prune(["t"])
        assert await new.ids(at("t")) == ["0004"]
        assert_same((await new.got(at("t"))).checkpoint["channel_values"], found.checkpoint["channel_values"])

    async def test_a_dry_run_tells_what_the_run_does(self, lab: Lab) -> None:
        await _scene(lab)
        await _scene(lab, "u")
        other = Chain(lab.open(schema=Schema(Two, version=9, name="s")), "v")
        await other.put({"c": 1})
        new = lab.open(schema=SECOND)
        before = await new.stats()
        told = await migrated(new, mode="dry-run", history=True)
        assert await new.stats() == before
        assert sorted(told, key=lambda one: one.thread) == sorted(
            await migrated(new, history=True), key=lambda one: one.thread
        )
        (refused,) = [one for one in told if one.thread == "v"]
        assert (refused.changed, refused.stored) == (0, {("s", 9): 1})
        assert "version 9" in refused.refused[0]
        assert [one.changed for one in await migrated(new, threads=["t"], mode="dry-run")] == [0]
        # Without a schema it says what there is.
        counted = await migrated(lab.open(), threads=["v", "nobody"], mode="dry-run")
        assert counted == [Migrated("v", {("s", 9): 1}), Migrated("nobody")]

    @pytest.mark.parametrize("keys", [None, KEYS])
    async def test_what_was_there_comes_back(self, lab: Lab, keys: Any) -> None:
        chain = await _scene(lab, keys=keys)
        before = await chain.saver.list(at("t"))
        new = lab.open(schema=SECOND, keys=keys)
        await migrated(new, history=True)
        assert [one.changed for one in await migrated(new, mode="undo")] == [3]
        _same(await lab.open(schema=FIRST, keys=keys).list(at("t")), before)
        assert (await new.stats("t")).checkpoints == 3
        assert [one.changed for one in await migrated(new, mode="undo")] == [0]

    async def test_what_was_written_to_since_stays(self, lab: Lab) -> None:
        await _scene(lab)
        new = lab.open(schema=SECOND)
        await migrated(new, history=True)
        await new.put_writes(at("t", id="0003"), [("c", 1)], "3")
        (undone,) = await migrated(new, mode="undo")
        assert undone.changed == 2
        assert "'0003'" in undone.refused[0]
        assert len((await lab.open(schema=ALONE).got(at("t"))).pending_writes or ()) == 5

    async def test_finalising_gives_back_what_was_kept(self, lab: Lab) -> None:
        await _scene(lab)
        fresh = Chain(lab.twin().open(schema=ALONE), "t")
        new = lab.open(schema=SECOND)
        before = await new.list(at("t"))
        await migrated(new, history=True)
        kept = await new.stats("t")
        assert (kept.checkpoints, kept.writes) == (6, 8)
        assert [one.changed for one in await migrated(lab.open(), mode="finalise")] == [3]
        after = await new.stats("t")
        assert (after.checkpoints, after.writes) == (3, 4)
        assert after.bytes < kept.bytes
        _same(await lab.open(schema=ALONE).list(at("t")), before)
        assert [one.changed for one in await migrated(new, mode="finalise")] == [0]
        assert fresh.head is None

    async def test_what_is_kept_stays_as_long_as_its_checkpoint(self, lab: Lab) -> None:
        chain = await _scene(lab)
        new = lab.open(schema=SECOND)
        for gone, rest in (
            (lambda: new.delete_for_runs(["run 1"]), 2),
            (lambda: new.maintain(Retention(keep_last=1)), 1),
            (lambda: new.prune(["t"]), 1),
        ):
            await migrated(new, history=True)
            await gone()
            assert (await new.stats("t")).checkpoints == 2 * rest
            assert [one.changed for one in await migrated(new, mode="undo")] == [rest]
            assert len(await chain.saver.list(at("t"))) == rest
        await migrated(new)
        if lab.flavour == "blocking":
            await new.delete_thread("t")
        else:
            await new.erase(["t"])
        assert (await new.stats())[:4] == (0, 0, 0, 0)

    async def test_what_is_kept_does_not_wait(self, lab: Lab) -> None:
        await _scene(lab)
        new = lab.open(schema=SECOND)
        await migrated(new)
        assert [row.waiting for row in await new.threads()] == [True]
        await new.put(at("t", id="0003"), checkpoint("0004", {"c": 1}), {"step": 4})
        assert [(row.waiting, row.head) for row in await new.threads()] == [(False, "0004")]

    async def test_versions_of_many_checkpoints_share_their_items(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST), "t")
        for number in range(1, 80):
            await chain.put({"b": [f"{at} " + "words " * 50 for at in range(number)]})
        before = await chain.saver.stats("t")
        new = lab.open(schema=SECOND)
        assert [one.changed for one in await migrated(new, history=True)] == [79]
        # Each line twice, as it was and as it is: not once for each checkpoint.
        assert (await new.stats("t")).bytes < 3.5 * before.bytes
        assert (await lab.open(schema=ALONE).got(at("t"))).checkpoint["channel_values"]["b"][0].startswith("0 WORDS")

    async def test_a_thread_from_before_schemas(self, lab: Lab) -> None:
        chain = Chain(lab.open(), "t")
        await chain.put({"a": 1})
        await chain.writes(("a", 2))
        schema = Schema(Two, version=2, name="s", unstamped=1, upgrades=SECOND.upgrades)
        (done,) = await migrated(lab.open(schema=schema))
        assert done == Migrated("t", {(None, None): 1}, 1)
        found = await lab.open(schema=ALONE).got(at("t"))
        assert found.checkpoint["channel_values"] == {"c": 1, "new": "default"}
        assert found.pending_writes == [("task", "c", 2)]

    async def test_the_history_of_a_delta_channel(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST), "t")
        await chain.put({"b": _DeltaSnapshot(["seed"])})
        await chain.writes(("b", ["one"]))
        await chain.put({}, changed=("b",))
        new = lab.open(schema=SECOND)
        before = await new.history(at("t"), ["b"])
        assert before == {"b": {"writes": [("task", "b", ["ONE"])], "seed": _DeltaSnapshot(["SEED"])}}
        await migrated(new)
        assert await new.history(at("t"), ["b"]) == before
        await migrated(new, history=True)
        assert await lab.open(schema=ALONE).history(at("t"), ["b"]) == before

    async def test_a_thread_that_is_written_to_is_not_rewritten(self, lab: Lab) -> None:
        chain = await _scene(lab)
        store, chart = await _charted(lab, chain.saver, "t")
        row = chart.rows[0]
        same = Batch((row,), (), ())
        for write in (
            lambda: chain.writes(("b", ["x"]), task="9"),
            lambda: chain.put({"a": 7}),
            lambda: chain.saver.prune(["t"]),
            lambda: chain.saver.delete_thread("t"),
        ):
            store, chart = await _charted(lab, chain.saver, "t")
            await write()
            assert not await store.rewrite("t", same, chart.token)
        assert not await store.rewrite("nobody", same, chart.token)

    async def test_a_rewritten_checkpoint_keeps_its_place(self, lab: Lab) -> None:
        chain = await _scene(lab)
        store, chart = await _charted(lab, chain.saver, "t")
        rows = {row.id: row for row in chart.rows}
        head, writes = rows["0003"], chart.writes["", "0003"]
        kept = tuple(("", "0003", write) for write in writes if write.task == "2")
        assert await store.rewrite("t", Batch((head,), kept, ()), chart.token)
        store, after = await _charted(lab, chain.saver, "t")
        assert {row.id: row for row in after.rows} == rows
        assert after.writes["", "0003"] == tuple(write for _, _, write in kept)
        other = CheckpointRow("elsewhere", "0003", None, head.header, head.spans, key="0003", at=head.at)
        moved = ("elsewhere", "0003", kept[0][2])
        assert await store.rewrite("t", Batch((other,), (moved,), ()), after.token)
        _, last = await _charted(lab, chain.saver, "t")
        assert last.writes["elsewhere", "0003"] == last.writes["", "0003"]
        stats = await chain.saver.stats("t")
        assert (stats.checkpoints, stats.writes) == (4, 2)

    async def test_the_application_runs_meanwhile(self, lab: Lab) -> None:
        chain = await _scene(lab)
        runner, migrator = lab.open(schema=SECOND), lab.open(schema=SECOND)

        async def run() -> None:
            for number in range(4, 24):
                found = await runner.got(at("t"))
                values = {**found.checkpoint["channel_values"], "c": number}
                put: Any = {**found.checkpoint, "id": f"{number:04}", "channel_values": values}
                put["channel_versions"] = {**put["channel_versions"], "c": f"{number:040}"}
                await runner.put(found.config, put, found.metadata, {"c": f"{number:040}"})
                await runner.put_writes(at("t", id=f"{number:04}"), [("c", number)], "task")

        async def migrate() -> None:
            for _ in range(4):
                await migrated(migrator, history=True)

        await lab.together(run, migrate)
        await migrated(migrator, history=True)
        for reader in (lab.open(schema=SECOND), lab.open(schema=ALONE)):
            found = await reader.list(at("t"))
            assert [one.checkpoint["id"] for one in found] == [f"{number:04}" for number in range(23, 0, -1)]
            assert [one.checkpoint["channel_values"]["c"] for one in found] == list(range(23, 0, -1))
            assert {tuple(one.checkpoint["channel_values"]["b"]) for one in found[:21]} == {tuple(_shouted(9))}
            assert [one.pending_writes for one in found[:20]] == [
                [("task", "c", number)] for number in range(23, 3, -1)
            ]
            assert [write[1:] for write in found[20].pending_writes or ()] == [
                ("__interrupt__", ["?"]),
                ("c", 9),
                ("__no_writes__", None),
                ("b", _shouted(1)),
            ]
        assert chain.head == "0003"

    async def test_rewriting_all_there_is_loses_nothing(self, lab: Lab) -> None:
        chain = Chain(lab.open(), "t")
        await chain.put({"b": LINES})
        await chain.writes(("b", LINES))
        before = await chain.saver.got(at("t"))
        for _ in range(2):
            store, chart = await _charted(lab, chain.saver, "t")
            writes = tuple((*place, write) for place, some in chart.writes.items() for write in some)
            assert await store.rewrite("t", Batch(chart.rows, writes, ()), chart.token)
            assert_same(await lab.open().got(at("t")), before)

    @pytest.mark.parametrize("moment", ["after", "twice"])
    async def test_a_migration_that_fails_is_repeated(self, lab: Lab, moment: Any) -> None:
        await _scene(lab)
        before = await lab.open(schema=SECOND).list(at("t"))
        plan = Plan()
        faulty = lab.faulty(plan, schema=SECOND)
        await faulty.setup()
        failures = 0
        for number in range(64):
            plan.arm(moment, number)
            try:
                await migrated(faulty, threads=["t"], history=True)
            except Unavailable:
                failures += 1
            ended = plan.calls <= number
            plan.disarm()
            _same(await lab.open(schema=SECOND).list(at("t")), before)
            if ended:
                break
        else:
            raise AssertionError("a migration has no end")
        await migrated(faulty, threads=["t"], history=True)
        assert moment == "twice" or failures
        _same(await lab.open(schema=ALONE).list(at("t")), before)
        assert (await faulty.stats("t")).checkpoints == 6

    async def test_a_run_goes_on_behind_a_thread(self, lab: Lab) -> None:
        names = [f"t{number}" for number in range(5)]
        for name in names:
            await Chain(lab.open(schema=FIRST), name).put({"a": 1})
        new = lab.open(schema=SECOND)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("milepost.operations.PAGE", 2)
            told = await migrated(new, mode="dry-run")
            assert sorted(one.thread for one in told) == names
            for number, one in enumerate(told):
                rest = await migrated(new, mode="dry-run", after=one.cursor)
                assert [one.thread for one in rest] == [one.thread for one in told[number + 1 :]]
            # A thread that is gone takes no other one with it.
            await new.delete_thread(told[2].thread)
            left = {one.thread for one in await migrated(new, after=told[2].cursor)}
            assert left >= {one.thread for one in told[3:]}
            assert told[2].thread not in left

    async def test_what_cannot_be_meant_is_refused(self, lab: Lab) -> None:
        every: list[dict[str, Any]] = [{"mode": "all"}, {"threads": "t"}]
        every += [{"after": "x"}, {"after": "[]"}, {"after": "[1]"}, {"threads": ["t"], "after": '["t"]'}]
        for options in every:
            with pytest.raises(InvalidConfig):
                await migrated(lab.open(schema=FIRST), **options)
        for mode in ("rewrite", "undo"):
            with pytest.raises(InvalidConfig, match="without a schema"):
                await migrated(lab.open(), mode=mode)

    async def test_another_shape_is_refused_as_it_is_when_read(self, lab: Lab) -> None:
        await _scene(lab)
        for mode in ("dry-run", "rewrite"):
            (told,) = await migrated(lab.open(schema=Schema(Drifted, version=1, name="s", drift="refuse")), mode=mode)
            assert told.stored == {("s", 1): 1}
            assert told.changed == 0
            assert "another shape" in told.refused[0]
            (told,) = await migrated(lab.open(schema=Schema(Drifted, version=1, name="s")), mode=mode)
            assert told.refused == ()

    async def test_an_upgrade_that_raises_is_told(self, lab: Lab) -> None:
        await _scene(lab)
        broken = Schema(Two, version=2, name="s", upgrades=[Step(1, 2, ms.map_channel("a", lambda value: value["x"]))])
        (told,) = await migrated(lab.open(schema=broken))
        assert told.changed == 0
        assert "map_channel" in told.refused[0]
        with pytest.raises(SchemaMismatch, match="map_channel"):
            await lab.open(schema=broken).got(at("t"))

    @pytest.mark.parametrize("history", [True, False])
    async def test_a_damaged_checkpoint_holds_up_nobody_else(self, lab: Lab, history: bool) -> None:
        for thread in ("t", "u"):
            await _scene(lab, thread)
        saver = lab.open(schema=FIRST)
        store, chart = await _charted(lab, saver, "t")
        (head,) = (row for row in chart.rows if row.id == "0003")
        torn = head._replace(header=head.header[:-1] + bytes([head.header[-1] ^ 1]))
        assert await store.rewrite("t", Batch((torn,), (), ()), chart.token)
        new = lab.open(schema=SECOND)
        dry = await migrated(new, mode="dry-run", history=history)
        told = {one.thread: one for one in await migrated(new, history=history)}
        assert {one.thread: one for one in dry} == told
        assert "'0003'" in told["t"].refused[0]
        assert told["t"].changed == (2 if history else 0)
        assert (told["u"].changed, told["u"].refused) == (3 if history else 1, ())
        for mode in ("undo", "finalise"):
            undone = {one.thread: one for one in await migrated(new, mode=mode)}
            assert bool(undone["t"].refused) == history
            assert not undone["u"].refused
            assert undone["u"].changed == (told["u"].changed if mode == "undo" else 0)
