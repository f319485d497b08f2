"""Every verb, interrupted while the server carries it out: its session ends, or its caller is cancelled.

The server holds the request up meanwhile, because somebody has locked one of the tables or paused all writes. So it is
interrupted at the same moment each time.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, ClassVar

import postgres.kit
import psycopg
import pytest
import redis_store.kit
import subjects
from milepost.flavour import run
from milepost.store import Store
from milepost.testing import servers, servers_redis
from milepost_postgres import PostgresBackend
from milepost_redis import RedisBackend
from verbs import CHANGES, VERBS, scene, state
from waiting import until

Opened = PostgresBackend | RedisBackend


class Server(ABC):
    """A server whose sessions can be held up and ended."""

    ways: ClassVar[tuple[str, ...]]
    """Where a request can be held up."""
    cancels: ClassVar[bool]
    """Whether a request that was cancelled is not carried out, though the server had got it."""
    passes: ClassVar[frozenset[str]] = frozenset()
    """Verbs that nothing holds up."""

    @abstractmethod
    def open(self) -> Opened: ...

    @abstractmethod
    def hold(self, way: str) -> AbstractContextManager[Callable[[], object]]:
        """Hold requests up, until the block ends or what it is given is called."""

    @abstractmethod
    def holds(self) -> bool:
        """Whether a request is held up now."""

    @abstractmethod
    def cut(self) -> None:
        """End the sessions of everybody else. They are over when this returns."""


class Postgres(Server):
    """A table that is locked holds up whatever statement comes to it, in the middle of its transaction."""

    ways = ("thread", "checkpoint", "write", "pack", "call", "step")
    cancels = True

    def __init__(self) -> None:
        self._place = postgres.kit.Place(subjects.required(servers.postgres_url), f"test_{secrets.token_hex(6)}")
        self._sql = psycopg.connect(self._place.base, autocommit=True)

    def open(self) -> PostgresBackend:
        return self._place.backend()

    @contextmanager
    def hold(self, way: str) -> Generator[Callable[[], object]]:
        with psycopg.connect(self._place.base) as other:
            other.execute(f"LOCK TABLE {self._place.schema}.{way} IN ACCESS EXCLUSIVE MODE".encode())
            yield other.rollback

    def holds(self) -> bool:
        return postgres.kit.blocked(self._sql) > 0

    def cut(self) -> None:
        assert postgres.kit.terminate(self._sql) > 0

    def close(self) -> None:
        self._sql.execute(f"DROP SCHEMA IF EXISTS {self._place.schema} CASCADE".encode())
        self._sql.close()


class Redis(Server):
    """Writes that are paused hold up every script, before it begins."""

    ways = ("pause",)
    cancels = False
    passes = frozenset({"stats"})  # a plain command that reads

    def __init__(self) -> None:
        subjects.required(servers_redis.redis_url)
        self._server = servers_redis.Redis().start()
        self._client: Any = self._server.client()

    def open(self) -> RedisBackend:
        return redis_store.kit.Place(self._server.url(), "p").backend(timeout=60.0)

    @contextmanager
    def hold(self, way: str) -> Generator[Callable[[], object]]:
        self._client.execute_command("CLIENT", way, 600_000, "WRITE")
        try:
            yield self._client.client_unpause
        finally:
            self._client.client_unpause()

    def holds(self) -> bool:
        return any("b" in one["flags"] for one in self._client.client_list())

    def cut(self) -> None:
        assert self._client.client_kill_filter(_type="normal", skipme=True) > 0

    def close(self) -> None:
        self._client.close()
        self._server.stop()


@pytest.fixture(params=[Postgres, Redis], ids=lambda kind: kind.__name__.lower())
def server(request: pytest.FixtureRequest) -> Iterator[Postgres | Redis]:
    with closing(request.param()) as found:
        yield found


class Worker:
    """Carries out what it is given in a thread of its own, over the store of one flavour."""

    def __init__(self, backend: Opened, flavour: str) -> None:
        self._backend = backend
        self._loop = None if flavour == "blocking" else asyncio.new_event_loop()
        self._pool = ThreadPoolExecutor(1)
        if self._loop is not None:
            self._thread = threading.Thread(target=self._loop.run_forever)
            self._thread.start()
        self.store: Store = backend.blocking() if self._loop is None else backend.asynchronous()

    def begin(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        if self._loop is None:
            return self._pool.submit(run, work)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.begin(work).result(120)

    def close(self) -> None:
        if self._loop is None:
            self._backend.close()
        else:
            self.do(self._backend.aclose())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        self._pool.shutdown()


def _reached(server: Server, running: Future[Any] | asyncio.Future[Any]) -> bool:
    """Whether a call has got as far as it gets."""
    return running.done() or server.holds()


@pytest.mark.parametrize("flavour", ["blocking", "async"])
@pytest.mark.parametrize("verb", VERBS)
def test_the_session_ends_in_the_middle(server: Postgres | Redis, verb: str, flavour: str) -> None:
    """The call succeeds all the same, and what it does is done once."""
    act, held = VERBS[verb], 0
    with closing(Worker(server.open(), flavour)) as worker:
        store, do = worker.store, worker.do
        do(store.setup())
        do(scene(store, "undisturbed"))
        do(act(store, "undisturbed"))
        wanted = do(state(store, "undisturbed"))
        for way in server.ways:
            do(scene(store, way))
            with server.hold(way) as release:
                running = worker.begin(act(store, way))
                until(partial(_reached, server, running))
                if not running.done():
                    held += 1
                    server.cut()
                    until(server.holds)
                    release()
                running.result(120)
            assert do(state(store, way)) == wanted, way
    assert held or verb in server.passes, "it was held up nowhere"


@pytest.mark.parametrize("verb", CHANGES)
async def test_the_caller_is_cancelled_in_the_middle(server: Postgres | Redis, verb: str) -> None:
    """Nothing of the call is there, or everything; and nothing of it comes later."""
    act, held = CHANGES[verb], 0
    backend = server.open()
    store = backend.asynchronous()
    await store.setup()
    await scene(store, "undisturbed")
    await act(store, "undisturbed")
    wanted = await state(store, "undisturbed")
    for way in server.ways:
        await scene(store, way)
        before = await state(store, way)
        with server.hold(way) as release:
            running = asyncio.create_task(act(store, way))
            await asyncio.to_thread(until, partial(_reached, server, running))
            if running.done():
                await running
                before = wanted
            else:
                held += 1
                running.cancel()
                if not server.cancels:
                    release()
                with pytest.raises(asyncio.CancelledError):
                    await running
                assert not server.holds()
        found = await state(store, way)
        assert found == before or (found == wanted and not server.cancels), way
    assert held, "it was held up nowhere"
    await backend.aclose()
