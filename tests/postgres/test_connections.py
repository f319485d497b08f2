"""Connections that end, are refused, are too few, or are handed on to a child process."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from milepost import combine
from milepost.errors import InvalidConfig, Unavailable
from milepost.flavour import run
from milepost.testing import at, checkpoint
from milepost_postgres import link as talking
from milepost_postgres import pool
from milepost_postgres.request import Step
from postgres.kit import NAME, Place, blocked, head, holding, name, put, row, sessions, terminate, write
from psycopg.conninfo import make_conninfo
from verbs import READS, VERBS, scene, shown
from waiting import until

Sql = psycopg.Connection[tuple[Any, ...]]


def test_a_backend_that_was_terminated(place: Place, sql: Sql) -> None:
    """The next call of any verb succeeds, as if nothing had been: no saver is broken, and nothing is taken to be absent."""
    with place.store() as store:
        for verb, act in VERBS.items():
            run(scene(store, verb))
            assert terminate(sql) >= 1
            answer = run(act(store, verb))
            if verb in READS:
                assert answer, verb
                assert shown(answer) == shown(run(act(store, verb))), verb
            assert terminate(sql) >= 1
            run(act(store, verb))


@pytest.mark.parametrize(("warm", "fresh"), [(0.0, 0), (3600.0, 1)])
def test_a_connection_that_was_idle_is_looked_at(
    place: Place, sql: Sql, monkeypatch: pytest.MonkeyPatch, warm: float, fresh: int
) -> None:
    """One that was used just now is not: then the request fails, and is repeated on another one."""
    monkeypatch.setattr(pool, "_WARM", warm)
    run_over, repeated = pool.Pool.run, []

    def counted(self: pool.Pool, steps: Any, *, fresh: bool = False) -> Any:
        if fresh:
            repeated.append(steps)
        return run_over(self, steps, fresh=fresh)

    monkeypatch.setattr(pool.Pool, "run", counted)
    with place.store() as store:
        put(store, "t", 1)
        assert terminate(sql) == 1
        put(store, "t", 2, parent=1)
        assert head(store, "t") == name(2)
    assert len(repeated) == fresh


def test_only_what_has_ended_is_replaced(place: Place, sql: Sql) -> None:
    """Whoever needs a fresh connection leaves the others theirs; where there is no place for one more, one makes it."""
    conninfo = make_conninfo(place.base, application_name=NAME)
    ours = pool.Pool(pool.Settings(conninfo, size=4))
    links = [ours._take(fresh=False) for _ in range(4)]
    for link in links:
        ours._give(link)
    pids = [link.connection.info.backend_pid for link in links]
    sql.execute("SELECT pg_terminate_backend(%s)", [pids[1]])
    until(lambda: pids[1] not in sessions(sql))
    new = ours._take(fresh=True)
    assert new.connection.info.backend_pid not in pids
    ours._give(new)
    left = {link.connection.info.backend_pid for link in ours._idle}
    assert left == {*pids} - {pids[1]} | {new.connection.info.backend_pid}
    other = ours._take(fresh=True)
    assert other.connection.info.backend_pid not in left
    assert len(ours._idle) == 3
    ours._give(other)
    ours.close()


async def test_only_what_has_ended_is_replaced_async(place: Place, sql: Sql) -> None:
    conninfo = make_conninfo(place.base, application_name=NAME)
    ours = pool.AsyncPool(pool.Settings(conninfo, size=4))
    links = [await ours._take(fresh=False) for _ in range(4)]
    for number in range(4):
        ours._give(links[number])
    pids = [link.connection.info.backend_pid for link in links]
    sql.execute("SELECT pg_terminate_backend(%s)", [pids[1]])
    until(lambda: pids[1] not in sessions(sql))
    new = await ours._take(fresh=True)
    assert new.connection.info.backend_pid not in pids
    ours._give(new)
    left = {link.connection.info.backend_pid for link in ours._idle}
    assert left == {*pids} - {pids[1]} | {new.connection.info.backend_pid}
    other = await ours._take(fresh=True)
    assert other.connection.info.backend_pid not in left
    assert len(ours._idle) == 3
    ours._give(other)
    ours.close()
    assert not ours._idle
    del links, new, other
    assert not ours._links


def test_a_connection_that_is_lost_keeps_nobody_waiting(place: Place) -> None:
    """A thread that is interrupted just when it has one can give nothing back."""
    ours = pool.Pool(pool.Settings(place.base, size=2))
    for _ in range(5):
        link: Any = ours._take(fresh=False)
        link.connection.close()
        del link
    with ThreadPoolExecutor(4) as threads:
        assert [*threads.map(lambda _: ours.run([Step(b"SELECT 1")]), range(40))] == [[[(1,)]]] * 40
    ours.close()


def test_what_is_known_of_a_connection_does_not_keep_it(place: Place, sql: Sql) -> None:
    conninfo = make_conninfo(place.base, application_name=NAME)
    ours = pool.Pool(pool.Settings(conninfo, size=2))
    ours.run([Step(b"SELECT 1")])
    gc.collect()
    known = len(talking._lines)
    lost: Any = [ours._take(fresh=False)]
    with pytest.warns(ResourceWarning):
        lost.clear()
    assert len(talking._lines) == known - 1
    until(lambda: sessions(sql) == [])
    ours.close()


def test_an_error_costs_no_prepared_statement(place: Place) -> None:
    ours = pool.Pool(pool.Settings(place.base, size=1))
    good, bad = [Step(b"SELECT 1"), Step(b"SELECT 2")], [Step(b"SELECT 1"), Step(b"SELECT 1 / 0")]
    count = Step(b"SELECT count(*) FROM pg_prepared_statements")
    for _ in range(20):
        assert ours.run(good) == [[(1,)], [(2,)]]
        with pytest.raises(psycopg.errors.DivisionByZero):
            ours.run(bad)
    assert ours.run([count]) == [[(4,)]]
    # Whoever has discarded it all is noticed, once.
    ours.run([Step(b"SELECT 3 FROM pg_prepared_statements LIMIT 1")])
    ours._idle[0].connection.execute("DEALLOCATE ALL")
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        ours.run(good)
    assert ours.run(good) == [[(1,)], [(2,)]]
    ours.close()


def test_a_pipeline_that_an_interrupt_left_open_is_not_used_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = pool.Pool(pool.Settings(place.base, size=1))
    steps = [Step(b"SELECT 1"), Step(b"SELECT 2")]
    assert ours.run(steps[:1]) == [[(1,)]]
    until_sync = talking._until_sync

    def interrupted(pgconn: Any) -> Any:
        yield from until_sync(pgconn)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(talking, "_until_sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ours.run(steps)
    assert not ours._idle
    assert ours.run(steps[:1]) == [[(1,)]]
    ours.close()


def test_sessions_that_were_idle_for_too_long(place: Place, sql: Sql) -> None:
    with place.store(options="-cidle_session_timeout=20") as store:
        for number in range(1, 3):
            put(store, "t", number)
            until(lambda: sessions(sql) == [])
            assert head(store, "t") == name(number)


def test_one_thread_that_is_locked_does_not_hold_up_the_others(
    place: Place, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.store() as store, ThreadPoolExecutor(12) as pool:
        for thread in ("locked", "locked too", "locked three", "free"):
            put(store, thread, 1)
        with (
            holding(place, "locked") as one,
            holding(place, "locked too") as two,
            holding(place, "locked three") as no3,
        ):
            stuck = [pool.submit(put, store, thread, 2) for thread in ("locked", "locked too", "locked three")]
            until(lambda: blocked(sql) >= 1)
            put(store, "free", 2)
            until(lambda: blocked(sql) >= 3)
            put(store, "free", 3)
            monkeypatch.setattr(combine, "PATIENCE", 3600.0)
            for number in range(4, 12):
                pool.submit(put, store, "free", number).result(60)
            assert not any(future.done() for future in stuck)
            for other in (one, two, no3):
                other.rollback()
        assert [future.result(60).stale for future in stuck] == [False] * 3
        assert head(store, "locked three") == name(2)


async def test_one_thread_that_is_locked_does_not_hold_up_the_others_async(
    place: Place, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = place.backend()
    store = backend.asynchronous()
    await store.setup()
    for thread in ("locked", "locked too", "locked three", "free"):
        await store.put(thread, *row(1), None)
    with holding(place, "locked") as one, holding(place, "locked too") as two, holding(place, "locked three") as three:
        stuck = [
            asyncio.create_task(store.put(thread, *row(2), None)) for thread in ("locked", "locked too", "locked three")
        ]
        await asyncio.sleep(0)
        await store.put("free", *row(2), None)
        await asyncio.to_thread(until, lambda: blocked(sql) >= 3)
        await store.put("free", *row(3), None)
        monkeypatch.setattr(combine, "PATIENCE", 3600.0)
        for number in range(4, 12):
            await asyncio.wait_for(store.put("free", *row(number), None), 60)
        assert not any(task.done() for task in stuck)
        for other in (one, two, three):
            other.rollback()
    await asyncio.gather(*stuck)
    await backend.aclose()


def test_parallel_writes_of_one_thread_do_not_wait_for_each_other(place: Place) -> None:
    with place.store() as store, psycopg.connect(place.base) as other:
        put(store, "t", 1)
        # What put_writes takes of a thread, held by somebody else's unfinished put_writes.
        other.execute(f"SELECT FROM {place.schema}.thread FOR KEY SHARE".encode())
        run(store.put_writes("t", "", name(1), [write()], None))
        assert put(store, "t", 2, parent=1).stale is False


async def test_cancelling_one_of_a_batch_leaves_the_others(place: Place) -> None:
    backend = place.backend()
    store = backend.asynchronous()
    await store.setup()
    for turn in range(1, 6):
        # Each turn has checkpoints of its own: those of a deleted thread are refused.
        tasks = [asyncio.create_task(store.put(f"t{number}", *row(turn), None)) for number in range(20)]
        await asyncio.sleep(0.002)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for number, result in enumerate(results):
            if not isinstance(result, asyncio.CancelledError):
                assert not isinstance(result, BaseException)
                assert await store.get(f"t{number}", "", None) is not None
        assert not any(isinstance(result, BaseException) for result in results[1::2])
        for number in range(20):
            await store.delete_thread(f"t{number}")
    await backend.aclose()


def test_writes_that_come_together_share_a_commit(place: Place, sql: Sql) -> None:
    def commits() -> int:
        found = sql.execute(f"SELECT count(DISTINCT xmin::text) FROM {place.schema}.checkpoint".encode()).fetchone()
        assert found is not None
        return int(found[0])

    with place.store() as store, ThreadPoolExecutor(24) as pool:
        for thread in ("a", "b"):
            put(store, thread, 1)
        with holding(place, "a") as one, holding(place, "b") as two:
            # Both lanes are taken; the rest of them has to wait.
            first = [pool.submit(put, store, thread, 2) for thread in ("a", "b")]
            until(lambda: blocked(sql) == 2)
            rest = [pool.submit(put, store, f"t{number}", 1) for number in range(20)]
            for future in rest:
                future.result(60)
            one.rollback()
            two.rollback()
        for future in first:
            future.result(60)
        assert commits() <= 4 + 4
        assert all(head(store, f"t{number}") == name(1) for number in range(20))


def test_one_of_a_batch_that_is_refused_by_the_server(place: Place) -> None:
    """What the server refuses fails alone, whatever it was sent with."""
    with place.store() as store, ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(put, store, f"t{number}", 1) for number in range(30)]
        too_large = pool.submit(run, store.put_writes("t0", "", name(1), [write(idx=1 << 40)], None))
        assert [future.result(60).stale for future in futures] == [False] * 30
        with pytest.raises(Unavailable, match="out of range"):
            too_large.result(60)


def test_a_server_that_cannot_be_reached() -> None:
    backend = Place("postgresql://localhost:1/none", "x").backend()
    with pytest.raises(Unavailable, match="refused") as caught:
        run(backend.blocking().get("t", "", None))
    assert (caught.value.backend, caught.value.op) == ("postgres", "read a checkpoint")
    with pytest.raises(Unavailable):
        asyncio.run(backend.asynchronous().get("t", "", None))
    backend.close()


def test_a_database_that_is_not_there(place: Place) -> None:
    with pytest.raises(Unavailable, match="does not exist"), place.store(dbname="no such database"):
        pass


def test_all_connections_are_busy(place: Place, sql: Sql) -> None:
    with place.store(pool=1, pool_timeout=0.05) as store, ThreadPoolExecutor(1) as pool:
        put(store, "t", 1)
        with holding(place, "t") as other:
            stuck = pool.submit(put, store, "t", 2)
            until(lambda: blocked(sql) == 1)
            with pytest.raises(Unavailable, match="option pool"):
                run(store.get("t", "", None))
            other.rollback()
        stuck.result(60)
        assert head(store, "t") == name(2)


def test_a_pool_is_no_larger_than_was_said(place: Place, sql: Sql) -> None:
    with place.store(pool=3) as store, ThreadPoolExecutor(16) as pool:
        for _ in pool.map(lambda number: put(store, f"t{number % 20}", number), range(200)):
            assert len(sessions(sql)) <= 3
        list(pool.map(lambda number: head(store, f"t{number % 20}"), range(200)))
        assert 1 <= len(sessions(sql)) <= 3


def test_a_closed_store(place: Place, sql: Sql) -> None:
    backend = place.backend()
    store, other = backend.blocking(), backend.blocking()
    run(store.setup())
    run(store.close())
    with pytest.raises(Unavailable, match="closed"):
        put(store, "t", 0)
    put(other, "t", 0)
    backend.close()
    backend.close()
    with pytest.raises(Unavailable, match="closed"):
        put(other, "t", 1)
    with pytest.raises(Unavailable, match="closed"):
        asyncio.run(backend.asynchronous().get("t", "", None))
    until(lambda: sessions(sql) == [])


def test_one_saver_on_many_loops(place: Place, sql: Sql) -> None:
    with place.saver() as saver:

        async def once(number: int) -> None:
            await saver.aput(at("t"), checkpoint(name(number), {"x": number}), {}, {"x": number})
            found = await saver.aget_tuple(at("t"))
            assert found is not None
            # A blocking call within the loop works, and blocks.
            assert saver.get_tuple(at("t")) == found

        for number in range(5):
            asyncio.run(once(number))
        gc.collect()
        until(lambda: len(sessions(sql)) <= 2)


def test_a_saver_used_by_a_loop_in_another_thread_while_it_is_closed(place: Place) -> None:
    backend = place.backend()
    run(backend.blocking().setup())
    ready, done = threading.Event(), threading.Event()

    def other() -> None:
        async def wait() -> None:
            await backend.asynchronous().get("t", "", None)
            ready.set()
            await asyncio.to_thread(done.wait)

        asyncio.run(wait())

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    backend.close()
    done.set()
    thread.join()


def test_a_child_process_shares_nothing(place: Place, sql: Sql) -> None:
    with place.store() as store:
        put(store, "t", 1)
        mine = sessions(sql)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                put(store, "t", 2, parent=1)
                code = 0 if head(store, "t") == name(2) else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        put(store, "t", 3, parent=2)
        assert head(store, "t") == name(3)
        assert set(mine) <= set(sessions(sql))


def test_prepared_statements_are_used_on_sessions_of_our_own_alone(place: Place) -> None:
    for prepare, wanted in (("auto", True), ("always", True), ("never", False)):
        backend = place.backend(prepare=prepare)
        store = backend.blocking()
        run(store.setup())
        put(store, "t", 1)
        engine: Any = backend._engines.blocking()
        ((found,),) = engine._source.run([Step(b"SELECT count(*) FROM pg_prepared_statements")])
        assert (found[0] > 2) == wanted, prepare
        backend.close()


@pytest.mark.parametrize(
    ("option", "value"),
    [("sslmode", "zzz"), ("target_session_attrs", "anywhere"), ("port", "many")],
)
def test_an_option_that_libpq_does_not_know(place: Place, option: str, value: str) -> None:
    """It says so before it connects, and that trying again would help, nobody says."""
    with pytest.raises(InvalidConfig, match=f"(?s){value}.*correct the option"), place.store(**{option: value}):
        pass
