"""Opening the store that a command is about."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any

from milepost.connect import connect
from milepost.saver import Saver

from milepost_inspector.errors import UsageError


@contextmanager
def existing(url: str | None, schema: Any = None) -> Generator[Saver]:
    """The store of `url`, or of MILEPOST_URL: one that is there. Raises `UsageError` for one that is in memory.

    Where there is no store, there is nothing to look after either: the URL is wrong.
    """
    with lasting(url, schema=schema, setup=False) as saver:
        saver.stats("-")  # whatever is wrong with the store is told here, once
        yield saver


@contextmanager
def lasting(url: str | None, **options: Any) -> Generator[Saver]:
    """The store of `url`, or of MILEPOST_URL. Raises `UsageError` for one that ends with the command."""
    with connect(url, **options) as saver:
        if saver.backend.name == "memory":
            raise UsageError("a memory store is empty, and ends with the command: name another one with --url")
        yield saver


def check_threads(saver: Saver, threads: Iterable[str]) -> None:
    """Raises `UsageError` for one that is not in the store: its name is wrong."""
    for thread in threads:
        if not saver.stats(thread).threads:
            raise UsageError(f"there is no thread {thread!r} in the store")
