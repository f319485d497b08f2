"""How a workload is run and timed: clients of either flavour, samples, rounds that take turns."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from milepost.flavour import run

from .rivals import AnySaver, Rival

Flavour = Literal["sync", "async"]
FLAVOURS: tuple[Flavour, ...] = ("sync", "async")
T = TypeVar("T")
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
    async def invoke(self, graph: Any, *arguments: Any, **options: Any) -> Any: ...
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

    async def invoke(self, graph: Any, *arguments: Any, **options: Any) -> Any:
        return graph.invoke(*arguments, **options)

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

    async def invoke(self, graph: Any, *arguments: Any, **options: Any) -> Any:
        return await graph.ainvoke(*arguments, **options)

    async def together(self, jobs: Sequence[Job], workers: int) -> None:
        left = iter(jobs)

        async def work() -> None:
            for job in left:
                await job()

        await asyncio.gather(*(work() for _ in range(workers)))


class Sample:
    """The figures of one run of a workload: seconds by name, and numbers by name."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.numbers: dict[str, float] = {}

    async def timed(self, name: str, action: Awaitable[T]) -> T:
        """Await `action`, and note what it took."""
        start = time.perf_counter()
        result = await action
        self.seconds[name].append(time.perf_counter() - start)
        return result

    @contextmanager
    def cpu(self, name: str) -> Generator[None]:
        """Note the processor time of this process, all of its threads, in seconds."""
        start = time.process_time()
        yield
        self.numbers[name] = time.process_time() - start

    def quantile(self, name: str, part: float) -> float:
        """For example ``quantile("put", 0.1)``, in seconds."""
        ordered = sorted(self.seconds[name])
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


@dataclass(frozen=True)
class Bench:
    """What a workload is given: a rival in one flavour, a folder for its store, and where the figures go."""

    rival: Rival
    flavour: Flavour
    folder: Path
    sample: Sample

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        """A client of the rival, opened anew."""
        if self.flavour == "sync":
            with self.rival.blocking(self.folder) as saver:
                yield Blocking(saver)
        else:
            async with self.rival.asynchronous(self.folder) as saver:
                yield Asynchronous(saver)

    def weigh(self, name: str) -> None:
        """Note the bytes on the disk."""
        self.sample.numbers[name] = self.rival.bytes(self.folder)


@dataclass(frozen=True)
class Workload:
    """Something that every rival does."""

    name: str
    about: str
    work: Callable[[Bench], Coroutine[Any, Any, None]]
    rivals: tuple[Rival, ...]
    rounds: int = 3


@dataclass
class Results:
    """The samples of all rounds."""

    samples: defaultdict[tuple[str, str, Flavour], list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def best(self, workload: str, rival: Rival, flavour: Flavour, figure: Callable[[Sample], float]) -> float | None:
        """The least of a figure over the rounds, or None if the workload was not run."""
        found = self.samples.get((workload, rival.name, flavour))
        return min(map(figure, found)) if found else None


def run_all(
    workloads: Sequence[Workload], flavours: Sequence[Flavour], note: Callable[[str], None], seed: int = 1
) -> Results:
    """Run everything: in each round every rival once in every flavour, in an order of the round's own."""
    results, chance = Results(), random.Random(seed)
    for workload in workloads:
        for number in range(workload.rounds):
            results.samples[workload.name, "the disk itself", "sync"].append(_floor())
            turns: list[tuple[Rival, Flavour]] = [(rival, flavour) for rival in workload.rivals for flavour in flavours]
            chance.shuffle(turns)
            for rival, flavour in turns:
                start = time.perf_counter()
                results.samples[workload.name, rival.name, flavour].append(_once(workload, rival, flavour))
                took = time.perf_counter() - start
                note(f"{workload.name}, round {number + 1}: {rival.name}, {flavour}, {took:.1f} s")
    return results


def _floor() -> Sample:
    """What a put cannot be faster than, at the moment: disks change their pace from one minute to the next."""
    sample = Sample()
    with tempfile.TemporaryFile(prefix="milepost-bench-") as file:
        for _ in range(50):
            start = time.perf_counter()
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())
            sample.seconds["append 4 KB, fdatasync"].append(time.perf_counter() - start)
    return sample


def _once(workload: Workload, rival: Rival, flavour: Flavour) -> Sample:
    folder = Path(tempfile.mkdtemp(prefix="milepost-bench-"))
    bench = Bench(rival, flavour, folder, Sample())
    gc.collect()
    try:
        if flavour == "sync":
            run(workload.work(bench))
        else:
            asyncio.run(workload.work(bench))
    finally:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
    return bench.sample
