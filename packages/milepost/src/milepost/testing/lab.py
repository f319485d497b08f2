"""Where behaviours are tried: a store to open again and again, and savers over it in one flavour.

A behaviour is one async text. In the flavour "async" it runs on an event loop over the saver's async methods; in the
flavour "blocking" nothing in it ever suspends, so it is run to its end without a loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from milepost.archive import ArchiveFolder
from milepost.flavour import run
from milepost.lease import ThreadLease
from milepost.maintaining import Maintaining
from milepost.memory import CallPort, MemoryBackend
from milepost.observe import Event
from milepost.saver import Saver
from milepost.store import Backend, Stats, Store, ThreadRow
from milepost.sweeping import Swept
from milepost.testing.faults import FaultyBackend, FaultyPort, Overable, Plan
from milepost.upkeep import Erased, Report, Restored

T = TypeVar("T")

Flavour = Literal["blocking", "async"]
_MOMENT = 0.05
_LONGEST = 60.0
"""Seconds: more than anything takes that happens at all, on whatever machine."""

FLAVOURS: tuple[Flavour, ...] = ("blocking", "async")


class Subject(ABC):
    """One store under test, empty at first. A backend's author subclasses it; the suite makes one for each test.

    `directory` is an empty folder of this test's own, for stores that need one.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """As the backend's own. Behaviours that need one which is missing are not collected."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @abstractmethod
    def backend(self) -> Backend:
        """Open the store once more: what a second saver, in this process or another, would get.

        A store that lives in one backend object returns that same object.
        """

    def saver(self, backend: Backend, **options: Any) -> Saver:
        """A saver over `backend`. `options` are those of `Saver`."""
        return Saver(backend, **options)

    def over(self, backend: Backend, plan: Plan) -> Store:
        """The store of `backend` over a port that goes wrong by `plan`.

        As it stands, for backends whose requests are functions of no arguments.
        """
        return cast("Overable", backend).over(FaultyPort(CallPort(), plan))

    def url(self) -> str:
        """What `milepost.connect` opens this store by, in another process. Asked of stores that are "shared"."""
        raise LookupError(f"{type(self).__name__} is shared between processes and needs a url()")

    def media(self) -> Mapping[str, bytes]:
        """What the store has written of threads, by name. Asked of stores that declare "damage", while closed."""
        raise LookupError(f"{type(self).__name__} can be damaged and needs media()")

    def overwrite(self, name: str, data: bytes | None) -> None:
        """Put `data` in the place of the medium `name`, or remove it (None), behind the store's back."""
        raise LookupError(f"{type(self).__name__} can be damaged and needs overwrite()")


class Memory(Subject):
    """The memory store."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"ledger"})

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._backend = MemoryBackend()

    def backend(self) -> Backend:
        return self._backend


class Face:
    """A saver in one flavour, with the events it emitted."""

    def __init__(self, saver: Saver, flavour: Flavour) -> None:
        self.saver = saver
        self.flavour: Flavour = flavour
        self.events: list[Event] = []
        self._blocking = flavour == "blocking"
        saver.observe(self.events.append)

    def clone(self, saver: Saver) -> Face:
        """Another saver in the same flavour."""
        return Face(saver, self.flavour)

    async def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata | None = None,
        new_versions: ChannelVersions | None = None,
    ) -> RunnableConfig:
        """`Saver.put`. Without `new_versions`, every channel is new."""
        versions = dict(checkpoint["channel_versions"]) if new_versions is None else new_versions
        given = (config, checkpoint, metadata or {}, versions)
        return self.saver.put(*given) if self._blocking else await self.saver.aput(*given)

    async def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task: str = "task", path: str = ""
    ) -> None:
        if self._blocking:
            self.saver.put_writes(config, writes, task, path)
        else:
            await self.saver.aput_writes(config, writes, task, path)

    async def get(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self.saver.get_tuple(config) if self._blocking else await self.saver.aget_tuple(config)

    async def got(self, config: RunnableConfig) -> CheckpointTuple:
        """`get`, where there is something to be found."""
        found = await self.get(config)
        assert found is not None, f"nothing is stored at {config}"
        return found

    async def each(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        """`Saver.list`, one by one."""
        if self._blocking:
            for item in self.saver.list(config, **options):
                yield item
        else:
            async for item in self.saver.alist(config, **options):
                yield item

    async def list(self, config: RunnableConfig | None, **options: Any) -> list[CheckpointTuple]:
        return [item async for item in self.each(config, **options)]

    async def ids(self, config: RunnableConfig | None, **options: Any) -> Sequence[str]:
        """The checkpoint ids that `list` finds, in its order."""
        return [item.checkpoint["id"] async for item in self.each(config, **options)]

    async def history(self, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        if self._blocking:
            return self.saver.get_delta_channel_history(config=config, channels=channels)
        return await self.saver.aget_delta_channel_history(config=config, channels=channels)

    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        if self._blocking:
            self.saver.delete_thread(thread, force=force)
        else:
            await self.saver.adelete_thread(thread, force=force)

    async def delete_for_runs(self, runs: Sequence[str]) -> None:
        self.saver.delete_for_runs(runs) if self._blocking else await self.saver.adelete_for_runs(runs)

    async def copy_thread(self, source: str, target: str) -> None:
        self.saver.copy_thread(source, target) if self._blocking else await self.saver.acopy_thread(source, target)

    async def prune(self, threads: Sequence[str], strategy: str = "keep_latest") -> None:
        if self._blocking:
            self.saver.prune(threads, strategy=strategy)
        else:
            await self.saver.aprune(threads, strategy=strategy)

    @asynccontextmanager
    async def lease(self, thread: str, **options: Any) -> AsyncGenerator[ThreadLease]:
        """`Saver.lease`."""
        if self._blocking:
            with self.saver.lease(thread, **options) as lease:
                yield lease
        else:
            async with self.saver.lease(thread, **options) as lease:
                yield lease

    async def check(self, lease: ThreadLease) -> None:
        """`ThreadLease.check`."""
        if self._blocking:
            lease.check()
        else:
            await lease.acheck()

    async def erase(self, threads: Sequence[str], **options: Any) -> Sequence[Erased]:
        if self._blocking:
            return self.saver.erase(threads, **options)
        return await self.saver.aerase(threads, **options)

    async def sweep(self, **options: Any) -> Swept:
        return self.saver.sweep(**options) if self._blocking else await self.saver.asweep(**options)

    async def restore(self, path: Path, thread: str | None = None) -> Restored:
        if self._blocking:
            return self.saver.restore(path, thread)
        return await self.saver.arestore(path, thread)

    @asynccontextmanager
    async def maintaining(self, policy: Any = None, **options: Any) -> AsyncGenerator[Maintaining]:
        """`Saver.maintaining`."""
        if self._blocking:
            with self.saver.maintaining(policy, **options) as manager:
                yield manager
        else:
            async with self.saver.maintaining(policy, **options) as manager:
                yield manager

    async def attachment(self, thread: str, address: str) -> str | bytes | None:
        if self._blocking:
            return self.saver.attachment(thread, address)
        return await self.saver.aattachment(thread, address)

    async def pin(self, config: RunnableConfig) -> RunnableConfig:
        return self.saver.pin(config) if self._blocking else await self.saver.apin(config)

    async def unpin(self, config: RunnableConfig) -> RunnableConfig:
        return self.saver.unpin(config) if self._blocking else await self.saver.aunpin(config)

    async def maintain(self, policy: Any = None, **options: Any) -> Report:
        if self._blocking:
            return self.saver.maintain(policy, **options)
        return await self.saver.amaintain(policy, **options)

    async def threads(self, **options: Any) -> tuple[ThreadRow, ...]:
        if self._blocking:
            return tuple(self.saver.threads(**options))
        return tuple([row async for row in self.saver.athreads(**options)])

    async def erase_tenant(self) -> int:
        return self.saver.erase_tenant() if self._blocking else await self.saver.aerase_tenant()

    async def stats(self, thread: str | None = None) -> Stats:
        return self.saver.stats(thread) if self._blocking else await self.saver.astats(thread)

    async def setup(self) -> None:
        self.saver.setup() if self._blocking else await self.saver.asetup()

    async def close(self) -> None:
        self.saver.close() if self._blocking else await self.saver.aclose()


class Lab:
    """What a behaviour is given: savers over one subject, in one flavour."""

    def __init__(self, subject: Subject, flavour: Flavour) -> None:
        self.subject = subject
        self.flavour: Flavour = flavour
        self._open: list[Face] = []
        self._saver: Face | None = None
        self._twins: list[Lab] = []

    @property
    def saver(self) -> Face:
        """The saver that most behaviours need one of."""
        if self._saver is None:
            self._saver = self.open()
        return self._saver

    def open(self, **options: Any) -> Face:
        """One more saver over the same store, with a backend of its own where the store allows that."""
        backend = self.subject.backend()
        assert backend.capabilities == self.subject.capabilities, "the subject and its backend declare different things"
        face = Face(self.subject.saver(backend, **options), self.flavour)
        self._open.append(face)
        return face

    def archive(self, kind: type[ArchiveFolder] = ArchiveFolder) -> ArchiveFolder:
        """The archive of the saver at hand; the same folder each time."""
        return kind(self.subject.directory / "archive", tenant=self.saver.saver.tenant)

    @property
    def store(self) -> Store:
        """What the saver at hand stands on."""
        return self.store_of(self.saver)

    def store_of(self, face: Face) -> Store:
        """What a saver stands on, for what no saver does."""
        backend = face.saver.backend
        return backend.blocking() if self.flavour == "blocking" else backend.asynchronous()

    def faulty(self, plan: Plan, **options: Any) -> Face:
        """A saver over the same store whose calls go wrong by `plan`."""
        backend = self.subject.backend()
        saver = self.subject.saver(FaultyBackend(backend, self.subject.over(backend, plan)), **options)
        face = Face(saver, self.flavour)
        self._open.append(face)
        return face

    def twin(self, name: str = "twin") -> Lab:
        """A lab of the same kind over another store, which is empty. It is closed with this one."""
        directory = self.subject.directory / name
        directory.mkdir()
        lab = Lab(type(self.subject)(directory), self.flavour)
        self._twins.append(lab)
        return lab

    async def reopen(self, **options: Any) -> Face:
        """A saver that remembers nothing. A durable store is closed and opened again for it."""
        if "durable" in self.subject.capabilities:
            await self.close()
        return self.open(**options)

    async def until(self, future: Future[T]) -> T:
        """Wait for what another thread or task does."""
        if self.flavour == "blocking":
            return future.result(_LONGEST)
        async with asyncio.timeout(_LONGEST):
            return await asyncio.wrap_future(future)

    async def idle(self) -> None:
        """Let whatever else runs go on for a moment. No test may fail because it is too short."""
        if self.flavour == "async":
            await asyncio.sleep(_MOMENT)
        else:
            threading.Event().wait(_MOMENT)

    async def happens(self, done: Callable[[], bool]) -> None:
        """Wait until `done` says so. Raises ``AssertionError`` where that takes longer than any machine needs."""
        until = time.monotonic() + _LONGEST
        while not done():
            if time.monotonic() > until:
                raise AssertionError(f"it did not happen within {_LONGEST} s")
            await self.idle()

    async def inside_a_loop(self, text: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do what `text` says on an event loop: the one at hand, or where none runs one of another thread."""
        if self.flavour == "async":
            await text()
        else:
            await in_a_thread(text)

    async def views(self) -> AsyncGenerator[Face]:
        """The saver at hand, and then one that remembers nothing: what holds must hold for both."""
        yield self.saver
        yield await self.reopen()

    async def close(self) -> None:
        """Close every saver that is open."""
        while self._open:
            await self._open.pop().close()
        while self._twins:
            await self._twins.pop().close()
        self._saver = None

    async def together(self, *calls: Callable[[], Awaitable[T]]) -> list[T]:
        """Carry out `calls` at the same time: in threads, or as tasks. Raises the first error, when all are over."""
        if self.flavour == "async":
            results = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
        else:
            with ThreadPoolExecutor(len(calls)) as pool:
                futures = [pool.submit(copy_context().run, run, _coroutine(call)) for call in calls]
            results = [future.exception() or future.result() for future in futures]
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]


async def in_a_thread(text: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do what `text` says on an event loop of another thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, text()).result()


async def _coroutine(call: Callable[[], Awaitable[T]]) -> T:
    return await call()


def drive(text: Callable[[Lab], Coroutine[Any, Any, None]], subject: Subject, flavour: Flavour) -> None:
    """Run one behaviour to its end, and close what it opened."""

    async def whole() -> None:
        lab = Lab(subject, flavour)
        try:
            await text(lab)
        finally:
            await lab.close()

    if flavour == "blocking":
        run(whole())
    else:
        asyncio.run(whole())
