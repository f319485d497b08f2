"""The head guard: which checkpoint must be the latest of a thread for a run to go on from its parent."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextvars import ContextVar
from typing import Final

from milepost.places import Place
from milepost.runs import Run

_STEPS: Final = ("input", "loop")
"""Sources of the checkpoints that a run puts. Others are put on any checkpoint on purpose: updates, forks, and what is
put by hand."""
FORK: Final = "fork"
"""The source of what is put on a checkpoint on purpose, whatever its metadata says."""
_MOST: Final = 1024

_begins: ContextVar[tuple[object, Place] | None] = ContextVar("milepost_begins", default=None)


class Named(str):
    """The id of a checkpoint that was asked for by it, in the config that is answered.

    LangGraph puts a run's first checkpoint on the config that it was given: whoever puts on one of these goes on from
    that checkpoint on purpose. A copy is a string as any other.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


class Heads:
    """What the savers of one store know of heads that are not what a run goes on from."""

    def __init__(self) -> None:
        self._damaged: OrderedDict[tuple[str, str], list[str]] = OrderedDict()
        self.renew()

    def renew(self) -> None:
        """In a forked process: who held the lock is not there."""
        self._lock = threading.Lock()

    def nothing(self, place: Place, run: Run | None) -> None:
        """A thread was asked for and is not there: `run` is its first, or else one that this code starts now."""
        if run is not None:
            run.first = True
        else:
            _begins.set((self, place))

    def begun(self, place: Place, run: Run | None) -> None:
        """A checkpoint without a parent was put: what the same run, or this code, puts on none again is on purpose."""
        if run is not None:
            run.first = False
        elif _begins.get() == (self, place):
            _begins.set(None)

    def passed_over(self, place: Place, id: str) -> None:
        """The latest checkpoint of a thread is damaged, and its run goes on from one before it."""
        with self._lock:
            ids = self._damaged.setdefault((place.thread, place.ns), [])
            if id not in ids:
                ids.append(id)
            while len(self._damaged) > _MOST:
                self._damaged.popitem(last=False)

    def wanted(self, place: Place, source: object, run: Run | None) -> tuple[str, ...] | None:
        """The ids one of which must be the thread's latest for a put on `place`; None when it is not guarded.

        Guarded are the steps of runs in the root namespace: those of subgraphs are steps of a root run, too. What has
        no parent is such a step only where the thread was looked for, as a run does first, and not found.
        """
        if place.ns:
            return None
        if place.id is None:
            first = _begins.get() == (self, place) if run is None else run.first
            # A run that is stored at its end alone puts a checkpoint without a source first, where it has delta channels.
            step = source in _STEPS or (source is None and run is not None)
            return self._passed_over(place) if first and step else None
        return (place.id, *self._passed_over(place)) if source in _STEPS else None

    def _passed_over(self, place: Place) -> tuple[str, ...]:
        return tuple(self._damaged.get((place.thread, place.ns), ()))
