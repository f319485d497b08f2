"""Connections that end, servers that stop, answers that do not come."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import milepost_redis
import pytest
import redis
from milepost.errors import Unavailable
from milepost.flavour import run
from milepost.store import Loaded, Store
from milepost.testing import servers_redis
from milepost_redis.sources import Pool
from redis_store.kit import Place, head, name, put, row
from verbs import READS, VERBS, scene, shown


def kill_all(client: redis.Redis) -> None:
    """End the connections of everybody else."""
    client.client_kill_filter(_type="normal", skipme=True)


def test_a_connection_that_was_killed(server: servers_redis.Redis) -> None:
    """The next call of any verb succeeds, as if nothing had been."""
    place = Place(server.url(), "p")
    with place.client() as client, place.store() as store:
        for verb, act in VERBS.items():
            run(scene(store, verb))
            kill_all(client)
            answer = run(act(store, verb))
            if verb in READS:
                assert answer, verb
                assert shown(answer) == shown(run(act(store, verb))), verb
            kill_all(client)
            run(act(store, verb))


async def test_a_connection_that_was_killed_async(server: servers_redis.Redis) -> None:
    place = Place(server.url(), "p")
    backend = place.backend()
    store = backend.asynchronous()
    with place.client() as client:
        for verb, act in VERBS.items():
            await scene(store, verb)
            kill_all(client)
            answer = await act(store, verb)
            if verb in READS:
                assert shown(answer) == shown(await act(store, verb)), verb
            kill_all(client)
            await asyncio.gather(act(store, verb), store.stats(None), store.stats(verb))
    await backend.aclose()


def test_scripts_that_the_server_forgot(server: servers_redis.Redis) -> None:
    place = Place(server.url(), "p")
    with place.client() as client, place.store() as store:
        for verb, act in VERBS.items():
            run(scene(store, verb))
            client.script_flush()
            run(act(store, verb))
        assert head(store, "put") == name(3)


def test_a_server_that_is_down(server: servers_redis.Redis) -> None:
    """What cannot be reached is not absent."""
    with Place(server.url(), "p").store() as store:
        server.kill()
        with ThreadPoolExecutor(len(VERBS)) as pool:
            for refused in [pool.submit(run, act(store, "t")) for act in VERBS.values()]:
                with pytest.raises(Unavailable, match="try again when the server is up"):
                    refused.result()
        server.start()
        put(store, "t", 1)
        assert head(store, "t") == name(1)


async def test_a_server_that_is_down_async(server: servers_redis.Redis) -> None:
    backend = Place(server.url(), "p").backend()
    store = backend.asynchronous()
    await store.setup()
    server.kill()
    for refused in await asyncio.gather(*(act(store, "t") for act in VERBS.values()), return_exceptions=True):
        assert isinstance(refused, Unavailable)
    server.start()
    await store.put("t", *row(1), None)
    assert isinstance(await store.get("t", "", None), Loaded)
    await backend.aclose()


def test_an_answer_that_does_not_come(server: servers_redis.Redis) -> None:
    with Place(server.url(), "p").store(timeout=0.2) as store:
        put(store, "t", 1)
        server.pause()
        with pytest.raises(Unavailable, match="no answer in time"):
            put(store, "t", 2, parent=1)
        server.resume()
        assert head(store, "t") in (name(1), name(2))
        put(store, "t", 2, parent=1)
        assert head(store, "t") == name(2)


async def test_an_answer_that_does_not_come_async(server: servers_redis.Redis) -> None:
    backend = Place(server.url(), "p").backend(timeout=0.2)
    store = backend.asynchronous()
    await store.put("t", *row(1), None)
    server.pause()
    results = await asyncio.gather(
        *(store.put("t", *row(number, parent=1), None) for number in range(2, 6)), return_exceptions=True
    )
    assert all(isinstance(result, Unavailable) for result in results)
    server.resume()
    await store.put("t", *row(6, parent=1), None)
    loaded = await store.get("t", "", None)
    assert loaded is not None
    assert loaded.snapshots[0].row.id == name(6)
    await backend.aclose()


async def test_a_cancelled_call_has_happened_or_not(server: servers_redis.Redis) -> None:
    """When its await ends, nothing of it is still on its way."""
    place = Place(server.url(), "p")
    backend = place.backend()
    store = backend.asynchronous()
    await store.put("t", *row(1), None)
    server.pause()
    task = asyncio.create_task(store.put("t", *row(2, parent=1), None))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done(), "it was sent, so it is waited for"
    server.resume()
    with pytest.raises(asyncio.CancelledError):
        await task
    loaded = await store.get("t", "", None)
    assert loaded is not None
    assert loaded.snapshots[0].row.id == name(2)
    await backend.aclose()


def test_more_callers_than_connections(place: Place) -> None:
    with place.store(pool=2) as store:
        threads = [threading.Thread(target=put, args=(store, "t", number)) for number in range(1, 30)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert run(store.stats("t")).checkpoints == 29


def test_connections_that_are_all_busy(server: servers_redis.Redis) -> None:
    backend = Place(server.url(), "p").backend(pool=1, timeout=0.3)
    store = backend.blocking()
    run(store.setup())
    server.pause()
    errors: list[Exception] = []

    def call() -> None:
        try:
            put(store, "t", 1)
        except Unavailable as exc:
            errors.append(exc)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.resume()
    assert len(errors) == 2
    backend.close()


def test_any_number_of_event_loops(place: Place) -> None:
    backend = place.backend()
    store = backend.asynchronous()
    for number in range(1, 4):
        asyncio.run(_once(store, number))
    assert head(backend.blocking(), "t") == name(3)
    backend.close()


async def _once(store: Store, number: int) -> None:
    await asyncio.gather(*(store.put("t", *row(number), None) for _ in range(5)))


@pytest.mark.parametrize("steps", range(5))
def test_a_loop_that_ends_while_a_call_is_on_its_way(place: Place, steps: int) -> None:
    """At any moment: the call ends, whatever became of it, and so does the loop."""
    backend = place.backend()

    async def main() -> asyncio.Task[Any]:
        store = backend.asynchronous()
        await store.setup()
        await asyncio.gather(*(store.get(f"t{number}", "", None) for number in range(3)))
        call = asyncio.create_task(store.put("t", *row(1), None))
        for _ in range(steps):
            await asyncio.sleep(0)
        return call

    assert asyncio.run(main()).done()
    backend.close()


async def test_an_error_that_nobody_foresaw(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for the connection is told that one, and the next request has another connection."""
    backend = place.backend()
    store = backend.asynchronous()
    await store.put("t", *row(1), None)
    with monkeypatch.context() as patch:

        async def receive(_: object) -> object:
            raise LookupError("not foreseen")

        patch.setattr("milepost_redis.lines.receive", receive)
        with pytest.raises(LookupError, match="not foreseen"):
            await store.get("t", "", None)
    assert isinstance(await store.get("t", "", None), Loaded)
    await backend.aclose()


def test_a_forked_process_has_connections_of_its_own(place: Place) -> None:
    with place.store() as store:
        put(store, "t", 1)
        child = os.fork()
        if not child:
            try:
                for number in range(2, 30):
                    put(store, "t", number)
                os._exit(0)
            finally:
                os._exit(1)
        for number in range(30, 60):
            put(store, "t", number)
        assert os.waitpid(child, 0)[1] == 0
        assert run(store.stats("t")).checkpoints == 59


def test_a_closed_store(place: Place) -> None:
    backend = place.backend()
    store = backend.blocking()
    put(store, "t", 1)
    backend.close()
    backend.close()
    with pytest.raises(Unavailable, match="was closed"):
        run(store.get("t", "", None))
    assert isinstance(backend, milepost_redis.RedisBackend)


def test_a_connection_that_is_lost_keeps_nobody_waiting(server: servers_redis.Redis) -> None:
    """A thread that is interrupted just when it has one can give nothing back."""
    make = redis.ConnectionPool.from_url(server.url()).make_connection
    pool = Pool(make, 2, 5.0)
    ping = [(b"PING",)]
    for _ in range(5):
        assert pool.talk(ping) == [b"PONG"]
        lost: Any = pool._idle.get_nowait()
        lost.disconnect()
        del lost
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(lambda _: pool.talk(ping), range(40))] == [[b"PONG"]] * 40
    pool.close()
    for _ in range(3):
        with pytest.raises(Unavailable, match="closed"):
            pool.talk(ping)


def test_a_close_that_is_cancelled_leaves_nothing_open(server: servers_redis.Redis) -> None:
    async def work(store: Store, backend: milepost_redis.RedisBackend, turns: int) -> None:
        await asyncio.gather(*(store.stats(f"t{number}") for number in range(100)))
        closing = asyncio.create_task(backend.aclose())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for turns in range(8):
            backend = Place(server.url(), "p").backend()
            asyncio.run(work(backend.asynchronous(), backend, turns))
            backend.close()
            del backend
            gc.collect()
    assert not [str(each.message) for each in heard]
