"""Many processes on one store: nothing is lost, whoever dies or is stopped, and wherever that happens."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import time
from pathlib import Path

import pytest
from files.kit import Worker, done, log_of, newest_whole
from files.states import At, chain, name, opened, put
from milepost.errors import Unavailable
from milepost.flavour import run
from milepost.store import Query, Store
from milepost_files.handle import identity


def together(workers: list[Worker]) -> list[list[str]]:
    """What processes acknowledge that work at the same time."""
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker)
        return [worker.finish() for worker in workers]


def ids(store: Store, thread: str) -> set[str]:
    page = run(store.page(Query(thread=thread), None, 10_000, items=False))
    assert page.damage == ()
    return {snapshot.row.id for snapshot in page.snapshots}


def test_eight_processes_write_to_one_thread(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    workers = [Worker(tmp_path, "puts", "t", 1000 * number, 25) for number in range(4)]
    workers += [Worker(tmp_path, "tasks", "t", f"task{number}", 25) for number in range(4)]
    said = together(workers)
    assert ids(store, "t") == {id for part in said[:4] for id in part}
    chart = run(store.chart("t"))
    assert chart is not None
    found = {f"{int(id)}:{row.task}" for (_, id), rows in chart.writes.items() for row in rows}
    assert found == {line for part in said[4:] for line in part}
    assert all(len(rows) == 8 for rows in chart.writes.values())


def test_eight_processes_write_to_many_threads(tmp_path: Path) -> None:
    workers = [Worker(tmp_path, "many", f"p{number}-", 4, 6) for number in range(8)]
    said = {thread for part in together(workers) for thread in part}
    _, store = opened(tmp_path)
    assert {row.thread for row in run(store.threads(None, 100)).rows} == said
    assert all(newest_whole(store, thread) == 5 for thread in said)


def test_ten_processes_create_one_store(tmp_path: Path) -> None:
    workers = [Worker(tmp_path / "a" / "b", "many", f"p{number}-", 1, 1) for number in range(10)]
    said = {thread for part in together(workers) for thread in part}
    _, store = opened(tmp_path / "a" / "b")
    assert {row.thread for row in run(store.threads(None, 100)).rows} == said


def test_a_reader_sees_what_another_process_wrote(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    assert run(store.get("t", "", None)) is None
    done(tmp_path, "grow", "t", 0, 3)
    assert newest_whole(store, "t") == 2
    put(store, "t", 3, name(2))
    done(tmp_path, "grow", "t", 4, 1)
    assert newest_whole(store, "t") == 4
    done(tmp_path, "drop_all_but_head", "t")
    assert ids(store, "t") == {name(4)}
    done(tmp_path, "delete", "t")
    assert run(store.get("t", "", None)) is None


def test_both_sides_of_a_fork_go_on(tmp_path: Path) -> None:
    said = done(tmp_path, "forked", "t", 20)
    assert len(said) == 41
    _, store = opened(tmp_path)
    assert ids(store, "t") == set(said)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("pwrite", "stop"),
        ("pwrite", "stopped"),
        ("fdatasync", "stop"),
        ("fdatasync", "stopped"),
        ("flock", "stopped"),
    ],
)
def test_a_stopped_writer_stops_nobody_and_harms_nothing(tmp_path: Path, call: str, action: str) -> None:
    backend, store = opened(tmp_path, lock_timeout=0.3)
    chain(store, "t", 3)
    with Worker(tmp_path, "puts", "t", 5000, 2, timeout=0.3, at=At(call, 1, action)) as worker:
        worker.wait_stopped()
        put(store, "t", 3, name(2))
        assert name(3) in ids(store, "t")
        put(store, "t", 4, name(3))
        worker.resume()
        said = worker.finish()
    assert said == [name(5000), name(5001)]
    backend.close()
    _, store = opened(tmp_path)
    assert ids(store, "t") == {*map(name, range(5)), *said}
    assert not list(log_of(tmp_path).parent.glob("*.take"))


def test_the_second_writer_syncs_the_names_that_the_first_one_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Worker(tmp_path, "grow", "t", 0, 200, at=At("fdatasync", 200, "kill")) as worker:
        worker.rest()
    _, store = opened(tmp_path)
    synced: set[tuple[int, int]] = set()
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.add(identity(os.fstat(fd)))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    assert log_of(tmp_path).stat().st_size > 4096
    put(store, "t", 200, name(199))
    folder = log_of(tmp_path).parent
    assert {identity(folder.stat()), identity(folder.parent.stat())} <= synced
    synced.clear()
    put(store, "t", 201, name(200))
    assert not synced


@pytest.mark.parametrize("damage", ["behind", "everywhere"])
def test_a_log_that_is_left_behind_keeps_its_damage(tmp_path: Path, damage: str) -> None:
    backend, store = opened(tmp_path, lock_timeout=0.1)
    chain(store, "t", 3)
    log = log_of(tmp_path)
    data = log.read_bytes()
    lost = bytes(range(1, 201))
    if damage == "everywhere":
        lost, data = data.replace(b"MPF1", b"MPF9"), b""
    log.write_bytes(data + lost)
    with log.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        put(store, "t", 3, name(2))
    backend.close()
    (kept,) = log.parent.glob("*.torn-*")
    assert kept.read_bytes() == lost
    assert name(3) in ids(opened(tmp_path)[1], "t")


@pytest.mark.parametrize("verb", ["drop_all_but_head", "delete"])
@pytest.mark.parametrize(
    ("call", "number", "action"),
    [("rename", 1, "stop"), ("rename", 1, "stopped"), ("fsync", 1, "stop"), ("fsync", 1, "stopped")],
)
def test_a_writer_stopped_while_it_replaces_the_log(
    tmp_path: Path, verb: str, call: str, number: int, action: str
) -> None:
    _, store = opened(tmp_path, lock_timeout=0.3)
    chain(store, "t", 4, padding=2000)
    with Worker(tmp_path, verb, "t", timeout=0.3, at=At(call, number, action)) as worker:
        worker.wait_stopped()
        others = run(store.get("t", "", None)) is not None
        if others:
            put(store, "t", 4, name(3))
        worker.resume()
        said = worker.finish()
    assert said == ["dropped" if verb == "drop_all_but_head" else "deleted"]
    if verb == "delete":
        assert run(store.get("t", "", None)) is None
    else:
        assert ids(store, "t") == ({name(3), name(4)} if others else {name(3)})


def test_writers_that_are_stopped_again_and_again_lose_nothing(tmp_path: Path) -> None:
    """With a time-out so short that they leave each other behind all the time."""
    chooser = random.Random(11)
    _, store = opened(tmp_path)
    with contextlib.ExitStack() as stack:
        workers = [Worker(tmp_path, "puts", "t", 1000 * number, 50, timeout=0.02) for number in range(4)]
        for worker in workers:
            stack.enter_context(worker)
        for _ in range(20):
            worker = chooser.choice(workers)
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGSTOP)
                time.sleep(0.03)
                worker.resume()
        said = [id for worker in workers for id in worker.rest()]
    assert said
    assert ids(store, "t") >= set(said)
    loaded = run(store.get("t", "", None))
    assert loaded is not None
    assert loaded.damage == ()


def test_a_stopped_waiter_that_replaces_the_log_is_told_of(tmp_path: Path) -> None:
    _, store = opened(tmp_path, lock_timeout=0.3)
    chain(store, "t", 2)
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(Worker(tmp_path, "puts", "t", 5000, 1, at=At("fdatasync", 1, "stop")))
        holder.wait_stopped()
        waiter = Worker(tmp_path, "puts", "t", 6000, 1, timeout=0.3, at=At("rename", 1, "stop"))
        stack.enter_context(waiter).wait_stopped()
        with pytest.raises(Unavailable, match="began to replace the log"):
            put(store, "t", 2, name(1))
        assert ids(store, "t") >= {name(0), name(1)}
        waiter.kill()
        waiter.wait()
        put(store, "t", 2, name(1))
        holder.resume()
        assert holder.finish() == [name(5000)]
    assert ids(store, "t") >= {*map(name, range(3)), name(5000)}


def test_a_holder_killed_after_a_fence_was_left_behind(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    chain(store, "t", 2)
    log_of(tmp_path).with_suffix(".take").touch()
    put(store, "t", 2, name(1))
    assert newest_whole(store, "t") == 2
    assert not log_of(tmp_path).with_suffix(".take").exists()


CALLS = [("pwrite", "half"), ("pwrite", "kill"), ("pwrite", "killed"), ("fdatasync", "kill"), ("fdatasync", "killed")]


@pytest.mark.parametrize(("call", "action"), CALLS)
@pytest.mark.parametrize("number", [1, 3])
def test_a_writer_killed_in_a_put(tmp_path: Path, call: str, action: str, number: int) -> None:
    backend, store = opened(tmp_path)
    chain(store, "t", 3)
    with Worker(tmp_path, "grow", "t", 3, 5, at=At(call, number, action)) as worker:
        acknowledged = worker.rest()
        assert worker.wait() == -signal.SIGKILL
    for reader in (store, opened(tmp_path)[1]):
        assert newest_whole(reader, "t") in (2 + len(acknowledged), 3 + len(acknowledged))
    head = newest_whole(store, "t")
    put(store, "t", head + 1, name(head))
    assert newest_whole(opened(tmp_path)[1], "t") == head + 1
    backend.close()


@pytest.mark.parametrize("verb", ["drop_all_but_head", "delete"])
@pytest.mark.parametrize("action", ["kill", "killed"])
@pytest.mark.parametrize(("call", "number"), [("pwrite", 1), ("pwrite", 2), ("fsync", 1), ("rename", 1), ("fsync", 2)])
def test_a_writer_killed_while_it_replaces_the_log(
    tmp_path: Path, verb: str, action: str, call: str, number: int
) -> None:
    _, store = opened(tmp_path)
    chain(store, "t", 4, padding=2000)
    with Worker(tmp_path, verb, "t", at=At(call, number, action)) as worker:
        acknowledged = worker.rest()
    for reader in (store, opened(tmp_path)[1]):
        assert ids(reader, "t") in ({*map(name, range(4))}, {name(3)} if verb == "drop_all_but_head" else set())
    if acknowledged:
        assert ids(store, "t") == ({name(3)} if verb == "drop_all_but_head" else set())
    if ids(store, "t"):
        put(store, "t", 4, name(3))
        assert newest_whole(store, "t") == 4
    run(store.delete_thread("t"))
    assert [path.suffix for path in log_of(tmp_path).parent.iterdir()] == [".log"]


def test_writers_killed_again_and_again_at_random(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    acknowledged = -1
    for round_ in range(12):
        head = newest_whole(store, "t")
        assert head >= acknowledged
        with Worker(tmp_path, "grow", "t", head + 1, 100_000) as worker:
            first = worker.next()
            time.sleep(0.004 * round_)
            worker.kill()
            acknowledged = int([first, *worker.rest()][-1])
    head = newest_whole(store, "t")
    assert head >= acknowledged
    assert ids(store, "t") == set(map(name, range(head + 1)))
