"""What a deletion leaves in a store goes as well, when it counts no more: a few logs at a time, by who deletes."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from milepost.errors import MilepostError
from milepost.store import TOMBSTONE_LIFE

from milepost_files.index import Index
from milepost_files.root import Root

_SAMPLE: Final = 8
"""Logs looked at for each deletion: where more than one of so many is due, they become fewer."""
_LARGEST: Final = 1 << 16
"""Bytes. A log that holds a tombstone alone is smaller."""


def forget(root: Root, thread: str) -> None:
    """Remove some logs that hold nothing, or nothing but a tombstone that is over, of those that lie beside the thread's.

    What goes wrong is for another time: nobody relies on it.
    """
    with suppress(OSError, EOFError, MilepostError):
        for name in root.sample(thread, _SAMPLE, _LARGEST):
            with suppress(OSError, EOFError, MilepostError):
                root.anew(name).remove(over)


def over(index: Index, now: float) -> bool:
    """Whether nothing in a log counts any more, or nothing ever came to it. Fences are made of the time, so the next one is greater if the last one
    was of the past; whoever had that is as late as a write that a tombstone would refuse."""
    if not index.bare or index.damage or index.calls.spots:
        return False
    lease = index.lease
    leased = lease.fence >= int(now * 1e6) or now - max(lease.since, lease.expires) < TOMBSTONE_LIFE
    buried = index.tombstone is not None and not index.tombstone.over(now)
    return not buried and not (lease.fence and leased)
