"""An open log file, and the lock that writers take on it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable


class Handle:
    """A descriptor that is closed when nobody uses it any more: readers may be at it while a writer replaces the log."""

    __slots__ = ("fd", "identity", "writable")

    def __init__(self, fd: int, *, writable: bool) -> None:
        self.fd = fd
        self.writable = writable
        self.identity = identity(os.fstat(fd))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # `close` is bound early: when the interpreter ends, the module may be empty before this runs.
        if hasattr(self, "fd"):  # __init__ may have been interrupted
            close(self.fd)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def try_lock(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)


def identity(status: os.stat_result) -> tuple[int, int]:
    """What tells a file from every other one."""
    return status.st_dev, status.st_ino


def names(path: str, handle: Handle) -> bool:
    """Whether `path` is (still) the file that `handle` has open."""
    try:
        return identity(os.stat(path)) == handle.identity
    except FileNotFoundError:
        return False


def sync_folder(path: str) -> None:
    """Have the disk keep the names in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write(fd: int, data: bytes, offset: int) -> tuple[int, OSError | None]:
    """Write `data` at `offset`. Returns how much of it was written, and what stopped it."""
    done = 0
    try:
        while done < len(data):
            done += os.pwrite(fd, data[done:] if done else data, offset + done)
    except OSError as exc:
        return done, exc
    return done, None
