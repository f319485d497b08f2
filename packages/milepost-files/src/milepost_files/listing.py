"""Reads that go over many checkpoints or many threads: `page`, `threads`, `stats`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from milepost.store import (
    CheckpointRow,
    Loaded,
    Pack,
    Query,
    Snapshot,
    Stats,
    ThreadPage,
    ThreadRow,
)

from milepost_files.index import Index, Row, Space
from milepost_files.log import Log
from milepost_files.reading import Found, Reader, find, reading, spans_in
from milepost_files.root import Root

T = TypeVar("T")

INTERRUPT: Final = "__interrupt__"
_CHUNK: Final = 128
_SEARCHED: Final = 1024
"""How many checkpoints one page of a filtered listing looks at, at least."""


class Spot(NamedTuple):
    """A checkpoint's place in a listing."""

    key: str
    thread: str
    ns: str
    id: str


def page(root: Root, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool) -> Loaded:
    """The verb `page`. Of all threads it costs a look at each of their indexes."""
    if limit <= 0:
        return Loaded((), {}, after)
    filtered = query.match is not None or bool(query.facets)
    wanted = max(limit, _SEARCHED) if filtered else limit
    cursor = None if after is None else Spot(*after)
    spots: list[Spot] = []
    for log in _logs(root, query):
        spots += _spots(log, query, cursor, wanted)
        if len(spots) > wanted:
            spots = sorted(spots, reverse=True)[:wanted]
    spots.sort(reverse=True)
    last = spots[-1] if len(spots) == wanted else None
    if filtered:
        spots, last = _chosen(root, spots, last, query, limit)
    found: dict[Spot, Snapshot] = {}
    packs: dict[str, list[Pack]] = {}
    damage: list[str] = []
    for thread, here in _by_thread(spots):
        part = _load(root.log(thread), here, items=items)
        if part is not None:
            found |= part[0]
            packs[thread] = part[1]
            damage += part[2]
    return Loaded(tuple(found[spot] for spot in spots if spot in found), packs, last and tuple(last), tuple(damage))


def _by_thread(spots: list[Spot]) -> list[tuple[str, list[Spot]]]:
    threads: dict[str, list[Spot]] = {}
    for spot in spots:
        threads.setdefault(spot.thread, []).append(spot)
    return list(threads.items())


def _chosen(
    root: Root, spots: list[Spot], last: Spot | None, query: Query, limit: int
) -> tuple[list[Spot], Spot | None]:
    """The first `limit` of `spots` that pass the query's filter, and where the next page begins."""
    chosen: list[Spot] = []
    for start in range(0, len(spots), _CHUNK):
        part = spots[start : start + _CHUNK]
        passed = {spot for thread, here in _by_thread(part) for spot in _passing(root.log(thread), here, query)}
        for spot in part:
            if spot in passed:
                chosen.append(spot)
            if len(chosen) == limit:
                return chosen, None if last is None and spot == spots[-1] else spot
    return chosen, last


def _logs(root: Root, query: Query) -> Iterator[Log]:
    if query.thread is not None:
        yield root.log(query.thread)
        return
    for name in root.names():
        log = root.named(name)
        if log is not None:
            yield log


def _planned(log: Log, plan: Callable[[Index], T]) -> T | None:
    """What the index alone tells; None when there is no log."""
    return reading(log, plan, lambda _, planned: planned)


def _spots(log: Log, query: Query, after: Spot | None, wanted: int) -> list[Spot]:
    """The first checkpoints of one thread that a listing has after `after`, in any order."""

    def plan(index: Index) -> list[Spot]:
        spots: list[Spot] = []
        for ns, space in index.spaces.items():
            if query.ns in (None, ns):
                rows = itertools.islice(_matching(space, log.thread, ns, query, after), wanted)
                spots.extend(Spot(row.key, log.thread, ns, row.id) for row in rows)
        return spots

    return _planned(log, plan) or []


def _matching(space: Space, thread: str, ns: str, query: Query, after: Spot | None) -> Iterator[Row]:
    ceiling: str | None = None
    if query.before is not None:
        row = space.rows.get(query.before)
        ceiling = row.key if row else query.before
    if query.id is not None:
        row = space.rows.get(query.id)
        rows: Iterator[Row] = iter(() if row is None else (row,))
    elif ceiling is not None and (after is None or ceiling <= after.key):
        rows = space.below((ceiling,))
    elif after is not None:
        rows = space.below((after.key + "\0",))
    else:
        rows = space.descending()
    for row in rows:
        if ceiling is not None and row.key >= ceiling:
            continue
        if after is not None and not _follows(row, thread, ns, after):
            continue
        yield row


def _follows(row: Row, thread: str, ns: str, after: Spot) -> bool:
    return (row.key, thread, ns, row.id) < after


def _find(log: Log, spots: list[Spot], read: Callable[[Reader, list[tuple[Spot, Found]]], T]) -> T | None:
    """What `read` makes of those of `spots` that are (still) there."""

    def plan(index: Index) -> list[tuple[Spot, Found]]:
        rows = ((spot, index.row(spot.ns, spot.id)) for spot in spots)
        return [(spot, find(index, spot.ns, row)) for spot, row in rows if row is not None]

    return reading(log, plan, read)


def _load(log: Log, spots: list[Spot], *, items: bool) -> tuple[dict[Spot, Snapshot], list[Pack], list[str]] | None:
    """What is to be listed of these checkpoints of one thread."""

    def read(reader: Reader, planned: list[tuple[Spot, Found]]) -> tuple[dict[Spot, Snapshot], list[Pack], list[str]]:
        snapshots = reader.snapshots([found for _, found in planned])
        packs = reader.packs(spans_in(snapshots)) if items else []
        return dict(zip((spot for spot, _ in planned), snapshots, strict=True)), packs, reader.damage

    return _find(log, spots, read)


def _passing(log: Log, spots: list[Spot], query: Query) -> list[Spot]:
    """Those that the query's filter lets pass. What is damaged passes: nobody knows what it says."""

    def read(reader: Reader, planned: list[tuple[Spot, Found]]) -> list[Spot]:
        rows = reader.checkpoints([found for _, found in planned])
        return [
            spot
            for (spot, _), row in zip(planned, rows, strict=True)
            if (row.ns, row.id) in reader.unsound or _passes(row, query)
        ]

    return _find(log, spots, read) or []


def _passes(row: CheckpointRow, query: Query) -> bool:
    if any(name in row.facets and row.facets[name] != value for name, value in query.facets.items()):
        return False
    return query.match is None or query.match(row.header)


def threads(root: Root, after: tuple[str, ...] | None, limit: int) -> ThreadPage:
    """The verb `threads`, in the order of the logs' names."""
    rows: list[ThreadRow] = []
    previous = ""
    for name in root.names(after[0] if after else ""):
        if len(rows) >= limit:
            return ThreadPage(tuple(rows), (previous,))
        log = root.named(name)
        row = None if log is None else _planned(log, functools.partial(_thread, log))
        if row is not None:
            rows.append(row)
        previous = name
    return ThreadPage(tuple(rows), None)


def _thread(log: Log, index: Index) -> ThreadRow | None:
    heads = {ns: head for ns, space in index.spaces.items() if (head := space.head()) is not None}
    if not heads:
        return None
    head = heads[""] if "" in heads else heads[max(heads)]
    checkpoints, writes, _ = index.counts()
    waiting = any(cell.channel == INTERRUPT for ns, row in heads.items() for cell in index.cells(ns, row.id).values())
    return ThreadRow(
        log.thread, head.id, len(heads), checkpoints, writes, log.size(), index.created, index.updated, waiting
    )


def stats(root: Root, thread: str | None) -> Stats:
    """The verb `stats`."""
    if thread is not None:
        return _stats(root.log(thread))
    total = [0] * 5
    for name in root.names():
        log = root.named(name)
        if log is not None:
            total = [sum(pair) for pair in zip(total, _stats(log), strict=True)]
    return Stats(*total)


def _stats(log: Log) -> Stats:
    counts = _planned(log, lambda index: None if index.empty else index.counts())
    return Stats(0, 0, 0, 0, log.size()) if counts is None else Stats(1, *counts, log.size())
