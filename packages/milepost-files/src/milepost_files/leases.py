"""The lease of a thread in its log: one record that says how it stands, decided by the rules of `milepost.fences`."""

from __future__ import annotations

from collections.abc import Callable

from milepost.fences import Lease, lease_lost

from milepost_files import frames
from milepost_files.frames import Record
from milepost_files.index import Index
from milepost_files.log import Change, Log
from milepost_files.reading import reading
from milepost_files.rewrite import FrameDraft, Read


class ChangeLease(Change):
    """The verbs `acquire`, `renew` and `release`: `rule` makes of the lease, and the time, the lease to be."""

    answer: Lease

    def __init__(self, rule: Callable[[Lease, float], Lease]) -> None:
        self._rule = rule

    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        del read
        self.answer = self._rule(index.lease, now)
        return None if self.answer == index.lease else ([lease_record(self.answer)], [])


def holder(log: Log) -> Lease | None:
    """The verb `holder`."""
    lease = reading(log, lambda index: index.lease, lambda _, found: found)
    return lease if lease is not None and lease.alive(log.now()) else None


def lease_record(lease: Lease) -> Record:
    """The record that says how a lease stands."""
    return [frames.LEASE, *lease]


def refuse_late(thread: str, index: Index, fence: int) -> None:
    """Raise `LeaseLost` when the thread has a greater fence."""
    if index.lease.fence > fence:
        raise lease_lost(thread, fence, index.lease.fence)
