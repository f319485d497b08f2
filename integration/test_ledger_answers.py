"""Answers that name no question: whoever asks next takes them, unless the ledger knows that they are not for him."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from driving import Flavour, Graph
from langchain_core.tools import BaseTool, tool
from langgraph.types import Command, interrupt
from milepost.saver import Saver
from milepost.tools import Ledger, not_applied, unsafe
from test_ledger_graphs import GO, ONE, agent, asks, hand_built, texts


class Pays:
    """Asks, then pays; what each run does before it asks is named by `before`."""

    def __init__(self, *before: str) -> None:
        self._before = list(before)
        self.paid: list[Any] = []

    def tool(self) -> BaseTool:
        @tool
        def pay(order: str) -> str:
            """Pay, if somebody agrees."""
            if self._before and self._before.pop(0) == "fails":
                raise TimeoutError("no answer")
            self.paid.append(interrupt({"approve": order}))
            return f"paid {order}, approved by {self.paid[-1]!r}"

        return pay


def ledger_over(saver: Saver) -> Ledger:
    return Ledger(saver, {"pay": unsafe(max_duration=0)}, lease=0.01, skew=0)


def graph_over(saver: Saver, pays: Pays, ledger: Ledger, shape: str) -> Graph:
    said = [asks("a", name="pay")]
    if shape == "agent":
        return agent(saver, [pays.tool()], said, [ledger.middleware()])
    return hand_built(saver, ledger, [pays.tool()], said)


def question(state: Any) -> Any:
    (asked,) = state["__interrupt__"]
    return asked


async def decide(ledger: Ledger) -> None:
    (record,) = await ledger.apending("one")
    await ledger.aresolve(record.key, not_applied(), by="ann")


@pytest.mark.parametrize("shape", ["ToolNode", "agent"])
async def test_what_was_said_at_a_pause_approves_nothing(
    saver: Saver, flavour: Flavour, shape: str, caplog: pytest.LogCaptureFixture
) -> None:
    pays, ledger = Pays("fails"), ledger_over(saver)
    graph = graph_over(saver, pays, ledger, shape)
    pause = question(await flavour.invoke(graph, GO, ONE))
    with caplog.at_level(logging.WARNING, "milepost"):
        assert question(await flavour.invoke(graph, Command(resume="not_applied"), ONE)).id == pause.id
    assert pause.id in caplog.text
    await decide(ledger)
    for _ in range(2):
        assert question(await flavour.invoke(graph, None, ONE)).value == {"approve": "a"}
    assert texts(await flavour.invoke(graph, Command(resume="yes"), ONE)) == ["paid a, approved by 'yes'"]
    assert pays.paid == ["yes"]


async def test_an_approval_reaches_the_tool_although_its_outcome_was_unknown(saver: Saver, flavour: Flavour) -> None:
    pays, ledger = Pays("asks", "fails"), ledger_over(saver)
    graph = graph_over(saver, pays, ledger, "ToolNode")
    assert question(await flavour.invoke(graph, GO, ONE)).value == {"approve": "a"}
    assert question(await flavour.invoke(graph, Command(resume="yes"), ONE)).value["kind"] == "CallInDoubt"
    await decide(ledger)
    assert texts(await flavour.invoke(graph, None, ONE)) == ["paid a, approved by 'yes'"]


async def test_what_was_said_at_a_pause_is_no_second_approval(saver: Saver, flavour: Flavour) -> None:
    pays, ledger = Pays("asks", "fails"), ledger_over(saver)
    graph = graph_over(saver, pays, ledger, "ToolNode")
    await flavour.invoke(graph, GO, ONE)
    await flavour.invoke(graph, Command(resume="yes"), ONE)
    assert question(await flavour.invoke(graph, Command(resume="not_applied"), ONE)).value["kind"] == "CallInDoubt"
    await decide(ledger)
    asked = question(await flavour.invoke(graph, None, ONE))
    assert asked.value == {"approve": "a"}
    assert texts(await flavour.invoke(graph, Command(resume={asked.id: "no"}), ONE)) == ["paid a, approved by 'no'"]


async def test_several_questions_are_answered_alike(saver: Saver, flavour: Flavour) -> None:
    @tool
    def pay(order: str) -> str:
        """Ask two people."""
        return f"paid {order}: {interrupt('first')}, {interrupt('second')}"

    ledger = Ledger(saver)
    graph = hand_built(saver, ledger, [pay], [asks("a", name="pay")])
    assert question(await flavour.invoke(graph, GO, ONE)).value == "first"
    assert question(await flavour.invoke(graph, Command(resume="yes"), ONE)).value == "second"
    assert texts(await flavour.invoke(graph, Command(resume="yes"), ONE)) == ["paid a: yes, yes"]
