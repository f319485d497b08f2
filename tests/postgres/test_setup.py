"""Making the tables: by many at once, in a transaction, by a role without rights, for a schema that is newer."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from typing import Any, TypedDict

import milepost
import milepost_postgres
import psycopg
import pytest
from milepost.errors import FormatTooNew, InvalidConfig, Unavailable
from milepost.flavour import run
from milepost.saver import Saver
from milepost.testing import at, checkpoint
from milepost_postgres import PostgresSaver
from milepost_postgres.queries import Names, Queries
from milepost_postgres.schema import Migration, Schema, migrations
from milepost_postgres.store import PostgresStore
from postgres.kit import Place, forkserver, head, name, put, set_up_and_put

Sql = psycopg.Connection[tuple[Any, ...]]

NEWEST = max(step.number for step in migrations())
PRESENT = [(step.number, step.phase) for step in migrations() if step.phase == "pre" or step.number < NEWEST]
"""What a database of this release has carried out."""


def tables(sql: Sql, schema: str) -> list[str]:
    found = sql.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", [schema])
    return [name for (name,) in found]


def steps(sql: Sql, place: Place) -> list[tuple[Any, ...]]:
    return sql.execute(f"SELECT number, phase, name FROM {place.schema}.step ORDER BY 1, 2 DESC".encode()).fetchall()


def test_ten_processes_at_once(place: Place, sql: Sql) -> None:
    context = forkserver()
    gate = context.Barrier(10)
    pipes = [context.Pipe(duplex=False) for _ in range(10)]
    processes = [
        context.Process(target=set_up_and_put, args=(place, f"t{number}", gate, end))
        for number, (_, end) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for (here, there), process in zip(pipes, processes, strict=True):
        there.close()
        assert here.recv() == "done"
        process.join()
        assert process.exitcode == 0
    assert steps(sql, place) == [(step.number, step.phase, step.name) for step in migrations()]
    with place.store() as store:
        assert [head(store, f"t{number}") for number in range(10)] == [name(1)] * 10


def test_threads_at_once(place: Place, sql: Sql) -> None:
    errors: list[BaseException] = []
    gate = threading.Barrier(6)

    def one() -> None:
        try:
            with place.saver() as saver:
                gate.wait()
                saver.setup()
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(steps(sql, place)) == len(migrations())


def test_the_second_time_nothing_is_written(place: Place, sql: Sql) -> None:
    with place.store() as store:
        before = sql.execute("SELECT pg_current_xact_id()::text::int8").fetchone()
        run(store.setup())
        assert before is not None
        assert sql.execute("SELECT pg_current_xact_id()::text::int8").fetchone() == (before[0] + 1,)


def test_in_a_transaction_that_is_rolled_back(place: Place, sql: Sql) -> None:
    with psycopg.connect(place.base) as connection:
        saver = PostgresSaver.from_pool(connection, schema=place.schema)
        saver.setup()
        saver.put(at("t"), checkpoint("1", {"x": 1}), {}, {"x": 1})
        assert saver.get_tuple(at("t")) is not None
        connection.rollback()
        assert tables(sql, place.schema) == []
        saver.setup()
        saver.put(at("t"), checkpoint("1", {"x": 1}), {}, {"x": 1})
    assert tables(sql, place.schema) == ["call", "checkpoint", "pack", "step", "thread", "write"]
    with place.store() as store:
        assert head(store, "t") == "1"


def test_what_is_printed_makes_the_same_tables(place: Place, sql: Sql) -> None:
    described = """
        SELECT c.relname, c.relkind::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
            a.attstorage::text, a.attcompression::text, collname
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_collation l ON l.oid = a.attcollation
        WHERE c.relnamespace = %s::regnamespace AND a.attnum > 0 ORDER BY 1, a.attnum
    """
    printed = milepost_postgres.print_sql(place.schema)
    sql.execute(printed.encode())
    by_hand = sql.execute(described, [place.schema]).fetchall()
    sql.execute(printed.encode())
    with place.store(migrate=False) as store:
        put(store, "t", 1)
    sql.execute(f"DROP SCHEMA {place.schema} CASCADE".encode())
    with place.store():
        assert sql.execute(described, [place.schema]).fetchall() == by_hand
    assert len(by_hand) > 40


def test_only_verifying(place: Place, sql: Sql) -> None:
    with pytest.raises(Unavailable, match=r"0001_pre_tables.*print_sql"), place.store(migrate=False):
        pass
    assert tables(sql, place.schema) == []
    with place.store(), place.store(migrate=False) as store:
        put(store, "t", 1)


@pytest.fixture
def role(place: Place, sql: Sql) -> Iterator[str]:
    """A role that may do nothing."""
    name = f"role_{secrets.token_hex(4)}"
    sql.execute(f"CREATE ROLE {name} LOGIN".encode())
    yield name
    sql.execute(f"DROP SCHEMA IF EXISTS {place.schema} CASCADE".encode())
    sql.execute(f"DROP OWNED BY {name}".encode())
    sql.execute(f"DROP ROLE {name}".encode())


def test_a_role_that_may_not_make_tables(place: Place, sql: Sql, role: str) -> None:
    with pytest.raises(Unavailable, match="permission denied"), place.store(user=role):
        pass
    with place.store() as store:
        put(store, "t", 1)
    with pytest.raises(Unavailable, match="permission denied") as caught, place.store(user=role):
        pass
    assert caught.value.sqlstate == "42501"
    sql.execute(f"GRANT USAGE ON SCHEMA {place.schema} TO {role}".encode())
    sql.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {place.schema} TO {role}".encode())
    with place.saver(user=role) as saver:
        saver.put(at("t", "", "0001"), checkpoint("0002", {"x": ["y"]}), {}, {"x": 1})
        saver.put_writes(at("t", "", "0002"), [("x", 1)], "task")
        saver.copy_thread("t", "u")
        saver.delete_thread("u")
        assert [row.thread for row in saver.threads()] == ["t"]


def test_tables_that_are_not_there(place: Place) -> None:
    with Saver(place.backend(), setup=False) as saver, pytest.raises(Unavailable, match=r"setup\(\)"):
        saver.get_tuple(at("t"))


def test_tables_that_went_away(place: Place, sql: Sql) -> None:
    with place.saver() as saver:
        saver.put(at("t"), checkpoint("1", {"x": 1}), {}, {"x": 1})
        sql.execute(f"DROP SCHEMA {place.schema} CASCADE".encode())
        with pytest.raises(Unavailable, match=r"setup\(\)"):
            saver.get_tuple(at("t"))
        saver.setup()
        assert saver.get_tuple(at("t")) is None


def test_a_newer_schema_is_refused(place: Place, sql: Sql) -> None:
    later = NEWEST + 1
    with place.store():
        sql.execute(f"INSERT INTO {place.schema}.step VALUES ({later}, 'pre', 'later')".encode())
    # After "pre" alone, this release goes on working.
    with place.store() as store:
        put(store, "t", 1)
        sql.execute(f"INSERT INTO {place.schema}.step VALUES ({later}, 'post', 'later')".encode())
        with pytest.raises(FormatTooNew) as caught:
            run(store.setup())
    assert (caught.value.found, caught.value.supported) == (later, NEWEST)


LATER = (
    *migrations(),
    Migration(NEWEST + 1, "pre", "colour", "ALTER TABLE {thread} ADD COLUMN colour text"),
    Migration(NEWEST + 1, "post", "no_colour", "ALTER TABLE {thread} ALTER COLUMN colour SET NOT NULL"),
)
LATEST = (*LATER, Migration(NEWEST + 2, "pre", "size", "ALTER TABLE {thread} ADD COLUMN size integer"))


def upgraded(place: Place, steps: tuple[Migration, ...]) -> None:
    """Set up as a release with these steps would."""
    backend = place.backend()
    schema = Schema(Queries(Names(place.schema)), steps=steps)
    try:
        run(PostgresStore(schema, backend.blocking_port(), backend.close).setup())
    finally:
        backend.close()


def test_the_previous_release_works_until_the_next_but_one(place: Place, sql: Sql) -> None:
    with place.store() as previous:
        put(previous, "t", 1)
        upgraded(place, LATER)
        put(previous, "t", 2, parent=1)
        run(previous.setup())
        assert [step[:2] for step in steps(sql, place)] == [*PRESENT, (NEWEST + 1, "pre")]
        sql.execute(f"UPDATE {place.schema}.thread SET colour = ''".encode())
        upgraded(place, LATEST)
        later = [(NEWEST + 1, "pre"), (NEWEST + 1, "post"), (NEWEST + 2, "pre")]
        assert [step[:2] for step in steps(sql, place)] == [*PRESENT, *later]
        with pytest.raises(FormatTooNew):
            run(previous.setup())


def test_a_step_that_fails_leaves_nothing(place: Place, sql: Sql) -> None:
    with place.store():
        pass
    broken = (
        *migrations(),
        Migration(NEWEST + 1, "pre", "broken", "ALTER TABLE {thread} ADD COLUMN a int; SELECT 1 / 0"),
    )
    with pytest.raises(Unavailable, match="division by zero"):
        upgraded(place, broken)
    assert len(steps(sql, place)) == len(PRESENT)
    with place.store() as store:
        put(store, "t", 1)


def test_a_database_of_another_encoding(place: Place, sql: Sql) -> None:
    database = f"latin_{secrets.token_hex(4)}"
    sql.execute(f"CREATE DATABASE {database} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'".encode())
    try:
        with pytest.raises(InvalidConfig, match="LATIN1") as caught, place.store(dbname=database):
            pass
        assert caught.value.what == "server_encoding"
    finally:
        sql.execute(f"DROP DATABASE {database} WITH (FORCE)".encode())


def test_two_schemas_and_two_prefixes(place: Place, sql: Sql) -> None:
    """Whatever the search path says: every name is qualified."""
    other = f"{place.schema}_other"
    try:
        with (
            place.store() as one,
            place.store(schema=other, options=f"-csearch_path={place.schema}") as two,
            place.store(prefix="p_", options=f"-csearch_path={other}") as three,
            place.store(prefix="odd \" ü'_") as four,
        ):
            stores = (one, two, three, four)
            for number, store in enumerate(stores):
                put(store, "t", number)
            assert [head(store, "t") for store in stores] == [f"{number:04}" for number in range(4)]
            run(two.delete_thread("t"))
            assert [head(store, "t") for store in stores] == ["0000", None, "0002", "0003"]
    finally:
        sql.execute(f"DROP SCHEMA IF EXISTS {other} CASCADE".encode())


@pytest.mark.parametrize(
    "options",
    [
        {"schema": ""},
        {"schema": "x" * 64},
        {"schema": "a{b}"},
        {"prefix": "$step$"},
        {"prefix": "x" * 41},
        {"pool": 0},
        {"pool": True},
        {"prepare": "sometimes"},
        {"no_such_parameter": "1"},
    ],
)
def test_options_that_are_not_usable(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        milepost_postgres.open_backend("postgresql://localhost/x", **options)


@pytest.mark.parametrize("url", ["postgresql://[bad", "postgresql://h?schema=a&schema=b"])
def test_urls_that_are_not_usable(url: str) -> None:
    with pytest.raises(InvalidConfig):
        milepost.connect(url)


class State(TypedDict):
    count: int


def test_tables_and_the_state_have_schemas_of_their_own(place: Place) -> None:
    """Text is where the tables are, a `milepost.Schema` is what the graph's state looks like."""
    state = milepost.Schema(State, version=2, name="counter")
    for saver in (
        milepost.connect(place.url(), schema=state),
        milepost.connect({"url": place.base, "schema": place.schema}),
    ):
        with saver:
            assert saver.schemas is None or saver.schemas.of("") is state
            assert isinstance(saver.backend, milepost_postgres.PostgresBackend)
    with pytest.raises(InvalidConfig, match="unknown option 'schema'"):
        milepost.connect("memory:", schema="agents")
