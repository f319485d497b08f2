"""The order that LangGraph does not keep: a checkpoint must not be durable before the writes that produced it are."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from milepost.errors import LeaseLost, MilepostError, ThreadDeleted
from milepost.fences import thread_deleted

Key = tuple[str, str, str]
"""(thread, ns, checkpoint id)."""

_FAILURES = 1024


@dataclass(eq=False, slots=True)
class Op:
    """One accepted `put_writes` on its way."""

    key: Key
    task: str
    loop: asyncio.AbstractEventLoop | None
    done: Future[None] | None = None
    """Made when somebody waits: most writes are over before anybody does."""

    @property
    def abandoned(self) -> bool:
        """Nobody is going to end this: its event loop has stopped."""
        return self.loop is not None and not self.loop.is_running()


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with an op. Not the error itself, whose traceback would keep the run's state alive."""

    kind: type[MilepostError]
    message: str
    facts: dict[str, Any]


class Pending:
    """The `put_writes` of this process that are on their way, and those that failed since."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start with nothing: after a fork, nothing is on its way, and the lock may be held by nobody."""
        self._lock = threading.Lock()
        self._ops: dict[Key, list[Op]] = {}
        self._failed: OrderedDict[Key, dict[str, Failure]] = OrderedDict()
        self._late: OrderedDict[tuple[str, str], None] = OrderedDict()

    def late(self, thread: str, id: str) -> None:
        """A put of checkpoint `id` was refused, since its thread was deleted. No tombstone knows its id."""
        with self._lock:
            self._late[thread, id] = None
            while len(self._late) > _FAILURES:
                self._late.popitem(last=False)

    def stored(self, thread: str, id: str) -> None:
        """The checkpoint is there after all."""
        if self._late:
            with self._lock:
                self._late.pop((thread, id), None)

    def refuse_the_late(self, thread: str, checkpoint: str, rests: Iterable[str]) -> None:
        """Raise `ThreadDeleted` for a checkpoint, which rests on those of the ids `rests`, if one of them was refused so."""
        if self._late:
            for id in rests:
                if (thread, id) in self._late:
                    raise thread_deleted(thread, f"checkpoint {checkpoint!r}", id)

    def begin(self, key: Key, task: str) -> Op:
        """`put_writes` of a task was accepted."""
        op = Op(key, task, running_loop())
        with self._lock:
            ops = self._ops.get(key)
            if ops is None:
                self._ops[key] = [op]
            else:
                ops.append(op)
        return op

    def end(self, op: Op, error: BaseException | None) -> None:
        """`op` is over. That it failed counts until the task writes again, or the checkpoint is read anew."""
        with self._lock:
            ops = self._ops.get(op.key, [])
            if op in ops:
                ops.remove(op)
            if not ops:
                self._ops.pop(op.key, None)
            # A put on top of a deleted thread's checkpoint is refused by itself, unless it was brought back meanwhile.
            if error is not None and not isinstance(error, ThreadDeleted):
                self._failed.setdefault(op.key, {})[op.task] = _failure(error)
                while len(self._failed) > _FAILURES:
                    self._failed.popitem(last=False)
            elif self._failed and (failed := self._failed.get(op.key)) is not None:
                failed.pop(op.task, None)
        if op.done is not None:
            op.done.set_result(None)

    def ahead(self, key: Key) -> list[tuple[Op, Future[None]]]:
        """What a put on top of `key` has to wait for, and by what."""
        with self._lock:
            return [(op, _watched(op)) for op in self._ops.get(key, ())]

    def check(self, key: Key, fence: int | None) -> None:
        """Raise if writes of `key` failed: what was put on top of them would rest on nothing.

        Writes of a former owner that were refused are nothing that a put with the `fence` of his successor rests on.
        """
        if not self._failed:
            return
        with self._lock:
            failed = self._failed.get(key, {})
            counting = (each for each in failed.items() if fence is None or not _refused_before(each[1], fence))
            task, failure = next(counting, ("", None))
        if failure is not None:
            raise failure.kind(
                f"a checkpoint on top of {key[2]!r} of thread {key[0]!r} was not stored, because the writes of task "
                f"{task!r} that it builds on were not: {failure.message}",
                **failure.facts,
            )

    def forgive(self, key: Key) -> None:
        """Whoever goes on from `key` has read what is stored of it: failures of before are no news."""
        if self._failed:
            with self._lock:
                self._failed.pop(key, None)


def _watched(op: Op) -> Future[None]:
    if op.done is None:
        op.done = Future()
        # A put that waits and is cancelled must not cancel what it waits for.
        op.done.set_running_or_notify_cancel()
    return op.done


def _refused_before(failure: Failure, fence: int) -> bool:
    return issubclass(failure.kind, LeaseLost) and failure.facts["fence"] < fence


def _failure(error: BaseException) -> Failure:
    if isinstance(error, MilepostError):
        return Failure(type(error), error.message, error.facts)
    return Failure(MilepostError, f"{type(error).__name__}: {error}", {})


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
