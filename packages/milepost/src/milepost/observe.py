"""One event per operation of a saver, for metrics, logs and tests."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

log = logging.getLogger("milepost")

Outcome = Literal["ok", "error", "stale", "fallback", "drift"]


@dataclass(slots=True)
class Event:
    """What one operation did, or met on its way. `thread` is a hash, also in `error`: ids may be personal data, and are
    told neither to observers nor to the log, unless an error of the application's own code names them."""

    op: str
    backend: str
    thread: str = ""
    outcome: Outcome = "ok"
    seconds: float = 0.0
    bytes: int = 0
    """Bytes of packs and headers sent to, or received from, the store."""
    items_new: int = 0
    items_reused: int = 0
    error: str = ""
    """Class name of the error, when `outcome` is "error"; what was damaged, when it is "fallback"; how the stored state
    differs from the graph's, when it is "drift"."""
    facts: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


def thread_hash(thread: str) -> str:
    """A stable 16-digit stand-in for a thread id."""
    return hashlib.sha256(thread.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def hushed(text: str, thread: str) -> str:
    """`text`, with the hash where messages name `thread`: for the log and for events."""
    return text.replace(repr(thread), thread_hash(thread))


class Observers:
    """The listeners of a saver, shared by its clones. Without listeners an operation costs one truth test."""

    def __init__(self, backend: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.backend = backend
        self.clock = clock
        self.listeners: list[Listener] = []

    def __bool__(self) -> bool:
        return bool(self.listeners)

    def add(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for each event until the returned function is called."""
        self.listeners.append(listener)

        def remove() -> None:
            if listener in self.listeners:
                self.listeners.remove(listener)

        return remove

    def emit(self, event: Event) -> None:
        """Hand `event` to every listener. One that raises is logged: observing never fails an operation."""
        for listener in tuple(self.listeners):
            try:
                listener(event)
            except Exception:
                log.exception("a listener of milepost events raised; the operation itself is not affected")


class Watch:
    """One operation under observation: a context that hands out its event, and emits it at the end.

    Without listeners it hands out None: then there is nobody to count for.
    """

    __slots__ = ("_event", "_observers", "_start")

    def __init__(self, observers: Observers, op: str, thread: str = "") -> None:
        self._event: Event | None = None
        if observers.listeners:
            self._observers = observers
            self._event = Event(op, observers.backend, thread_hash(thread) if thread else "")
            self._start = observers.clock()

    def __enter__(self) -> Event | None:
        return self._event

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        event = self._event
        if event is None:
            return
        if kind is not None:
            event.outcome, event.error = "error", kind.__name__
        event.seconds = self._observers.clock() - self._start
        self._observers.emit(event)
