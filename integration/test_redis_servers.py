"""Redis and Valkey as they are run in production: clusters, sentinels, append-only files, processes that die."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import milepost
import milepost_redis
import pytest
import redis
import redis.asyncio.cluster
import redis.cluster
import subjects
from milepost.errors import Unavailable
from milepost.flavour import run
from milepost.saver import Saver
from milepost.store import Query, Store
from milepost.testing import at, checkpoint, servers_redis
from milepost.testing.suite import Everything
from redis.crc import key_slot
from redis_store.kit import chain, head, name, put, row

_NUMBERS = itertools.count()


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


@pytest.mark.parametrize("decode", [False, True])
async def test_cluster_clients_of_the_application(cluster: servers_redis.Cluster, *, decode: bool) -> None:
    port = cluster.nodes[0].port
    prefix = f"c{next(_NUMBERS)}"
    blocking = redis.cluster.RedisCluster(host="127.0.0.1", port=port, decode_responses=decode)
    async with redis.asyncio.cluster.RedisCluster(host="127.0.0.1", port=port, decode_responses=decode) as client:
        saver = milepost_redis.RedisSaver.from_client(blocking, client, prefix=prefix, durability="memory")
        saver.put(at("t"), checkpoint("1", {"x": b"\xff"}), {}, {"x": 1})
        found = await saver.aget_tuple(at("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": b"\xff"}
        await saver.aclose()
        assert await client.ping()
    blocking.close()


def slot_of(backend: milepost_redis.RedisBackend, thread: str) -> int:
    return key_slot(backend.layout.tag(thread).data)


def test_a_slot_that_is_moved_under_load(cluster: servers_redis.Cluster, backend: milepost_redis.RedisBackend) -> None:
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

    def load() -> None:
        while not stop.is_set():
            number = acknowledged[-1] + 1
            try:
                put(store, "t", number, parent=number - 1)
            except Unavailable:
                continue
            acknowledged.append(number)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        while len(acknowledged) < 40:
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


def _move(clients: list[Any], ids: list[str], slot: int, source: int, target: int) -> None:
    clients[target].execute_command("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
    clients[source].execute_command("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
    port = clients[target].connection_pool.connection_kwargs["port"]
    while keys := clients[source].execute_command("CLUSTER GETKEYSINSLOT", slot, 1):
        clients[source].execute_command("MIGRATE", "127.0.0.1", port, keys[0], 0, 5000)
        time.sleep(0.02)
    for client in (clients[target], clients[source], *clients):
        client.execute_command("CLUSTER SETSLOT", slot, "NODE", ids[target])


@pytest.fixture
def replicated() -> Iterator[tuple[servers_redis.Redis, servers_redis.Redis, servers_redis.Sentinel]]:
    """A primary, its replica, and a sentinel that watches them."""
    subjects.required(servers_redis.redis_url)
    with servers_redis.Redis(port=True) as primary:
        replica = servers_redis.Redis(port=True, settings={"replicaof": f"127.0.0.1 {primary.port}"})
        with replica, servers_redis.Sentinel(primary) as sentinel:
            yield primary, replica, sentinel


def test_a_failover(
    replicated: tuple[servers_redis.Redis, servers_redis.Redis, servers_redis.Sentinel],
) -> None:
    """What a replica had acknowledged is there when the primary is dead, and the saver finds its successor."""
    primary, replica, sentinel = replicated
    _until(lambda: _linked(replica))
    _until(lambda: _known(sentinel) == 1)
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/primary?prefix=p&durability=replicas:1&timeout=5"
    with milepost.connect(url) as saver:
        store = saver.backend.blocking()
        chain(store, "t", 20)
        primary.kill()
        number = 21
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                # Without a second replica nobody confirms any more; that the write is carried out is another matter.
                put(store, "t", number, parent=20)
            except Unavailable as exc:
                if "durability" in exc.message:
                    break
                time.sleep(0.1)
        assert head(store, "t") == name(21)
        assert run(store.stats("t")).checkpoints == 21


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


@pytest.mark.parametrize("binary", servers_redis.redis_binaries(), ids=lambda path: path.name)
def test_every_server_at_hand(binary: Path) -> None:
    with servers_redis.Redis(binary) as server, Saver(milepost_redis.open_backend(server.url())) as saver:
        for number in range(1, 20):
            saver.put(at("t"), checkpoint(f"{number:03}", {"x": number}), {"step": number}, {"x": number})
        assert len(list(saver.list(at("t"), filter={"step": 7}))) == 1
        saver.prune(["t"])
        assert saver.stats("t").checkpoints == 1
        saver.delete_thread("t")
        assert saver.get_tuple(at("t")) is None
