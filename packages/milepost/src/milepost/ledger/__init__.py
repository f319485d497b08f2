"""The ledger: a record of tool calls beside the checkpoints, so that a call which is finished is never performed again."""

from __future__ import annotations

from milepost.ledger.errors import (
    BarrierTimeout,
    CallInDoubt,
    CallInProgress,
    CallPaused,
    CallStopped,
    CallSuperseded,
    CompensationPending,
    NotDurable,
    OrphanFound,
    PayloadMismatch,
)
from milepost.ledger.policy import (
    ToolPolicy,
    Verdict,
    applied,
    idempotent,
    keyed,
    not_applied,
    readonly,
    transactional,
    unknown,
    unsafe,
)
from milepost.ledger.request import CallRequest, Failed, InDoubt, Succeeded, Suspended

__all__ = [
    "BarrierTimeout",
    "CallInDoubt",
    "CallInProgress",
    "CallPaused",
    "CallRequest",
    "CallStopped",
    "CallSuperseded",
    "CompensationPending",
    "Failed",
    "InDoubt",
    "NotDurable",
    "OrphanFound",
    "PayloadMismatch",
    "Succeeded",
    "Suspended",
    "ToolPolicy",
    "Verdict",
    "applied",
    "idempotent",
    "keyed",
    "not_applied",
    "readonly",
    "transactional",
    "unknown",
    "unsafe",
]
