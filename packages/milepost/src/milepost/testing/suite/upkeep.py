"""Maintenance of whole threads: pruning, deleting runs, copying; and what another saver believes afterwards."""

from __future__ import annotations

from itertools import count
from typing import Any, Literal, cast

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import CheckpointTuple

from milepost.errors import Conflict, ThreadDeleted
from milepost.retention import Retention
from milepost.store import Batch, Store
from milepost.testing.chain import Chain, at, checkpoint, id_of, inside
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.leases import store_of

AHEAD = HumanMessage("ahead " + "of its checkpoint " * 30, id="ahead")


async def _busy(saver: Face, thread: str = "thread", steps: int = 6) -> tuple[Chain, Chain]:
    """A thread with two namespaces, a growing list, pending writes, and writes ahead of their checkpoint."""
    root, sub = Chain(saver, thread), Chain(saver, thread, "sub")
    messages: list[Any] = []
    for number in range(steps):
        messages.append(HumanMessage(f"{number} " + "words " * 100, id=str(number)))
        for chain in (root, sub):
            await chain.put({"m": list(messages), "n": number}, metadata={"run_id": f"run {number // 2}"})
            await chain.writes(("n", number), ("m", [messages[-1]]), task="b", path="2")
            await chain.writes(("n", -number), task="a", path="3")
    await root.writes(("ahead", AHEAD), id="9999")
    return root, sub


def _bare(found: list[CheckpointTuple], thread: str) -> list[Any]:
    """The checkpoints with the thread's name taken out of their configs."""
    for item in found:
        for config in (item.config, item.parent_config):
            if config is not None:
                assert inside(config).pop("thread_id") == thread
    return [tuple(item) for item in found]


async def _parts(store: Store, thread: str, first: int = 99) -> tuple[list[Batch], tuple[str, ...] | None]:
    """The first parts of an export, small ones, and where it goes on."""
    parts: list[Batch] = []
    after: tuple[str, ...] | None = None
    while len(parts) < first:
        part = await store.export(thread, after, 12)
        assert part is not None
        parts.append(part)
        if (after := part.cursor) is None:
            break
    return parts, after


async def _rest(store: Store, thread: str, after: tuple[str, ...]) -> list[Batch]:
    """What comes after that. Nothing may end an export but its last part."""
    parts: list[Batch] = []
    cursor: tuple[str, ...] | None = after
    while cursor is not None:
        part = await store.export(thread, cursor, 12)
        assert part is not None
        parts.append(part)
        cursor = part.cursor
    return parts


def _whole(parts: list[Batch]) -> dict[Any, Any]:
    """Each checkpoint as it was handed out last, with all pending writes that were handed out of it."""
    rows = {(row.ns, row.id): (row.parent, row.header) for part in parts for row in part.rows}
    writes = {(ns, id): set[Any]() for ns, id in rows}
    for part in parts:
        for ns, id, write in part.writes:
            writes.setdefault((ns, id), set()).add(write[:5])
    return {place: (rows.get(place), writes[place]) for place in writes}


class Prune(Behaviours):
    """`prune` by "keep_latest" keeps the latest checkpoint of each namespace, whole."""

    async def test_the_latest_of_each_namespace_stays(self, lab: Lab) -> None:
        root, sub = await _busy(lab.saver)
        heads = [await lab.saver.got(chain.latest) for chain in (root, sub)]
        await lab.saver.prune(["thread", "nobody"])
        async for saver in lab.views():
            for chain, head in zip((root, sub), heads, strict=True):
                found = await saver.got(chain.latest)
                assert_same(head._replace(parent_config=None), found._replace(parent_config=None))
                assert await saver.ids(chain.latest) == [chain.head]
            assert (await saver.stats("thread")).checkpoints == 2

    async def test_a_pinned_one_is_replayed_as_before(self, lab: Lab) -> None:
        root, child = Chain(lab.saver), Chain(lab.saver, ns="child")
        for number in range(1, 5):
            await root.put({"n": number}, metadata={"pinned": number == 3})
            await child.put({"y": number}, metadata={"parents": {"": f"{number:04}"}}, id=f"{number:04}c")
        await lab.saver.prune(["thread"])
        async for saver in lab.views():
            assert await saver.ids(root.latest) == ["0004", "0003"]
            assert await saver.ids(child.latest) == ["0004c", "0002c"]
            assert await saver.ids(child.latest, before=root.at("0003"), limit=1) == ["0002c"]

    @pytest.mark.parametrize("source", ["update", "fork"])
    async def test_a_fork_that_is_the_latest_goes_on_as_before(self, lab: Lab, source: str) -> None:
        """A subgraph that remembers is read as of the fork's parent, as after `maintain`."""
        for thread in ("pruned", "maintained"):
            root, child = Chain(lab.saver, thread), Chain(lab.saver, thread, ns="child")
            for number in range(1, 4):
                await root.put({"n": number})
                await child.put({"y": number}, metadata={"parents": {"": f"{number:04}"}}, id=f"{number:04}c")
            await root.put({"n": 9}, parent="0002", metadata={"source": source})
        await lab.saver.prune(["pruned"])
        await lab.saver.maintain(Retention(keep_last=1), threads=["maintained"])
        async for saver in lab.views():
            for thread in ("pruned", "maintained"):
                assert await saver.ids(at(thread)) == ["0004", "0002"]
                assert await saver.ids(at(thread, "child"), before=at(thread, "", "0002"), limit=1) == ["0001c"]
            assert await saver.ids(at("pruned", "child")) == await saver.ids(at("maintained", "child"))

    async def test_room_is_given_back(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(20):
            await chain.put({"text": f"{number} " + " ".join(f"{number * place * 7919:x}" for place in range(2000))})
        before = (await lab.saver.stats("thread")).bytes
        await lab.saver.prune(["thread"])
        async for saver in lab.views():
            assert (await saver.stats("thread")).bytes < before / 5
            assert (await saver.stats("thread")).packs == 1

    async def test_writes_ahead_of_their_checkpoint_stay(self, lab: Lab) -> None:
        root, _ = await _busy(lab.saver)
        await lab.saver.prune(["thread"])
        await root.put({"n": 1}, id="9999")
        async for saver in lab.views():
            writes = (await saver.got(root.latest)).pending_writes
            assert_same([("task", "ahead", AHEAD)], writes)

    async def test_a_kept_checkpoint_has_no_parent_that_went(self, lab: Lab) -> None:
        root, _ = await _busy(lab.saver)
        await lab.saver.prune(["thread"])
        found = await lab.saver.got(root.latest)
        if found.parent_config is not None:
            assert await lab.saver.get(found.parent_config) is not None

    async def test_the_head_by_lineage_stays(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for id in ("m", "b", "c"):
            await chain.put({"x": id}, id=id)
        await lab.saver.prune(["thread"])
        assert await chain.ids() == ["c"]
        # The order outlives the parents that made it.
        await chain.put({"x": "late"}, id="d", parent="")
        assert await chain.ids() == ["c", "d"]
        await chain.put({"x": "next"}, id="a", parent="c")
        assert await chain.ids() == ["a", "c", "d"]

    async def test_the_run_goes_on_and_history_grows_again(self, lab: Lab) -> None:
        root, _ = await _busy(lab.saver)
        for number in range(4):
            values = await root.values()
            await root.put({"m": [*values["m"], HumanMessage(f"after {number}", id=f"a{number}")], "n": number})
            await lab.saver.prune(["thread"])
            assert len((await root.values())["m"]) == 7 + number
        async for saver in lab.views():
            values = (await saver.got(root.latest)).checkpoint["channel_values"]
            assert [one.id for one in values["m"]] == ["0", "1", "2", "3", "4", "5", "a0", "a1", "a2", "a3"]

    async def test_pruned_twice_is_pruned_once(self, lab: Lab) -> None:
        root, _ = await _busy(lab.saver)
        await lab.saver.prune(["thread"])
        once = await lab.saver.list(None)
        await lab.saver.prune(["thread", "thread"])
        assert_same(once, await lab.saver.list(None))
        assert await root.ids() == ["0006"]

    async def test_other_threads_are_left_alone(self, lab: Lab) -> None:
        await _busy(lab.saver)
        await _busy(lab.saver, "other")
        before = await lab.saver.list(at("other", None))
        await lab.saver.prune(["thread"])
        assert_same(before, await lab.saver.list(at("other", None)))

    async def test_nothing_to_do(self, lab: Lab) -> None:
        await lab.saver.prune([])
        await lab.saver.prune(["nobody"], "delete")
        assert await lab.saver.threads() == ()
        await lab.saver.put_writes(at("ahead", "", "1"), [("x", 1)])
        await lab.saver.prune(["ahead"])
        await lab.saver.put(at("ahead"), checkpoint("1", {}))
        assert (await lab.saver.got(at("ahead"))).pending_writes == [("task", "x", 1)]

    async def test_a_call_that_waits_stays_with_its_root(self, lab: Lab) -> None:
        root, call = Chain(lab.saver), Chain(lab.saver, ns="node:0001|inner:0002")
        await root.put({"x": 1})
        await root.put({"x": 2})
        for number in range(3):
            await call.put({"y": number}, metadata={"parents": {"": "0002"}})
        await call.writes(("__interrupt__", "go on?"))
        # One of two parallel calls was approved, the other one waits: nothing of that may be forgotten.
        await root.writes(("x", "approved"), task="t1")
        await root.writes(("__interrupt__", "go on?"), ("__resume__", ["yes"]), task="t2")
        heads = [await lab.saver.got(chain.latest) for chain in (root, call)]
        await lab.saver.prune(["thread"])
        async for saver in lab.views():
            for chain, head in zip((root, call), heads, strict=True):
                found = await saver.got(chain.latest)
                assert_same(head._replace(parent_config=None), found._replace(parent_config=None))
            assert [row.waiting for row in await saver.threads()] == [True]

    async def test_any_collection_of_threads(self, lab: Lab) -> None:
        for kind in (list, tuple, set, frozenset):
            await _busy(lab.saver, kind.__name__)
            await lab.saver.prune(cast("Any", kind([kind.__name__])))
            assert len(await lab.saver.ids(at(kind.__name__))) == 1
            await lab.saver.delete_for_runs(cast("Any", kind(["run 2"])))
            assert await lab.saver.ids(at(kind.__name__)) == []

    async def test_prune_while_others_write(self, lab: Lab) -> None:
        writers = [Chain(lab.open(), ns=ns) for ns in ("", "one", "two")]
        messages = [HumanMessage("words " * 50, id=str(number)) for number in range(20)]

        async def write(chain: Chain) -> None:
            for number in range(1, 21):
                await chain.put({"m": messages[:number]})
                await chain.writes(("m", messages[:number]), ("__error__", "e"))

        async def prune() -> None:
            for _ in range(15):
                try:
                    await lab.saver.prune(["thread"])
                except Conflict:
                    continue  # the writers were faster, as they may be
                for chain in writers:
                    found = await lab.saver.get(chain.latest)
                    if found is not None:
                        count = int(found.checkpoint["id"])
                        assert_same(messages[:count], found.checkpoint["channel_values"]["m"])

        await lab.together(*[lambda chain=chain: write(chain) for chain in writers], prune)
        await lab.saver.prune(["thread"])
        async for saver in lab.views():
            for chain in writers:
                found = await saver.got(chain.latest)
                assert_same(messages, found.checkpoint["channel_values"]["m"])
                assert_same([("task", "__error__", "e"), ("task", "m", messages)], found.pending_writes)
                assert await saver.ids(chain.latest) == ["0020"]


class Generations(Behaviours):
    """A saver whose knowledge of a thread is over finds out, and sends what is missing."""

    async def test_a_put_after_another_savers_prune(self, lab: Lab) -> None:
        mine = Chain(lab.saver)
        items = [HumanMessage(f"{number} " + "words " * 100, id=str(number)) for number in range(20)]
        await mine.put({"m": items, "large": "x" * 5000})
        await mine.put({"m": items[10:], "large": "x" * 5000})
        await lab.open().prune(["thread"])
        # All of these are addresses that the prune deleted, or of another generation.
        lab.saver.events.clear()
        await mine.put({"m": items, "large": "x" * 5000}, changed=("m",))
        assert [event.outcome for event in lab.saver.events if event.op == "put"] == ["stale"]
        async for saver in lab.views():
            values = (await saver.got(mine.latest)).checkpoint["channel_values"]
            assert_same({"m": items, "large": "x" * 5000}, values)

    async def test_writes_after_another_savers_prune(self, lab: Lab) -> None:
        mine = Chain(lab.saver)
        item = HumanMessage("words " * 100, id="1")
        await mine.put({"m": [item]})
        await mine.put({"m": []})
        await lab.open().prune(["thread"])
        await mine.writes(("m", [item]), ("m", item))
        await mine.put({"m": [item]})
        async for saver in lab.views():
            assert_same([("task", "m", [item]), ("task", "m", item)], (await saver.got(mine.at("0002"))).pending_writes)
            assert_same([item], (await saver.got(mine.latest)).checkpoint["channel_values"]["m"])

    async def test_a_put_after_deletion_and_a_new_start_by_another(self, lab: Lab) -> None:
        mine = Chain(lab.saver)
        items = [HumanMessage(f"{number} " + "words " * 100, id=str(number)) for number in range(20)]
        await mine.put({"m": items})
        other = lab.open()
        await other.delete_thread("thread")
        theirs = Chain(other)
        await theirs.put({"m": items[:1]}, id="a001")
        await lab.saver.put(at("thread", "", "a001"), checkpoint("a002", {"m": items}))
        async for saver in lab.views():
            assert_same(items, (await saver.got(theirs.latest)).checkpoint["channel_values"]["m"])

    async def test_two_savers_take_turns(self, lab: Lab) -> None:
        savers = [lab.saver, lab.open()]
        chain = Chain(savers[0])
        items: list[Any] = []
        for number in range(24):
            chain.saver = savers[number % 2]
            items = (await chain.values())["m"] if number else []
            items.append(HumanMessage(f"{number} " + "words " * 100, id=str(number)))
            await chain.writes(("m", items[-1])) if number else None
            await chain.put({"m": items})
            if number % 5 == 4:
                await savers[(number // 5) % 2].prune(["thread"])
        async for saver in lab.views():
            values = (await saver.got(chain.latest)).checkpoint["channel_values"]
            assert [one.id for one in values["m"]] == [str(number) for number in range(24)]


class Runs(Behaviours):
    """`delete_for_runs` removes the checkpoints of runs, wherever they are."""

    async def test_they_go_and_the_rest_stays(self, lab: Lab) -> None:
        root, sub = await _busy(lab.saver)
        await _busy(lab.saver, "other")
        await lab.saver.delete_for_runs(["run 1", "no such run"])
        async for saver in lab.views():
            for chain in (root, sub, Chain(saver, "other"), Chain(saver, "other", "sub")):
                assert await saver.ids(chain.latest) == ["0006", "0005", "0002", "0001"]
                assert id_of((await saver.got(chain.at("0005"))).parent_config) == "0002"
                assert await saver.get(chain.at("0003")) is None
            found = await saver.got(root.at("0005"))
            assert len(found.checkpoint["channel_values"]["m"]) == 5
            assert found.pending_writes is not None
            assert len(found.pending_writes) == 3

    async def test_the_newest_run_goes(self, lab: Lab) -> None:
        root, _ = await _busy(lab.saver)
        wanted = await lab.saver.got(root.at("0004"))
        await lab.saver.delete_for_runs(["run 2"])
        async for saver in lab.views():
            assert_same(wanted, await saver.got(root.latest))
        root.saver, root.head = lab.saver, "0004"
        await root.put({"m": [], "n": 0})
        assert await root.ids() == ["0007", "0004", "0003", "0002", "0001"]

    async def test_every_run_goes(self, lab: Lab) -> None:
        root, sub = await _busy(lab.saver)
        await lab.saver.delete_for_runs(["run 0", "run 1", "run 2"])
        for chain in (root, sub):
            assert await lab.saver.get(chain.latest) is None
        await root.put({"x": 1}, id="9999", parent="")
        assert len((await lab.saver.got(root.latest)).pending_writes or ()) == 1, "the writes ahead are gone"

    async def test_run_ids_are_literal(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        ids = ["r", "r*", "r%", "R", "r'", "r\\", "7", "x" * 300]
        for id in ids:
            await chain.put({}, metadata={"run_id": id})
        await chain.put({}, metadata={"run": "r"})
        await lab.saver.delete_for_runs([])
        await lab.saver.delete_for_runs(["r*", "x" * 300, "7"])
        left = [item.metadata.get("run_id") for item in await lab.saver.list(chain.latest)]
        assert left == [None, "r\\", "r'", "R", "r%", "r"]

    async def test_the_run_id_of_the_config_counts(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({}, config={"run_id": "mine"})
        await chain.put({})
        await lab.saver.delete_for_runs(["mine"])
        assert await chain.ids() == ["0002"]


class Copies(Behaviours):
    """`copy_thread` copies everything, and shares nothing."""

    async def test_everything_comes_along(self, lab: Lab) -> None:
        await _busy(lab.saver)
        await lab.saver.copy_thread("thread", "copy")
        async for saver in lab.views():
            wanted = _bare(await saver.list(at("thread", None)), "thread")
            assert_same(wanted, _bare(await saver.list(at("copy", None)), "copy"))
            assert (await saver.stats("copy"))[:3] == (await saver.stats("thread"))[:3]

    async def test_writes_ahead_and_task_paths_come_along(self, lab: Lab) -> None:
        root, _ = await _busy(lab.saver)
        await lab.saver.copy_thread("thread", "copy")
        copy = Chain(lab.saver, "copy")
        found = await lab.saver.got(copy.at("0006"))
        assert found.pending_writes is not None
        assert [(task, channel) for task, channel, _ in found.pending_writes] == [("b", "n"), ("b", "m"), ("a", "n")]
        await copy.put({"n": 1}, id="9999", parent="0006")
        assert_same([("task", "ahead")], [one[:2] for one in (await lab.saver.got(copy.latest)).pending_writes or ()])
        assert (await lab.saver.got(root.latest)).checkpoint["id"] == "0006"

    async def test_order_by_lineage_comes_along(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for id in ("m", "b", "a", "c"):
            await chain.put({"x": id}, id=id)
        await lab.saver.copy_thread("thread", "copy")
        assert await lab.saver.ids(at("copy")) == ["c", "a", "b", "m"]

    async def test_the_two_are_independent(self, lab: Lab) -> None:
        await _busy(lab.saver)
        await lab.saver.copy_thread("thread", "copy")
        wanted = await lab.saver.list(at("copy", None))
        await lab.saver.prune(["thread"])
        await lab.saver.delete_thread("thread")
        async for saver in lab.views():
            assert_same(wanted, await saver.list(at("copy", None)))
        copy = Chain(await lab.reopen(), "copy")
        copy.head = "0006"
        values = await copy.values()
        await copy.put({"m": [*values["m"], HumanMessage("more")], "n": 7}, id="0007")
        assert len((await copy.values())["m"]) == 7

    async def test_copied_twice(self, lab: Lab) -> None:
        root, _ = await _busy(lab.saver)
        await lab.saver.copy_thread("thread", "copy")
        once = await lab.saver.list(at("copy", None))
        await lab.saver.copy_thread("thread", "copy")
        assert_same(once, await lab.saver.list(at("copy", None)))
        await root.put({"m": [], "n": 0})
        await lab.saver.copy_thread("thread", "copy")
        assert len(await lab.saver.list(at("copy", None))) == len(once) + 1

    async def test_onto_a_thread_of_its_own_history(self, lab: Lab) -> None:
        await _busy(lab.saver)
        other = Chain(lab.saver, "other")
        await other.put({"x": 1}, id="of its own")
        await other.writes(("x", 2))
        before = await lab.saver.list(at("other", None))
        with pytest.raises(Conflict) as caught:
            await lab.saver.copy_thread("thread", "other")
        assert caught.value.thread == "other"
        assert_same(before, await lab.saver.list(at("other", None)))

    async def test_onto_a_deleted_thread(self, lab: Lab) -> None:
        await _busy(lab.saver)
        await lab.saver.copy_thread("thread", "copy")
        await lab.saver.delete_thread("copy")
        await lab.saver.copy_thread("thread", "copy")
        copy = Chain(lab.saver, "copy")
        copy.head = "0006"
        await copy.put({"n": 1}, id="0007")
        assert len(await copy.ids()) == 7

    async def test_a_copy_ends_what_was_refused_before(self, lab: Lab) -> None:
        source, target = Chain(lab.saver, "source"), Chain(lab.saver, "target")
        await source.put({"x": 1})
        await target.put({"x": 1})
        await lab.saver.delete_thread("target")
        with pytest.raises(ThreadDeleted):
            await target.writes(("x", 2))
        await lab.saver.copy_thread("source", "target")
        # The checkpoint is back, because somebody wanted it: the run may go on from it.
        await target.put({"x": 2})
        assert await target.ids() == ["0002", "0001"]

    @pytest.mark.parametrize("how", ["shortened", "deleted", "begun anew"])
    async def test_what_is_taken_away_meanwhile(
        self, lab: Lab, how: Literal["shortened", "deleted", "begun anew"]
    ) -> None:
        """An export tells all of what was there, or is refused. It is never of two states of the thread."""
        store = await store_of(lab.saver)
        for first in count(1):
            await _busy(lab.saver, thread := f"thread {first}")
            before = _whole((await _parts(store, thread))[0])
            parts, after = await _parts(store, thread, first)
            if how == "shortened":
                await lab.saver.prune([thread])
            else:
                await lab.saver.delete_thread(thread)
            if how == "begun anew":
                await Chain(lab.saver, thread).put({"n": 1}, id="9998")
            try:
                parts += await _rest(store, thread, after) if after is not None else ()
            except Conflict:
                continue
            assert _whole(parts) == before
            if after is None:
                break

    async def test_what_is_rewritten_meanwhile(self, lab: Lab) -> None:
        """Of each checkpoint, an export has the old one with its writes, or the new one."""
        store = await store_of(lab.saver)
        for first in count(1):
            await _busy(lab.saver, thread := f"thread {first}")
            before = _whole((await _parts(store, thread))[0])
            parts, after = await _parts(store, thread, first)
            chart = await store.chart(thread)
            assert chart is not None
            rows = tuple(row._replace(header=chart.rows[0].header) for row in chart.rows if row.id >= "0003")
            writes = (("", "0006", chart.writes["", "0006"][0]._replace(task="new")),)
            assert await store.rewrite(thread, Batch(rows, writes), chart.token)
            now = _whole((await _parts(store, thread))[0])
            try:
                parts += await _rest(store, thread, after) if after is not None else ()
            except Conflict:
                continue
            assert {place for place, one in _whole(parts).items() if one not in (before[place], now[place])} == set()
            if after is None:
                break

    async def test_a_copy_of_more_than_a_page(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(300):
            await chain.put({"n": number, "text": str(number) * 30})
        await lab.saver.copy_thread("thread", "copy")
        found = await lab.saver.list(at("copy"))
        assert [item.checkpoint["channel_values"]["n"] for item in found] == [*range(299, -1, -1)]


class Overview(Behaviours):
    """`threads` and `stats` count, without reading channel data."""

    async def test_a_row_for_each_thread(self, lab: Lab) -> None:
        root, _ = await _busy(lab.saver, "a")
        await Chain(lab.saver, "b").put({"x": 1})
        await lab.saver.put_writes(at("b", "", "0001"), [("__interrupt__", "go on?")])
        async for saver in lab.views():
            rows = {row.thread: row for row in await saver.threads()}
            assert rows.keys() == {"a", "b"}
            row = rows["a"]
            assert (row.head, row.namespaces, row.checkpoints, row.writes) == ("0006", 2, 12, 37)
            assert row.bytes > 3_000
            assert 0 < row.created_at <= row.updated_at
            assert (rows["a"].waiting, rows["b"].waiting) == (False, True)
            assert rows["b"].head == "0001"
        await lab.saver.put(at("b", "", "0001"), checkpoint("0002", {"x": 2}))
        assert [row.waiting for row in await lab.saver.threads()] == [False, False]
        assert root.head == "0006"

    async def test_more_threads_than_a_page(self, lab: Lab) -> None:
        for number in range(150):
            await lab.saver.put(at(f"t{number}"), checkpoint("1", {}))
        found = [row.thread for row in await lab.saver.threads()]
        assert sorted(found) == sorted(f"t{number}" for number in range(150))

    async def test_stats_of_a_thread_and_of_the_store(self, lab: Lab) -> None:
        await _busy(lab.saver, "a", 3)
        await _busy(lab.saver, "b", 2)
        async for saver in lab.views():
            a, b, both, nobody = [await saver.stats(thread) for thread in ("a", "b", None, "nobody")]
            assert a[:3] == (1, 6, 19)
            assert b[:3] == (1, 4, 13)
            assert both[:4] == tuple(one + other for one, other in zip(a[:4], b[:4], strict=True))
            assert nobody[:4] == (0, 0, 0, 0)
            assert both.bytes >= max(a.bytes, b.bytes) > 0
