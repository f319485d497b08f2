"""The verbs of the Redis store. Each is one script, or bounded batches of one; what lies where says lua/_thread.lua."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar, cast

from milepost.callstore import CallAnswer, CallChange, CallPage, CallQuery
from milepost.covering import spans_in, uncovered
from milepost.draws import draw
from milepost.errors import Conflict, InvalidConfig
from milepost.fences import Lease
from milepost.observe import log
from milepost.store import (
    TOMBSTONE_IDS,
    TOMBSTONE_LIFE,
    Batch,
    Chart,
    CheckpointRow,
    Drop,
    Loaded,
    Outline,
    Pack,
    Port,
    Put,
    Query,
    Snapshot,
    Span,
    Stats,
    ThreadPage,
    ThreadRow,
    WriteRow,
    Wrote,
    merge_spans,
)
from milepost.strays import StrayPage

from milepost_redis import leases, sweeping, wire
from milepost_redis.batches import BATCH, droppings, flat, slices, volumes
from milepost_redis.calls import Calls
from milepost_redis.layout import Layout
from milepost_redis.listing import Found, Lister
from milepost_redis.request import Call, Command, Request, Step
from milepost_redis.scripts import scripts
from milepost_redis.trouble import restless, status_of

T = TypeVar("T")

_STEPS: Final = 200
"""How many ancestors one script follows."""
_QUICK: Final = frozenset({"put", "put_writes"})
"""Scripts that take the server no longer than it takes to be asked."""
_SMALL: Final = 1 << 14
"""Bytes up to which a request may go with others."""
_TRIES: Final = 8
_OLDEST: Final = (6, 2)


class RedisStore:
    """`milepost.store.Store` over two keys per thread, behind a port whose requests are `Request`."""

    def __init__(self, layout: Layout, port: Port, close: Callable[[], None]) -> None:
        self._layout = layout
        self._index = wire.index_key(layout.prefix)
        self._port = port
        self._close = close
        self._lister = Lister(layout.prefix, self._index, self._steps)
        self._calls = Calls(layout.prefix, layout.tag, self._steps, spread=layout.spread)

    async def setup(self) -> None:
        """There is nothing to create. The server is looked at, and what speaks against it is logged, once."""
        (found,) = await self._steps("set up", Call(scripts()["look"], (self._index,), ()))
        version, maxmemory, policy, keeps_log = (part.decode() for part in found)
        if tuple(map(int, version.split(".")[:2])) < _OLDEST:
            raise InvalidConfig(
                f"Redis {version} is too old: 6.2 is the oldest that will do", what="url", value=version
            )
        layout = self._layout
        if layout.looked:
            return
        layout.looked.append(version)
        if maxmemory not in ("", "0") and policy != "noeviction":
            log.warning(
                "the Redis server evicts keys when its memory is full (maxmemory-policy %s): threads will be lost. Set "
                "it to noeviction.",
                policy,
            )
        if keeps_log == "0" and not layout.volatile:
            log.warning(
                "the Redis server keeps no append-only file: what it stored last, or everything, is lost when it stops. "
                "Set appendonly to yes, or durability=memory to say that this is meant."
            )

    async def put(
        self,
        thread: str,
        row: CheckpointRow,
        packs: Sequence[Pack],
        generation: int | None,
        *,
        fence: int | None = None,
        heads: Sequence[str] | None = None,
        merged: Pack | None = None,
    ) -> Put:
        named = [id.encode() for id in (row.parent, *row.ancestors) if id]
        reply = await self._write(
            "put a checkpoint",
            "put",
            thread,
            self._layout.ttl,
            wire.generation(generation),
            _fresh(),
            thread.encode(),
            row.ns.encode(),
            row.id.encode(),
            wire.parent(row.parent),
            wire.rest(row),
            wire.fence(fence),
            wire.heads(heads),
            *wire.merged(merged),
            b"%d" % len(named),
            *named,
            *flat(packs),
        )
        leases.refuse_late(thread, fence, reply)
        leases.refuse_moved(thread, row.parent, reply)
        status = status_of(thread, reply, f"checkpoint {row.id!r}")
        if status == b"ok":
            await self._enrol(thread, *reply[2:4])
        return Put(status == b"stale", wire.number(reply[1]))

    async def put_writes(
        self,
        thread: str,
        ns: str,
        checkpoint: str,
        rows: Sequence[WriteRow],
        generation: int | None,
        *,
        fence: int | None = None,
    ) -> Wrote:
        arguments: list[bytes] = []
        for row in rows:
            pack = (b"", b"") if row.pack is None else (wire.member(row.pack), row.pack.data)
            arguments += (*wire.write_arguments(row), *pack)
        reply = await self._write(
            "put pending writes",
            "put_writes",
            thread,
            self._layout.ttl,
            wire.generation(generation),
            _fresh(),
            thread.encode(),
            ns.encode(),
            checkpoint.encode(),
            b"1" if self._layout.exempts else b"",
            wire.fence(fence),
            *arguments,
        )
        leases.refuse_late(thread, fence, reply)
        if status_of(thread, reply, f"writes of checkpoint {checkpoint!r}") == b"stale":
            return Wrote(True, wire.number(reply[1]), ())
        await self._enrol(thread, *reply[2:4])
        return Wrote(False, wire.number(reply[1]), tuple(map(bool, reply[4])))

    async def get(self, thread: str, ns: str, id: str | None) -> Loaded | None:
        at = (b"latest", ns.encode()) if id is None else (b"named", wire.place(ns, id))
        for _ in range(_TRIES):
            call = self._read_call("get", thread, self._read_ttl(), b"", b"1", *at)
            reply = (await self._steps("read a checkpoint", call))[0]
            if status_of(thread, reply) == b"none" or not reply[2]:
                return None
            snapshots = _snapshots(thread, reply[1], reply[2])
            packs = await self._rest(thread, reply[1], reply[3], reply[4])
            packs = await self._complete(thread, reply[1], packs, spans_in(snapshots))
            if packs is not None:
                return Loaded(tuple(snapshots), {thread: packs})
        raise restless(thread, _TRIES)

    async def page(self, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool = True) -> Loaded:
        found, cursor, damage = await self._lister.find(query, after, min(limit, BATCH))
        by_thread: dict[str, list[Found]] = {}
        for entry in found:
            by_thread.setdefault(entry.thread, []).append(entry)
        snapshots: dict[tuple[str, str, str], Snapshot] = {}
        packs: dict[str, Sequence[Pack]] = {}
        for thread, entries in by_thread.items():
            places = [wire.place(entry.ns, entry.id) for entry in entries]
            loaded = await self._named(thread, places, items=items)
            packs |= loaded.packs
            snapshots |= {(thread, snapshot.row.ns, snapshot.row.id): snapshot for snapshot in loaded.snapshots}
        places_found = [(entry.thread, entry.ns, entry.id) for entry in found]
        return Loaded(
            snapshots=tuple(snapshots[at] for at in places_found if at in snapshots),
            packs=packs,
            cursor=cursor,
            damage=damage,
        )

    async def _named(self, thread: str, places: Sequence[bytes], *, items: bool) -> Loaded:
        """These checkpoints, and the packs of all of them. Their spans overlap, so they are merged before."""
        for _ in range(_TRIES):
            call = self._read_call("get", thread, self._read_ttl(), b"", b"", b"named", *places)
            reply = (await self._steps("list checkpoints", call))[0]
            if status_of(thread, reply) == b"none":
                return Loaded((), {})
            snapshots = _snapshots(thread, reply[1], reply[2])
            if not items:
                return Loaded(tuple(snapshots), {})
            packs = await self._fetch(thread, merge_spans(spans_in(snapshots)), reply[1])
            if packs is not None:
                return Loaded(tuple(snapshots), {thread: packs})
        raise restless(thread, _TRIES)

    async def lineage(
        self,
        thread: str,
        ns: str,
        id: str | None,
        channels: Sequence[str] | None,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Loaded | None:
        start = id if after is None else after[0]
        wanted = () if channels is None else tuple(channel.encode() for channel in channels)
        for _ in range(_TRIES):
            call = self._read_call(
                "lineage",
                thread,
                self._read_ttl(),
                ns.encode(),
                (start or "").encode(),
                b"1" if after is None else b"",
                b"%d" % min(limit, _STEPS),
                b"-1" if channels is None else b"%d" % len(wanted),
                *wanted,
            )
            reply = (await self._steps("read a lineage", call))[0]
            if status_of(thread, reply) == b"none":
                return None
            snapshots = _snapshots(thread, reply[1], reply[2])
            packs = await self._rest(thread, reply[1], reply[3], reply[4])
            packs = await self._complete(thread, reply[1], packs, spans_in(snapshots, rows=False))
            if packs is not None:
                cursor = (reply[5].decode(),) if reply[5] else None
                return Loaded(tuple(snapshots), {thread: packs}, cursor)
        raise restless(thread, _TRIES)

    async def fetch(self, thread: str, spans: Sequence[Span]) -> Sequence[Pack]:
        for _ in range(_TRIES):
            packs = await self._fetch(thread, spans, b"")
            if packs is not None:
                return packs
        raise restless(thread, _TRIES)

    async def threads(self, after: tuple[str, ...] | None, limit: int, prefix: str = "") -> ThreadPage:
        most = min(limit, BATCH)
        names = await self._lister.names(after[0] if after else None, most, prefix)
        calls = [self._heads_call(name, b"") for name in names]
        replies = await self._steps("list threads", *calls) if calls else []
        rows = [row for name, reply in zip(names, replies, strict=True) if (row := await self._summary(name, reply))]
        return ThreadPage(tuple(rows), (names[-1],) if len(names) >= most else None)

    async def strays(
        self, after: tuple[str, ...] | None, limit: int, prefix: str = "", *, remove: bool = False
    ) -> StrayPage:
        most = min(limit, BATCH)
        names = await self._lister.names(after[0] if after else None, most, prefix)
        looks = sweeping.looks([self._layout.tag(name) for name in names])
        found = sweeping.strays(names, await self._steps("look for leftovers", *looks) if looks else ())
        gone = [one.thread for one in found if one.kind == "row"]
        if remove:
            await self._lister.strike(gone)
            if self._layout.ttl:
                await self._calls.forget(gone)
        return StrayPage(tuple(found), (names[-1],) if len(names) >= most else None)

    async def _summary(self, thread: str, reply: Any) -> ThreadRow | None:
        if reply[0] == b"none":
            return None
        if reply[0] in (b"lost", b"new"):
            # What is left of it, or what a later release made of it, cannot be told; that it is there can.
            return ThreadRow(thread, "", 0, 0, 0, 0, 0.0, 0.0, waiting=False)
        status_of(thread, reply)
        head, heads, lease, leased = wire.head(reply[1]), list(reply[2]), wire.lease(reply[3]), bool(reply[4])
        if not (head.rows or head.writes):
            return None
        while len(reply[2]) == BATCH:
            call = self._heads_call(thread, reply[2][-1][0] + wire.NUL)
            reply = (await self._steps("list threads", call))[0]
            if reply[0] != b"ok":
                break
            heads += reply[2]
        # By descending namespace, so that the root, whose name is empty, comes last.
        latest = b"" if not heads else heads[-1][1] if heads[-1][0] == b"" else heads[0][1]
        return ThreadRow(
            thread=thread,
            head=latest.decode(),
            namespaces=len(heads),
            checkpoints=int(head.rows),
            writes=int(head.writes),
            bytes=int(head.bytes),
            created_at=head.created,
            updated_at=head.updated,
            waiting=any(waits for _, _, waits in heads),
            lease=lease,
            leased=leased,
        )

    def _heads_call(self, thread: str, below: bytes) -> Call:
        tag = self._layout.tag(thread)
        return Call(scripts()["heads"], (tag.data, tag.order, tag.tomb, tag.lease), (below, b"%d" % BATCH))

    async def chart(self, thread: str) -> Chart | None:
        for _ in range(_TRIES):
            tokens, found, packs = await self._whole(thread)
            if not found:
                return None
            if len(tokens) == 1:
                return wire.chart(tokens.pop(), found, packs)
        raise Conflict(
            f"thread {thread!r} was written to {_TRIES} times while it was charted: try again", thread=thread
        )

    async def _whole(self, thread: str) -> tuple[set[bytes], list[Any], list[Any]]:
        """The states that the thread was in while it was read, its checkpoints and writes, and its packs: name and size
        in turn."""
        tokens: set[bytes] = set()
        found: list[Any] = []
        packs: list[Any] = []
        kinds, after = b"kqp", b""
        while kinds and len(tokens) < 2:
            reply = await self._walk("chart a thread", thread, kinds, after, BATCH, items=False)
            if reply[0] == b"none":
                return tokens, [], []
            _, token, snapshots, members, kinds, after = reply
            tokens.add(token)
            found += snapshots
            packs += members
        return tokens, found, packs

    async def _walk(self, op: str, thread: str, kinds: bytes, after: bytes, room: int, *, items: bool) -> Any:
        call = self._read_call("walk", thread, kinds, after, b"%d" % room, b"1" if items else b"")
        reply = (await self._steps(op, call))[0]
        status_of(thread, reply)
        return reply

    async def outline(self, thread: str) -> Outline | None:
        """Of a thread that is written to while it is read, it may have more than its token stands for."""
        token: bytes | None = None
        marks: list[Any] = []
        packs: list[Any] = []
        kinds, after = b"kqp", b""
        while kinds:
            call = self._read_call("outline", thread, kinds, after, b"%d" % BATCH)
            reply = (await self._steps("outline a thread", call))[0]
            if status_of(thread, reply) == b"none":
                return None
            _, current, found, members, kinds, after = reply
            token = token or current
            marks += found
            packs += members
        assert token is not None
        return wire.outline(token, marks, packs)

    async def rows(self, thread: str, places: Sequence[tuple[str, str]]) -> Batch:
        found: list[Any] = []
        for some in slices([wire.place(ns, id) for ns, id in places], BATCH):
            reply = (await self._steps("read checkpoints", self._read_call("rows", thread, *some)))[0]
            status_of(thread, reply)
            found += reply[1]
        return Batch(
            rows=tuple(wire.checkpoint(at, row) for at, row, *_ in found if row),
            writes=tuple((*wire.named(at), wire.write(value)) for at, _, *values in found for value in values),
        )

    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        """In one script, or in several where it is much. Each of them raises the generation, and the packs come last: so
        nobody who reads in between can refer to a pack that goes."""
        current = bytes.fromhex(token)
        for parts in droppings(drop):
            reply = await self._write("drop checkpoints", "drop", thread, current, _fresh(), *parts)
            if status_of(thread, reply) == b"moved":
                return None
            if reply[2]:
                await self._strike(thread)
                return ""
            current = reply[1]
        return current.hex()

    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        life = b"%d" % max(TOMBSTONE_LIFE * 1000, int(self._layout.ttl or b"0"))
        index = () if self._layout.spread else (self._index,)
        arguments = (life, b"%d" % TOMBSTONE_IDS, thread.encode())
        reply = await self._calls.delete(thread, index, *arguments, force=force)
        if reply[1]:
            await self._strike(thread)

    async def export(self, thread: str, after: tuple[str, ...] | None, limit: int) -> Batch | None:
        """Packs come before what refers to them; and once more at the end, if the thread was written to meanwhile."""
        if after is not None and after[0] == "calls":
            page = await self.calls(CallQuery(thread), after[1:] or None, limit)
            return Batch(calls=page.rows, cursor=page.cursor and ("calls", *page.cursor))
        kinds, start, place = after or ("pkq", "", "")
        reply = await self._walk(
            "export a thread", thread, kinds.encode(), bytes.fromhex(place), min(limit, BATCH), items=True
        )
        if reply[0] == b"none" and not start:
            return None
        current = reply[1].hex() if reply[0] == b"ok" else ""
        start = start or current
        if current[:16] != start[:16]:
            raise Conflict(
                f"thread {thread!r} was shortened while it was read: read it again from its beginning", thread=thread
            )
        _, _, found, packs, left, reached = reply
        cursor = (left.decode(), start, reached.hex()) if left else None
        if not left and current != start:
            cursor = ("p", current, "")
        return Batch(
            rows=tuple(wire.checkpoint(at, row) for at, row, *_ in found if row),
            writes=tuple((*wire.named(at), wire.write(value)) for at, _, *values in found for value in values),
            packs=tuple(wire.packs(packs)),
            cursor=cursor or ("calls",),
        )

    async def load(self, thread: str, batch: Batch) -> None:
        parts = [*wire.packs_of(batch), *wire.writes_of(batch), *wire.rows_of(batch)]
        for some in volumes(parts):
            arguments = [word for part in some for word in part]
            reply = await self._write(
                "load a thread", "load", thread, self._layout.ttl, _fresh(), thread.encode(), *arguments
            )
            status_of(thread, reply)
            await self._enrol(thread, *reply[2:4])
        await self._calls.load(thread, batch.calls)

    async def claim(
        self,
        thread: str,
        change: CallChange,
        *,
        beside: Collection[str] = (),
        after: Sequence[str] = (),
        fence: int | None = None,
    ) -> CallAnswer:
        return await self._calls.change(thread, change, beside, after, fence)

    async def settle(self, thread: str, change: CallChange, *, fence: int | None = None) -> CallAnswer:
        return await self._calls.change(thread, change, None, (), fence)

    async def calls(self, query: CallQuery, after: tuple[str, ...] | None, limit: int) -> CallPage:
        return await self._calls.page(query, after, limit)

    async def forget(self, thread: str, listed: Collection[tuple[str, int]]) -> None:
        await self._calls.drop(thread, listed)

    async def acquire(self, thread: str, owner: str, ttl: float, over: int | None = None) -> Lease:
        return await leases.acquire(self._write, thread, owner, ttl, over)

    async def renew(self, thread: str, owner: str, fence: int, ttl: float) -> Lease:
        return await leases.renew(self._write, thread, owner, fence, ttl)

    async def holder(self, thread: str) -> Lease | None:
        tag = self._layout.tag(thread)
        call = Call(scripts()["holder"], (tag.data, tag.order, tag.tomb, tag.lease), ())
        reply = (await self._steps("read a lease", call))[0]
        return wire.lease(reply) if reply else None

    async def release(self, thread: str, owner: str, error: str | None = None) -> None:
        await leases.release(self._write, thread, owner, error)

    async def rewrite(self, thread: str, batch: Batch, token: str) -> str | None:
        parts = [*wire.packs_of(batch), *wire.rows_of(batch), *wire.writes_of(batch)]
        arguments = [word for part in parts for word in part]
        reply = await self._write("rewrite checkpoints", "rewrite", thread, bytes.fromhex(token), *arguments)
        if status_of(thread, reply) == b"moved":
            return None
        after: bytes = reply[1]
        return after.hex()

    async def stats(self, thread: str | None) -> Stats:
        total = Stats(0, 0, 0, 0, 0)
        after: str | None = None
        while True:
            names = await self._lister.names(after, BATCH) if thread is None else [thread]
            tags = map(self._layout.tag, names)
            lines = await self._steps("count", *(Command((b"HGET", tag.data, b"m")) for tag in tags)) if names else []
            for line in lines:
                if line is not None:
                    head = wire.head(line)
                    there = int(head.rows + head.writes > 0)
                    counted = (there, int(head.rows), int(head.writes), int(head.packs), int(head.bytes))
                    total = Stats(*(sum(pair) for pair in zip(total, counted, strict=True)))
            if thread is not None or len(names) < BATCH:
                return total
            after = names[-1]

    async def close(self) -> None:
        self._close()

    # Requests.

    async def _steps(self, op: str, /, *steps: Step, writes: bool = False) -> list[Any]:
        return cast("list[Any]", await self._port.call(Request(op, steps, writes=writes)))

    async def _write(self, op: str, name: str, thread: str, *arguments: bytes) -> Any:
        """Carry out a script that changes a thread. Where the index is on the same node, it has part in the script."""
        tag = self._layout.tag(thread)
        index = () if self._layout.spread else (self._index,)
        keys = (tag.data, tag.order, tag.tomb, tag.lease, *index)
        steps: tuple[Step, ...] = (Call(scripts()[name], keys, arguments),)
        together = name in _QUICK and sum(map(len, arguments)) <= _SMALL
        request = Request(op, steps, writes=True, together=together)
        replies = cast("list[Any]", await self._port.call(request))
        return replies[0]

    def _read_call(self, name: str, thread: str, *arguments: bytes) -> Call:
        tag = self._layout.tag(thread)
        return Call(scripts()[name], (tag.data, tag.order, tag.tomb), arguments)

    def _read_ttl(self) -> bytes:
        return self._layout.ttl if self._layout.refreshes else b""

    # The index.

    async def _enrol(self, thread: str, made: int, listed: int) -> None:
        """Enter a thread into the index, where its script could not do it."""
        if not listed:
            await self._steps("list a thread", Command((b"ZADD", self._index, b"0", thread.encode())))
            # Only now: whoever is interrupted before leaves it to the next one who writes to the thread.
            status_of(thread, await self._write("list a thread", "listed", thread))
        if made and self._layout.ttl:
            await self._calls.forget(await self._lister.sweep())

    async def _strike(self, thread: str) -> None:
        """Take a thread out of the index that is gone, where its script could not do it."""
        if self._layout.spread:
            await self._lister.strike([thread])

    # Packs.

    async def _fetch(self, thread: str, spans: Sequence[Span], generation: bytes) -> list[Pack] | None:
        """The packs that overlap `spans`; None when the thread was shortened meanwhile."""
        if not spans:
            return []
        call = self._read_call("fetch", thread, generation, wire.spans(sorted(spans)), b"")
        reply = (await self._steps("read items", call))[0]
        status = status_of(thread, reply)
        if status != b"ok":
            return None if status == b"stale" else []
        packs = await self._rest(thread, reply[1], reply[2], reply[3])
        return await self._complete(thread, reply[1], packs, spans)

    async def _complete(
        self, thread: str, generation: bytes, packs: list[Pack] | None, spans: Sequence[Span]
    ) -> list[Pack] | None:
        """`packs`, and those that hold what they leave out of `spans`, from before a pack that begins later; None when the
        thread was shortened meanwhile."""
        gaps = () if packs is None or not spans else uncovered(spans, packs)
        if packs is None or not gaps:
            return packs
        return await self._more(thread, generation, packs, wire.spans(gaps), b"1")

    async def _rest(self, thread: str, generation: bytes, first: Any, rest: bytes) -> list[Pack] | None:
        """The packs that a script handed out, and those that were too much for it, by their spans."""
        return await self._more(thread, generation, wire.packs(first), rest, b"")

    async def _more(
        self, thread: str, generation: bytes, packs: list[Pack], rest: bytes, thoroughly: bytes
    ) -> list[Pack] | None:
        """`packs`, and those that overlap the spans of `rest`."""
        if not rest:
            return packs
        found = {(pack.writer, pack.first): pack for pack in packs}
        while rest:
            call = self._read_call("fetch", thread, generation, rest, thoroughly)
            reply = (await self._steps("read items", call))[0]
            if status_of(thread, reply) != b"ok":
                return None
            found |= {(pack.writer, pack.first): pack for pack in wire.packs(reply[2])}
            rest = reply[3]
        return list(found.values())


def _fresh() -> bytes:
    return wire.generation(draw())


def _snapshots(thread: str, generation: bytes, found: Sequence[Any]) -> list[Snapshot]:
    number = wire.number(generation)
    return [
        Snapshot(thread, wire.checkpoint(at, row), tuple(map(wire.write, values)), number) for at, row, *values in found
    ]
