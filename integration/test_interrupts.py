"""Waiting for people: static and dynamic interrupts, several at once, in subgraphs, resumed by another process."""

from __future__ import annotations

import asyncio
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import milepost
import pytest
from driving import Durability, Flavour, Graph, graph_of, thread
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START
from langgraph.types import Command, Send, interrupt
from milepost.saver import Saver
from stores import environment, url_of
from typing_extensions import TypedDict

ONE = thread("one")


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def _says(text: str) -> Callable[[Log], Log]:
    def node(_: Log) -> Log:
        return {"log": [text]}

    return node


def _chain(saver: BaseCheckpointSaver[Any], **options: Any) -> Graph:
    builder = graph_of(Log)
    for name in "abc":
        builder.add_node(name, _says(name))
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    builder.add_edge("b", "c")
    builder.add_edge("c", END)
    return builder.compile(checkpointer=saver, **options)


async def test_a_static_interrupt_before_a_node(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    graph = _chain(saver, interrupt_before=["b"])
    assert await flavour.invoke(graph, {"log": ["in"]}, ONE, durability=durability) == {"log": ["in", "a"]}
    waiting = await flavour.state(graph, ONE)
    assert waiting.next == ("b",)
    assert waiting.values == {"log": ["in", "a"]}
    done = await flavour.invoke(graph, None, ONE, durability=durability)
    assert done == {"log": ["in", "a", "b", "c"]}
    assert (await flavour.state(graph, ONE)).next == ()


async def test_a_static_interrupt_after_a_node(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    graph = _chain(saver, interrupt_after=["b"])
    assert await flavour.invoke(graph, {"log": ["in"]}, ONE, durability=durability) == {"log": ["in", "a", "b"]}
    assert (await flavour.state(graph, ONE)).next == ("c",)
    await flavour.update(graph, ONE, {"log": ["edited"]})
    assert await flavour.invoke(graph, None, ONE, durability=durability) == {"log": ["in", "a", "b", "edited", "c"]}


def _approval(saver: BaseCheckpointSaver[Any], starts: list[str]) -> Graph:
    def ask(state: Log) -> Log:
        starts.append("ask")
        first = interrupt({"question": "first?", "so far": state["log"]})
        second = interrupt({"question": "second?"})
        return {"log": [f"{first}/{second}"]}

    builder = graph_of(Log)
    builder.add_node("prepare", _says("prepared"))
    builder.add_node("ask", ask)
    builder.add_node("finish", _says("finished"))
    builder.add_edge(START, "prepare")
    builder.add_edge("prepare", "ask")
    builder.add_edge("ask", "finish")
    return builder.compile(checkpointer=saver)


async def test_two_interrupts_one_after_the_other_in_a_node(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    starts: list[str] = []
    graph = _approval(saver, starts)
    asked = await flavour.invoke(graph, {"log": []}, ONE, durability=durability)
    assert [one.value for one in asked["__interrupt__"]] == [{"question": "first?", "so far": ["prepared"]}]
    assert (await flavour.state(graph, ONE)).interrupts == tuple(asked["__interrupt__"])

    asked = await flavour.invoke(graph, Command(resume={"yes": 1}), ONE, durability=durability)
    assert [one.value for one in asked["__interrupt__"]] == [{"question": "second?"}]

    done = await flavour.invoke(graph, Command(resume="no"), ONE, durability=durability)
    assert done == {"log": ["prepared", "{'yes': 1}/no", "finished"]}
    assert starts == ["ask"] * 3
    assert (await flavour.state(graph, ONE)).interrupts == ()


def _crowd(saver: BaseCheckpointSaver[Any]) -> Graph:
    def ask(state: dict[str, str]) -> Log:
        return {"log": [f"{state['who']}: {interrupt(state['who'])}"]}

    builder = graph_of(Log)
    builder.add_node("ask", ask)
    builder.add_conditional_edges(
        START, lambda _: [Send("ask", {"who": who}) for who in ("ann", "bob", "cyd")], ["ask"]
    )
    return builder.compile(checkpointer=saver)


async def test_several_interrupts_at_once(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    graph = _crowd(saver)
    asked = await flavour.invoke(graph, {"log": []}, ONE, durability=durability)
    ids = {one.value: one.id for one in asked["__interrupt__"]}
    assert sorted(ids) == ["ann", "bob", "cyd"]

    asked = await flavour.invoke(graph, Command(resume={ids["bob"]: "b", ids["cyd"]: "c"}), ONE, durability=durability)
    assert [one.value for one in asked["__interrupt__"]] == ["ann"]
    waiting = await flavour.state(graph, ONE)
    assert {task.interrupts[0].value for task in waiting.tasks if task.interrupts and task.result is None} == {"ann"}

    done = await flavour.invoke(graph, Command(resume={ids["ann"]: "a"}), ONE, durability=durability)
    assert done == {"log": ["ann: a", "bob: b", "cyd: c"]}


def _nested(saver: BaseCheckpointSaver[Any], kept: bool | None) -> Graph:
    inner = graph_of(Log)
    inner.add_node("ask", lambda _: {"log": [f"inner {interrupt('inner?')}"]})
    inner.add_edge(START, "ask")
    middle = graph_of(Log)
    middle.add_node("before", _says("before"))
    middle.add_node("inner", inner.compile(checkpointer=kept))
    middle.add_edge(START, "before")
    middle.add_edge("before", "inner")
    outer = graph_of(Log)
    outer.add_node("middle", middle.compile(checkpointer=kept))
    outer.add_node("after", _says("after"))
    outer.add_edge(START, "middle")
    outer.add_edge("middle", "after")
    return outer.compile(checkpointer=saver)


@pytest.mark.parametrize("kept", [None, True], ids=["None", "True"])
async def test_an_interrupt_two_graphs_down(
    saver: Saver, flavour: Flavour, durability: Durability, kept: bool | None
) -> None:
    graph = _nested(saver, kept)
    asked = await flavour.invoke(graph, {"log": ["in"]}, ONE, durability=durability)
    assert [one.value for one in asked["__interrupt__"]] == ["inner?"]
    outer = await flavour.state(graph, ONE, subgraphs=True)
    assert outer.next == ("middle",)
    middle = outer.tasks[0].state
    assert not isinstance(middle, dict)
    assert middle is not None
    assert middle.values == {"log": ["in", "before"]}
    assert middle.next == ("inner",)

    done = await flavour.invoke(graph, Command(resume="yes"), ONE, durability=durability)
    assert done == {"log": ["in", "in", "before", "in", "before", "inner yes", "after"]}


async def test_another_saver_resumes_what_one_has_left(
    tmp_path: Path, flavour: Flavour, durability: Durability
) -> None:
    url = url_of("files", tmp_path)
    with milepost.connect(url) as first:
        asked = await flavour.invoke(_crowd(first), {"log": []}, ONE, durability=durability)
    answers = {one.id: one.value.upper() for one in asked["__interrupt__"]}
    with milepost.connect(url) as second:
        done = await flavour.invoke(_crowd(second), Command(resume=answers), ONE, durability=durability)
    assert done == {"log": ["ann: ANN", "bob: BOB", "cyd: CYD"]}


async def test_another_process_resumes_what_one_has_left(tmp_path: Path, flavour: Flavour) -> None:
    url = url_of("files", tmp_path)
    with milepost.connect(url) as first:
        await flavour.invoke(_approval(first, []), {"log": []}, ONE)
        resume = (
            "import sys, milepost, test_interrupts as here\n"
            "from langgraph.types import Command\n"
            "with milepost.connect(sys.argv[1]) as saver:\n"
            "    here._approval(saver, []).invoke(Command(resume='A'), here.ONE)\n"
        )
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", resume, url, env=environment())
        assert await other.wait() == 0
        # The first saver was open all the time, and must see what the other process wrote.
        asked = (await flavour.state(_approval(first, []), ONE)).interrupts
        assert [one.value for one in asked] == [{"question": "second?"}]
        done = await flavour.invoke(_approval(first, []), Command(resume="B"), ONE)
    assert done == {"log": ["prepared", "A/B", "finished"]}
