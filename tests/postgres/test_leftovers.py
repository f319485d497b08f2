"""Rows of threads of which nothing counts any more, and the writers that come to use one at that moment."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from milepost.flavour import run
from milepost.store import TOMBSTONE_LIFE, Store
from milepost.strays import Stray
from postgres.kit import Place, blocked, put
from waiting import until

Sql = psycopg.Connection[tuple[Any, ...]]


def _age(sql: Sql, place: Place, seconds: float) -> None:
    columns = ("deleted_at", "since", "expires")
    changes = ", ".join(f"{column} = {column} - {seconds}" for column in columns)
    sql.execute(f"UPDATE {place.schema}.thread SET {changes}, fence = fence / 2".encode())


def _rows(sql: Sql, place: Place) -> list[str]:
    return [id for (id,) in sql.execute(f"SELECT id FROM {place.schema}.thread ORDER BY id".encode()).fetchall()]


def _strays(store: Store, *, remove: bool = True) -> list[Stray]:
    return list(run(store.strays(None, 100, remove=remove)).found)


def test_rows_of_which_nothing_counts(place: Place, sql: Sql) -> None:
    with place.store() as store:
        for thread in ("deleted", "leased", "lives"):
            put(store, thread, 1)
        run(store.acquire("leased", "me", 60.0))
        for thread in ("deleted", "leased"):
            run(store.delete_thread(thread))
        assert _strays(store) == []
        _age(sql, place, TOMBSTONE_LIFE)
        run(store.renew("leased", "me", 0, 60.0))
        assert _strays(store, remove=False) == _strays(store) == [Stray("row", "deleted", "", 0)]
        assert _rows(sql, place) == ["leased", "lives"]
        _age(sql, place, TOMBSTONE_LIFE + 60)
        assert _strays(store) == [Stray("row", "leased", "", 0)]
        put(store, "deleted", 2, parent=1)
        assert run(store.acquire("leased", "another", 60.0)).owner == "another"
        assert _strays(store) == []


def test_a_row_that_somebody_comes_to_use(place: Place, sql: Sql) -> None:
    """A pack is stored, and committed while the sweep, which has seen nothing of it, waits for the row."""
    with place.store() as store, ThreadPoolExecutor(1) as pool:
        put(store, "t", 1)
        run(store.delete_thread("t"))
        _age(sql, place, TOMBSTONE_LIFE)
        with psycopg.connect(place.base) as writer:
            writer.execute(
                f"INSERT INTO {place.schema}.pack SELECT key, 7, 1, 1, 'an item' FROM {place.schema}.thread".encode()
            )
            swept = pool.submit(_strays, store)
            until(lambda: blocked(sql) > 0)
            writer.commit()
        assert swept.result() == []
        assert _rows(sql, place) == ["t"]
        assert _strays(store) == [Stray("thread", "t", "", 7)]
