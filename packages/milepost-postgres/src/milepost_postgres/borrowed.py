"""Connections that the application owns: from a pool of its own, or a single one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

from milepost.errors import InvalidConfig
from psycopg import AsyncConnection, Connection
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import TransactionStatus

from milepost_postgres.link import AsyncLink, Link, Row
from milepost_postgres.pool import AsyncSource, Source
from milepost_postgres.request import Step


class OwnedPool(Protocol):
    """``psycopg_pool.ConnectionPool``, and what can be used like one."""

    def connection(self) -> AbstractContextManager[Connection[Any]]: ...

    def check(self) -> None: ...


class AsyncOwnedPool(Protocol):
    """``psycopg_pool.AsyncConnectionPool``, and what can be used like one."""

    def connection(self) -> AbstractAsyncContextManager[AsyncConnection[Any]]: ...

    async def check(self) -> None: ...


Owned = OwnedPool | Connection[Any]
AsyncOwned = AsyncOwnedPool | AsyncConnection[Any]


def borrow(owned: Owned | None) -> Source:
    """A source of blocking connections."""
    if owned is None:
        raise _no_source("blocking", "async_source", "source")
    return _OfConnection(owned) if isinstance(owned, Connection) else _OfPool(owned)


def borrow_async(owned: AsyncOwned | None) -> AsyncSource:
    """A source of async connections."""
    if owned is None:
        raise _no_source("async", "source", "async_source")
    return _AsyncOfConnection(owned) if isinstance(owned, AsyncConnection) else _AsyncOfPool(owned)


def _no_source(flavour: str, given: str, missing: str) -> InvalidConfig:
    return InvalidConfig(
        f"this saver was made from {given} alone, and {flavour} methods need {missing}: pass it to from_pool too",
        what=missing,
        value="None",
    )


class _OfPool:
    shares = True

    def __init__(self, pool: OwnedPool) -> None:
        self._pool = pool

    def run(self, steps: Sequence[Step], *, fresh: bool = False) -> list[list[Row]]:
        if fresh:
            # A server that ended one session has mostly ended all: the pool hands out the others until it has looked.
            self._pool.check()
        with self._pool.connection() as connection:
            before = connection.autocommit
            if not before:
                connection.autocommit = True
            try:
                return Link(connection).run(steps)
            finally:
                if not before and not connection.closed:
                    connection.autocommit = False

    def close(self) -> None:
        """The application closes its pool."""


class _AsyncOfPool:
    shares = True

    def __init__(self, pool: AsyncOwnedPool) -> None:
        self._pool = pool

    async def run(self, steps: Sequence[Step], *, fresh: bool = False) -> list[list[Row]]:
        if fresh:
            await self._pool.check()  # as above
        async with self._pool.connection() as connection:
            before = connection.autocommit
            if not before:
                await connection.set_autocommit(True)
            try:
                return await AsyncLink(connection).run(steps)
            finally:
                if not before and not connection.closed:
                    await connection.set_autocommit(False)

    def close(self) -> None:
        """The application closes its pool."""


class _OfConnection:
    """Within a transaction each request gets a savepoint: one that fails does not spoil the rest of it."""

    shares = False

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        # A connection does one thing at a time.
        self._turn = threading.RLock()

    def run(self, steps: Sequence[Step], *, fresh: bool = False) -> list[list[Row]]:
        del fresh  # there is only this one
        with self._turn:
            try:
                return self._once(steps)
            except InvalidSqlStatementName:
                # When a transaction is rolled back, psycopg discards what is prepared, ours too. Nothing was done.
                return self._once(steps)

    def _once(self, steps: Sequence[Step]) -> list[list[Row]]:
        connection = self._connection
        if not connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            connection.execute("SELECT")  # psycopg begins the transaction
        if connection.info.transaction_status == TransactionStatus.INTRANS:
            with connection.transaction():
                return Link(connection).run(steps)
        return Link(connection).run(steps)

    def close(self) -> None:
        """The application closes its connection."""


class _AsyncOfConnection:
    """As `_OfConnection`."""

    shares = False

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()

    async def run(self, steps: Sequence[Step], *, fresh: bool = False) -> list[list[Row]]:
        del fresh  # there is only this one
        async with self._turn:
            try:
                return await self._once(steps)
            except InvalidSqlStatementName:
                return await self._once(steps)  # as above

    async def _once(self, steps: Sequence[Step]) -> list[list[Row]]:
        connection = self._connection
        if not connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
            await connection.execute("SELECT")
        if connection.info.transaction_status == TransactionStatus.INTRANS:
            async with connection.transaction():
                return await AsyncLink(connection).run(steps)
        return await AsyncLink(connection).run(steps)

    def close(self) -> None:
        """The application closes its connection."""
