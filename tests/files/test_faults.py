"""Folders that are not usable, and a system that fails: typed errors, nothing lost, and the next put works."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from files.kit import Worker, done, log_of, newest_whole
from files.states import chain, name, opened, put, writes
from milepost.errors import FormatTooNew, InvalidConfig, Unavailable
from milepost.flavour import run
from milepost.store import Drop, Query
from milepost_files import open_backend

Call = Callable[..., Any]


class Failing:
    """A system call that fails in its next uses, and then works again."""

    def __init__(self, real: Call, number: int, *, half: bool = False, times: int = 1) -> None:
        self.real = real
        self.number = number
        self.half = half
        self.times = times

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.times <= 0:
            return self.real(*arguments, **options)
        if self.half:
            self.half = False
            return self.real(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
        self.times -= 1
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("half", [False, True])
def test_a_write_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, half: bool) -> None:
    _, store = opened(tmp_path)
    chain(store, "t", 3)
    size = log_of(tmp_path).stat().st_size
    monkeypatch.setattr(os, "pwrite", Failing(os.pwrite, number, half=half))
    with pytest.raises(Unavailable) as caught:
        put(store, "t", 3, name(2))
    assert caught.value.errno == number
    assert log_of(tmp_path).stat().st_size == size
    for reader in (store, opened(tmp_path)[1]):
        assert newest_whole(reader, "t") == 2
    put(store, "t", 3, name(2))
    assert newest_whole(opened(tmp_path)[1], "t") == 3


def test_the_first_write_of_a_thread_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = opened(tmp_path)
    monkeypatch.setattr(os, "pwrite", Failing(os.pwrite, errno.ENOSPC, half=True))
    with pytest.raises(Unavailable, match="make room"):
        put(store, "t", 0, None)
    assert run(store.get("t", "", None)) is None
    put(store, "t", 0, None)
    assert newest_whole(opened(tmp_path)[1], "t") == 0


def test_a_sync_that_fails_is_made_good_by_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = opened(tmp_path)
    chain(store, "t", 3)
    before = log_of(tmp_path).stat().st_ino
    monkeypatch.setattr(os, "fdatasync", Failing(os.fdatasync, errno.EIO))
    put(store, "t", 3, name(2))
    assert log_of(tmp_path).stat().st_ino != before
    assert newest_whole(store, "t") == 3


def test_a_disk_that_syncs_nothing_acknowledges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = opened(tmp_path)
    chain(store, "t", 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", Failing(os.fdatasync, errno.EIO, times=9))
        patch.setattr(os, "fsync", Failing(os.fsync, errno.EIO, times=9))
        with pytest.raises(Unavailable) as caught:
            put(store, "t", 3, name(2))
    assert caught.value.errno == errno.EIO
    assert newest_whole(store, "t") in (2, 3)
    put(store, "t", 3, name(2))
    assert newest_whole(store, "t") == 3


def test_space_that_cannot_be_given_back_is_given_back_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = opened(tmp_path)
    chain(store, "t", 5, padding=5000)
    for number, fails in ((3, True), (4, False)):
        chart = run(store.chart("t"))
        assert chart is not None
        size = log_of(tmp_path).stat().st_size
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(os, "fsync", Failing(os.fsync, errno.ENOSPC))
            gone = tuple((row.ns, row.id) for row in chart.rows if int(row.id) < number)
            assert run(store.drop("t", Drop(checkpoints=gone), chart.token))
        assert (log_of(tmp_path).stat().st_size > size) == fails
    assert newest_whole(store, "t") == 4


def test_a_thread_can_be_deleted_to_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be spared, the snapshot of the index, makes the room that the tombstone needs."""
    _, store = opened(tmp_path, durability="os")
    chain(store, "t", 300)
    snapshot = log_of(tmp_path).with_suffix(".idx")
    assert snapshot.exists()
    real = os.pwrite

    def full(*arguments: Any) -> int:
        if snapshot.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, "pwrite", full)
    run(store.delete_thread("t"))
    assert run(store.get("t", "", None)) is None
    assert [path.suffix for path in log_of(tmp_path).parent.iterdir()] == [".log"]


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    before, after = done(tmp_path, "fill_up", "t", 20_000)
    assert int(before) > 10
    assert before == after
    _, store = opened(tmp_path)
    assert newest_whole(store, "t") == int(after)


def test_a_folder_that_may_only_be_read() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to other users
        Path(folder).chmod(0o755)
        path = Path(folder) / "store"
        backend, store = opened(path)
        chain(store, "t", 2)
        backend.close()
        inside = [path, *path.rglob("*")]
        for each in inside:
            each.chmod(0o555 if each.is_dir() else 0o444)
        with Worker(path, "read_only", "t") as worker:
            said = worker.finish()
        for each in inside:
            each.chmod(0o755)
    assert said == ["1", "Unavailable", "Unavailable", "Unavailable"]


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(InvalidConfig, match=r"precious\.txt"):
        opened(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidConfig, match="cannot be a folder"):
        opened(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_store_that_has_lost_its_format_file(tmp_path: Path) -> None:
    backend, store = opened(tmp_path)
    chain(store, "t", 1)
    backend.close()
    (tmp_path / "FORMAT").unlink()
    with pytest.raises(Unavailable, match="lost its file FORMAT"):
        opened(tmp_path)
    (tmp_path / "FORMAT").write_text('{"format": 1, "kind": "milepost-files"}')
    assert newest_whole(opened(tmp_path)[1], "t") == 0


def test_a_store_that_has_lost_its_threads(tmp_path: Path) -> None:
    backend, store = opened(tmp_path)
    chain(store, "t", 1)
    shutil.rmtree(tmp_path / "threads")
    with pytest.raises(Unavailable, match="mount or restore"):
        run(store.get("t", "", None))
    for verb in (
        store.page(Query(thread="t"), None, 9),
        store.page(Query(), None, 9),
        store.stats("t"),
        store.stats(None),
        store.threads(None, 9),
        store.export("t", None, 9),
        store.chart("t"),
        store.lineage("t", "", None, None, None, 9),
        store.delete_thread("t"),
    ):
        with pytest.raises(Unavailable):
            run(verb)
    with pytest.raises(Unavailable):
        put(store, "t", 1, name(0))
    backend.close()
    with pytest.raises(Unavailable, match="lost its folder 'threads'"):
        opened(tmp_path)


def test_a_store_of_a_newer_format(tmp_path: Path) -> None:
    backend, _ = opened(tmp_path)
    backend.close()
    (tmp_path / "FORMAT").write_text(json.dumps({"format": 2, "kind": "milepost-files"}))
    with pytest.raises(FormatTooNew) as caught:
        opened(tmp_path)
    assert (caught.value.found, caught.value.supported) == (2, 1)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "1", "kind": "other"}', "\x00"])
def test_a_format_file_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "FORMAT").write_text(text)
    with pytest.raises(InvalidConfig):
        opened(tmp_path)


def test_a_store_that_nobody_set_up(tmp_path: Path) -> None:
    backend = open_backend(tmp_path / "missing")
    with pytest.raises(Unavailable, match=r"setup\(\)"):
        run(backend.blocking().get("t", "", None))
    assert not (tmp_path / "missing").exists()


def test_a_closed_store(tmp_path: Path) -> None:
    backend, store = opened(tmp_path)
    other = backend.blocking()
    run(store.close())
    with pytest.raises(Unavailable, match="closed"):
        put(store, "t", 0, None)
    put(other, "t", 0, None)
    backend.close()
    backend.close()
    with pytest.raises(Unavailable, match="closed"):
        put(other, "t", 1, name(0))


@pytest.mark.parametrize(
    "options",
    [{"durability": "none"}, {"lock_timeout": 0}, {"lock_timeout": True}, {"max_open": 0}, {"max_open": True}],
)
def test_options_that_are_not_usable(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig, match=next(iter(options))):
        open_backend(tmp_path, **options)


def test_one_change_that_fails_harms_no_other(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    chain(store, "t", 2)
    with pytest.raises(Exception, match=r"surrogate|UTF-8|str"):
        run(store.put_writes("t", "\ud800", name(1), writes("a", "b"), None))
    put(store, "t", 2, name(1))
    assert newest_whole(store, "t") == 2
