"""Releases that give nodes other names, one after the other, while a task of one step asks again and again."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any

import milepost
import pytest
from driving import Flavour, Graph, graph_of, thread
from langgraph.graph import START
from langgraph.types import Command, Interrupt, Send, interrupt
from milepost import schema as ms
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")
OUTER, INNER = ("o", "m", "n"), ("ask", "request", "inquire")
"""What the nodes are called by each of the releases."""


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def _graph(saver: Saver, name: str, inner: str, *, sent: bool = False, kept: bool = False) -> Graph:
    """A subgraph whose node asks thrice, and a node beside it that asks once; or twice that subgraph."""
    child = graph_of(State)
    child.add_node(inner, lambda _: {"log": [" ".join(interrupt(f"child {number}") for number in range(3))]})
    child.add_edge(START, inner)
    builder = graph_of(State)
    builder.add_node("start", lambda _: {})
    builder.add_node(name, child.compile(checkpointer=True if kept else None))
    builder.add_node("beside", lambda _: {"log": [interrupt("beside")]})
    builder.add_edge(START, "start")
    targets: list[Any] = [Send(name, {}), Send(name, {})] if sent else [name, "beside"]
    builder.add_conditional_edges("start", lambda _: targets, [name, "beside"])
    return builder.compile(checkpointer=saver)


def _schema(version: int, names: Sequence[str]) -> milepost.Schema:
    steps = [ms.Step(at, at + 1, ms.rename_node(names[at - 1], names[at])) for at in range(1, version)]
    return milepost.Schema(State, version=version, upgrades=steps)


def _schemas(version: int, *, declared: bool) -> dict[str, milepost.Schema]:
    return {"": _schema(version, OUTER)} | ({OUTER[version - 1]: _schema(version, INNER)} if declared else {})


async def _asked(flavour: Flavour, graph: Graph) -> list[Interrupt]:
    return [question for found in (await flavour.state(graph, ONE)).tasks for question in found.interrupts]


@pytest.mark.parametrize("migrated", [False, True], ids=["read", "migrated"])
@pytest.mark.parametrize(
    ("shape", "declared"), [("triggered", True), ("sent", False), ("kept", True)], ids=["triggered", "sent", "kept"]
)
async def test_each_release_answers_one_question(
    saver_url: str, flavour: Flavour, shape: str, declared: bool, migrated: bool
) -> None:
    async with milepost.connect(saver_url, schema=_schemas(1, declared=declared)) as first:
        done: Any = {}
        for version in (1, 2, 3):
            saver = Saver(first.backend, schema=_schemas(version, declared=declared))
            if migrated and version > 1:
                assert [told.refused async for told in saver.amigrate(history=True)] == [()]
            inner = INNER[version - 1 if declared else 0]
            graph = _graph(saver, OUTER[version - 1], inner, sent=shape == "sent", kept=shape == "kept")
            if version == 1:
                await flavour.invoke(graph, {"log": []}, ONE)
            waiting = await _asked(flavour, graph)
            expected = [f"child {version - 1}"] * 2 if shape == "sent" else [f"child {version - 1}", "beside"]
            assert [question.value for question in waiting] == expected
            # The other question of the step waits until the last release, and is answered before what the child asks then.
            answered = [question for question in waiting if version == 3 or question.value != "beside"]
            for question in reversed(answered):
                done = await flavour.invoke(graph, Command(resume={question.id: str(version)}), ONE)
        assert sorted(done["log"]) == (["1 2 3", "1 2 3"] if shape == "sent" else ["1 2 3", "3"])
        assert (await flavour.state(graph, ONE)).next == ()


async def test_going_on_without_an_answer_asks_the_same(saver_url: str, flavour: Flavour) -> None:
    async with milepost.connect(saver_url, schema=_schemas(1, declared=True)) as first:
        done = await flavour.invoke(_graph(first, "o", "ask"), {"log": []}, ONE)
        graph = _graph(first, "o", "ask")
        for version in (2, 3):
            saver = Saver(first.backend, schema=_schemas(version, declared=True))
            graph = _graph(saver, OUTER[version - 1], INNER[version - 1])
            await flavour.invoke(graph, None, ONE)
            assert [question.value for question in await _asked(flavour, graph)] == ["child 0", "beside"]
        for number in range(3):
            waiting = await _asked(flavour, graph)
            done = await flavour.invoke(graph, Command(resume={one.id: str(number) for one in waiting}), ONE)
        assert sorted(done["log"]) == ["0", "0 1 2"]
