"""One connection at work, in either flavour: how requests are sent over it, and when it is no good any more.

Statements go to libpq as they are, below psycopg's cursors: the parameters are bytes already, and what a cursor does for
a statement takes longer than all the rest of a put. Waiting, cancelling and errors are psycopg's.
"""

from __future__ import annotations

import itertools
import math
import select
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from milepost.collector import unhurried
from psycopg import AsyncConnection, Connection, errors
from psycopg.abc import PQGen
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.generators import execute
from psycopg.pq import ExecStatus, Format, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from milepost_postgres.request import Step

T = TypeVar("T")
Row = tuple[Any, ...]

PIECES = 32
"""Read in a row, at most, before others have their turn."""

PROBE = b"""SELECT CASE WHEN pg_backend_pid() = %s THEN
    set_config('jit', 'off', false) || set_config('plan_cache_mode', 'force_generic_plan', false) END IS NOT NULL"""
"""Tells a server from a pooler that shares its sessions: that one makes up the number it gave when we connected.

A session that is ours alone never compiles a statement and plans it once: either takes longer than to carry it out.
"""


_DISCARDED = (errors.InvalidSqlStatementName, errors.FeatureNotSupported)
"""What is raised where somebody has discarded what was prepared, or has changed the tables so that it gives other columns."""


class _Context(NamedTuple):
    """What a connection is to a `Transformer`, without keeping the connection."""

    adapters: AdaptersMap
    connection: Any


class Line:
    """What both flavours do: statements out, rows in."""

    def __init__(self, connection: Connection[Any] | AsyncConnection[Any]) -> None:
        # What is known of a connection must not keep it: who loses one has it closed.
        self._connection = weakref.proxy(connection)
        self._pgconn = connection.pgconn
        self._prepared: dict[bytes, bytes] = {}
        self._names = itertools.count()
        self._rows = Transformer(_Context(connection.adapters, self._connection))
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN | select.POLLHUP | select.POLLERR)

    def sound(self) -> bool:
        """Whether the connection can be used again after it was used."""
        # Who was interrupted at a bad moment leaves the pipeline open, with nothing in it.
        idle = self._pgconn.transaction_status == TransactionStatus.IDLE
        return idle and self._pgconn.pipeline_status == PipelineStatus.OFF

    def silent(self) -> bool:
        """Whether the idle connection is still up, as far as can be told without asking: a server that ends one says so."""
        return not (self._connection.closed or self._poll.poll(0))

    def talk(self, steps: Sequence[Step]) -> PQGen[list[list[Row]]]:
        """Carry out the steps in one transaction and one round trip, on a connection that commits by itself. What is prepared
        for them goes along."""
        # As psycopg has it: None is a connection that must not prepare.
        prepare = self._connection.prepare_threshold is not None
        known = self._prepared
        texts = dict.fromkeys(text for text, _ in steps if text not in known) if prepare else ()
        fresh = {text: b"milepost_%d" % next(self._names) for text in texts}
        names = (known | fresh if fresh else known) if prepare else None
        if len(steps) == 1 and not fresh:
            self._send(steps[0], names)
            return (yield from self._answers())
        self._pgconn.enter_pipeline_mode()
        for text, name in fresh.items():
            self._pgconn.send_prepare(name, text)
        for step in steps:
            self._send(step, names)
        self._pgconn.pipeline_sync()
        results = yield from _until_sync(self._pgconn)
        self._pgconn.exit_pipeline_mode()
        # What is prepared stays so, whatever becomes of the transaction.
        for (text, name), result in zip(fresh.items(), results, strict=False):
            if result.status == ExecStatus.COMMAND_OK:
                known[text] = name
        return [self._load(result) for result in results][len(fresh) :]

    def eager(self, talk: PQGen[T]) -> PQGen[T]:
        """`talk`, which reads on without going through the event loop where more of an answer has come in already.

        An answer comes in pieces of some 16 KB, and a round through the loop takes longer than to read one.
        """
        left = 0
        try:
            wanted = next(talk)
            while True:
                if wanted == Wait.R and left and self._poll.poll(0):
                    left -= 1
                    wanted = talk.send(Ready.R)
                else:
                    left = PIECES
                    wanted = talk.send((yield wanted))
        except StopIteration as done:
            found: T = done.value
            return found

    def _send(self, step: Step, names: Mapping[bytes, bytes] | None) -> None:
        text, values = step
        formats = (Format.BINARY,) * len(values)
        if names is None:
            self._pgconn.send_query_params(text, values, None, formats, Format.BINARY)
        else:
            self._pgconn.send_query_prepared(names[text], values, formats, Format.BINARY)

    def _answers(self) -> PQGen[list[list[Row]]]:
        results = yield from execute(self._pgconn)
        return [self._load(result) for result in results]

    def _load(self, result: PGresult) -> list[Row]:
        if result.status == ExecStatus.TUPLES_OK:
            self._rows.set_pgresult(result)
            with unhurried(result.ntuples):
                return self._rows.load_rows(0, result.ntuples, tuple)
        if result.status == ExecStatus.COMMAND_OK:
            return []
        error = errors.error_from_result(result)
        if isinstance(error, _DISCARDED):
            self._prepared.clear()
        raise error


class Link:
    """A blocking connection."""

    def __init__(self, connection: Connection[Any]) -> None:
        self.connection = connection
        self.line = _line(connection)
        self.used = -math.inf
        """When it was given back, by the monotonic clock."""

    def run(self, steps: Sequence[Step]) -> list[list[Row]]:
        """Carry out the steps; the rows of each."""
        return self.connection.wait(self.line.talk(steps))


class AsyncLink:
    """An async connection."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self.connection = connection
        self.line = _line(connection)
        self.used = -math.inf
        """When it was given back, by the monotonic clock."""

    async def run(self, steps: Sequence[Step]) -> list[list[Row]]:
        """As `Link.run`."""
        return await self.connection.wait(self.line.eager(self.line.talk(steps)))


# Several stores may work on one connection: what is prepared there is known to all of them.
_lines: weakref.WeakKeyDictionary[Connection[Any] | AsyncConnection[Any], Line] = weakref.WeakKeyDictionary()


def _line(connection: Connection[Any] | AsyncConnection[Any]) -> Line:
    found = _lines.get(connection)
    if found is None:
        found = _lines[connection] = Line(connection)
    return found


def _until_sync(pgconn: Any) -> PQGen[list[PGresult]]:
    """The results of a pipeline that was sent up to its end. Reads while it still writes: either side may fill up.

    Who is cancelled has the server cancel the statement, and then goes on here, until the server has said so.
    """
    while pgconn.flush():
        ready = yield Wait.RW
        # Nothing is ready yet when it goes on.
        if ready and ready & Ready.R:
            pgconn.consume_input()
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            continue
        if result.status == ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)
