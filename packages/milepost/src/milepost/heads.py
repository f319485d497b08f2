"""The head guard: which checkpoint must be the latest of a thread for a run to go on from its parent."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextvars import ContextVar
from typing import Final

from milepost.places import Place

_STEPS: Final = ("input", "loop")
"""Sources of the checkpoints that a run puts. Others are put on any checkpoint on purpose: updates, forks, and what is
put by hand."""
_MOST: Final = 1024

_asked: ContextVar[tuple[object, Place] | None] = ContextVar("milepost_asked", default=None)
_begins: ContextVar[tuple[object, Place] | None] = ContextVar("milepost_begins", default=None)


class Heads:
    """What the savers of one store know of heads that are not what a run goes on from."""

    def __init__(self) -> None:
        self._damaged: OrderedDict[tuple[str, str], list[str]] = OrderedDict()
        self.renew()

    def renew(self) -> None:
        """In a forked process: who held the lock is not there."""
        self._lock = threading.Lock()

    def asked(self, place: Place) -> None:
        """A checkpoint was asked for: what this code, and what it starts, puts on one that it asked for by its id is a
        fork on purpose, until it asks for the latest one of that namespace: then it goes on from there."""
        before = _asked.get()
        if place.id is not None:
            _asked.set((self, place))
        elif before is not None and before[0] is self and before[1][:2] == place[:2]:
            _asked.set(None)

    def nothing(self, place: Place) -> None:
        """A thread was asked for and is not there: a run that this code starts now is its first."""
        _begins.set((self, place))

    def begun(self, place: Place) -> None:
        """A checkpoint without a parent was put: what this code puts on none again is on purpose."""
        if _begins.get() == (self, place):
            _begins.set(None)

    def passed_over(self, place: Place, id: str) -> None:
        """The latest checkpoint of a thread is damaged, and its run goes on from one before it."""
        with self._lock:
            ids = self._damaged.setdefault((place.thread, place.ns), [])
            if id not in ids:
                ids.append(id)
            while len(self._damaged) > _MOST:
                self._damaged.popitem(last=False)

    def wanted(self, place: Place, source: object) -> tuple[str, ...] | None:
        """The ids one of which must be the thread's latest for a put on `place`; None when it is not guarded.

        Guarded are the steps of runs in the root namespace: those of subgraphs are steps of a root run, too. What has
        no parent is such a step only where the thread was looked for, as a run does first, and not found.
        """
        if place.ns or source not in _STEPS or _asked.get() == (self, place):
            return None
        if place.id is None and _begins.get() != (self, place):
            return None
        own = () if place.id is None else (place.id,)
        return (*own, *self._damaged.get((place.thread, place.ns), ()))
