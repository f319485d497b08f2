"""A generator that runs in a context of its own is otherwise the one it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager
from contextvars import Context, ContextVar

import pytest
from milepost.apart import Apart, apart

seen: ContextVar[str] = ContextVar("seen", default="nothing")


class Told(Exception):
    """What a reader throws in."""


def numbers(log: list[str]) -> Generator[int, None, None]:
    try:
        seen.set("set inside")
        for number in range(4):
            try:
                yield number
            except Told:
                log.append(seen.get())
    finally:
        log.append("closed " + seen.get())


def test_it_is_read_thrown_into_and_closed_in_one_context() -> None:
    log: list[str] = []
    parts = apart(numbers(log))
    assert [Context().run(next, parts), next(parts)] == [0, 1]
    assert parts.throw(Told()) == 2
    assert Context().run(next, parts) == 3
    parts.close()
    assert log == ["set inside", "closed set inside"]
    assert seen.get() == "nothing"
    with pytest.raises(StopIteration):
        next(parts)


def test_it_sees_what_is_set_where_the_first_part_is_asked_for() -> None:
    def told() -> Generator[str, None, None]:
        yield seen.get()
        yield seen.get()

    parts = apart(told())
    token = seen.set("before")
    assert next(parts) == "before"
    seen.reset(token)
    assert list(parts) == ["before"]


def test_errors_come_out_as_they_are() -> None:
    def fails() -> Generator[int, None, None]:
        yield 1
        raise Told

    parts = apart(fails())
    assert next(parts) == 1
    with pytest.raises(Told):
        next(parts)


async def awaited(log: list[str], gate: asyncio.Event) -> AsyncGenerator[int, None]:
    try:
        for number in range(3):
            yield number
            await gate.wait()
    except asyncio.CancelledError:
        log.append("cancelled")
        raise
    finally:
        await asyncio.sleep(0)
        log.append("closed " + seen.get())


@asynccontextmanager
async def around(log: list[str]) -> AsyncGenerator[None]:
    token = seen.set("set around")
    try:
        yield
    finally:
        log.append("left")
        seen.reset(token)


async def parts_of(log: list[str], gate: asyncio.Event) -> AsyncGenerator[int, None]:
    async with Apart(awaited(log, gate), around(log)) as parts:
        async for part in parts:
            yield part


async def test_the_async_one_is_read_and_closed_by_any_task() -> None:
    log: list[str] = []
    gate = asyncio.Event()
    parts = parts_of(log, gate)
    loop = asyncio.get_running_loop()

    async def ask() -> int:
        return await anext(parts)

    assert await ask() == 0
    waiting = loop.create_task(ask(), context=Context())
    await asyncio.sleep(0)
    gate.set()
    assert await waiting == 1
    await loop.create_task(parts.aclose(), context=Context())
    assert log == ["closed set around", "left"]
    assert seen.get() == "nothing"


async def test_a_reader_that_is_cancelled() -> None:
    log: list[str] = []
    parts = parts_of(log, asyncio.Event())
    assert await anext(parts) == 0

    async def ask() -> int:
        return await anext(parts)

    waiting = asyncio.create_task(ask())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert log == ["cancelled", "closed set around", "left"]


async def test_it_is_read_to_its_end() -> None:
    log: list[str] = []
    gate = asyncio.Event()
    gate.set()
    async with aclosing(parts_of(log, gate)) as parts:
        assert [part async for part in parts] == [0, 1, 2]
    assert log == ["closed set around", "left"]
