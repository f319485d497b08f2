"""Which checkpoints there are, over one thread or all of them, by descending sort key."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from milepost.observe import hushed
from milepost.store import Query

from milepost_redis import wire
from milepost_redis.request import Call, Command, Step
from milepost_redis.scripts import scripts
from milepost_redis.trouble import lost, newer
from milepost_redis.wire import Tag

_ABREAST: Final = 64
"""Threads looked at together."""
_BUDGET: Final = 500
"""Checkpoints that one script looks at."""
_ROWS: Final = 250
"""Checkpoints that one script hands out whole."""
_SAMPLE: Final = 8


class Found(NamedTuple):
    """A checkpoint in the order of pages."""

    key: str
    thread: str
    ns: str
    suffix: str
    """The id, but empty where that is the key: so what is equal in all else lies as it does in the store."""

    @property
    def id(self) -> str:
        return self.suffix or self.key


class Steps(Protocol):
    """How commands are carried out."""

    def __call__(self, op: str, /, *steps: Step) -> Awaitable[list[Any]]: ...


class Lister:
    """Finds checkpoints, and keeps the index of threads."""

    def __init__(self, prefix: str, index: bytes, steps: Steps) -> None:
        self._prefix = prefix
        self._index = index
        self._steps = steps

    async def names(self, after: str | None, limit: int, prefix: str = "") -> list[str]:
        """Thread ids that begin with a prefix, by code point. Some may be gone."""
        bounds = wire.between(prefix, None if after is None else b"(" + after.encode())
        command = Command((b"ZRANGEBYLEX", self._index, *bounds, b"LIMIT", b"0", b"%d" % limit))
        (found,) = await self._steps("list threads", command)
        return [name.decode() for name in found]

    async def find(
        self, query: Query, after: tuple[str, ...] | None, limit: int
    ) -> tuple[list[Found], tuple[str, ...] | None, tuple[str, ...]]:
        """The first checkpoints of a query after a cursor, the cursor after these, and what cannot be read."""
        bound = Found(*after) if after else None
        best: list[Found] = []
        damage: list[str] = []
        more = False
        last: str | None = None
        while True:
            names = [query.thread] if query.thread is not None else await self.names(last, _ABREAST, query.prefix)
            if names:
                scans = [_Scan(self._prefix, name, query, bound, limit) for name in names]
                replies = await self._steps("list checkpoints", *(scan.call() for scan in scans))
                for scan, first in zip(scans, replies, strict=True):
                    reply = first
                    while scan.take(reply):
                        (reply,) = await self._steps("list checkpoints", scan.call())
                    if scan.damage:
                        damage.append(scan.damage)
                    more = more or scan.more
                    best += scan.found
                more = more or len(best) > limit
                best = heapq.nlargest(limit, best)
            if query.thread is not None or len(names) < _ABREAST:
                break
            last = names[-1]
        return best, tuple(best[-1]) if more and best else None, tuple(damage)

    async def sweep(self) -> list[str]:
        """Take a few threads out of the index that have expired: so it stays about as long as there are threads.

        Returns which.
        """
        (names,) = await self._steps(
            "look for expired threads", Command((b"ZRANDMEMBER", self._index, b"%d" % _SAMPLE))
        )
        there = await self._steps("look for expired threads", *(self._exists(name.decode()) for name in names))
        gone = [name.decode() for name, exists in zip(names, there, strict=True) if not exists]
        await self.strike(gone)
        return gone

    async def strike(self, threads: Sequence[str]) -> None:
        """Take threads out of the index, and back into it if they came to be there meanwhile."""
        if not threads:
            return
        names = [name.encode() for name in threads]
        await self._steps("unlist threads", Command((b"ZREM", self._index, *names)))
        there = await self._steps("unlist threads", *map(self._exists, threads))
        back = [part for name, exists in zip(names, there, strict=True) if exists for part in (b"0", name)]
        if back:
            await self._steps("list threads", Command((b"ZADD", self._index, *back)))

    def _exists(self, thread: str) -> Command:
        return Command((b"EXISTS", Tag(self._prefix, thread).data))


class _Scan:
    """The search through one thread, a part at a time."""

    def __init__(self, prefix: str, thread: str, query: Query, bound: Found | None, limit: int) -> None:
        self._tag = Tag(prefix, thread)
        self._thread = thread
        self._query = query
        self._limit = limit
        self._bound = bound
        self._after = b"" if bound is None else self._above(bound)
        self.found: list[Found] = []
        self.more = False
        """Whether there may be more after those found."""
        self.damage = ""

    def _above(self, bound: Found) -> bytes:
        """The member below which what comes after `bound` begins in this thread."""
        if self._thread != bound.thread:
            # Of equal keys the greater thread comes first.
            end = "\1" if self._thread < bound.thread else "\0"
            stem = f"k{bound.key}" if self._query.ns is None else f"n{self._query.ns}\0{bound.key}"
            return (stem + end).encode()
        if self._query.ns is None:
            return f"k{bound.key}\0{bound.ns}\0{bound.suffix}".encode()
        return f"n{bound.ns}\0{bound.key}\0{bound.suffix}".encode()

    def call(self) -> Call:
        query = self._query
        whole = query.match is not None
        return Call(
            scripts()["scan"],
            (self._tag.data, self._tag.order, self._tag.tomb),
            (
                b"k" if query.ns is None else b"n",
                (query.ns or "").encode(),
                self._after,
                b"%d" % (_ROWS if whole else self._limit - len(self.found)),
                b"%d" % _BUDGET,
                (query.before or "").encode(),
                (query.id or "").encode(),
                b"1" if whole else b"",
                *wire.sought(query.facets),
            ),
        )

    def take(self, reply: Any) -> bool:
        """Note what a call found, and tell whether another one is needed."""
        if reply[0] in (b"lost", b"new"):
            error = lost(self._thread) if reply[0] == b"lost" else newer(self._thread)
            if self._query.thread is not None:
                raise error
            # Of a page nobody knows which of its threads the words are about.
            self.damage = hushed(error.message, self._thread)
        if reply[0] != b"ok":
            return False
        query = self._query
        for ns, key, id, row in reply[2]:
            if row is not None and query.match is not None:
                held = wire.checkpoint(ns + wire.NUL + id, row)
                if not query.match(held.header):
                    continue
            entry = Found(key.decode(), self._thread, ns.decode(), "" if id == key else id.decode())
            if query.id is not None and not self._belongs(entry):
                continue
            self.found.append(entry)
        if not reply[3]:
            return False
        if len(self.found) >= self._limit:
            self.more = True
            return False
        self._after = reply[3]
        return True

    def _belongs(self, entry: Found) -> bool:
        """What is found by id comes from all namespaces, and from before the cursor too."""
        in_space = self._query.ns is None or entry.ns == self._query.ns
        return in_space and (self._bound is None or entry < self._bound)
