"""The order that LangGraph does not keep: a checkpoint must not be durable before the writes that produced it are."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field

from milepost.errors import MilepostError

Key = tuple[str, str, str]
"""(thread, ns, checkpoint id)."""

_FAILURES = 1024


@dataclass(eq=False, slots=True)
class Op:
    """One accepted `put_writes` on its way."""

    key: Key
    task: str
    loop: asyncio.AbstractEventLoop | None
    done: Future[None] = field(default_factory=Future)

    def __post_init__(self) -> None:
        # A put that waits and is cancelled must not cancel what it waits for.
        self.done.set_running_or_notify_cancel()


class Pending:
    """The `put_writes` of this process that are on their way, and those that failed since."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ops: dict[Key, list[Op]] = {}
        self._failed: OrderedDict[Key, dict[str, BaseException]] = OrderedDict()

    def begin(self, key: Key, task: str) -> Op:
        op = Op(key, task, running_loop())
        with self._lock:
            self._ops.setdefault(key, []).append(op)
        return op

    def end(self, op: Op, error: BaseException | None) -> None:
        """`op` is over. An error is kept for the put that follows, until then or until the task writes again."""
        with self._lock:
            ops = self._ops[op.key]
            ops.remove(op)
            if not ops:
                del self._ops[op.key]
            if isinstance(error, Exception):
                self._failed.setdefault(op.key, {})[op.task] = error
                while len(self._failed) > _FAILURES:
                    self._failed.popitem(last=False)
            elif error is None and (failed := self._failed.get(op.key)) is not None:
                failed.pop(op.task, None)
        op.done.set_result(None)

    def ahead(self, key: Key) -> list[Op]:
        """What a put on top of `key` has to wait for."""
        with self._lock:
            return list(self._ops.get(key, ()))

    def check(self, key: Key) -> None:
        """Raise, once, if writes of `key` failed: the put on top of them must not be stored either."""
        with self._lock:
            failed = self._failed.pop(key, None)
        for task, error in (failed or {}).items():
            message = (
                f"a checkpoint on top of {key[2]!r} of thread {key[0]!r} was not stored, because the writes of task "
                f"{task!r} that it builds on were not: {error}"
            )
            if isinstance(error, MilepostError):
                raise type(error)(message, **error.facts) from error
            raise error


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
