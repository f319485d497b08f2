"""What the server refuses, and what callers are told."""

from __future__ import annotations

import asyncio
from typing import Any

import milepost
import milepost_redis
import pytest
import redis
from milepost.errors import Corrupt, InvalidConfig, MilepostError, Unavailable
from milepost.flavour import run
from milepost.testing import servers_redis
from milepost.testing.chain import at
from milepost_redis.trouble import translate, trouble
from redis import exceptions
from redis_store.kit import Place, chain, head, name, put, row, write


def test_memory_that_is_full(server: servers_redis.Redis) -> None:
    """Nothing of a refused write is there; what was there before can be read, and deleted."""
    place = Place(server.url(), "p")
    with place.client() as client, place.store() as store:
        chain(store, "t", 3)
        before = run(store.chart("t"))
        client.config_set("maxmemory", "1mb")
        with pytest.raises(Unavailable, match="raise maxmemory or delete threads"):
            put(store, "t", 4, parent=3)
        with pytest.raises(Unavailable, match="raise maxmemory"):
            put(store, "new", 1)
        with pytest.raises(Unavailable, match="raise maxmemory"):
            run(store.put_writes("t", "", name(3), [write(7)], None))
        assert run(store.chart("t")) == before
        assert head(store, "t") == name(3)
        assert head(store, "new") is None
        run(store.delete_thread("t"))
        client.config_set("maxmemory", "0")
        put(store, "new", 1)


def test_a_server_that_evicts(server: servers_redis.Redis) -> None:
    """Whatever is evicted: a thread is whole, gone, or reported."""
    place = Place(server.url(), "p")
    with place.client() as client, place.store() as store:
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", f"{client.info('memory')['used_memory'] + 400_000}")
        outcomes = {"whole": 0, "gone": 0, "reported": 0}
        for number in range(400):
            try:
                chain(store, f"t{number}", 2)
            except (Unavailable, Corrupt):
                continue
        for number in range(400):
            try:
                found = head(store, f"t{number}")
            except Corrupt:
                outcomes["reported"] += 1
            else:
                outcomes["gone" if found is None else "whole"] += 1
                assert found in (None, name(1), name(2))
        assert outcomes["whole"]
        assert outcomes["reported"]


def test_a_replica(server: servers_redis.Redis) -> None:
    place = Place(server.url(), "p")
    with place.client() as client, place.store() as store:
        put(store, "t", 1)
        client.replicaof("127.0.0.1", 1)
        with pytest.raises(Unavailable, match="replica"):
            put(store, "t", 2, parent=1)
        client.replicaof("NO", "ONE")
        put(store, "t", 2, parent=1)


def test_a_disk_that_fails(server: servers_redis.Redis) -> None:
    place = Place(server.url(), "p")
    with place.client() as client, place.store() as store:
        put(store, "t", 1)
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(Unavailable, match="too few replicas"):
            put(store, "t", 2, parent=1)


def test_users_and_passwords(server: servers_redis.Redis) -> None:
    place = Place(server.url(), "p")
    with place.client() as client:
        client.config_set("requirepass", "secret")
        with pytest.raises(Unavailable, match="password"), place.store():
            pass
        with pytest.raises(Unavailable, match="correct the URL") as caught, place.store(password="wrong"):
            pass
        assert "wrong" not in str(caught.value)
        with place.store(password="secret") as store:
            put(store, "t", 1)


def test_a_user_who_may_not_do_it(server: servers_redis.Redis) -> None:
    place = Place(server.url(), "p")
    with place.client() as client, place.store() as store:
        put(store, "t", 1)
        client.execute_command("ACL SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection")
        with pytest.raises(Unavailable, match="may not do this"), place.store(username="reader", password="pw"):
            pass


def test_the_rights_that_a_user_needs(server: servers_redis.Redis) -> None:
    """As the documentation has them."""
    place = Place(server.url(), "p")
    rights = "+@read +@write +@scripting +@connection +info +time +wait +waitaof"
    with place.client() as client:
        client.execute_command("ACL SETUSER", "worker", "on", ">pw", "~p:*", *rights.split())
    with place.store(username="worker", password="pw", ttl="1d", refresh="read", waiting="keep") as store:
        chain(store, "t", 2)
        assert head(store, "t") == name(2)
        assert len(run(store.threads(None, 5)).rows) == 1
        run(store.delete_thread("t"))


def test_somebody_elses_key(place: Place, client: redis.Redis) -> None:
    with place.store() as store:
        put(store, "t", 1)
        data = place.keys(client)[0]
        client.delete(data)
        client.set(data, "mine")
        with pytest.raises(Corrupt, match="choose another prefix"):
            run(store.get("t", "", None))


def test_what_a_write_waits_for(server: servers_redis.Redis) -> None:
    alone = milepost_redis.open_backend(server.url(), durability="replicas:1", timeout=1.0)
    with pytest.raises(Unavailable, match="durability=replicas:1 was not reached"):
        run(alone.blocking().put("t", *row(1), None))
    alone.close()
    logless = milepost_redis.open_backend(server.url(), durability="aof", timeout=1.0)
    with pytest.raises(Unavailable, match="WAITAOF"):
        run(logless.blocking().put("t", *row(1), None))
    logless.close()
    with servers_redis.Redis(settings={"appendonly": "yes", "appendfsync": "everysec"}) as durable:
        backend = milepost_redis.open_backend(durable.url(), durability="aof")
        put(backend.blocking(), "t", 1)
        durable.restart()
        assert head(backend.blocking(), "t") == name(1)
        backend.close()


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (exceptions.BusyLoadingError("x"), Unavailable, "reading its data"),
        (exceptions.ClusterDownError("x"), Unavailable, "part of the cluster is down"),
        (exceptions.MovedError("1 a:1"), InvalidConfig, "redis+cluster"),
        (exceptions.TryAgainError("x"), Unavailable, "being moved"),
        (exceptions.RedisClusterException("x"), Unavailable, "part of the cluster is down"),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file"), Unavailable, "cannot write to its disk"),
        (exceptions.ResponseError("BUSY Redis is busy running a script"), Unavailable, "SCRIPT KILL"),
        (
            exceptions.ResponseError("Error running script (call to f_0): @user_script:3: -OOM command not allowed"),
            Unavailable,
            "raise maxmemory",
        ),
        (
            exceptions.ResponseError(
                "Error running script (call to f_0): @user_script:7: WRONGTYPE Operation against a key holding the wrong "
                "kind of value"
            ),
            Corrupt,
            "another prefix",
        ),
        (exceptions.ResponseError("anything else"), Unavailable, "see to the cause"),
        (ConnectionResetError("x"), Unavailable, "connection failed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_error_says_what_to_do(error: Exception, kind: type[MilepostError], advice: str) -> None:
    told = translate(error, "put a checkpoint")
    assert type(told) is kind
    assert advice in told.message
    assert told.backend == "redis"
    again: Any = trouble(error).again
    assert isinstance(again, bool)


def test_a_database_that_the_server_does_not_have(server: servers_redis.Redis) -> None:
    with milepost.connect(f"{server.url()}?db=99") as saver:
        with pytest.raises(InvalidConfig, match="no database of that number"):
            saver.get_tuple(at("t"))
        with pytest.raises(InvalidConfig, match="no database of that number"):
            asyncio.run(saver.aget_tuple(at("t")))
