"""Where blocking requests go: connections of our own, a client of the application's, or a cluster.

Redis-py's command layer takes most of the processor time of a small call, so what is used of a client is the layer
below it: its connections, which know how to reach a server, log in and parse replies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from redis.exceptions import ResponseError

from milepost_redis.trouble import closed, crowded

Words = Sequence[bytes]
"""One command."""


class Source(Protocol):
    """Carries out commands in the calling thread."""

    def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        """Send all commands at once, and then `last`, and return the replies; an error of the server is one too.

        With `fresh`, on a connection that was not idle before. Raises what the driver raises.
        """
        ...

    def close(self) -> None: ...


def converse(connection: Any, commands: Sequence[Words]) -> list[Any]:
    """`Source.talk` over one connection of redis-py. Whatever goes wrong, no reply is left for whoever comes next."""
    packed = [part for words in commands for part in connection.pack_command(*words)]
    # To send connects too, but not a connection behind sentinels to whoever is the primary now.
    connection.connect()
    connection.send_packed_command([b"".join(packed)], check_health=False)
    replies: list[Any] = []
    try:
        for _ in commands:
            try:
                replies.append(connection.read_response(disable_decoding=True))
            except ResponseError as exc:
                replies.append(exc)
    except BaseException:
        connection.disconnect()
        raise
    return replies


class Pool:
    """Connections of our own, made when needed and kept when idle. No lock is held while anything is waited for."""

    def __init__(self, make: Callable[[], Any], size: int, patience: float) -> None:
        self._make = make
        self._size = size
        self._patience = patience
        self._idle: list[Any] = []
        self._places = threading.BoundedSemaphore(size)
        self._closed = False

    def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        if not self._places.acquire(timeout=self._patience):
            raise crowded(self._size, self._patience)
        try:
            if self._closed:
                raise closed()
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._make()
            if fresh:
                connection.disconnect()
            try:
                return converse(connection, commands if last is None else [*commands, last])
            finally:
                self._give(connection)
        finally:
            self._places.release()

    def _give(self, connection: Any) -> None:
        self._idle.append(connection)
        if self._closed:
            self._drain()

    def _drain(self) -> None:
        while self._idle:
            self._idle.pop().disconnect()

    def close(self) -> None:
        """Close what is idle, and what is at work as soon as that is done."""
        self._closed = True
        self._drain()


class Borrowed:
    """The connections of a client that the application owns: standalone or behind sentinels."""

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool

    def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        pool = self._pool
        connection = pool.get_connection()
        try:
            if fresh:
                connection.disconnect()
            return converse(connection, commands if last is None else [*commands, last])
        finally:
            pool.release(connection)

    def close(self) -> None:
        """The client stays open."""


class Routed:
    """A cluster client, which knows which node a key is on. Its commands go one by one."""

    def __init__(self, client: Any, *, owned: bool) -> None:
        self._client = client
        self._owned = owned

    def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        assert last is None, "a cluster client does not say which node it talked to"
        replies: list[Any] = []
        for words in commands:
            try:
                replies.append(self._client.execute_command(words[0].decode(), *words[1:], NEVER_DECODE=True))
            except ResponseError as exc:
                replies.append(exc)
        return replies

    def close(self) -> None:
        if self._owned:
            self._client.close()
