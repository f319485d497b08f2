"""Whose turn it is to write to a log, and how a log is replaced while others may be at it.

A writer that is stopped while it holds the lock (SIGSTOP, a paused container) must not stop the others for ever, and
must do no harm when it goes on. So a lock that its holder keeps for too long is not broken but left behind: the waiter
copies the log to a new file and renames that over the old one. What makes this safe:

- While a waiter does so, a *fence* (the file ``….take``, locked) stands. Nobody acknowledges a write while he sees a
  fence, so whatever was acknowledged was written before the copy, and is in it.
- The holder of a lock may replace the log too (to give back space, to delete). Its new file is prepared under a name
  of its own; a waiter removes such files after putting up the fence, so a rename that was prepared before fails, and
  one that is prepared later sees the fence first.
- A fence that its owner left standing when it died is not locked, and is taken away by whoever meets it. A fence whose
  owner is itself stopped cannot be passed: then writers of this log get `Unavailable` until it goes on or ends.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Generator
from typing import Final

from milepost.errors import Unavailable

from milepost_files import handle
from milepost_files.handle import Handle, names, sync_folder

_FIRST_PAUSE: Final = 0.00005
_LONGEST_PAUSE: Final = 0.004

Fill = Callable[[int], None]
"""Writes the whole content of a new log to a descriptor."""


class Superseded(Exception):
    """Somebody else is replacing the log, or has: start again with the file that the path names then."""

    def __str__(self) -> str:
        return "somebody else is replacing the log"


class Turns:
    """The lock of one log."""

    def __init__(self, stem: str, timeout: float) -> None:
        self._stem = stem
        self._path = stem + ".log"
        self._fence_path = stem + ".take"
        self._named, self._fenced = os.fsencode(self._path), os.fsencode(self._fence_path)
        self._timeout = timeout

    def take(self, held: Handle, copy: Fill) -> bool:
        """Wait for the lock of the file of `held`; False when the path names another file by now.

        A holder that shows no progress for the lock's time-out is left behind, with what `copy` saves of the log.
        """
        deadline = time.monotonic() + self._timeout
        pause, progress = _FIRST_PAUSE, _progress(held)
        while not held.try_lock():
            if not names(self._path, held):
                return False
            if time.monotonic() > deadline:
                now = _progress(held)
                if now == progress:
                    self._take_over(held, copy)
                    return False
                deadline, progress = time.monotonic() + self._timeout, now
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        if names(self._path, held):
            return True
        held.unlock()
        return False

    def confirmed(self, held: Handle, *, unlock: bool = False) -> bool:
        """Whether what was written to `held` under the lock counts: it is the log, and nobody is replacing it. With
        `unlock`, the lock is given back if so."""
        return handle.confirm(held.fd if unlock else -1, self._named, *held.identity, self._fenced)

    def wait_out(self) -> None:
        """Return when no fence stands. Raises `Unavailable` when one stands for too long."""
        with contextlib.suppress(FileNotFoundError), self._fence(create=False):
            pass

    def replace(self, held: Handle, fill: Fill, *, losable: bool = False) -> None:
        """Put a new file in the place of `held`, whose lock the caller has. Raises `Superseded`; then nothing changed.

        Should the machine fail in the middle, the log is the old one or the new one. With `losable` it may also be
        empty: then the disk has one thing to wait for, and not two.
        """
        self._revoke()
        with self._prepare(fill, sync=not losable) as (temporary, fd):
            if not self.confirmed(held):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
                raise Superseded
            try:
                os.rename(temporary, self._path)
            except FileNotFoundError as exc:
                raise Superseded from exc
            if losable:
                os.fsync(fd)
        sync_folder(os.path.dirname(self._path))

    def remove(self, held: Handle) -> bool:
        """Remove `held`, whose lock the caller has. Nobody acknowledges a write to it, or replaces it, meanwhile."""
        with self._fence(create=True):
            self._revoke()
            there = names(self._path, held)
            if there:
                os.unlink(self._path)
        sync_folder(os.path.dirname(self._path))
        return there

    def clear(self) -> None:
        """Remove what was prepared, and a fence that nobody holds. Whoever is about to rename something starts again."""
        with self._fence(create=True):
            self._revoke()

    def _take_over(self, held: Handle, copy: Fill) -> None:
        with self._fence(create=True):
            self._revoke()
            if not names(self._path, held):
                return
            # The holder may have gone on, and removed what we had prepared.
            with contextlib.suppress(FileNotFoundError), self._prepare(copy) as (temporary, _):
                os.rename(temporary, self._path)
            sync_folder(os.path.dirname(self._path))

    @contextlib.contextmanager
    def _prepare(self, fill: Fill, *, sync: bool = True) -> Generator[tuple[str, int]]:
        """A new file beside the log, as a path and a descriptor. What goes wrong before it has its content removes it."""
        path = f"{self._stem}.new-{secrets.token_hex(8)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                fill(fd)
                if sync:
                    os.fsync(fd)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                raise
            yield path, fd
        finally:
            os.close(fd)

    def _revoke(self) -> None:
        for path in beside(self._stem, ".new-"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    @contextlib.contextmanager
    def _fence(self, *, create: bool) -> Generator[None, None, None]:
        deadline = time.monotonic() + self._timeout
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        while True:
            fence = Handle(os.open(self._fence_path, flags, 0o666), writable=True)
            if fence.try_lock():
                if names(self._fence_path, fence):
                    break
                continue
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"another process began to replace the log {self._path} more than {self._timeout:g} s ago and has "
                    "neither finished nor ended: it is probably stopped. Let it go on, or end it, then try again",
                    backend="files",
                    op="lock",
                )
            time.sleep(_LONGEST_PAUSE)
        try:
            yield
        finally:
            os.unlink(self._fence_path)


def beside(stem: str, infix: str) -> list[str]:
    """Paths of the files that belong to a log and were named `stem` + `infix` + something."""
    folder, name = os.path.split(stem)
    with os.scandir(folder) as entries:
        return sorted(entry.path for entry in entries if entry.name.startswith(name + infix))


def _progress(held: Handle) -> tuple[int, int]:
    status = os.fstat(held.fd)
    return status.st_size, status.st_mtime_ns
