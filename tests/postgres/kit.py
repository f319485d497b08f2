"""Small states in a Postgres store, and who else is connected to it."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver as server
from multiprocessing.context import ForkServerContext
from typing import Any

import milepost_postgres
import psycopg
import pytest
from milepost.flavour import run
from milepost.saver import Saver
from milepost.store import CheckpointRow, Pack, Put, Span, Store, WriteRow
from milepost.testing import servers
from milepost_postgres import PostgresBackend
from waiting import until

NAME = "milepost-test"
"""What the store's connections are called on the server."""


@dataclass(frozen=True)
class Place:
    """A schema of a server."""

    base: str
    schema: str

    def url(self, **options: Any) -> str:
        """For `milepost.connect`."""
        return servers.with_options(self.base, schema=self.schema, application_name=NAME, **options)

    def backend(self, **options: Any) -> PostgresBackend:
        given: dict[str, Any] = {"schema": self.schema, "application_name": NAME, **options}
        return milepost_postgres.open_backend(self.base, **given)

    @contextmanager
    def store(self, **options: Any) -> Generator[Store]:
        """A blocking store that is set up."""
        backend = self.backend(**options)
        try:
            store = backend.blocking()
            run(store.setup())
            yield store
        finally:
            backend.close()

    @contextmanager
    def saver(self, **options: Any) -> Generator[Saver]:
        with Saver(self.backend(**options)) as saver:
            yield saver


def name(number: int) -> str:
    return f"{number:04}"


def row(number: int, *, parent: int | None = None, ns: str = "", **more: Any) -> tuple[CheckpointRow, tuple[Pack, ...]]:
    """A checkpoint with one item of its own, and the pack that the item lies in."""
    span = Span(7, number, 1)
    above = None if parent is None else name(parent)
    made = CheckpointRow(ns, name(number), above, f"header {number}".encode(), (span,), **more)
    return made, (Pack(*span, f"item {number}".encode()),)


def write(idx: int = 0, value: bytes = b"v", task: str = "task", channel: str = "c") -> WriteRow:
    return WriteRow(task, idx, "path", channel, value)


def put(store: Store, thread: str, number: int, **more: Any) -> Put:
    return run(store.put(thread, *row(number, **more), None))


def head(store: Store, thread: str, ns: str = "") -> str | None:
    """The id of the latest checkpoint. What it refers to must be there."""
    loaded = run(store.get(thread, ns, None))
    if loaded is None:
        return None
    found = loaded.snapshots[0].row
    assert [Span(*pack[:3]) for pack in loaded.packs[thread]] == list(found.spans)
    return found.id


def sessions(sql: psycopg.Connection[tuple[Any, ...]], name: str = NAME) -> list[int]:
    """The server's processes that work for stores of tests."""
    found = sql.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY pid", [name])
    return [pid for (pid,) in found]


def terminate(sql: psycopg.Connection[tuple[Any, ...]], name: str = NAME) -> int:
    """End them; how many there were."""
    ended = sessions(sql, name)
    # Told to wait itself, the server would look only every 100 ms whether they are gone.
    sql.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [ended])
    until(lambda: not {*ended} & {*sessions(sql, name)})
    return len(ended)


def blocked(sql: psycopg.Connection[tuple[Any, ...]]) -> int:
    """How many of our statements wait for a lock."""
    found = sql.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'", [NAME]
    ).fetchone()
    assert found is not None
    return int(found[0])


def holding(place: Place, thread: str) -> psycopg.Connection[Any]:
    """Another transaction that holds the row of `thread`."""
    other = psycopg.connect(place.base)
    other.execute(f"SELECT FROM {place.schema}.thread WHERE id = %s FOR UPDATE".encode(), [thread])
    return other


@functools.cache
def forkserver() -> ForkServerContext:
    """Makes processes that can import this folder."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", "postgres.kit"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        server.ensure_running()
    return context


def set_up_and_put(place: Place, thread: str, gate: Any, done: Any) -> None:
    """In another process: make the tables together with others, and use them."""
    gate.wait()
    with place.store() as store:
        put(store, thread, 1)
    done.send("done")
