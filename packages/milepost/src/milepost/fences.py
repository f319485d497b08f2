"""Who may write to a thread: leases as a store keeps them, with the fence that tells an owner from those before him; and
the errors of writes that come too late.

Stores that decide in Python use these functions; the others say the same in their own language.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from milepost.errors import Conflict, LeaseLost, ThreadDeleted

FILLING: Final = "milepost:filling:"
"""How the names begin of those who hold a lease to fill a thread: see `milepost.filling`."""


class Lease(NamedTuple):
    """The lease of a thread. Times are seconds since the epoch by the store's clock."""

    owner: str
    """Who holds it, a name of one acquisition alone; "" when it was given back."""
    fence: int
    """Of each new owner greater than of any before; 0 when there was none."""
    since: float
    """When the owner took it, or gave it back."""
    expires: float
    """When it is over unless it is renewed."""
    tries: int = 0
    """How many owners in a row crashed or failed: each let it expire, or released it with an error."""
    error: str = ""
    """What the last one of them said, if he said anything."""

    @property
    def filling(self) -> bool:
        """Whether who holds it fills the thread with what comes from elsewhere, or who held it last did, and did not come
        to the end."""
        return (self.owner or self.error).startswith(FILLING)

    def alive(self, now: float) -> bool:
        """Whether the owner holds it at this time of the store's clock."""
        return bool(self.owner) and now < self.expires


NOBODY = Lease("", 0, 0.0, 0.0)
"""The lease of a thread that had none."""


def next_fence(last: int, now: float) -> int:
    """The fence after `last`: the store's clock in microseconds, or the next number where that is not greater.

    So it does not go back even where all that a store knew of a thread is gone.
    """
    return max(last + 1, int(now * 1e6))


def acquired(held: Lease, owner: str, ttl: float, over: int | None, now: float) -> Lease:
    """The lease after `milepost.store.Store.acquire`: that of `owner`, or `held` as it is."""
    if held.owner == owner:
        return held._replace(expires=now + ttl)
    if held.alive(now) and held.fence != over:
        return held
    crashed = bool(held.owner) and not held.alive(now)
    return Lease(owner, next_fence(held.fence, now), now, now + ttl, held.tries + crashed, held.error)


def renewed(thread: str, held: Lease, owner: str, fence: int, ttl: float, now: float) -> Lease:
    """The lease after `milepost.store.Store.renew`. Raises `LeaseLost`."""
    if held.owner != owner:
        raise lease_lost(thread, fence, held.fence)
    return held._replace(expires=now + ttl)


def released(held: Lease, owner: str, error: str | None, now: float) -> Lease:
    """The lease after `milepost.store.Store.release`: given back, or `held` as it is."""
    if held.owner != owner:
        return held
    tries = 0 if error is None else held.tries + 1
    return Lease("", held.fence, now, now, tries, error or "")


def lease_lost(thread: str, fence: int, found: int) -> LeaseLost:
    """The error for an owner with `fence` whose thread has the fence `found` now."""
    what = f"its fence is {found} now" if found > fence else "the lease was given back or is not known any more"
    return LeaseLost(
        f"the lease of thread {thread!r} with fence {fence} is lost: {what}. Nothing was written. Stop this run; to go "
        "on, take the lease anew and start from the thread's latest checkpoint.",
        thread=thread,
        fence=fence,
        found=found,
    )


def thread_deleted(thread: str, what: str, former: str) -> ThreadDeleted:
    """The error for `what`, which is, or descends from, a checkpoint that the thread had before it was deleted."""
    return ThreadDeleted(
        f"thread {thread!r} was deleted, and its checkpoint {former!r} with it: {what} is of that past, and was not "
        "stored. Start a new run on the thread without a checkpoint id.",
        thread=thread,
        checkpoint=former,
    )


def head_moved(thread: str, parent: str | None, found: str) -> Conflict:
    """The error for a guarded put on `parent` where the thread's latest checkpoint is `found`."""
    return Conflict(
        f"thread {thread!r} has moved on: its latest checkpoint is {found!r}, and this run goes on from {parent!r}. "
        "Another run, or an update, came in between; nothing was written. Run again from the latest checkpoint, and "
        "have runs take the thread's lease.",
        thread=thread,
        expected=parent,
        found=found,
    )


def refuse_moved(thread: str, parent: str | None, heads: Sequence[str], found: str | None) -> None:
    """Raise `Conflict` when the latest checkpoint, if there is one, is none of `heads`."""
    if found is not None and found not in heads:
        raise head_moved(thread, parent, found)
