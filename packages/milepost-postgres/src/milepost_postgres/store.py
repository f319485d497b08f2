"""The verbs of the Postgres store. Each is one request to the port: a statement, or a few in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import starmap
from operator import attrgetter
from typing import Any, cast

from milepost.callstore import CallAnswer, CallChange, CallPage, CallQuery, unsettled
from milepost.collector import many, unhurried
from milepost.covering import longest, spans_in, uncovered
from milepost.draws import draw
from milepost.fences import Lease, head_moved, thread_deleted
from milepost.store import (
    TOMBSTONE_IDS,
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
    WriteRow,
    Wrote,
    bare,
)
from milepost.strays import StrayPage

from milepost_postgres import calls, exporting, leases, pruning, security, sweeping, wire
from milepost_postgres.found import Found
from milepost_postgres.request import Parameters, Request, Step
from milepost_postgres.schema import Schema
from milepost_postgres.wire import CHECKPOINT, PACK, THREAD, WRITE, Row

_ref = attrgetter("ref")

_NOWHERE = -1
"""The generation of a thread that is not there."""


def own() -> bool:
    """The transactions of a store are its own: it is no guest."""
    return False


class PostgresStore:
    """`milepost.store.Store` over tables of a database, behind a port whose requests are `Request`.

    While it is a `guest`, it works in transactions of the application's, which may be rolled back: then no generation that it
    tells is ever good again, so that nobody refers to items whose storing was undone.
    """

    def __init__(
        self,
        schema: Schema,
        port: Port,
        close: Callable[[], None],
        *,
        guest: Callable[[], bool] = own,
        tenant: str | None = None,
    ) -> None:
        self._schema = schema
        self._queries = schema.queries
        self._port = port
        self._close = close
        self._guest = guest
        self._tenant = tenant

    async def setup(self) -> None:
        schema = self._schema
        ((there, *settings),) = await self._answer("set up", schema.probe)
        schema.check(*settings)
        applied = await self._answer("set up", schema.applied) if there else ()
        script = schema.missing(applied)
        if script is not None:
            await self._answer("set up", script)
        if schema.rls or security.secured(applied):
            (found,) = await self._answer("set up", security.looking(schema.queries))
            security.check(schema.queries.names, found, self._tenant, asked=schema.rls)

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
        named = [id for id in (row.parent, *row.ancestors) if id]
        parameters: Parameters = {
            **self._writer(thread, generation, fence, named, own=row.id),
            "place": wire.place(row.ns, row.id),
            "above": None if row.parent is None else wire.place(row.ns, row.parent),
            "ns": wire.text(row.ns),
            "id": wire.text(row.id),
            "parent": wire.text(row.parent),
            "facets": wire.jsonb(wire.facets(row.facets)),
            "spans": wire.int8s(wire.flat(row.spans)),
            "header": row.header,
            **wire.packs(packs),
        }
        after = () if merged is None else (self._queries["absorb"].step({**parameters, **wire.merged(merged)}),)
        moved: str | None = None
        if heads is None:
            names = ("put_there" if packs else "put_there_alone", "put")
            done, current, dead, later = await self._write("put a checkpoint", thread, names, parameters, after=after)
        else:
            names = ("make" if generation is None else "hold", "put_at_head")
            guarded = {**parameters, "heads": wire.texts(heads)}
            steps = tuple(self._queries[name].step(guarded) for name in names)
            answers = await self._answers(Request("put a checkpoint", (*steps, *after), group=thread))
            done, current, dead, later, moved = answers[1][0]
        leases.refuse_late(thread, fence, later)
        _refuse(thread, dead, f"checkpoint {row.id!r}")
        stale = generation is not None and current != generation
        if moved is not None and not stale:
            raise head_moved(thread, row.parent, moved)
        return Put(not done, self._told(current))

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
        given = _Given(rows)
        parameters: Parameters = {
            **self._writer(thread, generation, fence, (checkpoint,)),
            "place": wire.place(ns, checkpoint),
            "ns": wire.text(ns),
            "id": wire.text(checkpoint),
            **_write_columns(given.kept),
            "rows": wire.int8s(nr for nr, _ in given.packs),
            "pack_slots": wire.byteas(wire.digest(given.kept[nr - 1].task) for nr, _ in given.packs),
            "pack_idxs": wire.int8s(given.kept[nr - 1].idx for nr, _ in given.packs),
            **wire.packs([pack for _, pack in given.packs]),
        }
        there = "put_writes_there" if given.packs else "put_writes_there_alone"
        done, current, dead, later, accepted = await self._write(
            "put pending writes", thread, (there, "put_writes"), parameters, len(given.kept)
        )
        leases.refuse_late(thread, fence, later)
        _refuse(thread, dead, f"writes of checkpoint {checkpoint!r}")
        told = self._told(current)
        return Wrote(False, told, given.answer(accepted)) if done else Wrote(True, told, ())

    async def get(self, thread: str, ns: str, id: str | None) -> Loaded | None:
        at: Parameters = {"ns": wire.text(ns)} if id is None else {"place": wire.place(ns, id)}
        rows = await self._read(
            "read a checkpoint", "get_latest" if id is None else "get", {"thread": wire.digest(thread), **at}
        )
        found = Found(rows)
        snapshots = self._snapshots(found, lambda _: thread)
        if not snapshots:
            return None
        return Loaded(
            tuple(snapshots), {thread: await self._complete(thread, found.packs_of(None), spans_in(snapshots))}
        )

    async def page(self, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool = True) -> Loaded:
        facets = wire.sought(query.facets)
        conditions: dict[str, Parameters] = {}
        if query.thread is not None:
            conditions["in_thread"] = {"thread": wire.digest(query.thread)}
        if query.ns is not None:
            conditions["in_space"] = {"ns": wire.text(query.ns)}
        if query.id is not None:
            conditions["of_id"] = {"id": wire.text(query.id)}
        if query.before is not None:
            conditions["before"] = {"before": wire.text(query.before)}
        if facets:
            conditions["of_facets"] = {"facets": wire.jsonb(facets)}
        if after is not None:
            conditions["after"] = dict(
                zip(("after_key", "after_thread", "after_ns"), map(wire.text, after), strict=True)
            )
        parameters: Parameters = {"limit": wire.int8(limit), "items": wire.int8(int(items))}
        among = "listed_of_all"
        if query.thread is None and query.prefix:
            parameters["prefix"] = wire.text(query.prefix)
            among = wire.among("listed", query.prefix)
        for given in conditions.values():
            parameters |= given
        rows = await self._rows("list checkpoints", self._queries.page(tuple(conditions), among).step(parameters))
        found = Found(rows)
        names = {row.ref: row.t1 for row in found.kinds[THREAD]}
        snapshots = self._snapshots(found, lambda row: names[row.a])
        last = snapshots[-1] if snapshots else None
        packs: dict[str, Sequence[Pack]] = {}
        for key, name in names.items() if items else ():
            spans = spans_in(one for one in snapshots if one.thread == name)
            packs[name] = await self._complete(name, found.packs_of(key), spans)
        return Loaded(
            snapshots=tuple(snapshots),
            packs=packs,
            cursor=(last.row.key, last.thread, last.row.ns) if last and len(snapshots) >= limit else None,
        )

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
        at: Parameters = {"ns": wire.text(ns)} if start is None else {"place": wire.place(ns, start)}
        parameters: Parameters = {
            **at,
            "thread": wire.digest(thread),
            "space": wire.space(ns),
            "channels": None if channels is None else wire.texts(channels),
            "limit": wire.int8(limit),
        }
        found = Found(await self._read("read a lineage", "lineage_latest" if start is None else "lineage", parameters))
        if not found.kinds[CHECKPOINT]:
            return None
        ancestors = self._snapshots(found, lambda _: thread)[1:]
        last = ancestors[-1].row if len(ancestors) >= limit else None
        cursor = (last.id,) if last is not None and last.parent is not None else None
        spans = spans_in(ancestors, rows=False)
        return Loaded(tuple(ancestors), {thread: await self._complete(thread, found.packs_of(None), spans)}, cursor)

    async def fetch(self, thread: str, spans: Sequence[Span]) -> Sequence[Pack]:
        parameters: Parameters = {"thread": wire.digest(thread), "spans": wire.int8s(wire.flat(spans))}
        packs = Found(await self._read("read items", "fetch", parameters)).packs_of(None)
        return await self._complete(thread, packs, spans)

    async def _complete(self, thread: str, packs: list[Pack], spans: Sequence[Span]) -> list[Pack]:
        """`packs`, and those that hold what they leave out of `spans`, from before a pack that begins later."""
        gaps = uncovered(spans, packs) if spans else ()
        if not gaps:
            return packs
        parameters: Parameters = {"thread": wire.digest(thread), "spans": wire.int8s(wire.flat(gaps))}
        more = Found(await self._read("read items", "fetch_all", parameters)).packs_of(None)
        return list({(pack.writer, pack.first): pack for pack in (*packs, *more)}.values())

    async def threads(self, after: tuple[str, ...] | None, limit: int, prefix: str = "") -> ThreadPage:
        parameters: Parameters = {
            "after": wire.int8(int(after[0]) if after else 0),
            "limit": wire.int8(limit),
            "prefix": wire.text(prefix),
        }
        name = wire.among("threads", prefix) if prefix else "threads"
        rows = await self._answer("list threads", self._queries[name].step(parameters))
        found = tuple(map(wire.thread_row, rows))
        return ThreadPage(found, (str(rows[-1][0]),) if len(rows) >= limit else None)

    async def strays(
        self, after: tuple[str, ...] | None, limit: int, prefix: str = "", *, remove: bool = False
    ) -> StrayPage:
        rows = await self._answer("look for leftovers", sweeping.looking(self._queries, after, limit, prefix))
        gone = sweeping.void(rows)
        if gone and remove:
            answers = await self._answers(sweeping.removing(self._queries, gone))
            gone = frozenset(key for (key,) in answers[-1])
        return sweeping.page(rows, gone, limit)

    async def chart(self, thread: str) -> Chart | None:
        found = Found(await self._read("chart a thread", "chart", {"thread": wire.digest(thread)}))
        kinds = found.kinds
        if not kinds[CHECKPOINT] and not kinds[WRITE]:
            return None
        writes: dict[tuple[str, str], list[WriteRow]] = {}
        for row in kinds[WRITE]:
            writes.setdefault((row.t4, row.t5), []).append(wire.write(row))
        return Chart(
            token=kinds[THREAD][0].t1,
            generation=kinds[THREAD][0].b,
            rows=tuple(map(wire.checkpoint, kinds[CHECKPOINT])),
            writes={at: tuple(rows) for at, rows in writes.items()},
            packs=tuple(Span(row.a, row.b, row.c) for row in kinds[PACK]),
            sizes=tuple(int(row.at) for row in kinds[PACK]),
        )

    async def outline(self, thread: str) -> Outline | None:
        return pruning.outlined(await self._answers(pruning.outlining(self._queries, thread)))

    async def rows(self, thread: str, places: Sequence[tuple[str, str]]) -> Batch:
        given: Parameters = {"thread": wire.digest(thread), "places": wire.byteas(starmap(wire.place, places))}
        rows, writes, _ = Found(await self._read("read checkpoints", "rows", given)).batch()
        return Batch(rows, writes)

    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        fresh = _fresh()
        answers = await self._answers(pruning.dropping(self._queries, thread, drop, token, fresh))
        return pruning.dropped(answers, token, fresh)

    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        given: Parameters = {
            "thread": wire.digest(thread),
            "fresh": _fresh(),
            "most": wire.int8(TOMBSTONE_IDS),
            "force": wire.int8(int(force)),
        }
        names = ("lock", "delete_thread", "delete_calls", "forget")
        _, _, ((count,),), _ = await self._answers(
            Request("delete a thread", tuple(self._queries[name].step(given) for name in names))
        )
        if count and not force:
            raise unsettled(thread, count)

    async def export(self, thread: str, after: tuple[str, ...] | None, limit: int) -> Batch | None:
        # A small thread goes as one batch. Of a large one the packs go first and the checkpoints last: what was taken
        # over of them is whole at any time.
        if after is None:
            chart = await self._read("export a thread", "export_packs", exporting.portion("packs", (), thread, limit))
            found = Found(chart)
            if not found.kinds[THREAD]:
                return None
            token, size = found.kinds[THREAD][0].t1, found.kinds[THREAD][0].c
            if size <= limit:
                return await self._export_whole(thread, token, found, limit)
            phase = "packs"
        else:
            phase, token, *place = after
            if phase == "calls":
                page = await self.calls(CallQuery(thread), tuple(place) or None, limit)
                return Batch(calls=page.rows, cursor=page.cursor and (phase, token, *page.cursor))
            found = Found(
                await self._read("export a thread", f"export_{phase}", exporting.portion(phase, place, thread, limit))
            )
            exporting.unchanged(thread, token, found)
        rows, writes, packs = found.batch()
        return Batch(rows, writes, packs, exporting.onward(phase, token, rows, writes, packs, limit))

    async def _export_whole(self, thread: str, token: str, found: Found, limit: int) -> Batch:
        packs = found.batch()[2]
        names = [("export_writes", "writes"), ("export_rows", "rows")]
        steps = tuple(self._queries[name].step(exporting.portion(phase, (), thread, limit)) for name, phase in names)
        written, entered = await self._answers(Request("export a thread", steps))
        more = Found(many(Row, [*written, *entered]))
        exporting.unchanged(thread, token, more)
        rows, writes, _ = more.batch()
        return Batch(rows, writes, packs, ("calls", token))

    async def load(self, thread: str, batch: Batch) -> None:
        parameters = {**_batch_parameters(thread, batch), "thread_id": wire.text(thread), "fresh": _fresh()}
        steps = [self._queries[name].step(parameters) for name in (*self._first(make=True), "load")]
        if batch.calls:
            steps.append(self._queries["load_calls"].step(calls.loading(thread, batch.calls)))
        await self._answers(Request("load a thread", tuple(steps)))

    async def claim(
        self,
        thread: str,
        change: CallChange,
        *,
        beside: Collection[str] = (),
        after: Sequence[str] = (),
        fence: int | None = None,
    ) -> CallAnswer:
        request = calls.request(self._queries, thread, change, beside, after, fence, _fresh())
        return calls.answer(thread, change, fence, await self._answers(request))

    async def settle(self, thread: str, change: CallChange, *, fence: int | None = None) -> CallAnswer:
        request = calls.request(self._queries, thread, change, None, (), fence, _fresh())
        return calls.answer(thread, change, fence, await self._answers(request))

    async def calls(self, query: CallQuery, after: tuple[str, ...] | None, limit: int) -> CallPage:
        return calls.page(await self._answers(calls.listing(self._queries, query, after, limit)), limit)

    async def transaction(self) -> int:
        """See `milepost.callstore.Joined`."""
        return int((await self._answer("name a transaction", self._queries["call_transaction"].step({})))[0][0])

    async def committed(self, transaction: int) -> bool:
        """See `milepost.callstore.Joined`."""
        step = self._queries["call_committed"].step({"transaction": wire.int8(transaction)})
        return bool((await self._answer("ask for a transaction", step))[0][0])

    async def forget(self, thread: str, listed: Collection[tuple[str, int]]) -> None:
        await self._answers(calls.forgetting(self._queries, thread, listed))

    async def rewrite(self, thread: str, batch: Batch, token: str) -> str | None:
        queries = self._queries
        parameters = {**_batch_parameters(thread, batch), "fresh": _fresh(), "token": wire.text(token)}
        names = ("lock", "drop_begin", "rewrite_begin", "rewrite", "token")
        _, begun, *_, after = await self._answers(
            Request("rewrite checkpoints", tuple(queries[name].step(parameters) for name in names))
        )
        return str(after[0][0]) if begun else None

    async def acquire(self, thread: str, owner: str, ttl: float, over: int | None = None) -> Lease:
        return leases.told(await self._answers(leases.acquire(self._queries, thread, owner, ttl, over, _fresh())))

    async def renew(self, thread: str, owner: str, fence: int, ttl: float) -> Lease:
        answers = await self._answers(leases.renew(self._queries, thread, owner, ttl))
        return leases.told_renewed(thread, fence, answers)

    async def holder(self, thread: str) -> Lease | None:
        rows = await self._answer("read a lease", self._queries["holder"].step({"thread": wire.digest(thread)}))
        return Lease(*rows[0]) if rows else None

    async def release(self, thread: str, owner: str, error: str | None = None) -> None:
        await self._answers(leases.release(self._queries, thread, owner, error))

    async def stats(self, thread: str | None) -> Stats:
        if thread is None:
            (counted,) = await self._answer("count", self._queries["stats_of_all"].step({}))
            return Stats(*counted)
        rows = await self._answer("count", self._queries["stats"].step({"thread": wire.digest(thread)}))
        checkpoints, writes, packs, size = rows[0] if rows else (0, 0, 0, 0)
        return Stats(int(checkpoints + writes > 0), checkpoints, writes, packs, size)

    async def close(self) -> None:
        self._close()

    def _told(self, generation: int | None) -> int:
        """A generation as callers are told."""
        if generation is None:
            return _NOWHERE
        return draw() if self._guest() else generation

    def _snapshots(self, found: Found, thread_of: Callable[[Row], str]) -> list[Snapshot]:
        writes: dict[int, list[WriteRow]] = {}
        rows = found.kinds[CHECKPOINT]
        guest = self._guest()
        with unhurried(len(found.kinds[WRITE]) + len(rows)):
            for row in found.kinds[WRITE]:
                writes.setdefault(row.ref, []).append(wire.write(row))
            return [
                Snapshot(
                    thread_of(row),
                    wire.checkpoint(row),
                    tuple(writes.get(row.ref, ())),
                    self._told(row.b) if guest else row.b,
                )
                for row in sorted(rows, key=_ref)
            ]

    def _writer(
        self, thread: str, generation: int | None, fence: int | None, named: Iterable[str], own: str | None = None
    ) -> Parameters:
        """What every put says: to which thread, made with which numbers, under which lease, descending from whom."""
        return {
            "thread": wire.digest(thread),
            "thread_id": wire.text(thread),
            "generation": wire.int8(generation),
            "fence": wire.int8(fence),
            "fresh": _fresh(),
            "stamp": _fresh(),
            "named": wire.texts(named),
            "own": wire.text(own),
        }

    async def _write(
        self,
        op: str,
        thread: str,
        names: tuple[str, str],
        parameters: Parameters,
        *wanted: int,
        after: tuple[Step, ...] = (),
    ) -> tuple[Any, ...]:
        """The row that the first statement answers, or, if it could not do all that was wanted, that of the second. What
        comes after it goes along with either."""
        first, second = names
        step = self._queries[first].step(parameters)
        rows = (await self._answers(Request(op, (step, *after), group=thread)))[0]
        if not rows or not rows[0][0] or rows[0][4:] != wanted:
            before = self._first(make=parameters["generation"] is None)
            steps = tuple(self._queries[name].step(parameters) for name in (*before, second))
            rows = (await self._answers(Request(op, (*steps, *after), group=thread)))[len(before)]
        return rows[0]

    def _first(self, *, make: bool) -> tuple[str, ...]:
        """What comes before a statement that makes a thread together with rows of it: a policy lets rows in only if their
        thread was there before the statement."""
        return ("make" if make else "hold",) if self._schema.rls else ()

    async def _read(self, op: str, name: str, parameters: Parameters) -> list[Row]:
        return await self._rows(op, self._queries[name].step(parameters))

    async def _rows(self, op: str, step: Step) -> list[Row]:
        answer = await self._answer(op, step)
        with unhurried(len(answer)):
            return many(Row, answer)

    async def _answer(self, op: str, step: Step) -> Sequence[tuple[Any, ...]]:
        return (await self._answers(Request(op, (step,))))[0]

    async def _answers(self, request: Request) -> Sequence[Sequence[tuple[Any, ...]]]:
        return cast("Sequence[Sequence[tuple[Any, ...]]]", await self._port.call(request))


class _Given:
    """The rows of one `put_writes`. One statement cannot decide twice about a place, so each place is sent once."""

    def __init__(self, rows: Sequence[WriteRow]) -> None:
        self._rows = rows
        at: dict[tuple[str, int], int] = {}
        for number, row in enumerate(rows):
            if row.idx < 0:
                at[row.task, row.idx] = number
            else:
                at.setdefault((row.task, row.idx), number)
        sent = {number: nr for nr, number in enumerate(at.values(), 1)}
        self.kept = [rows[number] for number in at.values()]
        self._sent = [sent[at[row.task, row.idx]] for row in rows]
        # A special write that a later one of the same call replaces was stored for a moment, and so were its items.
        self.packs = [
            (nr, row.pack)
            for number, (row, nr) in enumerate(zip(rows, self._sent, strict=True))
            if row.pack is not None and (row.idx < 0 or number in sent)
        ]

    def answer(self, accepted: Sequence[int] | int) -> tuple[bool, ...]:
        """Which rows count as accepted, from the numbers that the statement names, or from how many they are: all."""
        taken = frozenset(range(1, accepted + 1) if isinstance(accepted, int) else accepted)
        return tuple(
            nr in taken and (row.idx < 0 or row is kept or (row.pack is None and bare(row) == bare(kept)))
            for row, nr in zip(self._rows, self._sent, strict=True)
            for kept in (self.kept[nr - 1],)
        )


def _write_columns(rows: Sequence[WriteRow]) -> Parameters:
    return {
        "tasks": wire.texts([row.task for row in rows]),
        "slots": wire.byteas([wire.digest(row.task) for row in rows]),
        "idxs": wire.int8s([row.idx for row in rows]),
        "paths": wire.texts([row.path for row in rows]),
        "channels": wire.texts([row.channel for row in rows]),
        "spans": wire.texts([wire.literal(row.spans) if row.spans else "{}" for row in rows]),
        "values": wire.byteas([row.value for row in rows]),
    }


def _refuse(thread: str, dead: str | None, what: str) -> None:
    if dead is not None:
        raise thread_deleted(thread, what, dead)


def _batch_parameters(thread: str, batch: Batch) -> Parameters:
    rows, writes = batch.rows, batch.writes
    columns = _write_columns([row for _, _, row in writes])
    return {
        "thread": wire.digest(thread),
        "stamp": _fresh(),
        **wire.packs(longest(batch.packs)),
        "write_places": wire.byteas(wire.place(ns, id) for ns, id, _ in writes),
        "write_spaces": wire.texts(ns for ns, _, _ in writes),
        "write_ids": wire.texts(id for _, id, _ in writes),
        "write_spans": columns.pop("spans"),
        **columns,
        "ats": wire.float8s(row.at for row in rows),
        "places": wire.byteas(wire.place(row.ns, row.id) for row in rows),
        "spaces": wire.texts(row.ns for row in rows),
        "ids": wire.texts(row.id for row in rows),
        "parents": wire.texts(row.parent for row in rows),
        "keys": wire.texts(row.key for row in rows),
        "facets": wire.texts(wire.jsonb(wire.facets(row.facets))[1:].decode() for row in rows),
        "spans": wire.texts(wire.literal(row.spans) for row in rows),
        "headers": wire.byteas(row.header for row in rows),
    }


def _fresh() -> bytes:
    """A bigint of its own."""
    return draw().to_bytes(8)
