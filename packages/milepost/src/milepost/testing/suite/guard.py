"""The head guard: a run goes on from the thread's latest checkpoint, or not at all."""

from __future__ import annotations

import copy
import pickle

import pytest
from langchain_core.runnables import RunnableConfig

from milepost.errors import Conflict, ThreadDeleted, Unavailable
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.faults import Moment, Plan
from milepost.testing.lab import Lab
from milepost.testing.suite.basis import Behaviours, needs


class HeadGuard(Behaviours):
    """With ``guard="head"``, a run goes on from the thread's latest checkpoint or not at all."""

    async def test_of_two_runs_one_goes_on(self, lab: Lab) -> None:
        one, two = Chain(lab.open(guard="head")), Chain(lab.open(guard="head"))
        for step in ({"source": "input"}, {"source": "loop"}):
            await one.put({"x": 1}, metadata=step)
            two.head = one.head
            await one.put({"x": "of one"}, metadata=step)
            for late in ("input", "loop"):
                with pytest.raises(Conflict) as caught:
                    await two.put({"x": "of two"}, id="late", metadata={"source": late})
                assert caught.value.thread == "thread"
                assert (caught.value.expected, caught.value.found) == (two.head, one.head)
        assert await one.values() == {"x": "of one"}
        found = await two.saver.got(two.latest)
        two.head = found.checkpoint["id"]
        await two.put({"x": "of two"}, id="0005")
        async for saver in lab.views():
            assert await saver.ids(at("thread")) == ["0005", "0004", "0003", "0002", "0001"]
            assert (await saver.got(at("thread"))).checkpoint["channel_values"] == {"x": "of two"}

    async def test_of_two_first_runs_one_begins(self, lab: Lab) -> None:
        for source in ("input", "loop"):
            one, two = Chain(lab.open(guard="head"), source), Chain(lab.open(guard="head"), source)
            assert await two.saver.get(two.latest) is None, "a run looks for its thread first"
            await one.put({"x": 1}, metadata={"source": "input"})
            with pytest.raises(Conflict) as caught:
                await two.put({"x": 2}, id="late", metadata={"source": source})
            assert (caught.value.expected, caught.value.found) == (None, "0001")
            assert await one.ids() == ["0001"]

    async def test_who_has_not_looked_for_the_thread_starts_no_first_run(self, lab: Lab) -> None:
        """Programs that put by hand may call what they put a step, and give it no parent."""
        chain = Chain(lab.open(guard="head"))
        await chain.put({"x": 1})
        await chain.put({"x": 2}, parent="")
        other = Chain(chain.saver, "other")
        assert await other.saver.get(other.latest) is None
        await other.put({"x": 1})
        await other.put({"x": 2}, parent="")
        assert (await chain.ids(), await other.ids()) == (["0002", "0001"], ["0002", "0001"])

    async def test_many_at_once(self, lab: Lab) -> None:
        savers = [lab.open(guard="head") for _ in range(3)]
        await savers[0].put(at("thread"), checkpoint("0", {"x": 0}))
        parent, known = "0", 1
        for turn in range(4):

            async def go_on(number: int, parent: str = parent, turn: int = turn) -> int:
                made = checkpoint(f"{turn + 1}.{number}", {"x": number})
                try:
                    await savers[number % 3].put(at("thread", "", parent), made, {"source": "loop"})
                except Conflict:
                    return 0
                return 1

            calls = [lambda number=number: go_on(number) for number in range(6)]
            assert sum(await lab.together(*calls)) == 1
            (parent, *_), known = await lab.saver.ids(at("thread")), known + 1
            assert len(await lab.saver.ids(at("thread"))) == known

    async def test_what_is_no_step_of_a_run_is_not_guarded(self, lab: Lab) -> None:
        chain = Chain(lab.open(guard="head"))
        await chain.put({"x": 1})
        await chain.put({"x": 2})
        for number, source in enumerate(("update", "fork", None, "else")):
            await chain.put({"x": 3}, id=f"01{number}", parent="0001", metadata={"source": source})
        sub = Chain(chain.saver, ns="sub")
        await sub.put({"x": 1})
        await sub.put({"x": 2}, parent="")
        await sub.put({"x": 3}, parent="0001")
        assert len(await sub.ids()) == 3

    async def test_what_is_read_by_its_id_is_gone_on_from(self, lab: Lab) -> None:
        """By whoever puts on the config that was answered, wherever, and whatever else was asked for meanwhile."""
        chain = Chain(lab.open(guard="head"))
        for number in range(3):
            await chain.put({"x": number})
        found = await chain.saver.got(chain.at("0001"))
        assert found.config == chain.at("0001")
        assert (await chain.saver.got(chain.latest)).config == chain.at("0003")

        async def fork(id: str, config: RunnableConfig) -> RunnableConfig:
            return await chain.saver.put(config, checkpoint(id, {"x": "a fork"}), {"source": "loop"})

        [child] = await lab.together(lambda: fork("0101", found.config))
        await fork("0102", found.config)
        with pytest.raises(Conflict) as caught:
            await fork("0103", child)
        assert (caught.value.expected, caught.value.found) == ("0101", "0102")
        for copied in (chain.at("0001"), copy.deepcopy(found.config), pickle.loads(pickle.dumps(found.config))):  # noqa: S301  # our own
            with pytest.raises(Conflict):
                await fork("0103", copied)
        assert await chain.ids() == ["0102", "0101", "0003", "0002", "0001"]

    async def test_who_asks_for_the_latest_goes_on_from_there(self, lab: Lab) -> None:
        """Also where a page has shown the same checkpoint by its id before."""
        chain = Chain(lab.open(guard="head"))
        await chain.put({"x": 1})
        await chain.saver.got(chain.at("0001"))
        found = await chain.saver.got(chain.latest)
        await Chain(lab.saver).put({"x": "of another run"}, id="0002", parent="0001")
        with pytest.raises(Conflict) as caught:
            await chain.saver.put(found.config, checkpoint("0003", {"x": "of this run"}), {"source": "loop"})
        assert (caught.value.expected, caught.value.found) == ("0001", "0002")
        assert await chain.ids() == ["0002", "0001"]

    @pytest.mark.parametrize("moment", ["after", "twice"])
    async def test_a_put_that_is_repeated(self, lab: Lab, moment: Moment) -> None:
        plan = Plan()
        chain = Chain(lab.faulty(plan, guard="head"))
        await chain.put({"x": 1})
        plan.arm(moment)
        if moment == "after":
            with pytest.raises(Unavailable):
                await chain.put({"x": 2}, id="0002")
            plan.disarm()
        await chain.put({"x": 2}, id="0002", parent="0001")
        plan.disarm()
        await chain.put({"x": 3}, id="0003")
        assert await chain.ids() == ["0003", "0002", "0001"]

    async def test_after_a_prune_and_a_deletion(self, lab: Lab) -> None:
        chain = Chain(lab.open(guard="head"))
        for number in range(3):
            await chain.put({"x": ["long"] * 100, "n": number})
        await lab.saver.prune(["thread"])
        await chain.put({"x": ["long"] * 100, "n": 4})
        await lab.saver.delete_thread("thread")
        with pytest.raises(ThreadDeleted):
            await chain.put({"x": ["long"] * 100, "n": 5})
        await chain.put({"x": ["long"] * 100, "n": 6}, parent="", id="1001")
        await chain.put({"x": ["long"] * 100, "n": 7}, id="1002")
        assert await chain.ids() == ["1002", "1001"]

    async def test_with_keys_the_source_is_known_too(self, lab: Lab) -> None:
        keys = {"k": b"0123456789abcdef"}
        one = Chain(lab.open(guard="head", keys=keys))
        await one.put({"x": 1})
        await one.put({"x": 2})
        with pytest.raises(Conflict):
            await one.put({"x": 3}, parent="0001")

    @needs("damage", "durable")
    async def test_a_damaged_head_is_gone_past(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number in range(3):
            await chain.put({"x": [number] * 50})
        await lab.close()
        [(name, data)] = lab.subject.media().items()
        passed = 0
        for place in range(len(data) - 700, len(data), 50):
            lab.subject.overwrite(name, data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
            saver = lab.open(guard="head")
            found = await saver.got(at("thread"))
            passed += found.checkpoint["id"] != "0003"
            await saver.put(found.config, checkpoint("0009", {"x": [9]}), {"source": "loop"})
            assert (await saver.got(at("thread"))).checkpoint["id"] == "0009"
            await lab.close()
            for other in lab.subject.media().keys() - {name}:
                lab.subject.overwrite(other, None)
        assert passed
