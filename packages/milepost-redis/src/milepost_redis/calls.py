"""The ledger's verbs: each is one script over the keys of a thread's records. Those of global keys lie in 256 places of
their own, so that a cluster can spread them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol, cast

from milepost.callstore import (
    CallAnswer,
    CallChange,
    CallPage,
    CallQuery,
    CallRow,
    State,
    drawer,
    drawers,
    owner_of,
    unsettled,
)
from milepost.fences import thread_deleted

from milepost_redis import wire
from milepost_redis.leases import refuse_late
from milepost_redis.request import Call, Command, Step
from milepost_redis.scripts import scripts
from milepost_redis.wire import Tag

_RECORD: Final = struct.Struct(">IIIddd")
_TIME: Final = struct.Struct(">d")
_LENGTH: Final = struct.Struct(">I")
_LOOK: Final = 250
"""How many records one script looks at."""
_ABREAST: Final = 64
"""How many threads are looked at together."""


class Steps(Protocol):
    """How commands are carried out."""

    async def __call__(self, op: str, /, *steps: Step, writes: bool = False) -> list[Any]: ...


class Calls:
    """The verbs over one store."""

    def __init__(self, prefix: str, tag: Callable[[str], Tag], steps: Steps, *, spread: bool) -> None:
        self._tag = tag
        self._steps = steps
        self._spread = spread
        self._ledger = wire.ledger_key(prefix)

    def _keys(self, name: str) -> tuple[bytes, ...]:
        tag = self._tag(name)
        index = () if self._spread else (self._ledger,)
        return (tag.data, tag.order, tag.tomb, tag.lease, tag.calls, tag.starts, *index)

    async def change(
        self,
        thread: str,
        change: CallChange,
        beside: Collection[str] | None,
        after: Sequence[str],
        fence: int | None,
    ) -> CallAnswer:
        """The verbs `claim` (`beside` is not None) and `settle`."""
        name = drawer(thread, change.key)
        expect = change.expect
        arguments = (
            wire.fence(fence),
            b"1" if beside is not None else b"",
            name.encode(),
            change.key.encode(),
            *(
                (b"",) * 4
                if expect is None
                else (b"%d" % part if isinstance(part, int) else part.encode() for part in expect)
            ),
            b"%d" % change.generation,
            b"%d" % change.attempt,
            change.state.encode(),
            change.stamp.encode(),
            change.owner.encode(),
            b"" if change.lease is None else b"%r" % change.lease,
            *_given(change.call),
            *_given(change.outcome),
            *_given(None if change.match is None else change.match.encode()),
            b"" if change.entry is None else wire.framed(change.entry),
            (change.alias or "").encode(),
            b"%d" % len(after),
            *(id.encode() for id in after),
            *(key.encode() for key in beside or ()),
        )
        op = "claim a call" if beside is not None else "settle a call"
        (reply,) = await self._steps(op, Call(scripts()["call"], self._keys(name), arguments), writes=True)
        refuse_late(thread, fence, reply)
        status = reply[0]
        if status == b"dead":
            raise thread_deleted(thread, "a call", reply[1].decode())
        (now,) = _TIME.unpack(reply[1])
        if status == b"none":
            return CallAnswer(False, None, now)
        if status == b"kin":
            return CallAnswer(False, None, now, tuple(row(thread, *one) for one in reply[2]))
        held = row(thread, *reply[2])
        if reply[3]:
            await self._enrol(name)
        return CallAnswer(held.stamp == change.stamp, held, now)

    async def page(self, query: CallQuery, after: tuple[str, ...] | None, limit: int) -> CallPage:
        """The verb `calls`: one place after another, in the order of their names."""
        found: list[CallRow] = []
        cursor: tuple[str, ...] | None = None
        now = 0.0
        names = await self._names(query, after[0] if after else "")
        while names:
            bounds = [after if after is not None and after[0] == name else None for name in names]
            calls = [self._call(name, query, bound) for name, bound in zip(names, bounds, strict=True)]
            replies = await self._steps("list calls", *calls)
            for name, first in zip(names, replies, strict=True):
                reply = first
                while True:
                    (now,) = _TIME.unpack(reply[0])
                    rows = [row(owner_of(name), *one) for one in reply[1]]
                    for held in sorted(rows, key=lambda held: (held.started, held.key)):
                        if len(found) == limit:
                            return CallPage(tuple(found), cursor, _TIME.unpack(reply[0])[0])
                        found.append(held)
                        cursor = (name, repr(held.started), held.key)
                    if not reply[2]:
                        break
                    at, key = reply[2]
                    bound = (name, repr(_TIME.unpack(at)[0]), key.decode())
                    (reply,) = await self._steps("list calls", self._call(name, query, bound))
            names = await self._names(query, names[-1] + "\0") if query.thread is None else names[:0]
        return CallPage(tuple(found), None, now or await self._now())

    async def _now(self) -> float:
        ((seconds, micros),) = await self._steps("read the time", Command((b"TIME",)))
        return int(seconds) + int(micros) / 1e6

    async def _names(self, query: CallQuery, start: str) -> list[str]:
        """Some names, from one on."""
        if query.thread is not None:
            names = drawers(query.thread, query.keys)
            return [name for name in names if name >= start]
        bounds = wire.between(query.prefix, b"[" + start.encode() if start else None)
        words = (b"ZRANGEBYLEX", self._ledger, *bounds, b"LIMIT", b"0", b"%d" % _ABREAST)
        (found,) = await self._steps("list calls", Command(words))
        return [name.decode() for name in found]

    def _call(self, name: str, query: CallQuery, bound: tuple[str, ...] | None) -> Call:
        start = (b"", b"") if bound is None else (_TIME.pack(float(bound[1])), bound[2].encode())
        states = sorted(query.states or ())
        arguments = (
            *start,
            b"%d" % _LOOK,
            b"%d" % len(states),
            *(state.encode() for state in states),
            *(key.encode() for key in query.keys or ()),
        )
        return Call(scripts()["calls"], self._keys(name)[:6], arguments)

    async def load(self, thread: str, rows: Sequence[CallRow]) -> None:
        """Take over records. One that is there already stays."""
        for at in range(0, len(rows), _LOOK):
            parts = [part for held in rows[at : at + _LOOK] for part in _parts(held)]
            call = Call(scripts()["load_calls"], self._keys(thread), (thread.encode(), *parts))
            (reply,) = await self._steps("load a thread", call, writes=True)
            if reply[1]:
                await self._enrol(thread)

    async def delete(self, thread: str, index: tuple[bytes, ...], *arguments: bytes, force: bool) -> Any:
        """Carry out the script that deletes a thread. Raises `UnsettledCalls`."""
        call = Call(scripts()["delete_thread"], (*self._keys(thread), *index), (*arguments, b"1" if force else b""))
        (reply,) = await self._steps("delete a thread", call, writes=True)
        if reply[0] == b"unsettled":
            raise unsettled(thread, reply[1])
        if self._spread:
            await self._strike(thread)
        return reply

    async def drop(self, thread: str, listed: Collection[tuple[str, int]]) -> None:
        """The verb `forget`."""
        parts = [part for key, revision in listed for part in (key.encode(), b"%d" % revision)]
        for at in range(0, len(parts), 2 * _LOOK):
            some = parts[at : at + 2 * _LOOK]
            call = Call(scripts()["drop_calls"], self._keys(thread), (thread.encode(), *some))
            (reply,) = await self._steps("forget calls", call, writes=True)
            if reply[1] and self._spread:
                await self._strike(thread)

    async def forget(self, threads: Sequence[str]) -> None:
        """Forget the records of threads that have expired, where all of them are settled."""
        calls = [Call(scripts()["forget_calls"], self._keys(name)[:6], ()) for name in threads]
        if calls:
            await self._steps("forget expired threads", *calls, writes=True)

    async def _strike(self, thread: str) -> None:
        """Take a thread out of the index, and back into it if it has records."""
        await self._steps("unlist a thread", Command((b"ZREM", self._ledger, thread.encode())))
        (there,) = await self._steps("unlist a thread", Command((b"EXISTS", self._tag(thread).calls)))
        if there:
            await self._enrol(thread)

    async def _enrol(self, name: str) -> None:
        """Enter a thread into the index, where its script could not do it."""
        if self._spread:
            await self._steps("list a thread", Command((b"ZADD", self._ledger, b"0", name.encode())))


def _given(part: bytes | None) -> tuple[bytes, bytes]:
    return (b"", b"") if part is None else (b"1", part)


def row(thread: str, key: bytes, value: bytes, trail: bytes) -> CallRow:
    """A record as the scripts tell it; see lua/_calls.lua."""
    generation, attempt, revision, started, until, updated = _RECORD.unpack_from(value)
    state, stamp, owner, match, aliases, call, outcome = _frames(value, _RECORD.size)
    return CallRow(
        thread=thread,
        key=key.decode(),
        generation=generation,
        attempt=attempt,
        state=cast("State", state.decode()),
        revision=revision,
        stamp=stamp.decode(),
        owner=owner.decode(),
        call=call,
        outcome=outcome,
        match=match.decode(),
        started=started,
        until=until,
        updated=updated,
        aliases=tuple(alias.decode() for alias in _frames(aliases)),
        trail=tuple(_frames(trail)),
    )


def _parts(held: CallRow) -> tuple[bytes, bytes, bytes]:
    """What `row` was given."""
    texts = (held.state, held.stamp, held.owner, held.match)
    value = b"".join(
        (
            _RECORD.pack(held.generation, held.attempt, held.revision, held.started, held.until, held.updated),
            *(wire.framed(text.encode()) for text in texts),
            wire.framed(b"".join(wire.framed(alias.encode()) for alias in held.aliases)),
            wire.framed(held.call),
            wire.framed(held.outcome),
        )
    )
    return held.key.encode(), value, b"".join(map(wire.framed, held.trail))


def _frames(data: bytes, at: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while at < len(data):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        found.append(data[at - length : at])
    return found
