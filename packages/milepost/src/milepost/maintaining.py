"""Maintenance in the background of an application, by one process at a time."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self

from milepost.errors import Busy, LeaseLost
from milepost.lease import ThreadLease
from milepost.observe import log
from milepost.upkeep import Report

MAINTAINER: Final = "__milepost_maintainer__"
"""The thread whose lease the maintaining process holds. Nothing is ever stored in it."""
TTL: Final = 60.0
"""Seconds after which another process takes over from one that crashed."""


class Growth:
    """Counts what this process puts to threads, and tells when one has grown by more than `by` bytes, or when its latest
    checkpoint in the namespace `ns` has come to more than `head` bytes. A head that stays large although the thread was
    looked at (in the store it may be compressed to less) is due again when it has grown by a quarter."""

    def __init__(
        self, by: int | None, head: int | None = None, ns: str = "", threads: Collection[str] | None = None
    ) -> None:
        self.ns = ns
        self._by = math.inf if by is None else by
        self._head = math.inf if head is None else head
        self._threads = None if threads is None else frozenset(threads)
        self._lock = threading.Lock()
        self._bytes: dict[str, int] = {}
        self._heads: dict[str, int] = {}
        """Those over `head`."""
        self._marks: dict[str, float] = {}
        """At how many bytes a head that was looked at is due again."""
        self._due: set[str] = set()
        self.wake: Callable[[], object] = lambda: None

    def note(self, thread: str, size: int, head: int | None = None) -> None:
        """So many bytes were put, and the latest checkpoint has so many, if it is of the namespace."""
        if self._threads is not None and thread not in self._threads:
            return
        with self._lock:
            total = self._bytes[thread] = self._bytes.get(thread, 0) + size
            large = head is not None and self._passes(thread, head)
            due = (total > self._by or large) and thread not in self._due
            if due:
                self._due.add(thread)
        if due:
            self.wake()

    def _passes(self, thread: str, head: int) -> bool:
        if head <= self._head:
            self._heads.pop(thread, None)
            self._marks.pop(thread, None)
            return False
        self._heads[thread] = head
        return head > self._marks.get(thread, self._head)

    def take(self) -> list[str]:
        """The threads that are due. They start anew."""
        with self._lock:
            due = sorted(self._due)
            self._looked_at(due)
            return due

    def restart(self) -> None:
        """All threads were looked at."""
        with self._lock:
            self._looked_at([*self._bytes])

    def _looked_at(self, threads: Iterable[str]) -> None:
        for thread in threads:
            self._due.discard(thread)
            self._bytes.pop(thread, None)
            if (head := self._heads.pop(thread, None)) is not None:
                self._marks[thread] = 1.25 * head


class Pass(Protocol):
    """One maintenance: of these threads, or of all."""

    def __call__(self, threads: Sequence[str] | None, /) -> Report: ...


class AsyncPass(Protocol):
    """The same, async."""

    def __call__(self, threads: Sequence[str] | None, /) -> Awaitable[Report]: ...


class Maintaining:
    """What `milepost.saver.Saver.maintaining` returns, for a ``with`` or an ``async with``. Used once.

    In the block, the process that holds the maintainer's lease carries out a maintenance at once and then each `every`
    seconds; the others look each `every` seconds whether they can have the lease. What goes wrong is logged, and tried
    again the next time. Leaving the block waits for the thread that is being maintained.
    """

    def __init__(
        self,
        lease: Callable[[], ThreadLease],
        passes: tuple[Pass, AsyncPass],
        every: float,
        quiet: float,
        growth: Growth | None,
        watch: Callable[[Growth | None], object],
    ) -> None:
        self._lease = lease
        self._pass, self._async_pass = passes
        self._every = min(every, threading.TIMEOUT_MAX)
        self._quiet = quiet
        self._growth = growth
        self._watch = watch
        self._stop = threading.Event()
        self._grown = threading.Event()
        """Set as well when it is time to stop."""
        self._heart: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.rounds = 0
        """How many maintenances were carried out."""
        self.holds = False
        """Whether this process is the one that maintains."""
        self.last: Report | None = None
        """What the last one did."""

    def __enter__(self) -> Self:
        self._listen(self._grown.set)
        self._heart = threading.Thread(target=self._run, name="milepost-maintaining", daemon=True)
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch(None)
        self._stop.set()
        self._grown.set()
        if self._heart is not None:
            self._heart.join()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listen(lambda: loop.call_soon_threadsafe(self._wake.set))
        self._task = loop.create_task(self._arun())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch(None)
        self._stop.set()
        self._wake.set()
        if self._task is not None:
            await self._task

    def stopping(self) -> bool:
        """Whether the block is being left."""
        return self._stop.is_set()

    def _listen(self, wake: Callable[[], object]) -> None:
        if self._growth is not None:
            self._growth.wake = wake
            self._watch(self._growth)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._lease() as lease:
                    self.holds, grown = True, False
                    while not (self._stop.is_set() or lease.lost):
                        self._told(self._pass(self._due(grown=grown)))
                        grown = self._pause()
            except (Busy, LeaseLost):
                pass  # another process does it
            except Exception:
                log.exception("maintenance failed; it is tried again in %g s", self._every)
            self.holds = False
            self._stop.wait(self._every)

    async def _arun(self) -> None:
        while not self._stop.is_set():
            try:
                async with self._lease() as lease:
                    self.holds, grown = True, False
                    while not (self._stop.is_set() or lease.lost):
                        self._told(await self._async_pass(self._due(grown=grown)))
                        grown = await self._apause()
            except (Busy, LeaseLost):
                pass  # another process does it
            except Exception:
                log.exception("maintenance failed; it is tried again in %g s", self._every)
            self.holds = False
            if not self._stop.is_set():
                await self._await(self._every)

    def _due(self, *, grown: bool) -> Sequence[str] | None:
        """The threads to look at: those that have grown, or all."""
        if grown and self._growth is not None:
            return self._growth.take()
        if self._growth is not None:
            self._growth.restart()
        return None

    def _told(self, report: Report) -> None:
        self.last = report
        self.rounds += 1

    def _pause(self) -> bool:
        """Wait for the next time. Whether it is because a thread has grown; then it has been given time to be quiet."""
        grown = self._grown.wait(self._every)
        if grown:
            self._grown.clear()
            self._stop.wait(self._quiet)
        return grown

    async def _apause(self) -> bool:
        if not await self._await(self._every):
            return False
        if not self._stop.is_set():
            await self._await(self._quiet)
        return True

    async def _await(self, seconds: float) -> bool:
        """Whether something happened before so many seconds were over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
            self._wake.clear()
            return True
        return False
