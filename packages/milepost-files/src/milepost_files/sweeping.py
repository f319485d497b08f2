"""What is left in a store folder: the verb `strays`."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from milepost.errors import MilepostError
from milepost.places import ATTACHMENTS
from milepost.strays import Stray, StrayPage

from milepost_files.forgetting import over
from milepost_files.handle import Handle
from milepost_files.index import Index
from milepost_files.lock import Turns
from milepost_files.log import Log
from milepost_files.reading import reading
from milepost_files.root import Root

_UNFINISHED: Final = (".new-", ".idx-", ".take")
"""What writers that were interrupted leave beside a log."""
_KEPT: Final = (".idx", ".torn-")
"""What is kept beside a log, and of use with it alone."""


def strays(root: Root, after: tuple[str, ...] | None, limit: int, prefix: str, *, remove: bool) -> StrayPage:
    """What is left beside, and in, the next `limit` logs. What cannot be opened, or read, is no leftover."""
    found: list[Stray] = []
    previous = ""
    for count, (name, files) in enumerate(root.stems(after[0] if after else "")):
        if count == limit:
            return StrayPage(tuple(found), (previous,))
        with suppress(OSError, EOFError, MilepostError):
            log = root.named_within(name, prefix)
            if log is not None and log.known and log.thread.startswith(prefix):
                found += _of_thread(root, name, log, remove=remove)
            elif log is not None and not prefix and log.nameless() is None and f"{name}.log" in files:
                found += _removed(root, name, "", remove=remove)
        if not prefix:
            with suppress(OSError, MilepostError):
                found += _beside(root, name, files, remove=remove)
        previous = name
    return StrayPage(tuple(found), None)


def _of_thread(root: Root, name: str, log: Log, *, remove: bool) -> Iterator[Stray]:
    """What is left of a thread whose log there is."""
    alone, nothing = reading(log, functools.partial(_judged, root.settings.clock()), lambda _, said: said) or (0, False)
    if alone:
        yield Stray("thread", log.thread, "", alone)
    elif nothing:
        yield from _removed(root, name, log.thread, remove=remove)


def _judged(now: float, index: Index) -> tuple[int, bool]:
    """How many bytes of packs or attachments are alone, and whether nothing in the log counts."""
    lone = index.namespaces.keys() <= {ATTACHMENTS} and not any(each.writes for each in index.namespaces.values())
    return index.live if lone and not index.bare else 0, over(index, now)


def _removed(root: Root, name: str, thread: str, *, remove: bool) -> Iterator[Stray]:
    """A log that holds nothing that counts."""
    file = f"{name}.log"
    size = os.stat(root.file(name, file)).st_size
    if not remove or root.anew(name).remove(over):
        yield Stray("file", thread, file, size)


def _beside(root: Root, name: str, files: list[str], *, remove: bool) -> Iterator[Stray]:
    """What is left beside a log; of one that is gone, all that was."""
    if not any(file[len(name) :].startswith((*_UNFINISHED, *_KEPT)) for file in files):
        return

    log = root.file(name, f"{name}.log")
    held = Handle(os.open(log, os.O_RDWR | os.O_CLOEXEC), writable=True) if os.path.exists(log) else None
    if held is not None and not held.try_lock():
        return  # somebody writes to it
    try:
        kinds = (*_UNFINISHED, *_KEPT) if held is None else _UNFINISHED
        paths = [root.file(name, file) for file in files if file[len(name) :].startswith(kinds)]
        found = [(path, os.stat(path).st_size) for path in paths if os.path.exists(path)]
        if found and remove:
            Turns(log.removesuffix(".log"), root.settings.lock_timeout).clear()
            for path, _ in found:
                with suppress(FileNotFoundError):
                    os.unlink(path)
    finally:
        if held is not None:
            held.unlock()
    yield from (Stray("file", "", os.path.basename(path), size) for path, size in found)
