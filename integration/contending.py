"""Worker processes that want one thread: see test_leases.py."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Coroutine
from multiprocessing.connection import Connection
from typing import Annotated, Any

import milepost
from driving import graph_of, thread
from langgraph.graph import START
from milepost.errors import LeaseLost, MilepostError
from milepost.flavour import run
from milepost.testing import Face, Flavour, at, checkpoint
from typing_extensions import TypedDict

TTL = 0.4
"""Seconds. The tests wait for what happens when they are over, and not for how long that takes."""


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def _carry_out(flavour: Flavour, work: Coroutine[Any, Any, None]) -> None:
    if flavour == "blocking":
        run(work)
    else:
        asyncio.run(work)


def zombie(url: str, flavour: Flavour, link: Connection) -> None:
    """Takes the lease, and writes when it is told to, whatever happened meanwhile."""
    with milepost.connect(url) as saver:
        _carry_out(flavour, _zombie(Face(saver, flavour), link))


async def _zombie(face: Face, link: Connection) -> None:
    await face.put(at("t"), checkpoint("0001", {"m": ["old"]}))
    # Longer than others: in the async flavour nothing renews it while this process is spoken to.
    async with face.lease("t", ttl=5 * TTL) as lease:
        link.send((lease.owner, lease.fence))
        link.recv()
        for write in (
            lambda: face.put(at("t", "", "0001"), checkpoint("0009", {"m": ["zombie"]})),
            lambda: face.put_writes(at("t", "", "0001"), [("m", "zombie")], "task"),
            lambda: face.check(lease),
        ):
            try:
                await write()
            except MilepostError as exc:
                link.send((type(exc).__name__, exc.facts.get("found")))
            else:
                link.send(("stored", None))


def driver(url: str, flavour: Flavour, link: Connection) -> None:
    """Drives a graph that has the lease, and waits in its second node until it is told to go on."""

    def waits(_: State) -> dict[str, Any]:
        link.send("waits")
        link.recv()
        return {"items": ["zombie"]}

    async def waits_async(state: State) -> dict[str, Any]:
        return await asyncio.to_thread(waits, state)

    builder = graph_of(State)
    builder.add_node("old", lambda _: {"items": ["old"]})
    builder.add_node("waits", waits if flavour == "blocking" else waits_async)
    builder.add_node("after", lambda _: {"items": ["after"]})
    for start, end in ((START, "old"), ("old", "waits"), ("waits", "after")):
        builder.add_edge(start, end)
    with milepost.connect(url) as saver:
        graph = milepost.exclusive(builder.compile(checkpointer=saver), saver, ttl=TTL)
        try:
            if flavour == "blocking":
                graph.invoke({"items": ["in"]}, thread("t"))
            else:
                asyncio.run(graph.ainvoke({"items": ["in"]}, thread("t")))
        except MilepostError as exc:
            link.send(type(exc).__name__)
        else:
            link.send("stored")


def racer(url: str, flavour: Flavour, number: int, link: Connection) -> None:
    """Takes the lease again and again, and adds to the thread in a few steps each time."""
    with milepost.connect(url) as saver:
        _carry_out(flavour, _race(Face(saver, flavour), number, link))


async def _race(face: Face, number: int, link: Connection) -> None:
    while True:
        try:
            async with face.lease("t", ttl=TTL, wait=None) as lease:
                for _ in range(3):
                    found = await face.get(at("t"))
                    items = [*(found.checkpoint["channel_values"]["m"] if found else ()), (lease.fence, number)]
                    made = checkpoint(f"{len(items):06}-{number}-{lease.fence}", {"m": items}, {"m": len(items)})
                    await face.put(found.config if found else at("t"), made)
                    link.send(("stored", made["id"], lease.fence))
        except LeaseLost:
            link.send(("lost", "", 0))
