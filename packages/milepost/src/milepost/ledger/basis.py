"""What the parts of the ledger's core share."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from milepost.callstore import CallAnswer, CallChange, CallRow, CallStore
from milepost.codec.calls import (
    MAX_KEY,
    CallInfo,
    Checkpoints,
    call_key,
    fingerprint,
    handle_of_own,
)
from milepost.errors import InvalidConfig, LeaseLost, MilepostError, TooLarge
from milepost.lease import ThreadLease, fence_for, refused
from milepost.ledger.boundary import Boundary, OnUnsettled
from milepost.ledger.call import Call
from milepost.ledger.errors import (
    CallInProgress,
    CallPaused,
    CallStopped,
    LedgerError,
    pause_id,
)
from milepost.ledger.hands import AsyncHands, BlockingHands, Hands
from milepost.ledger.policy import ToolPolicy, Verdict, unknown
from milepost.ledger.record import Book, CallRecord
from milepost.ledger.request import (
    CallRequest,
    OnOrphan,
)
from milepost.ledger.words import text, words
from milepost.observe import Watch, log
from milepost.operations import Operations
from milepost.places import check_id
from milepost.sides import AsyncSide, BlockingSide
from milepost.ticking import ticking

FIRST_LOOK, LAST_LOOK = 0.02, 0.5
"""Seconds between two looks at what another worker does: first, and at most."""


class OverSaver(Protocol):
    """What the ledger needs of a saver."""

    @property
    def operations(self) -> Operations: ...

    def blocking_side(self) -> BlockingSide: ...

    def async_side(self) -> AsyncSide: ...

    def get_next_version(self, current: Any, channel: None) -> Any: ...

    def lease(self, thread_id: str, *, wait: float | None = 0.0, steal: bool | str = False) -> ThreadLease: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of a ledger; durations in seconds."""

    tools: Mapping[str, ToolPolicy]
    default: ToolPolicy
    lease: float
    wait_timeout: float
    barrier_timeout: float
    skew: float
    tenant: str
    owner: str | None
    """None: the host and the process."""
    on_orphan: OnOrphan
    on_unsettled: OnUnsettled
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = ticking
    hands: tuple[type[BlockingHands], type[AsyncHands]] = (BlockingHands, AsyncHands)


@dataclass(slots=True)
class Plan:
    """A request, worked out."""

    request: CallRequest
    policy: ToolPolicy
    home: str
    key: str
    info: CallInfo
    fence: int | None = None
    beside: tuple[str, ...] = ()
    waited: float = field(default=0.0)
    taken: str = ""
    """The key of a record of other arguments of which a person has said that it is of this call."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about a call, of which `record` was found, and `others`. About the next attempt it is another question."""

    kind: type[CallPaused]
    plan: Plan
    record: CallRecord | None
    choices: tuple[str, ...] = ("applied", "not_applied")
    others: tuple[CallRecord, ...] = ()

    @property
    def id(self) -> str:
        about = [self.kind.__name__]
        for record in (*(() if self.record is None else (self.record,)), *self.others):
            about += (record.key, str(record.generation), str(record.attempt), record.state)
        return pause_id(self.plan.home, self.plan.key, "\0".join(about))


class Basis:
    """What every part of the ledger's core needs: options, the store, keys, changes, and how a call is stopped."""

    def __init__(self, saver: OverSaver, settings: Settings, boundary: Boundary) -> None:
        self.saver = saver
        self.settings = settings
        self.boundary = boundary
        self.monotonic = settings.monotonic
        self.renew()
        self.answer_here: Callable[[str, Sequence[str]], tuple[Verdict, str] | None] = lambda _id, _choices: None
        """The id of a pause, what may be answered -> the verdict that the run at hand was resumed with, and by whom. For
        adapters to set."""
        self.started_here: Callable[[], Checkpoints] = tuple
        """What `CallRequest.checkpoints` is of the task that this is called in. For adapters to set."""
        boundary.accompany(self)

    def renew(self) -> None:
        """After a fork. What is not confirmed or not stored yet is left to the parent: two processes that both took a
        claim for their own would both perform the call."""
        self._lock = threading.Lock()
        self._unconfirmed: dict[tuple[str, str], str] = {}
        """(home, key) -> the stamp of a claim whose reply was lost: nothing was performed under it."""
        self._kept: dict[tuple[str, str], CallChange] = {}
        """Outcomes that could not be stored yet."""
        owner = self.settings.owner
        self.owner = f"{socket.gethostname()}:{os.getpid()}" if owner is None else owner
        """Who this worker is, in records and audit trails."""

    def blocking(self) -> Hands:
        return self.settings.hands[0](self.saver.blocking_side())

    def asynchronous(self) -> Hands:
        return self.settings.hands[1](self.saver.async_side())

    @property
    def book(self) -> Book:
        return Book(self.saver.operations.codec, self.settings.clock, self.owner)

    async def store(self, hands: Hands) -> CallStore:
        return cast("CallStore", await self.saver.operations.open(hands.side))

    def watch(self, op: str, thread: str) -> Watch:
        """Have those who observe the saver told of a request."""
        return Watch(self.saver.operations.shared.observers, op, thread)

    def fence(self, home: str) -> int | None:
        """What a change carries here; a key of global scope is no thread's."""
        return fence_for(self.saver.operations.shared, home) if home else None

    def refused(self, thread: str, error: LeaseLost) -> None:
        """A change that belongs to `thread` was refused: its lease is known to be lost from here on."""
        refused(self.saver.operations.shared, thread, error)

    def refuse_the_deleted(self, request: CallRequest) -> None:
        """Raise `ThreadDeleted` for a call of a task whose thread was deleted under its run."""
        if not request.checkpoints:
            return
        if (run := self.saver.operations.shared.runs.here(request.thread)) is not None:
            run.refuse(f"a call of {request.tool!r}")

    # What was asked.

    def policy(self, request: CallRequest) -> ToolPolicy:
        """The class of the request's tool."""
        return request.policy or self.settings.tools.get(request.tool, self.settings.default)

    def plan(self, request: CallRequest) -> Plan:
        """Key and fingerprint. Raises `InvalidConfig` for what cannot be recognised again."""
        policy, settings = self.policy(request), self.settings
        thread = request.thread
        shown = dict(request.arguments)
        if policy.fingerprint is not None:
            shown = told("fingerprint", policy.fingerprint, request)
        mark = fingerprint(request.tool, shown)
        own, scope = request.key, request.scope
        if own is None and policy.key is not None:
            own, scope = told("key", policy.key, request), policy.scope
        backend = self.saver.operations.shared.backend
        if policy.kind == "transactional" and "transactions" not in backend.capabilities:
            raise InvalidConfig(
                f"{request.tool!r} is transactional, and the store {backend.name!r} has no transactions to share: only "
                "Postgres has",
                what="tools",
            )
        if own is None and request.call is None:
            raise InvalidConfig(
                f"the call of {request.tool!r} has neither an id nor a key: declare key=… for the tool", what="key"
            )
        if not thread and (own is None or scope != "global"):
            raise InvalidConfig(
                f"the call of {request.tool!r} is made outside of a thread: name one, or use a key of scope 'global'",
                what="thread",
            )
        info = CallInfo(
            tool=request.tool,
            arguments=shown,
            fingerprint=mark,
            kind=policy.kind,
            handle="",
            tenant=settings.tenant,
            message=request.message,
            call=request.call,
            position=request.position,
            apart=mark if request.repeats or (request.message is None and own is None) else "",
            epoch=request.epoch,
            own=None if own is None else _check_key(own),
            human=request.human,
            checkpoints=request.checkpoints,
            window=policy.window,
            max_duration=policy.max_duration,
            compensable=policy.compensate is not None,
        )
        key = call_key(thread, info)
        handle = key if own is None else handle_of_own(thread, info, scope)
        home = "" if own is not None and scope == "global" else thread
        fence = self.fence(home)
        beside = () if own is not None else tuple(_key_of(thread, info, *ids) for ids in request.alike)
        return Plan(request, policy, home, key, replace(info, handle=handle), fence, beside)

    # Changes that several need.

    async def expired(self, store: CallStore, row: CallRow, fence: int | None) -> CallAnswer:
        """An expired lease means in doubt, never free."""
        reason = f"{row.owner} did not say what became of it before its lease ended"
        book = self.book
        change = book.change(
            row.thread, row.key, row.mark, "in_doubt", outcome={"reason": reason}, began=book.began(row), note=reason
        )
        return await store.settle(row.thread, replace(change, owner=row.owner), fence=fence)

    async def judge(self, store: CallStore, row: CallRow, verdict: Verdict, by: str, fence: int | None) -> CallAnswer:
        """Record a verdict on a call that is in doubt."""
        book = self.book
        if verdict.kind == "applied":
            state, outcome = "succeeded", {"result": verdict.result}
        else:
            state, outcome = "failed", {"reason": verdict.note or f"not applied, says {by}"}
        change = book.change(
            row.thread,
            row.key,
            row.mark,
            cast("Any", state),
            outcome=outcome,
            began=book.began(row),
            by=by,
            note=f"{verdict.kind}. {verdict.note}".strip(),
        )
        return await store.settle(row.thread, replace(change, owner=row.owner), fence=fence)

    async def asked(self, hands: Hands, policy: ToolPolicy, record: CallRecord) -> Verdict:
        """What `reconcile` finds out. Where it fails it has found out nothing, and the verdict's note says how."""
        assert policy.reconcile is not None
        try:
            verdict = await hands.do(policy.reconcile, record)
        except Exception as exc:
            log.warning("reconcile of %r failed for the call %r: %s", record.tool, record.key, words(exc))
            return unknown(note=f"reconcile raised {words(exc)}")
        if isinstance(verdict, Verdict):
            return verdict
        log.warning("reconcile of %r returned no verdict for the call %r", record.tool, record.key)
        return unknown(note=f"reconcile returned {verdict!r:.200}: applied(…), not_applied() or unknown()")

    async def wait(self, hands: Hands, plan: Plan, record: CallRecord, needed: float) -> None:
        left = self.settings.wait_timeout - plan.waited
        if left <= 0:
            raise self.in_progress(plan, record)
        look = min(max(plan.waited, FIRST_LOOK), LAST_LOOK, max(needed, FIRST_LOOK), left)
        await hands.sleep(look)
        plan.waited += look

    async def flush(self, store: CallStore, plan: Plan, record: str = "") -> bool:
        """Store an outcome that this process could not store before, of the call of `plan` or of another record of its
        thread. Whether there was one."""
        key = (plan.home, record or plan.key)
        if key not in self._kept:
            return False
        with self._lock:
            change = self._kept.get(key)
        if change is not None:
            await store.settle(plan.home, change, fence=plan.fence)
            with self._lock:
                self._kept.pop(key, None)
        return True

    def given(self, plan: Plan, question: Question) -> tuple[Verdict, str] | None:
        """The verdict that the run was resumed with, if it answers this question, and by whom."""
        request = plan.request
        if request.answer is None:
            given = self.answer_here(question.id, question.choices)
        else:
            given = None if request.answer_to not in ("", question.id) else (request.answer, request.answered_by)
        return None if given is None or given[0].kind == "unknown" else (given[0], given[1] or "a person")

    # Stopping.

    @contextmanager
    def bubbling(self, request: CallRequest) -> Generator[None, None, None]:
        """Let errors of the store stop the run, instead of being told to the model."""
        try:
            yield
        except CallStopped:
            raise
        except MilepostError as exc:
            raise LedgerError(
                f"{request.tool!r} was not performed: {exc.message}",
                **{**exc.facts, "thread": request.thread, "tool": request.tool},
            ) from exc

    def in_progress(self, plan: Plan, record: CallRecord | None) -> CallInProgress:
        by = "another worker" if record is None else record.owner
        return CallInProgress(
            f"{plan.info.tool!r} is being performed in thread {plan.request.thread!r} by {by}, or might still be; this "
            f"run waited {plan.waited:.1f} s. Run the thread again later.",
            owner=by,
            until=None if record is None else record.until,
            **facts(plan),
        )

    def pause(self, question: Question, why: str, way: str = "", **more: Any) -> CallPaused:
        """A pause that asks `question`. `way`: what to do, where that is no answer."""
        plan, record, choices, id = question.plan, question.record, question.choices, question.id
        key = plan.key if record is None else record.key
        step = f"the step {plan.info.step!r} of " if plan.info.step else ""
        payload = {
            "kind": question.kind.__name__,
            "tool": plan.info.tool,
            "step": plan.info.step or None,
            "arguments": plan.info.arguments,
            "key": key,
            "thread": plan.request.thread,
            "state": None if record is None else record.state,
            "started": None if record is None else record.started,
            "updated": None if record is None else record.updated,
            "attempt": 0 if record is None else record.attempt,
            "why": why,
            "choices": list(choices),
        }
        return question.kind(
            f"{step}the call of {plan.info.tool!r} in thread {plan.request.thread!r} waits"
            f"{' for a person' if choices else ''}: {why}. {way or _way(id, key, choices)}",
            **facts(plan),
            **more,
            id=id,
            payload=payload,
        )


def _way(id: str, key: str, choices: tuple[str, ...]) -> str:
    """What to do about a pause."""
    if not choices:
        return "Run the thread again later."
    if "not_applied" in choices:
        return f"Settle it with Ledger.resolve({key!r}, …), then run the thread again."
    return f"Resume the run with Command(resume={{{id!r}: {' or '.join(map(repr, choices))}}})."


def _key_of(thread: str, info: CallInfo, message: str, call: str) -> str:
    """The key of a call like that of `info`, by its ids."""
    return call_key(thread, replace(info, message=message, call=call, apart=""))


def facts(plan: Plan) -> dict[str, Any]:
    """Of an error about a call that was not performed."""
    return {"thread": plan.request.thread, "key": plan.key, "tool": plan.info.tool}


def facts_of(call: Call) -> dict[str, Any]:
    """Of an error about a call that was."""
    return {"thread": call.thread, "key": call.record_key, "tool": call.tool}


def told(what: str, function: Callable[[Any], Any], request: CallRequest) -> Any:
    """What a function of the tool's class makes of the arguments."""
    try:
        return function(request.arguments)
    except Exception as exc:
        raise InvalidConfig(
            f"the {what} function of {request.tool!r} raised {type(exc).__name__} for the arguments of the call: {text(exc)}",
            what=what,
        ) from exc


def _check_key(key: object) -> str:
    text = check_id(key, "key")
    if not text:
        raise InvalidConfig("the key of a call is empty", what="key", value="''")
    if len(text) > MAX_KEY:
        raise TooLarge(
            f"the key of a call has {len(text)} characters; at most {MAX_KEY} are stored. Use a hash of it.",
            what="key",
            size=len(text),
            limit=MAX_KEY,
        )
    return text
