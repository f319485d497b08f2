"""A runner for crashed work: threads whose worker is gone are taken up again, and set aside when that does not help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from milepost.errors import Busy, InvalidConfig, LeaseLost
from milepost.lease import ThreadLease
from milepost.observe import log, thread_hash
from milepost.saver import Saver
from milepost.store import ThreadRow


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of one thread."""

    thread: str
    outcome: Literal["resumed", "failed", "set aside"]
    """"resumed": it ran to its end, or to an interrupt. "failed": it raised, and will be tried again. "set aside": it has
    been tried often enough."""
    tries: int
    """How many of its workers in a row have crashed or failed by now."""
    error: str = ""
    """What the last of them that said something said."""


def recover(
    graph: Any,
    saver: Saver,
    *,
    limit: int | None = None,
    tries: int = 3,
    ttl: float = 30.0,
    config: RunnableConfig | None = None,
) -> list[Recovered]:
    """Resume threads whose worker crashed, one after the other, and tell what became of each.

    To be called in a loop by a supervisor, or by several: a thread that another one has taken meanwhile is passed over.
    Each is run under its lease by ``graph.invoke(None, …)``, from its latest checkpoint on. A thread whose workers have
    crashed or failed `tries` times in a row is left alone; ``saver.threads(status="abandoned")`` lists it with its
    error. A run of it that ends well, or any lease of it that is given back, makes it an ordinary thread again.

    Args:
        graph: compiled, with `saver` as its checkpointer.
        limit: run at most so many threads; those that are set aside do not count.
        tries: after how many workers to set a thread aside.
        ttl: of the leases; see `Saver.lease`.
        config: more for the config of each run, such as a ``recursion_limit``.
    """
    run = _Round(saver, limit, tries, ttl, config)
    for row in saver.threads(status="abandoned"):
        if run.over:
            break
        if run.admits(row):
            try:
                with run.lease(row.thread) as lease:
                    if not run.still(lease):
                        continue
                    try:
                        graph.invoke(None, run.config(row.thread))
                    except BaseException as exc:
                        run.failed(row, lease, exc)
                    else:
                        run.resumed(row)
            except Busy:
                continue
    return run.done


async def arecover(
    graph: Any,
    saver: Saver,
    *,
    limit: int | None = None,
    tries: int = 3,
    ttl: float = 30.0,
    config: RunnableConfig | None = None,
) -> list[Recovered]:
    """`recover`, async: by ``graph.ainvoke``."""
    run = _Round(saver, limit, tries, ttl, config)
    async for row in saver.athreads(status="abandoned"):
        if run.over:
            break
        if run.admits(row):
            try:
                async with run.lease(row.thread) as lease:
                    if not run.still(lease):
                        continue
                    try:
                        await graph.ainvoke(None, run.config(row.thread))
                    except BaseException as exc:
                        run.failed(row, lease, exc)
                    else:
                        run.resumed(row)
            except Busy:
                continue
    return run.done


class _Round:
    """What the two flavours of `recover` have in common."""

    def __init__(self, saver: Saver, limit: int | None, tries: int, ttl: float, config: RunnableConfig | None) -> None:
        for what, number in (("limit", limit), ("tries", tries)):
            if number is not None and (isinstance(number, bool) or number < 1):
                raise InvalidConfig(f"{what} is {number!r}: it must be a whole number, at least 1", what=what)
        self._saver = saver
        self._limit = limit
        self._tries = tries
        self._ttl = ttl
        self._config = config
        self._ran = 0
        self.done: list[Recovered] = []

    @property
    def over(self) -> bool:
        return self._limit is not None and self._ran >= self._limit

    def admits(self, row: ThreadRow) -> bool:
        """Whether the thread is to be tried; notes those that are set aside."""
        if row.tries < self._tries:
            return True
        self.done.append(Recovered(row.thread, "set aside", row.tries, row.lease.error))
        return False

    def lease(self, thread: str) -> ThreadLease:
        return self._saver.lease(thread, ttl=self._ttl, owner="recover")

    def still(self, lease: ThreadLease) -> bool:
        """Whether the thread is abandoned still: another supervisor may have been faster."""
        if lease.tries >= self._tries:
            lease.fail(lease.last_error)  # and is so after this, too
        if not 0 < lease.tries < self._tries:
            return False
        self._ran += 1
        return True

    def config(self, thread: str) -> RunnableConfig:
        return merge_configs(self._config, {"configurable": {"thread_id": thread}})

    def resumed(self, row: ThreadRow) -> None:
        self.done.append(Recovered(row.thread, "resumed", 0))

    def failed(self, row: ThreadRow, lease: ThreadLease, exc: BaseException) -> None:
        """Note a failure. Raises what is no failure of the run but the end of this process or task."""
        lease.fail(exc)
        if not isinstance(exc, Exception):
            raise exc
        if isinstance(exc, LeaseLost):
            log.warning("thread %s was taken over while it was recovered", thread_hash(row.thread))
        self.done.append(Recovered(row.thread, "failed", lease.tries + 1, lease.failure))
