"""One life of a worker: it takes a thread up where it was left, until it ends, pauses, fails, or is killed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Literal, cast

import ledger_ablations
import milepost
import psycopg
from driving import Durability, thread
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.types import Command
from ledger_agents import NAMED, TURNS, Shape, Wiring, build
from ledger_points import Death, Points, WatchedBackend
from milepost.ledger import ToolPolicy
from milepost.saver import Saver
from milepost.store import Backend
from milepost.tools import (
    Call,
    CallRecord,
    Ledger,
    Verdict,
    applied,
    current_call,
    keyed,
    not_applied,
    readonly,
    transactional,
    unsafe,
)
from milepost_inspector.demo import world

Mode = Literal["sync", "async", "slow", "exit"]
Kind = Literal["keyed", "reconcile", "person", "transactional"]
Flavour = Literal["blocking", "async"]
MODES: tuple[Mode, ...] = ("sync", "async", "slow", "exit")
KINDS: tuple[Kind, ...] = ("keyed", "reconcile", "person", "transactional")

LEASE = 0.4
EFFECT = 0.2
"""Seconds after a check in which an effect has taken place, or never will."""
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
    solo: bool = False
    """One call alone."""
    restless: bool = False
    """The model words its calls anew each time that it is called."""
    everywhere: bool = False
    """Keys are of all threads."""
    ablation: str = ""
    """A part of the ledger that is taken out: see `ledger_ablations`."""

    @property
    def turns(self) -> Any:
        if self.solo:
            return ((("a", 5),),)
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
    answers: Mapping[str, Any] = field(default_factory=dict)
    """Interrupt id -> verdict of a person, with which the thread is resumed."""
    lease: float = LEASE


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


def policy(life: Life) -> ToolPolicy:
    """How the charges of a cell are declared."""
    own: dict[str, Any] = {}
    if life.cell.mode == "exit":
        own = {"key": lambda arguments: f"order {arguments['order']}"}
    if life.cell.everywhere:
        own["scope"] = "global"
    if life.cell.kind == "keyed":
        return keyed(window="24h", max_duration=EFFECT, **own)
    if life.cell.kind == "transactional":
        return transactional(max_duration=EFFECT, **own)

    def reconcile(record: CallRecord) -> Verdict:
        order, cents = record.arguments["order"], record.arguments["cents"]
        found = world.ask(life.world, {"op": "find", "id": reference(life.thread, order, record.key)})
        return applied(receipt(order, cents)) if found["effects"] else not_applied()

    return unsafe(max_duration=EFFECT, reconcile=reconcile if life.cell.kind == "reconcile" else None, **own)


def reference(thread: str, order: str, key: str) -> str:
    """What the outside world knows a charge by, where it takes no keys."""
    return f"{thread}/{order}#{key}"


def receipt(order: str, cents: int) -> str:
    """What the tool says of a charge."""
    return f"charged {cents} for {order}"


TABLE = "CREATE TABLE IF NOT EXISTS charge (thread text, name text)"
CHARGE = "INSERT INTO charge VALUES (%s, %s)"


def database_of(url: str) -> str:
    """The database of a store's URL, without the options that only the store knows."""
    return re.sub(r"[?&]schema=[^&]*", "", url)


def booking_tools(life: Life, points: Points) -> list[BaseTool]:
    """The tool whose effect is a row in the ledger's own database."""

    @tool
    def charge(order: str, cents: int) -> str:
        """Charge an account."""
        with psycopg.connect(database_of(life.url)) as connection:
            points.reach("before effect")
            connection.execute(CHARGE, (life.thread, order))
            current_call().settle_with(connection, receipt(order, cents))
            points.reach("before check")
        points.reach("after effect")
        return receipt(order, cents)

    async def acharge(order: str, cents: int) -> str:
        async with await psycopg.AsyncConnection.connect(database_of(life.url)) as connection:
            points.reach("before effect")
            await connection.execute(CHARGE, (life.thread, order))
            await current_call().asettle_with(connection, receipt(order, cents))
            points.reach("before check")
        points.reach("after effect")
        return receipt(order, cents)

    charge.coroutine = acharge
    return [charge]


def charge_tools(life: Life, points: Points) -> list[BaseTool]:
    """The tool whose effect is in the outside world."""

    def request(order: str, cents: int, call: Call | None) -> dict[str, Any]:
        asked = {"op": "effect", "id": f"{life.thread}/{order}", "run": life.run, "payload": {"cents": cents}}
        if call is not None:
            asked |= {"key": call.key} if life.cell.kind == "keyed" else {}
            asked["id"] = reference(life.thread, order, call.record_key)
        return asked

    def perform(asked: dict[str, Any], order: str, cents: int) -> str:
        points.reach("before effect")
        world.ask(life.world, asked)
        points.reach("after effect")
        return receipt(order, cents)

    @tool
    def charge(order: str, cents: int) -> str:
        """Charge a card."""
        call = current_call() if life.cell.ledger else None
        if call is not None:
            points.reach("before check")
            call.check()
        return perform(request(order, cents, call), order, cents)

    async def acharge(order: str, cents: int) -> str:
        call = current_call() if life.cell.ledger else None
        if call is not None:
            points.reach("before check")
            await call.acheck()
        return await asyncio.to_thread(perform, request(order, cents, call), order, cents)

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


def ledger_of(life: Life, saver: Saver) -> Ledger:
    """With times that a test can wait for."""
    return Ledger(
        saver,
        {"charge": policy(life), "delegate": readonly},
        lease=life.lease,
        skew=0.05,
        wait_timeout=20,
        owner=str(life.run),
    )


def wiring(life: Life, saver: Saver, points: Points) -> Wiring:
    """The points around a call, and within them the ledger."""
    outermost = Outermost(points)
    if not life.cell.ledger:
        return Wiring(outermost.wrap_tool_call, outermost.awrap_tool_call, lambda: [outermost])
    ledger = ledger_of(life, saver)

    def wrap(request: Any, execute: Callable[[Any], Any]) -> Any:
        return outermost.wrap_tool_call(request, lambda inner: ledger.wrap_tool_call(inner, execute))

    async def awrap(request: Any, execute: Callable[[Any], Any]) -> Any:
        return await outermost.awrap_tool_call(request, lambda inner: ledger.awrap_tool_call(inner, execute))

    return Wiring(wrap, awrap, lambda: [outermost, ledger.middleware()])


def live(life: Life, told: Connection) -> None:
    """The life."""
    ledger_ablations.take_out(life.cell.ablation)
    points = Points(life.death)
    slow = (SLOW if life.cell.mode == "slow" else 0.0) + (life.death.slow if life.death else 0.0)
    with milepost.connect(life.url) as opened:
        saver = Saver(cast("Backend", WatchedBackend(opened.backend, points, slow)))
        cell = life.cell
        make = booking_tools if cell.kind == "transactional" else charge_tools
        tools, around = make(life, points), wiring(life, saver, points)
        graph = build(cell.shape, cell.turns, tools, around, saver, restless=cell.restless)
        config = thread(life.thread)
        start: Any = None
        if life.answers:
            start = Command(resume=dict(life.answers))
        elif saver.get_tuple(config) is None:
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
