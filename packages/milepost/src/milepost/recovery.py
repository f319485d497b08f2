"""A runner for crashed work: threads whose worker is gone are taken up again, and set aside when that does not help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs
from langgraph.checkpoint.base import CheckpointTuple

from milepost.errors import Busy, InvalidConfig, LeaseLost
from milepost.graphs import check_graph
from milepost.lease import ThreadLease, terms_of
from milepost.observe import log, thread_hash
from milepost.places import check_callable, check_dict, configurable
from milepost.saver import Saver
from milepost.store import ThreadRow
from milepost.unfinished import surely_due


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of one thread."""

    thread: str
    outcome: Literal["resumed", "failed", "set aside", "passed over"]
    """"resumed": it ran to its end, or to an interrupt. "failed": it raised, and will be tried again. "set aside": it has
    been tried often enough. "passed over": it has work left, but none that this graph knows of; nothing was changed."""
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
    where: Callable[[ThreadRow], bool] | None = None,
) -> list[Recovered]:
    """Resume threads whose worker crashed, one after the other, and tell what became of each.

    To be called in a loop by a supervisor, or by several: a thread that another one has taken meanwhile is passed over.
    Each is run under its lease by ``graph.invoke(None, …)``, from its latest checkpoint on. A thread whose workers have
    crashed or failed `tries` times in a row is left alone; ``saver.threads(status="abandoned")`` lists it with its
    error. A run of it that ends well, or any lease of it that is given back, makes it an ordinary thread again.

    Where several graphs share a store, each has a supervisor, which says by `where` which threads are the graph's own. A
    thread in which the nodes that are to run are none of `graph` is passed over, and stays as it is; but one that is at
    a node whose name both graphs have cannot be told from the graph's own.

    Args:
        graph: compiled, with `saver` as its checkpointer.
        limit: run at most so many threads; those that are set aside or passed over do not count.
        tries: after how many workers to set a thread aside.
        ttl: of the leases; see `Saver.lease`.
        config: more for the config of each run, such as a ``recursion_limit``.
        where: called with the row of each abandoned thread: whether to look after it. By default all.

    Raises `InvalidConfig` for arguments that cannot be right, before anything is run.
    """
    run = _Round(graph, ("invoke", "get_state"), saver, limit, tries, ttl, config, where)
    for row in saver.threads(status="abandoned"):
        if run.over:
            break
        if run.admits(row):
            own = run.config(row.thread)
            try:
                idle = not graph.get_state(own).tasks
                found = saver.get_tuple(own) if idle else None
            except Exception:
                found = None  # the run will say it
            if run.strange(row, found):
                continue
            try:
                with run.lease(row.thread) as lease:
                    if not run.still(lease):
                        continue
                    try:
                        graph.invoke(None, own)
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
    where: Callable[[ThreadRow], bool] | None = None,
) -> list[Recovered]:
    """`recover`, async: by ``graph.ainvoke``."""
    run = _Round(graph, ("ainvoke", "aget_state"), saver, limit, tries, ttl, config, where)
    async for row in saver.athreads(status="abandoned"):
        if run.over:
            break
        if run.admits(row):
            own = run.config(row.thread)
            try:
                idle = not (await graph.aget_state(own)).tasks
                found = await saver.aget_tuple(own) if idle else None
            except Exception:
                found = None  # the run will say it
            if run.strange(row, found):
                continue
            try:
                async with run.lease(row.thread) as lease:
                    if not run.still(lease):
                        continue
                    try:
                        await graph.ainvoke(None, own)
                    except BaseException as exc:
                        run.failed(row, lease, exc)
                    else:
                        run.resumed(row)
            except Busy:
                continue
    return run.done


class _Round:
    """What the two flavours of `recover` have in common."""

    def __init__(
        self,
        graph: object,
        methods: tuple[str, ...],
        saver: Saver,
        limit: int | None,
        tries: int,
        ttl: float,
        config: RunnableConfig | None,
        where: Callable[[ThreadRow], bool] | None,
    ) -> None:
        if check_graph(graph, saver, methods) in (None, True, False):
            raise InvalidConfig(
                "the graph has no checkpointer to resume threads from: compile it with checkpointer=saver", what="graph"
            )
        if limit is not None:
            _check_number(limit, "limit")
        _check_number(tries, "tries")
        terms_of(ttl, 0.0, steal=False, owner=None)
        if config is not None:
            check_dict(check_dict(config, "config").get("configurable") or {}, "the config's configurable")
        self._where = where if where is None else check_callable(where, "where")
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
        if self._where is not None and not self._where(row):
            return False
        if row.tries < self._tries:
            return True
        self.done.append(Recovered(row.thread, "set aside", row.tries, row.lease.error))
        return False

    def strange(self, row: ThreadRow, found: CheckpointTuple | None) -> bool:
        """Whether the thread is another graph's; notes it. `found` is its latest checkpoint, where the graph has nothing
        to do there."""
        if found is None or configurable(found.config)["checkpoint_id"] != row.head or not surely_due(found.checkpoint):
            return False
        text = "the graph knows none of the nodes that are to run next: recover the thread with the graph that it is of"
        self.done.append(Recovered(row.thread, "passed over", row.tries, text))
        return True

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


def _check_number(value: object, what: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidConfig(
            f"{what} is {value!r}: it must be a whole number, at least 1", what=what, value=repr(value)[:200]
        )
