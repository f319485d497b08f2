"""The ledger with a part taken out. Each of these must fail the test that the whole ledger passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from milepost import callstore
from milepost.callstore import CallChange, CallRow
from milepost.ledger import ToolPolicy
from milepost.ledger.arrival import Arrival
from milepost.tools import adapter


def _no_barrier() -> None:
    async def go_ahead(*_: Any) -> None:
        """Whoever asked for the call may be forgotten."""

    _replace(Arrival, "_barrier", go_ahead)


def _blind_retry() -> None:
    _replace(ToolPolicy, "retries", property(lambda policy: policy.effectful))


def _key_from_task_id() -> None:
    whole = adapter.Ledger._wanted

    def wanted(self: Any, call: Any, tool: Any, policy: Any, task: Any, conversation: Any) -> Any:
        found = whole(self, call, tool, policy, task, conversation)
        return dataclasses.replace(found, message=task.task, human="")

    _replace(adapter.Ledger, "_wanted", wanted)


def _no_rebinding() -> None:
    """An adopted record stays bound to the message that is gone."""
    whole = callstore.changed

    def changed(thread: str, row: CallRow | None, change: CallChange, now: float) -> CallRow | None:
        return whole(thread, row, dataclasses.replace(change, call=None) if change.alias else change, now)

    _replace(callstore, "changed", changed)


def _unconditional_settle() -> None:
    whole = callstore.changed

    def changed(thread: str, row: CallRow | None, change: CallChange, now: float) -> CallRow | None:
        ends = change.state in ("succeeded", "failed", "in_doubt")
        return whole(thread, row, dataclasses.replace(change, expect=row.mark) if row and ends else change, now)

    _replace(callstore, "changed", changed)


ABLATIONS: dict[str, Callable[[], None]] = {
    "no barrier": _no_barrier,
    "blind retry": _blind_retry,
    "key from task id": _key_from_task_id,
    "no re-binding": _no_rebinding,
    "unconditional settle": _unconditional_settle,
}

_put_back: list[Callable[[], None]] = []


def take_out(part: str) -> None:
    """Take a part out of the ledger in this process; "" takes out nothing."""
    if part:
        ABLATIONS[part]()


def put_back() -> None:
    """Make the ledger whole again."""
    while _put_back:
        _put_back.pop()()


def _replace(owner: Any, name: str, value: Any) -> None:
    before = owner.__dict__[name]
    _put_back.append(lambda: setattr(owner, name, before))
    setattr(owner, name, value)
