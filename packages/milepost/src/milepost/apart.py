"""Generators that run in a context of their own, whoever reads them.

A generator's step runs in the context of whoever asks for the part: a web framework reads a blocking one in a thread of
a pool, and may read an async one in one task and close it in another. What a context variable says would be lost from
one part to the next, and what the generator sets would be left behind with its readers.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import Context, copy_context
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")


def apart(parts: Generator[T, None, None]) -> Generator[T, None, None]:
    """`parts`, all of it in one context: a copy of the one in which the first part is asked for."""
    context = copy_context()
    step = partial(next, parts)
    while True:
        try:
            part = context.run(step)
        except StopIteration:
            return
        try:
            yield part
        except GeneratorExit:
            context.run(parts.close)
            raise
        except BaseException as exc:
            step = partial(parts.throw, exc)
        else:
            step = partial(next, parts)


class Apart(Generic[T]):
    """`parts` within `manager`, all of it in one context: a copy of the one in which this is made.

    It is for the body of an async generator. The event loop is not told of `parts`: one that ends closes all the
    generators that it knows of at the same time, and these are closed by the one around them.
    """

    def __init__(self, parts: AsyncGenerator[T, None], manager: AbstractAsyncContextManager[object]) -> None:
        self._parts = parts
        self._manager = manager
        self._stack = AsyncExitStack()
        self._context = copy_context()

    async def __aenter__(self) -> Self:
        await _Within(self._context, self._stack.enter_async_context(self._manager))
        self._stack.push_async_callback(self._parts.aclose)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await _Within(self._context, self._stack.__aexit__(kind, error, trace))

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T]:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)
        try:
            step = self._parts.__anext__()
        finally:
            sys.set_asyncgen_hooks(*hooks)
        return _Within(self._context, step)


class _Within(Awaitable[T]):
    """What is awaited, in `context`; by the task of whoever awaits it."""

    def __init__(self, context: Context, awaited: Awaitable[T]) -> None:
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._awaited.__await__()
        step: Callable[[], Any] = partial(steps.send, None)
        while True:
            try:
                waits_for = self._context.run(step)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                answer = yield waits_for
            except BaseException as exc:
                step = partial(steps.throw, exc)
            else:
                step = partial(steps.send, answer)
