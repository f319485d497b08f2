"""Rollback in real graphs, and by workers that are killed within it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import milepost
import pytest
from driving import Flavour, Graph, graph_of, place, thread
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState
from langgraph.prebuilt import ToolNode
from ledger_agents import build
from ledger_points import Death, Points
from ledger_trial import Worker, World, running_world
from ledger_worker import Cell, Life, charge_tools, wiring
from milepost.errors import InvalidConfig
from milepost.saver import Saver
from milepost.tools import Ledger, fan_out, unsafe
from rollback_worker import roll_back
from stores import url_of

TWO = ((("a", 5),), (("b", 7),))
"""Charges, each of which follows the other."""

DEATHS = (
    Death("before claim", 1),
    Death("before effect", 1),
    Death("after effect", 1),
    Death("after settle", 2),
    Death("before claim", 3),
    Death("before effect", 2),
    Death("after effect", 2),
    Death("after settle", 4),
    Death("after put", 1),
)
"""Before, within and after each of two compensations, and once the fork is stored. What is claimed and settled is the call
that is undone, and within that what undoes it."""


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running_world(tmp_path_factory.mktemp("world") / "log.jsonl") as running:
        yield running


def _charged(life: Life) -> None:
    """Two charges, in a thread that is then at its end."""
    with milepost.connect(life.url) as saver:
        points = Points(None)
        graph = build("ToolNode", TWO, charge_tools(life, points), wiring(life, saver, points), saver)
        graph.invoke({"messages": [HumanMessage("charge them", id="h")]}, thread(life.thread), durability="sync")


def _seen(world: World, name: str) -> list[str]:
    """What the outside world did for a thread, in order."""
    lines = [json.loads(line)["id"].partition("/") for line in world.log.read_text().splitlines()]
    return [what.partition("#")[0] for thread_id, _, what in lines if thread_id == name]


@dataclass(frozen=True)
class Outcome:
    """What is left of a rollback that was killed, and of another one."""

    seen: list[str]
    states: list[str]
    forks: list[str]
    """All of the thread's, the latest checkpoint first."""
    fork: str
    """What the second rollback has answered."""

    @property
    def right(self) -> bool:
        return (
            self.seen == ["a", "b", "undo b", "undo a"]
            and self.states == ["compensated", "compensated"]
            and self.forks == [self.fork]
        )


def _killed(url: str, name: str, world: World, death: Death, cell: Cell) -> Outcome:
    life = Life(cell, url, name, world.port, 1, death)
    _charged(replace(life, cell=replace(cell, flavour="blocking"), death=None))
    assert Worker(life, roll_back).last_word() is None
    word = Worker(replace(life, run=2, death=None), roll_back).last_word()
    assert word is not None
    with milepost.connect(url) as saver:
        head, *_ = found = list(saver.list(thread(name)))
        forks = [one for one in found if one is head or "rollback" in one.metadata]
        states = [record.state for record in Ledger(saver).calls(name) if not record.info.step]
    ids = [place(one.config)["checkpoint_id"] for one in forks]
    return Outcome(_seen(world, name), [str(state) for state in states], ids, word.said)


@pytest.mark.parametrize("backend", ["files", "postgres", "redis"])
def test_killed_around_any_compensation_each_effect_is_undone_once(backend: str, tmp_path: Path, world: World) -> None:
    url = url_of(backend, tmp_path)

    def tried(number: int) -> Outcome:
        cell = Cell("ToolNode", "sync", "keyed", "blocking" if number % 2 else "async")
        return _killed(url, f"{backend} {tmp_path.name} {number}", world, DEATHS[number], cell)

    with ThreadPoolExecutor(len(DEATHS)) as pool:
        outcomes = list(pool.map(tried, range(len(DEATHS))))
    assert [one for one in zip(DEATHS, outcomes, strict=True) if not one[1].right] == []


def _paying(saver: Saver, ledger: Ledger, *orders: str) -> Graph:
    """A model that asks for one payment after the other, in the same words each time."""

    @tool
    def pay(order: str) -> str:
        """Pay for an order."""
        return f"paid {order}"

    def think(state: MessagesState) -> dict[str, Any]:
        said = sum(isinstance(one, AIMessage) for one in state["messages"])
        calls = [{"name": "pay", "args": {"order": order}, "id": "c", "type": "tool_call"} for order in orders]
        return {"messages": [AIMessage("", id=f"m{said}", tool_calls=calls[said : said + 1])]}

    builder = graph_of(MessagesState)
    builder.add_node("model", think)
    tools = ToolNode([pay], wrap_tool_call=ledger.wrap_tool_call, awrap_tool_call=ledger.awrap_tool_call)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", fan_out("tools"), ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


async def _roll_back(ledger: Ledger, to: Any, flavour: Flavour) -> None:
    if flavour.name == "blocking":
        await asyncio.to_thread(ledger.rollback, "one", to=to)
    else:
        await ledger.arollback("one", to=to)


async def test_an_effect_is_undone_from_where_it_was_made_last(saver: Saver, flavour: Flavour) -> None:
    undone: list[tuple[str, int]] = []
    policy = unsafe(compensate=lambda record, _: undone.append((record.arguments["order"], record.generation)))
    ledger = Ledger(saver, {"pay": policy})
    graph, config = _paying(saver, ledger, "1", "2"), thread("one")

    async def back_to(messages: int) -> None:
        """To the latest state of so many messages in which the model is next."""
        states = [one for one in await flavour.history(graph, config) if one.next == ("model",)]
        await _roll_back(ledger, next(one.config for one in states if len(one.values["messages"]) == messages), flavour)

    await flavour.invoke(graph, {"messages": [HumanMessage("go", id="h")]}, config)
    await back_to(1)
    await flavour.invoke(graph, None, config)
    await back_to(3)
    assert undone == [("2", 0), ("1", 0), ("2", 1)]


async def test_an_effect_of_a_node_is_undone_by_whoever_declares_it(saver: Saver, flavour: Flavour) -> None:
    undone: list[Any] = []
    policy = unsafe(compensate=lambda record, _: undone.append(record.info.own))

    def declared(ledger: Ledger) -> Any:
        @ledger.effect(key=lambda name: f"welcome {name}", policy=policy)
        def welcome(name: str) -> str:
            return f"welcome, {name}"

        return welcome

    welcome = declared(Ledger(saver))
    builder = graph_of(MessagesState)
    builder.add_node("greet", lambda _: {"messages": [AIMessage(welcome("ann"))]})
    builder.add_edge(START, "greet")
    builder.add_edge("greet", END)
    graph = builder.compile(checkpointer=saver)
    await flavour.invoke(graph, {"messages": []}, thread("one"))
    (to,) = [one.config for one in await flavour.history(graph, thread("one")) if one.next == ("greet",)]
    other = Ledger(saver)
    (record,) = other.calls("one")
    # By its place, not by when it was: with durability "async" the checkpoint may be stored after the effect was made.
    assert record.info.checkpoints == (("", place(to)["checkpoint_id"]),)
    with pytest.raises(InvalidConfig, match="welcome"):
        await _roll_back(other, to, flavour)
    declared(other)
    await _roll_back(other, to, flavour)
    assert undone == ["welcome ann"]
