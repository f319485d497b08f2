"""What is measured. Every workload verifies what it reads back: a fast wrong answer is a failure."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from .agents import Agent, agent_of, check, conversation, message, words
from .calls import w11
from .graphs import g16, w6, w9
from .line_up import ENDURING, EVERYBODY, MILEPOSTS
from .measure import Bench, Client, Sample, Workload
from .plain_redis import VALKEY
from .postgres import OFFICIAL
from .rivals import PREALLOCATED, SQLITE

LATEST: RunnableConfig = {"configurable": {"thread_id": "agent", "checkpoint_ns": ""}}
SLOW = 1.0
"""Seconds; what takes longer is not repeated."""


async def w1(steps: int, bench: Bench) -> None:
    """W1, and on what it leaves: W2 at every size, W3 (list 10, list 100 at 300; a filter at 1,000), W8's deletion."""
    sample = bench.sample
    async with bench.client() as client:
        agent = await conversation(bench, client, steps)
        for _ in range(5):
            check(await sample.timed("get", client.get(LATEST)), agent)
        for _ in range(3):
            check(await sample.timed("get by id", client.get(agent.config)), agent)
        await _lists(bench, client, steps)
        if not bench.rival.durable:
            await sample.timed("delete", client.delete("agent"))
            return
    bench.weigh()
    for _ in range(2):
        async with bench.client() as client:
            check(await sample.timed("cold get", client.get(LATEST)), agent)
    async with bench.client() as client:
        check(await sample.timed("cold get", client.get(LATEST)), agent)
        with bench.part("delete"):
            await sample.timed("delete", client.delete("agent"))
            assert await client.get(LATEST) is None


async def _lists(bench: Bench, client: Client, steps: int) -> None:
    sample = bench.sample
    if steps >= 1000:
        wanted = steps // 2
        with bench.part("list filter"):
            for _ in range(3):
                found = await sample.timed("list filter", client.list(LATEST, filter={"step": wanted}))
                assert [one.checkpoint["channel_values"]["messages"][-1] for one in found] == [message(wanted + 1)]
                assert [len(one.checkpoint["channel_values"]["messages"]) for one in found] == [wanted + 2]
                if sample.seconds["list filter"][-1] > SLOW:
                    return
    elif steps >= 300:
        for limit in (10, 10, 10, 100):
            name = f"list {limit}"
            with bench.part(name):
                found = await sample.timed(name, client.list(LATEST, limit=limit))
                lists = [one.checkpoint["channel_values"]["messages"] for one in found]
                assert [len(one) for one in lists] == list(range(steps, steps - limit, -1))
                assert [one[-1] for one in lists] == [message(len(one) - 1) for one in lists]


async def w4(workers: int, bench: Bench) -> None:
    """200 threads of 10 steps, from so many workers."""
    sample = bench.sample
    async with bench.client() as client:
        agents = [agent_of(client, f"thread-{number}") for number in range(200)]

        async def live(agent: Agent) -> None:
            messages: list[BaseMessage] = []
            for step in range(10):
                messages = [*messages, message(step)]
                await agent.advance(sample, {"messages": messages[-1:]}, {"messages": messages})

        with bench.costs():
            start = time.perf_counter()
            await client.together([partial(live, agent) for agent in agents], workers)
            sample.numbers["seconds per put"] = (time.perf_counter() - start) / (200 * 10)
        for agent in agents[::40]:
            check(await client.get(agent.config), agent)


async def w5(bench: Bench) -> None:
    """A tiny state, 500 steps: nothing but overhead."""
    sample = bench.sample
    async with bench.client() as client:
        agent = agent_of(client)
        with bench.costs():
            for step in range(500):
                await agent.advance(sample, {"count": step}, {"count": step})
        for _ in range(100):
            check(await sample.timed("get", client.get(agent.config)), agent)
    if bench.rival.durable:
        bench.weigh()


async def w7(bench: Bench) -> None:
    """100 parallel tasks write on one checkpoint; then it is read."""
    sample = bench.sample
    async with bench.client() as client:
        for number in range(5):
            agent = agent_of(client, f"fan-{number}")
            await agent.advance(Sample(), {}, {"messages": [message(0)]})
            jobs: list[Callable[[], Coroutine[Any, Any, None]]] = [
                partial(
                    client.put_writes, agent.config, [("messages", [message(task)])], f"task-{task:03}", f"~{task:03}"
                )
                for task in range(100)
            ]
            await sample.timed("fan", client.together(jobs, 32 if bench.flavour == "sync" else 100))
            found = await sample.timed("get", client.get(agent.config))
            assert found is not None
            written = {task: value for task, _, value in found.pending_writes or ()}
            assert written == {f"task-{task:03}": [message(task)] for task in range(100)}


async def w8(steps: int, bench: Bench) -> None:
    """A thread of so many small steps, shortened to 20 checkpoints (by others to one); and one that is deleted."""
    sample = bench.sample
    async with bench.client(hurried=True) as client:
        agents = [agent_of(client, thread) for thread in ("agent", "another")]
        for agent in agents:
            for step in range(steps):
                await agent.advance(Sample(), {"count": step}, {"count": step, "note": f"step {step}"})
    bench.rival.settle(bench.folder)
    async with bench.client() as client:
        check(await client.get(LATEST), agents[0])
        with bench.costs():
            left = await sample.timed("prune", client.prune("agent"))
        found = await client.list(LATEST)
        assert [one.metadata.get("step") for one in found] == list(range(steps - 2, steps - 2 - left, -1))
        check(found[0], agents[0])
        bench.weigh()
        await sample.timed("delete", client.delete("another"))
        assert await client.get(agents[1].config) is None
        check(await client.get(LATEST), agents[0])


def _file(number: int, version: int) -> dict[str, Any]:
    """As deep agents keep the files of their virtual file system: about 20 KB."""
    text = words(random.Random(number * 1000 + version), 20_000)
    return {"content": text, "encoding": "utf-8", "created_at": f"{number}", "modified_at": f"{version}"}


async def w10(files: int, steps: int, bench: Bench) -> None:
    """A deep agent's state: a dict of files, of which each step changes one."""
    sample = bench.sample
    async with bench.client() as client:
        agent = agent_of(client)
        state = {f"/notes/file-{number:03}.md": _file(number, 0) for number in range(files)}
        await agent.advance(Sample(), {}, {"files": state})
        changes = [
            (f"/notes/file-{step * 7 % files:03}.md", _file(step * 7 % files, step + 1)) for step in range(steps)
        ]
        with bench.costs():
            for path, changed in changes:
                state = {**state, path: changed}
                await agent.advance(sample, {"files": {path: changed}}, {"files": state})
        for _ in range(3):
            check(await sample.timed("get", client.get(LATEST)), agent)
    if bench.rival.durable:
        bench.weigh()
        async with bench.client() as client:
            check(await sample.timed("cold get", client.get(LATEST)), agent)


_PRUNING = (*MILEPOSTS, OFFICIAL)
_DELTAS = (*MILEPOSTS, SQLITE, OFFICIAL, VALKEY)
WORKLOADS = (
    Workload("W1 N=100", "an agent loop of 100 steps, then W2", partial(w1, 100), EVERYBODY),
    Workload("W1 N=300", "an agent loop of 300 steps, then W2 and W3", partial(w1, 300), EVERYBODY),
    Workload("W1 N=1000", "an agent loop of 1,000 steps, then W2 and W3", partial(w1, 1000), ENDURING, large=True),
    *(Workload(f"W4 x{n}", f"200 threads of 10 steps, {n} workers", partial(w4, n), EVERYBODY) for n in (1, 8, 32)),
    Workload("W5", "a tiny state, 500 steps", w5, (*EVERYBODY, PREALLOCATED)),
    Workload("W6", "a compiled graph, 50 steps, durability sync", w6, EVERYBODY),
    Workload("W7", "100 parallel put_writes, then get", w7, EVERYBODY),
    Workload("W8", "prune 10,000 steps to 20; delete as many", partial(w8, 10_000), _PRUNING, large=True),
    Workload("W9", "a delta channel of 1,000 updates", partial(w9, 1000), _DELTAS),
    Workload("W10", "200 files of 20 KB, one changed a step, 100 steps", partial(w10, 200, 100), ENDURING, large=True),
    Workload("W11", "200 calls of a tool that the ledger records", partial(w11, 200), MILEPOSTS),
    Workload("G16 N=300", "300 supersteps, theirs with DeltaChannel(100)", partial(g16, 300), _DELTAS),
    Workload("G16 N=1000", "1,000 supersteps, theirs with DeltaChannel(100)", partial(g16, 1000), _DELTAS, large=True),
)
