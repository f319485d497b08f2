"""Streams whose parts are read elsewhere: each in another thread, task and context, as web frameworks read them."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Annotated, Any

import milepost
import pytest
from driving import Durability, Graph, graph_of, thread
from langchain_core.callbacks import BaseCallbackHandler
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config
from langgraph.graph import START
from milepost.errors import LeaseLost
from milepost.saver import Saver
from milepost.tools import CallSuperseded, Ledger, current_call, unsafe
from reading import Reader, Threads, rest
from stores import url_of
from typing_extensions import TypedDict

IN: dict[str, Any] = {"items": ["in"]}


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def _chain(saver: BaseCheckpointSaver[Any], **nodes: Callable[[State], Any]) -> Graph:
    builder, before = graph_of(State), START
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder.compile(checkpointer=saver)


def _says(what: str) -> Callable[[State], dict[str, Any]]:
    return lambda _: {"items": [what]}


def _alone(work: Callable[[], Any]) -> Any:
    """What `work` returns where nobody's lease is known."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


async def test_what_is_read_elsewhere_is_written_under_the_lease(
    saver: Saver, reader: Reader, durability: Durability
) -> None:
    plain = _chain(saver, a=_says("a"), b=_says("b"), c=_says("c"))

    def succeed() -> None:
        with saver.lease("t", steal=True):
            plain.invoke({"items": ["successor's"]}, thread("t"))

    parts = reader.open(milepost.exclusive(plain, saver), IN, thread("t"), durability=durability)
    assert await reader.next(parts) == {"a": {"items": ["a"]}}
    await asyncio.to_thread(_alone, succeed)
    after = await plain.aget_state(thread("t"))
    with pytest.raises(LeaseLost):
        await rest(reader, parts)
    assert await plain.aget_state(thread("t")) == after
    assert after.values["items"][-4:] == ["successor's", "a", "b", "c"]


async def test_the_whole_of_it_is_one_run(saver: Saver, reader: Reader) -> None:
    """A node in a later part has part in the lease, and nobody else has, between the parts and where they are read."""

    def again(_: State) -> dict[str, Any]:
        graph.update_state(thread("t"), {"items": ["by hand"]}, as_node="a")
        return {"items": ["again"]}

    graph = milepost.exclusive(_chain(saver, a=_says("a"), again=again), saver)
    parts = reader.open(graph, IN, thread("t"))
    await reader.next(parts)
    with pytest.raises(milepost.Busy):
        await graph.ainvoke(IN, thread("t"))
    assert await rest(reader, parts) == [{"again": {"items": ["again"]}}]
    async with saver.lease("t") as lease:
        assert lease.tries == 0


async def test_an_effect_in_a_later_part_is_not_begun_by_who_lost_the_thread(saver: Saver, reader: Reader) -> None:
    done: list[str] = []
    thief = saver.lease("t", steal=True)

    @Ledger(saver).effect(key=lambda: "pay", policy=unsafe)
    def pay() -> None:
        _alone(thief.__enter__)
        current_call().check()
        done.append("paid")

    def effect(_: State) -> dict[str, Any]:
        pay()
        return {"items": ["paid"]}

    parts = reader.open(milepost.exclusive(_chain(saver, a=_says("a"), pay=effect), saver), IN, thread("t"))
    await reader.next(parts)
    with pytest.raises(CallSuperseded):
        await rest(reader, parts)
    assert not done
    await asyncio.to_thread(_alone, lambda: thief.__exit__(None, None, None))


async def test_who_closes_it_elsewhere_gives_the_lease_back_and_leaves_nothing(saver: Saver, reader: Reader) -> None:
    graph = _chain(saver, a=_says("a"), b=_says("b"))
    before = copy_context()
    parts = reader.open(milepost.exclusive(graph, saver), IN, thread("t"))
    part = next(parts) if isinstance(reader, Threads) else await anext(parts)
    assert part == {"a": {"items": ["a"]}}
    assert {name: value for name, value in copy_context().items() if name.name.startswith("milepost")} == {
        name: value for name, value in before.items() if name.name.startswith("milepost")
    }
    await reader.close(parts)

    def another() -> None:
        with saver.lease("t") as lease:
            assert lease.tries == 0

    await asyncio.to_thread(_alone, another)
    # What this code writes now is nobody's.
    await graph.ainvoke(IN, thread("t"))


_said: ContextVar[str] = ContextVar("said", default="nothing")


class _Names(BaseCallbackHandler):
    """The names of what is run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_chain_start(self, serialized: Any, inputs: Any, **more: Any) -> None:
        del serialized, inputs
        self.names.append(more["name"])


@pytest.mark.parametrize("flavour", ["blocking", "async"])
async def test_the_nodes_see_the_context_of_who_began_to_read(flavour: str, saver: Saver) -> None:
    """Its context variables, and as part of another run what that was given: as without the lease."""
    seen: list[Any] = []

    def look(_: State) -> dict[str, Any]:
        config = get_config()
        seen.append((_said.get(), config.get("tags"), (config.get("metadata") or {}).get("told")))
        return {"items": ["seen"]}

    def around(inner: Graph) -> Graph:
        def blocking(_: State) -> dict[str, Any]:
            return {"items": [str(part) for part in inner.stream(IN, thread("inner"))]}

        async def awaited(_: State) -> dict[str, Any]:
            return {"items": [str(part) async for part in inner.astream(IN, thread("inner"))]}

        return _chain(saver, inner=blocking if flavour == "blocking" else awaited)

    plain = _chain(saver, look=look, again=look)
    found: list[Any] = []
    for inner in (plain, milepost.exclusive(plain, saver)):
        names, config = _Names(), thread("outer")
        config |= {"callbacks": [names], "tags": ["tag"], "metadata": {"told": "so"}}
        outer = around(inner)
        token = _said.set("hello")
        result = (
            await outer.ainvoke({"items": []}, config) if flavour == "async" else outer.invoke({"items": []}, config)
        )
        _said.reset(token)
        found.append((result["items"][-2:], names.names, seen[-2:]))
        await saver.adelete_thread("outer")
    assert found[0] == found[1]
    assert found[0][2] == [("hello", ["tag"], "so")] * 2


@pytest.mark.parametrize("store", ["memory", "files", "postgres", "redis"])
def test_a_loop_that_ends_while_it_is_read(store: str, tmp_path: Path) -> None:
    kept: list[Any] = []
    trouble: list[Any] = []

    with milepost.connect(url_of(store, tmp_path)) as saver:

        async def begin() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
            graph = milepost.exclusive(_chain(saver, a=_says("a"), b=_says("b")), saver)
            # Else the loop may end before the first checkpoint has reached the store.
            parts: Any = graph.astream(IN, thread("t"), durability="sync")
            await anext(parts)
            kept.append(parts)

        asyncio.run(begin())
        assert not trouble
        [row] = saver.threads()
        assert row.status == "idle"
