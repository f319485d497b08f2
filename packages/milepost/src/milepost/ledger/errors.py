"""What stops a call. All pass through a ToolNode and through retries: they subclass LangGraph's ``GraphBubbleUp``."""

from __future__ import annotations

import hashlib
from typing import Any

from milepost.errors import MilepostError
from milepost.ledger.bubbling import GraphBubbleUp, GraphInterrupt


def pause_id(thread: str, key: str, question: str) -> str:
    """The id of the interrupt by which a call pauses its run: 32 hex digits, the same each time the same is asked.

    `question` is what is asked, and about which attempt: an answer to one is none to another.
    """
    return hashlib.sha256(f"pause\0{thread}\0{key}\0{question}".encode()).hexdigest()[:32]


class CallStopped(MilepostError, GraphBubbleUp):
    """The call was not performed. Base of the others.

    Facts: ``thread``, ``key``, ``tool``, and those of the subclass.
    """

    def __str__(self) -> str:
        return self.message


class CallInProgress(CallStopped):
    """Another worker performs the call now, or might still act on it. Run again later. Facts: ``until``, ``owner``."""


class CallSuperseded(CallStopped):
    """Another worker has taken the call over: this attempt must not act any more, and its result does not count."""


class NotDurable(CallStopped):
    """With durability "exit" nothing is stored before the effect: use another mode, or a key of your own."""


class CallUnrecorded(CallStopped):
    """The call was performed, and its outcome could not be stored. The next arrival of it in this process tries again;
    for other processes its outcome is unknown."""


class Irreversible(MilepostError):
    """A rollback would have to undo what cannot be undone. Nothing was begun.

    Facts: ``thread``, ``tools``, ``keys``.
    """


class CompensationFailed(MilepostError):
    """A compensation raised (``__cause__``), and the rollback stopped there. It can be repeated.

    Facts: ``thread``, ``key``, ``tool``.
    """


class LedgerError(CallStopped):
    """The ledger could not do its work, and the call was not performed. ``__cause__`` says why."""


class CallPaused(CallStopped, GraphInterrupt):
    """The run pauses, mostly until a person has decided. LangGraph stores it as an interrupt.

    Facts: also ``payload`` (what the person is shown) and ``id`` (of the interrupt).
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        if {"id", "payload"} <= facts.keys() and (interrupt := _interrupt(facts["payload"], facts["id"])):
            self.args = ((interrupt,),)


class CallInDoubt(CallPaused):
    """Nobody knows whether the effect took place. `Ledger.resolve` it, then resume the run."""


class BarrierTimeout(CallPaused):
    """The checkpoint that the task started from did not become durable in time. Nothing was recorded: resume the run when
    the store answers again. Facts: ``missing``."""


class PayloadMismatch(CallPaused):
    """The key is recorded for another tool or other arguments. Facts: ``found``, ``expected`` (fingerprints)."""


class OrphanFound(CallPaused):
    """An equal call is recorded whose message is not in the state any more. Facts: ``orphan`` (its key)."""


class CompensationPending(CallPaused):
    """The call is being undone, or could not be: `Ledger.rollback` again, or `Ledger.resolve`."""


def _interrupt(payload: Any, id: str) -> object | None:
    try:
        from langgraph.types import Interrupt  # noqa: PLC0415 - only there with LangGraph
    except ImportError:
        return None
    return Interrupt(value=payload, id=id)
