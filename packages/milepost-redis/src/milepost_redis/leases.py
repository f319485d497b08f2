"""The lease verbs: each is one script over the key of a thread's lease."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, Protocol

from milepost.fences import Lease, head_moved, lease_lost

from milepost_redis import wire

LIFE: Final = 7 * 24 * 3600 * 1000
"""Milliseconds that the key of a lease stays after the lease is over."""


class Write(Protocol):
    """How a script that changes a thread is carried out."""

    def __call__(self, op: str, name: str, thread: str, /, *arguments: bytes) -> Awaitable[Any]: ...


async def acquire(write: Write, thread: str, owner: str, ttl: float, over: int | None) -> Lease:
    """The verb `acquire`."""
    arguments = (owner.encode(), b"%r" % ttl, wire.fence(over), b"%d" % LIFE)
    return wire.lease(await write("take a lease", "acquire", thread, *arguments))


async def renew(write: Write, thread: str, owner: str, fence: int, ttl: float) -> Lease:
    """The verb `renew`."""
    lease = wire.lease(await write("renew a lease", "renew", thread, owner.encode(), b"%r" % ttl, b"%d" % LIFE))
    if lease.owner != owner:
        raise lease_lost(thread, fence, lease.fence)
    return lease


async def release(write: Write, thread: str, owner: str, error: str | None) -> None:
    """The verb `release`."""
    arguments = (owner.encode(), b"" if error is None else b"1", (error or "").encode(), b"%d" % LIFE)
    await write("give a lease back", "release", thread, *arguments)


def refuse_late(thread: str, fence: int | None, reply: Any) -> None:
    """Raise `LeaseLost` for a write that carried `fence` when its script found a greater one."""
    if fence is not None and reply[0] == b"late":
        raise lease_lost(thread, fence, int(reply[1]))


def refuse_moved(thread: str, parent: str | None, reply: Any) -> None:
    """Raise `Conflict` for a guarded put whose script found another head."""
    if reply[0] == b"ahead":
        raise head_moved(thread, parent, reply[1].decode())
