"""The two flavours of a saver: a store that blocks or one that is awaited, and how to wait in each."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from milepost.errors import InvalidConfig
from milepost.flavour import Suspended, run
from milepost.pending import Op, running_loop
from milepost.store import Store

_LOOK_AGAIN = 0.5
"""Seconds after which a wait makes sure that what it waits for can still happen."""


class Side(Protocol):
    """A store in one flavour, and how to wait in it."""

    store: Store

    async def wait(self, ops: Sequence[tuple[Op, Future[None]]]) -> None: ...

    async def ask(self, hook: Callable[..., object], *given: object, blocks: bool) -> Any:
        """The answer of a function of the application's, which may be a coroutine function. One that `blocks`, for a
        disk or a network, holds up no event loop."""
        ...


class BlockingSide:
    """For callers that block."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def wait(self, ops: Sequence[tuple[Op, Future[None]]]) -> None:
        here = running_loop()
        for op, done in ops:
            # What runs on this very loop cannot end while we block it.
            while (here is None or op.loop is not here) and not op.abandoned:
                with suppress(TimeoutError):
                    done.result(_LOOK_AGAIN)
                    break

    async def ask(self, hook: Callable[..., object], *given: object, blocks: bool) -> Any:
        """Raises `InvalidConfig` when the hook waits for an event loop, which may run around us and is blocked then."""
        answer = hook(*given)
        if not inspect.isawaitable(answer):
            return answer
        try:
            return run(_awaited(answer))
        except RuntimeError as exc:
            if not isinstance(exc, Suspended) and (running_loop() is not None or "event loop" not in str(exc)):
                raise
            raise InvalidConfig(
                "a hook is a coroutine function that waits for an event loop, and a blocking call has none for it: use "
                "the async methods, such as amaintain, or have it block",
                what="hooks",
            ) from exc


class AsyncSide:
    """For callers in an event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def wait(self, ops: Sequence[tuple[Op, Future[None]]]) -> None:
        for op, ended in ops:
            done = asyncio.wrap_future(ended)
            while not done.done() and not op.abandoned:
                await asyncio.wait((done,), timeout=_LOOK_AGAIN)

    async def ask(self, hook: Callable[..., object], *given: object, blocks: bool) -> Any:
        apart = blocks and not inspect.iscoroutinefunction(hook)
        answer = await asyncio.to_thread(hook, *given) if apart else hook(*given)
        return await answer if inspect.isawaitable(answer) else answer


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer
