"""Keys in SQL say what `milepost.store` says in Python, for whatever ids there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from milepost.flavour import run
from milepost.store import MAX_ID, CheckpointRow, Query, Store, sort_key
from milepost_postgres import wire
from milepost_postgres.queries import Names, Queries, fill
from postgres.kit import Place, name, put, row

TAIL = "\x01"
IDS = st.text(
    st.sampled_from(["a", "b", "B", "é", "\uffff", "\U0001f600", "%", "'", "\\", TAIL]), min_size=1, max_size=4
)


@pytest.fixture(scope="module")
def sorter() -> Iterator[Any]:
    """`sort_key`, carried out by the server."""
    import subjects
    from milepost.testing import servers

    text = Queries(Names("nowhere")).part("sort_key")
    statement = f'SELECT {text} FROM (SELECT %(above)s::text COLLATE "C" AS key) AS above'
    with psycopg.connect(subjects.required(servers.postgres_url), autocommit=True) as connection:

        def key(id: str, above: str | None) -> str:
            (found,) = connection.execute(statement.encode(), {"id": id, "above": above}).fetchone() or (None,)
            return id if found is None else found

        yield key


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(id=IDS, above=st.none() | IDS | st.tuples(IDS, IDS).map(TAIL.join) | st.tuples(IDS, IDS, IDS).map(TAIL.join))
def test_sort_keys(sorter: Any, id: str, above: str | None) -> None:
    assert sorter(id, above) == sort_key(id, above)


def test_a_lineage_of_clocks_that_are_behind(place: Place) -> None:
    with place.store() as store:
        keys: dict[str, str] = {}
        order = ["m", "b", "c", "a", "z", "y", "x"]
        for above, id in zip([None, *order], order, strict=False):
            run(store.put("t", CheckpointRow("", id, above, b"h"), (), None))
            keys[id] = sort_key(id, None if above is None else keys[above])
        listed = run(store.page(Query(thread="t"), None, 20)).snapshots
        assert [(found.row.id, found.row.key) for found in listed] == [(id, keys[id]) for id in reversed(order)]


@pytest.mark.parametrize("length", [200, 201, MAX_ID])
def test_long_keys_keep_their_order(place: Place, length: int) -> None:
    long = "é" * (length - 1)
    with place.store() as store:
        for last in "bacd":
            run(store.put(long, CheckpointRow(long, long + last, None, b"h"), (), None))
            run(store.put(long, CheckpointRow(long[1:], long + last, None, b"h"), (), None))
        latest = run(store.get(long, long, None))
        assert latest is not None
        assert latest.snapshots[0].row.id == long + "d"
        found = [found.row.id[-1] for found in run(store.page(Query(thread=long, ns=long), None, 10)).snapshots]
        assert found == ["d", "c", "b", "a"]
        assert sum(1 for _ in run(store.threads(None, 10)).rows) == 1


def test_an_order_that_is_not_the_locales(place: Place) -> None:
    ids = ["A", "B", "a", "b", "É", "é", "\uffff", "\U0001f600"]
    with place.store() as store:
        for id in reversed(ids):
            run(store.put("t", CheckpointRow("", id, None, b"h"), (), None))
        found = [found.row.id for found in run(store.page(Query(thread="t"), None, 10)).snapshots]
        assert found[::-1] == ids


def test_pages_of_equal_beginnings(place: Place) -> None:
    """Rows whose keys differ only behind what the index has are not lost between two pages."""
    with place.store() as store:
        ids = ["x" * 300 + name(number) for number in range(9)]
        for id in ids:
            for thread in ("a", "b"):
                run(store.put(thread, CheckpointRow("", id, None, b"h"), (), None))
        found: list[tuple[str, str]] = []
        after: tuple[str, ...] | None = None
        while True:
            page = run(store.page(Query(), after, 4))
            found += [(snapshot.row.id, snapshot.thread) for snapshot in page.snapshots]
            if (after := page.cursor) is None:
                break
        assert found == [(id, thread) for id in reversed(ids) for thread in ("b", "a")]


def test_places_are_those_of_the_server(place: Place, sql: psycopg.Connection[tuple[Any, ...]]) -> None:
    with place.store() as store:
        put(store, "t", 1, ns="a'%\\ü")
        query = (
            "SELECT place, substring(sha256(sha256(convert_to(ns, 'UTF8')) || convert_to(id, 'UTF8')) FOR 16) "
            f"FROM {place.schema}.checkpoint"
        )
        where = sql.execute(query.encode()).fetchone()
    assert where == (wire.place("a'%\\ü", name(1)),) * 2


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    stored=st.sampled_from(
        [True, False, 0, 1, 1.0, -0.0, 2**53, float(2**53), "1", "", "é'\\%", "\ud800", 1e300, 2**70]
    ),
    sought=st.sampled_from([True, False, 0, 1, 1.0, -0.0, 2**53, float(2**53), "1", "", "é'\\%", 1e300]),
)
def test_facets_never_hide_what_is_equal(facets: Store, stored: Any, sought: Any) -> None:
    made, packs = row(1, facets={"k": stored, "x') OR 1=1 --": 1})
    run(facets.put("t", made, packs, None))
    found = run(facets.page(Query(thread="t", facets={"k": sought}), None, 5)).snapshots
    if stored == sought:
        assert found
    elif type(stored) is type(sought) is str and stored != "\ud800":
        assert not found
    assert run(facets.page(Query(thread="t", facets={"x') OR 1=1 --": 1.0, "missing": 2}), None, 5)).snapshots
    assert not run(facets.page(Query(thread="t", facets={"x') OR 1=1 --": 2}), None, 5)).snapshots


@pytest.fixture
def facets(place: Place) -> Iterator[Store]:
    with place.store() as store:
        yield store


def test_every_name_in_the_statements_is_filled_in() -> None:
    queries = Queries(Names('odd "schema"', "pre_"))
    assert '"odd ""schema"""."pre_thread"' in queries["put"].text.decode()
    with pytest.raises(KeyError):
        fill("{nothing}", {})
