"""The Postgres store and the official saver on one server, which waits for the disk, each in a database of its own."""

from __future__ import annotations

import atexit
import functools
import hashlib
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import milepost
import psycopg
from milepost.testing import servers
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from .machine import processor_time
from .rivals import AnySaver, Rival


@functools.cache
def server() -> servers.Postgres:
    """The server that all rivals share."""
    made = servers.Postgres()
    atexit.register(made.stop)
    return made.start()


@functools.cache
def _database(folder: Path) -> str:
    """The URL of a database for a folder; the databases of folders that are gone are dropped."""
    name = "bench_" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    with psycopg.connect(server().url(), autocommit=True) as connection:
        for (other,) in connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'bench%'").fetchall():
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(other)))
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        # What was dropped is not to be written to the disk while the next one is timed.
        connection.execute("CHECKPOINT")
    return server().url(name)


class PostgresRival(Rival):
    """A saver over a database."""

    def bytes(self, folder: Path) -> int:
        """What its tables and their indexes take on the disk."""
        sizes = """
            SELECT sum(pg_total_relation_size(c.oid))::int8
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind = 'r' AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
        """
        with psycopg.connect(_database(folder)) as connection:
            found: Any = connection.execute(sizes).fetchone()
        size: int = found[0]
        return size

    def log_bytes(self, folder: Path) -> int:
        with psycopg.connect(_database(folder)) as connection:
            found: Any = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()
        return int(found[0])

    def server_time(self, folder: Path) -> float:
        with psycopg.connect(_database(folder)) as connection:
            return processor_time(connection.info.backend_pid)

    def settle(self, folder: Path) -> None:
        with psycopg.connect(_database(folder), autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")


def _hurry(folder: Path) -> str:
    return servers.with_options(_database(folder), options="-csynchronous_commit=off")


def _ours(folder: Path) -> Any:
    return milepost.connect(_database(folder))


def _ours_hurried(folder: Path) -> Any:
    return milepost.connect(_hurry(folder))


# As their documentation has it: one connection that commits by itself.
_CONNECTION: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


def _opener(url: Callable[[Path], str]) -> tuple[Callable[[Path], Any], Callable[[Path], Any]]:
    @contextmanager
    def blocking(folder: Path) -> Generator[AnySaver]:
        from langgraph.checkpoint.postgres import PostgresSaver

        with psycopg.Connection[Any].connect(url(folder), **_CONNECTION) as connection:
            saver = PostgresSaver(connection)
            saver.setup()
            yield saver

    @asynccontextmanager
    async def asynchronous(folder: Path) -> AsyncGenerator[AnySaver]:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

        async with await psycopg.AsyncConnection[Any].connect(url(folder), **_CONNECTION) as connection:
            saver = AsyncPostgresSaver(connection)
            await saver.setup()
            yield saver

    return blocking, asynchronous


POSTGRES = PostgresRival(
    "milepost postgres", _ours, _ours, "postgres", ours=True, hurried=Rival("", _ours_hurried, _ours_hurried)
)
OFFICIAL = PostgresRival("PostgresSaver", *_opener(_database), "postgres", hurried=Rival("", *_opener(_hurry)))
