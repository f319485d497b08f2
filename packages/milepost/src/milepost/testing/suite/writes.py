"""Pending writes: which of two wins, in what order they come back, and what a put on top of them waits for."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import writes_sort_key
from langgraph.types import Command, Interrupt, Send

from milepost.errors import Unavailable
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.faults import Plan
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours

ERROR, INTERRUPT, RESUME, SCHEDULED = "__error__", "__interrupt__", "__resume__", "__scheduled__"
SPECIAL = (ERROR, SCHEDULED, INTERRUPT, RESUME)


class Writes(Behaviours):
    """`put_writes` decides write by write, and never asks whether the checkpoint is there."""

    async def test_an_ordinary_write_is_first_wins(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        await chain.writes(("a", 1), ("b", 1))
        await chain.writes(("a", 2), ("b", 2), ("c", 2))
        assert await _writes(chain) == [("task", "a", 1), ("task", "b", 1), ("task", "c", 2)]

    @pytest.mark.parametrize("channel", SPECIAL)
    async def test_a_special_write_is_last_wins(self, lab: Lab, channel: str) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        await chain.writes((channel, "old"))
        await chain.writes((channel, ["new", "x" * 500]))
        await chain.writes((channel, ["new", "x" * 500]))
        assert await _writes(chain) == [("task", channel, ["new", "x" * 500])]

    async def test_a_mixed_batch_is_decided_write_by_write(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        await chain.writes((ERROR, "old"), ("a", 1))
        await chain.writes((ERROR, "new"), ("a", 2))
        assert await _writes(chain) == [("task", ERROR, "new"), ("task", "a", 1)]

    async def test_a_place_is_the_position_in_the_batch(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        await chain.writes((RESUME, "r1"), ("x", 1))
        await chain.writes(("y", 2), ("x", 9), ("x", 3))
        assert await _writes(chain) == [("task", RESUME, "r1"), ("task", "y", 2), ("task", "x", 1), ("task", "x", 3)]

    async def test_a_special_channel_twice_in_a_batch_keeps_the_last(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        await chain.writes((ERROR, "first"), (ERROR, "second"))
        assert await _writes(chain) == [("task", ERROR, "second")]

    async def test_tasks_do_not_meet(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        for number, task in enumerate(["a", "a ", "A", "a/b", "ab", "b", "", "ä"]):
            await chain.writes(("x", number), task=task)
        assert len(await _writes(chain)) == 8

    async def test_a_loser_leaves_nothing_that_is_referred_to(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        winner, loser = HumanMessage("w" * 900, id="w"), HumanMessage("l" * 900, id="l")
        await chain.writes(("x", [winner]))
        await chain.writes(("x", [loser]))
        # What lost is not stored: a put with it must bring it along.
        await chain.put({"x": [loser, winner]})
        found = await (await lab.reopen()).got(chain.at("0002"))
        assert_same({"x": [loser, winner]}, found.checkpoint["channel_values"])

    async def test_they_come_back_in_the_order_of_their_key(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        paths = ("", "~__pregel_pull, a", "~__pregel_pull, b", "~~0000000001")
        places = [
            (path, f"{task}{number}", index)
            for number, path in enumerate(paths)
            for task in ("t2", "t10", "t1", "ffffffff")
            for index in range(3)
        ]
        ordered = sorted(places, key=lambda place: writes_sort_key(*place))
        expected = [(task, "x", [path, index]) for path, task, index in ordered]
        batches = [(path, task) for path, task, index in places if not index]
        for path, task in [*batches[1::2], *reversed(batches[::2])]:
            await chain.writes(*[("x", [path, index]) for index in range(3)], task=task, path=path)
        assert await _writes(chain) == expected
        [listed] = await lab.saver.list(chain.latest)
        assert listed.pending_writes == expected
        await chain.put({})
        assert (await lab.saver.history(chain.at(), ["x"]))["x"]["writes"] == expected

    async def test_specials_sort_before_the_ordinary_writes_of_their_task(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        await chain.writes(("a", 1), (INTERRUPT, 2), (ERROR, 3), (RESUME, 4), (SCHEDULED, 5))
        assert [channel for _, channel, _ in await _writes(chain)] == [RESUME, INTERRUPT, SCHEDULED, ERROR, "a"]

    async def test_writes_may_come_before_their_checkpoint(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 0})
        await chain.writes((INTERRUPT, ["ask", "x" * 500]), id="0003")
        await chain.writes(("y", 2), id="0002")
        assert await lab.saver.get(chain.at("0003")) is None
        assert await chain.ids() == ["0001"]
        await chain.put({"x": 1})
        await chain.put({"x": 2})
        saver = await lab.reopen()
        assert (await saver.got(chain.at("0002"))).pending_writes == [("task", "y", 2)]
        assert (await saver.got(chain.latest)).pending_writes == [("task", INTERRUPT, ["ask", "x" * 500])]

    async def test_writes_of_a_thread_that_has_no_checkpoint(self, lab: Lab) -> None:
        await lab.saver.put_writes(at("new", "", "0001"), [("x", 1)])
        assert await lab.saver.get(at("new")) is None
        assert await lab.saver.list(at("new")) == []
        assert await lab.saver.get(at("new", "", "0001")) is None
        await lab.saver.put(at("new"), checkpoint("0001", {}))
        assert (await lab.saver.got(at("new"))).pending_writes == [("task", "x", 1)]

    async def test_no_writes_at_all(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        await chain.writes()
        assert await _writes(chain) == []

    async def test_writes_stay_with_their_checkpoint_and_namespace(self, lab: Lab) -> None:
        root, sub = Chain(lab.saver), Chain(lab.saver, ns="sub:1")
        await root.put({})
        await sub.put({})
        await sub.writes(("x", "sub"))
        await root.writes(("x", "root"))
        await root.put({})
        assert await _writes(root) == []
        assert await _writes(sub) == [("task", "x", "sub")]
        assert (await lab.saver.got(root.at("0001"))).pending_writes == [("task", "x", "root")]

    async def test_a_checkpoint_put_again_keeps_its_writes(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        await chain.writes(("x", 2))
        await chain.put({"x": 3}, id="0001", parent="")
        assert await _writes(chain) == [("task", "x", 2)]
        assert await chain.values() == {"x": 3}

    async def test_langgraphs_own_objects(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"__pregel_tasks": [Send("n", {"a": [HumanMessage("hi", id="1")]})]})
        asked = (Interrupt(value={"question": "go on?"}, id="i1"),)
        command: Command[Any] = Command(goto=Send("n", {"a": 1}), update={"x": 1}, resume={"i1": "yes"})
        await chain.writes(("__pregel_tasks", Send("n", {"x": 1})), (INTERRUPT, asked), (RESUME, [command]))
        found = await (await lab.reopen()).got(chain.latest)
        assert found.checkpoint["channel_values"]["__pregel_tasks"] == [Send("n", {"a": [HumanMessage("hi", id="1")]})]
        expected = [
            ("task", RESUME, [command]),
            ("task", INTERRUPT, asked),
            ("task", "__pregel_tasks", Send("n", {"x": 1})),
        ]
        assert_same(expected, found.pending_writes)

    async def test_an_exception_becomes_text(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({})
        await chain.writes((ERROR, ValueError("no such record")))
        [(_, _, value)] = await _writes(chain)
        assert "no such record" in repr(value)

    async def test_what_a_write_stored_is_not_stored_again(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        message = AIMessage("m" * 20_000, id="1")
        await chain.put({"messages": []})
        await chain.writes(("messages", [message]))
        lab.saver.events.clear()
        await chain.put({"messages": [message]})
        [event] = [event for event in lab.saver.events if event.op == "put"]
        assert event.bytes < 5_000, f"the put sent {event.bytes} bytes again"
        assert_same([message], (await chain.values())["messages"])

    async def test_a_put_raises_for_writes_of_its_parent_that_failed(self, lab: Lab) -> None:
        plan = Plan()
        chain = Chain(lab.faulty(plan))
        await chain.put({"x": 1})
        plan.arm("before")
        with pytest.raises(Unavailable):
            await chain.writes(("x", 2), task="t1")
        for _ in range(2):
            with pytest.raises(Unavailable) as caught:
                await chain.put({"x": 2})
            assert "t1" in str(caught.value)
        assert await chain.ids() == ["0001"], "a checkpoint was stored on top of writes that are lost"
        # Written again, the way is free.
        await chain.writes(("x", 2), task="t1")
        await chain.put({"x": 2})
        assert (await chain.values())["x"] == 2

    async def test_a_put_waits_for_writes_of_its_parent(self, lab: Lab) -> None:
        plan = Plan()
        saver = lab.faulty(plan)
        chain = Chain(saver)
        await chain.put({"x": 1})
        plan.arm("hang")
        order: list[str] = []

        async def write() -> None:
            await chain.writes(("x", 2))
            order.append("writes")

        async def put() -> None:
            await lab.until(plan.hanging)
            await chain.put({"x": 2})
            order.append("put")

        async def release() -> None:
            await lab.until(plan.hanging)
            # Time enough for a put that does not wait to be there first.
            await lab.idle()
            order.append("released")
            plan.release()

        await lab.together(write, put, release)
        assert order[0] == "released", f"the put returned while writes of its parent were under way: {order}"
        assert (await chain.values())["x"] == 2

    async def test_many_tasks_write_at_once(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 0})

        async def write(number: int) -> None:
            await chain.writes(("x", [number, "x" * 300]), ("y", number), task=f"t{number:02}", path=f"p{number:02}")

        await lab.together(*[lambda number=number: write(number) for number in range(24)])
        expected: list[Any] = []
        for number in range(24):
            expected += [(f"t{number:02}", "x", [number, "x" * 300]), (f"t{number:02}", "y", number)]
        assert await _writes(chain) == expected


async def _writes(chain: Chain) -> list[Any]:
    found = (await chain.saver.got(chain.latest)).pending_writes
    assert found is not None
    return list(found)
