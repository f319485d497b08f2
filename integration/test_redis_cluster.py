"""A cluster of Redis or Valkey: every behaviour, slots that move, writes that wait for a disk or a replica."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import milepost_redis
import pytest
import redis.asyncio.cluster
import redis.cluster
import subjects
from milepost.errors import Unavailable
from milepost.flavour import run
from milepost.store import Query, Store
from milepost.testing import at, checkpoint, servers_redis
from milepost.testing.suite import Everything
from redis.crc import key_slot
from redis_store.kit import chain, head, name, put, row

_NUMBERS = itertools.count()
FLAVOURS = ["blocking", "async"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[servers_redis.Cluster]:
    subjects.required(servers_redis.redis_url)
    with servers_redis.Cluster() as started:
        yield started


class OnCluster(subjects.Redis):
    """A prefix on a cluster that all tests of this file share."""

    shared: servers_redis.Cluster

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._base = self.shared.url()


@pytest.mark.usefixtures("shared_cluster")
class TestCluster(Everything):
    subject = OnCluster


@pytest.fixture(scope="module")
def shared_cluster(cluster: servers_redis.Cluster) -> None:
    OnCluster.shared = cluster


@pytest.fixture
def backend(cluster: servers_redis.Cluster) -> Iterator[milepost_redis.RedisBackend]:
    opened = milepost_redis.open_backend(cluster.url(), prefix=f"c{next(_NUMBERS)}", durability="memory")
    yield opened
    opened.close()


def test_threads_are_spread_over_the_nodes(
    cluster: servers_redis.Cluster, backend: milepost_redis.RedisBackend
) -> None:
    store = backend.blocking()
    for number in range(30):
        chain(store, f"t{number}", 2)
    sizes = []
    for node in cluster.nodes:
        with node.client() as client:
            sizes.append(len(list(client.scan_iter(f"{backend.layout.prefix}:*", count=1000))))
    assert all(size > 5 for size in sizes)
    assert sum(sizes) == 61, "two keys for each thread, and the index"
    assert len(run(store.threads(None, 100)).rows) == 30
    assert len(run(store.page(Query(), None, 100)).snapshots) == 60
    for number in range(30):
        run(store.delete_thread(f"t{number}"))
    assert run(store.threads(None, 100)).rows == ()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
async def test_cluster_clients_of_the_application(
    cluster: servers_redis.Cluster, *, decode: bool, protocol: int
) -> None:
    options: Any = {
        "host": "127.0.0.1",
        "port": cluster.nodes[0].port,
        "decode_responses": decode,
        "protocol": protocol,
    }
    prefix = f"c{next(_NUMBERS)}"
    blocking = redis.cluster.RedisCluster(**options)
    async with redis.asyncio.cluster.RedisCluster(**options) as client:
        saver = milepost_redis.RedisSaver.from_client(blocking, client, prefix=prefix, durability="memory")
        saver.put(at("t"), checkpoint("1", {"x": b"\xff"}), {}, {"x": 1})
        found = await saver.aget_tuple(at("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": b"\xff"}
        await saver.aclose()
        assert await client.ping()
    blocking.close()


@pytest.mark.parametrize("ends", ["closed", "cancelled", "stopped"])
def test_no_connection_is_left_open(cluster: servers_redis.Cluster, ends: str) -> None:
    """However the requests on their way and the end of the store, or of its event loop, come together."""

    async def late(store: Store, number: int) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await store.stats(f"t{number}")

    async def work(backend: milepost_redis.RedisBackend, millis: int) -> list[AsyncGenerator[None]]:
        store = backend.asynchronous()
        if ends == "stopped":
            await store.stats("t")
            left = [late(store, number) for number in range(5)]
            for each in left:
                await anext(each)
            return left
        tasks = [asyncio.create_task(store.stats(f"t{number}")) for number in range(20)]
        await asyncio.sleep(millis / 1000)
        closing = asyncio.create_task(backend.aclose())
        if ends == "cancelled":
            await asyncio.gather(*tasks)
            for _ in range(millis):
                await asyncio.sleep(0)
            closing.cancel()
        await asyncio.wait([closing, *tasks])
        return []

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for millis in range(20):
            backend = milepost_redis.open_backend(cluster.url(), prefix=f"c{next(_NUMBERS)}", durability="memory")
            asyncio.run(work(backend, millis))
            backend.close()
            del backend
            gc.collect()
    assert not [str(each.message) for each in heard]


async def test_closing_is_not_held_up_by_a_node_that_hangs(cluster: servers_redis.Cluster) -> None:
    """The cluster client tries again by itself, many times as long as a request may take."""
    backend = milepost_redis.open_backend(cluster.url(), prefix=f"c{next(_NUMBERS)}", durability="memory", timeout=1.0)
    store = backend.asynchronous()
    await asyncio.gather(*(store.stats(f"t{number}") for number in range(20)))
    cluster.nodes[1].pause()
    try:
        tasks = [asyncio.create_task(store.stats(f"t{number}")) for number in range(20)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(6):
            await backend.aclose()
    finally:
        cluster.nodes[1].resume()
    await asyncio.wait(tasks)


def slot_of(backend: milepost_redis.RedisBackend, thread: str) -> int:
    return key_slot(backend.layout.tag(thread).data)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_slot_that_is_moved_under_load(
    cluster: servers_redis.Cluster, backend: milepost_redis.RedisBackend, flavour: str
) -> None:
    _moved_under_load(cluster, backend, flavour)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_slot_that_is_moved_while_writes_wait(durable: servers_redis.Cluster, flavour: str) -> None:
    backend = milepost_redis.open_backend(durable.url(), prefix=f"c{next(_NUMBERS)}", durability="aof")
    _moved_under_load(durable, backend, flavour)
    backend.close()


def _moved_under_load(cluster: servers_redis.Cluster, backend: milepost_redis.RedisBackend, flavour: str) -> None:
    """Every put succeeds or is `Unavailable`, and what was acknowledged is there."""
    store = backend.blocking()
    put(store, "t", 1)
    slot = slot_of(backend, "t")
    clients: list[Any] = [node.client() for node in cluster.nodes]
    ids = [client.execute_command("CLUSTER MYID").decode() for client in clients]
    owner = next(
        number for number, client in enumerate(clients) if client.execute_command("CLUSTER COUNTKEYSINSLOT", slot)
    )
    target = (owner + 1) % len(clients)
    stop, acknowledged = threading.Event(), [1]
    if flavour == "blocking":
        thread = threading.Thread(target=lambda: run(_load(store, stop, acknowledged)))
    else:
        thread = threading.Thread(target=lambda: asyncio.run(_load(backend.asynchronous(), stop, acknowledged)))
    thread.start()
    try:
        while len(acknowledged) < 40:
            assert thread.is_alive()
            _move(clients, ids, slot, owner, target)
            owner, target = target, owner
    finally:
        stop.set()
        thread.join()
        for client in clients:
            client.close()
    chart = run(store.chart("t"))
    assert chart is not None
    assert {name(number) for number in acknowledged} <= {row.id for row in chart.rows}
    assert head(store, "t") == max(row.id for row in chart.rows)


async def _load(store: Store, stop: threading.Event, acknowledged: list[int]) -> None:
    while not stop.is_set():
        number = acknowledged[-1] + 1
        try:
            await store.put("t", *row(number, parent=number - 1), None)
        except Unavailable:
            continue
        acknowledged.append(number)


def _move(clients: list[Any], ids: list[str], slot: int, source: int, target: int) -> None:
    clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    port = clients[target].connection_pool.connection_kwargs["port"]
    while keys := clients[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
        clients[source].execute_command("MIGRATE", "127.0.0.1", port, keys[0], 0, 5000)
        time.sleep(0.02)
    for client in (clients[target], clients[source], *clients):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])


@pytest.fixture(scope="module")
def durable() -> Iterator[servers_redis.Cluster]:
    """Two primaries with an append-only file, of which the first has a replica."""
    subjects.required(servers_redis.redis_url)
    with servers_redis.Cluster(2, settings={"appendonly": "yes", "appendfsync": "always"}) as started:
        started.add_replica(started.nodes[0])
        yield started


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_write_waits_for_a_replica_of_the_node_that_has_it(durable: servers_redis.Cluster, flavour: str) -> None:
    backend = milepost_redis.open_backend(
        durable.url(), prefix=f"c{next(_NUMBERS)}", durability="replicas:1", timeout=2.0
    )
    threads = [f"t{number}" for number in range(20)]
    # The first node has the first half of the slots.
    with_replica = next(thread for thread in threads if slot_of(backend, thread) < 8192)
    without = next(thread for thread in threads if slot_of(backend, thread) >= 8192)

    async def writes(store: Store) -> None:
        await store.put(with_replica, *row(1), None)
        with pytest.raises(Unavailable, match="durability=replicas:1 was not reached"):
            await store.put(without, *row(1), None)
        (replica,) = durable.replicas
        replica.pause()
        try:
            with pytest.raises(Unavailable, match="durability=replicas:1 was not reached"):
                await store.put(with_replica, *row(2, parent=1), None)
        finally:
            replica.resume()
        await store.put(with_replica, *row(3, parent=2), None)
        for thread, count in ((with_replica, 3), (without, 1)):
            assert (await store.stats(thread)).checkpoints == count

    _over(backend, flavour, writes)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_write_waits_for_the_disk_of_the_node_that_has_it(durable: servers_redis.Cluster, flavour: str) -> None:
    """A node that is killed and comes back is found again, with all that was acknowledged."""
    backend = milepost_redis.open_backend(durable.url(), prefix=f"c{next(_NUMBERS)}", durability="aof", timeout=10.0)
    threads = [f"t{number}" for number in range(12)]

    async def writes(store: Store) -> None:
        for number in range(1, 4):
            for thread in threads:
                await store.put(thread, *row(number, parent=number - 1 or None), None)
            durable.nodes[1].restart()
            until = time.monotonic() + 30
            for thread in threads:
                while True:
                    try:
                        found = await store.get(thread, "", None)
                        break
                    except Unavailable:
                        assert time.monotonic() < until
                        time.sleep(0.1)  # noqa: ASYNC251  # the blocking store shares this text, and nothing else runs here
                assert found is not None
                assert found.snapshots[0].row.id == name(number)

    _over(backend, flavour, writes)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_cluster_that_is_not_there_yet(flavour: str) -> None:
    subjects.required(servers_redis.redis_url)
    with servers_redis.Cluster(1) as alone:
        backend = milepost_redis.open_backend(alone.url(), durability="memory", timeout=5.0)

        async def waits(store: Store) -> None:
            alone.nodes[0].kill()
            with pytest.raises(Unavailable, match="try again"):
                await store.put("t", *row(1), None)
            alone.nodes[0].start()
            until = time.monotonic() + 30
            while True:
                try:
                    await store.put("t", *row(1), None)
                    break
                except Unavailable:
                    assert time.monotonic() < until
                    time.sleep(0.1)  # noqa: ASYNC251  # as above
            assert (await store.stats("t")).checkpoints == 1

        _over(backend, flavour, waits)


def _over(
    backend: milepost_redis.RedisBackend, flavour: str, work: Callable[[Store], Coroutine[Any, Any, None]]
) -> None:
    if flavour == "blocking":
        run(work(backend.blocking()))
    else:
        asyncio.run(work(backend.asynchronous()))
    backend.close()
