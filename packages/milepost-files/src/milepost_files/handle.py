"""An open log file, and the lock that writers take on it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable

Look = tuple[int, int, bytes]
"""(end, size, tail): how many bytes a log's file has, and the first ones after the offset `end`."""


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
        return lock(self.fd, 0, 0) is not None

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)


def opened(path: str) -> Handle:
    """A log that is there, for reading alone where it cannot be written."""
    try:
        return Handle(os.open(path, os.O_RDWR | os.O_CLOEXEC), writable=True)
    except OSError as exc:
        if exc.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return Handle(os.open(path, os.O_RDONLY | os.O_CLOEXEC), writable=False)


def created(path: str) -> Handle:
    """A log for writing, made with its folder where it is not there."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return Handle(os.open(path, flags, 0o666), writable=True)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        sync_folder(os.path.dirname(folder))
        return Handle(os.open(path, flags, 0o666), writable=True)


def identity(status: os.stat_result) -> tuple[int, int]:
    """What tells a file from every other one."""
    return status.st_dev, status.st_ino


def names(path: str, handle: Handle) -> bool:
    """Whether `path` is (still) the file that `handle` has open."""
    return confirm(-1, os.fsencode(path), *handle.identity, b"")


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


def look(fd: int, end: int, length: int) -> Look:
    """What is to be known of a log's file: `end`, how many bytes there are, and which of them follow the offset `end`, up
    to `length`. The place in the file is nobody's."""
    size = os.lseek(fd, 0, os.SEEK_END)
    return end, size, os.pread(fd, length, end) if size > end else b""


def lock_in_steps(fd: int, end: int, length: int, /) -> Look | None:
    """Lock a file and `look` at it. None, and nothing done, where somebody else has it locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    try:
        return look(fd, end, length)
    except BaseException:
        fcntl.flock(fd, fcntl.LOCK_UN)
        raise


def confirm_in_steps(fd: int, path: bytes, device: int, inode: int, fence: bytes, /) -> bool:
    """Whether `path` is the file of that device and inode, and there is no file `fence`. If so the lock is given back,
    unless `fd` is -1."""
    try:
        status = os.stat(os.fsdecode(path))
    except FileNotFoundError:
        return False
    if identity(status) != (device, inode) or os.access(fence, os.F_OK):
        return False
    if fd >= 0:
        fcntl.flock(fd, fcntl.LOCK_UN)
    return True


lock: Callable[[int, int, int], Look | None] = lock_in_steps
confirm: Callable[[int, bytes, int, int, bytes], bool] = confirm_in_steps
try:
    from milepost_speedups._system import confirm as _confirm
    from milepost_speedups._system import lock as _lock
except ImportError:
    pass
else:  # in C, each is one step
    lock, confirm = _lock, _confirm
