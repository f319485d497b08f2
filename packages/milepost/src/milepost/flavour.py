"""One text for blocking and async: a coroutine over a port that never suspends is run to its end without a loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Suspended(RuntimeError):
    """What was to be run to its end without an event loop awaited something that takes one."""


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run `coro`, which only awaits blocking ports, and return its result.

    Raises whatever the coroutine raises, with its own traceback, and `Suspended` if it really suspended: then a store
    awaited something other than its port.
    """
    try:
        coro.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        coro.close()
    raise Suspended("a blocking call awaited something asynchronous")
