"""Milepost's savers for LangGraph's own test files: what ``run_langgraph_suite.py --factory`` is given.

A factory takes "sync", "async" or "dual" and returns a context manager over a fresh, empty saver. One saver serves both
flavours, so the three differ only in how they are entered.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import milepost
import psycopg
from milepost.saver import Saver
from milepost.testing import servers, servers_redis
from psycopg.sql import SQL, Identifier

Entered = AbstractContextManager[Saver] | AbstractAsyncContextManager[Saver]

_SCHEMAS = servers.Names("acceptance")


def memory(kind: str) -> Entered:
    """A saver over a memory store of its own."""
    return _entered_async("memory:") if kind == "async" else _entered("memory:")


def guarded(kind: str) -> Entered:
    """The same with the head guard."""
    return _entered_async("memory:?guard=head") if kind == "async" else _entered("memory:?guard=head")


def files(kind: str) -> Entered:
    """A saver over a directory of its own, gone afterwards."""
    return _files_async() if kind == "async" else _files()


def postgres(kind: str) -> Entered:
    """A saver over a schema of its own, used again afterwards."""
    return _postgres_async() if kind == "async" else _postgres()


def redis(kind: str) -> Entered:
    """A saver under a prefix of its own."""
    url = servers.with_options(servers_redis.redis_url(), prefix=f"accept-{secrets.token_hex(6)}", durability="memory")
    return _entered_async(url) if kind == "async" else _entered(url)


class _Done:
    """What LangGraph's tests get from ``setup()``, which they call as ``saver.setup()`` or ``await saver.setup()``."""

    def __await__(self) -> Iterator[None]:
        return iter(())


def _ready(saver: Saver) -> Saver:
    saver.setup()
    vars(saver)["setup"] = _Done
    return saver


@contextmanager
def _entered(url: str) -> Generator[Saver]:
    with milepost.connect(url) as saver:
        yield _ready(saver)


@asynccontextmanager
async def _entered_async(url: str) -> AsyncGenerator[Saver]:
    async with milepost.connect(url) as saver:
        yield _ready(saver)


@contextmanager
def _files() -> Generator[Saver]:
    with _folder() as url, _entered(url) as saver:
        yield saver


@asynccontextmanager
async def _files_async() -> AsyncGenerator[Saver]:
    with _folder() as url:
        async with _entered_async(url) as saver:
            yield saver


@contextmanager
def _folder() -> Generator[str]:
    with tempfile.TemporaryDirectory(prefix="milepost-") as folder:
        # LangGraph's tests never crash a process, so they need not wait for the disk.
        yield f"file:{Path(folder).as_posix()}?durability=os"


@contextmanager
def _postgres() -> Generator[Saver]:
    with _schema() as url, _entered(url) as saver:
        yield saver


@asynccontextmanager
async def _postgres_async() -> AsyncGenerator[Saver]:
    with _schema() as url:
        async with _entered_async(url) as saver:
            yield saver


@contextmanager
def _schema() -> Generator[str]:
    name, used = _SCHEMAS.take()
    base = servers.postgres_url()
    if used:
        with psycopg.connect(base, autocommit=True) as connection:
            connection.execute(SQL("DELETE FROM {}").format(Identifier(name, "thread")))
    yield servers.with_options(base, schema=name)
    _SCHEMAS.give(name)
