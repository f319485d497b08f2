"""What of a process's checkpoints is durable, and which of its calls are not settled: between a saver and its ledger."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final, Literal, Protocol

from milepost.codec.calls import Checkpoints
from milepost.errors import MilepostError

Key = tuple[str, str, str]
"""(thread, ns, checkpoint id)."""

OnUnsettled = Literal["warn", "refuse", "ignore"]
"""What a ledger wants done when a checkpoint is put over one of its calls that is not settled."""

_KNOWN: Final = 8192


class Unsettled(MilepostError):
    """A checkpoint was put although a call is not settled that was begun before, in its namespace or below. Nothing was
    stored.

    Facts: ``thread``, ``ns``, ``checkpoint`` (the parent).
    """


class Renewed(Protocol):
    """What has locks, or knows what its process is about to do."""

    def renew(self) -> None:
        """The process was forked: threads that held locks are not there, and what they were at is the parent's."""
        ...


class Boundary:
    """One per saver, of all its ledgers; a saver without a ledger has none, and pays nothing."""

    def __init__(self) -> None:
        self._others: weakref.WeakSet[Renewed] = weakref.WeakSet()
        self.renew()

    def renew(self) -> None:
        """After a fork: nobody waits, and nothing runs."""
        self._lock = threading.Lock()
        self._known: OrderedDict[Key, None] = OrderedDict()
        self._waiting: dict[Key, list[Future[None]]] = {}
        self._running: dict[str, Counter[tuple[Checkpoints, OnUnsettled]]] = {}
        for other in tuple(self._others):
            other.renew()

    def accompany(self, *others: Renewed) -> None:
        """Have these renewed along with this."""
        self._others.update(others)

    # Durable checkpoints.

    def committed(self, key: Key) -> None:
        """The store has the checkpoint."""
        with self._lock:
            self._known[key] = None
            self._known.move_to_end(key)
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
            waiting = self._waiting.pop(key, ())
        for future in waiting:
            future.set_result(None)

    def missing(self, keys: Iterable[Key]) -> list[Key]:
        """Those that this process has not seen the store acknowledge or hand out."""
        known = self._known
        return [key for key in keys if key not in known]

    def expect(self, key: Key) -> Future[None]:
        """Done as soon as the checkpoint is durable."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if key not in self._known:
                self._waiting.setdefault(key, []).append(future)
                return future
        future.set_result(None)
        return future

    def forget(self, key: Key, future: Future[None]) -> None:
        """Nobody waits for `future` any more."""
        with self._lock:
            futures = self._waiting.get(key, [])
            if future in futures:
                futures.remove(future)
            if not futures:
                self._waiting.pop(key, None)

    # Unsettled calls.

    def begins(self, thread: str, places: Checkpoints, on_unsettled: OnUnsettled) -> None:
        """A call has begun, of a task that started from these checkpoints, its own and those of the graphs around it."""
        with self._lock:
            self._running.setdefault(thread, Counter())[places, on_unsettled] += 1

    def ends(self, thread: str, places: Checkpoints, on_unsettled: OnUnsettled) -> None:
        """It is settled, or given up."""
        with self._lock:
            running = self._running.get(thread)
            if running is None:  # It was begun before a fork.
                return
            running[places, on_unsettled] -= 1
            if running.total() <= 0:
                del self._running[thread]

    def put_on(self, key: Key, id: str) -> None:
        """Checkpoint `id` is about to be put on top of `key`. Raises `Unsettled` if the ledger of a call refuses that."""
        thread, ns, checkpoint = key
        if thread not in self._running:
            return
        with self._lock:
            running = +self._running.get(thread, Counter[tuple[Checkpoints, OnUnsettled]]())
        wanted = {how for places, how in running if _is_over(ns, id, places)}
        if "refuse" not in wanted and "warn" not in wanted:
            return
        message = (
            f"a checkpoint is put on top of {checkpoint!r} of thread {thread!r} although a tool call that was begun "
            "before is not settled: its result is in no checkpoint, and a resumed run will not ask for it"
        )
        if "refuse" in wanted:
            raise Unsettled(message, thread=thread, ns=ns, checkpoint=checkpoint)
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _is_over(ns: str, id: str, places: Checkpoints) -> bool:
    """Whether checkpoint `id` of `ns` is put over a call that was begun from `places`: in its own namespace, or in one that
    this lies below, and after the checkpoint there. Until that is durable it may itself be put while the call runs."""
    own = places[0][0]
    if ns and own != ns and not own.startswith(f"{ns}|"):
        return False
    began = dict(places).get(ns)
    return began is None or id > began
