"""The engines of a backend: one for blocking calls, one for each event loop, and how they are closed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from milepost.engines import Engines


class One:
    """An engine of either flavour."""

    def __init__(self, broken: bool = False) -> None:
        self.closed = 0
        self.broken = broken
        self.goes_on = asyncio.Event()
        self.loop = asyncio._get_running_loop()

    def call(self, request: Any) -> Any:
        return request

    def close(self) -> None:
        self.closed += 1
        if self.broken:
            raise OSError("cannot be closed")

    async def aclose(self) -> None:
        await self.goes_on.wait()
        self.close()


class Running(One):
    async def call(self, request: Any) -> Any:
        return request


def made(**options: Any) -> tuple[Engines, list[Any]]:
    every: list[Any] = []

    def make(kind: type[One]) -> One:
        engine = kind(**options)
        every.append(engine)
        return engine

    return Engines(lambda: make(One), lambda: make(Running), lambda: RuntimeError("closed")), every


def test_one_for_each_loop_and_none_of_a_loop_that_is_over() -> None:
    engines, every = made()
    loops: list[weakref.ref[Any]] = []

    async def use() -> None:
        assert engines.running() is engines.running()
        loops.append(weakref.ref(asyncio.get_running_loop()))

    for _ in range(5):
        asyncio.run(use())
    assert [engine.closed for engine in every] == [1, 1, 1, 1, 0]
    every.clear()
    gc.collect()
    assert [loop() is None for loop in loops] == [True, True, True, True, False]
    assert engines.blocking() is engines.blocking()


def test_one_that_cannot_be_closed_keeps_no_other_open() -> None:
    engines, every = made(broken=True)

    async def use() -> None:
        engines.running()

    loops = [asyncio.new_event_loop() for _ in range(2)]
    for loop in loops:
        loop.run_until_complete(use())
    engines.blocking()
    with pytest.raises(OSError, match="cannot be closed"):
        engines.close()
    assert [engine.closed for engine in every] == [1, 1, 1]
    engines.close()
    for ask in (engines.blocking, use):
        with pytest.raises(RuntimeError, match="closed"):
            ask() if ask is engines.blocking else loops[0].run_until_complete(use())
    for loop in loops:
        loop.close()


async def test_a_close_that_is_cancelled_closes_the_others() -> None:
    engines, every = made()
    engines.running()
    engines.blocking()
    closing = asyncio.create_task(engines.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert every[1].closed == 1
    every[0].goes_on.set()
    await engines.aclose()
