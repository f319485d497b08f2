"""What plans a prune: outlines of threads, checkpoints by their places, and steps that name the state before them."""

from __future__ import annotations

from typing import Any

import pytest

from milepost import maintenance
from milepost.errors import InvalidConfig
from milepost.maintenance import by_policy, carry_out, plan_thread
from milepost.retention import Retention
from milepost.store import Drop, Store
from milepost.testing.chain import Chain, at, id_of
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.bounded import grown, words


async def _mixed(lab: Lab) -> Store:
    """Two namespaces, pending writes, also of a checkpoint that is not there, and pins of every kind."""
    root = await grown(lab.saver, steps=4)
    await root.writes(("m", words(50)), ("n", 1))
    for pin in (True, "for the audit", "x" * 1000, ["a", "list"], 0, "", None):
        await root.put({"n": 9}, metadata={"pinned": pin})
    await grown(lab.saver, steps=3, ns="sub")
    ahead = Chain(lab.saver)
    ahead.head = "9999"
    await ahead.writes(("n", 1), ("text", "ahead"))
    return lab.store


class Outlines(Behaviours):
    """The verbs `outline`, `rows` and `drop` of a store."""

    async def test_an_outline_says_what_the_chart_says(self, lab: Lab) -> None:
        store = await _mixed(lab)
        chart, outline = await store.chart("thread"), await store.outline("thread")
        assert chart is not None
        assert outline is not None
        assert (outline.token, outline.generation) == (chart.token, chart.generation)
        wanted = {(row.ns, row.id, row.parent, row.key, row.at, len(row.header)) for row in chart.rows}
        assert {mark[:6] for mark in outline.marks} == wanted
        stored = {mark[:2] for mark in outline.marks}
        counts = {(mark.ns, mark.id): mark.writes for mark in outline.marks if mark.writes}
        counts |= {at: count for at, (count, _) in outline.strays.items()}
        assert counts == {at: len(rows) for at, rows in chart.writes.items() if rows}
        assert outline.strays.keys() == chart.writes.keys() - stored == {("", "9999")}
        assert sorted(zip(outline.packs, outline.sizes, strict=True)) == sorted(
            zip(chart.packs, chart.sizes, strict=True)
        )
        pinned = [mark.pinned for mark in sorted(outline.marks) if not mark.ns]
        assert pinned == [False] * 4 + [True] * 4 + [False] * 3
        assert await store.outline("nobody") is None

    async def test_checkpoints_by_their_places(self, lab: Lab) -> None:
        store = await _mixed(lab)
        chart = await store.chart("thread")
        assert chart is not None
        places = [("", "0004"), ("sub", "0001"), ("", "9999"), ("", "none"), ("none", "0001")]
        found = await store.rows("thread", places)
        assert_same(
            sorted((row for row in chart.rows if (row.ns, row.id) in places), key=lambda row: row.ns),
            sorted(found.rows, key=lambda row: row.ns),
        )
        wanted = {(*at, row) for at, rows in chart.writes.items() for row in rows if at in places}
        assert set(found.writes) == wanted
        assert len(found.writes) == len(wanted) == 4
        assert (await store.rows("nobody", places)).rows == ()

    async def test_each_step_names_the_state_that_the_one_before_left(self, lab: Lab) -> None:
        store = await _mixed(lab)
        outline = await store.outline("thread")
        assert outline is not None
        first, second = Drop((("", "0001"),), (("", "0002", None),), more=True), Drop((("", "0002"),))
        token = await store.drop("thread", first, outline.token)
        assert token
        assert token == getattr(await store.outline("thread"), "token", None)
        assert await store.drop("thread", second, outline.token) is None, "the state is another one"
        token = await store.drop("thread", second, token)
        assert token
        await Chain(lab.saver, ns="new").put({"n": 1})
        assert await store.drop("thread", Drop((("", "0003"),)), token) is None, "somebody has put since"
        assert len(getattr(await store.outline("thread"), "marks", ())) == 4 + 7 + 3 - 2 + 1

    async def test_a_step_that_is_refused_leaves_the_state_as_it_was(self, lab: Lab) -> None:
        """Otherwise two who drop in turns would keep each other from it."""
        chain, store = Chain(lab.saver), lab.store
        for number in range(20):
            await chain.put({"n": number})
        await lab.saver.delete_thread("thread")
        # Most of what the thread holds is now that it was deleted.
        chain = Chain(lab.saver)
        await chain.put({"n": 1}, id="1000")
        outline = await store.outline("thread")
        assert outline is not None
        await chain.writes(("n", 3), task="other")
        now = await store.outline("thread")
        assert now is not None
        assert await store.drop("thread", Drop(tuple(mark[:2] for mark in outline.marks)), outline.token) is None
        assert await store.outline("thread") == now

    async def test_steps_are_bounded_and_together_are_the_plan(self, lab: Lab) -> None:
        # Half of what goes is writes.
        chain = Chain(lab.saver)
        for number in range(24):
            await chain.put({"n": number, "text": words(number)})
            await chain.writes(("n", number), ("text", words(-number)), ("x", number))
        wanted = await lab.saver.list(chain.latest, limit=3)
        store, codec = lab.store, lab.saver.saver.operations.codec
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(maintenance, "STEP", 10)
            plan = await plan_thread(store, codec, "thread", by_policy([Retention(keep_last=3)], "thread", 0.0))
        assert plan is not None
        # Of each checkpoint three pending writes go with it.
        sizes = [4 * len(step.checkpoints) + len(step.packs) for step in plan.steps if not step.repacked]
        assert max(sizes) <= 10
        assert sum(sizes) >= 21 * 4
        assert [step.more for step in plan.steps] == [True] * (len(plan.steps) - 1) + [False]
        progress = await carry_out(store, plan)
        assert (progress.done, progress.gone, progress.now) == (True, 21, plan.after)
        after = await store.outline("thread")
        assert after is not None
        assert maintenance.Amount.of(after) == plan.after
        async for saver in lab.views():
            found = await saver.list(chain.latest)
            assert_same(wanted[:2], found[:2])
            assert_same(wanted[2]._replace(parent_config=None), found[2])


class Pins(Behaviours):
    """`pin` keeps a checkpoint, `unpin` lets it go."""

    @pytest.mark.parametrize("keys", [None, {"k": b"0" * 16}])
    async def test_a_pinned_checkpoint_stays(self, lab: Lab, keys: dict[str, bytes] | None) -> None:
        face = lab.open(keys=keys)
        chain = await grown(face, steps=8)
        before = await face.got(chain.at("0003"))
        assert id_of(await face.pin(chain.at("0003"))) == "0003"
        assert id_of(await face.pin(chain.latest)) == "0008"
        await face.pin(chain.at("0003"))
        found = await face.got(chain.at("0003"))
        pinned: Any = {**before.metadata, "pinned": True}
        assert_same(before._replace(metadata=pinned), found)
        await chain.put({"m": (await chain.values())["m"], "n": 9})
        assert [event.outcome for event in face.events if event.op == "put"] == ["ok"] * 9, "nothing is sent again"
        await face.maintain(Retention(keep_last=1))
        assert await chain.ids() == ["0009", "0008", "0003"]
        await face.copy_thread("thread", "copy")
        await face.prune(["thread", "copy"])
        assert await chain.ids() == await face.ids(at("copy")) == ["0009", "0008", "0003"]
        await face.unpin(chain.at("0008"))
        await face.maintain(Retention(keep_last=1))
        assert await chain.ids() == ["0009", "0003"]
        found = await face.got(chain.at("0003"))
        assert_same(before.checkpoint, found.checkpoint)
        await face.unpin(chain.at("0003"))
        assert_same(before.metadata, (await face.got(chain.at("0003"))).metadata)
        with pytest.raises(InvalidConfig):
            await face.pin(chain.at("none"))
        with pytest.raises(InvalidConfig):
            await face.pin(at("nobody"))
