"""What a saver offers to keep its threads small. The methods of `milepost.saver.Saver` that no run calls."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from milepost.errors import InvalidConfig
from milepost.flavour import run
from milepost.operations import AsyncSide, BlockingSide, Operations
from milepost.places import check_list
from milepost.retention import Retention
from milepost.upkeep import Hooks, Order, Progress, Report, policies_of


class Keeping(ABC):
    """Maintenance of the threads of a saver."""

    @property
    @abstractmethod
    def _ops(self) -> Operations: ...

    @abstractmethod
    def _blocking(self) -> BlockingSide: ...

    @abstractmethod
    def _async(self) -> AsyncSide: ...

    def maintain(
        self,
        policy: Retention | Sequence[Retention] | None = None,
        *,
        threads: Sequence[str] | None = None,
        hooks: Hooks | None = None,
        merge: bool = True,
        dry_run: bool = False,
        clock: Callable[[], float] = time.time,
        progress: Progress | None = None,
    ) -> Report:
        """Shorten threads by policy, give back what nothing refers to, and merge small packs into large ones.

        Args:
            policy: what stays; of several, the first whose patterns match speaks for a thread and a namespace. None
                keeps every checkpoint.
            threads: their ids; all of the store's with None. Unknown ones are skipped.
            hooks: what to call around each thread.
            merge: whether to merge packs.
            dry_run: change nothing; the report says what would be done, exactly, if nothing else happens.
            clock: what time it is, in seconds since the epoch.
            progress: called after each thread with how many were looked at, and what became of it.

        Runs may go on meanwhile. A thread that is written to is planned anew; after some tries it is left for another
        time ("moved"). A put waits for one step at most: `milepost.maintenance.STEP` checkpoints, or `STEP_BYTES`.
        What happens to one thread, such as an error of a hook, stops no other; `Unavailable` ends it all.
        """
        order = _order(policy, threads, hooks, merge, dry_run, clock, progress)
        return run(self._ops.upkeep(self._blocking(), order))

    async def amaintain(
        self,
        policy: Retention | Sequence[Retention] | None = None,
        *,
        threads: Sequence[str] | None = None,
        hooks: Hooks | None = None,
        merge: bool = True,
        dry_run: bool = False,
        clock: Callable[[], float] = time.time,
        progress: Progress | None = None,
    ) -> Report:
        """`maintain`, async. Hooks may be coroutine functions."""
        order = _order(policy, threads, hooks, merge, dry_run, clock, progress)
        return await self._ops.upkeep(self._async(), order)


def _order(
    policy: object,
    threads: object,
    hooks: Hooks | None,
    merge: bool,
    dry_run: bool,
    clock: Callable[[], float],
    progress: Progress | None,
) -> Order:
    if not isinstance(hooks, Hooks | None):
        raise InvalidConfig(f"hooks is {hooks!r}: it must be an instance of a subclass of milepost.Hooks", what="hooks")
    names = None if threads is None else tuple(check_list(threads, "threads"))
    return Order(policies_of(policy), names, hooks or Hooks(), merge, dry_run, clock, progress)
