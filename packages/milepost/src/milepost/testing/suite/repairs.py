"""Repair: a thread gets the answers that are recorded."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it
from langgraph.types import Command

from milepost.errors import InvalidConfig
from milepost.ledger import Repair, Suspended, idempotent, unsafe
from milepost.places import COUNTERS
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.lab import Lab
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.workers import Worker, quick, wants


def _asks(message: str | None, *calls: str) -> AIMessage:
    return AIMessage("", id=message, tool_calls=[{"name": "charge", "args": {}, "id": call} for call in calls])


class Repairs(Behaviours):
    """A thread gets the tool messages that are recorded."""

    @needs("ledger")
    async def test_what_is_recorded_is_answered(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"charge": quick(unsafe)})
        asks = _asks("m1", *(f"c{n}" for n in range(1, 5)))
        messages = [HumanMessage("pay", id="h"), asks, ToolMessage("one", tool_call_id="c1", id="t1")]
        chain = Chain(lab.saver)
        await chain.put({"messages": messages, "n": 1})
        before = await worker.repair()
        assert (before.added, [one.call for one in before.left]) == ((), ["c2", "c3", "c4"])
        await worker.do(wants(call="c1"), ToolMessage("one", tool_call_id="c1"))
        await worker.do(wants(call="c2"), ToolMessage("two", tool_call_id="c2", artifact=[1], status="error"))
        await worker.do(wants(call="c3"), {"plain": 3})
        await worker.run(wants(call="c4"))
        repair = await worker.repair()
        assert [(one.tool_call_id, one.content, one.status) for one in repair.added] == [
            ("c2", "two", "error"),
            ("c3", '{"plain": 3}', "success"),
        ]
        (left,) = repair.left
        assert (left.namespace, left.message, left.call, left.tool) == ("", "m1", "c4", "charge")
        assert "resolve" in left.reason
        assert left.record is not None
        assert left.record.state == "started"
        async for saver in lab.views():
            found = await saver.got(at("thread"))
            values = found.checkpoint["channel_values"]
            assert [message.type for message in values["messages"]] == ["human", "ai", "tool", "tool", "tool"]
            assert values["messages"][2].tool_call_id == "c2"
            assert values["messages"][2].artifact == [1]
            assert values["n"] == 1
            assert found.parent_config == at("thread", "", "0001")
        assert (await Worker(lab, tools={"charge": quick(unsafe)}).repair()).added == ()

    @needs("ledger")
    async def test_a_channel_that_holds_no_messages(self, lab: Lab) -> None:
        worker = Worker(lab)
        assert (await worker.repair()).added == ()
        await Chain(lab.saver).put({"messages": "text"})
        with pytest.raises(InvalidConfig, match="messages"):
            await worker.repair()

    @needs("ledger")
    async def test_a_channel_that_is_nowhere(self, lab: Lab) -> None:
        worker = Worker(lab, default=unsafe(key=lambda _: "g", scope="global"))
        await worker.do(wants(thread="other"))
        chain = Chain(lab.saver)
        await chain.put({"n": 1})
        await worker.once("welcome", lambda: 1, thread_id="thread")
        assert await worker.repair() == Repair("thread"), "nothing is missed where no tool was called"
        await chain.put({"messages": [_asks("m1", "c1")]})
        await worker.do(wants(policy=unsafe()))
        with pytest.raises(InvalidConfig, match="chat"):
            await worker.repair(channel="chat")
        for wrong in ({"as_node": "tools"}, {"graph": object()}):
            with pytest.raises(InvalidConfig):
                await worker.repair(**wrong)

    @needs("ledger")
    async def test_all_kinds_of_keys(self, lab: Lab) -> None:
        tools = {
            "charge": unsafe(),
            "own": unsafe(key=lambda _: "own"),
            "global": unsafe(key=lambda _: "g", scope="global"),
        }
        worker = Worker(lab, tools=tools, tenant="t")
        await Chain(lab.saver).put({"messages": [_asks("m1", "c1", "c2", "c3", "c4"), _asks("m2", "c1")]})
        await worker.do(wants("charge", epoch="2"), "epoch")
        await worker.do(wants("own", call="c2"), "own")
        await worker.do(wants("global", call="c3"), "global")
        await Worker(lab).do(wants(call="c4"), "of another tenant")
        await worker.do(wants("charge", message="m2"), "later")
        repair = await worker.repair()
        assert [(one.tool_call_id, one.content) for one in repair.added] == [
            ("c1", "epoch"),
            ("c2", "own"),
            ("c3", "global"),
            ("c1", "later"),
        ]
        assert [(one.call, one.record) for one in repair.left] == [("c4", None)]
        messages = (await lab.saver.got(at("thread"))).checkpoint["channel_values"]["messages"]
        assert [one.id if isinstance(one, AIMessage) else one.content for one in messages] == [
            "m1",
            "epoch",
            "own",
            "global",
            "m2",
            "later",
        ]

    @needs("ledger")
    async def test_a_call_that_another_one_was_recorded_for(self, lab: Lab) -> None:
        def by_amount(arguments: Any) -> str:
            return f"amount-{arguments['amount']}"

        worker = Worker(lab, tools={"own": unsafe(key=by_amount), "all": unsafe(key=by_amount, scope="global")})
        asks = _asks("m2", "c1", "c2", "c3", "c4")
        given: list[Any] = [("own", {"amount": 5}), ("all", {"amount": 5}), ("own", {"amount": 6}), ("own", {})]
        for call, (name, arguments) in zip(asks.tool_calls, given, strict=True):
            call["name"], call["args"] = name, arguments
        await Chain(lab.saver).put({"messages": [asks]})
        await worker.do(wants("own", message="m1"), "own")
        await worker.do(wants("all", message="m1", thread="other"), "all")
        await worker.do(wants("own", message="m1", arguments={"amount": 6, "to": "ann"}), "ann")
        repair = await worker.repair()
        assert [(one.tool_call_id, one.content) for one in repair.added] == [("c1", "own"), ("c2", "all")]
        assert [one.call for one in repair.left] == ["c3", "c4"], "whether ann is the default is not known"

    @needs("ledger")
    async def test_epochs_are_told_apart_by_the_run(self, lab: Lab) -> None:
        worker = Worker(lab)
        await lab.saver.put(at("thread"), checkpoint("0001", {"messages": [_asks("m1", "c1", "c2")]}))
        for epoch in ("1", "2"):
            await worker.do(wants(epoch=epoch), epoch)
        (other, left) = (await worker.repair()).left
        assert (other.call, left.call) == ("c1", "c2")
        assert "epochs" in other.reason
        messages = {"messages": [_asks("m1", "c1", "c2")]}
        await lab.saver.put(at("thread", "", "0001", milepost_epoch="2"), checkpoint("0002", messages))
        assert [one.content for one in (await worker.repair()).added] == ["2"]

    @needs("ledger")
    async def test_ids_that_a_message_repeats_are_told_apart_by_arguments(self, lab: Lab) -> None:
        worker = Worker(lab)
        asks = _asks("m1", "c1", "c1", "c1")
        for call, amount in zip(asks.tool_calls, (5, 6, 7), strict=True):
            call["args"] = {"amount": amount}
        await lab.saver.put(at("thread"), checkpoint("0001", {"messages": [asks]}))
        for amount in (6, 5):
            await worker.do(wants(arguments={"amount": amount}, repeats=True), f"paid {amount}")
        repair = await worker.repair()
        assert [one.content for one in repair.added] == ["paid 5", "paid 6"]
        assert len({one.id for one in repair.added}) == 2
        assert [one.call for one in repair.left] == ["c1"]
        # Which one it was that is not answered cannot be told any more.
        repair = await worker.repair()
        assert repair.added == ()
        assert all("several times" in one.reason for one in repair.left)

    @needs("ledger")
    async def test_defaults_do_not_make_one_call_another(self, lab: Lab) -> None:
        worker = Worker(lab)
        asks = _asks("m1", "c1", "c1", "c1")
        given: list[dict[str, Any]] = [{"amount": 5}, {"amount": 5, "to": "ann"}, {"amount": 6}]
        for call, arguments in zip(asks.tool_calls, given, strict=True):
            call["args"] = arguments
        await lab.saver.put(at("thread"), checkpoint("0001", {"messages": [asks]}))
        for arguments in ({"amount": 5, "to": "ann"}, {"amount": 6, "to": "bob"}):
            await worker.do(wants(arguments=arguments, repeats=True), arguments["to"])
        repair = await worker.repair()
        assert [one.content for one in repair.added] == ["ann", "bob"]
        assert len(repair.left) == 1

    @needs("ledger")
    async def test_messages_without_ids_and_former_wordings(self, lab: Lab) -> None:
        worker = Worker(lab, tools={"set": quick(idempotent)})
        await Chain(lab.saver).put({"messages": [HumanMessage("go"), _asks(None, "c1"), _asks("m1", "c1")]})
        await worker.do(wants(message=None, position=1), "by its place")
        for message in ("m1", "m2"):
            await worker.do(wants("set", message=message, human="h"), "taken over")
        assert [one.content for one in (await worker.repair()).added] == ["by its place", "taken over"]

    @needs("ledger")
    async def test_what_had_no_effect_is_answered_too(self, lab: Lab) -> None:
        refuses = quick(unsafe, not_applied=(ValueError,), compensate=lambda _record, _result: None)
        worker = Worker(lab, tools={"charge": refuses})
        await lab.saver.put(at("thread"), checkpoint("0001", {"n": 1}))
        with pytest.raises(ValueError, match="no money"):
            await worker.do(wants(), ValueError("no money"))
        await worker.do(wants(call="c2", checkpoints=(("", "0001"),)))
        await worker.rollback("0001")
        suspended = await worker.run(wants(call="c3"))
        await worker.settle(suspended, Suspended())
        await lab.saver.put(at("thread", "", "0001"), checkpoint("9", {"messages": [_asks("m1", "c1", "c2", "c3")]}))
        repair = await worker.repair()
        assert [(one.tool_call_id, one.status, one.name) for one in repair.added] == [
            ("c1", "error", "charge"),
            ("c2", "error", "charge"),
        ]
        assert "no money" in repair.added[0].text
        assert "undone" in repair.added[1].text
        (left,) = repair.left
        assert "question" in left.reason

    @needs("ledger")
    async def test_agents_and_subgraphs_are_repaired(self, lab: Lab) -> None:
        worker = Worker(lab)
        await lab.saver.put(at("thread"), checkpoint("0001", {"n": 1}))
        inner: Any = {"source": "loop", "step": 3, "parents": {"": "0001"}}
        await lab.saver.put(at("thread", "agent"), checkpoint("0002", {"messages": [_asks("m1", "c1", "c2")]}), inner)
        await worker.do(wants(checkpoints=(("agent", "0002"), ("", "0001"))), "inside")
        repair = await worker.repair()
        assert [one.content for one in repair.added] == ["inside"]
        assert [(one.namespace, one.call) for one in repair.left] == [("agent", "c2")]
        async for saver in lab.views():
            found = await saver.got(at("thread", "agent"))
            assert [one.type for one in found.checkpoint["channel_values"]["messages"]] == ["ai", "tool"]
            assert (found.metadata.get("step"), found.metadata.get("parents")) == (4, {"": "0001"})
            assert found.parent_config == at("thread", "agent", "0002")

    @needs("ledger")
    async def test_what_an_ended_task_has_written_is_not_lost(self, lab: Lab) -> None:
        worker = Worker(lab)
        here = await lab.saver.put(at("thread"), checkpoint("0001", {"messages": [_asks("m1", "c1", "c2", "c3")]}))
        looked = ToolMessage("looked", tool_call_id="c1", id="t1")
        await lab.saver.put_writes(here, [("messages", [looked]), ("branch:to:model", None)], "one")
        noted = ToolMessage("noted", tool_call_id="c3")
        await lab.saver.put_writes(here, [("messages", [noted]), ("note", 1)], "three")
        await worker.do(wants(call="c2"), "paid")
        repair = await worker.repair()
        assert repair.added[0].id == "t1"
        assert [one.content for one in repair.added] == ["looked", "paid"]
        (left,) = repair.left
        assert (left.call, "ended" in left.reason) == ("c3", True)

    @needs("ledger")
    async def test_a_command_is_never_made_text(self, lab: Lab) -> None:
        worker = Worker(lab)
        await Chain(lab.saver).put({"messages": [_asks("m1", "c1", "c2", "c3", "c4", "c5")]})
        said = {call: ToolMessage("said", tool_call_id=call) for call in ("c1", "c2", "c3", "c4", "c5")}
        results: dict[str, Any] = {
            "c1": Command(update={"messages": [said["c1"]]}),
            "c2": Command(update={"messages": [said["c2"]], "note": 1}),
            "c3": Command(update={"messages": [said["c3"]]}, goto="elsewhere"),
            "c4": [Command(update={"note": 1}), said["c4"]],
            "c5": Command(update={"messages": [said["c5"]]}, graph=Command.PARENT),
        }
        for call, result in results.items():
            await worker.do(wants(call=call), result)
        repair = await worker.repair()
        assert [one.tool_call_id for one in repair.added] == ["c1"]
        assert [one.call for one in repair.left] == ["c2", "c3", "c4", "c5"]
        assert all("graph" in one.reason for one in repair.left)
        assert all(one.record is not None and one.record.state == "succeeded" for one in repair.left)

    @needs("ledger")
    async def test_a_channel_of_changes_needs_its_graph(self, lab: Lab) -> None:
        counted: Any = {"source": "loop", "step": 1, "parents": {}, COUNTERS: {"messages": (1, 1)}}
        await lab.saver.put(at("thread"), checkpoint("0001", {"n": 1}), counted)
        with pytest.raises(InvalidConfig, match="graph="):
            await Worker(lab).repair()
        snapshot = _DeltaSnapshot([_asks("m1", "c1")])
        await lab.saver.put(at("thread", "", "0001"), checkpoint("0002", {"messages": snapshot}))
        with pytest.raises(InvalidConfig, match="graph="):
            await Worker(lab).repair()
        with pytest.raises(InvalidConfig, match="branch="):
            await Worker(lab).orphans("thread")
