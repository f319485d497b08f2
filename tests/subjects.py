"""The stores that the behaviour suite is run on."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import milepost_files
import milepost_postgres
import milepost_redis
import pytest
from milepost.pending import running_loop
from milepost.store import Backend, Port, Store
from milepost.testing import Memory, Subject, servers, servers_redis
from milepost.testing.faults import FaultyPort, Plan
from milepost_postgres.pool import Pool, Settings
from milepost_postgres.request import Step

__all__ = ["Files", "Memory", "Postgres", "Redis"]


class Files(Subject):
    """The file store. The disk is not waited for: crashes of the machine are another test's matter."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"durable", "shared", "damage", "ledger"})

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._folder = directory / "store"

    def backend(self) -> Backend:
        return milepost_files.open_backend(self._folder, durability="os")

    def url(self) -> str:
        return f"file:{self._folder}?durability=os"

    def media(self) -> Mapping[str, bytes]:
        files = [path for path in self._folder.rglob("*") if path.is_file() and path.parent != self._folder]
        return {str(path.relative_to(self._folder)): path.read_bytes() for path in files}

    def overwrite(self, name: str, data: bytes | None) -> None:
        if data is None:
            (self._folder / name).unlink()
        else:
            (self._folder / name).write_bytes(data)


class EitherPort:
    """The port of the flavour that asks: the async one where an event loop runs."""

    def __init__(self, blocking: Port, asynchronous: Port) -> None:
        self._blocking = blocking
        self._async = asynchronous

    async def call(self, request: object) -> object:
        return await (self._blocking if running_loop() is None else self._async).call(request)


def required(url: Callable[[], str]) -> str:
    """The URL of a server. Where this machine has none the test is skipped, but on CI it fails."""
    try:
        return url()
    except servers.MissingServer as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(exc))


class Kept:
    """The pool of all blocking stores of this process: to connect takes longer than most tests."""

    shares = True

    def __init__(self, pool: Pool) -> None:
        self.run = pool.run

    def close(self) -> None:
        """It goes on to be used."""


@functools.cache
def kept(conninfo: str) -> Kept:
    pool = Pool(Settings(conninfo, size=40))
    atexit.register(pool.close)
    return Kept(pool)


class Postgres(Subject):
    """The Postgres store: each in a schema of its own, of the server that all tests of a process share.

    Making tables takes longer than most tests, so a schema is used again, emptied, when its subject is gone.
    """

    capabilities: ClassVar[frozenset[str]] = frozenset({"durable", "shared", "merging", "ledger", "transactions"})
    _schemas: ClassVar[servers.Names] = servers.Names("suite")

    @staticmethod
    def server() -> str:
        """The URL of the server."""
        return servers.postgres_url()

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._base = required(self.server)
        self._schema, used = self._schemas.take()
        weakref.finalize(self, self._schemas.give, self._schema).atexit = False
        if used:
            pool = kept(self._base)
            # A subject that was never opened has no tables.
            (found,) = pool.run([Step(f"SELECT to_regclass('{self._schema}.thread') IS NOT NULL".encode())])
            if found == [(True,)]:
                pool.run([Step(f"DELETE FROM {self._schema}.thread".encode())])

    def backend(self) -> Backend:
        backend = milepost_postgres.open_backend(self._base, schema=self._schema, pool=4)
        backend._source = lambda: kept(self._base)
        return backend

    def over(self, backend: Backend, plan: Plan) -> Store:
        assert isinstance(backend, milepost_postgres.PostgresBackend)
        return backend.over(FaultyPort(EitherPort(backend.blocking_port(), backend.async_port()), plan))

    def url(self) -> str:
        return servers.with_options(self._base, schema=self._schema, pool=4)


class Redis(Subject):
    """The Redis store: each with a prefix of its own, on the server that all tests of a process share."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"durable", "shared", "merging", "ledger"})
    _numbers: ClassVar[itertools.count[int]] = itertools.count()

    @staticmethod
    def server() -> str:
        """The URL of the server."""
        return servers_redis.redis_url()

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._base = required(self.server)
        self._prefix = f"suite-{os.getpid()}-{next(self._numbers)}"

    def backend(self) -> Backend:
        return milepost_redis.open_backend(self._base, prefix=self._prefix, durability="memory")

    def over(self, backend: Backend, plan: Plan) -> Store:
        assert isinstance(backend, milepost_redis.RedisBackend)
        return backend.over(FaultyPort(EitherPort(backend.blocking_port(), backend.async_port()), plan))

    def url(self) -> str:
        return f"{self._base}?prefix={self._prefix}&durability=memory"
