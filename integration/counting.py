"""What an operation costs, counted instead of timed: calls of functions, calls of the system, and round trips."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

_NO_SYSTEM_CALLS = {"fspath", "fsencode", "fsdecode", "getpid", "getcwd", "register_at_fork", "scandir"}
"""Functions of ``posix`` that ask nobody, or that no put may be blamed for."""


class Calls:
    """The calls that a thread made while it was watched: of functions in Python and in C, and of the system."""

    def __init__(self) -> None:
        self.functions = 0
        self.system: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.functions += 1
        elif event == "c_call":
            self.functions += 1
            module, name = getattr(argument, "__module__", None), argument.__name__
            if module in ("posix", "fcntl") and name not in _NO_SYSTEM_CALLS:
                self.system[name] += 1


@contextmanager
def counted() -> Generator[Calls]:
    """The calls made in the block, by this thread."""
    calls = Calls()
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(None)


class Tap:
    """A socket in `folder` through which everything goes on to `server`, and which counts what passes.

    A round trip begins when the client sends after the server has sent, or first.
    """

    def __init__(self, folder: Path, name: str, connect: Callable[[], socket.socket]) -> None:
        self.path = folder / name
        self.trips = 0
        self.sent = 0
        """Bytes to the server."""
        self._connect = connect
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        os.chmod(self.path, 0o777)  # noqa: PTH101  # a socket
        self._listener.listen()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._connect()
                turn = _Turn()
                for source, target, onwards in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass, args=(source, target, turn, onwards), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, turn: _Turn, onwards: bool) -> None:
        with suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                with self._lock:
                    if onwards:
                        self.sent += len(data)
                        self.trips += not turn.asked
                    turn.asked = onwards
                target.sendall(data)


class _Turn:
    """Whose turn it is on a connection."""

    asked = False


def unix(path: str | Path) -> Callable[[], socket.socket]:
    """Connects to a socket in the file system."""

    def connect() -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(str(path))
        return made

    return connect
