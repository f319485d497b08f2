"""The runs of this process, and which of them the thread was deleted under.

What a run writes when its thread is gone must not bring any of it back, also where nothing says so: LangGraph, with
durability "async", runs ahead of its puts, and once one of them was refused does not make the next ones. Their ids are
then known from pending writes, checkpoints of subgraphs and calls alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from langchain_core.runnables.config import var_child_runnable_config

from milepost.fences import thread_deleted
from milepost.places import Place

_RUNTIME: Final = "__pregel_runtime"
"""LangGraph hands an object with each config whose `control` is the same for all that a run does, in subgraphs and tools too.
Private: without it, what a run puts after its thread was deleted is refused by the ids that tombstones have."""
_TASK: Final = "__pregel_task_id"
"""Is in the configs of what a task runs."""
_MOST: Final = 1024
_KNOWN: Final = 64

Spot = tuple[str, str]
"""(ns, checkpoint id)."""


class Run:
    """What this process knows of a run."""

    def __init__(self, thread: str, mark: object) -> None:
        self.thread = thread
        self.mark = mark
        """What it is known by. Kept, so that no other object has its address."""
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


class Runs:
    """The runs that use the savers of one store, by what LangGraph hands on in them."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """In a forked process: who held the lock is not there."""
        self._lock = threading.Lock()
        self._runs: OrderedDict[tuple[str, int], Run] = OrderedDict()

    def reads(self, place: Place, inner: Mapping[str, Any]) -> Run | None:
        """A checkpoint is asked for; by a run that begins, if LangGraph says so."""
        mark = _mark(inner)
        if mark is None or place.ns or _TASK in inner:
            return None
        run = Run(place.thread, mark)
        key = place.thread, id(mark)
        with self._lock:
            # One `RunControl` may be given to several runs.
            self._runs[key] = run
            self._runs.move_to_end(key)
            if len(self._runs) > _MOST:
                self._runs.popitem(last=False)
        return run

    def of(self, place: Place, inner: Mapping[str, Any]) -> Run | None:
        """The run that puts something at `place`, if it is known. None for what no run does, such as an update."""
        mark = _mark(inner)
        return None if mark is None else self._runs.get((place.thread, id(mark)))

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
        """The run of `thread` that the task belongs to in which this is called."""
        inner: Mapping[str, Any] = (var_child_runnable_config.get() or {}).get("configurable") or {}
        mark = _mark(inner)
        return None if mark is None else self._runs.get((thread, id(mark)))


def _mark(inner: Mapping[str, Any]) -> object:
    """What is the same in all configs of a run, and in no other's; None outside of runs."""
    runtime = inner.get(_RUNTIME)
    return getattr(runtime, "control", None) or runtime
