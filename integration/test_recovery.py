"""Crashed work is taken up again, by whoever supervises; what cannot be helped is set aside."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import milepost
import pytest
import recovering
from driving import Flavour, Graph, graph_of, thread
from langgraph.func import entrypoint
from langgraph.graph import START
from langgraph.types import Send, interrupt
from milepost.errors import InvalidConfig
from milepost.flavour import run
from milepost.recovery import Recovered
from milepost.saver import Saver
from milepost.testing.chain import id_of
from stores import url_of


def _well(_: recovering.State) -> dict[str, Any]:
    return {"items": ["work"]}


async def _recover(flavour: Flavour, graph: Graph, saver: Saver, **options: Any) -> list[Recovered]:
    if flavour.name == "blocking":
        return await asyncio.to_thread(lambda: milepost.recover(graph, saver, **options))
    return await milepost.arecover(graph, saver, **options)


def _crash(saver: Saver, name: str) -> None:
    """What a worker leaves that dies in its second step."""

    def die(_: recovering.State) -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recovering.graph(saver, die).invoke({"items": ["in"]}, thread(name), durability="sync")
    run(saver.backend.blocking().acquire(name, "a worker that died", 1e-6))


async def test_abandoned_threads_are_resumed(saver: Saver, flavour: Flavour) -> None:
    for name in ("a", "b", "c"):
        await asyncio.to_thread(_crash, saver, name)
    graph = recovering.graph(saver, _well)
    await flavour.invoke(graph, {"items": ["in"]}, thread("idle"))
    waits = recovering.graph(saver, lambda _: {"items": [interrupt("well?")]})
    await flavour.invoke(waits, {"items": ["in"]}, thread("waits"))
    assert {row.thread for row in saver.threads(status="abandoned")} == {"a", "b", "c"}
    done = await _recover(flavour, graph, saver, limit=2)
    assert [one.outcome for one in done] == ["resumed"] * 2
    [left] = [row.thread for row in saver.threads(status="abandoned")]
    assert {one.thread for one in done} == {"a", "b", "c"} - {left}
    async with saver.lease(left):
        assert await _recover(flavour, graph, saver) == [], "it is in good hands"
    assert await _recover(flavour, graph, saver) == []
    for one in done:
        assert (await flavour.state(graph, thread(one.thread))).values == {"items": ["in", "first", "work"]}
    assert {row.thread: row.status for row in saver.threads() if row.thread != left} == {
        **{one.thread: "idle" for one in done},
        "idle": "idle",
        "waits": "waiting",
    }


async def test_poison_is_set_aside(saver: Saver, flavour: Flavour) -> None:
    await asyncio.to_thread(_crash, saver, "poison")
    tried: list[int] = []

    def fail(_: recovering.State) -> dict[str, Any]:
        tried.append(1)
        raise ValueError("it is poison")

    graph = recovering.graph(saver, fail)
    for tries in (2, 3):
        [one] = await _recover(flavour, graph, saver, tries=3)
        assert (one.outcome, one.tries) == ("failed", tries)
        assert one.error == "ValueError: it is poison"
    for _ in range(2):
        assert await _recover(flavour, graph, saver, tries=3) == [
            Recovered("poison", "set aside", 3, "ValueError: it is poison")
        ]
    assert len(tried) == 2
    [row] = saver.threads(status="abandoned")
    assert (row.tries, row.lease.error) == (3, "ValueError: it is poison")
    [mended] = await _recover(flavour, recovering.graph(saver, _well), saver, tries=4)
    assert mended.outcome == "resumed"
    assert [row.status for row in saver.threads()] == ["idle"]


async def test_a_thread_of_another_graph_is_left_as_it_is(saver: Saver, flavour: Flavour) -> None:
    """Two graphs in one store, each with a supervisor: neither takes the work of the other for done."""
    for name in ("a", "b"):
        await asyncio.to_thread(_crash, saver, name)
    before = [(row.thread, row.head, row.status, row.tries, row.lease.fence) for row in saver.threads()]
    builder = graph_of(recovering.State)
    builder.add_node("other", _well)
    builder.add_edge(START, "other")
    other = builder.compile(checkpointer=saver)
    for _ in range(4):
        done = await _recover(flavour, other, saver, limit=1)
        assert {(one.thread, one.outcome, one.tries) for one in done} == {
            ("a", "passed over", 1),
            ("b", "passed over", 1),
        }
    assert [(row.thread, row.head, row.status, row.tries, row.lease.fence) for row in saver.threads()] == before
    graph = recovering.graph(saver, _well)
    [one] = await _recover(flavour, graph, saver, where=lambda row: row.thread == "b")
    assert (one.thread, one.outcome) == ("b", "resumed")
    assert (await flavour.state(graph, thread("b"))).values == {"items": ["in", "first", "work"]}
    assert {row.thread: row.status for row in saver.threads()} == {"a": "abandoned", "b": "idle"}


async def test_what_cannot_be_recovered_with(saver: Saver, flavour: Flavour) -> None:
    graph, bare = recovering.graph(saver, _well), graph_of(recovering.State)
    bare.add_node("only", _well)
    bare.add_edge(START, "only")
    for what, given in (
        ("graph", None),
        ("graph", bare),
        ("graph", bare.compile()),
        ("saver", None),
        ("limit", "x"),
        ("limit", 1.5),
        ("limit", 0),
        ("tries", None),
        ("tries", "3"),
        ("tries", True),
        ("ttl", 0),
        ("ttl", "x"),
        ("config", 5),
        ("where", 5),
    ):
        chosen: dict[str, Any] = {"graph": graph, "saver": saver, what: given}
        with pytest.raises(InvalidConfig) as caught:
            await _recover(flavour, **chosen)
        assert caught.value.facts["what"] == what
    with milepost.connect("memory:") as other, pytest.raises(InvalidConfig, match="another saver"):
        await _recover(flavour, graph, other)


async def test_supervisors_share_the_work(saver: Saver, flavour: Flavour) -> None:
    for number in range(6):
        await asyncio.to_thread(_crash, saver, f"t{number}")
    graph = recovering.graph(saver, _well)
    rounds = await asyncio.gather(*(_recover(flavour, graph, saver) for _ in range(3)))
    assert sorted(one.thread for done in rounds for one in done) == [f"t{number}" for number in range(6)]
    for number in range(6):
        assert (await flavour.state(graph, thread(f"t{number}"))).values == {"items": ["in", "first", "work"]}


@pytest.mark.parametrize("store", ["files", "postgres", "redis"])
def test_a_worker_that_is_killed(store: str, tmp_path: Path) -> None:
    url = url_of(store, tmp_path)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["recovering", "milepost_files", "milepost_postgres", "milepost_redis"])
    mine, other = context.Pipe()
    worker = context.Process(target=recovering.work, args=(url, other), daemon=True)
    worker.start()
    other.close()  # else a worker that does not come that far would be waited for
    assert mine.recv() == "at work"
    with milepost.connect(url) as saver:
        graph = recovering.graph(saver, _well)
        assert [row.status for row in saver.threads()] == ["running"]
        assert milepost.recover(graph, saver) == []
        assert worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        worker.join()
        while not (done := milepost.recover(graph, saver)):
            time.sleep(0.02)
        assert [one.outcome for one in done] == ["resumed"]
        assert graph.get_state(thread("t")).values == {"items": ["in", "first", "work"]}
        assert [row.status for row in saver.threads()] == ["idle"]


async def test_what_came_to_its_end_is_not_abandoned(saver: Saver, flavour: Flavour) -> None:
    """Whoever dies between the last step of a run and giving back its lease leaves nothing to be done."""

    def node(name: str) -> Any:
        return lambda _: {"items": [name]}

    builder = graph_of(recovering.State)
    for name in ("a", "b", "joined", "sent", "decided", "last"):
        builder.add_node(name, node(name))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge(["a", "b"], "joined")
    builder.add_conditional_edges(
        "joined", lambda _: [Send("sent", {"items": []}), Send("sent", {"items": []})], ["sent"]
    )
    builder.add_conditional_edges("sent", lambda _: "decided", ["decided"])
    builder.add_edge("decided", "last")
    graph = builder.compile(checkpointer=saver)
    await flavour.invoke(graph, {"items": ["in"]}, thread("whole"))
    states = [state async for state in graph.aget_state_history(thread("whole"))]
    ends = {id_of(state.config) for state in states if not state.next}
    assert len(ends) == 1
    assert len(states) == 7
    for state in states:
        id = id_of(state.config) or ""
        name = f"up to {id}"
        chart = await saver.backend.asynchronous().export("whole", None, 1000)
        assert chart is not None
        rows = tuple(row for row in chart.rows if row.ns == "" and row.id <= id)
        await saver.backend.asynchronous().load(name, replace(chart, rows=rows, writes=(), cursor=None))
        await saver.backend.asynchronous().acquire(name, "dies", 1e-6)
    found = {row.thread: row.status async for row in saver.athreads()}
    assert {name for name, status in found.items() if status == "idle"} == {"whole", *(f"up to {id}" for id in ends)}
    assert {status for name, status in found.items() if name.startswith("up to")} == {"idle", "abandoned"}


async def test_a_workflow_that_came_to_its_end(saver: Saver, flavour: Flavour) -> None:
    @entrypoint(checkpointer=saver)
    def double(number: int) -> int:
        return 2 * number

    assert await flavour.invoke(double, 4, thread("t")) == 8
    await saver.backend.asynchronous().acquire("t", "dies", 1e-6)
    assert [row.status async for row in saver.athreads()] == ["idle"]
