"""Listings over many threads: what they cost, and what they see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from files.kit import log_of
from files.states import chain, name, opened, put
from milepost.flavour import run
from milepost.store import CheckpointRow, Query, Store
from milepost_files.frames import HEADER
from milepost_files.root import Ahead, Root, Views

THREADS = 40
EACH = 5


def pages(store: Store, query: Query, limit: int) -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    after: tuple[str, ...] | None = None
    while True:
        page = run(store.page(query, after, limit, items=False))
        found.append([(snapshot.thread, snapshot.row.id) for snapshot in page.snapshots])
        if (after := page.cursor) is None:
            return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    _, store = opened(tmp_path, durability="os", max_open=2)
    for number in range(THREADS):
        chain(store, f"t{number:02}", EACH)
    return store


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logs that listings look into, one after the other."""
    names: list[str] = []
    real = Root.named

    def named(root: Root, name: str) -> Any:
        names.append(name)
        return real(root, name)

    monkeypatch.setattr(Root, "named", named)
    return names


def everything() -> list[tuple[str, str]]:
    return sorted(
        ((f"t{thread:02}", name(number)) for thread in range(THREADS) for number in range(EACH)),
        key=lambda place: (place[1], place[0]),
        reverse=True,
    )


@pytest.mark.parametrize("limit", [1, 7, 500])
def test_a_listing_looks_into_each_log_once(store: Store, looked_at: list[str], limit: int) -> None:
    found = pages(store, Query(), limit)
    assert [place for page in found for place in page] == everything()
    assert all(len(page) <= limit for page in found)
    assert len(looked_at) == THREADS


@pytest.mark.parametrize("limit", [1, 7, 500])
def test_so_does_one_with_a_filter(store: Store, looked_at: list[str], limit: int) -> None:
    found = pages(store, Query(match=lambda header: header.startswith(b"header 3 ")), limit)
    assert [place for page in found for place in page] == [place for place in everything() if place[1] == name(3)]
    assert len(looked_at) == THREADS


def test_a_listing_goes_on_in_another_process_or_when_it_was_forgotten(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(store.page(Query(), None, 100, items=False))
    for other in (opened(tmp_path)[1], store):
        rest: list[tuple[str, str]] = []
        after = first.cursor
        while after is not None:
            page = run(other.page(Query(), after, 7, items=False))
            rest += [(snapshot.thread, snapshot.row.id) for snapshot in page.snapshots]
            after = page.cursor
        assert rest == everything()[100:]
        monkeypatch.setattr(Views, "find", lambda *_: None)


def test_more_than_is_gathered_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("milepost_files.listing._FIRST_VIEW", 10)
    monkeypatch.setattr("milepost_files.listing._LATER_VIEW", 25)
    for limit in (1, 4, 10, 30):
        assert [place for page in pages(store, Query(), limit) for place in page] == everything()


def test_a_listing_shows_what_was_there_when_it_began_less_what_is_gone(store: Store) -> None:
    first = run(store.page(Query(), None, 100, items=False))
    put(store, "t07", 0, None)
    put(store, "new", 0, None)
    run(store.delete_thread("t08"))
    rest = run(store.page(Query(), first.cursor, 500, items=False))
    assert [(snapshot.thread, snapshot.row.id) for snapshot in rest.snapshots] == [
        place for place in everything()[100:] if place[0] != "t08"
    ]


def test_few_listings_are_kept() -> None:
    views = Views()
    names = [views.keep(Ahead([("key", "thread", "", str(number))], complete=True)) for number in range(9)]
    assert [views.find(each) is not None for each in names] == [False] * 5 + [True] * 4


def test_only_what_may_be_of_a_run_is_listed(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    for id, facets in (("1", {"run_id": 5}), ("2", {"run_id": "5"}), ("3", {"run_id": "6"}), ("4", {})):
        run(store.put("t", CheckpointRow(ns="", id=id, parent=None, header=b"", facets=facets), [], None))
    assert pages(store, Query(runs=frozenset({"5"})), 9) == [[("t", "4"), ("t", "2"), ("t", "1")]]


def test_a_log_that_has_lost_its_name_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend, store = opened(tmp_path)
    chain(store, "t", 3)
    backend.close()
    data = bytearray(log_of(tmp_path).read_bytes())
    data[HEADER.size + 2] ^= 0x01
    log_of(tmp_path).write_bytes(data)
    _, store = opened(tmp_path)
    put(store, "another", 0, None)
    page = run(store.page(Query(), None, 99))
    assert [snapshot.thread for snapshot in page.snapshots] == ["another"]
    (words,) = page.damage
    assert "has lost the frame that names its thread" in words
    assert [row.thread for row in run(store.threads(None, 9)).rows] == ["another"]
    assert run(store.stats(None)).threads == 1
    assert [record.getMessage() for record in caplog.records] == [f"a thread is left out: {words}"] * 2
    put(store, "t", 3, name(2))
    assert {row.thread for row in run(store.threads(None, 9)).rows} == {"another", "t"}
    assert {row.thread for row in run(opened(tmp_path)[1].threads(None, 9)).rows} == {"another", "t"}


def test_a_log_that_cannot_be_opened_hides_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend, store = opened(tmp_path, durability="os")
    chain(store, "shut", 2)
    log = log_of(tmp_path)
    chain(store, "open", 2)
    backend.close()
    log.unlink()
    log.mkdir()
    _, store = opened(tmp_path)
    assert [row.thread for row in run(store.threads(None, 10)).rows] == ["open"]
    assert str(log) in caplog.text
    page = run(store.page(Query(), None, 10))
    assert {snapshot.thread for snapshot in page.snapshots} == {"open"}
    assert any(str(log) in words for words in page.damage)
    assert run(store.stats(None)).threads == 1
