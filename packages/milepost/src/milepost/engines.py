"""What a backend over servers carries its requests out with: one engine for blocking calls, and one for each event loop.

Each is made when it is first asked for. A process that was forked has none of those of its parent.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Protocol


class Engine(Protocol):
    """Carries out requests in the calling thread."""

    def call(self, request: Any, /) -> Any: ...

    def close(self) -> None: ...


class AsyncEngine(Protocol):
    """Carries out requests in one event loop."""

    async def call(self, request: Any, /) -> Any: ...

    def close(self) -> None:
        """Close, or begin to close, from any thread; also when the loop is over."""
        ...

    async def aclose(self) -> None:
        """Close, in its own loop."""
        ...


class Engines:
    """The engines of one backend, made by `blocking` and `running`. What is asked for after `close` raises `closed()`."""

    def __init__(
        self,
        blocking: Callable[[], Engine],
        running: Callable[[], AsyncEngine],
        closed: Callable[[], Exception],
    ) -> None:
        self._make = blocking
        self._make_running = running
        self._closed_error = closed
        self._closed = False
        self._gate = threading.Lock()
        self._blocking: Engine | None = None
        # An engine may know its loop, and then keeps it: those of loops that are closed are looked for.
        self._running: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncEngine] = weakref.WeakKeyDictionary()
        self._inherited: list[object] = []
        _all.add(self)

    def blocking(self) -> Engine:
        """The engine of blocking calls."""
        engine = self._blocking
        if engine is None:
            with self._gate:
                if self._closed:
                    raise self._closed_error()
                engine = self._blocking
                if engine is None:
                    engine = self._blocking = self._make()
        return engine

    def running(self) -> AsyncEngine:
        """The engine of the running event loop."""
        loop = asyncio.get_running_loop()
        engine = self._running.get(loop)
        if engine is None:
            with self._gate:
                if self._closed:
                    raise self._closed_error()
                over = [self._running.pop(other) for other in [*self._running] if other.is_closed()]
                engine = self._running[loop] = self._make_running()
            with ExitStack() as stack:
                for other in over:
                    stack.callback(other.close)
        return engine

    def close(self) -> None:
        """Close all of them, also when one of them cannot be closed."""
        with ExitStack() as stack:
            for engine in self._take():
                stack.callback(engine.close)

    async def aclose(self) -> None:
        """The same. That of the running loop is waited for; also who is cancelled leaves none of the others open."""
        here = self._running.get(asyncio.get_running_loop())
        async with AsyncExitStack() as stack:
            if here is not None:
                stack.push_async_callback(here.aclose)
            for engine in self._take():
                if engine is not here:
                    stack.callback(engine.close)

    def _take(self) -> list[Engine | AsyncEngine]:
        with self._gate:
            self._closed = True
            engines: list[Engine | AsyncEngine] = [*self._running.values()]
            self._running.clear()
            if self._blocking is not None:
                engines.append(self._blocking)
                self._blocking = None
        return engines

    def renew(self) -> None:
        """Share nothing with the process that this one was forked from."""
        self._gate = threading.Lock()
        # Kept, not closed: what is told a server over a connection is told for the parent.
        self._inherited += [self._blocking, *self._running.values()]
        self._blocking = None
        self._running = weakref.WeakKeyDictionary()


class _Port:
    def __init__(self, engine: Callable[[], Any], closed: Callable[[], Exception]) -> None:
        self._made = engine
        self._error = closed
        self._closed = False

    def _engine(self) -> Any:
        if self._closed:
            raise self._error()
        return self._made()

    def close(self) -> None:
        self._closed = True


class BlockingPort(_Port):
    """`milepost.store.Port` over the blocking engine of a backend. It never suspends."""

    async def call(self, request: object) -> Any:
        return self._engine().call(request)


class AsyncPort(_Port):
    """`milepost.store.Port` over the engine of whatever event loop runs."""

    async def call(self, request: object) -> Any:
        return await self._engine().call(request)


_all: weakref.WeakSet[Engines] = weakref.WeakSet()


def _renew() -> None:
    for engines in tuple(_all):
        engines.renew()


os.register_at_fork(after_in_child=_renew)
