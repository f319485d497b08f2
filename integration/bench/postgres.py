"""The Postgres store and the official saver on one server, which waits for the disk, each in a database of its own."""

from __future__ import annotations

import atexit
import functools
import hashlib
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import milepost
import psycopg
from milepost.testing import servers
from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier

from .rivals import AnySaver, Rival


@functools.cache
def _server() -> servers.Postgres:
    server = servers.Postgres()
    atexit.register(server.stop)
    return server.start()


@functools.cache
def _database(folder: Path) -> str:
    """The URL of a database for a folder; the databases of folders that are gone are dropped."""
    name = "bench_" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    with psycopg.connect(_server().url(), autocommit=True) as connection:
        for (other,) in connection.execute("SELECT datname FROM pg_database WHERE datname LIKE 'bench%'").fetchall():
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(other)))
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
        # What was dropped is not to be written to the disk while the next one is timed.
        connection.execute("CHECKPOINT")
    return _server().url(name)


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


def _ours(folder: Path) -> Any:
    return milepost.connect(_database(folder))


# As their documentation has it: one connection that commits by itself.
_CONNECTION: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


@contextmanager
def _official(folder: Path) -> Generator[AnySaver]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with psycopg.Connection[Any].connect(_database(folder), **_CONNECTION) as connection:
        saver = PostgresSaver(connection)
        saver.setup()
        yield saver


@asynccontextmanager
async def _official_async(folder: Path) -> AsyncGenerator[AnySaver]:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

    async with await psycopg.AsyncConnection[Any].connect(_database(folder), **_CONNECTION) as connection:
        saver = AsyncPostgresSaver(connection)
        await saver.setup()
        yield saver


POSTGRES = PostgresRival("milepost postgres", _ours, _ours)
OFFICIAL = PostgresRival("PostgresSaver", _official, _official_async)
