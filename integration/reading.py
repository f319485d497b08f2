"""Streams that are read elsewhere: each part is asked for in another thread or task, and in a context that knows nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, Protocol

from driving import Graph

END = "the end"


class Reader(Protocol):
    """Reads and closes streams, each time from a context that knows of nothing."""

    def open(self, graph: Graph, input: Any, config: Any, **options: Any) -> Any: ...
    async def next(self, parts: Any) -> Any: ...
    async def close(self, parts: Any) -> None: ...


class Threads:
    """Of a blocking stream, the parts are asked for in threads."""

    def open(self, graph: Graph, input: Any, config: Any, **options: Any) -> Any:
        return graph.stream(input, config, stream_mode="updates", **options)

    async def next(self, parts: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, Context().run, lambda: next(parts, END))

    async def close(self, parts: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, Context().run, parts.close)


class Tasks:
    """Of an async stream, they are asked for in tasks."""

    def open(self, graph: Graph, input: Any, config: Any, **options: Any) -> Any:
        return graph.astream(input, config, stream_mode="updates", **options)

    async def next(self, parts: Any) -> Any:
        async def ask() -> Any:
            return await anext(parts, END)

        return await _elsewhere(ask())

    async def close(self, parts: Any) -> None:
        await _elsewhere(parts.aclose())


async def _elsewhere(work: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.get_running_loop().create_task(work, context=Context())


async def rest(reader: Reader, parts: Any) -> list[Any]:
    """The parts that are left."""
    found: list[Any] = []
    while (part := await reader.next(parts)) != END:
        found.append(part)
    return found


READERS: tuple[Reader, ...] = (Threads(), Tasks())
