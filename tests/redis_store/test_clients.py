"""Clients of the application's, of every kind."""

from __future__ import annotations

import asyncio
from typing import Any

import milepost
import milepost_redis
import pytest
import redis
import redis.asyncio
from milepost.errors import InvalidConfig, Unavailable
from milepost.testing import at, checkpoint
from milepost_redis import RedisSaver, lines
from redis_store.kit import Place

OPTIONS = [{"protocol": protocol, "decode_responses": decode} for protocol in (2, 3) for decode in (False, True)]


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
def test_a_blocking_client(place: Place, options: dict[str, Any]) -> None:
    with place.client(**options) as client:
        saver = milepost_redis.RedisSaver.from_client(client, prefix=place.prefix, durability="memory")
        config = saver.put(at("t"), checkpoint("1", {"x": "\x80ü"}), {"step": 1}, {"x": 1})
        saver.put_writes(config, [("x", b"\xff")], "task")
        found = saver.get_tuple(at("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": "\x80ü"}
        assert found.pending_writes == [("task", "x", b"\xff")]
        assert len(list(saver.list(None, filter={"step": 1}))) == 1
        saver.close()
        assert client.ping(), "it is the application's"
        with pytest.raises(Unavailable, match="was closed"):
            saver.get_tuple(at("t"))


@pytest.mark.parametrize("options", OPTIONS, ids=repr)
async def test_an_async_client(place: Place, options: dict[str, Any]) -> None:
    async with redis.asyncio.Redis.from_url(place.base, **options) as client:
        saver = milepost_redis.RedisSaver.from_client(client, prefix=place.prefix, durability="memory")
        config = await saver.aput(at("t"), checkpoint("1", {"x": "\x80ü"}), {"step": 1}, {"x": 1})
        await asyncio.gather(*(saver.aput_writes(config, [("x", b"\xff")], f"task {n}") for n in range(20)))
        found = await saver.aget_tuple(at("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": "\x80ü"}
        assert len(found.pending_writes or ()) == 20
        await saver.aclose()
        assert await client.ping(), "it is the application's"


async def test_one_of_each(place: Place) -> None:
    with place.client() as client:
        async with redis.asyncio.Redis.from_url(place.base) as async_client:
            saver = milepost_redis.RedisSaver.from_client(
                async_client, client, prefix=place.prefix, durability="memory"
            )
            saver.put(at("t"), checkpoint("1", {"x": "x"}), {}, {"x": 1})
            assert await saver.aget_tuple(at("t")) is not None


async def test_the_flavour_that_has_no_client(place: Place) -> None:
    with place.client() as client:
        saver = milepost_redis.RedisSaver.from_client(client, prefix=place.prefix)
        with pytest.raises(InvalidConfig, match="given a blocking client"):
            await saver.aget_tuple(at("t"))
    async with redis.asyncio.Redis.from_url(place.base) as async_client:
        saver = milepost_redis.RedisSaver.from_client(async_client, prefix=place.prefix)
        with pytest.raises(InvalidConfig, match="given an async client"):
            saver.get_tuple(at("t"))


@pytest.mark.parametrize("given", [(), (None, None), ("redis://",), (object(),)])
def test_what_is_no_client(given: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidConfig, match="needs a client of redis-py"):
        milepost_redis.RedisSaver.from_client(*(given or (None,)))


def test_a_pool_that_is_too_small(place: Place) -> None:
    with place.client(max_connections=1) as client:
        saver = milepost_redis.RedisSaver.from_client(client, prefix=place.prefix, durability="memory")
        saver.put(at("t"), checkpoint("1", {"x": "x"}), {}, {"x": 1})
        taken = client.connection_pool.get_connection()
        with pytest.raises(Unavailable, match="Too many connections"):
            saver.get_tuple(at("t"))
        client.connection_pool.release(taken)
        assert saver.get_tuple(at("t")) is not None


@pytest.mark.parametrize("protocol", [2, 3])
def test_protocols_by_url(place: Place, protocol: int) -> None:
    with milepost.connect(place.url(protocol=protocol)) as saver:
        saver.put(at("t"), checkpoint("1", {"x": "x"}), {}, {"x": 1})
        assert saver.get_tuple(at("t")) is not None
        assert len(list(saver.threads())) == 1


@pytest.mark.parametrize("protocol", [2, 3])
async def test_protocols_by_url_async(place: Place, protocol: int) -> None:
    async with milepost.connect(place.url(protocol=protocol)) as saver:
        await saver.aput(at("t"), checkpoint("1", {"x": "x"}), {}, {"x": 1})
        assert await saver.aget_tuple(at("t")) is not None


def test_without_the_parser_in_c(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from redis._parsers import _RESP2Parser

    monkeypatch.setattr("redis.connection.DefaultParser", _RESP2Parser)
    with place.client(protocol=2) as client:
        client.connection_pool.connection_kwargs["parser_class"] = _RESP2Parser
        saver = milepost_redis.RedisSaver.from_client(client, prefix=place.prefix, durability="memory")
        saver.put(at("t"), checkpoint("1", {"x": "x" * 100_000}), {}, {"x": 1})
        assert saver.get_tuple(at("t")) is not None


async def test_who_is_cancelled_on_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client need not have a time-out."""
    monkeypatch.setattr(lines, "GRACE", 0.01)
    over = asyncio.Event()

    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()
        await writer.wait_closed()

    silent = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    client = redis.asyncio.Redis(port=silent.sockets[0].getsockname()[1], socket_timeout=None)
    saver = RedisSaver.from_client(client)
    reading = asyncio.create_task(saver.aget_tuple(at("t")))
    done, _ = await asyncio.wait([reading], timeout=0.2)
    assert not done
    reading.cancel()
    done, _ = await asyncio.wait([reading], timeout=60)
    assert reading.cancelled()
    await saver.aclose()
    await client.aclose()
    over.set()
    silent.close()
    await silent.wait_closed()
