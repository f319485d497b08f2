"""An application in two releases, of which the second one goes on with the threads of the first while they are migrated."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import milepost
from driving import Graph, graph_of, thread
from langgraph.graph import START
from langgraph.types import Command, interrupt
from milepost import schema as ms
from milepost.saver import Saver
from typing_extensions import TypedDict

THREADS = 16


@dataclass
class Order:
    """What the first release stores."""

    number: int


@dataclass
class Purchase:
    """What it is called in the second one."""

    number: int


class First(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    order: Order
    said: str


class FirstDesk(TypedDict, total=False):
    order: Order
    said: str


class Second(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    purchase: Purchase
    said: str
    tags: list[str]


class SecondDesk(TypedDict, total=False):
    purchase: Purchase
    said: str


def _upper(lines: list[str]) -> list[str]:
    return [line.upper() for line in lines]


_ORDER = (ms.rename_channel("order", "purchase"), ms.rename_class(f"{Order.__module__}:Order", Purchase))
_ROOT = (*_ORDER, ms.rename_node("desk", "office"), ms.map_channel("log", _upper), ms.add_channel("tags", ["new"]))
FIRST = {"": ms.Schema(First, version=1, name="shop"), "desk": ms.Schema(FirstDesk, version=1, name="desk")}
SECOND = {
    "": ms.Schema(Second, version=2, name="shop", upgrades=[ms.Step(1, 2, *_ROOT)]),
    "office": ms.Schema(
        SecondDesk, version=2, name="desk", upgrades=[ms.Step(1, 2, *_ORDER, ms.rename_node("ask", "approve"))]
    ),
}
ALONE = {
    "": ms.Schema(Second, version=2, name="shop"),
    "office": ms.Schema(SecondDesk, version=2, name="desk"),
}
"""When the rollout is over, and the code of the upgrades is gone."""


def release(number: int, saver: Saver) -> Graph:
    """The graph of a release: it notes, asks in a subgraph, and writes down what was said."""
    key, ask, desk = ("order", "ask", "desk") if number == 1 else ("purchase", "approve", "office")
    child = graph_of(FirstDesk if number == 1 else SecondDesk)
    child.add_node(ask, lambda state: {"said": f"{interrupt('?')} {state[key].number}"})
    child.add_edge(START, ask)
    builder = graph_of(First if number == 1 else Second)
    builder.add_node("note", lambda _: {"log": ["noted"]})
    builder.add_node(desk, child.compile())
    builder.add_node("close", lambda state: {"log": [state["said"]]})
    builder.add_edge(START, "note")
    builder.add_edge("note", desk)
    builder.add_edge(desk, "close")
    return builder.compile(checkpointer=saver)


def prepare(url: str) -> None:
    """Threads of the first release that have had a turn, and wait in the next one."""
    with milepost.connect(url, schema=FIRST) as saver:
        graph = release(1, saver)
        for number in range(THREADS):
            graph.invoke({"log": ["in"], "order": Order(number)}, thread(str(number)))
            graph.invoke(Command(resume="old"), thread(str(number)))
            graph.invoke({"log": ["in"]}, thread(str(number)))


def expected(number: int, turns: int) -> Sequence[str]:
    """The log of a thread on which the second release has taken `turns`."""
    log = ["IN", "NOTED", f"OLD {number}", "IN", "NOTED"]
    for turn in range(turns):
        log += ["again", "noted"] if turn % 2 else [f"new {number}"]
    return log


def serve(url: str) -> None:
    """Take a turn on any thread for each line of standard input, and print the thread's number when it is done."""
    choose = random.Random(7)
    with milepost.connect(url, schema=SECOND) as saver:
        graph = release(2, saver)
        for _ in sys.stdin:
            number = choose.randrange(THREADS)
            config = thread(str(number))
            entered: Any = Command(resume="new") if graph.get_state(config).next else {"log": ["again"]}
            graph.invoke(entered, config)
            print(number, flush=True)
