"""A migration that moves the namespace of a subgraph, while a run of the older release is inside of it; and its undoing."""

from __future__ import annotations

import operator
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
NEW = {"": milepost.Schema(State, version=2, name="s", upgrades=[ms.Step(1, 2, ms.rename_node("work", "job"))])}


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
