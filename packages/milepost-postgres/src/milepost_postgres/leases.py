"""The requests of the lease verbs, and what their answers say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from milepost.fences import NOBODY, Lease, lease_lost

from milepost_postgres import wire
from milepost_postgres.queries import Queries
from milepost_postgres.request import Parameters, Request

Answers = Sequence[Sequence[tuple[Any, ...]]]


def acquire(queries: Queries, thread: str, owner: str, ttl: float, over: int | None, fresh: bytes) -> Request:
    """For `acquire`. Nobody may be writing under the fence before when a new one is given out: writers are kept out."""
    parameters: Parameters = {
        "thread": wire.digest(thread),
        "thread_id": wire.text(thread),
        "fresh": fresh,
        "owner": wire.text(owner),
        "ttl": wire.float8(ttl),
        "over": wire.int8(over),
    }
    return Request("take a lease", tuple(queries[name].step(parameters) for name in ("lock", "acquire", "lease")))


def renew(queries: Queries, thread: str, owner: str, ttl: float) -> Request:
    """For `renew`."""
    parameters: Parameters = {"thread": wire.digest(thread), "owner": wire.text(owner), "ttl": wire.float8(ttl)}
    return Request("renew a lease", tuple(queries[name].step(parameters) for name in ("renew", "lease")))


def release(queries: Queries, thread: str, owner: str, error: str | None) -> Request:
    """For `release`."""
    parameters: Parameters = {"thread": wire.digest(thread), "owner": wire.text(owner), "error": wire.text(error)}
    return Request("give a lease back", (queries["release"].step(parameters),))


def told(answers: Answers) -> Lease:
    """The lease that the last statement of a request found."""
    return Lease(*answers[-1][0]) if answers[-1] else NOBODY


def told_renewed(thread: str, fence: int, answers: Answers) -> Lease:
    """The same after `renew`. Raises `LeaseLost`."""
    lease = told(answers)
    if not answers[0]:
        raise lease_lost(thread, fence, lease.fence)
    return lease


def refuse_late(thread: str, fence: int | None, found: int | None) -> None:
    """Raise `LeaseLost` for a write that carried `fence` when a statement found a greater one."""
    if fence is not None and found is not None:
        raise lease_lost(thread, fence, found)
