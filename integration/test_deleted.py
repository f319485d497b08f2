"""Threads that are deleted while a run drives them: nothing of it comes back, and another run starts afresh."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Annotated, Any

import pytest
from driving import Durability, Flavour, Graph, graph_of, thread
from langgraph.graph import START
from milepost.errors import MilepostError, ThreadDeleted
from milepost.ledger import unsafe
from milepost.operations import Operations
from milepost.saver import Saver
from milepost.testing.chain import checkpoint
from milepost.tools import Ledger
from typing_extensions import TypedDict

ONE = thread("one")


class Said(TypedDict):
    said: Annotated[list[str], operator.add]


def says(what: str, also: Callable[[], object] = lambda: None) -> Callable[[Said], dict[str, Any]]:
    def node(_: Said) -> dict[str, Any]:
        also()
        return {"said": [what]}

    return node


def chained(*nodes: tuple[str, Any]) -> Any:
    builder = graph_of(Said)
    before = START
    for name, node in nodes:
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder


def deleting(saver: Saver, delete: Callable[[], object]) -> Graph:
    """A run that goes on for some steps, some of them in subgraphs, after its first one has called `delete`."""
    calls, remembers = (
        chained((name, says(name))).compile(checkpointer=kept) for name, kept in (("x", None), ("y", True))
    )
    compiled: Graph = chained(
        ("delete", says("delete", delete)),
        ("then", says("then")),
        ("calls", calls),
        ("remembers", remembers),
        ("end", says("end")),
    ).compile(checkpointer=saver)
    return compiled


async def deleted_under_a_run(
    saver: Saver, flavour: Flavour, durability: Durability, delete: Callable[[], object]
) -> tuple[Graph, Any]:
    """The graph, and what its first run came to: its second one has called `delete`, and was refused."""
    deletes: list[Callable[[], object]] = []
    graph = deleting(saver, lambda: deletes.pop()() if deletes else None)
    first = await flavour.invoke(graph, {"said": ["in"]}, ONE, durability=durability)
    deletes.append(delete)
    with pytest.raises(ThreadDeleted):
        await flavour.invoke(graph, {"said": ["again"]}, ONE, durability=durability)
    assert not deletes
    return graph, first


@pytest.mark.parametrize("how", ["deleted", "erased"])
async def test_nothing_stays_of_a_run_whose_thread_is_deleted(
    saver: Saver, flavour: Flavour, durability: Durability, how: str
) -> None:
    graph, first = await deleted_under_a_run(
        saver, flavour, durability, lambda: saver.delete_thread("one") if how == "deleted" else saver.erase(["one"])
    )
    assert saver.stats("one")[:4] == (0, 0, 0, 0)
    assert list(saver.threads()) == []
    # The same code goes on with the thread, which is a new one.
    assert await flavour.invoke(graph, {"said": ["in"]}, ONE, durability=durability) == first
    assert (await flavour.state(graph, ONE)).values == first


@pytest.mark.parametrize("stored_before", [False, True])
@pytest.mark.parametrize("verb", ["_put", "_put_writes"])
async def test_nothing_stays_of_what_was_cancelled_when_it_was_stored(
    saver: Saver,
    flavour: Flavour,
    durability: Durability,
    verb: str,
    stored_before: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LangGraph cancels what is under way when a put is refused; and so does who deletes a thread and stops its run."""
    # Only with "async" a node runs before what comes before it is stored.
    if flavour.name != "async" or durability == "exit" or (stored_before and durability != "async"):
        return
    store = getattr(Operations, verb)
    deleted: list[bool] = []
    deletes: list[bool] = []
    over = threading.Event()

    async def cancelled(self: Operations, *given: Any) -> Any:
        stored = await store(self, *given)
        if stored_before and deletes:
            await asyncio.to_thread(over.wait)
        if deleted:
            raise asyncio.CancelledError
        return stored

    def delete() -> None:
        if deletes:
            saver.delete_thread("one")
            deleted.append(deletes.pop())
            over.set()

    monkeypatch.setattr(Operations, verb, cancelled)
    graph = deleting(saver, delete)
    await flavour.invoke(graph, {"said": ["in"]}, ONE, durability=durability)
    deletes.append(True)
    # How it ends depends on what is cancelled.
    with suppress(MilepostError, asyncio.CancelledError):
        await flavour.invoke(graph, {"said": ["again"]}, ONE, durability=durability)
    assert saver.stats("one")[:4] == (0, 0, 0, 0)
    assert list(saver.threads()) == []


async def test_a_thread_that_was_brought_back_is_not_taken_from_its_run(saver: Saver, flavour: Flavour) -> None:
    """Who copies it back says that its runs may go on."""

    def gone_and_back() -> None:
        if undone:
            undone.pop()
            saver.delete_thread("one")
            saver.copy_thread("spare", "one")

    undone: list[bool] = []
    graph = chained(("a", says("a", gone_and_back)), ("b", says("b"))).compile(checkpointer=saver)
    await flavour.invoke(graph, {"said": ["in"]}, ONE, durability="sync")
    spares = says("c", lambda: saver.copy_thread("one", "spare"))
    graph = chained(("c", spares), ("a", says("a", gone_and_back))).compile(checkpointer=saver)
    undone.append(True)
    done = await flavour.invoke(graph, {"said": ["again"]}, ONE, durability="sync")
    assert done == (await flavour.state(graph, ONE)).values == {"said": ["in", "a", "b", "again", "c", "a"]}


async def test_a_run_is_refused_at_once_when_its_own_process_has_deleted_its_thread(saver: Saver) -> None:
    """Also what would be accepted because nobody can tell what it rests on."""
    runtime = object()

    def config(id: str | None = None, ns: str = "") -> Any:
        named = {} if id is None else {"checkpoint_id": id}
        return {"configurable": {"thread_id": "one", "checkpoint_ns": ns, "__pregel_runtime": runtime, **named}}

    versions: Any = {"n": "1"}
    metadata: Any = {"source": "loop", "step": 0}
    saver.put(ONE, checkpoint("0001", {"n": 1}, versions), metadata, versions)
    assert saver.get_tuple(config()) is not None
    saver.delete_thread("one")
    with pytest.raises(ThreadDeleted):
        saver.put_writes(config("0002"), [("n", 2)], "task")
    with pytest.raises(ThreadDeleted):
        saver.put(config(ns="sub:1"), checkpoint("0003", {"n": 1}, versions), metadata, versions)
    assert saver.stats("one")[:4] == (0, 0, 0, 0)


@pytest.mark.parametrize("when", ["deleted", "deleted and read"])
async def test_what_belongs_to_no_run_is_taken_after_the_deletion(
    saver: Saver, flavour: Flavour, durability: Durability, when: str
) -> None:
    """The context that a run of the async flavour leaves behind is not the run."""
    graph, _ = await deleted_under_a_run(saver, flavour, durability, lambda: saver.delete_thread("one"))
    ledger = Ledger(saver, tools={"greet": unsafe()})
    if when == "deleted and read":
        assert (await flavour.state(graph, ONE)).values == {}

    def greet(whom: str) -> str:
        return f"hello {whom}"

    async def once() -> str:
        if flavour.name == "async":
            return str(await ledger.aonce("key", greet, "you", thread_id="one"))
        return str(ledger.once("key", greet, "you", thread_id="one"))

    assert [await once(), await once()] == ["hello you"] * 2
    await flavour.update(graph, ONE, {"said": ["by hand"]}, "delete")
    assert (await flavour.state(graph, ONE)).values == {"said": ["by hand"]}


async def test_a_step_that_is_retried_after_the_deletion_leaves_nothing(saver: Saver, flavour: Flavour) -> None:
    deletes: list[Callable[[], object]] = []

    def fails() -> None:
        if deletes:
            deletes.pop()()
            raise RuntimeError("after the deletion")

    graph = chained(("a", says("a")), ("fails", says("b", fails)), ("end", says("end"))).compile(checkpointer=saver)
    await flavour.invoke(graph, {"said": []}, ONE)
    deletes.append(lambda: saver.delete_thread("one"))
    with pytest.raises((RuntimeError, ThreadDeleted)):
        await flavour.invoke(graph, {"said": []}, ONE)
    assert saver.stats("one")[:4] == (0, 0, 0, 0)
    assert await flavour.invoke(graph, {"said": ["in"]}, ONE) == {"said": ["in", "a", "b", "end"]}


async def test_a_run_that_begins_after_the_deletion_is_not_the_one_before_it(
    saver: Saver, flavour: Flavour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its first read is made in a context of its own, as under a time limit."""
    graph = chained(("calls", chained(("a", says("a"))).compile())).compile(checkpointer=saver)
    await flavour.invoke(graph, {"said": []}, ONE)
    saver.delete_thread("one")
    get, aget = saver.get_tuple, saver.aget_tuple
    monkeypatch.setattr(saver, "get_tuple", lambda config: copy_context().run(get, config))

    async def apart(config: Any) -> Any:
        return await asyncio.create_task(aget(config))

    monkeypatch.setattr(saver, "aget_tuple", apart)
    assert await flavour.invoke(graph, {"said": ["in"]}, ONE) == {"said": ["in", "in", "a"]}
