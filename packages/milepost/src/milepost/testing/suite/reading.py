"""Which checkpoint is the latest, what `list` finds and in which order, and that reading changes nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import CheckpointTuple

from milepost.errors import InvalidConfig
from milepost.observe import thread_hash
from milepost.retention import Retention
from milepost.store import Batch
from milepost.testing.chain import Chain, at, checkpoint, id_of, inside
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours

KEYS = {"k": bytes(range(32))}


class Latest(Behaviours):
    """Latest is decided by lineage, then by id; never by the time of the put."""

    async def test_nothing_is_there(self, lab: Lab) -> None:
        assert await lab.saver.get(at("nobody")) is None
        assert await lab.saver.get(at("nobody", "ns", "id")) is None
        assert await lab.saver.list(at("nobody")) == []
        assert await lab.saver.list(None) == []
        assert dict(await lab.saver.history(at("nobody"), ["x"])) == {"x": {"writes": []}}
        await lab.saver.delete_thread("nobody")
        await lab.saver.prune(["nobody"])
        await lab.saver.copy_thread("nobody", "elsewhere")
        await lab.saver.delete_for_runs(["no run"])
        assert await lab.saver.threads() == ()
        assert (await lab.saver.stats("nobody"))[:4] == (0, 0, 0, 0)

    async def test_the_greatest_id_is_latest(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for id in ("b", "d", "a", "c"):
            await chain.put({"x": id}, id=id, parent="")
        assert id_of((await lab.saver.got(chain.latest)).config) == "d"
        assert await chain.ids() == ["d", "c", "b", "a"]

    async def test_ids_are_compared_by_code_point(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        ids = ["10", "9", "A", "a", "ä", "z", "Z", "\U0001f600", "\uffee", "a b", "a_b", "a-b", "2-inner", "z-older"]
        for id in ids:
            await chain.put({"x": id}, id=id, parent="")
        assert await chain.ids() == sorted(ids, reverse=True)

    async def test_a_child_is_later_than_its_parent(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1}, id="2026-12:00:02")
        await chain.put({"x": 2}, id="2026-12:00:00")
        await chain.put({"x": 3}, id="2026-12:00:01")
        async for saver in lab.views():
            assert id_of((await saver.got(chain.latest)).config) == "2026-12:00:01"
            assert await saver.ids(chain.latest) == ["2026-12:00:01", "2026-12:00:00", "2026-12:00:02"]
            before = await saver.ids(chain.latest, before=chain.at("2026-12:00:01"))
            assert before == ["2026-12:00:00", "2026-12:00:02"]

    async def test_a_clock_that_is_behind_for_long(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        ids = ["m", *[f"{number:03}" for number in range(40)], "c", "b", "a"]
        for id in ids:
            await chain.put({"x": id}, id=id)
        await chain.put({"x": "at last"}, id="n")
        assert await chain.ids() == ["n", *reversed(ids)]
        assert (await chain.values())["x"] == "at last"

    async def test_a_parent_that_is_not_stored_counts_by_its_id(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await lab.saver.put(chain.at("5"), checkpoint("1", {"x": 1}))
        await lab.saver.put(at("thread"), checkpoint("3", {"x": 3}))
        assert await chain.ids() == ["1", "3"]

    async def test_an_older_checkpoint_put_again_does_not_rewind(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(3):
            await chain.put({"x": number})
        await chain.put({"x": "again"}, id="0001", parent="")
        assert await chain.ids() == ["0003", "0002", "0001"]
        assert (await chain.values())["x"] == 2
        assert (await chain.values("0001"))["x"] == "again"

    async def test_a_late_put_of_an_old_id_is_not_latest(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1}, id="a")
        await chain.put({"x": 3}, id="c")
        await chain.put({"x": 2}, id="b", parent="a")
        assert await chain.ids() == ["c", "b", "a"]

    async def test_each_namespace_has_its_own(self, lab: Lab) -> None:
        root, sub = Chain(lab.saver), Chain(lab.saver, ns="sub:1|sub:2")
        await root.put({"x": "root"}, id="a")
        await sub.put({"x": "sub"}, id="z")
        assert (await root.values())["x"] == "root"
        assert (await sub.values())["x"] == "sub"
        assert (await lab.saver.got(at("thread", None))).checkpoint["id"] == "a"

    async def test_a_config_names_a_checkpoint_or_the_latest(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        await chain.put({"x": 2})
        for latest in (at("thread", None), at("thread", ""), at("thread", "", ""), at("thread", checkpoint_id=None)):
            found = await lab.saver.got(latest)
            assert found.checkpoint["id"] == "0002"
            assert found.config == chain.at("0002")
            assert found.parent_config == chain.at("0001")
        assert (await lab.saver.got(chain.at("0001"))).parent_config is None
        assert await lab.saver.get(chain.at("0003")) is None, "an unknown id is not the latest"
        assert await lab.saver.get(chain.at("000")) is None
        assert await lab.saver.get(at("thread", "other")) is None

    async def test_reading_does_not_write(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(4):
            await chain.put({"x": [number] * 100})
            await chain.writes(("x", number))
        stats, rows = await lab.saver.stats(), await lab.saver.threads()
        before = await lab.saver.list(None)
        for _ in range(2):
            await lab.saver.got(chain.latest)
            await lab.saver.history(chain.latest, ["x"])
            assert_same(before, await lab.saver.list(None))
        assert await lab.saver.stats() == stats
        assert await lab.saver.threads() == rows
        reader = await lab.reopen()
        await reader.got(chain.latest)
        assert await reader.stats() == stats

    async def test_readers_see_the_old_head_or_the_new_one(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put(_state(0))
        over = threading.Event()

        async def write() -> None:
            try:
                for number in range(1, 40):
                    await chain.put(_state(number))
            finally:
                over.set()

        async def read() -> None:
            seen = 0
            reader = lab.open()
            while not over.is_set():
                found = await reader.got(chain.latest)
                number = found.checkpoint["channel_values"]["n"]
                assert number >= seen, f"the head went back from {seen} to {number}"
                assert_same(_state(number), found.checkpoint["channel_values"])
                seen = number

        await lab.together(write, read, read)


def _state(number: int) -> dict[str, Any]:
    return {
        "n": number,
        "list": [HumanMessage(f"{at} of many words", id=str(at)) for at in range(number)],
        "same": [number] * 50,
    }


class Listing(Behaviours):
    """One rule for each argument of `list`."""

    async def test_all_threads_and_namespaces_newest_first(self, lab: Lab) -> None:
        wanted = await _populate(lab.saver)
        everything = await lab.saver.list(None)
        assert _places(everything) == sorted(wanted, key=lambda place: (place[2], place[0], place[1]), reverse=True)
        of_a = await lab.saver.list(at("a", None))
        assert _places(of_a) == sorted((p for p in wanted if p[0] == "a"), key=lambda p: (p[2], p[1]), reverse=True)
        assert {place[1] for place in _places(await lab.saver.list(at("a")))} == {""}
        assert {place[1] for place in _places(await lab.saver.list(at("a", "sub:1")))} == {"sub:1"}
        assert _places(await lab.saver.list(at("b", None, "0003"))) == [("b", "sub:1", "0003"), ("b", "", "0003")]

    async def test_a_config_with_an_id_lists_that_checkpoint(self, lab: Lab) -> None:
        await _populate(lab.saver)
        assert _places(await lab.saver.list(at("a", "", "0002"))) == [("a", "", "0002")]
        assert await lab.saver.list(at("a", "", "nothing")) == []
        assert len(await lab.saver.list(at("a", "", checkpoint_id=None))) == 5

    async def test_limits(self, lab: Lab) -> None:
        await _populate(lab.saver)
        for limit, count in ((0, 0), (1, 1), (2, 2), (5, 5), (6, 5), (None, 5)):
            assert len(await lab.saver.list(at("a"), limit=limit)) == count, f"limit={limit}"
        for bad in (-1, True, 1.5, "2"):
            with pytest.raises(InvalidConfig):
                await lab.saver.list(at("a"), limit=bad)

    async def test_before(self, lab: Lab) -> None:
        await _populate(lab.saver)
        saver = lab.saver
        assert await saver.ids(at("a"), before=at("a", "", "0003")) == ["0002", "0001"]
        assert await saver.ids(at("a"), before={"configurable": {"checkpoint_id": "0003"}}) == ["0002", "0001"]
        assert await saver.ids(at("a"), before=at("a", "", "0003"), limit=1) == ["0002"]
        assert await saver.ids(at("a"), before=at("a", "", "0001")) == []
        # An id that is not of this namespace is compared as it stands.
        assert await saver.ids(at("a"), before=at("a", "", "00025")) == ["0002", "0001"]
        assert await saver.ids(at("a", "sub:1"), before=at("b", "", "0002")) == ["0001"]
        # Without an id there is no bound.
        assert len(await saver.ids(at("a"), before=at("a"))) == 5
        assert len(await saver.ids(at("a"), before={"configurable": {}})) == 5

    async def test_before_goes_by_the_order_of_each_namespace(self, lab: Lab) -> None:
        root, sub = Chain(lab.saver), Chain(lab.saver, ns="sub")
        for id in ("m", "b", "c"):  # "b" and "c" sort after their parent "m"
            await root.put({}, id=id)
        for id in ("a", "b", "n"):
            await sub.put({}, id=id)
        assert await lab.saver.ids(root.latest, before=root.at("c")) == ["b", "m"]
        assert await lab.saver.ids(root.latest, before=root.at("b")) == ["m"]
        assert await lab.saver.ids(root.latest, before=root.at("n")) == ["c", "b", "m"]
        assert await lab.saver.ids(root.latest, before=root.at("a")) == []
        both = await lab.saver.list(at("thread", None), before=root.at("b"))
        assert set(_places(both)) == {("thread", "", "m"), ("thread", "sub", "a")}

    async def test_filters_take_keys_literally(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        kinds: list[dict[str, Any]] = [
            {"user.name": "a"},
            {"user": {"name": "a"}},
            {"tags": []},
            {"tags": ["x"]},
            {"missing": None},
            {"score": 1},
            {"score": 1.5},
            {"flag": True},
            {"x') OR 1=1 --": 1},
            {"$.a": 1},
            {"a[0]": "b"},
            {"ключ": "значение"},
            {"q": "a'b\"c\\d%e_f*"},
            {"long": "x" * 2000},
            {"huge": 2**80},
            {"x\x00y": "nul"},
        ]
        for kind in kinds:
            await chain.put({}, metadata=kind)
        saver = await lab.reopen()
        for number, kind in enumerate(kinds):
            found = await saver.ids(chain.latest, filter=kind)
            if kind != {"missing": None}:
                assert found == [f"{number + 1:04}"], f"filter {kind} found {found}"
        assert len(await saver.ids(chain.latest, filter={"missing": None})) == len(kinds)
        for nothing in (
            {"user": "a"},
            {"x": 1},
            {"user.name": "b"},
            {"tags": ["y"]},
            {"q": "a'b"},
            {"1": 1},
            {"score": 2},
        ):
            assert await saver.ids(chain.latest, filter=nothing) == [], nothing
        assert len(await saver.ids(None, filter={})) == len(kinds)
        assert await saver.ids(chain.latest, filter={"score": 1, "step": 6}) == ["0006"]
        assert await saver.ids(chain.latest, filter={"score": 1, "step": 7}) == []

    async def test_filters_compare_arrays_as_wholes(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        numpy = pytest.importorskip("numpy")
        values = (numpy.arange(3), numpy.arange(2), numpy.array([0, 1, 3]), numpy.array(1), 1, "x")
        for value in values:
            await chain.put({}, metadata={"x": value})
        for wanted, ids in (
            (numpy.arange(3), ["0001"]), (numpy.arange(2), ["0002"]), (numpy.zeros(3), []), (numpy.zeros(0), []),
            (1, ["0005", "0004"]), (numpy.array(1), ["0005", "0004"]), ("x", ["0006"]), (None, []),
        ):  # fmt: skip
            assert await lab.saver.ids(chain.latest, filter={"x": wanted}) == ids, wanted

    async def test_filters_with_limit_and_before(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(30):
            await chain.put({"x": number}, metadata={"even": number % 2 == 0})
        assert await lab.saver.ids(chain.latest, filter={"even": True}, limit=3) == ["0029", "0027", "0025"]
        found = await lab.saver.ids(chain.latest, filter={"even": True}, before=chain.at("0027"), limit=2)
        assert found == ["0025", "0023"]

    @pytest.mark.parametrize("keys", [None, KEYS])
    async def test_a_filter_stops_at_nothing_damaged(self, lab: Lab, keys: Any) -> None:
        saver = lab.open(keys=keys)
        for thread in ("t", "u"):
            chain = Chain(saver, thread)
            for number in range(3):
                await chain.put({"x": number}, metadata={"even": number % 2 == 0, "odd": [number % 2]})
        store = lab.store_of(saver)
        chart = await store.chart("t")
        assert chart is not None
        (head,) = (row for row in chart.rows if row.id == "0003")
        torn = head._replace(header=head.header[:-1] + bytes([head.header[-1] ^ 1]))
        assert await store.rewrite("t", Batch((torn,), (), ()), chart.token)
        for wanted, t, u in (
            (None, ["0002", "0001"], ["0003", "0002", "0001"]),
            ({"even": True}, ["0001"], ["0003", "0001"]),
            ({"odd": [0]}, ["0001"], ["0003", "0001"]),
        ):
            assert await saver.ids(at("t"), filter=wanted) == t
            assert await saver.ids(at("u"), filter=wanted) == u
            assert sorted(await saver.ids(None, filter=wanted)) == sorted([*t, *u])
        assert [event for event in saver.events if event.outcome == "fallback"]

    async def test_damage_is_told_once_and_without_the_name_of_the_thread(
        self, lab: Lab, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = "it's Ann"
        saver = lab.open()
        chain = Chain(saver, name)
        for number in range(3):
            await chain.put({"x": number})
        store = lab.store_of(saver)
        chart = await store.chart(name)
        assert chart is not None
        (head,) = (row for row in chart.rows if row.id == "0003")
        torn = head._replace(header=head.header[:-1] + bytes([head.header[-1] ^ 1]))
        assert await store.rewrite(name, Batch((torn,), (), ()), chart.token)
        reader = lab.open()
        for read in (
            reader.got(at(name)),
            reader.ids(at(name)),
            reader.ids(None),
            reader.maintain(Retention(keep_last=1)),
        ):
            reader.events.clear()
            caplog.clear()
            await read
            told = [event for event in reader.events if event.outcome == "fallback"]
            assert len(told) <= 1
            assert all("'0003'" in event.error and "passed over" in event.error for event in told)
            records = [one.getMessage() for one in caplog.records if one.name == "milepost"]
            assert len(records) == 1
            assert thread_hash(name) in records[0]
            assert name not in "".join([*records, *(event.error for event in reader.events)])

    async def test_a_filter_that_few_pass_takes_few_pages(self, lab: Lab) -> None:
        """Where the store cannot tell, more are looked at each time."""
        saver = lab.open(keys=KEYS)
        chain = Chain(saver)
        for number in range(60):
            await chain.put({"x": number})
        store: Any = (saver.saver.blocking_side() if lab.flavour == "blocking" else saver.saver.async_side()).store
        page, pages = store.page, []

        async def counted(*arguments: Any, **options: Any) -> Any:
            pages.append(arguments)
            return await page(*arguments, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "page", counted, raising=True)
            assert await saver.ids(chain.latest, filter={"step": -9}, limit=1) == []
            assert len(pages) <= 6
            assert await saver.ids(chain.latest, limit=1) == ["0060"]

    async def test_more_than_a_page(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(150):
            await chain.put({"x": number}, metadata={"tenth": number % 10 == 0})
        ids = [f"{number:04}" for number in range(150, 0, -1)]
        assert await chain.ids() == ids
        assert [item.checkpoint["channel_values"]["x"] for item in await lab.saver.list(chain.latest)] == [
            *range(149, -1, -1)
        ]
        assert await lab.saver.ids(chain.latest, limit=100) == ids[:100]
        assert len(await lab.saver.ids(chain.latest, filter={"tenth": True})) == 15
        assert len(await lab.saver.ids(chain.latest, filter={"tenth": True}, limit=12)) == 12

    async def test_reading_and_writing_while_listing(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(90):
            await chain.put({"x": number})
        seen: list[str] = []
        async for item in lab.saver.each(chain.latest):
            again = await lab.saver.got(item.config)
            assert_same(item.checkpoint, again.checkpoint)
            if len(seen) % 20 == 0:
                await lab.saver.put(at("other"), checkpoint(f"{len(seen):04}", {}))
                assert len(await lab.saver.list(chain.latest, limit=2)) == 2
            seen.append(item.checkpoint["id"])
        assert seen == [f"{number:04}" for number in range(90, 0, -1)]

    async def test_what_is_put_meanwhile_breaks_no_listing(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for _ in range(90):
            await chain.put({})
        seen: list[str] = []
        async for item in lab.saver.each(chain.latest):
            seen.append(item.checkpoint["id"])
            if len(seen) in (1, 40, 70):
                await chain.put({})
        assert seen == [f"{number:04}" for number in range(90, 0, -1)]

    async def test_an_abandoned_listing_holds_nothing(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for _ in range(70):
            await chain.put({})
        for _ in range(20):
            listing = lab.saver.each(chain.latest)
            assert (await anext(listing)).checkpoint["id"] == "0070"
        await chain.put({})
        await lab.saver.delete_thread("thread")
        assert await lab.saver.list(chain.latest) == []

    async def test_a_listed_checkpoint_is_a_read_one(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(5):
            await chain.put({"m": [HumanMessage(str(n), id=str(n)) for n in range(number)], "n": number})
            await chain.writes(("n", [number]), task="b")
            await chain.writes(("n", [number]), task="a")
        for item in await lab.saver.list(at("thread", None)):
            assert_same(await lab.saver.got(item.config), item)


def _places(found: list[CheckpointTuple]) -> list[tuple[str, str, str]]:
    inner = [inside(item.config) for item in found]
    return [(one["thread_id"], one["checkpoint_ns"], one["checkpoint_id"]) for one in inner]


async def _populate(saver: Face) -> list[tuple[str, str, str]]:
    """Two threads with two namespaces of five checkpoints each."""
    chains = [Chain(saver, thread, ns) for thread in ("a", "b") for ns in ("", "sub:1")]
    for number in range(5):
        for chain in chains:
            await chain.put({"x": number})
    return [(chain.thread, chain.ns, f"{number:04}") for chain in chains for number in range(1, 6)]
