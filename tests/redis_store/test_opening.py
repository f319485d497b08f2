"""URLs and options."""

from __future__ import annotations

import logging
from typing import Any

import milepost
import milepost_redis
import pytest
from milepost.errors import InvalidConfig
from milepost.flavour import run
from milepost.testing import servers_redis
from milepost_redis.saver import RedisBackend


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("redis://localhost?ttl=soon", "ttl"),
        ("redis://localhost?ttl=0d", "ttl"),
        ("redis://localhost?ttl=-1d", "ttl"),
        ("redis://localhost?ttl=7", "with its unit"),
        ("redis://localhost?protocol=4", "2 or 3"),
        ("redis://localhost?prefix=", "prefix"),
        ("redis://localhost?prefix={x}", "prefix"),
        ("redis://localhost?refresh=never", "refresh"),
        ("redis://localhost?waiting=maybe", "waiting"),
        ("redis://localhost?durability=disk", "durability"),
        ("redis://localhost?durability=replicas:0", "durability"),
        ("redis://localhost?durability=replicas", "durability"),
        ("redis://localhost?pool=0", "pool"),
        ("redis://localhost?timeout=0", "timeout"),
        ("redis://localhost?pol=3", "unknown option 'pol'"),
        ("redis+cluster://localhost/1", "one database"),
        ("redis+sentinel://localhost", "the name of the service"),
        ("redis+sentinel://localhost:26379/service/one", "the number of a database"),
        ("redis+sentinel://localhost:port/service", "host:port"),
        ("redis://localhost:99999", "a port"),
        ("redis://localhost:port", "a port"),
        ("valkey://[::1", "a port"),
        ("redis+cluster://[::1", "host:port"),
    ],
)
def test_what_cannot_be_opened(url: str, wanted: str) -> None:
    with pytest.raises(InvalidConfig, match=wanted):
        milepost.connect(url)


def test_errors_do_not_tell_passwords() -> None:
    with pytest.raises(InvalidConfig) as caught:
        milepost.connect("redis+sentinel://user:secret@localhost")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://", "redis:", "valkey://localhost:6379/3", "rediss://localhost", "valkey:"])
def test_nothing_is_connected_to_before_the_first_use(url: str) -> None:
    with milepost.connect(url) as saver:
        assert isinstance(saver.backend, RedisBackend)


@pytest.mark.parametrize(
    ("ttl", "milliseconds"), [("7d", 604_800_000), ("90m", 5_400_000), ("1.5s", 1500), ("60s", 60_000)]
)
def test_spans_of_time(ttl: str, milliseconds: int) -> None:
    backend = milepost_redis.open_backend("redis://", ttl=ttl)
    assert backend.layout.ttl == b"%d" % milliseconds
    backend.close()


@pytest.mark.parametrize(
    ("settings", "options", "wanted"),
    [
        ({"appendonly": "yes"}, {}, []),
        ({}, {"durability": "memory"}, []),
        ({}, {}, ["keeps no append-only file"]),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, {}, ["evicts keys", "keeps no append-only file"]),
        ({"maxmemory": "100mb", "maxmemory-policy": "noeviction", "appendonly": "yes"}, {}, []),
    ],
)
def test_a_server_that_may_lose_threads_is_told_of_once(
    caplog: pytest.LogCaptureFixture, settings: dict[str, str], options: dict[str, Any], wanted: list[str]
) -> None:
    with servers_redis.Redis(settings=settings) as server, caplog.at_level(logging.WARNING):
        backend = milepost_redis.open_backend(server.url(), **options)
        for _ in range(2):
            run(backend.blocking().setup())
        backend.close()
    assert len(caplog.messages) == len(wanted)
    assert all(part in message for part, message in zip(wanted, caplog.messages, strict=True))
