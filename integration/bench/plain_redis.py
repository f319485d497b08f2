"""The Redis store and its peers that need no modules, on one server that keeps everything in memory."""

from __future__ import annotations

import atexit
import functools
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import milepost
from milepost.testing import servers_redis

from .rivals import AnySaver, Rival


@functools.cache
def _server() -> servers_redis.Redis:
    server = servers_redis.Redis(port=True)
    atexit.register(server.stop)
    return server.start()


@functools.cache
def _empty(folder: Path) -> int:
    """Empties the server, which is the folder's from now on; the bytes of memory that it takes so."""
    del folder
    with _server().client() as client:
        client.flushall()
        return _used(client)


def _used(client: Any) -> int:
    used: int = client.info("memory")["used_memory"]
    return used


def _url(folder: Path, scheme: str = "redis") -> str:
    _empty(folder)
    return _server().url().replace("redis:", f"{scheme}:")


class RedisRival(Rival):
    """A saver over a server."""

    def bytes(self, folder: Path) -> int:
        """What its data take in the server's memory."""
        with _server().client() as client:
            return _used(client) - _empty(folder)


def _ours(folder: Path) -> Any:
    return milepost.connect(_url(folder), durability="memory")


# Imported by name: tests use this package, and need none of the peers.
@contextmanager
def _valkey(folder: Path) -> Generator[AnySaver]:
    peer: Any = import_module("langgraph_checkpoint_aws")
    with peer.ValkeySaver.from_conn_string(_url(folder, "valkey"), pool_size=128) as saver:
        yield saver


@asynccontextmanager
async def _valkey_async(folder: Path) -> AsyncGenerator[AnySaver]:
    peer: Any = import_module("langgraph_checkpoint_aws")
    async with peer.AsyncValkeySaver.from_conn_string(_url(folder, "valkey"), pool_size=128) as saver:
        yield saver


@contextmanager
def _plain(folder: Path) -> Generator[AnySaver]:
    peer: Any = import_module("langgraph_checkpoint_plainredis")
    saver = peer.RedisSaver(url=_url(folder))
    yield saver
    saver.close()


@asynccontextmanager
async def _plain_async(folder: Path) -> AsyncGenerator[AnySaver]:
    peer: Any = import_module("langgraph_checkpoint_plainredis")
    saver = peer.AsyncRedisSaver(url=_url(folder))
    yield saver
    await saver.aclose()


REDIS = RedisRival("milepost redis", _ours, _ours)
VALKEY = RedisRival("ValkeySaver", _valkey, _valkey_async)
PLAIN = RedisRival("plainredis", _plain, _plain_async)
