"""Filling a thread with what comes from elsewhere, as copies and restorations do, so that nobody tidies it up meanwhile."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from operator import attrgetter
from types import TracebackType
from typing import Final, NoReturn, Self

from milepost.errors import Conflict, MilepostError
from milepost.fences import FILLING
from milepost.parents import Place
from milepost.store import Batch, Drop, Span, Store, merge_spans

TTL: Final = 60.0
"""Seconds, by the store's clock, that one batch may take."""
STEP: Final = 10_000
"""Checkpoints, or places of pending writes, that are taken back in one step."""


class Filling:
    """Loads batches into a thread under its lease, for an ``async with`` block.

    What is loaded first has no checkpoint yet that refers to it. Maintenance and sweeps, of whatever process, leave a
    thread alone whose lease somebody holds: where it is a run that does, that one is not disturbed, and keeps them away
    as well. Who is killed in the block leaves the lease, which is over after `TTL` seconds and says what was under way.

    Who deletes the thread asks nobody. So `load`, and the end of the block, raise `Conflict` when what was loaded is not
    there any more; and what was loaded since then is taken back, where nobody else has put anything beside it.
    """

    def __init__(self, store: Store, thread: str, what: str) -> None:
        self._store = store
        self._thread = thread
        self._what = what
        self._owner = f"{FILLING}{what}:{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"
        self._places: dict[Place, None] = {}
        """Of the checkpoints and pending writes that were loaded, in their order."""
        self._spans: dict[Span, None] = {}
        """Of the packs."""

    async def load(self, batch: Batch) -> None:
        """See `milepost.store.Store.load`."""
        if not await self._first_is_there():
            await self._give_up()
        held = await self._store.acquire(self._thread, self._owner, TTL)
        if held.owner != self._owner and held.owner.startswith(FILLING):
            # One that ended in the middle, or another one at the same time: then it is the last one's.
            await self._store.acquire(self._thread, self._owner, TTL, held.fence)
        await self._store.load(self._thread, batch)
        self._places |= {(ns, id): None for ns, id, _ in batch.writes} | {(row.ns, row.id): None for row in batch.rows}
        small = sorted(batch.packs, key=lambda pack: len(pack.data))  # the first is looked for again and again
        self._spans |= {Span(*pack[:3]): None for pack in small}

    async def _first_is_there(self) -> bool:
        """Whether what was loaded first is there: who deletes the thread leaves nothing."""
        for span in self._spans:
            return bool(await self._store.fetch(self._thread, (span,)))
        for place in self._places:
            found = await self._store.rows(self._thread, (place,))
            return bool(found.rows or found.writes)
        return True

    async def _all_is_there(self) -> bool:
        """Whether all that was loaded is there: a part that was loaded again after a deletion may be."""
        if not self._places and not self._spans:
            return True
        outline = await self._store.outline(self._thread)
        if outline is None or not self._places.keys() <= {*(mark[:2] for mark in outline.marks), *outline.strays}:
            return False
        # Packs may have been merged.
        stored = merge_spans(outline.packs)
        return merge_spans((*stored, *self._spans)) == stored

    async def _give_up(self) -> NoReturn:
        with suppress(MilepostError):  # then `milepost.saver.Saver.sweep` tells of it
            await self._take_back()
        raise Conflict(
            f"thread {self._thread!r} was deleted, or shortened, while {self._what} filled it: it is not whole. To have it "
            "all the same, delete what is left of it and repeat the call",
            thread=self._thread,
        )

    async def _take_back(self) -> None:
        outline = await self._store.outline(self._thread)
        if outline is None:
            return
        marks = sorted(outline.marks, key=attrgetter("key"), reverse=True)  # children before their parents
        places = [*(mark[:2] for mark in marks), *outline.strays]
        if not (self._places.keys() >= set(places) and self._spans.keys() >= set(outline.packs)):
            return  # somebody has begun anew
        steps = [Drop(tuple(places[at : at + STEP])) for at in range(0, len(places), STEP)]
        token: str | None = outline.token
        for step in steps or [Drop(packs=outline.packs)]:
            if token:
                token = await self._store.drop(self._thread, step, token)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not await self._all_is_there():
                await self._give_up()
        except Exception as exc:
            await self._failed(type(exc))
            raise
        if kind is None:
            await self._store.release(self._thread, self._owner)
        elif issubclass(kind, Exception):
            await self._failed(kind)

    async def _failed(self, kind: type[BaseException]) -> None:
        with suppress(MilepostError):  # then the lease is over by itself
            await self._store.release(self._thread, self._owner, f"{FILLING}{kind.__name__}")
