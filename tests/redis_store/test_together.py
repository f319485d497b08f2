"""Writes of several threads that come at the same time go together, and each fares as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from milepost import combine
from milepost.errors import Corrupt, Unavailable
from milepost.store import Put
from milepost.testing import servers_redis
from milepost_redis import RedisBackend
from redis_store.kit import Place, head, name, put
from redis_store.test_connections import kill_all
from waiting import until

COUNT = 20


def waiting(backend: RedisBackend) -> int:
    """How many writes wait for one of the two lanes."""
    return len(backend._blocking_engine()._combiner._waiting)


@contextmanager
def held_up(
    server: servers_redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[redis.Redis], object] = bool,
    *,
    before: Callable[[redis.Redis], object] = bool,
    **options: Any,
) -> Generator[tuple[Place, list[Future[Put]]]]:
    """Two writes that had taken the lanes, and `COUNT` more, after `meanwhile` was done to a server that carries out none."""
    monkeypatch.setattr(combine, "PATIENCE", 3600.0)
    place = Place(server.url(), "p")
    with place.store() as store:
        put(store, "t7", 1)
    backend = place.backend(**options)
    store = backend.blocking()
    with place.client() as client, ThreadPoolExecutor(COUNT + 2) as pool:
        before(client)
        client.execute_command("CLIENT", "PAUSE", 3_600_000, "WRITE")
        futures = [pool.submit(put, store, f"lane{number}", 1) for number in range(2)]
        until(lambda: len(backend._blocking_engine()._combiner._lanes._taken) == 2)
        futures += [pool.submit(put, store, f"t{number}", 2) for number in range(COUNT)]
        until(lambda: waiting(backend) == COUNT)
        meanwhile(client)
        client.execute_command("CLIENT", "UNPAUSE")
        yield place, futures
    backend.close()


def whole(place: Place) -> bool:
    with place.store() as store:
        return all(head(store, f"t{number}") == name(2) for number in range(COUNT))


def test_they_share_connections_and_commands(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def look(client: redis.Redis) -> None:
        reads.append(client.info("stats")["total_reads_processed"])

    with held_up(server, monkeypatch, look) as (place, futures), place.client() as client:
        for future in futures:
            assert not future.result(60).stale
        look(client)
        # What this test asks for is four of them.
        assert reads[1] - reads[0] <= COUNT // 2
        assert len(client.client_list(_type="normal")) <= 2 + 2
        assert whole(place)


def test_a_connection_that_is_killed_under_them(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_up(server, monkeypatch, kill_all) as (place, futures):
        for future in futures:
            assert not future.result(60).stale
        assert whole(place)


def test_scripts_that_are_forgotten_under_them(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_up(server, monkeypatch, before=lambda client: client.script_flush()) as (place, futures):
        for future in futures:
            assert not future.result(60).stale
        assert whole(place)


def test_one_of_them_that_is_refused(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is its own."""

    def spoil(client: redis.Redis) -> None:
        data = Place(server.url(), "p").keys(client)[0]
        client.delete(data)
        client.set(data, "mine")

    with held_up(server, monkeypatch, before=spoil) as (_, futures):
        outcomes = [future.exception(60) for future in futures]
    assert isinstance(outcomes.pop(2 + 7), Corrupt)
    assert outcomes == [None] * (COUNT + 1)


def test_what_they_wait_for_after_that(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wait counts for all of them, and that it failed is told to each."""
    with held_up(server, monkeypatch, durability="replicas:1", timeout=1.0) as (_, futures):
        for future in futures:
            with pytest.raises(Unavailable, match="durability=replicas:1 was not reached"):
                future.result(60)
