"""The snapshot of the index beside a log: it saves time, and nothing depends on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from files.kit import log_of, newest_whole
from files.states import chain, name, opened, put, writes
from milepost.codec.envelope import unwrap
from milepost.flavour import run
from milepost.store import CheckpointRow, Drop
from milepost_files import index, scan
from milepost_files.index import Index
from milepost_files.log import Log

LENGTH = 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    backend, store = opened(tmp_path, durability="os")
    chain(store, "t", LENGTH)
    for number in range(LENGTH):
        run(store.put_writes("t", "", name(number), writes("a", "b"), None))
    backend.close()
    return tmp_path


def snapshot_of(path: Path) -> Path:
    return log_of(path).with_suffix(".idx")


def test_a_snapshot_says_what_the_log_says(path: Path) -> None:
    thawed = Index.thaw(unwrap(snapshot_of(path).read_bytes()))
    assert thawed is not None
    assert thawed.frames > LENGTH
    with log_of(path).open("rb") as file:
        read = scan.begin(file.fileno(), thawed.end)
        assert read is not None
        scan.advance(file.fileno(), read, thawed.end)
    assert read.freeze() == thawed.freeze()
    assert read.live == thawed.live
    assert (thawed.ids(), thawed.counts()) == (read.ids(), read.counts())
    assert read.freeze() == thawed.freeze(), "also when it was unpacked"


def test_the_latest_checkpoint_lies_ready_in_a_snapshot(path: Path) -> None:
    """Nothing else is unpacked for it: a thread of any length is read at once by a new process."""
    thawed = Index.thaw(unwrap(snapshot_of(path).read_bytes()))
    assert thawed is not None
    head = thawed.head("")
    assert head is not None
    assert head.id == name(LENGTH - 1)
    places = thawed.writes("", head.id)
    assert [channel for channel, *_ in places.values()] == ["x"]
    assert not vars(thawed.namespaces[""]).keys() & {"rows", "order", "writes"}
    assert thawed.row("", head.id) == head == thawed.head("")
    assert thawed.writes("", name(0)) != places == thawed.writes("", head.id)


def test_an_index_is_unpacked_by_who_holds_what_guards_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when a log is rewritten: readers may bring the same index up to date meanwhile."""
    monkeypatch.setattr(Log, "_wasteful", lambda log, _: log._index)
    backend, store = opened(path, durability="os")
    log = backend._root.log("t")
    guarded: list[bool] = []

    def watched(thaw: Callable[[bytes], object]) -> Callable[[bytes], object]:
        def unpacked(data: bytes) -> object:
            if len(data) > 1:  # another one than a new namespace, which nobody else knows
                guarded.append(log.mutex.locked())
            return thaw(data)

        return unpacked

    monkeypatch.setattr(index, "_thaw_rows", watched(index._thaw_rows))
    monkeypatch.setattr(index, "_thaw_writes", watched(index._thaw_writes))
    run(store.put("t", CheckpointRow(ns="other", id="1", parent=None, header=b"a header"), [], None))
    assert guarded == [True, True]
    assert newest_whole(store, "t") == LENGTH - 1
    backend.close()


def test_who_wrote_and_closes_leaves_a_snapshot_of_everything(tmp_path: Path) -> None:
    backend, store = opened(tmp_path, durability="os")
    chain(store, "t", 40)
    assert not snapshot_of(tmp_path).exists()
    backend.close()
    thawed = Index.thaw(unwrap(snapshot_of(tmp_path).read_bytes()))
    assert thawed is not None
    assert thawed.end == log_of(tmp_path).stat().st_size


def test_who_only_reads_leaves_none(path: Path) -> None:
    snapshot_of(path).unlink()
    backend, store = opened(path)
    assert run(store.get("t", "", None)) is not None
    backend.close()
    assert not snapshot_of(path).exists()


def test_a_store_that_was_removed_can_be_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    backend, store = opened(tmp_path, durability="os")
    chain(store, "t", 40)
    shutil.rmtree(log_of(tmp_path).parent)
    backend.close()
    assert not caplog.records


def test_a_snapshot_saves_reading_the_log(path: Path) -> None:
    """Damage that only a full reading finds is not found."""
    log = log_of(path)
    data = bytearray(log.read_bytes())
    data[data.index(b"item 50;")] ^= 0xFF
    log.write_bytes(data)
    loaded = run(opened(path)[1].get("t", "", name(10)))
    assert loaded is not None
    assert loaded.damage == ()
    snapshot_of(path).unlink()
    loaded = run(opened(path)[1].get("t", "", name(10)))
    assert loaded is not None
    assert "items 50 to 50" in loaded.damage[0]


@pytest.mark.parametrize("content", [None, b"", b"MPX1", b"garbage" * 1000])
def test_a_snapshot_that_is_none(path: Path, content: bytes | None) -> None:
    if content is None:
        snapshot_of(path).unlink()
    else:
        snapshot_of(path).write_bytes(content)
    _, store = opened(path)
    assert newest_whole(store, "t") == LENGTH - 1
    put(store, "t", LENGTH, name(LENGTH - 1))
    assert newest_whole(store, "t") == LENGTH


def test_a_snapshot_with_any_byte_flipped(path: Path) -> None:
    data = snapshot_of(path).read_bytes()
    for place in range(0, len(data), 501):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        snapshot_of(path).write_bytes(damaged)
        assert newest_whole(opened(path)[1], "t") == LENGTH - 1


def test_a_snapshot_from_before_the_log_was_replaced(path: Path) -> None:
    old = snapshot_of(path).read_bytes()
    _, store = opened(path)
    chart = run(store.chart("t"))
    assert chart is not None
    gone = tuple(("", name(number)) for number in range(LENGTH - 1))
    assert run(store.drop("t", Drop(checkpoints=gone), chart.token))
    assert not snapshot_of(path).exists()
    snapshot_of(path).write_bytes(old)
    _, store = opened(path)
    loaded = run(store.get("t", "", None))
    assert loaded is not None
    assert loaded.snapshots[0].row.id == name(LENGTH - 1)
    assert run(store.get("t", "", name(0))) is None


def test_a_snapshot_of_more_than_the_log_has(path: Path) -> None:
    """As after a crash of the machine with durability "os"."""
    log = log_of(path)
    thawed = Index.thaw(unwrap(snapshot_of(path).read_bytes()))
    assert thawed is not None
    log.write_bytes(log.read_bytes()[: thawed.end // 2])
    _, store = opened(path)
    head = newest_whole(store, "t")
    assert 0 < head < LENGTH - 1
    for number in range(head + 1, LENGTH + 200):
        put(store, "t", number, name(number - 1))
    assert newest_whole(opened(path)[1], "t") == LENGTH + 199


def test_a_folder_in_which_no_snapshot_can_be_written(tmp_path: Path) -> None:
    _, store = opened(tmp_path, durability="os")
    chain(store, "t", 1)
    snapshot_of(tmp_path).mkdir()
    for number in range(1, LENGTH):
        put(store, "t", number, name(number - 1))
    assert newest_whole(opened(tmp_path)[1], "t") == LENGTH - 1
    assert [path.name for path in log_of(tmp_path).parent.glob("*.idx-*")] == []
