"""Pools and connections that belong to the application, and transactions of its own."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from langchain_core.messages import HumanMessage
from milepost.errors import InvalidConfig, ThreadDeleted, Unavailable
from milepost.testing import at, checkpoint
from milepost_postgres import PostgresSaver
from postgres.kit import NAME, Place, blocked, holding, name, sessions, terminate
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from waiting import until

Sql = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def table(place: Place, sql: Sql) -> str:
    """A table of the application's, in the same database."""
    with place.store():
        pass
    sql.execute(f"CREATE TABLE {place.schema}.conversation (id text PRIMARY KEY)".encode())
    sql.execute(f"INSERT INTO {place.schema}.conversation VALUES ('t')".encode())
    return f"{place.schema}.conversation"


def count(sql: Sql, table: str) -> int:
    found = sql.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
    assert found is not None
    return int(found[0])


def run_through(saver: PostgresSaver) -> None:
    for number in range(1, 4):
        config = at("t", "", name(number - 1) if number > 1 else None)
        messages = [f"message {each} " * 20 for each in range(number)]
        saver.put(config, checkpoint(name(number), {"m": messages}), {"step": number}, {"m": number})
        saver.put_writes(at("t", "", name(number)), [("m", number)], "task")
    found = saver.get_tuple(at("t"))
    assert found is not None
    assert len(found.checkpoint["channel_values"]["m"]) == 3
    assert found.pending_writes == [("task", "m", 3)]
    assert len(list(saver.list(at("t")))) == 3


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"autocommit": True},
        {"row_factory": dict_row},
        {"prepare_threshold": None},
        {"prepare_threshold": 0, "autocommit": True},
    ],
)
def test_a_pool_of_any_kind(place: Place, how: dict[str, Any]) -> None:
    with ConnectionPool(place.base, min_size=1, max_size=3, kwargs=how, open=True) as pool:
        with PostgresSaver.from_pool(pool, schema=place.schema) as saver:
            run_through(saver)
        # The saver is closed, the pool is not, and its connections are what they were.
        with pool.connection() as connection:
            assert connection.autocommit == how.get("autocommit", False)
            connection.execute("SELECT 1")


async def test_an_async_pool(place: Place) -> None:
    async with AsyncConnectionPool(place.base, min_size=1, max_size=3, open=False) as pool:
        saver = PostgresSaver.from_pool(async_source=pool, schema=place.schema)
        await saver.asetup()
        puts = [saver.aput(at(f"t{n}"), checkpoint("1", {"x": n}), {}, {"x": 1}) for n in range(20)]
        await asyncio.gather(*puts)
        found = [await saver.aget_tuple(at(f"t{n}")) for n in range(20)]
        assert [each and each.checkpoint["channel_values"]["x"] for each in found] == list(range(20))
        with pytest.raises(InvalidConfig, match="blocking methods need source"):
            saver.get_tuple(at("t0"))
        await saver.aclose()
        async with pool.connection() as connection:
            assert not connection.autocommit


def test_workers_of_a_pool_share_it(place: Place, sql: Sql) -> None:
    kwargs = {"application_name": NAME}
    with ConnectionPool(place.base, min_size=1, max_size=4, kwargs=kwargs, open=True) as pool:
        saver = PostgresSaver.from_pool(pool, schema=place.schema)
        saver.setup()

        def work(number: int) -> None:
            saver.put(at(f"t{number}"), checkpoint("1", {"x": number}), {}, {"x": 1})

        with ThreadPoolExecutor(16) as workers:
            list(workers.map(work, range(60)))
        assert len(list(saver.list(None))) == 60
        assert 1 <= len(sessions(sql)) <= 4
        terminate(sql)
        work(61)


def test_a_pool_that_has_none_left(place: Place) -> None:
    with ConnectionPool(place.base, min_size=1, max_size=1, timeout=0.05, open=True) as pool:
        saver = PostgresSaver.from_pool(pool, schema=place.schema)
        with pool.connection(), pytest.raises(Unavailable, match=r"set up.*pool has no connection"):
            saver.setup()
        saver.setup()


def test_erasing_a_conversation_and_its_thread_together(place: Place, sql: Sql, table: str) -> None:
    with place.saver() as saver, psycopg.connect(place.base) as connection:
        saver.put(at("t"), checkpoint("1", {"x": 1}), {}, {"x": 1})
        joined = PostgresSaver.from_pool(connection, schema=place.schema)
        for end in (connection.rollback, connection.commit):
            assert (count(sql, table), saver.get_tuple(at("t")) is None) == (1, False)
            connection.execute(f"DELETE FROM {table}".encode())
            joined.delete_thread("t")
            assert joined.get_tuple(at("t")) is None
            assert saver.get_tuple(at("t")) is not None
            end()
        assert (count(sql, table), saver.get_tuple(at("t"))) == (0, None)


async def test_erasing_them_together_async(place: Place, sql: Sql, table: str) -> None:
    async with await psycopg.AsyncConnection.connect(place.base) as connection:
        joined = PostgresSaver.from_pool(async_source=connection, schema=place.schema)
        await joined.aput(at("t"), checkpoint("1", {"x": 1}), {}, {"x": 1})
        await connection.commit()
        with contextlib.suppress(ZeroDivisionError):
            async with connection.transaction():
                await connection.execute(f"DELETE FROM {table}".encode())
                await joined.adelete_thread("t")
                raise ZeroDivisionError
        assert await joined.aget_tuple(at("t")) is not None
        assert count(sql, table) == 1
        async with connection.transaction():
            await connection.execute(f"DELETE FROM {table}".encode())
            await joined.adelete_thread("t")
        await connection.commit()
    assert count(sql, table) == 0


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_saver_does_not_rely_on_what_was_rolled_back(place: Place, autocommit: bool) -> None:
    """Items that a transaction stored and its rollback took away are stored anew, not referred to."""
    with psycopg.connect(place.base, autocommit=autocommit) as connection:
        joined = PostgresSaver.from_pool(connection, schema=place.schema)
        messages = [HumanMessage(f"message {number} " * 50, id=str(number)) for number in range(60)]
        joined.put(at("t"), checkpoint("1", {"m": messages[:1]}), {}, {"m": 1})
        connection.commit()
        with connection.transaction(force_rollback=True):
            joined.put(at("t", "", "1"), checkpoint("2", {"m": messages[:3]}), {}, {"m": 2})
            joined.put_writes(at("t", "", "2"), [("m", messages[3])], "task")
            assert joined.get_tuple(at("t")) is not None
        joined.put(at("t", "", "1"), checkpoint("2", {"m": messages[:10]}), {}, {"m": 2})
        connection.commit()
        for number in range(11, 61):
            config = at("t", "", "2" if number == 11 else str(number - 1))
            joined.put(config, checkpoint(str(number), {"m": messages[:number]}), {}, {"m": number})
            connection.commit()
            if number % 7 == 0:
                with connection.transaction(force_rollback=True):
                    joined.put(at("t", "", str(number)), checkpoint("99", {"m": messages}), {}, {"m": 99})
    with place.saver() as saver:
        for found in saver.list(at("t")):
            id = found.checkpoint["id"]
            assert found.checkpoint["channel_values"]["m"] == messages[: {"1": 1, "2": 10}.get(id, int(id))]
        assert len(list(saver.list(at("t")))) == 52


async def test_an_async_saver_does_not_rely_on_what_was_rolled_back(place: Place) -> None:
    messages = [HumanMessage(f"message {number} " * 50, id=str(number)) for number in range(30)]
    async with await psycopg.AsyncConnection.connect(place.base) as connection:
        joined = PostgresSaver.from_pool(async_source=connection, schema=place.schema)
        await joined.asetup()
        await connection.commit()
        parent = ""
        for number in range(1, 31):
            config = at("t", "", parent) if parent else at("t")
            await joined.aput(config, checkpoint(f"{number:02}", {"m": messages[:number]}), {}, {"m": number})
            if number % 3:
                await connection.rollback()
            else:
                await connection.commit()
                parent = f"{number:02}"
    with place.saver() as saver:
        found = {one.checkpoint["id"]: one.checkpoint["channel_values"]["m"] for one in saver.list(at("t"))}
        assert found == {f"{number:02}": messages[:number] for number in range(3, 31, 3)}


def test_an_error_of_the_saver_spoils_no_transaction(place: Place, sql: Sql, table: str) -> None:
    with place.saver() as saver:
        saver.put(at("t"), checkpoint("1", {"x": 1}), {}, {"x": 1})
        saver.delete_thread("t")
    with psycopg.connect(place.base) as connection:
        joined = PostgresSaver.from_pool(connection, schema=place.schema)
        connection.execute(f"DELETE FROM {table}".encode())
        with pytest.raises(ThreadDeleted):
            joined.put(at("t", "", "1"), checkpoint("2", {"x": 1}), {}, {"x": 1})
        missing = PostgresSaver.from_pool(connection, schema="nowhere", setup=False)
        with pytest.raises(Unavailable, match=r"setup\(\)"):
            missing.get_tuple(at("t"))
        joined.put(at("u"), checkpoint("1", {"x": 1}), {}, {"x": 1})
    assert count(sql, table) == 0


async def test_a_cancelled_call_spoils_no_transaction(place: Place, sql: Sql, table: str) -> None:
    """What the application did in its transaction stays, and of the call, which takes several statements, nothing."""
    with place.saver() as saver:
        saver.put(at("t"), checkpoint("1", {"x": 1}), {}, {"x": 1})
    async with await psycopg.AsyncConnection.connect(place.base, application_name=NAME) as connection:
        joined = PostgresSaver.from_pool(async_source=connection, schema=place.schema)
        await connection.execute(f"DELETE FROM {table}".encode())
        with holding(place, "t"):
            running = asyncio.create_task(joined.adelete_thread("t"))
            await asyncio.to_thread(until, lambda: blocked(sql) == 1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        await joined.aput(at("u"), checkpoint("1", {"x": 1}), {}, {"x": 1})
    assert count(sql, table) == 0
    with place.saver() as saver:
        assert {row.thread for row in saver.threads()} == {"t", "u"}


def test_a_connection_that_commits_by_itself(place: Place) -> None:
    with psycopg.connect(place.base, autocommit=True) as connection:
        saver = PostgresSaver.from_pool(connection, schema=place.schema)
        run_through(saver)
        with place.saver() as other:
            assert other.get_tuple(at("t")) is not None
        with contextlib.suppress(ZeroDivisionError), connection.transaction():
            saver.delete_thread("t")
            raise ZeroDivisionError
        assert saver.get_tuple(at("t")) is not None
        saver.close()
        connection.execute("SELECT 1")


def test_a_connection_that_was_lost_is_not_replaced(place: Place, sql: Sql) -> None:
    with psycopg.connect(place.base, application_name=NAME) as connection:
        saver = PostgresSaver.from_pool(connection, schema=place.schema)
        saver.setup()
        terminate(sql)
        with pytest.raises(Unavailable, match="connection"):
            saver.get_tuple(at("t"))


def test_threads_take_turns_on_one_connection(place: Place) -> None:
    with psycopg.connect(place.base, autocommit=True) as connection:
        saver = PostgresSaver.from_pool(connection, schema=place.schema)
        saver.setup()

        def work(number: int) -> None:
            saver.put(at(f"t{number}"), checkpoint("1", {"x": number}), {}, {"x": 1})
            saver.delete_thread(f"t{number}")

        with ThreadPoolExecutor(8) as workers:
            list(workers.map(work, range(40)))
        assert list(saver.list(None)) == []


def test_nothing_to_work_on() -> None:
    with pytest.raises(InvalidConfig, match="pool or a connection"):
        PostgresSaver.from_pool()
