"""Opening a Redis store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from milepost.connect import Option, Scheme
from milepost.engines import AsyncPort, BlockingPort, Engines
from milepost.errors import InvalidConfig
from milepost.saver import Saver
from milepost.store import Port, Store

from milepost_redis.driver import AsyncEngine, Durability, Engine
from milepost_redis.layout import Layout
from milepost_redis.opening import Servers, Settings, servers_of, servers_of_clients
from milepost_redis.store import RedisStore
from milepost_redis.trouble import closed

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_PREFIX: Final = re.compile(r"[^\0{}]{1,200}")


class RedisBackend:
    """A store in a server, or a cluster of them. `milepost.store.Backend`; made by `open_backend`, or over what an
    application owns by `RedisSaver.from_client`."""

    name = "redis"
    capabilities = frozenset({"durable", "shared", "merging", "ledger"})

    def __init__(self, servers: Servers, layout: Layout, durability: Durability) -> None:
        self.layout = layout
        self._engines = Engines(
            lambda: Engine(servers.source(), durability),
            lambda: AsyncEngine(servers.async_source(), durability),
            closed,
        )

    def blocking_port(self) -> BlockingPort:
        """What the blocking store awaits. Takes `milepost_redis.request.Request`."""
        return BlockingPort(self._engines.blocking, closed)

    def async_port(self) -> AsyncPort:
        """What the async store awaits. Takes `milepost_redis.request.Request`."""
        return AsyncPort(self._engines.running, closed)

    def blocking(self) -> Store:
        port = self.blocking_port()
        return RedisStore(self.layout, port, port.close)

    def asynchronous(self) -> Store:
        port = self.async_port()
        return RedisStore(self.layout, port, port.close)

    def over(self, port: Port) -> Store:
        """The same store behind another port, which gets the requests: for fault injection."""
        return RedisStore(self.layout, port, self.close)

    def close(self) -> None:
        self._engines.close()

    async def aclose(self) -> None:
        await self._engines.aclose()


class RedisSaver(Saver):
    """A `milepost.saver.Saver` over a server, with ways to open it that no URL can name."""

    @classmethod
    def from_client(
        cls,
        client: object,
        async_client: object = None,
        *,
        prefix: str = "milepost",
        ttl: str = "",
        refresh: Literal["write", "read"] = "write",
        waiting: Literal["expire", "keep"] = "expire",
        durability: str = "",
        **options: Any,
    ) -> RedisSaver:
        """A saver that works on clients of the application's, and never closes them.

        Args:
            client: of redis-py, blocking or async: standalone, behind sentinels (``Sentinel.master_for``), or of a
                cluster; with any protocol, and whether it decodes responses or not.
            async_client: one of the other flavour, where both are wanted.
            prefix, ttl, refresh, waiting, durability: as for `open_backend`.
            options: those of `Saver`.

        A method of the flavour that no client was given for raises `InvalidConfig`.
        """
        servers = servers_of_clients(client, async_client)
        layout = _layout(prefix, ttl, refresh, waiting, spread=servers.spread, volatile=durability == "memory")
        return cls(RedisBackend(servers, layout, _durability(durability, 30.0)), **options)


def open_backend(
    url: str,
    *,
    prefix: str = "milepost",
    ttl: str = "",
    refresh: Literal["write", "read"] = "write",
    waiting: Literal["expire", "keep"] = "expire",
    durability: str = "",
    pool: int = 32,
    timeout: float = 30.0,
    **parameters: Any,
) -> RedisBackend:
    """Open the store on the server, or servers, that `url` names: ``redis://``, ``rediss://``, ``valkey://``,
    ``unix://``, ``redis+sentinel://host,host/service/database`` or ``redis+cluster://host,host``.

    - `prefix`: what all keys begin with. Stores with different prefixes have nothing in common.
    - `ttl`: how long after its last use a thread expires, such as ``7d``, ``12h`` or ``90m``; "" for never.
    - `refresh`: whether a thread is in use when it is written to, or also when it is read.
    - `waiting`: with "keep", a thread that waits for somebody (an interrupt) does not expire until it goes on.
    - `durability`: what a write waits for: "memory" or "" for nothing, "aof" until the server's disk has it, and
      "replicas:1" until a replica has it.
    - `pool`: how many connections there are at most for the blocking methods.
    - `timeout`: seconds to wait for a reply, or for a connection when all are at work.
    - `parameters`: further parameters of redis-py's connections, such as ``ssl_ca_certs`` or ``protocol``.

    Raises `InvalidConfig` for an option that is not usable. Whether the server can be reached shows at the first use.
    """
    if isinstance(pool, bool) or pool < 1:
        raise _unusable("pool", pool, "a whole number, at least 1")
    if isinstance(timeout, bool) or not timeout > 0:
        raise _unusable("timeout", timeout, "a number of seconds greater than 0")
    if (protocol := parameters.get("protocol", 3)) not in (2, 3):
        raise _unusable("protocol", protocol, "2 or 3")
    servers = servers_of(url, Settings(pool, timeout, parameters=parameters))
    layout = _layout(prefix, ttl, refresh, waiting, spread=servers.spread, volatile=durability == "memory")
    return RedisBackend(servers, layout, _durability(durability, timeout))


def _layout(prefix: str, ttl: str, refresh: str, waiting: str, *, spread: bool, volatile: bool) -> Layout:
    if not _PREFIX.fullmatch(prefix):
        raise _unusable("prefix", prefix, "a text of 1 to 200 characters, without { and }")
    if refresh not in ("write", "read"):
        raise _unusable("refresh", refresh, "'write' or 'read'")
    if waiting not in ("expire", "keep"):
        raise _unusable("waiting", waiting, "'expire' or 'keep'")
    return Layout(prefix, _milliseconds(ttl), refresh == "read", waiting == "keep", spread, volatile)


def _milliseconds(ttl: str) -> bytes:
    if not ttl:
        return b""
    found = _SPAN.fullmatch(ttl)
    milliseconds = int(float(found[1]) * _UNITS[found[2]] * 1000) if found else 0
    if not milliseconds:
        raise _unusable("ttl", ttl, "a span of time greater than 0, with its unit, such as '7d', '12h', '90m' or '45s'")
    return b"%d" % milliseconds


def _durability(option: str, timeout: float) -> Durability:
    kind, _, count = option.partition(":")
    # The answer has to come before the connection is given up.
    patience = b"%d" % max(int(timeout * 500), 1)
    if option in ("", "memory"):
        return Durability(option)
    if option == "aof":
        return Durability(option, (b"WAITAOF", b"1", b"0", patience), 1)
    if kind == "replicas" and count.isdecimal() and int(count):
        return Durability(option, (b"WAIT", count.encode(), patience), int(count))
    raise _unusable("durability", option, "'memory', 'aof' or 'replicas:' and a number, at least 1")


def _open(url: str, options: Mapping[str, Any]) -> RedisBackend:
    return open_backend(url, **options)


SCHEME: Final = Scheme(
    _open,
    "redis://localhost:6379",
    {
        "prefix": Option(str, "what all keys begin with"),
        "ttl": Option(str, "how long after its last use a thread expires, such as 7d"),
        "refresh": Option(str, "what counts as use", choices=("write", "read")),
        "waiting": Option(str, "whether a thread that waits for somebody expires", choices=("expire", "keep")),
        "durability": Option(str, "what a write waits for: memory, aof or replicas:1"),
        "pool": Option(int, "connections at most for the blocking methods", at_least=1),
        "timeout": Option(float, "seconds to wait for a reply", at_least=0.001),
        "db": Option(int, "the number of the database", at_least=0),
        "protocol": Option(int, "2 or 3: the version of the server's protocol", at_least=2),
        "client_name": Option(str, "what the server lists the connections as"),
        "ssl": Option(bool, "speak TLS, where the scheme does not say it"),
        "ssl_ca_certs": Option(str, "the file of certificates that the server's is checked by"),
        "ssl_certfile": Option(str, "the client's certificate"),
        "ssl_keyfile": Option(str, "the key of the client's certificate"),
        "ssl_cert_reqs": Option(str, "whether the server's certificate is checked", choices=("required", "none")),
        "username": Option(str, "who logs in"),
        "password": Option(str, "with which password"),
    },
)


def _unusable(what: str, value: object, wanted: str) -> InvalidConfig:
    return InvalidConfig(
        f"option {what} of the Redis store must be {wanted}, not {value!r}", what=what, value=repr(value)[:200]
    )
