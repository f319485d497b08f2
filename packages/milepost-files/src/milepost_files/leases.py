"""The lease of a thread in its log: one record that says how it stands, decided by the rules of `milepost.fences`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from milepost.fences import Lease, lease_lost

from milepost_files.index import Index
from milepost_files.log import Change, Log
from milepost_files.reading import reading
from milepost_files.rewrite import FrameDraft, Read, lease_records
from milepost_files.uptime import Uptime

Clock = Callable[[], Uptime | None]


class ChangeLease(Change):
    """The verbs `acquire`, `renew` and `release`: `rule` makes of the lease, and the time, the lease to be."""

    answer: Lease

    def __init__(self, uptime: Clock, rule: Callable[[Lease, float], Lease]) -> None:
        self._uptime = uptime
        self._rule = rule

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        del read
        running = self._uptime()
        held = lease_at(index, now, running)
        self.answer = self._rule(held, now)
        if self.answer == held:
            return None
        ends = running and running._replace(seconds=running.seconds + self.answer.expires - now)
        return lease_records(self.answer, ends), []


_STEP: Final = 1.0
"""Seconds by which a clock that was set differs at least; by less it does between two looks at it."""


def lease_at(index: Index, now: float, running: Uptime | None) -> Lease:
    """The lease as it stands `now`. Who sets the clock of the machine neither ends nor prolongs it."""
    lease, ends = index.lease, index.ends
    if ends is None or running is None or ends.run != running.run:
        return lease
    expires = now + ends.seconds - running.seconds
    return lease if abs(expires - lease.expires) < _STEP else lease._replace(expires=expires)


def holder(log: Log) -> Lease | None:
    """The verb `holder`."""
    settings = log.settings
    now = settings.clock()
    lease = reading(log, lambda index: lease_at(index, now, settings.uptime()), lambda _, found: found)
    return lease if lease is not None and lease.alive(now) else None


def refuse_late(thread: str, index: Index, fence: int) -> None:
    """Raise `LeaseLost` when the thread has a greater fence."""
    if index.lease.fence > fence:
        raise lease_lost(thread, fence, index.lease.fence)
