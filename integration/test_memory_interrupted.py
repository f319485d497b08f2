"""A signal may interrupt a verb of the memory store between any two instructions: what is left is whole."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from milepost import callstore, memory, memory_calls, memory_data
from milepost.callstore import CallChange, CallQuery
from milepost.errors import ThreadDeleted
from milepost.flavour import run
from milepost.memory import MemoryBackend, MemoryStore
from milepost.store import Batch, CheckpointRow, Drop, Pack, Span, WriteRow

FILES = {module.__file__ for module in (callstore, memory, memory_calls, memory_data)}


def _interrupted(act: Callable[[], object], at: int) -> bool:
    """Carry `act` out, and interrupt it before instruction number `at` of the memory store, if it has so many."""
    count = 0

    def within(_frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if event == "opcode":
            count += 1
            if count == at:
                raise KeyboardInterrupt
        return within

    def entered(frame: FrameType, _event: str, _: object) -> Any:
        if frame.f_code.co_filename in FILES and count < at and not frame.f_code.co_flags & inspect.CO_COROUTINE:
            frame.f_trace_opcodes = True
            return within
        return None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def _pack(first: int, count: int = 1) -> Pack:
    return Pack(1, first, count, b"%d" % first)


def _row(id: str, parent: str | None, *spans: Span) -> CheckpointRow:
    return CheckpointRow("", id, parent, b"h", tuple(spans))


def _write(task: str, idx: int, pack: Pack | None = None) -> WriteRow:
    return WriteRow(task, idx, "", "x", b"v", (Span(*pack[:3]),) if pack else (), pack)


def _filled() -> MemoryStore:
    store = MemoryBackend(lambda: 1e9).blocking()
    for id, parent in (("1", None), ("2", "1"), ("3", "2")):
        run(store.put("t", _row(id, parent, Span(1, 2 * int(id), 2)), [_pack(2 * int(id), 2)], None))
        run(store.put_writes("t", "", id, [_write("old", 0)], None))
    run(store.put_writes("t", "", "late", [_write("old", 0)], None))
    run(store.claim("t", _claim("known")))
    return store


def _claim(key: str, **more: Any) -> CallChange:
    change = CallChange(
        key=key, expect=None, generation=1, attempt=1, state="started", stamp=key, entry=b"e", match="m"
    )
    return replace(change, **more)


def _settle(store: MemoryStore, number: int = 1) -> None:
    for row in run(store.calls(CallQuery(thread="t", keys=("known",), states=frozenset({"started"})), None, 9)).rows:
        change = _claim("known", expect=row.mark, state="succeeded", stamp=f"s{number}", alias="other", match="n")
        assert run(store.settle("t", change)).done


def _token(store: MemoryStore) -> str:
    chart = run(store.chart("t"))
    return "" if chart is None else chart.token


def _prune(store: MemoryStore) -> None:
    drop = Drop(
        checkpoints=(("", "1"), ("", "2")),
        parents=(("", "3", None),),
        packs=(Span(1, 2, 2), Span(1, 4, 2), Span(1, 6, 2)),
        repacked=(_pack(6), _pack(7)),
    )
    run(store.drop("t", drop, _token(store)))


def _rewrite(store: MemoryStore) -> None:
    rows = tuple(_row(id, None)._replace(key=id + "~") for id in "123")
    batch = Batch(rows, (("", "1", _write("new", 0, _pack(20))), ("", "late", _write("new", 0))), (_pack(21),))
    run(store.rewrite("t", batch, _token(store)))


def _load(store: MemoryStore) -> None:
    rows = (_row("1", None, Span(1, 2, 2))._replace(key="4"), _row("4", "3", Span(1, 30, 1))._replace(key="4~"))
    run(store.load("t", Batch(rows, (("", "4", _write("new", 0)),), (_pack(30),))))


def _forget(store: MemoryStore) -> None:
    _settle(store, 2)
    run(store.forget("t", [("known", 2)]))


ATOMIC: dict[str, Callable[[MemoryStore], object]] = {
    "a first put": lambda store: run(store.put("new", _row("5", None, Span(1, 40, 1)), [_pack(40)], None)),
    "put": lambda store: run(store.put("t", _row("5", "3", Span(1, 40, 1)), [_pack(40)], None)),
    "put again": lambda store: run(store.put("t", _row("2", "1", Span(1, 40, 1)), [_pack(40)], None)),
    "put_writes": lambda store: run(
        store.put_writes("t", "", "3", [_write("new", n, _pack(50 + n)) for n in range(3)], None)
    ),
    "claim": lambda store: run(store.claim("t", _claim("new", alias="further"), beside=("known",))),
    "settle": _settle,
    "acquire": lambda store: run(store.acquire("t", "me", 9.0)),
}
STEPWISE: dict[str, Callable[[MemoryStore], object]] = {
    "drop": _prune,
    "rewrite": _rewrite,
    "load": _load,
    "delete_thread": lambda store: run(store.delete_thread("t", force=True)),
    "forget": _forget,
}


def _seen(store: MemoryStore) -> object:
    """What readers see of the threads, by every way to it; asserts that the ways agree and that nothing is missing."""
    found: list[object] = []
    for thread in ("t", "new"):
        batch = run(store.export(thread, None, 99)) or Batch()
        head = run(store.get(thread, "", None))
        latest = max(batch.rows, key=lambda row: (row.key, row.id), default=None)
        assert (head and head.snapshots[0].row) == latest
        for row in batch.rows:
            loaded = run(store.get(thread, "", row.id))
            assert loaded is not None
            wanted = {address for span in row.spans for address in _addresses(span)}
            held = {address for pack in loaded.packs[thread] for address in _addresses(Span(*pack[:3]))}
            assert wanted <= held
            assert row.parent is None or any(other.id == row.parent for other in batch.rows)
        calls = run(store.calls(CallQuery(thread=thread), None, 99)).rows
        for call in calls:
            for name in (call.key, *call.aliases):
                assert run(store.calls(CallQuery(thread=thread, keys=(name,)), None, 9)).rows == (call,)
            again = run(store.claim(thread, _claim("kin?", match=call.match), beside=()))
            assert call in again.kin
        writes = sorted((id, write.task, write.idx) for _, id, write in batch.writes)
        found.append((batch.rows, writes, calls, run(store.holder(thread))))
    threads = [(row.thread, row.head, row.checkpoints) for row in run(store.threads(None, 9)).rows]
    return found, threads


def _addresses(span: Span) -> Sequence[tuple[int, int]]:
    return [(span.writer, span.first + nr) for nr in range(span.count)]


@pytest.mark.parametrize("verb", [*ATOMIC, *STEPWISE])
def test_an_interrupted_verb_leaves_the_store_whole(verb: str) -> None:
    act = (ATOMIC | STEPWISE)[verb]
    store = _filled()
    before = _seen(store)
    act(store)
    after = _seen(store)
    assert before != after
    at = 0
    while True:
        at += 1
        store = _filled()
        if not _interrupted(lambda store=store: act(store), at):  # type: ignore[misc]  # bound at once
            break
        seen = _seen(store)
        assert verb in STEPWISE or seen in (before, after), at
        act(store)
        assert _seen(store) == after, at
    assert at > 20


def test_an_interrupted_deletion_leaves_no_way_back() -> None:
    at = 0
    while True:
        at += 1
        store = _filled()
        if not _interrupted(lambda store=store: run(store.delete_thread("t", force=True)), at):  # type: ignore[misc]
            break
        if run(store.get("t", "", None)) is None:
            with pytest.raises(ThreadDeleted):
                run(store.put("t", _row("4", "3"), (), None))


def test_a_plan_of_before_an_interrupted_write_is_refused() -> None:
    """What the write refers to may be what the plan removes."""
    at = 0
    while True:
        at += 1
        store = _filled()
        token = _token(store)
        row = _row("5", "3", Span(1, 2, 2))
        if not _interrupted(lambda store=store, row=row: run(store.put("t", row, (), None)), at):  # type: ignore[misc]
            break
        if run(store.get("t", "", "5")) is not None:
            assert run(store.drop("t", Drop(packs=(Span(1, 2, 2),)), token)) is None
