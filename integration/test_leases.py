"""One worker drives a thread: runs that meet on one, processes that are stopped and wake up, stores that restart."""

from __future__ import annotations

import asyncio
import multiprocessing
import operator
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, closing, contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from threading import Barrier
from typing import Annotated, Any, cast

import contending
import milepost
import pytest
import subjects
from driving import STEPWISE, Durability, Flavour, Graph, graph_of, thread
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START
from langgraph.types import Command, interrupt
from milepost import testing
from milepost.errors import Busy, Conflict, InvalidConfig, LeaseLost
from milepost.saver import Saver
from milepost.testing import at, checkpoint, servers, servers_redis
from stores import url_of
from typing_extensions import TypedDict

RUNS, ITEMS = 4, 2
SHARED = ("files", "postgres", "redis")
"""Stores that several processes work on."""


class State(TypedDict):
    items: Annotated[list[str], operator.add]


def _graph(saver: BaseCheckpointSaver[Any], meeting: Barrier | None = None) -> Graph:
    """Each run adds two items, in two steps. With `meeting`, all runs have read their state before the first step."""

    def first(state: State) -> dict[str, Any]:
        if meeting is not None:
            meeting.wait(30)
        return {"items": [f"{state['items'][-1]}.1"]}

    builder = graph_of(State)
    builder.add_node("first", first)
    builder.add_node("second", lambda state: {"items": [f"{state['items'][-1][:-1]}2"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


def _expected(runs: int) -> set[str]:
    return {f"{run}{part}" for run in range(runs) for part in ("", ".1", ".2")}


def test_runs_that_meet_lose_each_others_work_without_a_lease(saver_url: str) -> None:
    with milepost.connect(saver_url, guard="none") as saver:
        graph = _graph(saver, Barrier(RUNS))
        with ThreadPoolExecutor(RUNS) as pool:
            list(pool.map(lambda run: graph.invoke({"items": [str(run)]}, thread("t")), range(RUNS)))
        # Some may have seen the input of others, none what they did with it.
        assert len(graph.get_state(thread("t")).values["items"]) < len(_expected(RUNS))


@pytest.mark.parametrize("durability", STEPWISE)
def test_with_the_guard_a_run_that_comes_in_between_is_refused(saver_url: str, durability: Durability) -> None:
    with milepost.connect(saver_url, guard="head") as saver, ThreadPoolExecutor(1) as pool:
        meeting = Barrier(2)
        first = pool.submit(_graph(saver, meeting).invoke, {"items": ["0"]}, thread("t"), durability=durability)
        while _step(saver) != 0:
            time.sleep(0.01)
        between = _graph(saver).invoke({"items": ["1"]}, thread("t"), durability=durability)
        assert between["items"] == ["0", "1", "1.1", "1.2"]
        head = saver.get_tuple(thread("t"))
        assert head is not None
        meeting.wait(30)
        with pytest.raises(Conflict) as caught:
            first.result()
        assert caught.value.found == head.checkpoint["id"]
        assert caught.value.expected not in (None, caught.value.found)
        assert _graph(saver).get_state(thread("t")).values == between


def _step(saver: Saver) -> int | None:
    found = saver.get_tuple(thread("t"))
    return found.metadata.get("step") if found else None


async def test_with_leases_nothing_is_lost(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    graph = milepost.exclusive(_graph(saver), saver, wait=None)
    runs = (flavour.invoke(graph, {"items": [str(run)]}, thread("t"), durability=durability) for run in range(RUNS))
    await asyncio.gather(*runs)
    items = (await flavour.state(graph, thread("t"))).values["items"]
    assert len(items) == len(_expected(RUNS))
    assert set(items) == _expected(RUNS)


async def test_a_busy_thread_is_refused_and_another_is_not(saver: Saver, flavour: Flavour) -> None:
    graph = milepost.exclusive(_graph(saver), saver)
    async with saver.lease("t", owner="somebody") as lease:
        contexts = await asyncio.to_thread(_outside, graph, "t")
        assert isinstance(contexts, Busy)
        assert contexts.owner == lease.owner
        assert await asyncio.to_thread(_outside, graph, "u") is None
        # The code that holds the lease drives the thread.
        await flavour.invoke(graph, {"items": ["0"]}, thread("t"))
    await flavour.update(graph, thread("t"), {"items": ["by hand"]}, "second")
    assert (await flavour.state(graph, thread("t"))).values["items"] == ["0", "0.1", "0.2", "by hand"]
    assert [part async for part in graph.astream({"items": ["1"]}, thread("t"), stream_mode="updates")] == [
        {"first": {"items": ["1.1"]}},
        {"second": {"items": ["1.2"]}},
    ]


def _outside(graph: Graph, name: str) -> BaseException | None:
    """What a run meets that is no part of this code: it knows nothing of its context."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(graph.invoke, {"items": ["0"]}, thread(name)).exception()


IN: dict[str, Any] = {"items": ["in"]}
WAYS: dict[str, Callable[[Any, Any], object]] = {
    "invoke": lambda graph, config: graph.invoke(IN, config),
    "stream": lambda graph, config: list(graph.stream(IN, config)),
    "batch": lambda graph, config: graph.batch([IN], [config]),
    "batch_as_completed": lambda graph, config: list(graph.batch_as_completed([IN], [config])),
    "update_state": lambda graph, config: graph.update_state(config, IN),
    "with_config": lambda graph, config: graph.with_config(config).invoke(IN),
    "ainvoke": lambda graph, config: asyncio.run(graph.ainvoke(IN, config)),
    "abatch": lambda graph, config: asyncio.run(graph.abatch([IN], [config])),
    "aupdate_state": lambda graph, config: asyncio.run(graph.aupdate_state(config, IN)),
    "astream": lambda graph, config: asyncio.run(_whole(graph.astream(IN, config))),
    "astream_events": lambda graph, config: asyncio.run(_whole(graph.astream_events(IN, config, version="v2"))),
    "transform": lambda graph, config: list(graph.transform(iter([IN]), config)),
    "atransform": lambda graph, config: asyncio.run(_whole(graph.atransform(_one(IN), config))),
    "stream_events of version 3": lambda graph, config: list(graph.stream_events(IN, config, version="v3")),
    "astream_events of version 3": lambda graph, config: asyncio.run(_events(graph, config)),
}
"""The ways in which a compiled graph changes a thread."""


async def _whole(parts: AsyncIterator[object]) -> list[object]:
    return [part async for part in parts]


async def _one(given: object) -> AsyncIterator[object]:
    yield given


async def _events(graph: Any, config: Any) -> list[object]:
    return await _whole(await graph.astream_events(IN, config, version="v3"))


@pytest.mark.filterwarnings("ignore:The v3 streaming protocol")
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_driving_a_graph_takes_the_lease(way: str) -> None:
    with milepost.connect("memory:") as saver, ThreadPoolExecutor(1) as pool:
        graph = milepost.exclusive(_graph(saver), saver)
        with saver.lease("t"):
            # A thread of its own does not have part in the lease.
            with pytest.raises(Busy):
                pool.submit(WAYS[way], graph, thread("t")).result()
            assert saver.get_tuple(thread("t")) is None
        pool.submit(WAYS[way], graph, thread("t")).result()
        assert saver.get_tuple(thread("t")) is not None
        assert [row.status for row in saver.threads()] == ["idle"]


async def test_the_writes_of_a_run_that_lost_its_thread_are_refused(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    """Wherever LangGraph makes them: in its executors and tasks, at the end of a run."""
    thief = saver.lease("t", steal=True)

    def steal(_: State) -> dict[str, Any]:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(thief.__enter__).result()
        return {"items": ["late"]}

    builder = graph_of(State)
    builder.add_node("steal", steal)
    builder.add_node("after", lambda _: {"items": ["later"]})
    builder.add_edge(START, "steal")
    builder.add_edge("steal", "after")
    graph = milepost.exclusive(builder.compile(checkpointer=saver), saver)
    with pytest.raises(LeaseLost):
        await flavour.invoke(graph, {"items": ["0"]}, thread("t"), durability=durability)
    state = await flavour.state(graph, thread("t"))
    assert state.values in ({}, {"items": []}, {"items": ["0"]})
    assert "late" not in str(state)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(thief.__exit__, None, None, None).result()


async def test_a_lease_does_not_outlast_a_run_that_stops(saver: Saver, flavour: Flavour) -> None:
    """At an interrupt, at an error, when the caller stops listening."""

    def ask(state: State) -> dict[str, Any]:
        del state
        return {"items": [interrupt("well?")]}

    builder = graph_of(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = milepost.exclusive(builder.compile(checkpointer=saver), saver)
    await flavour.invoke(graph, {"items": ["0"]}, thread("t"))
    await flavour.invoke(graph, Command(resume="yes"), thread("t"))
    later: Any = graph.astream({"items": ["1"]}, thread("t"), stream_mode="values")
    async with aclosing(later):
        await anext(later)
    now: Any = graph.stream({"items": ["2"]}, thread("u"), stream_mode="values")
    with closing(now):
        next(now)
    with pytest.raises(ValueError, match="thread_id"):
        await flavour.invoke(graph, {"items": ["0"]}, {})
    for name in ("t", "u"):
        assert await asyncio.to_thread(_outside, graph, name) is None


async def test_a_run_without_a_checkpointer_is_not_exclusive(saver: Saver) -> None:
    graph = milepost.exclusive(_graph(cast("Any", None)), saver)
    config: Any = {"configurable": {"thread_id": "t"}}
    with pytest.raises(InvalidConfig, match="no checkpointer"):
        graph.invoke({"items": ["0"]}, config)
    with pytest.raises(InvalidConfig, match="no checkpointer"):
        await graph.ainvoke({"items": ["0"]}, config)
    # As a subgraph it has that of the graph that calls it.
    builder = graph_of(State)
    builder.add_node("below", graph)
    builder.add_edge(START, "below")
    assert len(builder.compile(checkpointer=saver).invoke({"items": ["0"]}, config)["items"]) > 1


def test_what_can_be_made_exclusive(saver: Saver, tmp_path: Path) -> None:
    graph = _graph(saver)
    made = milepost.exclusive(graph, saver, wait=None)
    assert type(made).__name__ == type(graph).__name__
    assert isinstance(made, type(graph))
    bound = made.with_config({"configurable": {"thread_id": "bound"}})
    with saver.lease("bound"):
        assert _outside(milepost.exclusive(bound, saver), "free") is None
    with ThreadPoolExecutor(1) as pool, saver.lease("bound"):
        again = milepost.exclusive(graph.with_config({"configurable": {"thread_id": "bound"}}), saver)
        assert isinstance(pool.submit(again.invoke, {"items": ["0"]}).exception(), Busy)
    with pytest.raises(InvalidConfig, match="compiled graph"):
        milepost.exclusive(object(), saver)
    with milepost.connect(url_of("memory", tmp_path)) as other, pytest.raises(InvalidConfig, match="another saver"):
        milepost.exclusive(graph, other)
    with pytest.raises(InvalidConfig, match="ttl"):
        milepost.exclusive(graph, saver, ttl=0)
    for wrong in (None, "x"):
        no_saver: Any = wrong
        with pytest.raises(InvalidConfig, match="saver"):
            milepost.exclusive(graph, no_saver)
    for config in ("x", {"configurable": 5}):
        unusable: Any = config
        with pytest.raises(InvalidConfig, match="config"):
            made.invoke({"items": ["0"]}, unusable)


# Processes.


@contextmanager
def _process(target: Any, *arguments: Any) -> Generator[tuple[Any, Connection]]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["contending", "milepost_files", "milepost_postgres", "milepost_redis"])
    link, other = context.Pipe()
    process = context.Process(target=target, args=(*arguments, other), daemon=True)
    process.start()
    other.close()
    try:
        yield process, link
    finally:
        process.kill()  # it may end just then by itself
        process.join()
        link.close()


@pytest.mark.parametrize("kind", testing.FLAVOURS)
@pytest.mark.parametrize("store", SHARED)
def test_a_paused_worker_that_wakes_up_writes_nothing(store: str, kind: testing.Flavour, tmp_path: Path) -> None:
    url = url_of(store, tmp_path)
    with _process(contending.zombie, url, kind) as (process, link), milepost.connect(url) as saver:
        owner, fence = link.recv()
        with pytest.raises(Busy) as caught, saver.lease("t"):
            raise AssertionError("two at once")
        assert caught.value.owner == owner
        os.kill(process.pid, signal.SIGSTOP)
        with saver.lease("t", wait=None) as lease:
            assert lease.tries == 1
            assert lease.fence > fence
            saver.put(at("t", "", "0001"), checkpoint("0002", {"m": ["new"]}), {}, {"m": 2})
            link.send("wake up")
            os.kill(process.pid, signal.SIGCONT)
            assert [link.recv()[0] for _ in range(3)] == ["LeaseLost"] * 3
            lease.check()
        assert [item.checkpoint["id"] for item in saver.list(at("t"))] == ["0002", "0001"]
        assert not any(item.pending_writes for item in saver.list(at("t")))


@pytest.mark.parametrize("kind", testing.FLAVOURS)
@pytest.mark.parametrize("store", SHARED)
def test_a_paused_run_that_wakes_up_adds_nothing(store: str, kind: testing.Flavour, tmp_path: Path) -> None:
    """The graph takes the lease by itself, and loses it while a node is at work."""
    url = url_of(store, tmp_path)
    with _process(contending.driver, url, kind) as (process, link), milepost.connect(url) as saver:
        assert link.recv() == "waits"
        os.kill(process.pid, signal.SIGSTOP)
        graph = milepost.exclusive(_graph(saver), saver, wait=None)
        done = graph.invoke({"items": ["new"]}, thread("t"))
        assert done["items"][-3:] == ["new", "new.1", "new.2"]
        before = list(saver.list(at("t")))
        link.send("wake up")
        os.kill(process.pid, signal.SIGCONT)
        assert link.recv() == "LeaseLost"
        assert list(saver.list(at("t"))) == before
        assert graph.get_state(thread("t")).values == done


WORKERS, ENOUGH = 4, 24


@pytest.mark.parametrize("kind", testing.FLAVOURS)
@pytest.mark.parametrize("store", SHARED)
def test_workers_that_are_paused_at_random_lose_nothing(store: str, kind: testing.Flavour, tmp_path: Path) -> None:
    url = url_of(store, tmp_path)
    seed = random.Random(7)
    with milepost.connect(url) as saver:
        saver.setup()
    acknowledged: list[tuple[str, int]] = []
    lost = 0
    with _racers(url, kind) as workers:
        stopped: Any = None
        while len(acknowledged) < ENOUGH or lost == 0:
            for link in wait([link for _, link in workers], timeout=1):
                assert isinstance(link, Connection)
                what, id, fence = link.recv()
                lost += what == "lost"
                if what == "stored":
                    acknowledged.append((id, fence))
                    if stopped is None and seed.random() < 0.3:
                        # Whoever is at work now: the others take over when its lease is over.
                        process = next(process for process, other in workers if other is link)
                        os.kill(process.pid, signal.SIGSTOP)
                        stopped = (process, fence)
                    elif stopped is not None and fence > stopped[1]:
                        os.kill(stopped[0].pid, signal.SIGCONT)
                        stopped = None
    with milepost.connect(url) as saver:
        chain = list(saver.list(at("t")))
        items = chain[0].checkpoint["channel_values"]["m"]
        fences = [fence for fence, _ in items]
        assert fences == sorted(fences), "a former owner wrote after its successor"
        assert len(chain) == len(items), "two checkpoints on one parent"
        ids = {item.checkpoint["id"] for item in chain}
        assert ids >= {id for id, _ in acknowledged}, "what was acknowledged is gone"


@contextmanager
def _racers(url: str, kind: testing.Flavour) -> Generator[list[tuple[Any, Connection]]]:
    with ExitStack() as stack:
        yield [stack.enter_context(_process(contending.racer, url, kind, number)) for number in range(WORKERS)]


@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_the_clock_of_a_client_decides_nothing(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    with milepost.connect(url_of(store, tmp_path)) as one, milepost.connect(url_of(store, tmp_path)) as other:
        with one.lease("t") as lease:
            for step in (-86400.0, 86400.0, 0.0):
                monkeypatch.setattr(time, "time", lambda step=step: real() + step)
                with pytest.raises(Busy), other.lease("t"):
                    raise AssertionError("two at once")
                lease.check()
        monkeypatch.setattr(time, "time", lambda: real() - 86400.0)
        with other.lease("t") as after:
            assert after.fence > lease.fence
            assert after.tries == 0


@contextmanager
def _server(kind: str) -> Generator[tuple[str, Any]]:
    if kind == "postgres":
        subjects.required(servers.postgres_url)
        with servers.Postgres() as server:
            yield server.url(), server
    else:
        subjects.required(servers_redis.redis_url)
        with servers_redis.Redis(settings={"appendonly": "yes", "appendfsync": "always"}) as keeper:
            yield keeper.url(), keeper


@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_a_store_that_restarts_while_a_lease_is_held(kind: str) -> None:
    with _server(kind) as (url, server), milepost.connect(url) as saver, milepost.connect(url) as other:
        with saver.lease("t") as lease:
            saver.put(at("t"), checkpoint("0001", {"m": ["x"]}), {}, {"m": 1})
            server.restart()
            with pytest.raises(Busy) as caught, other.lease("t"):
                raise AssertionError("the lease is forgotten")
            assert caught.value.owner == lease.owner
            saver.put(at("t", "", "0001"), checkpoint("0002", {"m": ["x"]}), {}, {"m": 2})
            lease.check()
            with other.lease("t", steal=True) as taken:
                assert taken.fence > lease.fence
                server.restart()
                with pytest.raises(LeaseLost):
                    saver.put(at("t", "", "0002"), checkpoint("0003", {"m": ["x"]}), {}, {"m": 3})
        assert [item.checkpoint["id"] for item in other.list(at("t"))] == ["0002", "0001"]
