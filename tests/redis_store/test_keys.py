"""Which keys a store makes, when they expire, and what becomes of a thread that lost one."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import redis
from milepost.errors import Corrupt, FormatTooNew, ThreadDeleted
from milepost.flavour import run
from milepost.ledger import CallRequest, Ledger, Run
from milepost.store import Drop, Query, Store
from milepost.testing import at, checkpoint
from milepost_redis.wire import Tag
from redis_store.kit import Place, chain, head, name, put, row, write

DAY = 24 * 3600 * 1000


def expiries(place: Place, client: Any) -> set[int]:
    """When the keys of all threads expire, -1 for never."""
    return {client.pexpiretime(key) for key in place.keys(client)}


def test_a_thread_is_two_keys(place: Place, client: redis.Redis) -> None:
    with place.store() as store:
        chain(store, "t", 50)
        chain(store, "u", 1)
        keys = place.keys(client)
        assert len(keys) == 4
        tags = {key.partition(b"{")[2].partition(b"}")[0] for key in keys}
        assert len(tags) == 2
        run(store.delete_thread("t"))
        assert len(place.keys(client)) == 3, "a tombstone stays"
        run(store.delete_thread("u"))
    assert all(time.time() * 1000 < expiry < time.time() * 1000 + 8 * DAY for expiry in expiries(place, client))


@pytest.mark.parametrize("thread", ["a", "a*", "a:b", "a|b", "[a]", "a/../b", "{a}", "ü" * 4096, "\x01", "a\nb", " "])
def test_hostile_ids(place: Place, client: redis.Redis, thread: str) -> None:
    with place.store() as store:
        chain(store, thread, 2)
        chain(store, "other", 1)
        for ns in ("a|b", "a:b", thread):
            put(store, thread, 3, ns=ns)
        long = "i" * 4096
        made, packs = row(4, parent=2)
        assert not run(store.put(thread, type(made)("", long, made.parent, b"h", made.spans), packs, None)).stale
        assert run(store.put_writes(thread, "", long, [write(task="t" * 4096)], None)).accepted == (True,)
        assert head(store, thread) == long
        assert all(len(key) < 100 for key in place.keys(client))
        run(store.delete_thread(thread))
        assert head(store, thread) is None
        assert head(store, "other") == name(1)


def test_prefixes_have_nothing_in_common(place: Place) -> None:
    other = Place(place.base, f"{place.prefix}:x")
    with place.store() as one, other.store() as two:
        put(one, "t", 1)
        put(two, "t", 2)
        assert (head(one, "t"), head(two, "t")) == (name(1), name(2))
        assert [row.head for row in run(one.threads(None, 10)).rows] == [name(1)]
        assert [row.head for row in run(two.threads(None, 10)).rows] == [name(2)]
        run(one.delete_thread("t"))
        assert (head(one, "t"), head(two, "t")) == (None, name(2))
        assert run(two.stats(None)).checkpoints == 1


def test_without_a_ttl_nothing_expires(place: Place, client: redis.Redis) -> None:
    with place.store() as store:
        chain(store, "t", 3)
        assert expiries(place, client) == {-1}


@pytest.mark.parametrize("refresh", ["write", "read"])
def test_all_keys_of_a_thread_expire_at_one_time(place: Place, client: redis.Redis, refresh: str) -> None:
    with place.store(ttl="1d", refresh=refresh) as store:
        last = 0
        changes: tuple[Callable[[], object], ...] = (
            lambda: put(store, "t", 1),
            lambda: run(store.put_writes("t", "", name(1), [write()], None)),
            lambda: put(store, "t", 2, parent=1),
        )
        for change in changes:
            time.sleep(0.002)
            change()
            (expiry,) = expiries(place, client)
            assert last < expiry <= time.time() * 1000 + DAY
            last = expiry
        reads: tuple[Callable[[], object], ...] = (
            lambda: run(store.get("t", "", None)),
            lambda: run(store.lineage("t", "", None, None, None, 5)),
            lambda: run(store.page(Query("t"), None, 5)),
        )
        for read in reads:
            time.sleep(0.002)
            assert read()
            (expiry,) = expiries(place, client)
            assert (expiry > last) == (refresh == "read")
            last = expiry


def test_a_thread_that_waits_may_be_kept(place: Place, client: redis.Redis) -> None:
    with place.store(ttl="1d", refresh="read", waiting="keep") as store:
        put(store, "t", 1)
        run(store.put_writes("t", "", name(1), [write(-3, channel="__interrupt__")], None))
        assert expiries(place, client) == {-1}
        assert head(store, "t") == name(1)
        assert expiries(place, client) == {-1}, "to read it does not end its waiting"
        run(store.put_writes("t", "", name(1), [write(-4, channel="__resume__")], None))
        put(store, "t", 2, parent=1)
        assert -1 not in expiries(place, client)


def test_an_expired_thread_is_gone_and_begins_afresh(place: Place, client: redis.Redis) -> None:
    with place.store(ttl="1d") as store:
        generation = put(store, "t", 1).generation
        for key in place.keys(client):
            client.delete(key)
        assert head(store, "t") is None
        assert run(store.threads(None, 10)).rows == ()
        made, packs = row(2, parent=1)
        assert run(store.put("t", made, packs, generation)).stale
        assert not run(store.put("t", made, packs, None)).stale
        assert head(store, "t") == name(2)


def test_the_index_forgets_expired_threads(place: Place, client: redis.Redis) -> None:
    with place.store(ttl="1d") as store:
        for number in range(40):
            put(store, f"old {number}", 1)
        client.delete(*place.keys(client))
        for number in range(60):
            put(store, f"new {number}", 1)
        names = {row.thread for row in run(store.threads(None, 500)).rows}
        assert names == {f"new {number}" for number in range(60)}
        assert client.zcard(f"{place.prefix}:{{threads}}") < 70


VERBS: dict[str, Callable[[Store], Coroutine[Any, Any, object]]] = {
    "get": lambda store: store.get("t", "", None),
    "get by id": lambda store: store.get("t", "", name(1)),
    "page": lambda store: store.page(Query("t"), None, 5),
    "lineage": lambda store: store.lineage("t", "", None, None, None, 5),
    "fetch": lambda store: store.fetch("t", row(1)[0].spans),
    "chart": lambda store: store.chart("t"),
    "export": lambda store: store.export("t", None, 5),
    "put": lambda store: store.put("t", *row(3, parent=2), None),
    "put_writes": lambda store: store.put_writes("t", "", name(2), [write()], None),
    "drop": lambda store: store.drop("t", Drop(), "00" * 16),
}


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("verb", VERBS)
def test_a_thread_that_lost_a_key_is_not_half_a_thread(
    place: Place, client: redis.Redis, verb: str, missing: int
) -> None:
    with place.store() as store:
        chain(store, "t", 2)
        client.delete(place.keys(client)[missing])
        with pytest.raises(Corrupt, match="lost one of its keys") as caught:
            run(VERBS[verb](store))
        assert caught.value.thread == "t"
        put(store, "u", 1)
        everything = run(store.page(Query(), None, 5))
        assert [snapshot.thread for snapshot in everything.snapshots] == ["u"]
        assert len(everything.damage) == 1
        assert "'t'" not in everything.damage[0]
        assert {row.thread for row in run(store.threads(None, 5)).rows} == {"t", "u"}
        run(store.delete_thread("t"))
        assert head(store, "t") is None


def test_a_saver_reports_a_thread_that_lost_a_key(place: Place, client: redis.Redis) -> None:
    with place.saver() as saver:
        saver.put(at("t"), checkpoint("1", {"x": "x"}), {}, {"x": 1})
        client.delete(place.keys(client)[0])
        with pytest.raises(Corrupt):
            saver.get_tuple(at("t"))


def test_a_thread_of_a_newer_release(place: Place, client: redis.Redis) -> None:
    with place.store() as store:
        put(store, "t", 1)
        data = place.keys(client)[0]
        line: Any = client.hget(data, "m")
        client.hset(data, "m", b"\x02" + line[1:])
        with pytest.raises(FormatTooNew, match="newer release"):
            run(store.get("t", "", None))
        with pytest.raises(FormatTooNew):
            put(store, "t", 2, parent=1)
        put(store, "u", 1)
        assert {row.thread for row in run(store.threads(None, 5)).rows} == {"t", "u"}


def test_threads_may_be_asked_for_in_large_pages(place: Place) -> None:
    with place.store() as store:
        for number in range(110):
            put(store, f"{number}", 1)
        page = run(store.threads(None, 105))
        assert len(page.rows) == 100
        rest = run(store.threads(page.cursor, 105))
        assert {row.thread for row in (*page.rows, *rest.rows)} == {f"{number}" for number in range(110)}
        assert rest.cursor is None


def test_a_tombstone_names_the_newest_ids_and_refuses_older_ones(place: Place) -> None:
    with place.store() as store:
        for number in range(300):
            put(store, "t", number + 10)
        run(store.put_writes("t", "", name(500), [write()], None))
        run(store.delete_thread("t"))
        for number in (10, 309, 500, 5):
            with pytest.raises(ThreadDeleted):
                put(store, "t", 900, parent=number)
        put(store, "t", 901, parent=899)
        assert head(store, "t") == name(901)


def test_what_a_script_takes_is_bounded(place: Place) -> None:
    """More of everything than one script handles."""
    with place.store() as store:
        parents = 1300
        for number in range(1, parents + 1):
            put(store, "t", number, parent=number - 1 or None)
        for number in range(700):
            run(store.put_writes("t", "", f"later {number}", [write(task=f"task {number % 7}")], None))
        chart = run(store.chart("t"))
        assert chart is not None
        assert (len(chart.rows), len(chart.writes), len(chart.packs)) == (parents, 700, parents)
        _copy(store)
        found = run(store.page(Query("copy"), None, 5000, items=False))
        assert found.cursor
        assert [one.row.id for one in found.snapshots] == [name(parents - at) for at in range(len(found.snapshots))]
        gone = chart.rows[:-1]
        drop = Drop(
            tuple((row.ns, row.id) for row in gone),
            (("", name(parents), None),),
            tuple(span for row in gone for span in row.spans),
        )
        assert run(store.drop("t", drop, chart.token))
        assert not run(store.drop("t", drop, chart.token))
        assert run(store.stats("t"))[1:4] == (1, 700, 1)
        assert run(store.stats("copy"))[1:4] == (parents, 700, parents)
        assert head(store, "t") == head(store, "copy") == name(parents)


def _copy(store: Store) -> None:
    after: tuple[str, ...] | None = None
    while True:
        batch = run(store.export("t", after, 256))
        assert batch is not None
        run(store.load("copy", batch))
        after = batch.cursor
        if after is None:
            return


def test_records_outlive_an_expired_thread_until_it_is_swept(place: Place, client: redis.Redis) -> None:
    with place.saver(ttl="1d") as saver:
        ledger = Ledger(saver, lease="1h")
        for thread in ("settled", "unsettled"):
            saver.put(at(thread), checkpoint("0001", {"n": 1}), {}, {"n": 1})
            ledger.once("key", str, 1, thread_id=thread)
        request = CallRequest(tool="t", thread="unsettled", message="m", call="c")
        assert isinstance(ledger.enter(request), Run)
        for thread in ("settled", "unsettled"):
            tag = Tag(place.prefix, thread)
            assert [client.pexpiretime(key.decode()) > 0 for key in (tag.data, tag.calls, tag.starts)] == [
                True,
                False,
                False,
            ]
            client.delete(tag.data, tag.order)  # as when its time is over
            assert ledger.calls(thread)[0].state == "succeeded"
        # A new thread looks at some others, of so few at all of them.
        saver.put(at("new"), checkpoint("0001", {"n": 1}), {}, {"n": 1})
        assert ledger.calls("settled") == []
        assert [record.state for record in ledger.calls("unsettled")] == ["succeeded", "started"]
        assert [record.thread for record in ledger.pending()] == ["unsettled"]
