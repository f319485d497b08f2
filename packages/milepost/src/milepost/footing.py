"""Where the runs of this process stand in namespaces of subgraphs: a migration may move these away under them.

The migration of a release that renames a node moves the namespaces of its calls. A run of the older release that is in
one of them knows only its former name, under which the newer release does not look any more: what it went on to store
there would be lost without a word. So whoever puts where this process stood before asks whether it is still there; but
only after something was deleted from the thread, which the thread's generation tells. And whoever finds nothing in the
namespace of a subgraph that remembers asks whether what it remembered has moved: it would begin with nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Final

from milepost import maintenance
from milepost.codec import Codec
from milepost.errors import SchemaMismatch
from milepost.places import BEFORE, kept_space, spaces_of
from milepost.schema import Schemas
from milepost.schema.schema import Where
from milepost.store import Outline, Query, Store

_MOST: Final = 1 << 12

Spot = tuple[str, str]
"""(thread, namespace)."""


class Footing:
    """The namespaces that are known to hold something, with the generation of their thread when that was so."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a forked process: who held the lock is not there."""
        self._lock = threading.Lock()
        self._at: OrderedDict[Spot, int] = OrderedDict()

    def stands(self, at: Spot, generation: int) -> None:
        """The namespace holds something. That of the root never moves, and is not asked for."""
        if not at[1]:
            return
        with self._lock:
            self._at[at] = generation
            self._at.move_to_end(at)
            if len(self._at) > _MOST:
                self._at.popitem(last=False)

    async def nothing(
        self, store: Store, codec: Codec, at: Spot, schemas: Schemas | None, names: Sequence[str] = ()
    ) -> None:
        """A run that looks for the latest checkpoint of the namespace finds none. Raises `SchemaMismatch` if it was moved.

        Where this process did not stand in it, that is asked for a subgraph that remembers, which this release knows by
        `names`, too. (A call that has moved is found by its former name.)
        """
        ns = at[1]
        if at in self._at:
            await _refuse_the_moved(store, at)
            with self._lock:
                self._at.pop(at, None)
        elif schemas is not None and ns and ":" not in ns:
            await _refuse_the_older(store, codec, at, schemas, {ns, *names})

    async def check(
        self,
        store: Store,
        codec: Codec,
        at: Spot,
        generation: int,
        *,
        put: str | None = None,
        written: str | None = None,
    ) -> None:
        """Somebody puts in the namespace, in a thread that is at `generation`, or has `put` the checkpoint of that id there,
        or `written` to it. Raises `SchemaMismatch` if the namespace was moved away; what is there then goes again."""
        thread, ns = at
        if self._at.get(at, generation) != generation:
            try:
                await _refuse_the_moved(store, at, own=put, written=written)
            except SchemaMismatch:
                if put is not None:
                    await maintenance.disown(store, codec, thread, {(ns, put)})
                if written is not None:
                    await maintenance.drop_strays(store, codec, thread, (ns, written))
                raise
            if written is not None:
                return  # what is there may be a checkpoint whose put is under way, and has not asked yet
        elif put is None:
            return
        self.stands(at, generation)


async def _refuse_the_moved(store: Store, at: Spot, own: str | None = None, written: str | None = None) -> None:
    """Raise `SchemaMismatch` if a namespace that held something was moved: it holds nothing but the checkpoint `own`, or what
    was written to `written`, and what a migration keeps says that it has moved some. What is not there has moved along."""
    thread, ns = at
    found = await store.page(Query(thread=thread, ns=ns), None, 2, items=False)
    ids = {snapshot.row.id for snapshot in found.snapshots}
    if ids - {own} or (own is not None and own not in ids):
        return
    outline = await store.outline(thread)
    if written is not None and (outline is None or (ns, written) not in outline.strays):
        return
    if any(now != origin for now, origin in _kept(outline)):
        raise _moved(at)


async def _refuse_the_older(store: Store, codec: Codec, at: Spot, schemas: Schemas, names: Collection[str]) -> None:
    """Raise `SchemaMismatch` if what a namespace held, which this release calls `names`, has another name by now, and the
    release that has moved it is a newer one: what it rewrote of the checkpoints that called it cannot be read by this one."""
    thread, ns = at
    outline = await store.outline(thread)
    moved = ((now, origin) for now, origin in _kept(outline) if origin in names and now not in names)
    now, origin = next(moved, (ns, ns))
    parts = list(takewhile(lambda pair: pair[0] == pair[1], zip(now.split("|"), origin.split("|"), strict=False)))
    above = "|".join(part for part, _ in parts)
    schema = schemas.of(above)
    if outline is None or now == origin or schema is None:
        return
    marks = (mark for mark in outline.marks if mark.ns == kept_space(above, above))
    mark = max(marks, key=attrgetter("key"), default=None)
    rewritten = None if mark is None else await store.get(thread, above, mark.id)
    if rewritten is not None:
        row = rewritten.snapshots[0].row
        try:
            schema.judge(codec.header(thread, row).stamp, Where(thread, row.ns, row.id))
        except SchemaMismatch as exc:
            raise _moved(at) from exc
    elif origin.split("|")[len(parts)] not in schema.renamed:
        raise _moved(at)


def _kept(outline: Outline | None) -> Iterator[tuple[str, str]]:
    """Where what a migration has rewritten is now, and where it was."""
    marks = () if outline is None else outline.marks
    return (spaces_of(mark.ns) for mark in marks if mark.ns.startswith(BEFORE))


def _moved(at: Spot) -> SchemaMismatch:
    thread, ns = at
    return SchemaMismatch(
        f"namespace {ns!r} of thread {thread!r} has moved: the migration of a newer release has renamed its node. Nothing was "
        "stored there: let the run end, and go on with the thread by the newer release, from where the migration found it",
        thread=thread,
        ns=ns,
    )
