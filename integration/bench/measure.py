"""How a workload is run and timed: clients of either flavour, samples, rounds that take turns."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from milepost.flavour import run
from milepost.retention import Retention
from milepost.saver import Saver

from .floors import FLOOR, floors
from .rivals import AnySaver, Rival

Flavour = Literal["sync", "async"]
FLAVOURS: tuple[Flavour, ...] = ("sync", "async")
T = TypeVar("T")
KEPT = 20
"""How many checkpoints our savers keep when they prune; those of others keep the latest."""
Job = Callable[[], Coroutine[Any, Any, None]]


def _run(job: Job) -> None:
    run(job())


class Client(Protocol):
    """A saver as workloads see it. The methods of the blocking one never suspend."""

    saver: AnySaver

    async def put(self, *arguments: Any) -> RunnableConfig: ...
    async def put_writes(self, *arguments: Any) -> None: ...
    async def get(self, config: RunnableConfig) -> CheckpointTuple | None: ...
    async def list(self, config: RunnableConfig, **options: Any) -> list[CheckpointTuple]: ...
    async def delete(self, thread: str) -> None: ...
    async def history(self, config: RunnableConfig, channel: str) -> DeltaChannelHistory: ...
    async def prune(self, thread: str) -> int:
        """Shorten the thread; answers how many checkpoints must be left."""
        ...

    async def invoke(self, graph: Any, *arguments: Any, **options: Any) -> Any: ...
    async def state(self, graph: Any, config: RunnableConfig) -> Any: ...
    async def together(self, jobs: Sequence[Job], workers: int) -> None:
        """Do all `jobs`, at most `workers` at a time."""
        ...


class Blocking:
    """Calls from the thread at hand; `together` has one thread for each worker."""

    def __init__(self, saver: AnySaver) -> None:
        self.saver = saver

    async def put(self, *arguments: Any) -> RunnableConfig:
        return self.saver.put(*arguments)

    async def put_writes(self, *arguments: Any) -> None:
        self.saver.put_writes(*arguments)

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.saver.get_tuple(config)

    async def list(self, config: RunnableConfig, **options: Any) -> list[CheckpointTuple]:
        return list(self.saver.list(config, **options))

    async def delete(self, thread: str) -> None:
        self.saver.delete_thread(thread)

    async def history(self, config: RunnableConfig, channel: str) -> DeltaChannelHistory:
        return self.saver.get_delta_channel_history(config=config, channels=[channel])[channel]

    async def prune(self, thread: str) -> int:
        if isinstance(self.saver, Saver):
            self.saver.maintain(Retention(keep_last=KEPT), threads=[thread], merge=False)
            return KEPT
        self.saver.prune([thread])
        return 1

    async def invoke(self, graph: Any, *arguments: Any, **options: Any) -> Any:
        return graph.invoke(*arguments, **options)

    async def state(self, graph: Any, config: RunnableConfig) -> Any:
        return graph.get_state(config)

    async def together(self, jobs: Sequence[Job], workers: int) -> None:
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(_run, job) for job in jobs]:
                done.result()


class Asynchronous:
    """Calls from one event loop; `together` has one task for each worker."""

    def __init__(self, saver: AnySaver) -> None:
        self.saver = saver

    async def put(self, *arguments: Any) -> RunnableConfig:
        return await self.saver.aput(*arguments)

    async def put_writes(self, *arguments: Any) -> None:
        await self.saver.aput_writes(*arguments)

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self.saver.aget_tuple(config)

    async def list(self, config: RunnableConfig, **options: Any) -> list[CheckpointTuple]:
        return [found async for found in self.saver.alist(config, **options)]

    async def delete(self, thread: str) -> None:
        await self.saver.adelete_thread(thread)

    async def history(self, config: RunnableConfig, channel: str) -> DeltaChannelHistory:
        return (await self.saver.aget_delta_channel_history(config=config, channels=[channel]))[channel]

    async def prune(self, thread: str) -> int:
        if isinstance(self.saver, Saver):
            await self.saver.amaintain(Retention(keep_last=KEPT), threads=[thread], merge=False)
            return KEPT
        await self.saver.aprune([thread])
        return 1

    async def invoke(self, graph: Any, *arguments: Any, **options: Any) -> Any:
        return await graph.ainvoke(*arguments, **options)

    async def state(self, graph: Any, config: RunnableConfig) -> Any:
        return await graph.aget_state(config)

    async def together(self, jobs: Sequence[Job], workers: int) -> None:
        left = iter(jobs)

        async def work() -> None:
            for job in left:
                await job()

        await asyncio.gather(*(work() for _ in range(workers)))


class Sample:
    """The figures of one run of a workload: seconds by name, numbers by name, and what was not as it must be."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.numbers: dict[str, float] = {}
        self.flaws: list[str] = []

    async def timed(self, name: str, action: Awaitable[T]) -> T:
        """Await `action`, and note what it took."""
        start = time.perf_counter()
        result = await action
        self.seconds[name].append(time.perf_counter() - start)
        return result

    def quantile(self, name: str, part: float) -> float | None:
        """For example ``quantile("put", 0.1)``, in seconds; None if it was not measured."""
        ordered = sorted(self.seconds.get(name, ()))
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)] if ordered else None

    def as_json(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "numbers": self.numbers, "flaws": self.flaws}

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Sample:
        made = cls()
        made.seconds.update(found["seconds"])
        made.numbers.update(found["numbers"])
        made.flaws += found["flaws"]
        return made


@dataclass(frozen=True)
class Bench:
    """What a workload is given: a rival in one flavour, a folder for its store, and where the figures go."""

    rival: Rival
    flavour: Flavour
    folder: Path
    sample: Sample

    @asynccontextmanager
    async def client(self, *, hurried: bool = False) -> AsyncGenerator[Client]:
        """A client of the rival, opened anew: it has connected and has looked for its tables, as `setup` of each does.
        `hurried` is for filling the store, where nothing is timed."""
        rival = (hurried and self.rival.hurried) or self.rival
        if self.flavour == "sync":
            with rival.blocking(self.folder) as saver:
                if isinstance(saver, Saver):
                    saver.setup()
                yield Blocking(saver)
        else:
            async with rival.asynchronous(self.folder) as saver:
                if isinstance(saver, Saver):
                    await saver.asetup()
                yield Asynchronous(saver)

    def weigh(self) -> None:
        """Note the bytes that are stored."""
        self.sample.numbers["bytes"] = self.rival.bytes(self.folder)

    @contextmanager
    def costs(self) -> Generator[None]:
        """Note the processor time of this process, all of its threads, and of the server; and what it wrote ahead."""
        log, server, start = self._spent()
        yield
        log_now, server_now, end = self._spent()
        numbers = self.sample.numbers
        numbers["client cpu"] = end - start
        if server_now:
            numbers["server cpu"] = server_now - server
        numbers["cpu"] = end - start + server_now - server
        if log is not None and log_now is not None:
            numbers["log bytes"] = log_now - log

    def _spent(self) -> tuple[int | None, float, float]:
        return self.rival.log_bytes(self.folder), self.rival.server_time(self.folder), time.process_time()

    @contextmanager
    def part(self, name: str) -> Generator[None]:
        """Part of a workload, timed under `name`: a peer that cannot do it, or does it wrong, has no figure for it."""
        try:
            yield
        except (NotImplementedError, AssertionError) as exc:
            if self.rival.ours:
                raise
            self.sample.seconds.pop(name, None)
            flaw = f"{name}: {'not there' if isinstance(exc, NotImplementedError) else 'wrong answer'}"
            if flaw not in self.sample.flaws:
                self.sample.flaws.append(flaw)


@dataclass(frozen=True)
class Workload:
    """Something that every rival does."""

    name: str
    about: str
    work: Callable[[Bench], Coroutine[Any, Any, None]]
    rivals: tuple[Rival, ...]
    rounds: int = 3
    large: bool = False
    """Whether it takes minutes: left out of a small run."""


@dataclass
class Results:
    """The samples of all rounds."""

    samples: defaultdict[tuple[str, str, Flavour], list[Sample]] = field(default_factory=lambda: defaultdict(list))
    left_out: dict[str, str] = field(default_factory=dict)
    """Rivals that could not be run, and why."""
    about: list[str] = field(default_factory=list)
    """When and where it was measured."""

    def best(
        self, workload: str, rival: str, flavour: Flavour, figure: Callable[[Sample], float | None]
    ) -> float | None:
        """The least of a figure over the rounds, or None if it was not measured."""
        found = [
            value for one in self.samples.get((workload, rival, flavour), ()) if (value := figure(one)) is not None
        ]
        return min(found, default=None)

    def save(self, path: Path) -> None:
        """For `load`."""
        samples = [[*key, [one.as_json() for one in found]] for key, found in self.samples.items()]
        path.write_text(json.dumps({"samples": samples, "left_out": self.left_out, "about": self.about}))

    def load(self, path: Path) -> None:
        """Add what another run saved."""
        found = json.loads(path.read_text())
        self.left_out.update(found["left_out"])
        self.about += [one for one in found["about"] if one not in self.about]
        for workload, rival, flavour, samples in found["samples"]:
            self.samples[workload, rival, flavour] += map(Sample.of_json, samples)


def run_rounds(
    workload: Workload,
    flavours: Sequence[Flavour],
    results: Results,
    chance: random.Random,
    note: Callable[[str], None],
) -> None:
    """Run a workload: in each round every rival once in every flavour, in an order of the round's own."""
    able: list[Rival] = []
    for rival in workload.rivals:
        if (reason := rival.missing()) is None:
            able.append(rival)
        else:
            results.left_out[rival.name] = reason
    for number in range(workload.rounds):
        floor = Sample()
        floor.seconds.update(floors({rival.store for rival in able}))
        results.samples[workload.name, FLOOR, "sync"].append(floor)
        turns: list[tuple[Rival, Flavour]] = [(rival, flavour) for rival in able for flavour in flavours]
        chance.shuffle(turns)
        for rival, flavour in turns:
            start = time.perf_counter()
            sample = _once(workload, rival, flavour)
            results.samples[workload.name, rival.name, flavour].append(sample)
            took = time.perf_counter() - start
            flaws = "".join(f"; {flaw}" for flaw in sample.flaws)
            note(f"{workload.name}, round {number + 1}: {rival.name}, {flavour}, {took:.1f} s{flaws}")


def _once(workload: Workload, rival: Rival, flavour: Flavour) -> Sample:
    folder = Path(tempfile.mkdtemp(prefix="milepost-bench-"))
    bench = Bench(rival, flavour, folder, Sample())
    gc.collect()
    try:
        if flavour == "sync":
            run(workload.work(bench))
        else:
            asyncio.run(workload.work(bench))
    except Exception as exc:
        if rival.ours:
            raise
        failed = Sample()
        failed.flaws.append(f"failed: {type(exc).__name__}: {str(exc)[:100]}")
        return failed
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
    return bench.sample
