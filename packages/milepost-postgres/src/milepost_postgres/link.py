"""One connection at work, in either flavour: how requests are sent over it, and when it is no good any more."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import Format, TransactionStatus
from psycopg.rows import tuple_row

from milepost_postgres.request import Step
from milepost_postgres.wire import Wire, WireDumper

Row = tuple[Any, ...]
AnyCursor = TypeVar("AnyCursor", Cursor[Row], AsyncCursor[Row])

PROBE = b"SELECT pg_backend_pid() = %s, CASE WHEN pg_backend_pid() = %s THEN set_config('jit', 'off', false) END"
"""Tells a server from a pooler that shares its sessions: that one makes up the number it gave when we connected.

A session that is ours alone never compiles: to compile a statement takes longer than any of ours runs."""


def sound(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether a connection that was used can be used again."""
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


def silent(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether an idle connection is still up, as far as can be told without asking: a server that ended it said so."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
    return not poll.poll(0)


class Link:
    """A blocking connection."""

    def __init__(self, connection: Connection[Any]) -> None:
        self.connection = connection
        self._cursors: list[Cursor[Row]] = []

    def run(self, steps: Sequence[Step]) -> list[list[Row]]:
        """Carry out the steps in one transaction and one round trip, on a connection that commits by itself."""
        if len(steps) == 1:
            return [_rows(self._cursor(0).execute(*steps[0]))]
        with self.connection.pipeline():
            used = [self._cursor(number).execute(*step) for number, step in enumerate(steps)]
        return [_rows(cursor) for cursor in used]

    def _cursor(self, number: int) -> Cursor[Row]:
        while len(self._cursors) <= number:
            self._cursors.append(_prepare(Cursor(self.connection, row_factory=tuple_row)))
        return self._cursors[number]


class AsyncLink:
    """An async connection."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self.connection = connection
        self._cursors: list[AsyncCursor[Row]] = []

    async def run(self, steps: Sequence[Step]) -> list[list[Row]]:
        """As `Link.run`."""
        if len(steps) == 1:
            return [await _arows(await self._cursor(0).execute(*steps[0]))]
        async with self.connection.pipeline():
            used = [await self._cursor(number).execute(*step) for number, step in enumerate(steps)]
        return [await _arows(cursor) for cursor in used]

    def _cursor(self, number: int) -> AsyncCursor[Row]:
        while len(self._cursors) <= number:
            self._cursors.append(_prepare(AsyncCursor(self.connection, row_factory=tuple_row)))
        return self._cursors[number]


def _prepare(cursor: AnyCursor) -> AnyCursor:
    cursor.format = Format.BINARY
    cursor.adapters.register_dumper(Wire, WireDumper)
    return cursor


def _rows(cursor: Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description else []


async def _arows(cursor: AsyncCursor[Row]) -> list[Row]:
    return await cursor.fetchall() if cursor.description else []
