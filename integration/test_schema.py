"""Threads that outlive their graph: they wait under one release, and another one goes on with them."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, cast

import milepost
import pytest
from driving import Flavour, Graph, graph_of, thread
from langgraph.graph import END, START
from langgraph.types import Command, Send, interrupt
from milepost import schema as ms
from milepost.errors import SchemaMismatch
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")


@dataclass
class Order:
    """Where the class is in release 3."""

    number: int
    item: str


class First(TypedDict, total=False):
    order: Any
    note: str
    log: Annotated[list[str], operator.add]


class Third(TypedDict, total=False):
    purchase: Any
    log: Annotated[list[str], operator.add]
    tags: list[str]


ONE_SCHEMA = milepost.Schema(First, version=1, name="shop")
THREE_SCHEMA = milepost.Schema(
    Third,
    version=3,
    name="shop",
    upgrades=[
        ms.Step(1, 2, ms.rename_channel("order", "purchase"), ms.rename_class("old_shop:Order", Order)),
        ms.Step(
            2,
            3,
            ms.rename_node("ask", "approve"),
            ms.drop_channel("note"),
            ms.add_channel("tags", ["migrated"]),
            ms.map_channel("log", lambda lines: [line.upper() for line in lines]),
        ),
    ],
)


@pytest.fixture
def old_order() -> Iterator[type]:
    """The class as release 1 has it, in a module that is gone afterwards."""
    module = ModuleType("old_shop")

    @dataclass
    class Old:
        number: int
        item: str

    Old.__module__, Old.__qualname__, Old.__name__ = "old_shop", "Order", "Order"
    vars(module)["Order"] = Old
    sys.modules["old_shop"] = module
    yield Old
    sys.modules.pop("old_shop", None)


def _release_1(saver: Saver, order: type) -> Graph:
    builder = graph_of(First)
    builder.add_node("take", lambda _: {"order": order(7, "lamp"), "note": "n", "log": ["taken"]})

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"log": [f"answer {interrupt(state['order'].item)}"]}

    builder.add_node("ask", ask)
    builder.add_node("stock", lambda _: {"log": ["stocked"]})
    builder.add_node("ship", lambda _: {"log": ["shipped"]})
    builder.add_edge(START, "take")
    builder.add_edge("take", "ask")
    builder.add_edge("take", "stock")
    builder.add_edge(["ask", "stock"], "ship")
    builder.add_edge("ship", END)
    return builder.compile(checkpointer=saver)


def _release_3(saver: Saver, ran: list[str]) -> Graph:
    def notes(name: str, **update: Any) -> Any:
        def node(_: Third) -> dict[str, Any]:
            ran.append(name)
            return update

        return node

    builder = graph_of(Third)
    builder.add_node("take", notes("take"))

    def approve(state: dict[str, Any]) -> dict[str, Any]:
        answer = interrupt(f"{state['purchase'].item}?")
        ran.append("approve")
        return {"log": [f"{answer} {state['purchase'].number} {state['tags']}"]}

    builder.add_node("approve", approve)
    builder.add_node("stock", notes("stock"))
    builder.add_node("ship", notes("ship", log=["shipped"]))
    builder.add_edge(START, "take")
    builder.add_edge("take", "approve")
    builder.add_edge("take", "stock")
    builder.add_edge(["approve", "stock"], "ship")
    builder.add_edge("ship", END)
    return builder.compile(checkpointer=saver)


async def test_a_thread_waits_under_release_1_and_goes_on_under_release_3(
    saver_url: str, flavour: Flavour, old_order: type
) -> None:
    async with milepost.connect(saver_url, schema=ONE_SCHEMA) as first:
        await flavour.invoke(_release_1(first, old_order), {"log": ["in"]}, ONE)
        del sys.modules["old_shop"]
        ran: list[str] = []
        graph = _release_3(Saver(first.backend, schema=THREE_SCHEMA), ran)
        state = await flavour.state(graph, ONE)
        assert state.next == ("approve",)
        assert state.values["purchase"] == Order(7, "lamp")
        assert state.values["tags"] == ["migrated"]
        assert state.values.keys() == {"purchase", "log", "tags"}
        assert {task.name: [question.value for question in task.interrupts] for task in state.tasks} == {
            "approve": ["lamp"],
            "stock": [],
        }
        done = await flavour.invoke(graph, Command(resume="yes"), ONE)
        # What had finished is not run again, and the join behind both is reached.
        assert ran == ["approve", "ship"]
        assert done["log"] == ["IN", "TAKEN", "yes 7 ['migrated']", "STOCKED", "shipped"]
        assert (await flavour.state(graph, ONE)).next == ()


class Inner(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    steps: Annotated[list[str], operator.add]


def _nesting(saver: Saver, name: str) -> Graph:
    child = graph_of(Inner)
    child.add_node("first", lambda _: {"steps": ["first"]})
    child.add_node("ask", lambda state: {"log": [f"{state['steps']} {interrupt('?')}"], "steps": ["asked"]})
    child.add_node("second", lambda state: {"log": [f"{state['steps']} {interrupt('again?')}"]})
    child.add_edge(START, "first")
    child.add_edge("first", "ask")
    child.add_edge("ask", "second")
    builder = graph_of(First)
    builder.add_node(name, child.compile())
    builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("migrated", [False, True], ids=["read", "migrated"])
async def test_a_subgraph_in_a_renamed_node_goes_on(saver_url: str, flavour: Flavour, migrated: bool) -> None:
    renamed = milepost.Schema(
        First, version=2, name="shop", upgrades=[ms.Step(1, 2, ms.rename_node("old", "new"))], drift="refuse"
    )
    async with milepost.connect(saver_url, schema=milepost.Schema(First, version=1, name="shop")) as first:
        await flavour.invoke(_nesting(first, "old"), {"log": ["in"]}, ONE)
        if migrated:
            (told,) = Saver(first.backend, schema=renamed).migrate(history=True)
            assert not told.refused
            renamed = milepost.Schema(First, version=2, name="shop", drift="refuse")
        # Each turn by a saver that knows nothing of the one before.
        for answer in ("yes", "no"):
            graph = _nesting(Saver(first.backend, schema=renamed), "new")
            assert (await flavour.state(graph, ONE)).next == ("new",)
            done = await flavour.invoke(graph, Command(resume=answer), ONE)
        assert done["log"] == ["in", "in", "['first'] yes", "['first', 'asked'] no"]


class Narrow(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Wide(Narrow, total=False):
    tags: list[str]


_ADDED = [ms.Step(1, 2, ms.add_channel("tags", ["default"]))]
_NARROW = milepost.Schema(Narrow, version=1, name="chat")
_WIDE = milepost.Schema(Wide, version=2, name="chat", upgrades=_ADDED, readable_from=1)
_ALONE = milepost.Schema(Wide, version=2, name="chat", upgrades=_ADDED)


def _chat(saver: Saver, version: int) -> Graph:
    """Both releases have the same nodes; the newer one has one key more, which it reads and writes."""

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        seen = f" {state['tags']}" if version == 2 else ""
        return {"log": [f"{interrupt('?')}{seen}"], **({"tags": ["set"]} if version == 2 else {})}

    builder = graph_of(Wide if version == 2 else Narrow)
    builder.add_node("ask", ask)
    builder.add_node("beside", lambda _: {"log": ["beside"]})
    builder.add_edge(START, "ask")
    builder.add_edge(START, "beside")
    return builder.compile(checkpointer=saver)


async def test_two_releases_side_by_side_on_one_thread(saver_url: str, flavour: Flavour) -> None:
    """Each turn is begun by one of them and ended by one of them, in every order."""
    async with milepost.connect(saver_url, schema=_NARROW) as first:
        graphs = {1: _chat(first, 1), 2: _chat(Saver(first.backend, schema=_WIDE), 2)}
        expected: list[str] = []
        tags = ["default"]
        for turn, (begins, ends) in enumerate([(1, 2), (2, 1), (2, 2), (2, 1), (1, 1), (1, 2), (2, 2)]):
            await flavour.invoke(graphs[begins], {"log": [f"turn {turn}"]}, ONE)
            # What a step of the older release has left out is the default again.
            tags = ["default"] if begins == 1 else tags
            for graph in graphs.values():
                assert (await flavour.state(graph, ONE)).next == ("ask",)
            done = await flavour.invoke(graphs[ends], Command(resume=f"answer {turn}"), ONE)
            expected += [f"turn {turn}", f"answer {turn}" + (f" {tags}" if ends == 2 else ""), "beside"]
            assert done["log"] == expected
            tags = ["set"] if ends == 2 else ["default"]
            assert (await flavour.state(graphs[2], ONE)).values == {"log": expected, "tags": tags}
            assert (await flavour.state(graphs[1], ONE)).values == {"log": expected}


async def test_a_newer_release_that_does_not_say_so_is_refused_by_the_older(saver_url: str, flavour: Flavour) -> None:
    async with milepost.connect(saver_url, schema=_ALONE) as second:
        await flavour.invoke(_chat(second, 2), {"log": ["in"], "tags": []}, ONE)
        older = _chat(Saver(second.backend, schema=_NARROW), 1)
        for attempt in (flavour.state(older, ONE), flavour.invoke(older, Command(resume="yes"), ONE)):
            with pytest.raises(SchemaMismatch, match="version 2 of schema 'chat'; this release has version 1"):
                await attempt
        assert (await flavour.state(_chat(second, 2), ONE)).next == ("ask",)


def _asking(saver: Saver, node: str) -> Graph:
    builder = graph_of(Narrow)
    builder.add_node(node, lambda _: {"log": [interrupt("?")]})
    builder.add_edge(START, node)
    return builder.compile(checkpointer=saver)


async def test_a_renamed_node_that_nobody_declared_is_refused(saver_url: str, flavour: Flavour) -> None:
    async with milepost.connect(saver_url, schema=_NARROW) as first:
        await flavour.invoke(_asking(first, "ask"), {"log": ["in"]}, ONE)

        def under(*changes: ms.Change) -> Graph:
            upgrades = [ms.Step(1, 2, *changes)]
            schema = milepost.Schema(Wide, version=2, name="chat", upgrades=upgrades, nodes=["approve"])
            return _asking(Saver(first.backend, schema=schema), "approve")

        silent = under(ms.add_channel("tags", []))
        for attempt in (flavour.state(silent, ONE), flavour.invoke(silent, Command(resume="yes"), ONE)):
            with pytest.raises(SchemaMismatch, match="waits for node 'ask', which is not among the schema's nodes"):
                await attempt
        told = under(ms.add_channel("tags", []), ms.rename_node("ask", "approve"))
        assert (await flavour.state(told, ONE)).next == ("approve",)
        assert (await flavour.invoke(told, Command(resume="yes"), ONE))["log"] == ["in", "yes"]


async def test_all_that_a_graph_waits_for_is_among_its_nodes(flavour: Flavour) -> None:
    """A graph with all ways from node to node: whatever it has stored on its way is read with its nodes listed."""

    def choose(_: Any) -> Command[Any]:
        return Command(goto=["left", "right+", Send("part", {"log": ["sent"]}), Send("part", {"log": ["sent"]})])

    def fail(_: Any) -> None:
        raise ValueError("on purpose")

    child = graph_of(Narrow).add_node("ask", lambda _: {"log": [interrupt("?")]}).add_edge(START, "ask")
    builder = graph_of(Narrow)
    builder.add_node("choose", choose)
    builder.add_node("left", lambda _: {"log": ["left"]})
    builder.add_node("right+", child.compile())
    builder.add_node("part", lambda state: {"log": [f"{state['log']} {interrupt('part?')}"]})
    builder.add_node("joined", lambda _: {"log": ["joined"]})
    builder.add_node("failing", fail, error_handler=lambda _: {"log": ["handled"]})
    builder.add_node("last", lambda _: {"log": ["last"]}, defer=True)
    builder.add_edge(START, "choose")
    builder.add_edge(["left", "right+"], "joined")
    builder.add_edge("joined", "failing")
    builder.add_conditional_edges("part", lambda _: "last", ["last"])
    listed = milepost.Schema(Narrow, version=1, nodes=cast("Any", builder).nodes)
    nested = milepost.Schema(Narrow, version=1, nodes=["ask"])
    async with milepost.connect("memory:", schema={"": listed, "right+": nested}) as saver:
        graph = builder.compile(checkpointer=saver)
        waiting = await flavour.invoke(graph, {"log": ["in"]}, ONE)
        for _ in range(3):
            await flavour.state(graph, ONE, subgraphs=True)
            (first, *_) = waiting["__interrupt__"]
            waiting = await flavour.invoke(graph, Command(resume={first.id: "yes"}), ONE)
        assert sorted(set(waiting["log"])) == ["['sent'] yes", "handled", "in", "joined", "last", "left", "yes"]
        seen = await flavour.tuples(saver, thread("one", checkpoint_ns=""))
        assert len(seen) == len(await flavour.history(graph, ONE)) > 4
        assert any("__pregel_tasks" in one.checkpoint["channel_values"] for one in seen)
        assert await flavour.tuples(saver, ONE)
