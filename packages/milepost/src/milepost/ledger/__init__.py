"""The ledger: a record of tool calls beside the checkpoints, so that a call which is finished is never performed again."""

from __future__ import annotations

from milepost.ledger.boundary import Unsettled
from milepost.ledger.call import Call, Done, Replay, Run, current_call
from milepost.ledger.errors import (
    BarrierTimeout,
    CallInDoubt,
    CallInProgress,
    CallPaused,
    CallStopped,
    CallSuperseded,
    CallUnrecorded,
    CompensationFailed,
    CompensationPending,
    Irreversible,
    LedgerError,
    NotDurable,
    OrphanFound,
    PayloadMismatch,
    pause_id,
)
from milepost.ledger.ledger import Ledger
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
from milepost.ledger.record import CallRecord, Transition
from milepost.ledger.request import CallRequest, Failed, InDoubt, Succeeded, Suspended
from milepost.ledger.rollback import Rollback, Undo
from milepost.ledger.unanswered import Repair, Unanswered

__all__ = [
    "BarrierTimeout",
    "Call",
    "CallInDoubt",
    "CallInProgress",
    "CallPaused",
    "CallRecord",
    "CallRequest",
    "CallStopped",
    "CallSuperseded",
    "CallUnrecorded",
    "CompensationFailed",
    "CompensationPending",
    "Done",
    "Failed",
    "InDoubt",
    "Irreversible",
    "Ledger",
    "LedgerError",
    "NotDurable",
    "OrphanFound",
    "PayloadMismatch",
    "Repair",
    "Replay",
    "Rollback",
    "Run",
    "Succeeded",
    "Suspended",
    "ToolPolicy",
    "Transition",
    "Unanswered",
    "Undo",
    "Unsettled",
    "Verdict",
    "applied",
    "current_call",
    "idempotent",
    "keyed",
    "not_applied",
    "pause_id",
    "readonly",
    "transactional",
    "unknown",
    "unsafe",
]
