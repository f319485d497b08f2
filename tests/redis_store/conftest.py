"""What the tests of the Redis store share: a prefix for each, and servers of a test's own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
import redis
import subjects
from milepost.testing import servers_redis
from redis_store.kit import Place


@pytest.fixture
def place() -> Iterator[Place]:
    """Where a store can be that is the test's own; nothing is there yet."""
    made = Place(subjects.required(servers_redis.redis_url), f"test-{secrets.token_hex(6)}")
    yield made
    with made.client() as client:
        for key in client.scan_iter(f"{made.prefix}:*", count=10000):
            client.unlink(key)


@pytest.fixture
def client(place: Place) -> Iterator[redis.Redis]:
    """A client of the test's own, of the same server."""
    with place.client() as opened:
        yield opened


@pytest.fixture
def server() -> Iterator[servers_redis.Redis]:
    """A server of the test's own, which it may stop. Keeps nothing on the disk."""
    subjects.required(servers_redis.redis_url)
    with servers_redis.Redis() as started:
        yield started
