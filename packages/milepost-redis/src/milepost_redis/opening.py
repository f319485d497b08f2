"""How servers are reached: what a URL names, as sources of connections in both flavours."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from milepost.errors import InvalidConfig
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from milepost_redis.lines import AsyncBorrowed, AsyncRouted, AsyncSource, Lines
from milepost_redis.sources import Borrowed, Pool, Routed, Source

_LINES: Final = 4
"""Connections of one event loop. Each carries many requests at once; more of them only keep a large one from
holding up the others."""
_UNLIMITED: Final = 1 << 31
_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """How connections are made."""

    pool: int = 32
    timeout: float = 30.0
    together: int = 64
    """Requests that one async connection carries at once."""
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Further parameters of redis-py's connections."""


@dataclasses.dataclass(frozen=True, slots=True)
class Servers:
    """What a store is opened on."""

    source: Callable[[], Source]
    async_source: Callable[[], AsyncSource]
    spread: bool = False
    """Whether it is a cluster."""


def servers_of(url: str, settings: Settings) -> Servers:
    """The servers that a URL names. Raises `InvalidConfig` if it names none."""
    scheme, _, rest = url.partition(":")
    scheme = scheme.lower()
    if scheme == "redis+cluster":
        return _cluster(url, settings)
    if scheme == "redis+sentinel":
        return _sentinel(url, settings)
    return _standalone(f"{'redis' if scheme == 'valkey' else scheme}:{rest if rest.strip('/') else '//'}", settings)


def servers_of_clients(client: object, async_client: object) -> Servers:
    """The servers that ready clients are connected to. They are never closed."""
    given = [one for one in (client, async_client) if one is not None]
    blocking = [one for one in given if isinstance(one, (redis.Redis, redis.cluster.RedisCluster))]
    coming = [one for one in given if isinstance(one, (redis.asyncio.Redis, redis.asyncio.cluster.RedisCluster))]
    if not given or len(blocking) > 1 or len(coming) > 1 or len(blocking) + len(coming) != len(given):
        raise InvalidConfig("from_client needs a client of redis-py, blocking or async, or one of each", what="client")

    def source() -> Source:
        if not blocking:
            raise InvalidConfig("this saver was given an async client: use its async methods", what="client")
        one = blocking[0]
        return Routed(lambda: one, owned=False) if isinstance(one, redis.cluster.RedisCluster) else Borrowed(one)

    def async_source() -> AsyncSource:
        if not coming:
            raise InvalidConfig("this saver was given a blocking client: use its blocking methods", what="client")
        one = coming[0]
        if isinstance(one, redis.asyncio.cluster.RedisCluster):
            return AsyncRouted(one, owned=False)
        return AsyncBorrowed(one)

    clusters = [isinstance(one, (redis.cluster.RedisCluster, redis.asyncio.cluster.RedisCluster)) for one in given]
    if len(set(clusters)) > 1:
        raise InvalidConfig("one of the clients is of a cluster and the other is not", what="client")
    return Servers(source, async_source, clusters[0])


def _standalone(url: str, settings: Settings) -> Servers:
    try:
        redis.connection.parse_url(url)  # type: ignore[no-untyped-call]  # has no annotations
    except ValueError:
        # What it says may have a part of the password.
        raise _unusable(url, "a host and a port, as in redis://localhost:6379/0") from None
    blocking, coming = _parameters(settings, url)
    return Servers(
        lambda: Pool(redis.ConnectionPool.from_url(url, **blocking).make_connection, settings.pool, settings.timeout),
        lambda: _lines(redis.asyncio.ConnectionPool.from_url(url, **coming).make_connection, settings),
    )


# Redis-py has no types for what it is given, or not the right ones.
_Sentinel: Final[Any] = redis.sentinel.Sentinel
_AsyncSentinel: Final[Any] = redis.asyncio.sentinel.Sentinel
_Cluster: Final[Any] = redis.cluster.RedisCluster
_ClusterNode: Final[Any] = redis.cluster.ClusterNode
_AsyncCluster: Final[Any] = redis.asyncio.cluster.RedisCluster


def _sentinel(url: str, settings: Settings) -> Servers:
    hosts, path, login = _hosts(url, _SENTINEL_PORT)
    service, _, database = path.strip("/").partition("/")
    if not service:
        raise _unusable(url, "the name of the service: redis+sentinel://host:26379/service")
    blocking, coming = _parameters(settings, url)
    shared = {**login, "db": _database(url, database)}

    def pool() -> Source:
        sentinel = _Sentinel(hosts, **blocking, **shared)

        def end() -> None:
            for client in sentinel.sentinels:
                client.close()

        return Pool(_of_primary(sentinel, service), settings.pool, settings.timeout, end)

    def lines() -> AsyncSource:
        sentinel = _AsyncSentinel(hosts, **coming, **shared)

        async def end() -> None:
            for client in sentinel.sentinels:
                await client.aclose()

        return _lines(_of_primary(sentinel, service), settings, end)

    return Servers(pool, lines)


def _of_primary(sentinel: Any, service: str) -> Callable[[], Any]:
    """What makes connections to whichever server is the primary then."""
    # Connections refer to their pool weakly: this keeps it.
    make: Callable[[], Any] = sentinel.master_for(service).connection_pool.make_connection
    return make


def _cluster(url: str, settings: Settings) -> Servers:
    hosts, path, login = _hosts(url, _PORT)
    if path.strip("/"):
        raise _unusable(url, "no path: a cluster has one database")
    blocking, coming = _parameters(settings, url)
    for parameters in (blocking, coming):
        # The client follows redirections; how often it may is its own matter.
        del parameters["retry"]
        parameters["socket_timeout"] = settings.timeout

    def client() -> Any:
        nodes = [_ClusterNode(host, port) for host, port in hosts]
        return _Cluster(startup_nodes=nodes, **blocking, **login)

    def make_async() -> AsyncSource:
        nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in hosts]
        return AsyncRouted(_AsyncCluster(startup_nodes=nodes, **coming, **login), owned=True, patience=settings.timeout)

    return Servers(lambda: Routed(client, owned=True), make_async, spread=True)


def _lines(make: Callable[[], Any], settings: Settings, end: Callable[[], Awaitable[object]] | None = None) -> Lines:
    return Lines(make, min(settings.pool, _LINES), settings.timeout, settings.together, end)


def _parameters(settings: Settings, url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters of blocking and of async connections. What is lost is tried again by the port, which knows how."""
    shared = {
        "socket_connect_timeout": min(settings.timeout, 10.0),
        "socket_keepalive": True,
        "max_connections": _UNLIMITED,
        **settings.parameters,
    }
    if url.lower().startswith("unix:"):
        del shared["socket_keepalive"]
    return (
        {**shared, "socket_timeout": settings.timeout, "retry": Retry(NoBackoff(), 0)},
        {**shared, "socket_timeout": None, "retry": AsyncRetry(NoBackoff(), 0)},
    )


def _hosts(url: str, default: int) -> tuple[list[tuple[str, int]], str, dict[str, str]]:
    """Hosts with ports, the path, and who logs in."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unusable(url, "host:port, and more of them after commas") from None
    login, _, listed = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    hosts: list[tuple[str, int]] = []
    for entry in listed.split(","):
        try:
            one = urlsplit(f"//{entry}")
            port = one.port or default
        except ValueError:
            raise _unusable(url, "host:port, and more of them after commas") from None
        hosts.append((one.hostname or "localhost", port))
    given = {"username": unquote(user), "password": unquote(password)}
    return hosts, parts.path, {key: value for key, value in given.items() if value}


def _database(url: str, text: str) -> int:
    if text and not text.isdecimal():
        raise _unusable(url, "the number of a database after the service")
    return int(text or 0)


def _unusable(url: str, wanted: str) -> InvalidConfig:
    return InvalidConfig(f"{_public(url)!r} needs {wanted}", what="url", value=repr(_public(url))[:200])


def _public(url: str) -> str:
    """A URL without who logs in."""
    scheme, mark, rest = url.partition("//")
    return scheme + mark + rest.rpartition("@")[2]
