"""A migration that moves the namespace of a subgraph, while a run of the older release is inside of it; and its undoing."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

import milepost
import pytest
from driving import Durability, Flavour, Graph, graph_of, thread
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START
from langgraph.types import Command, interrupt
from milepost import schema as ms
from milepost.errors import SchemaMismatch
from milepost.saver import Saver
from typing_extensions import TypedDict

pytestmark = pytest.mark.filterwarnings("ignore:.*DeltaChannel.*beta")

ONE = thread("one")


class State(TypedDict, total=False):
    done: list[str]
    out: Annotated[list[str], operator.add]


class Plain(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    done: list[str]


def _join(lines: list[str], batches: Sequence[list[str]]) -> list[str]:
    return [*(lines or []), *(line for batch in batches for line in batch)]


class Delta(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(_join, list)]
    done: list[str]


OLD = {"": milepost.Schema(State, version=1, name="s")}
STEPS = [ms.Step(1, 2, ms.rename_node("work", "job")), ms.Step(2, 3, ms.rename_node("job", "task"))]
NEW = {"": milepost.Schema(State, version=2, name="s", upgrades=STEPS[:1])}
NEWEST = {"": milepost.Schema(State, version=3, name="s", upgrades=STEPS)}


def _pays(ran: list[str]) -> Callable[[Any], dict[str, Any]]:
    """A node whose effects can be counted."""

    def pay(_: Any) -> dict[str, Any]:
        ran.append("paid")
        return {"log": ["paid"]}

    return pay


def _graph(
    saver: Saver, name: str, child: type, ran: list[str], *, kept: bool, meanwhile: Callable[[], object] = lambda: None
) -> Graph:
    """A subgraph that does something twice, and then asks."""

    def does(what: str, also: Callable[[], object] = lambda: None) -> Callable[[Any], dict[str, Any]]:
        def node(_: Any) -> dict[str, Any]:
            also()
            ran.append(what)
            return {"log": [what]}

        return node

    inner = graph_of(child)
    inner.add_node("note", does("noted"))
    inner.add_node("pay", does("paid", meanwhile))
    inner.add_node("ask", lambda state: {"log": [f"said {interrupt(state['log'])}"]})
    inner.add_node("end", lambda state: {"done": state["log"]})
    for before, after in ((START, "note"), ("note", "pay"), ("pay", "ask"), ("ask", "end")):
        inner.add_edge(before, after)
    builder = graph_of(State)
    builder.add_node(name, inner.compile(checkpointer=True if kept else None))
    builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("finalised", [False, True], ids=["kept", "finalised"])
@pytest.mark.parametrize("remembers", [False, True], ids=["call", "memory"])
@pytest.mark.parametrize("child", [Plain, Delta])
@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_what_is_done_inside_meanwhile_is_refused_and_nothing_else_is_lost(
    saver_url: str, flavour: Flavour, child: type, remembers: bool, finalised: bool, mode: Durability
) -> None:
    async with milepost.connect(saver_url, schema=OLD) as old:
        new, ran = Saver(old.backend, schema=NEW), list[str]()
        moves = [True]

        def migrate(**options: Any) -> None:
            refused = [told.refused for told in new.migrate(**options)]
            # While checkpoints are on their way, a namespace may stay.
            assert refused == [()] or (mode == "async" and options == {"history": True})

        def meanwhile() -> None:
            if moves.pop():
                migrate(history=True)

        graph = _graph(old, "work", child, ran, kept=remembers, meanwhile=meanwhile)
        # With "async", LangGraph does not look at what it has put before a question: it tells of the question.
        with pytest.raises(SchemaMismatch, match=r"has moved") if mode == "sync" else suppress(SchemaMismatch):
            await flavour.invoke(graph, {}, ONE, durability=mode)
        assert [told.refused for told in new.migrate(history=True)] == [()]
        if finalised:
            migrate(mode="finalise")
        newer = _graph(new, "job", child, ran, kept=remembers)
        asked = await flavour.invoke(newer, None, ONE)
        assert [question.value for question in asked["__interrupt__"]] == [["noted", "paid"]]
        if mode == "sync":
            # What was stored when the namespace moved is not done again.
            assert ran == ["noted", "paid", "paid"]
        done = await flavour.invoke(newer, Command(resume="yes"), ONE)
        assert done["done"] == ["noted", "paid", "said yes"]


@pytest.mark.parametrize("remembers", [False, True], ids=["call", "memory"])
async def test_a_run_of_the_older_release_does_not_take_a_moved_namespace_for_empty(
    saver_url: str, flavour: Flavour, remembers: bool
) -> None:
    async with milepost.connect(saver_url, schema=OLD) as old:
        new, ran = Saver(old.backend, schema=NEW), list[str]()
        graph = _graph(old, "work", Plain, ran, kept=remembers)
        await flavour.invoke(graph, {}, ONE)
        (before,) = (await flavour.state(graph, ONE, subgraphs=True)).tasks
        assert [told.refused for told in new.migrate(history=True)] == [()]
        assert before.state is not None
        with pytest.raises(SchemaMismatch):
            await flavour.invoke(graph, Command(resume="yes"), ONE)
        (inside,) = (await flavour.state(_graph(new, "job", Plain, ran, kept=remembers), ONE, subgraphs=True)).tasks
        assert inside.state is not None
        assert getattr(inside.state, "values", None) == getattr(before.state, "values", ())


async def test_what_called_a_subgraph_goes_back_with_it(saver_url: str, flavour: Flavour) -> None:
    """Or stays with it: where the root was written to since, its subgraph would not be found under the former name."""

    def asks(saver: Saver, name: str, ran: list[str]) -> Graph:
        def pay(_: State) -> State:
            ran.append("paid")
            return {"out": ["paid"]}

        inner = graph_of(State)
        inner.add_node("pay", pay)
        inner.add_node("ask", lambda _: {"out": [f"child {interrupt('child')}"]})
        inner.add_edge(START, "pay")
        inner.add_edge("pay", "ask")
        builder = graph_of(State)
        builder.add_node(name, inner.compile())
        builder.add_node("beside", lambda _: {"out": [f"beside {interrupt('beside')}"]})
        builder.add_edge(START, name)
        builder.add_edge(START, "beside")
        return builder.compile(checkpointer=saver)

    async with milepost.connect(saver_url, schema=OLD) as old:
        new, ran = Saver(old.backend, schema=NEW), list[str]()
        await flavour.invoke(asks(old, "work", ran), {}, ONE)
        assert [told.refused for told in new.migrate(history=True)] == [()]
        graph = asks(new, "job", ran)
        questions = {one.value: one.id for task in (await flavour.state(graph, ONE)).tasks for one in task.interrupts}
        await flavour.invoke(graph, Command(resume={questions["beside"]: "yes"}), ONE)
        (undone,) = list(new.migrate(mode="undo"))
        assert any("a checkpoint that called it does" in why for why in undone.refused)
        done = await flavour.invoke(asks(Saver(old.backend, schema=NEW), "job", ran), Command(resume="yes"), ONE)
        assert sorted(done["out"]) == ["beside yes", "child yes", "paid"]
        assert ran == ["paid"]


@pytest.mark.parametrize(
    ("again", "mode"),
    [("", "async"), *((again, "sync") for again in ("", "migrated", "finalised", "newest", "newest migrated"))],
)
@pytest.mark.parametrize("shape", ["first", "second", "inner"])
@pytest.mark.parametrize("child", [Plain, Delta])
async def test_a_call_that_an_older_run_begins_after_the_move_is_gone_on_with(
    saver_url: str, flavour: Flavour, child: type, shape: str, again: str, mode: Durability
) -> None:
    """It is stored under the former name, for its run knows no other one."""
    async with milepost.connect(saver_url, schema=OLD) as old:
        new, ran = Saver(old.backend, schema=NEW), list[str]()
        moves = [True]

        def migrate() -> None:
            if moves.pop() if moves else False:
                # What called may be on its way: where that has not moved, the newer release begins before it.
                while sum(found.metadata.get("step") == 0 for found in old.list(ONE)) < (2 if shape == "inner" else 1):
                    time.sleep(0.001)
                assert [told.refused for told in new.migrate(history=True)] == [()]

        def graph(saver: Saver, name: str) -> Graph:
            asks = graph_of(child)
            asks.add_node("pay", _pays(ran))
            asks.add_node("ask", lambda state: {"log": [f"said {interrupt(state['log'])}"]})
            asks.add_node("end", lambda state: {"done": state["log"]})
            for before, after in ((START, "pay"), ("pay", "ask"), ("ask", "end")):
                asks.add_edge(before, after)
            inner = asks.compile()
            quick = graph_of(child)
            quick.add_node("note", lambda _: {"log": ["noted"]})
            quick.add_edge(START, "note")
            noting = quick.compile()

            def calls(_: Any) -> Any:
                if shape == "second":
                    noting.invoke({})
                migrate()
                return {"done": inner.invoke({})["done"]}

            builder = graph_of(State)
            node: Any = calls
            if shape == "inner":
                middle = graph_of(State)
                middle.add_node("middle", calls)
                middle.add_edge(START, "middle")
                node = middle.compile()
            builder.add_node(name, node)
            builder.add_edge(START, name)
            return builder.compile(checkpointer=saver)

        await flavour.invoke(graph(old, "work"), {}, ONE, durability=mode)
        last = Saver(old.backend, schema=NEWEST) if again.startswith("newest") else new
        if again not in ("", "newest"):
            assert [told.refused for told in last.migrate(history=True)] == [()]
        if again == "finalised":
            assert [told.refused for told in new.migrate(mode="finalise")] == [()]
        newer = graph(last, "job" if last is new else "task")
        asked = await flavour.invoke(newer, None, ONE)
        assert [question.value for question in asked["__interrupt__"]] == [["paid"]]
        done = await flavour.invoke(newer, Command(resume="yes"), ONE)
        assert done["done"] == ["paid", "said yes"]
        assert ran == ["paid"]


def _remembering(saver: Saver, name: str, ran: list[str], meanwhile: Callable[[], object]) -> Graph:
    """A node that calls a subgraph with a memory, after something else has happened."""
    inner = graph_of(Plain)
    inner.add_node("pay", _pays(ran))
    inner.add_edge(START, "pay")
    remembers = inner.compile(checkpointer=True)

    def calls(_: Any) -> Any:
        meanwhile()
        return {"done": remembers.invoke({})["log"]}

    builder = graph_of(State)
    builder.add_node(name, calls)
    builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("mode", ["sync", "async", "exit"])
async def test_an_older_run_does_not_call_a_subgraph_whose_memory_has_moved(
    saver_url: str, flavour: Flavour, mode: Durability
) -> None:
    """It would begin with an empty one."""
    async with milepost.connect(saver_url, schema=OLD) as old:
        new, ran = Saver(old.backend, schema=NEW), list[str]()
        moves = [True, False]

        def migrate() -> None:
            if moves.pop() if moves else False:
                assert [told.refused for told in new.migrate(history=True)] == [()]

        def graph(saver: Saver, name: str) -> Graph:
            return _remembering(saver, name, ran, migrate)

        await flavour.invoke(graph(old, "work"), {}, ONE)
        # In another process, which was not in it before.
        other = Saver(old.backend, schema=OLD)
        with pytest.raises(SchemaMismatch, match=r"has moved"):
            await flavour.invoke(graph(other, "work"), {}, ONE, durability=mode)
        done = await flavour.invoke(graph(new, "job"), {}, ONE)
        assert done["done"] == ran == ["paid", "paid"]


async def test_a_memory_that_an_older_run_begins_after_the_migration_moves_with_the_next_one(
    saver_url: str, flavour: Flavour
) -> None:
    """So that it is found when the upgrade is not declared any more."""
    async with milepost.connect(saver_url, schema=OLD) as old:
        new, ran = Saver(old.backend, schema=NEW), list[str]()
        moves = [True]

        def migrate() -> None:
            if moves.pop() if moves else False:
                assert [told.refused for told in new.migrate(history=True)] == [()]

        def graph(saver: Saver, name: str) -> Graph:
            return _remembering(saver, name, ran, migrate)

        await flavour.invoke(graph(old, "work"), {}, ONE, durability="sync")
        assert [told.refused for told in new.migrate(history=True)] == [()]
        assert [told.refused for told in new.migrate(mode="finalise")] == [()]
        last = Saver(old.backend, schema={"": milepost.Schema(State, version=2, name="s")})
        done = await flavour.invoke(graph(last, "job"), {}, ONE)
        assert done["done"] == ran == ["paid", "paid"]


async def test_a_late_call_of_a_node_whose_name_was_passed_on_stays_its_own(saver_url: str, flavour: Flavour) -> None:
    """However often it is migrated: by names alone, it could be taken for one of the node that had this name before."""
    upgrade = ms.Step(1, 2, ms.rename_node("m", "z"), ms.rename_node("n", "m"))
    schema = {"": milepost.Schema(State, version=2, name="s", upgrades=[upgrade])}
    async with milepost.connect(saver_url, schema=OLD) as old:
        ran, moves = list[str](), [True]

        def graph(saver: Saver, first: str, other: str) -> Graph:
            inner = graph_of(Plain)
            inner.add_node("pay", _pays(ran))
            inner.add_node("ask", lambda state: {"log": [f"said {interrupt(state['log'])}"]})
            inner.add_edge(START, "pay")
            inner.add_edge("pay", "ask")
            asks = inner.compile()

            def calls(_: Any) -> Any:
                if moves.pop() if moves else False:
                    assert [told.refused for told in Saver(old.backend, schema=schema).migrate(history=True)] == [()]
                return {"done": asks.invoke({})["log"]}

            builder = graph_of(State)
            builder.add_node(first, calls)
            builder.add_node(other, asks)
            builder.add_edge(START, first)
            builder.add_edge(first, other)
            return builder.compile(checkpointer=saver)

        await flavour.invoke(graph(old, "n", "m"), {}, ONE, durability="sync")
        new = Saver(old.backend, schema=schema)
        for _ in range(3):
            list(new.migrate(history=True))
        newer = graph(new, "m", "z")
        asked = await flavour.invoke(newer, None, ONE)
        assert [question.value for question in asked["__interrupt__"]] == [["paid"]]
        assert ran == ["paid"]
        await flavour.invoke(newer, Command(resume="yes"), ONE)
        assert ran == ["paid", "paid"]
