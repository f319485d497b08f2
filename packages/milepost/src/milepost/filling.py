"""Filling a thread with what comes from elsewhere, as copies and restorations do, so that nobody tidies it up meanwhile."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from milepost.errors import MilepostError
from milepost.fences import FILLING
from milepost.store import Batch, Store

TTL: Final = 60.0
"""Seconds, by the store's clock, that one batch may take."""


class Filling:
    """Loads batches into a thread under its lease, for an ``async with`` block.

    What is loaded first has no checkpoint yet that refers to it. Maintenance and sweeps, of whatever process, leave a
    thread alone whose lease somebody holds: where it is a run that does, that one is not disturbed, and keeps them away
    as well. Who is killed in the block leaves the lease, which is over after `TTL` seconds and says what was under way.
    """

    def __init__(self, store: Store, thread: str, what: str) -> None:
        self._store = store
        self._thread = thread
        self._owner = f"{FILLING}{what}:{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(8)}"

    async def load(self, batch: Batch) -> None:
        """See `milepost.store.Store.load`."""
        held = await self._store.acquire(self._thread, self._owner, TTL)
        if held.owner != self._owner and held.owner.startswith(FILLING):
            # One that ended in the middle, or another one at the same time: then it is the last one's.
            await self._store.acquire(self._thread, self._owner, TTL, held.fence)
        await self._store.load(self._thread, batch)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self._store.release(self._thread, self._owner)
        elif issubclass(kind, Exception):
            with suppress(MilepostError):  # then the lease is over by itself
                await self._store.release(self._thread, self._owner, f"{FILLING}{kind.__name__}")
