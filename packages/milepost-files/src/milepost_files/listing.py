"""Reads that go over many checkpoints or many threads: `page`, `threads`, `stats`."""

from __future__ import annotations

import bisect
import errno
import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeVar

from langgraph.checkpoint.serde.types import INTERRUPT
from milepost.callstore import CallPage, CallQuery, CallRow, drawers, owner_of
from milepost.collector import unhurried
from milepost.store import (
    Loaded,
    Pack,
    Query,
    Snapshot,
    Stats,
    ThreadPage,
    ThreadRow,
)

from milepost_files import frames
from milepost_files.calls import CallSpot
from milepost_files.index import Index, Namespace, Row
from milepost_files.leases import lease_at
from milepost_files.log import Log
from milepost_files.reading import Found, Reader, find, reading, spans_in
from milepost_files.root import Ahead, Root, log_name

T = TypeVar("T")

_SHUT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP})
"""What opening one log may fail with that says nothing of the others."""

_CHUNK: Final = 128
_SEARCHED: Final = 4096
"""How many checkpoints one page of a filtered listing looks at, at least."""
_FIRST_VIEW: Final = 4096
_LATER_VIEW: Final = 1 << 15
"""How many checkpoints of all threads are gathered at a time: to find them, every log has to be opened."""

_log = logging.getLogger("milepost.files")


class Spot(NamedTuple):
    """A checkpoint's place in a listing."""

    key: str
    thread: str
    ns: str
    id: str


def page(root: Root, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool) -> Loaded:
    """The verb `page`. Later pages over all threads show what was there when the listing began, less what is gone."""
    if limit <= 0:
        return Loaded((), {}, after)
    filtered = query.match is not None or bool(query.facets or query.runs)
    wanted = max(limit, _SEARCHED) if filtered else limit
    cursor = None if after is None else Spot(*after[:4])
    damage: list[str] = []
    name = ""
    if query.thread is not None:
        spots = _spots(root.log(query.thread), query, cursor, wanted, damage)
        spots = sorted(spots, reverse=True)[:wanted]
        more = len(spots) == wanted
    else:
        name = "".join(after[4:]) if after else ""
        ahead = root.views.find(name)
        stop = 0 if ahead is None or cursor is None else bisect.bisect_left(ahead.spots, cursor)
        if ahead is None or not (stop or ahead.complete):
            ahead = _gather(root, query, cursor, damage)
            name, stop = "", len(ahead.spots)
        start = max(stop - wanted, 0)
        spots = [Spot(*spot) for spot in reversed(ahead.spots[start:stop])]
        more = start > 0 or not ahead.complete
        if not name and (more or filtered):
            name = root.views.keep(ahead)
    last = spots[-1] if more else None
    if filtered:
        spots, last = _chosen(root, spots, last, query, limit)
    found: dict[Spot, Snapshot] = {}
    packs: dict[str, list[Pack]] = {}
    for thread, here in _by_thread(spots):
        part = _load(root.log(thread), here, items=items)
        if part is not None:
            found |= part[0]
            packs[thread] = part[1]
            damage += part[2]
    following = None if last is None else (*last, name)
    return Loaded(tuple(found[spot] for spot in spots if spot in found), packs, following, tuple(damage))


def _gather(root: Root, query: Query, after: Spot | None, damage: list[str]) -> Ahead:
    """The first checkpoints of all threads that a listing has after `after`."""
    most = _FIRST_VIEW if after is None else _LATER_VIEW
    spots: list[Spot] = []
    for _, log in _logs(root, "", damage.append, query.prefix):
        spots += _spots(log, query, after, most, damage)
        if len(spots) > 2 * most:
            spots = sorted(spots, reverse=True)[:most]
    spots = sorted(spots, reverse=True)[:most]
    return Ahead(spots[::-1], complete=len(spots) < most)


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
    start, size = 0, max(_CHUNK, limit)
    while start < len(spots):
        part = spots[start : start + size]
        passed = {spot for thread, here in _by_thread(part) for spot in _passing(root.log(thread), here, query)}
        for spot in part:
            if spot in passed:
                chosen.append(spot)
            if len(chosen) == limit:
                return chosen, None if last is None and spot == spots[-1] else spot
        start += size
        # As many as may be needed, by what passed so far: what is looked at together opens its log once.
        size = max(_CHUNK, (limit - len(chosen)) * start // max(len(chosen), 1))
    return chosen, last


def _logs(root: Root, after: str, report: Callable[[str], object], prefix: str = "") -> Iterator[tuple[str, Log]]:
    """The name and log of every thread whose id begins with `prefix`, after a name. `report` is told of logs that do not
    say whose they are, or let nobody look."""
    for name in root.names(after):
        try:
            log = root.named_within(name, prefix)
        except OSError as exc:
            if exc.errno not in _SHUT:
                raise
            report(f"the log {exc.filename or name} cannot be opened ({exc.strerror}): give this user access to it")
            continue
        if log is None:
            continue
        if log.known:
            if log.thread.startswith(prefix):
                yield name, log
        elif damage := log.nameless():
            report(damage)


def _planned(log: Log, plan: Callable[[Index], T]) -> T | None:
    """What the index alone tells; None when there is no log."""
    return reading(log, plan, lambda _, planned: planned)


def _spots(log: Log, query: Query, after: Spot | None, wanted: int, damage: list[str]) -> list[Spot]:
    """The first checkpoints of one thread that a listing has after `after`, in any order. Adds to `damage`."""

    def plan(index: Index) -> list[Spot]:
        damage.extend(log.news(index))
        spots: list[Spot] = []
        for ns, namespace in index.namespaces.items():
            if query.ns in (None, ns):
                rows = itertools.islice(_matching(namespace, log.thread, ns, query, after), wanted)
                spots.extend(Spot(row.key, log.thread, ns, row.id) for row in rows)
        return spots

    return _planned(log, plan) or []


def _matching(namespace: Namespace, thread: str, ns: str, query: Query, after: Spot | None) -> Iterator[Row]:
    ceiling: str | None = None
    if query.before is not None:
        row = namespace.rows.get(query.before)
        ceiling = row.key if row else query.before
    if query.id is not None:
        row = namespace.rows.get(query.id)
        rows: Iterator[Row] = iter(() if row is None else (row,))
    elif ceiling is not None and (after is None or ceiling <= after.key):
        rows = namespace.below((ceiling,))
    elif after is not None:
        rows = namespace.below((after.key + "\0",))
    else:
        rows = namespace.descending()
    for row in rows:
        if ceiling is not None and row.key >= ceiling:
            continue
        if after is not None and not _follows(row, thread, ns, after):
            continue
        yield row


def _follows(row: Row, thread: str, ns: str, after: Spot) -> bool:
    return (row.key, thread, ns, row.id) < after


def _load(log: Log, spots: list[Spot], *, items: bool) -> tuple[dict[Spot, Snapshot], list[Pack], list[str]] | None:
    """What is to be listed of these checkpoints of one thread, as far as they are (still) there."""

    def plan(index: Index) -> list[tuple[Spot, Found]]:
        return [(spot, find(index, spot.ns, row)) for spot, row in _rows(index, spots)]

    def read(reader: Reader, planned: list[tuple[Spot, Found]]) -> tuple[dict[Spot, Snapshot], list[Pack], list[str]]:
        snapshots = reader.snapshots([found for _, found in planned])
        packs = reader.packs(spans_in(snapshots)) if items else []
        losses = [words for spot, _ in planned for words in reader.index.losses(spot.ns, spot.id)]
        told = reader.told(losses)
        return dict(zip((spot for spot, _ in planned), snapshots, strict=True)), packs, list(told)

    return reading(log, plan, read)


def _rows(index: Index, spots: list[Spot]) -> list[tuple[Spot, Row]]:
    rows = ((spot, index.row(spot.ns, spot.id)) for spot in spots)
    return [(spot, row) for spot, row in rows if row is not None]


def _passing(log: Log, spots: list[Spot], query: Query) -> list[Spot]:
    """Those that the query's filter lets pass. What is damaged passes: nobody knows what it says."""

    def read(reader: Reader, planned: list[tuple[Spot, Row]]) -> list[Spot]:
        blobs = reader.blobs([row for _, row in planned])
        return [
            spot
            for (spot, _), blob in zip(planned, blobs, strict=True)
            if not frames.sound(blob) or _passes(blob, query)
        ]

    with unhurried(len(spots)):
        return reading(log, lambda index: _rows(index, spots), read) or []


def _passes(blob: bytes, query: Query) -> bool:
    facets = frames.facets_of(blob)
    if query.runs and "run_id" in facets and str(facets["run_id"]) not in query.runs:
        return False
    for name, value in query.facets.items():
        if name in facets and facets[name] != value:
            return False
    return query.match is None or query.match(frames.value_of(blob))


def _warn(damage: str) -> None:
    _log.warning("a thread is left out: %s", damage)


def threads(root: Root, after: tuple[str, ...] | None, limit: int, prefix: str) -> ThreadPage:
    """The verb `threads`, in the order of the logs' names."""
    rows: list[ThreadRow] = []
    previous = ""
    for name, log in _logs(root, after[0] if after else "", _warn, prefix):
        if len(rows) >= limit:
            return ThreadPage(tuple(rows), (previous,))
        row = _planned(log, functools.partial(_thread, log))
        if row is not None:
            rows.append(row)
        previous = name
    return ThreadPage(tuple(rows), None)


def _thread(log: Log, index: Index) -> ThreadRow | None:
    heads = {ns: head for ns, namespace in index.namespaces.items() if (head := namespace.head()) is not None}
    checkpoints, writes, _ = index.counts()
    if not heads and not writes:
        return None
    head = heads.get(max(heads, key=lambda ns: (ns == "", ns), default=""))
    waiting = any(
        write.channel == INTERRUPT for ns, row in heads.items() for write in index.writes(ns, row.id).values()
    )
    now = log.settings.clock()
    lease = lease_at(index, now, log.settings.uptime())
    return ThreadRow(
        thread=log.thread,
        head=head.id if head else "",
        namespaces=len(heads),
        checkpoints=checkpoints,
        writes=writes,
        bytes=log.size(),
        created_at=index.created,
        updated_at=index.updated,
        waiting=waiting,
        lease=lease,
        leased=lease.alive(now),
    )


def stats(root: Root, thread: str | None) -> Stats:
    """The verb `stats`."""
    if thread is not None:
        return _stats(root.log(thread))
    total = [0] * 5
    for _, log in _logs(root, "", _warn):
        total = [sum(pair) for pair in zip(total, _stats(log), strict=True)]
    return Stats(*total)


def _stats(log: Log) -> Stats:
    found = _planned(log, lambda index: (int(not index.empty), *index.counts()))
    return Stats(*(found or (0, 0, 0, 0)), log.size())


def calls(root: Root, query: CallQuery, after: tuple[str, ...] | None, limit: int) -> CallPage:
    """The verb `calls`: log after log, in the order of their names."""
    found: list[CallRow] = []
    start = after[0] if after else ""
    names = root.names() if query.thread is None else sorted(map(log_name, drawers(query.thread, query.keys)))
    cursor: tuple[str, ...] | None = None
    for name in names:
        if name < start:
            continue
        bound = (float(after[1]), after[2]) if after is not None and name == start else None
        log = root.named_within(name, query.prefix if query.thread is None else "")
        for row in [] if log is None else _calls(log, query, bound, limit - len(found) + 1):
            if len(found) == limit:
                return CallPage(tuple(found), cursor, root.settings.clock())
            found.append(row)
            cursor = (name, repr(row.started), row.key)
    return CallPage(tuple(found), None, root.settings.clock())


def _calls(log: Log, query: CallQuery, after: tuple[float, str] | None, limit: int) -> list[CallRow]:
    """The first records of one log that are asked for, after a (start, key)."""
    if not log.known:
        if damage := log.nameless():
            _warn(damage)
        return []

    def plan(index: Index) -> list[CallSpot]:
        within = query.thread is not None or owner_of(log.thread).startswith(query.prefix)
        return index.calls.select(query, after)[:limit] if within else []

    def read(reader: Reader, spots: list[CallSpot]) -> list[CallRow]:
        return [spot.filled(owner_of(log.thread), reader.parts(spot.ranges)) for spot in spots]

    return reading(log, plan, read) or []
