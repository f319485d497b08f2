"""Tool calls of LangGraph that never run twice: adapters of the ledger for ToolNode and for agents of LangChain."""

from __future__ import annotations

from milepost.ledger import (
    Call,
    CallInDoubt,
    CallInProgress,
    CallPaused,
    CallRecord,
    CallStopped,
    CallSuperseded,
    CallUnrecorded,
    NotDurable,
    OrphanFound,
    PayloadMismatch,
    Verdict,
    applied,
    current_call,
    idempotent,
    keyed,
    not_applied,
    readonly,
    transactional,
    unknown,
    unsafe,
)
from milepost.ledger.request import EPOCH
from milepost.ledger.results import MARK
from milepost.tools.adapter import Ledger, Misplaced, SharedTask, SharedTaskWarning
from milepost.tools.routing import fan_out

__all__ = [
    "EPOCH",
    "MARK",
    "Call",
    "CallInDoubt",
    "CallInProgress",
    "CallPaused",
    "CallRecord",
    "CallStopped",
    "CallSuperseded",
    "CallUnrecorded",
    "Ledger",
    "Misplaced",
    "NotDurable",
    "OrphanFound",
    "PayloadMismatch",
    "SharedTask",
    "SharedTaskWarning",
    "Verdict",
    "applied",
    "current_call",
    "fan_out",
    "idempotent",
    "keyed",
    "not_applied",
    "readonly",
    "transactional",
    "unknown",
    "unsafe",
]
