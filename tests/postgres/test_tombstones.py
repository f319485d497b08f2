"""Tombstones in a database, whose clock no test can set: the time of the deletion is moved instead."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from milepost.errors import ThreadDeleted
from milepost.flavour import run
from milepost.store import TOMBSTONE_LIFE, Store
from postgres.kit import Place, name, put

Sql = psycopg.Connection[tuple[Any, ...]]


def _age(sql: Sql, place: Place, seconds: float) -> None:
    sql.execute(f"UPDATE {place.schema}.thread SET deleted_at = deleted_at - {seconds}".encode())


def _stones(sql: Sql, place: Place) -> list[tuple[Any, ...]]:
    return sql.execute(
        f"SELECT id FROM {place.schema}.thread WHERE tombstone IS NOT NULL ORDER BY id".encode()
    ).fetchall()


def _delete(store: Store, thread: str) -> None:
    put(store, thread, 1)
    run(store.delete_thread(thread))


def test_a_tombstone_counts_for_its_time(place: Place, sql: Sql) -> None:
    with place.store() as store:
        _delete(store, "t")
        _age(sql, place, TOMBSTONE_LIFE - 600)
        with pytest.raises(ThreadDeleted):
            put(store, "t", 2, parent=1)
        _age(sql, place, 600)
        put(store, "t", 2, parent=1)
        loaded = run(store.get("t", "", None))
        assert loaded is not None
        assert loaded.snapshots[0].row.id == name(2)


def test_those_that_are_over_are_taken_away(place: Place, sql: Sql) -> None:
    with place.store() as store:
        for number in range(3):
            _delete(store, f"t{number}")
        _age(sql, place, TOMBSTONE_LIFE)
        _delete(store, "t3")
        assert _stones(sql, place) == [("t3",)]
        with pytest.raises(ThreadDeleted):
            put(store, "t3", 2, parent=1)
