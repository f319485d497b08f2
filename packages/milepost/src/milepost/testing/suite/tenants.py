"""Tenants of one store have nothing in common."""

from __future__ import annotations

from typing import Any, Final, cast

import pytest

from milepost.callstore import CallChange, CallQuery, CallStore
from milepost.errors import Busy, Corrupt, InvalidConfig, MilepostError, ThreadDeleted
from milepost.places import MARK
from milepost.store import Query
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.lab import Lab
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.identity import HOSTILE
from milepost.testing.suite.leases import store_of

CALL: Final = CallChange("key", None, 0, 0, "succeeded", "stamp", b"entry", call=b"call", outcome=b"outcome")


class Tenants(Behaviours):
    """`Saver` with a tenant."""

    async def test_the_same_id_is_another_thread(self, lab: Lab) -> None:
        names = ("a", "b", "a b", "A", "ä", "a*")
        savers = {name: lab.open(tenant=name) for name in names}
        for name, saver in savers.items():
            chain = Chain(saver, "t")
            await chain.put({"x": [name] * 50})
            await chain.writes(("x", name))
            await chain.put({"x": [name] * 51})
        for name, saver in savers.items():
            found = await saver.got(at("t"))
            assert found.checkpoint["channel_values"] == {"x": [name] * 51}
            assert found.config == at("t", "", "0002")
            assert [item.config for item in await saver.list(None)] == [at("t", "", "0002"), at("t", "", "0001")]
            assert [item.checkpoint["id"] for item in await saver.list(None, filter={"step": 1})] == ["0001"]
            assert [row.thread for row in await saver.threads()] == ["t"]
            assert (await saver.stats())[:3] == (1, 2, 1)
            assert (await saver.history(at("t"), ["x"])).keys() == {"x"}

    async def test_no_id_leads_to_another_tenant(self, lab: Lab) -> None:
        one, two = lab.open(tenant="one"), lab.open(tenant="two")
        for thread in ("t", *HOSTILE[:20]):
            await Chain(one, thread).put({"x": thread})
        for thread in ("t", *HOSTILE[:20]):
            for name in (thread, f"one{thread}", f"{MARK}one{MARK}{thread}", f"../one/{thread}", f"{MARK}{thread}"):
                assert await two.get(at(name)) is None
                await two.delete_thread(name)
                await two.prune([name])
                await two.copy_thread(name, f"copy of {thread}")
        assert await two.list(None) == []
        assert await two.threads() == ()
        await two.delete_for_runs(["r"])
        assert len(await one.threads()) == len({"t", *HOSTILE[:20]})
        assert len(await one.list(None)) == len({"t", *HOSTILE[:20]})

    async def test_nothing_changes_without_a_tenant(self, lab: Lab) -> None:
        await Chain(lab.saver, "t").put({"x": "of nobody"})
        one = lab.open(tenant="one")
        assert await one.list(None) == []
        await Chain(one, "t").put({"x": "of one"})
        assert (await lab.saver.got(at("t"))).checkpoint["channel_values"] == {"x": "of nobody"}
        assert len(await lab.saver.threads()) == 2, "who has no tenant looks after the whole store"
        await one.delete_thread("t")
        assert [row.thread for row in await lab.saver.threads()] == ["t"]

    async def test_many_threads_of_many_tenants(self, lab: Lab) -> None:
        savers = [lab.open(tenant=f"tenant {number}") for number in range(3)]
        for number in range(90):
            await Chain(savers[number % 3], f"t{number}").put({"x": number})
        for number, saver in enumerate(savers):
            mine = {f"t{each}" for each in range(number, 90, 3)}
            assert {row.thread for row in await saver.threads()} == mine
            assert len(await saver.list(None)) == 30
            assert len(await saver.list(None, limit=7)) == 7
            assert (await saver.stats()).threads == 30

    async def test_erasing_a_tenant(self, lab: Lab) -> None:
        one, two = lab.open(tenant="one"), lab.open(tenant="two")
        for saver in (one, two):
            for number in range(5):
                await Chain(saver, f"t{number}").put({"x": number})
        assert await one.erase_tenant() == 5
        assert await one.threads() == ()
        assert (await one.stats())[:4] == (0, 0, 0, 0)
        assert len(await two.threads()) == 5
        with pytest.raises(ThreadDeleted) as caught:
            await one.put(at("t1", "", "0001"), checkpoint("0002", {"x": 1}))
        assert caught.value.thread == "t1"
        assert "'t1'" in str(caught.value)
        assert "one" not in str(caught.value).replace("Milepost", "").split("t1")[0]
        assert MARK not in str(caught.value)
        with pytest.raises(InvalidConfig):
            await lab.saver.erase_tenant()

    async def test_erasing_what_is_no_whole_thread(self, lab: Lab) -> None:
        one, two = lab.open(tenant="one"), lab.open(tenant="two")
        for saver in (one, two):
            await saver.put_writes(at("begun", "", "0001"), [("x", 1)])
            if "ledger" in lab.subject.capabilities:
                for thread in ("called", ""):
                    await cast("CallStore", await store_of(saver)).claim(thread, CALL)
        assert [(row.thread, row.head, row.writes) for row in await one.threads()] == [("begun", "", 1)]
        assert await one.erase_tenant() == 1
        assert (await one.threads(), (await one.stats())[:4]) == ((), (0, 0, 0, 0))
        assert [row.thread for row in await two.threads()] == ["begun"]
        with pytest.raises(ThreadDeleted):
            await one.put(at("begun", "", "0001"), checkpoint("0002", {"x": 1}))
        if "ledger" in lab.subject.capabilities:
            ledgers = [cast("CallStore", await store_of(saver)) for saver in (one, two)]
            pages = [await ledger.calls(CallQuery(), None, 9) for ledger in ledgers]
            assert [sorted(row.thread for row in page.rows) for page in pages] == [[], ["", "called"]]

    async def test_listings_do_not_look_at_other_tenants(self, lab: Lab) -> None:
        """A page is found among the tenant's threads: not one page after another of which nothing is left."""
        others, one = lab.open(tenant="a"), lab.open(tenant="b")
        for number in range(5):
            await Chain(others, f"t{number}").put({"x": number})
        await Chain(one, "t").put({"x": 1})
        await Chain(lab.open(tenant="c"), "t").put({"x": 1})
        store = await store_of(one)
        page = await store.threads(None, 2)
        assert ([row.thread for row in page.rows], page.cursor) == (["t"], None)
        found = await store.page(Query(), None, 2)
        assert [each.thread for each in found.snapshots] == ["t"]
        inner = await store_of(lab.saver)
        for prefix, count in ((f"{MARK}a{MARK}", 5), (f"{MARK}a{MARK}t4", 1), (f"{MARK}b", 1), ("t", 0), (MARK, 7)):
            rows = (await inner.threads(None, 9, prefix)).rows
            names = {row.thread for row in rows}
            assert (len(rows), all(name.startswith(prefix) for name in names)) == (count, True)
            assert {each.thread for each in (await inner.page(Query(prefix=prefix), None, 9)).snapshots} == names

    async def test_what_is_sealed_is_the_tenants(self, lab: Lab) -> None:
        """Bytes that somebody copied from one tenant's thread to another's do not open there; but as a whole store."""
        pytest.importorskip("cryptography")
        keys = {"k": b"k" * 32}
        one, two = (lab.open(tenant=name, keys=keys) for name in ("one", "two"))
        values = {"x": ["a thing of one's own " * 20]}
        chain = Chain(one, "t")
        await chain.put(values)
        await chain.writes(("x", "written"))
        source, target = await store_of(one), await store_of(two)
        after: tuple[str, ...] | None = None
        while (batch := await source.export("t", after, 100)) is not None:
            await target.load("t", batch)
            if (after := batch.cursor) is None:
                break
        assert (await one.got(at("t"))).checkpoint["channel_values"] == values
        with pytest.raises(Corrupt):
            await two.get(at("t"))
        found = await lab.open(keys=keys).got(at(f"{MARK}one{MARK}t"))
        assert (found.checkpoint["channel_values"], found.pending_writes) == (values, [("task", "x", "written")])
        with pytest.raises(Corrupt):
            await lab.open(keys=keys).get(at(f"{MARK}two{MARK}t"))

    async def test_leases_are_of_a_tenants_thread(self, lab: Lab) -> None:
        one, two = lab.open(tenant="one"), lab.open(tenant="two")
        async with one.lease("t") as lease, two.lease("t"):
            await one.put(at("t"), checkpoint("0001", {"x": 1}))
            await one.check(lease)
            with pytest.raises(Busy) as caught:
                async with lab.open(tenant="one").lease("t"):
                    raise AssertionError("two at once")
            assert caught.value.thread == "t"
            [row] = await one.threads(status="running")
            assert (row.thread, row.lease.owner) == ("t", lease.owner)

    @pytest.mark.parametrize("wrong", ["", f"a{MARK}b", "a\0b", 7, "x" * 257])
    async def test_what_is_no_tenant(self, lab: Lab, wrong: Any) -> None:
        with pytest.raises(MilepostError):
            lab.open(tenant=wrong)
