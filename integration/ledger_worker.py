"""One life of a worker: it takes a thread up where it was left, until it ends, pauses, fails, or is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, cast

import milepost
from driving import Durability, thread
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, tool
from ledger_agents import NAMED, TURNS, Shape, Wiring, build
from ledger_points import Death, Points, WatchedBackend
from milepost.saver import Saver
from milepost.store import Backend
from milepost_inspector.demo import world

Mode = Literal["sync", "async", "slow", "exit"]
Kind = Literal["keyed", "reconcile", "person", "transactional"]
Flavour = Literal["blocking", "async"]
MODES: tuple[Mode, ...] = ("sync", "async", "slow", "exit")
KINDS: tuple[Kind, ...] = ("keyed", "reconcile", "person", "transactional")

SLOW = 0.04
"""Seconds that a slowed put takes longer: more than a tool, its claim and its settlement together."""


@dataclass(frozen=True)
class Cell:
    """What is run."""

    shape: Shape
    mode: Mode
    kind: Kind
    flavour: Flavour
    ledger: bool = True

    @property
    def turns(self) -> Any:
        return NAMED if self.mode == "exit" else TURNS

    @property
    def durability(self) -> Durability:
        return "async" if self.mode == "slow" else self.mode


@dataclass(frozen=True)
class Life:
    """One worker."""

    cell: Cell
    url: str
    thread: str
    world: int
    """Port of the outside world."""
    run: int
    death: Death | None = None


@dataclass(frozen=True)
class Word:
    """The last word of a worker that was not killed."""

    said: str = ""
    """What the agent said in the end."""
    asked: tuple[tuple[str, Any], ...] = ()
    """Interrupts: (id, value)."""
    error: str = ""
    seen: tuple[tuple[str, int], ...] = ()
    """Point -> how often it was reached."""


def charge_tools(life: Life, points: Points) -> list[BaseTool]:
    """The tool with the effect."""

    def effect(order: str, cents: int) -> str:
        points.reach("before effect")
        request = {"op": "effect", "id": f"{life.thread}/{order}", "run": life.run, "payload": {"cents": cents}}
        world.ask(life.world, request)
        points.reach("after effect")
        return f"charged {cents} for {order}"

    @tool
    def charge(order: str, cents: int) -> str:
        """Charge a card."""
        return effect(order, cents)

    async def acharge(order: str, cents: int) -> str:
        return await asyncio.to_thread(effect, order, cents)

    charge.coroutine = acharge
    return [charge]


class Outermost(AgentMiddleware[Any, Any, Any]):
    """Points around the whole of a call."""

    def __init__(self, points: Points) -> None:
        self.points = points

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        self.points.reach("before call")
        answer = handler(request)
        self.points.reach("after call")
        return answer

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        self.points.reach("before call")
        answer = await handler(request)
        self.points.reach("after call")
        return answer


def wiring(points: Points) -> Wiring:
    """Without a ledger."""
    outermost = Outermost(points)
    return Wiring(outermost.wrap_tool_call, outermost.awrap_tool_call, lambda: [outermost])


def live(life: Life, told: Connection) -> None:
    """The life."""
    points = Points(life.death)
    slow = SLOW if life.cell.mode == "slow" else 0.0
    with milepost.connect(life.url) as opened:
        saver = Saver(cast("Backend", WatchedBackend(opened.backend, points, slow)))
        cell = life.cell
        graph = build(cell.shape, cell.turns, charge_tools(life, points), wiring(points), saver)
        config = thread(life.thread)
        start: Any = None
        if saver.get_tuple(config) is None:
            start = {"messages": [HumanMessage("charge them", id="h")]}
        try:
            if cell.flavour == "async":
                end = asyncio.run(graph.ainvoke(start, config, durability=cell.durability))
            else:
                end = graph.invoke(start, config, durability=cell.durability)
        except Exception as error:
            told.send(Word(error=f"{type(error).__name__}: {error}"))
            return
    asked = tuple((one.id, one.value) for one in end.get("__interrupt__", ()))
    told.send(Word("" if asked else end["messages"][-1].text, asked, seen=tuple(points.seen.items())))
