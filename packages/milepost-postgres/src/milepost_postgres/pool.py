"""Where connections come from: pools of our own, or what the application owns.

A pool of ours connects in the thread or task that needs a connection, keeps what is idle, and looks at a connection
before it hands it out. No lock is held while anything is waited for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from psycopg import AsyncConnection, Connection

from milepost_postgres.link import PROBE, AsyncLink, Link, silent, sound
from milepost_postgres.trouble import closed, crowded


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

    def link(self, *, fresh: bool = False) -> AbstractContextManager[Link]:
        """A connection to work with; with `fresh`, one that was not idle before."""
        ...

    def close(self) -> None: ...


class AsyncSource(Protocol):
    """Where the async connections of an event loop come from. See `Source`."""

    shares: bool

    def link(self, *, fresh: bool = False) -> AbstractAsyncContextManager[AsyncLink]: ...

    def close(self) -> None: ...


def _threshold(settings: Settings) -> int | None:
    return None if settings.prepare == "never" else 0


class Pool:
    """Blocking connections of our own."""

    shares = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[Link] = []
        self._places = threading.BoundedSemaphore(settings.size)
        self._closed = False

    @contextmanager
    def link(self, *, fresh: bool = False) -> Generator[Link]:
        settings = self._settings
        if not self._places.acquire(timeout=settings.patience):
            raise crowded(settings.size, settings.patience)
        try:
            link = self._take(fresh=fresh)
            try:
                yield link
            finally:
                self._give(link)
        finally:
            self._places.release()

    def _take(self, *, fresh: bool) -> Link:
        while not self._closed:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._connect()
            if not fresh and silent(link.connection):
                return link
            link.connection.close()
        raise closed()

    def _give(self, link: Link) -> None:
        if sound(link.connection) and not self._closed:
            self._idle.append(link)
            if not self._closed:
                return
        link.connection.close()

    def _connect(self) -> Link:
        settings = self._settings
        connection = Connection[Any].connect(settings.conninfo, autocommit=True, prepare_threshold=_threshold(settings))
        if settings.prepare == "auto":
            row = connection.execute(PROBE, (connection.info.backend_pid,), prepare=False).fetchone()
            if row is None or not row[0]:
                connection.prepare_threshold = None
        return Link(connection)

    def close(self) -> None:
        """Close what is idle, and what is at work as soon as that is done."""
        self._closed = True
        while self._idle:
            self._idle.pop().connection.close()


class AsyncPool:
    """The connections of our own of one event loop."""

    shares = True

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[AsyncLink] = []
        self._places = asyncio.BoundedSemaphore(settings.size)
        self._closed = False

    @asynccontextmanager
    async def link(self, *, fresh: bool = False) -> AsyncGenerator[AsyncLink]:
        settings = self._settings
        try:
            async with asyncio.timeout(settings.patience):
                await self._places.acquire()
        except TimeoutError:
            raise crowded(settings.size, settings.patience) from None
        try:
            link = await self._take(fresh=fresh)
            try:
                yield link
            finally:
                self._give(link)
        finally:
            self._places.release()

    async def _take(self, *, fresh: bool) -> AsyncLink:
        while not self._closed:
            if not self._idle:
                return await self._connect()
            link = self._idle.pop()
            if not fresh and silent(link.connection):
                return link
            finish(link.connection)
        raise closed()

    def _give(self, link: AsyncLink) -> None:
        if sound(link.connection) and not self._closed:
            self._idle.append(link)
        else:
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
        except BaseException:
            finish(connection)
            raise
        return AsyncLink(connection)

    def close(self) -> None:
        """As `Pool.close`; from any thread, and also when the loop is over."""
        self._closed = True
        while self._idle:
            finish(self._idle.pop().connection)


def finish(connection: AsyncConnection[Any]) -> None:
    """Close an async connection without its loop. It has nothing to say to the server that would need to wait."""
    connection.pgconn.finish()
