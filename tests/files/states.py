"""Small states that say whether they are whole, and how to put them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from milepost.flavour import run
from milepost.store import CheckpointRow, Pack, Span, Store, WriteRow
from milepost_files import FilesBackend, open_backend


class At(NamedTuple):
    """Where a worker is to be hit: in the `number`-th use (from 1 on) of a system call, and how (see worker.py)."""

    call: str
    number: int
    action: str


def opened(path: Path, **options: Any) -> tuple[FilesBackend, Store]:
    backend = open_backend(path, **options)
    store = backend.blocking()
    run(store.setup())
    return backend, store


def name(number: int) -> str:
    return f"{number:06}"


def content(number: int) -> bytes:
    return f"item {number};".encode() * 5


def put(store: Store, thread: str, number: int, parent: str | None, *, writer: int = 1, padding: int = 0) -> None:
    """Put checkpoint `number`, which refers to all items of `writer` so far and brings the newest."""
    row = CheckpointRow(
        ns="",
        id=name(number),
        parent=parent,
        header=f"header {number} ".encode() + bytes(padding),
        spans=(Span(writer, 0, number + 1),),
    )
    answer = run(store.put(thread, row, [Pack(writer, number, 1, content(number))], None))
    assert not answer.stale


def chain(store: Store, thread: str, length: int, *, padding: int = 0) -> None:
    for number in range(length):
        put(store, thread, number, name(number - 1) if number else None, padding=padding)


def writes(task: str, *values: str) -> list[WriteRow]:
    return [
        WriteRow(task=task, idx=idx, path="", channel="x", value=value.encode()) for idx, value in enumerate(values)
    ]
