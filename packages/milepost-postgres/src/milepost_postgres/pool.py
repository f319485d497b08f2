"""Where connections come from: pools of our own, or what the application owns.

A pool of ours connects in the thread or task that needs a connection, keeps what is idle, and looks at a connection
before it uses it, if it was idle for a while. No lock is held while anything is waited for.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from psycopg import AsyncConnection, Connection

from milepost_postgres.link import PROBE, AsyncLink, Link, Row
from milepost_postgres.request import Step
from milepost_postgres.trouble import closed, crowded

L = TypeVar("L", Link, AsyncLink)

_WARM = 0.5
"""Seconds for which an idle connection is taken for sound. To look at it, a thread gives up the interpreter, and waits for
it among all others; and if the server has ended the connection just now, the request is repeated on another one."""


def _sound(link: Link | AsyncLink) -> bool:
    """Whether an idle connection of ours can be used."""
    return time.monotonic() - link.used < _WARM or link.line.silent()


def _sift(idle: list[L], drop: Callable[[L], object]) -> None:
    """Drop the idle connections that their server has ended."""
    for _ in range(len(idle)):
        try:
            link = idle.pop(0)
        except IndexError:  # others take them meanwhile
            return
        try:
            silent = link.line.silent()
        except BaseException:
            drop(link)
            raise
        if silent:
            idle.append(link)
        else:
            drop(link)


@dataclass(frozen=True, slots=True)
class Settings:
    """How connections are made."""

    conninfo: str
    size: int = 10
    prepare: Literal["auto", "always", "never"] = "auto"
    patience: float = 30.0
    """Seconds to wait for a connection when all are busy."""


class Source(Protocol):
    """Where blocking connections come from."""

    shares: bool
    """Whether requests may be repeated on another connection, and combined."""

    def run(self, steps: Sequence[Step], *, fresh: bool = False) -> list[list[Row]]:
        """Carry out the steps on a connection; with `fresh`, on one that was not idle before. The rows of each."""
        ...

    def close(self) -> None: ...


class AsyncSource(Protocol):
    """Where the async connections of an event loop come from. See `Source`."""

    shares: bool

    async def run(self, steps: Sequence[Step], *, fresh: bool = False) -> list[list[Row]]: ...

    def close(self) -> None: ...


def _threshold(settings: Settings) -> int | None:
    return None if settings.prepare == "never" else 0


class Pool:
    """Blocking connections of our own. One that is lost, for its thread was interrupted just when it had it, is missed by
    nobody: it is closed, and another one is made."""

    shares = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # What is idle is taken and given back without a lock: each of these is one step of the interpreter.
        self._idle: list[Link] = []
        self._change = threading.Condition()
        self._links: weakref.WeakSet[Link] = weakref.WeakSet()
        self._connecting = 0
        self._waiting = 0
        self._closed = False

    def run(self, steps: Sequence[Step], *, fresh: bool = False) -> list[list[Row]]:
        link = self._take(fresh=fresh)
        try:
            return link.run(steps)
        finally:
            self._give(link)

    def _take(self, *, fresh: bool) -> Link:
        if fresh:
            _sift(self._idle, self._drop)
            self._sweep()
        # One time for all of it: others may be quicker, again and again.
        until = time.monotonic() + self._settings.patience
        while not self._closed:
            if fresh and self._has_room() and self._may_connect(until):
                return self._connected()
            try:
                link = self._idle.pop()
            except IndexError:
                if self._may_connect(until):
                    return self._connected()
                continue
            if not fresh and _sound(link):
                return link
            self._drop(link)
        raise closed()

    def _has_room(self) -> bool:
        return len(self._links) + self._connecting < self._settings.size

    def _may_connect(self, until: float) -> bool:
        """True for a place in the pool. Without one, waits `until` there is an idle connection or a place, and is False then."""
        with self._change:
            if self._has_room():
                self._connecting += 1
                return True
            self._waiting += 1
            try:
                if not self._change.wait_for(lambda: self._idle or self._has_room(), until - time.monotonic()):
                    raise crowded(self._settings.size, self._settings.patience)
            finally:
                self._waiting -= 1
            return False

    def _connected(self) -> Link:
        try:
            link = self._connect()
            self._links.add(link)
            return link
        finally:
            with self._change:
                self._connecting -= 1
                self._change.notify()

    def _give(self, link: Link) -> None:
        if self._closed or not link.line.sound():
            self._drop(link)
            return
        link.used = time.monotonic()
        self._idle.append(link)
        if self._waiting:
            with self._change:
                self._change.notify()
        self._sweep()

    def _sweep(self) -> None:
        """Close what was given back while the pool was being closed."""
        if self._closed:
            self.close()

    def _drop(self, link: Link) -> None:
        link.connection.close()
        with self._change:
            self._links.discard(link)
            self._change.notify()

    def _connect(self) -> Link:
        settings = self._settings
        connection = Connection[Any].connect(settings.conninfo, autocommit=True, prepare_threshold=_threshold(settings))
        try:
            if settings.prepare == "auto":
                row = connection.execute(PROBE, (connection.info.backend_pid,), prepare=False).fetchone()
                if row is None or not row[0]:
                    connection.prepare_threshold = None
            return Link(connection)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close what is idle, and what is at work as soon as that is done."""
        self._closed = True
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return
            self._drop(link)


class AsyncPool:
    """The connections of our own of one event loop."""

    shares = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[AsyncLink] = []
        self._places = asyncio.BoundedSemaphore(settings.size)
        # As `Pool` counts them: `close` may drop some in another thread.
        self._links: weakref.WeakSet[AsyncLink] = weakref.WeakSet()
        self._closed = False
        # The semaphore knows the loop: what is called when the loop goes must not know of the semaphore.
        weakref.finalize(asyncio.get_running_loop(), _finish, self._idle, os.getpid()).atexit = False

    async def run(self, steps: Sequence[Step], *, fresh: bool = False) -> list[list[Row]]:
        settings = self._settings
        if self._places.locked():
            try:
                async with asyncio.timeout(settings.patience):
                    await self._places.acquire()
            except TimeoutError:
                raise crowded(settings.size, settings.patience) from None
        else:
            await self._places.acquire()
        try:
            link = await self._take(fresh=fresh)
            try:
                return await link.run(steps)
            finally:
                self._give(link)
        finally:
            self._places.release()

    async def _take(self, *, fresh: bool) -> AsyncLink:
        if fresh:
            _sift(self._idle, self._drop)
            self._sweep()
        while not self._closed:
            if fresh and len(self._links) < self._settings.size:
                return await self._connect()
            try:
                link = self._idle.pop()
            except IndexError:
                return await self._connect()
            if not fresh and _sound(link):
                return link
            self._drop(link)
        raise closed()

    def _give(self, link: AsyncLink) -> None:
        if link.line.sound() and not self._closed:
            link.used = time.monotonic()
            self._idle.append(link)
            self._sweep()
        else:
            self._drop(link)

    def _sweep(self) -> None:
        """As `Pool` has it."""
        if self._closed:
            self.close()

    def _drop(self, link: AsyncLink) -> None:
        self._links.discard(link)
        finish(link.connection)

    async def _connect(self) -> AsyncLink:
        settings = self._settings
        connection = await AsyncConnection[Any].connect(
            settings.conninfo, autocommit=True, prepare_threshold=_threshold(settings)
        )
        try:
            if settings.prepare == "auto":
                pid = connection.info.backend_pid
                row = await (await connection.execute(PROBE, (pid,), prepare=False)).fetchone()
                if row is None or not row[0]:
                    connection.prepare_threshold = None
            link = AsyncLink(connection)
        except BaseException:
            finish(connection)
            raise
        self._links.add(link)
        return link

    def close(self) -> None:
        """As `Pool.close`; from any thread, and also when the loop is over."""
        self._closed = True
        _finish(self._idle, os.getpid())


def _finish(idle: list[AsyncLink], process: int) -> None:
    """Close these connections, which nobody uses, from whatever thread. Not in a child: they are those of the parent."""
    while os.getpid() == process:
        try:
            link = idle.pop()
        except IndexError:
            return
        finish(link.connection)


def finish(connection: AsyncConnection[Any]) -> None:
    """Close an async connection without its loop. It has nothing to say to the server that would need to wait."""
    connection.pgconn.finish()
