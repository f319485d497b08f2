"""Milepost's savers for LangGraph's own test files: what ``run_langgraph_suite.py --factory`` is given.

A factory takes "sync", "async" or "dual" and returns a context manager over a fresh, empty saver. One saver serves both
flavours, so the three differ in nothing but how they are entered.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path

import milepost
from milepost.saver import Saver

Entered = AbstractContextManager[Saver] | AbstractAsyncContextManager[Saver]


def memory(kind: str) -> Entered:
    """A saver over a memory store of its own."""
    del kind  # one object, entered either way
    return milepost.connect("memory:")


def files(kind: str) -> Entered:
    """A saver over a directory of its own, gone afterwards."""
    return _files_async() if kind == "async" else _files()


@contextmanager
def _files() -> Iterator[Saver]:
    with tempfile.TemporaryDirectory(prefix="milepost-") as folder, _open(folder) as saver:
        yield saver


@asynccontextmanager
async def _files_async() -> AsyncIterator[Saver]:
    with tempfile.TemporaryDirectory(prefix="milepost-") as folder:
        async with _open(folder) as saver:
            yield saver


def _open(folder: str) -> Saver:
    # LangGraph's tests never crash a process, so they need not wait for the disk.
    return milepost.connect(f"file:{Path(folder).as_posix()}", durability="os")
