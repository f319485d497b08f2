"""The two flavours of a saver: a store that blocks or one that is awaited, and how to wait in each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from milepost.pending import Op, running_loop
from milepost.store import Store

_LOOK_AGAIN = 0.5
"""Seconds after which a wait makes sure that what it waits for can still happen."""


class Side(Protocol):
    """A store in one flavour, and how to wait in it."""

    store: Store

    async def wait(self, ops: Sequence[tuple[Op, Future[None]]]) -> None: ...


class BlockingSide:
    """For callers that block."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def wait(self, ops: Sequence[tuple[Op, Future[None]]]) -> None:
        here = running_loop()
        for op, done in ops:
            # What runs on this very loop cannot end while we block it.
            while (here is None or op.loop is not here) and not op.abandoned:
                with suppress(TimeoutError):
                    done.result(_LOOK_AGAIN)
                    break


class AsyncSide:
    """For callers in an event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def wait(self, ops: Sequence[tuple[Op, Future[None]]]) -> None:
        for op, ended in ops:
            done = asyncio.wrap_future(ended)
            while not done.done() and not op.abandoned:
                await asyncio.wait((done,), timeout=_LOOK_AGAIN)
