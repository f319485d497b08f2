"""The runs of this process, and which of them the thread was deleted under.

What a run writes when its thread is gone must not bring any of it back, also where nothing says so: LangGraph, with
durability "async", runs ahead of its puts, and once one of them was refused does not make the next ones. Their ids are
then known from pending writes, checkpoints of subgraphs and calls alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from milepost.fences import thread_deleted
from milepost.places import Place

_RUNTIME: Final = "__pregel_runtime"
"""LangGraph hands an object with each config that is the same for all that a run asks of a saver in its root namespace.
Private: without it, what a run puts after its thread was deleted is refused by the ids that tombstones have."""
_TASK: Final = "__pregel_task_id"
"""Is in the configs of what a task runs."""
_MOST: Final = 1024
_KNOWN: Final = 64

Spot = tuple[str, str]
"""(ns, checkpoint id)."""


class Run:
    """What this process knows of a run."""

    def __init__(self, of: Runs, thread: str) -> None:
        self.of = of
        self.thread = thread
        self.cut: str | None = None
        """The checkpoint whose put was refused because its thread was deleted; or the newest one that it knew when this
        process deleted the thread."""
        self.first = False
        """It has looked for its thread, which was not there, and has put nothing yet."""
        self._lock = threading.Lock()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._open: dict[Spot, set[str]] = {}
        """What was stored ahead of checkpoints, by what it waits for."""

    def refuse(self, what: str) -> None:
        """Raise `ThreadDeleted` if the thread was deleted under the run."""
        if self.cut is not None:
            raise thread_deleted(self.thread, what, self.cut)

    def has(self, id: str) -> None:
        """The store has the checkpoint."""
        with self._lock:
            self._known[id] = None
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
            for spot in [spot for spot, missing in self._open.items() if id in missing]:
                self._open[spot].discard(id)
                if not self._open[spot]:
                    del self._open[spot]

    def newest(self) -> str | None:
        """The last checkpoint that the store was known to have, or that something was rested on."""
        with self._lock:
            return next(reversed(self._known), None)

    def wrote(self, spot: Spot, rests: Iterable[str]) -> None:
        """Something is stored at `spot`, or is about to be, which rests on the checkpoints of the ids `rests`."""
        missing: set[str] = set()
        with self._lock:
            for id in rests:
                if id in self._known:
                    # What others rest on is not the one to be forgotten.
                    self._known.move_to_end(id)
                else:
                    missing.add(id)
            if missing:
                self._open[spot] = missing | self._open.get(spot, set())

    def ahead(self) -> list[Spot]:
        """What was stored ahead of checkpoints that are not there."""
        with self._lock:
            return list(self._open)


_here: ContextVar[Run | None] = ContextVar("milepost_run", default=None)


class Runs:
    """The runs that use the savers of one store, by the object that LangGraph hands on."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a forked process: who held the lock is not there."""
        self._lock = threading.Lock()
        self._runs: OrderedDict[int, Run] = OrderedDict()

    def reads(self, place: Place, inner: Mapping[str, Any]) -> Run | None:
        """A checkpoint is asked for; by a run that begins, if LangGraph says so. That run is known in this context."""
        runtime = inner.get(_RUNTIME)
        if runtime is None or place.ns or _TASK in inner:
            return None
        run = Run(self, place.thread)
        with self._lock:
            # An object of before may have been at the same address.
            self._runs[id(runtime)] = run
            self._runs.move_to_end(id(runtime))
            if len(self._runs) > _MOST:
                self._runs.popitem(last=False)
        _here.set(run)
        return run

    def of(self, place: Place, inner: Mapping[str, Any]) -> Run | None:
        """The run that puts something at `place`, if it is known. None for what no run does, such as an update."""
        if (runtime := inner.get(_RUNTIME)) is None:
            return None
        if place.ns:
            return self.here(place.thread)
        run = self._runs.get(id(runtime))
        return run if run is not None and run.thread == place.thread else None

    def under_way(self, thread: str) -> list[tuple[Run, str]]:
        """The runs of `thread` that know of a checkpoint, with the newest one. Some are over."""
        with self._lock:
            runs = [run for run in self._runs.values() if run.thread == thread]
        return [(run, newest) for run in runs if (newest := run.newest()) is not None]

    def revived(self, thread: str) -> None:
        """The thread was brought back: its runs may go on."""
        with self._lock:
            for run in self._runs.values():
                if run.thread == thread:
                    run.cut = None

    def here(self, thread: str) -> Run | None:
        """The run of `thread` that this code belongs to."""
        run = _here.get()
        return run if run is not None and run.of is self and run.thread == thread else None
