"""Points at which a worker of the ledger's tests dies, and a store that has such points around its verbs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milepost.store import Backend, Store

VERBS = ("put", "put_writes", "claim", "settle")
"""The verbs of a store that write what the ledger's promise rests on."""

POINTS = (
    "before call",
    "before claim",
    "after claim",
    "before check",
    "before effect",
    "after effect",
    "before settle",
    "after settle",
    "after call",
    "before put_writes",
    "after put_writes",
    "before put",
    "after put",
)
"""In the order of a call: what is about to happen, and what has happened but is not yet told. `Call.check` is a claim
to the store, the barrier lies between the call and its claim. A transactional tool, which makes no check, has that
point right before its commit."""


@dataclass(frozen=True)
class Death:
    """The `occurrence`-th time (from 1) that a worker comes to `point`."""

    point: str
    occurrence: int
    stop: str = ""
    """Not a death: the worker is stopped, until it is let go on and there is a file of this name."""
    slow: float = 0.0
    """Seconds that every put takes longer than it does in the cell: for ever, if they are more than the worker lives."""


class Points:
    """Counts what a worker comes to, and ends (or stops) it where it is to."""

    def __init__(self, death: Death | None) -> None:
        self.death = death
        self.seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reach(self, point: str) -> None:
        with self._lock:
            self.seen[point] += 1
            death = self.death
            if death is not None and point == death.point and self.seen[point] == death.occurrence:
                os.kill(os.getpid(), signal.SIGSTOP if death.stop else signal.SIGKILL)
                # A thread may run on for a moment before its process stops or is dead.
                while not (death.stop and Path(death.stop).exists()):
                    time.sleep(0.01)


class _Watched:
    """A store whose verbs have points around them, and whose puts are slowed down."""

    def __init__(self, store: Store, points: Points, slow: float, *, blocking: bool) -> None:
        self._store = store
        self._points = points
        self._slow = slow
        self._blocking = blocking

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if name not in VERBS:
            return verb

        async def watched(*arguments: Any, **options: Any) -> Any:
            self._points.reach(f"before {name}")
            if self._slow and name.startswith("put"):
                if self._blocking:
                    time.sleep(self._slow)  # noqa: ASYNC251 - the blocking flavour blocks
                else:
                    await asyncio.sleep(self._slow)
            answer = await verb(*arguments, **options)
            self._points.reach(f"after {name}")
            return answer

        return watched


class WatchedBackend:
    """Another backend, with points around the verbs of its stores. `slow`: seconds that every put takes longer."""

    def __init__(self, backend: Backend, points: Points, slow: float = 0.0) -> None:
        self._backend = backend
        self._points = points
        self._slow = slow

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def blocking(self) -> Any:
        return _Watched(self._backend.blocking(), self._points, self._slow, blocking=True)

    def asynchronous(self) -> Any:
        return _Watched(self._backend.asynchronous(), self._points, self._slow, blocking=False)
