"""Threads, event loops and cancellation over one open store."""

from __future__ import annotations

import asyncio
import errno
import gc
import linecache
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from files.states import chain, name, opened, put, writes
from milepost.errors import ThreadDeleted, Unavailable
from milepost.flavour import run
from milepost.store import CheckpointRow, Store
from milepost_files import FilesBackend, commit, handle, index, log
from waiting import until


class Gate:
    """A system call that waits at its next use until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        self.real = getattr(os, call)
        self.count = 0
        self.reached = threading.Event()
        self.open = threading.Event()
        monkeypatch.setattr(os, call, self)

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        self.reached.set()
        assert self.open.wait(30)
        return self.real(*arguments)


def row(id: str, parent: str | None = None) -> CheckpointRow:
    return CheckpointRow(ns="", id=id, parent=parent, header=id.encode())


def waiting(backend: FilesBackend, thread: str) -> int:
    return len(backend._root.queue(thread)._waiting)


async def until_waiting(backend: FilesBackend, thread: str, count: int) -> None:
    await asyncio.to_thread(until, lambda: waiting(backend, thread) >= count)


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def ids(store: Store, thread: str) -> set[str]:
    chart = run(store.chart(thread))
    return set() if chart is None else {row.id for row in chart.rows}


def test_threads_that_come_meanwhile_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, store = opened(tmp_path)
    chain(store, "t", 1)
    gate = Gate(monkeypatch, "fdatasync")
    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(put, store, "t", 1, None)]
        assert gate.reached.wait(30)
        futures += [pool.submit(put, store, "t", number, None, writer=number) for number in range(2, 20)]
        until(lambda: waiting(backend, "t") >= 18)
        gate.open.set()
        for future in futures:
            future.result(30)
    assert gate.count == 2
    assert ids(store, "t") == set(map(name, range(20)))


def test_a_refused_change_in_a_batch_harms_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, store = opened(tmp_path)
    chain(store, "t", 2)
    run(store.delete_thread("t"))
    gate = Gate(monkeypatch, "fdatasync")
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(run, store.put("t", row("a"), [], None))
        assert gate.reached.wait(30)
        late = pool.submit(run, store.put("t", row("b", name(1)), [], None))
        stale = pool.submit(run, store.put("t", row("c"), [], 1))
        good = pool.submit(run, store.put("t", row("d"), [], None))
        until(lambda: waiting(backend, "t") >= 3)
        gate.open.set()
        assert not first.result(30).stale
        assert not good.result(30).stale
        assert stale.result(30).stale
        with pytest.raises(ThreadDeleted):
            late.result(30)
    assert ids(store, "t") == {"a", "d"}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started in the background, by a shell that has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_waiter_that_is_interrupted_takes_its_write_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, store = opened(tmp_path)
    chain(store, "t", 1)
    gate = Gate(monkeypatch, "fdatasync")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(put, store, "t", 1, None)
        assert gate.reached.wait(30)
        waiter = threading.get_ident()

        def interrupt() -> None:
            until(lambda: waiting(backend, "t") == 1)
            signal.pthread_kill(waiter, signal.SIGINT)

        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            put(store, "t", 2, None)
        gate.open.set()
        first.result(30)
    put(store, "t", 3, None)
    assert ids(store, "t") == {name(0), name(1), name(3)}


def test_a_leader_that_is_interrupted_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, store = opened(tmp_path)
    chain(store, "t", 1)
    real = os.fdatasync
    reached = threading.Event()

    def interrupted(_: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        reached.set()
        until(lambda: waiting(backend, "t") == 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdatasync", interrupted)
    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(put, store, "t", 1, None)
        assert reached.wait(30)
        others = [pool.submit(put, store, "t", number, None) for number in (2, 3)]
        with pytest.raises(KeyboardInterrupt):
            leader.result(30)
        for other in others:
            other.result(30)
    put(store, "t", 4, None)
    assert ids(store, "t") >= set(map(name, (0, 2, 3, 4)))


def test_a_writer_interrupted_at_any_line_stops_nobody(tmp_path: Path) -> None:
    backend, store = opened(tmp_path, durability="os")
    chain(store, "t", 1)
    files = (commit.__file__, log.__file__)
    number = left = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        # No signal is handled between the leaving of a `with` and its last call, nor at a `try`.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        if event == "line" and not line.startswith(("with ", "try:")):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    with ThreadPoolExecutor(1) as pool:
        while True:
            left, number = number, number + 1
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                put(store, "t", number, None)
            except KeyboardInterrupt:
                sys.settrace(before)
            else:
                sys.settrace(before)
                break
            pool.submit(put, store, "t", 100_000 + number, None).result(30)
            put(store, "t", number, None)
    assert number > 100
    assert {name(100_000 + each) for each in range(1, number)} < ids(store, "t")
    backend.close()


def test_a_writer_interrupted_over_the_snapshot_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = opened(tmp_path, durability="os")

    def interrupted(_: index.Index) -> bytes:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(index.Index, "freeze", interrupted)
    with pytest.raises(KeyboardInterrupt):
        chain(store, "t", 1000)
    count = len(ids(store, "t"))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(put, store, "t", 1000, None).result(30)
    assert len(ids(store, "t")) == count + 1 < 1000


def test_a_leader_hands_over(tmp_path: Path) -> None:
    _, store = opened(tmp_path, durability="os")
    with ThreadPoolExecutor(8) as pool:

        def work(writer: int) -> None:
            for number in range(60):
                put(store, "t", writer * 1000 + number, None, writer=writer)

        for future in [pool.submit(work, writer) for writer in range(8)]:
            future.result(60)
    assert len(ids(store, "t")) == 480


async def test_tasks_share_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, blocking = opened(tmp_path)
    chain(blocking, "t", 1)
    store = backend.asynchronous()
    gate = Gate(monkeypatch, "fdatasync")
    first = asyncio.create_task(store.put_writes("t", "", name(0), writes("task", "v"), None))
    await asyncio.to_thread(gate.reached.wait)
    tasks = [
        asyncio.create_task(store.put_writes("t", "", name(0), writes(f"task {number}", "v"), None))
        for number in range(100)
    ]
    await until_waiting(backend, "t", 100)
    gate.open.set()
    answers = await asyncio.gather(first, *tasks)
    assert all(answer.accepted == (True,) for answer in answers)
    assert gate.count == 2
    loaded = await store.get("t", "", None)
    assert loaded is not None
    assert len(loaded.snapshots[0].writes) == 101
    await backend.aclose()


async def test_a_write_cancelled_before_it_began_never_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, blocking = opened(tmp_path)
    chain(blocking, "t", 1)
    store = backend.asynchronous()
    gate = Gate(monkeypatch, "fdatasync")
    first = asyncio.create_task(store.put("t", row("first"), [], None))
    await asyncio.to_thread(gate.reached.wait)
    second = asyncio.create_task(store.put("t", row("second"), [], None))
    await until_waiting(backend, "t", 1)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.open.set()
    await first
    assert ids(blocking, "t") == {name(0), "first"}
    await backend.aclose()


async def test_a_write_cancelled_after_it_began_is_there_when_the_task_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, blocking = opened(tmp_path)
    chain(blocking, "t", 1)
    store = backend.asynchronous()
    gate = Gate(monkeypatch, "fdatasync")
    task = asyncio.create_task(store.put("t", row("new"), [], None))
    await asyncio.to_thread(gate.reached.wait)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ids(blocking, "t") == {name(0), "new"}
    await backend.aclose()


def test_one_store_serves_loops_and_threads_at_once(tmp_path: Path) -> None:
    backend, blocking = opened(tmp_path)

    async def in_loop(number: int) -> None:
        store = backend.asynchronous()
        await asyncio.gather(*(store.put("t", row(f"{number}-{each}"), [], None) for each in range(10)))
        put(blocking, "u", number, None)  # a blocking call inside a running loop

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(asyncio.run, in_loop(number)) for number in range(4)]:
            future.result(60)
    assert len(ids(blocking, "t")) == 40
    assert len(ids(blocking, "u")) == 4
    backend.close()


async def test_errors_reach_tasks_typed(tmp_path: Path) -> None:
    backend, blocking = opened(tmp_path)
    chain(blocking, "t", 1)
    run(blocking.delete_thread("t"))
    store = backend.asynchronous()
    with pytest.raises(ThreadDeleted):
        await store.put_writes("t", "", name(0), writes("a", "b"), None)
    await store.close()
    with pytest.raises(Unavailable):
        await store.get("t", "", None)
    await backend.aclose()


def test_an_error_of_no_kind_we_know_is_not_its_own_cause(tmp_path: Path) -> None:
    _, store = opened(tmp_path)
    chain(store, "t", 1)
    with pytest.raises(ValueError, match="unpack") as caught:
        run(store.fetch("t", [(1,)]))  # type: ignore[list-item]  # what no caller does
    assert caught.value.__cause__ is None


def of_store(path: Path) -> list[str]:
    """Which of its files this process has open."""
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [str(link) for link in links if link.is_relative_to(path)]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system does not tell what is open")
@pytest.mark.parametrize("fails", [False, True])
async def test_what_is_closed_holds_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """No cycle of objects may keep one, which a collection of garbage would find only later."""
    gc.collect()
    gc.disable()
    try:
        backend, store = opened(tmp_path, durability="os")
        asynchronous = backend.asynchronous()
        for thread in ("a", "b"):
            put(store, thread, 0, None)
            await asynchronous.put_writes(thread, "", name(0), writes("x", "v"), None)
        if fails:

            def full(*_: object) -> int:
                raise OSError(errno.ENOSPC, "full")

            monkeypatch.setattr(os, "pwrite", full)
            with pytest.raises(Unavailable):
                put(store, "a", 1, name(0))
            with pytest.raises(Unavailable):
                await asynchronous.put_writes("b", "", name(5), writes("y", "v"), None)
        await backend.aclose()
        assert of_store(tmp_path) == []
    finally:
        gc.enable()


def test_a_file_is_closed_even_when_the_interpreter_has_emptied_its_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = handle.Handle(os.open(tmp_path, os.O_RDONLY), writable=False)
    fd = held.fd
    with monkeypatch.context() as patch:
        patch.setattr(handle, "os", None)
        del held
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


def test_more_threads_than_are_kept_open(tmp_path: Path) -> None:
    backend, store = opened(tmp_path, max_open=2, durability="os")
    before = descriptors()
    for _ in range(2):
        for number in range(20):
            put(store, f"t{number}", 0, None)
    assert descriptors() <= before + 2
    assert all(ids(store, f"t{number}") == {name(0)} for number in range(20))
    backend.close()
    assert descriptors() <= before
