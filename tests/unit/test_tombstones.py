"""A deleted thread stays deleted for as long as a late write can come, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from milepost.errors import ThreadDeleted
from milepost.flavour import run
from milepost.memory import MemoryBackend
from milepost.store import TOMBSTONE_IDS, TOMBSTONE_LIFE, Backend, CheckpointRow, Store, Tombstone, WriteRow
from milepost_files import open_backend
from milepost_files.root import log_name


class Clock:
    """The clock of a store, set by hand."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


def _put(store: Store, id: str, parent: str | None = None, thread: str = "t") -> None:
    run(store.put(thread, CheckpointRow("", id, parent, b""), (), None))


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_a_tombstone_counts_for_its_time(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    backend: Backend = MemoryBackend(clock) if kind == "memory" else open_backend(tmp_path / "store", clock=clock)
    store = backend.blocking()
    run(store.setup())
    _put(store, "1")
    run(store.delete_thread("t"))
    clock.now += TOMBSTONE_LIFE - 1
    with pytest.raises(ThreadDeleted):
        _put(store, "2", "1")
    with pytest.raises(ThreadDeleted):
        run(store.put_writes("t", "", "1", [WriteRow("a", 0, "", "x", b"")], None))
    # Deleted again, it is remembered anew, with what it had before.
    _put(store, "3")
    run(store.delete_thread("t"))
    clock.now += TOMBSTONE_LIFE - 1
    for late in ("1", "3"):
        with pytest.raises(ThreadDeleted):
            _put(store, "4", late)
    clock.now += 1
    _put(store, "4", "3")
    loaded = run(store.get("t", "", None))
    assert loaded is not None
    assert loaded.snapshots[0].row.id == "4"
    backend.close()


def test_a_file_store_forgets_tombstones(tmp_path: Path) -> None:
    """Their logs go, with what lies beside them: but not one that has a lease, an unsettled call or a checkpoint."""
    clock = Clock()
    backend = open_backend(tmp_path / "store", clock=clock)
    store = backend.blocking()
    run(store.setup())
    # The logs of one folder, so that each deletion may find them.
    beside = [name for name in (f"t{number}" for number in range(4000)) if log_name(name)[:2] == log_name("t")[:2]][:7]
    gone, leased, renewed, lives = beside[:3], beside[3], beside[4], beside[5]
    fence = run(store.acquire(leased, "owner", TOMBSTONE_LIFE + 10.0)).fence
    for name in beside[:6]:
        _put(store, "1", thread=name)
        run(store.delete_thread(name))
    _put(store, "2", thread=lives)
    folder = tmp_path / "store" / "threads" / log_name("t")[:2]
    clock.now += TOMBSTONE_LIFE - 1
    run(store.delete_thread("t"))
    assert len(list(folder.glob("*.log"))) == 6
    clock.now += 1
    _put(store, "3", thread=renewed)
    run(store.delete_thread(renewed))
    for _ in range(3):
        run(store.delete_thread("t"))
    assert {file.stem for file in folder.iterdir()} == {log_name(name) for name in (leased, renewed, lives)}
    for name in gone:
        _put(store, "2", "1", thread=name)
    clock.now += 2 * TOMBSTONE_LIFE
    run(store.delete_thread("t"))
    assert not (folder / f"{log_name(leased)}.log").exists()
    assert run(store.acquire(leased, "another", 10.0)).fence > fence
    clock.now -= 1e6
    assert run(store.acquire(leased, "another", 10.0)).fence > fence
    backend.close()


def test_what_counts_no_more_is_left_out_of_the_next() -> None:
    old = Tombstone.of([str(number) for number in range(TOMBSTONE_IDS + 1)], 0.0)
    assert old.floor
    assert Tombstone.of(["a"], TOMBSTONE_LIFE - 1.0, old).floor
    assert Tombstone.of(["a"], float(TOMBSTONE_LIFE), old) == Tombstone(("a",), "", TOMBSTONE_LIFE)


def test_a_memory_store_forgets_tombstones() -> None:
    clock = Clock()
    backend = MemoryBackend(clock)
    store = backend.blocking()
    for number in range(5):
        _put(store, "1", thread=f"t{number}")
        run(store.delete_thread(f"t{number}"))
        clock.now += TOMBSTONE_LIFE / 2
    assert list(backend._data.tombstones) == ["t3", "t4"]
