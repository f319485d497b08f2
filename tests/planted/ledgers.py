"""Ledgers with one mistake each: in the store that keeps the records, or in what decides about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from milepost.callstore import CallAnswer, CallChange, CallTable
from milepost.ledger import arrival, basis, core, rollback
from milepost.ledger.arrival import Arrival
from milepost.ledger.policy import ToolPolicy
from milepost.memory import MemoryStore
from milepost.store import Batch, Drop


class SettlesUnconditionally(MemoryStore):
    async def settle(self, thread: str, change: CallChange, *, fence: int | None = None) -> CallAnswer:
        found = self._data.calls[thread].find(change.key)
        return await super().settle(
            thread, dataclasses.replace(change, expect=found.mark if found else None), fence=fence
        )


class _Claims(MemoryStore):
    async def claim(
        self,
        thread: str,
        change: CallChange,
        *,
        beside: Collection[str] = (),
        after: Sequence[str] = (),
        fence: int | None = None,
    ) -> CallAnswer:
        change, beside, after, fence = self.altered(change, beside, after, fence)
        return await super().claim(thread, change, beside=beside, after=after, fence=fence)

    def altered(
        self, change: CallChange, beside: Collection[str], after: Sequence[str], fence: int | None
    ) -> tuple[CallChange, Collection[str], Sequence[str], int | None]:
        raise LookupError(change)


class ClaimsTwiceAfterALostReply(_Claims):
    def altered(
        self, change: CallChange, beside: Collection[str], after: Sequence[str], fence: int | None
    ) -> tuple[CallChange, Collection[str], Sequence[str], int | None]:
        for row in self._data.calls.get("thread", CallTable()).rows.values():
            if row.stamp == change.stamp:
                change = dataclasses.replace(change, stamp=change.stamp + "'")
        return change, beside, after, fence


class LooksForNoOrphans(_Claims):
    def altered(
        self, change: CallChange, beside: Collection[str], after: Sequence[str], fence: int | None
    ) -> tuple[CallChange, Collection[str], Sequence[str], int | None]:
        return dataclasses.replace(change, match=""), beside, after, fence


class ClaimsForTheDead(_Claims):
    def altered(
        self, change: CallChange, beside: Collection[str], after: Sequence[str], fence: int | None
    ) -> tuple[CallChange, Collection[str], Sequence[str], int | None]:
        return change, beside, (), fence


class ClaimsWithoutTheFence(_Claims):
    def altered(
        self, change: CallChange, beside: Collection[str], after: Sequence[str], fence: int | None
    ) -> tuple[CallChange, Collection[str], Sequence[str], int | None]:
        return change, beside, after, None


class DeletesWhatIsUnsettled(MemoryStore):
    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        self._data.calls.pop(thread, None)
        await super().delete_thread(thread, force=force)


class PruningForgetsCalls(MemoryStore):
    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        self._data.calls.pop(thread, None)
        return await super().drop(thread, drop, token)


class ForgetsWhateverItIsTold(MemoryStore):
    async def forget(self, thread: str, listed: Collection[tuple[str, int]]) -> None:
        table = self._data.calls[thread]
        kept = [row for row in table.rows.values() if row.key not in {key for key, _ in listed}]
        self._data.calls[thread] = CallTable()
        for row in kept:
            self._data.calls[thread].enter(row)


class CopiesNoCalls(MemoryStore):
    async def load(self, thread: str, batch: Batch) -> None:
        await super().load(thread, dataclasses.replace(batch, calls=()))


def key_from_the_task(patch: pytest.MonkeyPatch) -> None:
    def keyed_by_place(thread: str, info: Any) -> str:
        return str((thread, info.checkpoints, info.call, info.own, info.step))

    patch.setattr(basis, "call_key", keyed_by_place)


def no_barrier(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> None:
        pass

    patch.setattr(Arrival, "_barrier", nothing)


def blind_retry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ToolPolicy, "retries", True)


def an_expired_lease_is_free(patch: pytest.MonkeyPatch) -> None:
    async def doubt(self: Any, *arguments: Any) -> Any:
        _, _, plan, row, _, _ = arguments
        return self._again(plan, row, attempt=row.attempt + 1)

    patch.setattr(Arrival, "_doubt", doubt)


def nobody_waits_for_zombies(patch: pytest.MonkeyPatch) -> None:
    inner = Arrival._doubt

    async def doubt(self: Any, hands: Any, store: Any, plan: Any, row: Any, record: Any, now: float) -> Any:
        return await inner(self, hands, store, plan, row, record, now + 1e9)

    patch.setattr(Arrival, "_doubt", doubt)


def arguments_do_not_matter(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(basis, "fingerprint", lambda *_: "same")
    patch.setattr(core, "fingerprint", lambda *_: "same")


def orphans_stay_bound_to_their_message(patch: pytest.MonkeyPatch) -> None:
    """Adoption finds the record, and leaves it as it was: the next legitimate repeat is taken for the same call."""

    async def adopt(self: Any, store: Any, plan: Any, row: Any, *_: Any) -> None:
        change = self.book.change(plan.home, row.key, row.mark, row.state, alias=plan.key)
        await store.settle(plan.home, dataclasses.replace(change, owner=row.owner))

    patch.setattr(Arrival, "_adopt", adopt)


def bound_to_the_first_attempt(patch: pytest.MonkeyPatch) -> None:
    """A call that is performed again stays where it was performed at first."""
    patch.setattr(arrival, "_from_here", lambda _plan, _row, info, _earlier: info)


def undone_in_order_of_start(patch: pytest.MonkeyPatch) -> None:
    inner = rollback.Rollbacks.plan

    async def plan(*arguments: Any) -> Any:
        made, found = await inner(*arguments)
        return dataclasses.replace(made, calls=made.calls[::-1]), found

    patch.setattr(rollback.Rollbacks, "plan", plan)


def a_failed_call_is_an_orphan(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(arrival, "OF_NO_EFFECT", ())
