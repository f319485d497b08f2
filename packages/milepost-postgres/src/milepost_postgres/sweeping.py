"""What is left of threads, as requests and answers: the verb `strays`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from milepost.places import ATTACHMENTS
from milepost.strays import Stray, StrayPage

from milepost_postgres import wire
from milepost_postgres.queries import Queries
from milepost_postgres.request import Parameters, Request, Step

Rows = Sequence[tuple[Any, ...]]
"""(key, thread, bytes, whether packs or attachments are alone, whether nothing of the thread counts)."""


def looking(queries: Queries, after: tuple[str, ...] | None, limit: int, prefix: str) -> Step:
    """Asks for the next threads by key."""
    given: Parameters = {
        "after": wire.int8(int(after[0]) if after else 0),
        "limit": wire.int8(limit),
        "prefix": wire.text(prefix),
        "attachments": wire.text(ATTACHMENTS),
    }
    return queries[wire.among("strays", prefix) if prefix else "strays"].step(given)


def void(rows: Rows) -> Collection[int]:
    """The keys of threads of which nothing counts."""
    return frozenset(key for key, *_, over in rows if over)


def removing(queries: Queries, keys: Collection[int]) -> Request:
    """Removes these rows. What was committed before a row was locked is seen by the second statement, and keeps it."""
    given: Parameters = {"keys": wire.int8s(sorted(keys))}
    return Request("remove leftovers", tuple(queries[name].step(given) for name in ("strays_lock", "strays_gone")))


def page(rows: Rows, gone: Collection[int], limit: int) -> StrayPage:
    """What was found, with the rows `gone`."""
    found = tuple(
        Stray("thread" if alone else "row", thread, "", size)
        for key, thread, size, alone, _ in rows
        if alone or key in gone
    )
    return StrayPage(found, (str(rows[-1][0]),) if len(rows) >= limit else None)
