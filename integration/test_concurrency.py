"""Many at once: threads, event loops and flavours on one saver, and runs that share a conversation."""

from __future__ import annotations

import asyncio
import operator
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import milepost
from driving import Durability, Flavour, Graph, graph_of, thread
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START
from milepost.saver import Saver
from stores import environment, url_of
from typing_extensions import TypedDict

RUNS, TURNS = 8, 5


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def _graph(saver: BaseCheckpointSaver[Any]) -> Graph:
    builder = graph_of(State)
    builder.add_node("echo", lambda state: {"items": [f"re: {state['items'][-1]}"]})
    builder.add_edge(START, "echo")
    return builder.compile(checkpointer=saver)


def _expected(name: str, turns: int = TURNS) -> list[str]:
    return [text for turn in range(turns) for text in (f"{name} {turn}", f"re: {name} {turn}")]


def _converse(graph: Graph, name: str, durability: Durability) -> list[str]:
    items: list[str] = []
    for turn in range(TURNS):
        items = graph.invoke({"items": [f"{name} {turn}"]}, thread(name), durability=durability)["items"]
    return items


async def _aconverse(graph: Graph, name: str, durability: Durability) -> list[str]:
    items: list[str] = []
    for turn in range(TURNS):
        items = (await graph.ainvoke({"items": [f"{name} {turn}"]}, thread(name), durability=durability))["items"]
    return items


def test_threads_and_event_loops_share_a_saver(saver: Saver, durability: Durability) -> None:
    graph = _graph(saver)

    def work(number: int) -> list[str]:
        if number % 2:
            # An event loop of its own, in a thread of its own.
            return asyncio.run(_aconverse(graph, f"run {number}", durability))
        return _converse(graph, f"run {number}", durability)

    with ThreadPoolExecutor(RUNS) as pool:
        results = list(pool.map(work, range(RUNS)))
    assert results == [_expected(f"run {number}") for number in range(RUNS)]
    for number in range(RUNS):
        assert graph.get_state(thread(f"run {number}")).values["items"] == results[number]
    assert sorted(row.thread for row in saver.threads()) == [f"run {number}" for number in range(RUNS)]


async def test_many_tasks_of_one_event_loop(saver: Saver, durability: Durability) -> None:
    graph = _graph(saver)
    results = await asyncio.gather(*(_aconverse(graph, f"run {number}", durability) for number in range(RUNS)))
    assert results == [_expected(f"run {number}") for number in range(RUNS)]


async def test_flavours_take_turns_on_a_thread(saver: Saver, durability: Durability) -> None:
    graph = _graph(saver)
    for turn in range(TURNS):
        said = {"items": [f"both {turn}"]}
        if turn % 2:
            await graph.ainvoke(said, thread("both"), durability=durability)
        else:
            # A blocking call inside the running loop: it blocks, and works.
            graph.invoke(said, thread("both"), durability=durability)
    assert (await graph.aget_state(thread("both"))).values["items"] == _expected("both")


async def test_ids_of_threads_that_look_like_patterns_are_apart(saver: Saver, flavour: Flavour) -> None:
    graph = _graph(saver)
    names = ["a", "a*", "a:b", "a|b", "[a]", "a/../b", "..", "é" * 300, " a", "a%2Fb", "A"]
    for name in names:
        await flavour.invoke(graph, {"items": [name]}, thread(name))
    await saver.adelete_thread("a*")
    for name in names:
        state = await flavour.state(graph, thread(name))
        assert state.values == ({} if name == "a*" else {"items": [name, f"re: {name}"]})


async def test_strict_mode_clones_the_saver_and_keeps_the_types_of_the_graph(saver_url: str) -> None:
    script = """
import sys, milepost
from dataclasses import dataclass
from typing import Annotated, Any
import operator
from typing_extensions import TypedDict
from driving import graph_of, thread
from langgraph.graph import START

@dataclass
class Mine:
    x: int

class State(TypedDict):
    mine: Mine
    seen: Annotated[list[Mine], operator.add]

builder = graph_of(State)
builder.add_node("step", lambda state: {"mine": Mine(state["mine"].x + 1), "seen": [state["mine"]]})
builder.add_edge(START, "step")
with milepost.connect(sys.argv[1]) as saver:
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"mine": Mine(1), "seen": []}, thread("t"))
    values = graph.get_state(thread("t")).values
    assert values == {"mine": Mine(2), "seen": [Mine(1)]}, values
    assert graph.invoke({}, thread("t")) == {"mine": Mine(3), "seen": [Mine(1), Mine(2)]}
"""
    strictly = {**environment(), "LANGGRAPH_STRICT_MSGPACK": "true"}
    strict = await asyncio.create_subprocess_exec(sys.executable, "-c", script, saver_url, env=strictly)
    assert await strict.wait() == 0


def test_processes_share_a_store(tmp_path: Path) -> None:
    url = url_of("files", tmp_path)
    script = (
        "import sys, milepost, test_concurrency as here\n"
        "with milepost.connect(sys.argv[1]) as saver:\n"
        "    graph = here._graph(saver)\n"
        "    for name in sys.argv[2:]:\n"
        "        assert here._converse(graph, name, 'async') == here._expected(name)\n"
    )
    names = [[f"process {number} thread {part}" for part in range(2)] for number in range(4)]
    workers = [subprocess.Popen([sys.executable, "-c", script, url, *mine], env=environment()) for mine in names]
    assert [worker.wait() for worker in workers] == [0] * len(workers)
    with milepost.connect(url) as saver:
        graph = _graph(saver)
        for name in (name for mine in names for name in mine):
            assert graph.get_state(thread(name)).values["items"] == _expected(name)
