"""A worker process that is killed in its second step: see test_recovery.py."""

from __future__ import annotations

import operator
import time
from multiprocessing.connection import Connection
from typing import Annotated, Any

import milepost
from driving import Graph, graph_of, thread
from langgraph.graph import START
from milepost.saver import Saver
from typing_extensions import TypedDict


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def graph(saver: Saver, work: Any) -> Graph:
    """Two steps: "first", and "work", which does what `work` does."""
    builder = graph_of(State)
    builder.add_node("first", lambda _: {"items": ["first"]})
    builder.add_node("work", work)
    builder.add_edge(START, "first")
    builder.add_edge("first", "work")
    return builder.compile(checkpointer=saver)


def work(url: str, link: Connection) -> None:
    """Drive the thread "t" under a short lease, and stay in its second step."""

    def hang(_: State) -> dict[str, Any]:
        link.send("at work")
        time.sleep(600)
        raise AssertionError

    with milepost.connect(url) as saver:
        exclusive = milepost.exclusive(graph(saver, hang), saver, ttl=2.0)
        exclusive.invoke({"items": ["in"]}, thread("t"), durability="sync")
