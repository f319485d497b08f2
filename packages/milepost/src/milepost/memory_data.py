"""What the memory store keeps: threads, their packs, and what outlives a thread. The verbs are in `milepost.memory`.

A signal may interrupt a verb between any two instructions (``KeyboardInterrupt``). So of each thing one dictionary is the
truth, and changing it is one instruction; what finds things in it is completed before and may name more than is there.
"""

from __future__ import annotations

import bisect
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.callstore import CallTable
from milepost.draws import draw
from milepost.fences import NOBODY, Lease, lease_lost, thread_deleted
from milepost.parents import Place
from milepost.store import (
    CheckpointRow,
    Pack,
    Snapshot,
    Span,
    Tombstone,
    WriteRow,
)


class Packs:
    """The packs of a thread, found by the addresses they hold."""

    def __init__(self) -> None:
        self._packs: dict[tuple[int, int], Pack] = {}
        self._writers: dict[int, list[int]] = {}
        """writer -> first numbers, ascending, of all its packs and maybe of some that are gone."""
        self._longest = 1

    def __iter__(self) -> Iterator[Pack]:
        return iter(self._packs.values())

    def __len__(self) -> int:
        return len(self._packs)

    def has(self, span: Span) -> bool:
        pack = self._packs.get((span.writer, span.first))
        return pack is not None and pack.count == span.count

    def add(self, pack: Pack) -> None:
        held = self._packs.get((pack.writer, pack.first))
        if held is None or held.count < pack.count:
            self._enter(pack)

    def replace(self, gone: Iterable[Span], new: Sequence[Pack]) -> None:
        """Add what is `new`, and remove what is `gone` of the others."""
        going = set(gone)
        for pack in sorted(new, key=lambda pack: -pack.first):  # what takes the place of another comes after its rest
            held = self._packs.get((pack.writer, pack.first))
            if held is None or held.count < pack.count or Span(held.writer, held.first, held.count) in going:
                self._enter(pack)
        kept = {Span(pack.writer, pack.first, pack.count) for pack in new}
        for span in going - kept:
            if self.has(span):
                del self._packs[span.writer, span.first]
                _discard(self._writers[span.writer], span.first)

    def absorb(self, pack: Pack) -> None:
        """Add a pack in the place of those that lie in it."""
        writer, first, count, _ = pack
        end = first + count
        inside = [Span(*held[:3]) for held in self.overlapping([Span(writer, first, count)])]
        self.replace([span for span in inside if span.first >= first and span.first + span.count <= end], [pack])

    def _enter(self, pack: Pack) -> None:
        _insort(self._writers.setdefault(pack.writer, []), pack.first)
        self._longest = max(self._longest, pack.count)
        self._packs[pack.writer, pack.first] = pack

    def overlapping(self, spans: Iterable[Span]) -> Iterator[Pack]:
        for writer, first, count in spans:
            firsts = self._writers.get(writer, [])
            for at in range(bisect.bisect_right(firsts, first - self._longest), len(firsts)):
                if firsts[at] >= first + count:
                    break
                pack = self._packs.get((writer, firsts[at]))
                if pack is not None and pack.first + pack.count > first:
                    yield pack


@dataclass(slots=True)
class Thread:
    """Everything of one thread but its lease and its calls."""

    generation: int
    revision: int = 0
    rows: dict[Place, CheckpointRow] = field(default_factory=dict)
    order: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """ns -> (sort key, id), ascending, of all its rows and maybe of some that are gone."""
    writes: dict[Place, dict[tuple[str, int], WriteRow]] = field(default_factory=dict)
    packs: Packs = field(default_factory=Packs)
    created: float = 0.0
    updated: float = 0.0

    def head(self, ns: str) -> CheckpointRow | None:
        for key, id in reversed(self.order.get(ns, ())):
            row = self.rows.get((ns, id))
            if row is not None and row.key == key:
                return row
        return None

    def heads(self) -> dict[str, CheckpointRow]:
        """Of each namespace its latest checkpoint."""
        return {ns: head for ns in self.order if (head := self.head(ns)) is not None}

    def enter(self, *rows: CheckpointRow) -> None:
        """Put all of `rows` at once, each in the place of its former version."""
        for row in rows:
            _insort(self.order.setdefault(row.ns, []), (row.key, row.id))
        new = {(row.ns, row.id): row for row in rows}
        old = [held for at, row in new.items() if (held := self.rows.get(at)) is not None and held.key != row.key]
        self.rows.update(new)
        for held in old:
            _discard(self.order[held.ns], (held.key, held.id))

    def youngest_first(self, places: Iterable[Place]) -> list[Place]:
        """Children before their parents."""
        keys = {at: row.key if (row := self.rows.get(at)) is not None else "" for at in places}
        return sorted(keys, key=keys.__getitem__, reverse=True)

    def leave(self, place: Place) -> None:
        row = self.rows.pop(place, None)
        if row is not None:
            order = self.order[row.ns]
            _discard(order, (row.key, row.id))
            if not order:
                del self.order[row.ns]

    def snapshot(self, thread: str, row: CheckpointRow, channels: Sequence[str] | None = None) -> Snapshot:
        writes = self.writes.get((row.ns, row.id), {}).values()
        kept = tuple(write for write in writes if channels is None or write.channel in channels)
        return Snapshot(thread, row, kept, self.generation)

    def packs_of(self, snapshots: Iterable[Snapshot], *, rows: bool = True) -> list[Pack]:
        spans = {
            span
            for snapshot in snapshots
            for spans in (snapshot.row.spans if rows else (), *(write.spans for write in snapshot.writes))
            for span in spans
        }
        return list({(pack.writer, pack.first): pack for pack in self.packs.overlapping(spans)}.values())

    def token(self) -> str:
        """Names the state of the thread: see `milepost.store.Chart`."""
        return f"{self.generation}:{self.revision}"

    def size(self) -> int:
        return (
            sum(len(row.header) for row in self.rows.values())
            + sum(len(write.value) for writes in self.writes.values() for write in writes.values())
            + sum(len(pack.data) for pack in self.packs)
        )


class Data:
    """What the flavours of one memory backend share."""

    def __init__(self, clock: Callable[[], float]) -> None:
        # A filter may run the application's code (the comparison of a value), which may read the store.
        self.lock = threading.RLock()
        self.clock = clock
        self.threads: dict[str, Thread] = {}
        self.tombstones: OrderedDict[str, Tombstone] = OrderedDict()
        """The oldest first."""
        self.leases: dict[str, Lease] = {}
        self.calls: dict[str, CallTable] = {}
        self.closed = False
        _alive.add(self)

    def open(self, thread: str) -> Thread:
        """The thread, made when it is not there. Its generation is random: a generation never comes back."""
        found = self.threads.get(thread)
        if found is None:
            now = self.clock()
            found = self.threads[thread] = Thread(draw(), created=now, updated=now)
        return found

    def generation(self, thread: str) -> int:
        found = self.threads.get(thread)
        return -1 if found is None else found.generation

    def refuse_the_late(self, thread: str, fence: int | None) -> None:
        if fence is not None and (found := self.leases.get(thread, NOBODY).fence) > fence:
            raise lease_lost(thread, fence, found)

    def bury(self, thread: str, ids: Iterable[str]) -> None:
        """Leave a tombstone, and forget those that are over: the oldest are the first of them."""
        now, stones = self.clock(), self.tombstones
        stones[thread] = Tombstone.of(ids, now, stones.get(thread))
        stones.move_to_end(thread)
        while stones[oldest := next(iter(stones))].over(now):
            del stones[oldest]

    def refuse_the_dead(self, thread: str, ns: str, named: Iterable[str], what: str, own: str | None = None) -> None:
        tombstone = self.tombstones.get(thread)
        if tombstone is None or tombstone.over(self.clock()):
            return
        alive = self.threads.get(thread)
        for id in (*named, *(() if own is None else (own,))):
            stored = alive is not None and any((space, id) in alive.rows for space in {ns, *alive.order})
            if tombstone.refuses(id, stored=stored, own=id == own):
                raise thread_deleted(thread, what, id)


def _insort(ascending: list[Any], value: object) -> None:
    at = bisect.bisect_left(ascending, value)
    if at == len(ascending) or ascending[at] != value:
        ascending.insert(at, value)


def _discard(ascending: list[Any], value: object) -> None:
    at = bisect.bisect_left(ascending, value)
    if at < len(ascending) and ascending[at] == value:
        del ascending[at]


_alive: weakref.WeakSet[Data] = weakref.WeakSet()


def _renew_in_child() -> None:
    for data in tuple(_alive):
        data.lock = threading.RLock()  # the thread that held it is not there


os.register_at_fork(after_in_child=_renew_in_child)
