"""Opening a file store."""

from __future__ import annotations

import asyncio
import os
import re
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal
from urllib.parse import unquote

from milepost.connect import Option, Scheme
from milepost.errors import InvalidConfig
from milepost.store import Port, Store

from milepost_files.driver import AsyncPort, BlockingPort, Workers
from milepost_files.log import Settings
from milepost_files.root import Root
from milepost_files.store import FilesStore
from milepost_files.uptime import uptime

_GROWTH: Final = 1 << 16
_STRANGE: Final = re.compile(r"#|[&;]\w+=")
"""What looks like a part of a URL that comes after the path."""


class FilesBackend:
    """A store in a folder, shared by any number of processes. `milepost.store.Backend`; made by `open_backend`."""

    name = "files"
    capabilities = frozenset({"durable", "shared", "damage", "ledger"})

    def __init__(self, root: Root) -> None:
        self.path = root.path
        self._root = root
        self._workers = Workers()
        _backends.add(self)

    def blocking(self) -> Store:
        port = BlockingPort(self._root, self._workers)
        return FilesStore(self._root, port, port.close)

    def asynchronous(self) -> Store:
        port = AsyncPort(self._root, self._workers)
        return FilesStore(self._root, port, port.close)

    def over(self, port: Port) -> Store:
        """The same store behind another port, whose requests are functions of no arguments: for fault injection."""
        return FilesStore(self._root, port, self.close)

    def close(self) -> None:
        self._workers.stop()
        self._root.close()

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)

    def renew(self) -> None:
        """Share nothing with the process that this one was forked from."""
        self._workers.renew()
        self._root.renew()


def open_backend(
    path: str | os.PathLike[str],
    *,
    durability: Literal["full", "os"] = "full",
    lock_timeout: float = 5.0,
    max_open: int = 256,
    preallocate: bool = False,
    clock: Callable[[], float] = time.time,
) -> FilesBackend:
    """Open the store in the folder `path`; it is created at the first use if it is not there.

    - `durability`: with "full" an answer waits until the disk has the data; with "os" it does not, and the newest
      writes may be lost when the machine (not the process) stops.
    - `lock_timeout`: seconds after which a writer that holds a log and makes no progress is left behind.
    - `max_open`: how many threads are kept open, each with its index and one file descriptor.
    - `preallocate`: grow logs by 64 KiB at a time. Makes puts of small states faster and small threads larger.
    - `clock`: seconds since the epoch, for the times of checkpoints.

    Raises `InvalidConfig` for an option that is not usable. What is wrong with the folder shows at the first use.
    """
    if durability not in ("full", "os"):
        raise _unusable("durability", durability, "'full' or 'os'")
    if isinstance(lock_timeout, bool) or not lock_timeout > 0:
        raise _unusable("lock_timeout", lock_timeout, "a number of seconds greater than 0")
    if isinstance(max_open, bool) or max_open < 1:
        raise _unusable("max_open", max_open, "a whole number, at least 1")
    folder = os.fspath(path)
    if not folder or "\0" in folder or not _encodable(folder):
        raise _unusable("path", path, "the path of a folder")
    settings = Settings(
        clock=clock,
        # A clock of the caller's own decides alone.
        uptime=uptime if clock is time.time else lambda: None,
        sync=durability == "full",
        lock_timeout=lock_timeout,
        preallocate=_GROWTH if preallocate else 0,
    )
    return FilesBackend(Root(os.path.abspath(folder), settings, max_open))


def _open(url: str, options: Mapping[str, Any]) -> FilesBackend:
    path = url.partition(":")[2]
    if path.startswith("//"):
        host, _, path = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise InvalidConfig(
                f"{url!r}: a file store is a folder of this machine; write file:relative/path or file:///absolute/path",
                what="url",
                value=repr(url)[:200],
            )
        path = "/" + path
    if not path.strip("/"):
        raise InvalidConfig(f"{url!r} names no folder; write file:./state, say", what="url", value=repr(url)[:200])
    if strange := _STRANGE.search(path):
        raise InvalidConfig(
            f"{url!r}: options begin with a question mark, as in file:./state?durability=os; in the name of a folder, "
            f"{strange[0][0]!r} is written %{ord(strange[0][0]):02X}",
            what="url",
            value=repr(url)[:200],
        )
    if path.startswith(("~", "./~")):
        raise InvalidConfig(
            f"{url!r}: ~ is not expanded; write the home folder out, or %7E for a folder whose name begins with ~",
            what="url",
            value=repr(url)[:200],
        )
    return open_backend(unquote(path), **options)


SCHEME: Final = Scheme(
    _open,
    "file:./state",
    {
        "durability": Option(str, "full waits for the disk, os leaves that to the system", choices=("full", "os")),
        "lock_timeout": Option(float, "seconds before a stopped writer is left behind", at_least=0.01),
        "max_open": Option(int, "how many threads are kept open", at_least=1),
        "preallocate": Option(bool, "grow logs by 64 KiB at a time"),
    },
)


def _encodable(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def _unusable(what: str, value: object, wanted: str) -> InvalidConfig:
    return InvalidConfig(
        f"option {what} of the file store must be {wanted}, not {value!r}", what=what, value=repr(value)[:200]
    )


_backends: weakref.WeakSet[FilesBackend] = weakref.WeakSet()


def _renew() -> None:
    for backend in tuple(_backends):
        backend.renew()


os.register_at_fork(after_in_child=_renew)
