"""Where blocking requests go: connections of our own, a client of the application's, or a cluster.

Redis-py's command layer takes most of the processor time of a small call, so what is used of a client is the layer
below it: its connections, which know how to reach a server, log in and parse replies.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError

from milepost_redis.trouble import closed, crowded

_pack: Callable[[Any], bytes] | None
try:
    from hiredis import pack_command as _pack
except ImportError:
    _pack = None

Words = tuple[bytes, ...]
"""One command."""


class Source(Protocol):
    """Carries out commands in the calling thread."""

    shares: bool
    """Whether the commands of several requests may go together."""

    def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        """Send all commands at once, and then `last`, and return the replies; an error of the server is one too.

        With `fresh`, on a connection that was not idle before. Raises what the driver raises.
        """
        ...

    def close(self) -> None: ...


def pack(connection: Any, commands: Sequence[Words]) -> bytes:
    """Commands as they are sent. Redis-py has hiredis do it where that is installed, but looks at every word before."""
    if _pack is not None:
        return _pack(commands[0]) if len(commands) == 1 else b"".join(map(_pack, commands))
    return b"".join(part for words in commands for part in connection.pack_command(*words))


def converse(connection: Any, commands: Sequence[Words]) -> list[Any]:
    """`Source.talk` over one connection of redis-py. Whatever goes wrong, no reply is left for whoever comes next."""
    packed = pack(connection, commands)
    # To send connects too, but not a connection behind sentinels to whoever is the primary now.
    if not getattr(connection, "is_connected", False):  # redis-py asks its retries first, and has not always told
        connection.connect()
    connection.send_packed_command([packed], check_health=False)
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
    """Connections of our own, made when needed and kept when idle. No lock is held while anything is waited for.

    `end` closes what `make` uses. A connection that is lost, for its thread was interrupted just when it had it, is missed by
    nobody: it is closed, and another one is made.
    """

    shares = True

    def __init__(
        self, make: Callable[[], Any], size: int, patience: float, end: Callable[[], object] | None = None
    ) -> None:
        self._make = make
        self._size = size
        self._patience = patience
        self._end = end
        self._idle: SimpleQueue[Any | None] = SimpleQueue()
        """And None once it is closed, which whoever gets it puts back."""
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._gate = threading.Lock()
        self._closed = False

    def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        try:
            connection = self._idle.get_nowait()
        except Empty:
            connection = self._another()
        if connection is None:
            self._idle.put(None)
            raise closed()
        try:
            if fresh:
                connection.disconnect()
            return converse(connection, commands if last is None else [*commands, last])
        finally:
            self._give(connection)

    def _another(self) -> Any | None:
        """A new connection, or where there are as many as may be, the next one that is given back."""
        for patience in (self._patience, 0.0):
            with self._gate:
                if self._closed:
                    return None
                if len(self._made) < self._size:
                    connection = self._make()
                    self._made.add(connection)
                    return connection
            with suppress(Empty):
                return self._idle.get(timeout=patience)
        raise crowded(self._size, self._patience)

    def _give(self, connection: Any) -> None:
        self._idle.put(connection)
        if self._closed:
            self._drain()

    def _drain(self) -> None:
        with suppress(Empty):
            while True:
                connection = self._idle.get_nowait()
                if connection is not None:
                    connection.disconnect()
        self._idle.put(None)

    def close(self) -> None:
        """Close what is idle, and what is at work as soon as that is done."""
        self._closed = True
        self._drain()
        if self._end is not None:
            self._end()


class Borrowed:
    """The connections of a client that the application owns: standalone or behind sentinels."""

    shares = True

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
    """A cluster client, which knows which node a key is on. Its commands go one by one.

    `make` gives the client, at the first use: it asks the cluster for its nodes, and may fail.
    """

    shares = False

    def __init__(self, make: Callable[[], Any], *, owned: bool) -> None:
        self._make = make
        self._made: list[Any] = []
        self._owned = owned

    @property
    def _client(self) -> Any:
        if not self._made:
            made = self._make()
            self._made.append(made)
        # Who came second keeps his for `close`.
        return self._made[0]

    def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        if last is not None:
            (command,) = commands
            return self._together(command, last, fresh=fresh)
        client = self._client
        replies: list[Any] = []
        for words in commands:
            try:
                replies.append(client.execute_command(words[0].decode(), *words[1:], NEVER_DECODE=True))
            except ResponseError as exc:
                replies.append(exc)
        return replies

    def _together(self, command: Words, last: Words, *, fresh: bool) -> list[Any]:
        """A script, and then `last`, over one connection to the node that has its key."""
        client = self._client
        if fresh:
            client.nodes_manager.initialize()
        route = Route(command, last)
        node = client.get_node_from_key(route.key)
        while True:
            pool = client.get_redis_connection(node).connection_pool
            connection = pool.get_connection()
            try:
                replies = converse(connection, route.commands)
            finally:
                pool.release(connection)
            to = route.redirected(replies)
            if to is None:
                return route.answer(replies)
            node = client.get_node(*to)
            if node is None or route.moved:
                client.nodes_manager.initialize()
                node = route.known(client.get_node(*to))

    def close(self) -> None:
        if self._owned:
            for client in self._made:
                client.close()


_REDIRECTIONS: Final = 16


class Route:
    """The way of a script to the node of a cluster that has its key, where another command must follow it on the same
    connection: the cluster client does not say which one it took."""

    def __init__(self, command: Words, last: Words) -> None:
        # EVALSHA, digest, number of keys, first key.
        self.key = command[3]
        self.moved = False
        """Whether the last redirection is for good."""
        self._wanted = [command, last]
        self._before: list[Words] = []
        self._left = _REDIRECTIONS

    @property
    def commands(self) -> list[Words]:
        """What is to be sent to the node."""
        return [*self._before, *self._wanted]

    def redirected(self, replies: Sequence[Any]) -> tuple[str, int] | None:
        """Host and port of where it has to go instead, by the replies of a node."""
        found = replies[len(self._before)]
        if not isinstance(found, AskError):
            return None
        if not self._left:
            raise ClusterDownError(f"the nodes of the cluster redirected a command {_REDIRECTIONS} times")
        self._left -= 1
        self.moved = isinstance(found, MovedError)
        self._before = [] if self.moved else [(b"ASKING",)]
        return found.host, found.port

    def known(self, node: Any) -> Any:
        """`node`, if the client knows it by now."""
        if node is None:
            raise ClusterDownError("a node of the cluster names another one that is not there")
        return node

    def answer(self, replies: Sequence[Any]) -> list[Any]:
        """The replies to the script and to what followed it."""
        return list(replies[len(self._before) :])
