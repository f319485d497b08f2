"""What a store folder holds when writers were killed, or threads were deleted long ago; and what of it stays."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
from milepost.flavour import run
from milepost.store import TOMBSTONE_LIFE, Batch, CheckpointRow, Drop, Pack, Store
from milepost.strays import Stray
from milepost_files import FilesBackend, open_backend
from milepost_files.root import log_name

PACK = Pack(7, 1, 1, b"an item")


class Clock:
    """The clock of a store, set by hand."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backend(tmp_path: Path, clock: Clock) -> Iterator[FilesBackend]:
    backend = open_backend(tmp_path / "store", clock=clock)
    run(backend.blocking().setup())
    yield backend
    backend.close()


def put(store: Store, thread: str) -> None:
    run(store.put(thread, CheckpointRow("", "1", None, b"header"), (), None))


def strays(store: Store, *, remove: bool = True) -> list[Stray]:
    found: list[Stray] = []
    after: tuple[str, ...] | None = None
    while True:
        page = run(store.strays(after, 2, remove=remove))
        found += page.found
        if (after := page.cursor) is None:
            return found


def stem(tmp_path: Path, thread: str) -> Path:
    name = log_name(thread)
    return tmp_path / "store" / "threads" / name[:2] / name


def files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "store" / "threads").glob("*/*")}


def test_logs_of_which_nothing_counts(tmp_path: Path, clock: Clock, backend: FilesBackend) -> None:
    store = backend.blocking()
    for thread in ("deleted", "deleted and leased", "lives", "shortened"):
        put(store, thread)
    run(store.acquire("deleted and leased", "me", TOMBSTONE_LIFE + 10.0))
    outline = run(store.outline("shortened"))
    assert outline is not None
    run(store.drop("shortened", Drop((("", "1"),)), outline.token))
    for thread in ("deleted", "deleted and leased"):
        run(store.delete_thread(thread))
    assert [one.thread for one in strays(store)] == ["shortened"]
    clock.now += TOMBSTONE_LIFE - 1
    assert strays(store) == []
    clock.now += 1
    assert [one.thread for one in strays(store, remove=False)] == ["deleted"]
    assert [(one.kind, one.name, one.bytes > 0) for one in strays(store)] == [
        ("file", log_name("deleted") + ".log", True)
    ]
    assert files(tmp_path) == {f"{log_name(thread)}.log" for thread in ("deleted and leased", "lives")}
    put(store, "deleted")
    assert strays(store) == []


def test_what_killed_writers_leave(tmp_path: Path, backend: FilesBackend) -> None:
    store = backend.blocking()
    put(store, "lives")
    lives, gone = stem(tmp_path, "lives"), stem(tmp_path, "gone")
    gone.parent.mkdir(exist_ok=True)
    kept = [lives.with_suffix(suffix) for suffix in (".log", ".idx", ".torn-1")]
    left = [lives.with_suffix(suffix) for suffix in (".new-1", ".idx-1", ".take")]
    left += [gone.with_suffix(suffix) for suffix in (".new-1", ".idx", ".torn-1", ".take")]
    for path in [*kept[1:], *left]:
        path.write_bytes(b"ten bytes.")
    assert {(one.name, one.bytes) for one in strays(store, remove=False)} == {(path.name, 10) for path in left}
    assert files(tmp_path) == {path.name for path in kept + left}
    assert {one.name for one in strays(store)} == {path.name for path in left}
    assert files(tmp_path) == {path.name for path in kept}
    assert strays(store) == []
    put(store, "gone")


def test_what_a_writer_is_about_to_use_stays(tmp_path: Path, backend: FilesBackend) -> None:
    store = backend.blocking()
    put(store, "lives")
    prepared = stem(tmp_path, "lives").with_suffix(".new-1")
    prepared.touch()
    with stem(tmp_path, "lives").with_suffix(".log").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert strays(store) == []
        assert prepared.exists()
        fcntl.flock(file, fcntl.LOCK_UN)
    assert [one.name for one in strays(store)] == [prepared.name]


def test_what_cannot_be_read_stays(tmp_path: Path, backend: FilesBackend) -> None:
    store = backend.blocking()
    run(store.load("left", Batch(packs=(PACK,))))
    log = stem(tmp_path, "left").with_suffix(".log")
    whole = log.read_bytes()
    log.write_bytes(b"?" + whole[1:])
    other = open_backend(tmp_path / "store")
    assert strays(other.blocking()) == []
    other.close()
    log.write_bytes(whole)
    assert [(one.kind, one.thread) for one in strays(store)] == [("thread", "left")]
