"""Tenants in one database: found by an index, and kept apart by the server where that is asked for."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Literal

import milepost
import milepost_postgres
import psycopg
import pytest
from milepost.errors import InvalidConfig, Unavailable
from milepost.flavour import run
from milepost.ledger import Ledger
from milepost.places import MARK
from milepost.saver import Saver
from milepost.testing import at, checkpoint
from milepost.testing.lab import Face, Flavour
from milepost_postgres import PostgresSaver
from milepost_postgres.link import Link
from milepost_postgres.request import Step
from postgres.kit import Place, put

Sql = psycopg.Connection[tuple[Any, ...]]

TABLES = ("thread", "checkpoint", "write", "pack", "call")
NOTHING = [0] * len(TABLES)
THINGS = [f"{number} " * 50 for number in range(3)]
"""Too much to lie in a header."""


@pytest.fixture
def role(place: Place, sql: Sql) -> Iterator[str]:
    """A role that may do what the documentation says that an application's must, in a store with policies."""
    name = f"role_{secrets.token_hex(4)}"
    sql.execute(f"CREATE ROLE {name} LOGIN".encode())
    with place.store(rls=True):
        sql.execute(f"GRANT USAGE ON SCHEMA {place.schema} TO {name}".encode())
        sql.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {place.schema} TO {name}".encode())
    yield name
    sql.execute(f"DROP OWNED BY {name}".encode())
    sql.execute(f"DROP ROLE {name}".encode())


def work(
    place: Place, role: str, flavour: Flavour, tenants: Sequence[str], text: Callable[[Face], Awaitable[None]]
) -> None:
    """Have a saver of each tenant do something."""

    async def whole() -> None:
        for tenant in tenants:
            face = Face(milepost.connect(place.url(user=role, rls=1), tenant=tenant), flavour)
            await text(face)
            await face.close()

    run(whole()) if flavour == "blocking" else asyncio.run(whole())


async def fill(face: Face) -> None:
    """Something in every table, and everything of it read again."""
    await face.put(at("t"), checkpoint("0001", {"x": THINGS}), {"source": "loop"})
    await face.put_writes(at("t", "", "0001"), [("x", "written")])
    await face.put(at("t", "", "0001"), checkpoint("0002", {"x": [*THINGS, "more"]}), {"source": "loop"})
    ledger = Ledger(face.saver)
    scopes: tuple[Literal["thread", "global"], ...] = ("thread", "global")
    for scope in scopes:
        if face.flavour == "blocking":
            assert ledger.once("key", str, 7, thread_id="t", scope=scope) == "7"
        else:
            assert await ledger.aonce("key", str, 7, thread_id="t", scope=scope) == "7"
    async with face.lease("t"):
        await face.put_writes(at("t", "", "0002"), [("x", "under a lease")])
    await face.copy_thread("t", "copy")
    for name in ("t", "copy"):
        assert (await face.got(at(name))).checkpoint["channel_values"] == {"x": [*THINGS, "more"]}
    assert len(await face.list(None)) == 4
    await face.delete_thread("copy")
    await face.prune(["t"])
    assert await face.ids(None) == ["0002"]


def seen(connection: Sql, schema: str) -> list[int]:
    """How many rows of each table somebody sees in plain SQL."""
    counts = (connection.execute(f"SELECT count(*) FROM {schema}.{table}".encode()).fetchall() for table in TABLES)
    return [count for ((count,),) in counts]


def refused(connection: Sql, statement: str) -> bool:
    """Whether the server refuses a statement, or finds no row for it."""
    try:
        with connection.transaction():
            return connection.execute(statement.encode()).rowcount == 0
    except psycopg.errors.InsufficientPrivilege:
        return True


@pytest.mark.parametrize("flavour", ["blocking", "async"])
def test_the_server_keeps_tenants_apart(place: Place, sql: Sql, role: str, flavour: Flavour) -> None:
    """Whatever a role asks for that has no more than the documented grants: of another tenant's rows it finds none."""
    work(place, role, flavour, ("one", "two"), fill)
    s = place.schema
    everything = seen(sql, s)
    assert min(everything) >= 2
    keys: dict[str, int] = dict(sql.execute(f"SELECT id, key FROM {s}.thread WHERE id LIKE '%t'".encode()).fetchall())
    theirs = keys[f"{MARK}two{MARK}t"]
    with psycopg.connect(place.base, user=role, autocommit=True) as connection:
        assert seen(connection, s) == NOTHING
        connection.execute("SET milepost.tenant = 'one'")
        assert [2 * count for count in seen(connection, s)] == everything
        for table in TABLES:
            mine = "id" if table == "thread" else "thread"
            assert not connection.execute(
                f"SELECT FROM {s}.{table} WHERE {mine}::text = '{theirs}'".encode()
            ).fetchall()
        for statement in (
            f"DELETE FROM {s}.thread WHERE key = {theirs}",
            f"UPDATE {s}.thread SET fence = 9 WHERE key = {theirs}",
            f"UPDATE {s}.checkpoint SET header = '' WHERE thread = {theirs}",
            f"UPDATE {s}.checkpoint SET thread = {theirs}",
            f"UPDATE {s}.thread SET id = chr(29) || 'two' || chr(29) || 'stolen'",
            f"INSERT INTO {s}.pack VALUES ({theirs}, 1, 1, 1, '')",
            f"INSERT INTO {s}.call (thread, hash, key) VALUES ({theirs}, '', '')",
            f"INSERT INTO {s}.write SELECT {theirs}, stamp, at, idx, place, slot, ns, checkpoint, task, path, channel, spans, value FROM {s}.write",
            f"INSERT INTO {s}.thread (generation, hash, id) VALUES (1, 'x', chr(29) || 'two' || chr(29) || 'u')",
            f"INSERT INTO {s}.thread (generation, hash, id) VALUES (1, '', chr(29) || 'one' || chr(29) || 'u')",
            f"INSERT INTO {s}.thread (generation, hash, id) VALUES (1, 'x', 'of nobody')",
            f"INSERT INTO {s}.tenant_role VALUES ('{role}', 'two')",
            f"INSERT INTO {s}.step VALUES (99, 'post', 'newer')",
            f"DELETE FROM {s}.step",
        ):
            assert refused(connection, statement), statement
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"SET row_security = off; SELECT FROM {s}.thread".encode())
    assert seen(sql, s) == everything
    assert sql.execute(f"SELECT max(fence) < 9e17, count(*) FROM {s}.thread".encode()).fetchone() == (
        True,
        everything[0],
    )


def test_a_role_that_is_bound_to_a_tenant(place: Place, sql: Sql, role: str) -> None:
    """Whatever it says of itself."""
    work(place, role, "blocking", ("one", "two"), fill)
    sql.execute(f"INSERT INTO {place.schema}.tenant_role VALUES ('{role}', 'one')".encode())
    with psycopg.connect(place.base, user=role, autocommit=True) as connection:
        before = seen(connection, place.schema)
        connection.execute("SET milepost.tenant = 'two'")
        assert seen(connection, place.schema) == before != NOTHING
        ids = connection.execute(f"SELECT DISTINCT split_part(id, chr(29), 2) FROM {place.schema}.thread".encode())
        assert ids.fetchall() == [("one",)]
    with milepost.connect(place.url(user=role, rls=1)) as saver:
        assert [row.thread for row in saver.threads()] == [f"{MARK}one{MARK}t"]
    stranger = milepost.connect(place.url(user=role, rls=1), tenant="two")
    with stranger, pytest.raises(InvalidConfig, match="bound to tenant 'one'"):
        stranger.setup()


def test_no_session_remembers_a_tenant(place: Place, role: str) -> None:
    """Two tenants on one connection, as behind a pooler; and each verb is one round trip still."""

    class Counted:
        shares = True
        trips = 0

        def __init__(self, connection: psycopg.Connection[Any]) -> None:
            self._link = Link(connection)

        def run(self, steps: Sequence[Step], *, fresh: bool = False) -> list[list[tuple[Any, ...]]]:
            Counted.trips += 1
            return self._link.run(steps)

        def close(self) -> None: ...

    with psycopg.connect(place.base, user=role, autocommit=True, prepare_threshold=None) as connection:
        savers = []
        for tenant in ("one", "two"):
            backend = milepost_postgres.open_backend(place.base, schema=place.schema, rls=True)
            backend._source = lambda: Counted(connection)
            savers.append(Saver(backend, tenant=tenant))
            savers[-1].setup()
        for saver in savers:
            saver.put(at("t"), checkpoint("0001", {"x": saver.tenant}), {}, {"x": 1})
        Counted.trips = 0
        for saver in (*savers, *savers):
            found = saver.get_tuple(at("t"))
            assert found is not None
            assert found.checkpoint["channel_values"] == {"x": saver.tenant}
            assert connection.execute("SELECT coalesce(current_setting('milepost.tenant', true), '')").fetchone() == (
                "",
            )
            assert seen(connection, place.schema) == NOTHING
        assert Counted.trips == 4
        savers[0].put(at("t", "", "0001"), checkpoint("0002", {"x": 2}), {}, {"x": 1})
        savers[0].put_writes(at("t", "", "0002"), [("x", 3)], "task")
        assert Counted.trips == 6
        for saver in savers:
            saver.close()


def test_in_a_transaction_of_the_applications(place: Place, role: str) -> None:
    with psycopg.connect(place.base, user=role) as connection:
        for tenant in ("one", "two"):
            saver = PostgresSaver.from_pool(connection, schema=place.schema, rls=True, tenant=tenant)
            saver.put(at("t"), checkpoint("0001", {"x": tenant}), {}, {"x": 1})
            assert [row.thread for row in saver.threads()] == ["t"]
        connection.rollback()
        connection.execute("SET milepost.tenant = 'one'")
        assert seen(connection, place.schema) == NOTHING


def test_who_only_verifies_or_prints(place: Place, sql: Sql) -> None:
    lacking = pytest.raises(Unavailable, match=r"0005_rls_tenants.*print_sql\(rls=True\)")
    with place.store(), lacking, place.store(migrate=False, rls=True):
        pass
    printed = milepost_postgres.print_sql(place.schema, rls=True)
    assert "POLICY" not in milepost_postgres.print_sql(place.schema)
    for _ in range(2):
        sql.execute(printed.encode())
    with place.store(migrate=False, rls=True) as store, place.store(migrate=False) as owner:
        put(store, "t", 1)
        put(owner, "t", 2)
        sql.execute(f"ALTER TABLE {place.schema}.pack DISABLE ROW LEVEL SECURITY".encode())
        with pytest.raises(InvalidConfig, match="turned off for pack"):
            run(store.setup())


def test_who_sees_nothing_is_told(place: Place, role: str, caplog: pytest.LogCaptureFixture) -> None:
    """Rows that are hidden must not be taken for rows that are not there."""
    url = place.url(user=role)
    for options, words in (
        ({}, "connect with rls=true"),
        ({"tenant": "one"}, "connect with rls=true"),
        ({"rls": True}, "without a tenant"),
    ):
        with milepost.connect(url, **options) as saver, pytest.raises(InvalidConfig, match=words):
            saver.get_tuple(at("t"))
    with milepost.connect(place.url(rls=1), tenant="one") as saver, caplog.at_level(logging.WARNING):
        assert saver.get_tuple(at("t")) is None
    assert "owns the tables, or is exempt" in caplog.text


@pytest.mark.parametrize("secured", [False, True])
def test_a_tenants_threads_are_found_by_an_index(place: Place, sql: Sql, role: str, *, secured: bool) -> None:
    """Not among those of others, however many these are: as the planner sees it, and by the rows that were read."""
    with milepost.connect(place.url(user=role, rls=1), tenant="one") as saver:
        saver.put(at("t"), checkpoint("0001", {"x": THINGS}), {}, {"x": 1})
    sql.execute(
        f"INSERT INTO {place.schema}.thread (generation, hash, id) SELECT 1, substring(sha256(convert_to(id, 'UTF8')) FOR 16),"
        f" id FROM (SELECT chr(29) || 'two' || chr(29) || n AS id FROM generate_series(1, 2000) AS n) AS others".encode()
    )
    sql.execute(
        f"INSERT INTO {place.schema}.checkpoint (thread, stamp, at, put_at, place, ns, id, facets, spans, header) SELECT"
        f" key, 1, 1, 1, hash, '', '1', '{{}}', '{{}}', '' FROM {place.schema}.thread WHERE generation = 1".encode()
    )
    queries = place.backend().schema.queries
    prefix = f"{MARK}one{MARK}"
    with psycopg.connect(place.base, user=role if secured else "postgres") as connection:
        connection.execute("SET milepost.tenant = 'one'")
        connection.execute("SET plan_cache_mode = force_generic_plan")
        for query, given in (
            (queries["threads_of_tenant"], {"after": 0, "limit": 64, "prefix": prefix}),
            (queries.page((), "listed_of_tenant"), {"limit": 64, "items": 1, "prefix": prefix}),
        ):
            connection.execute(b"DEALLOCATE ALL")
            connection.execute(b"PREPARE listing AS " + query.text)
            values = ", ".join(f"'{given[name]}'" for name in query.names)
            found = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE listing ({values})".encode()).fetchone()
            assert found is not None
            looked = [*nodes(found[0][0]["Plan"])]
            assert "thread_tenant" in {node.get("Index Name") for node in looked}
            assert max(node["Actual Rows"] for node in looked) <= 5, "others were looked at"


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)
