"""What the clones of a saver have in common, and what a fork makes of it."""

from __future__ import annotations

import asyncio
import os
import weakref
from contextlib import suppress
from typing import Protocol

from milepost.codec import Memory, Vault
from milepost.footing import Footing
from milepost.heads import Heads
from milepost.maintaining import Growth
from milepost.observe import Observers
from milepost.pending import Pending, running_loop
from milepost.runs import Runs
from milepost.schema import Schemas
from milepost.sides import AsyncSide, BlockingSide
from milepost.spaces import Spaces
from milepost.store import Backend


class Boundary(Protocol):
    """What a ledger wants to know of the checkpoints of a saver."""

    def committed(self, key: tuple[str, str, str]) -> None:
        """The store has the checkpoint (thread, ns, id)."""
        ...

    def put_on(self, key: tuple[str, str, str], id: str) -> None:
        """Checkpoint `id` is about to be put on top of this one. May raise."""
        ...

    def renew(self) -> None:
        """The process was forked."""
        ...


class Shared:
    """What a saver shares with its clones (LangGraph copies a saver for every call in strict mode)."""

    def __init__(
        self,
        backend: Backend,
        vault: Vault | None,
        memory: Memory,
        *,
        setup: bool,
        schemas: Schemas | None = None,
        guards: bool = False,
    ) -> None:
        self.backend = backend
        self.schemas = schemas
        self.spaces = Spaces(schemas) if schemas is not None and schemas.renames_nodes else None
        self.vault = vault
        self.memory = memory
        self.pending = Pending()
        self.runs = Runs()
        self.footing = Footing()
        self.observers = Observers(backend.name)
        self.boundary: Boundary | None = None
        self.heads = Heads() if guards else None
        self.growth: Growth | None = None
        self.ready = not setup
        self.closed = False
        self._blocking: BlockingSide | None = None
        self._asynchronous: tuple[weakref.ref[asyncio.AbstractEventLoop], AsyncSide] | None = None
        _alive.add(self)

    def blocking(self) -> BlockingSide:
        """The store, for callers that block."""
        side = self._blocking
        if side is None:
            side = self._blocking = BlockingSide(self.backend.blocking())
        return side

    def asynchronous(self) -> AsyncSide:
        """The store, for callers in the running event loop; also where none of asyncio's runs, if the store needs none."""
        loop = running_loop()
        kept = self._asynchronous
        if kept is not None and kept[0]() is loop and loop is not None:
            return kept[1]
        side = AsyncSide(self.backend.asynchronous())
        if loop is not None:
            with suppress(TypeError):  # a loop of somebody's that cannot be referred to weakly
                self._asynchronous = (weakref.ref(loop), side)
        return side

    def renew(self) -> None:
        """In a forked process: threads that held locks, or had writes on their way, are not there."""
        self.pending.renew()
        self.runs.renew()
        self.footing.renew()
        self.memory.renew()
        if self.heads is not None:
            self.heads.renew()
        self.growth = None
        self._blocking = self._asynchronous = None
        if self.boundary is not None:
            self.boundary.renew()


_alive: weakref.WeakSet[Shared] = weakref.WeakSet()


def _renew_in_child() -> None:
    for shared in tuple(_alive):
        shared.renew()


os.register_at_fork(after_in_child=_renew_in_child)
