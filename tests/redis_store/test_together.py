"""Writes of several threads that come at the same time go together, and each fares as if it were alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from milepost import combine
from milepost.errors import Corrupt, Unavailable
from milepost.flavour import run
from milepost.store import Put
from milepost.testing import servers_redis
from milepost_redis.trouble import crowded
from redis_store.kit import Place, head, name, put, write
from redis_store.test_connections import kill_all
from waiting import until

COUNT = 20


class Watched:
    """What carries out commands, once it is let go; with `meddle` done before the first batch of several goes out."""

    shares = True

    def __init__(self, source: Any, meddle: Callable[[], object]) -> None:
        self._source = source
        self._meddle = meddle
        self.open = threading.Event()
        self.begun: list[int] = []
        self.batches: list[int] = []

    def talk(self, commands: Sequence[Any], last: Any = None, *, fresh: bool = False) -> list[Any]:
        self.begun.append(len(commands))
        assert self.open.wait(60)
        if len(commands) > 1:
            self.batches.append(len(commands))
            if len(self.batches) == 1:
                self._meddle()
        replies: list[Any] = self._source.talk(commands, last, fresh=fresh)
        return replies

    def close(self) -> None:
        self._source.close()


@contextmanager
def held_up(
    server: servers_redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    meddle: Callable[[redis.Redis], object] = bool,
    *,
    before: Callable[[redis.Redis], object] = bool,
    **options: Any,
) -> Generator[tuple[Place, list[Future[Put]], Watched]]:
    """Two writes that had taken the lanes, and `COUNT` more that go together once these go on."""
    monkeypatch.setattr(combine, "PATIENCE", 3600.0)
    place = Place(server.url(), "p")
    with place.store() as store:
        put(store, "t7", 1)
    backend = place.backend(**options)
    engine: Any = backend._engines.blocking()
    store = backend.blocking()
    with place.client() as client, ThreadPoolExecutor(COUNT + 2) as pool:
        watched = Watched(engine._source, lambda: meddle(client))
        monkeypatch.setattr(engine, "_source", watched)
        before(client)
        try:
            futures = [pool.submit(put, store, f"lane{number}", 1) for number in range(2)]
            until(lambda: len(watched.begun) == 2)
            futures += [pool.submit(put, store, f"t{number}", 2) for number in range(COUNT)]
            until(lambda: len(engine._combiner._waiting) == COUNT)
        finally:
            watched.open.set()
        yield place, futures, watched
    backend.close()


def stored(place: Place) -> bool:
    with place.store() as store:
        return all(head(store, f"t{number}") == name(2) for number in range(COUNT))


def test_they_share_a_round_trip(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_up(server, monkeypatch) as (place, futures, watched), place.client() as client:
        for future in futures:
            assert not future.result(60).stale
        assert sum(watched.batches) >= COUNT - 1
        assert len(watched.batches) <= 2
        # Two of the store's, and two of this test's.
        assert len(client.client_list(_type="normal")) <= 2 + 2
        assert stored(place)


def test_a_connection_that_is_killed_under_them(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_up(server, monkeypatch, kill_all) as (place, futures, watched):
        for future in futures:
            assert not future.result(60).stale
        assert watched.batches
        assert stored(place)


def test_scripts_that_are_forgotten_under_them(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_up(server, monkeypatch, lambda client: client.script_flush()) as (place, futures, watched):
        for future in futures:
            assert not future.result(60).stale
        assert watched.batches
        assert stored(place)


def test_one_of_them_that_is_refused(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is its own."""

    def spoil(client: redis.Redis) -> None:
        data = Place(server.url(), "p").keys(client)[0]
        client.delete(data)
        client.set(data, "mine")

    with held_up(server, monkeypatch, before=spoil) as (_, futures, watched):
        outcomes = [future.exception(60) for future in futures]
        assert watched.batches
    assert isinstance(outcomes.pop(2 + 7), Corrupt)
    assert outcomes == [None] * (COUNT + 1)


def test_what_they_wait_for_after_that(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wait counts for all of them, and that it failed is told to each."""
    with held_up(server, monkeypatch, durability="replicas:1", timeout=1.0) as (_, futures, watched):
        for future in futures:
            with pytest.raises(Unavailable, match="durability=replicas:1 was not reached"):
                future.result(60)
        assert watched.batches


def test_an_answer_that_none_of_them_gets(server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told, after one time-out: nobody waits for another one alone."""
    with held_up(server, monkeypatch, lambda _: server.pause(), timeout=1.0) as (_, futures, watched):
        try:
            errors = [future.exception(60) for future in futures[2:]]
        finally:
            server.resume()
        late = [error for error in errors if error is not None]
        assert len(late) >= max(watched.batches)
        assert all(isinstance(error, Unavailable) and "no answer in time" in str(error) for error in late)
        assert len({*map(id, late)}) == len(late)


def test_a_pool_that_none_of_them_gets_a_connection_of(
    server: servers_redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has an error of its own, and nobody waits for a connection once more."""

    def busy(_: redis.Redis) -> None:
        raise crowded(1, 0.5)

    with held_up(server, monkeypatch, busy) as (_, futures, watched):
        errors = [error for future in futures[2:] if (error := future.exception(60)) is not None]
        assert len(errors) >= watched.batches[0]
        assert all(isinstance(error, Unavailable) and "connection" in str(error) for error in errors)
        assert len({*map(id, errors)}) == len(errors)


def test_what_is_large_goes_by_itself(server: servers_redis.Redis) -> None:
    place = Place(server.url(), "p")
    backend = place.backend()
    engine: Any = backend._engines.blocking()
    watched = engine._source = Watched(engine._source, bool)
    store = backend.blocking()
    with ThreadPoolExecutor(COUNT) as pool:
        values = [write(value=bytes(1 << 15), task=str(number)) for number in range(COUNT)]
        futures = [pool.submit(run, store.put_writes("t", "", name(1), [each], None)) for each in values]
        until(lambda: len(watched.begun) == COUNT)
        watched.open.set()
        for future in futures:
            assert future.result(60).accepted == (True,)
    assert not watched.batches
    backend.close()
