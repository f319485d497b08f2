"""How the ledger waits, and calls what is the user's, in one flavour."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, ClassVar, Protocol

from milepost.errors import InvalidConfig
from milepost.sides import Side

_GENERATES = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_function(function: object, *, blocking: bool) -> None:
    """Raise `InvalidConfig` for what cannot be called so, before anything is recorded of it."""
    if not callable(function):
        raise InvalidConfig(f"{function!r:.200} is no function: there is nothing to perform", what="function")
    if any(test(one) for test in _GENERATES for one in (function, type(function).__call__)):
        raise InvalidConfig(
            f"{function!r:.200} is a generator function: calling it performs nothing, and what it yields cannot be recorded. "
            "Give a function that does the work and returns",
            what="function",
        )
    if blocking and is_async(function):
        raise InvalidConfig(
            f"{function!r:.200} is async: perform it with the async method, or give a plain function", what="function"
        )


def is_async(function: object) -> bool:
    """Whether a function, or an object that can be called, is known to be async before it is."""
    called = type(function).__call__ if callable(function) else None
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


class Hands(Protocol):
    """A store in one flavour, how to wait in it, and how to call a function of the user's."""

    side: Side
    blocking: ClassVar[bool]
    """Functions that are async cannot be called."""

    async def sleep(self, seconds: float) -> None: ...

    async def until(self, done: Future[None], seconds: float) -> bool:
        """Wait for `done`, at most so long. Whether it is."""
        ...

    async def do(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that may be async."""
        ...


class BlockingHands:
    """For callers that block."""

    blocking: ClassVar[bool] = True

    def __init__(self, side: Side) -> None:
        self.side = side

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - run without a loop

    async def until(self, done: Future[None], seconds: float) -> bool:
        with suppress(TimeoutError):
            done.result(seconds)
        return done.done()

    async def do(self, function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidConfig(
                f"{result!r:.200} was returned to a blocking call: use the async methods, or a plain function",
                what="function",
            )
        return result


class AsyncHands:
    """For callers in an event loop."""

    blocking: ClassVar[bool] = False

    def __init__(self, side: Side) -> None:
        self.side = side

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def until(self, done: Future[None], seconds: float) -> bool:
        await asyncio.wait((asyncio.wrap_future(done),), timeout=seconds)
        return done.done()

    async def do(self, function: Callable[..., Any], *args: Any) -> Any:
        result = function(*args)
        return await result if inspect.isawaitable(result) else result
