"""Small states in a Redis store, and a look at them from outside."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import milepost_redis
import redis
from milepost.flavour import run
from milepost.saver import Saver
from milepost.store import CheckpointRow, Pack, Put, Span, Store, WriteRow
from milepost.testing import servers, servers_redis
from milepost_redis import RedisBackend


@dataclass(frozen=True)
class Place:
    """A prefix on a server."""

    base: str
    prefix: str

    def url(self, **options: Any) -> str:
        """For `milepost.connect`."""
        return servers.with_options(self.base, prefix=self.prefix, durability="memory", **options)

    def backend(self, **options: Any) -> RedisBackend:
        given: dict[str, Any] = {"prefix": self.prefix, "durability": "memory", "timeout": 5.0, **options}
        return milepost_redis.open_backend(self.base, **given)

    @contextmanager
    def store(self, **options: Any) -> Generator[Store]:
        """A blocking store that is set up."""
        backend = self.backend(**options)
        try:
            store = backend.blocking()
            run(store.setup())
            yield store
        finally:
            backend.close()

    @contextmanager
    def saver(self, **options: Any) -> Generator[Saver]:
        with Saver(self.backend(**options)) as saver:
            yield saver

    def client(self, **options: Any) -> redis.Redis:
        """A client of redis-py, of the test's own."""
        return redis.Redis.from_url(self.base, **options)

    def keys(self, client: redis.Redis) -> list[bytes]:
        """The keys of all threads, without the index."""
        found: list[bytes] = list(client.scan_iter(f"{self.prefix}:*"))
        return sorted(key for key in found if b"{threads}" not in key)


def session(prefix: str) -> Place:
    """On the server that the tests of this process share."""
    return Place(servers_redis.redis_url(), prefix)


def name(number: int) -> str:
    return f"{number:04}"


def row(number: int, *, parent: int | None = None, ns: str = "", **more: Any) -> tuple[CheckpointRow, tuple[Pack, ...]]:
    """A checkpoint with one item of its own, and the pack that the item lies in."""
    span = Span(7, number, 1)
    above = None if parent is None else name(parent)
    made = CheckpointRow(ns, name(number), above, f"header {number}".encode(), (span,), **more)
    return made, (Pack(*span, f"item {number}".encode()),)


def write(idx: int = 0, value: bytes = b"v", task: str = "task", channel: str = "c") -> WriteRow:
    return WriteRow(task, idx, "path", channel, value)


def put(store: Store, thread: str, number: int, **more: Any) -> Put:
    return run(store.put(thread, *row(number, **more), None))


def chain(store: Store, thread: str, length: int) -> None:
    """Checkpoints 1 to `length`, each the parent of the next, the last of them with a pending write."""
    for number in range(1, length + 1):
        put(store, thread, number, parent=number - 1 or None)
    run(store.put_writes(thread, "", name(length), [write()], None))


def head(store: Store, thread: str, ns: str = "") -> str | None:
    """The id of the latest checkpoint. What it refers to must be there."""
    loaded = run(store.get(thread, ns, None))
    if loaded is None:
        return None
    found = loaded.snapshots[0].row
    assert [Span(*pack[:3]) for pack in loaded.packs[thread]] == list(found.spans)
    return found.id
