"""Where the runs of this process stand in namespaces of subgraphs: a migration may move these away under them.

The migration of a release that renames a node moves the namespaces of its calls. A run of the older release that is in
one of them knows only its former name, under which the newer release does not look any more: what it went on to store
there would be lost without a word. So whoever puts where this process stood before asks whether it is still there; but
only after something was deleted from the thread, which the thread's generation tells.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from milepost import maintenance
from milepost.codec import Codec
from milepost.errors import SchemaMismatch
from milepost.places import BEFORE, spaces_of
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

    async def nothing(self, store: Store, at: Spot, names: Sequence[str] = (), *, remembers: bool = True) -> None:
        """A run that looks for the latest checkpoint of the namespace finds none. Raises `SchemaMismatch` if it was moved.

        Where this process did not stand in it, that is asked for a subgraph that remembers, whose `names` this release
        knows, and not if it does not go by that name any more: a call whose task has another name is found by its former one.
        """
        thread, ns = at
        if at in self._at:
            await _refuse_the_moved(store, at)
            with self._lock:
                self._at.pop(at, None)
        elif remembers and ns and ":" not in ns:
            known = {ns, *names}
            if any(origin in known and now not in known for now, origin in _kept(await store.outline(thread))):
                raise _moved(at)

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


def _kept(outline: Outline | None) -> Iterator[tuple[str, str]]:
    """Where what a migration has rewritten is now, and where it was."""
    marks = () if outline is None else outline.marks
    return (spaces_of(mark.ns) for mark in marks if mark.ns.startswith(BEFORE))


def _moved(at: Spot) -> SchemaMismatch:
    thread, ns = at
    return SchemaMismatch(
        f"namespace {ns!r} of thread {thread!r} has moved while this run was in it: the migration of a newer release has "
        "renamed its node. Nothing was stored: let the run end, and go on with the thread by the newer release, from "
        "where the migration found it",
        thread=thread,
        ns=ns,
    )
