"""Rollback: undo the effects after a checkpoint, the last one first, and then go on from there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from milepost.callstore import CallAnswer, CallQuery, CallRow, CallStore
from milepost.codec.calls import CallInfo, call_key
from milepost.errors import Conflict, InvalidConfig
from milepost.ledger.basis import Plan
from milepost.ledger.core import Core
from milepost.ledger.errors import CallStopped, CompensationFailed, Irreversible
from milepost.ledger.hands import Hands, is_async
from milepost.ledger.policy import Given, ToolPolicy, idempotent
from milepost.ledger.record import CallRecord
from milepost.ledger.request import CallRequest
from milepost.ledger.upkeep import Upkeep
from milepost.ledger.words import words
from milepost.places import Place
from milepost.store import Chart

UNDO: Final = "~undo"
"""The step under which a compensation is recorded. Steps of the user's do not begin so."""

Action = Literal["compensate", "settle", "nothing", "irreversible", "undeclared"]
"""What a rollback does about one call. "settle": what became of it has to be found out first. "undeclared": it was made
under a class that could undo it, and this ledger knows of none that can."""

ROLLED_BACK: Final = "rollback"
"""The key of a fork's metadata that says to which checkpoint a rollback led."""


@dataclass(frozen=True, slots=True)
class Undo:
    """One call in the plan of a rollback."""

    record: CallRecord
    action: Action


@dataclass(frozen=True, slots=True)
class Rollback:
    """What a rollback does, or has done."""

    thread: str
    to: str
    calls: tuple[Undo, ...]
    """The calls after the checkpoint, in the order in which they are dealt with: the last one first."""
    fork: RunnableConfig | None = None
    """The checkpoint that the thread goes on from; None for a dry run."""


class Rollbacks:
    """Rollbacks over a core."""

    def __init__(self, core: Core, upkeep: Upkeep) -> None:
        self.core = core
        self._upkeep = upkeep
        self.given = Given()
        """The classes that came with calls, and are not in the ledger's table."""

    async def plan(self, hands: Hands, thread: str, to: str) -> tuple[Rollback, CheckpointTuple]:
        """What is to be done, and the checkpoint that is gone back to."""
        operations = self.core.saver.operations
        found = await operations.get_tuple(hands.side, Place(thread, "", to))
        if found is None:
            raise InvalidConfig(f"thread {thread!r} has no checkpoint {to!r} to go back to", what="to", value=repr(to))
        chart = await (await operations.open(hands.side)).chart(thread)
        assert chart is not None
        rows = await self._upkeep.listed(hands, CallQuery(thread))
        book = self.core.book
        later = _Later(chart, to)
        opened = [book.open(row) for row in rows]
        steps = _Steps(thread, opened)
        chosen = [
            record
            for record in opened
            if not record.info.step and any(later.has(made) for made in (record, *steps.within(record)))
        ]
        chosen += await self._of_all_threads(hands, later)
        chosen.sort(key=lambda record: (record.began, record.key), reverse=True)
        calls = tuple(Undo(record, self._action(record, steps)) for record in chosen)
        return Rollback(thread, to, calls), found

    async def _of_all_threads(self, hands: Hands, later: _Later) -> list[CallRecord]:
        """The calls of global keys that this thread began. There is no index of them: all of these keys are looked at."""
        settings, book = self.core.settings, self.core.book
        if not any(policy.scope == "global" for policy in (*settings.tools.values(), settings.default)):
            return []
        rows = await self._upkeep.listed(hands, CallQuery(""))
        return [book.open(row) for row in rows if later.of(book.info(row))]

    def _policy(self, record: CallRecord) -> ToolPolicy:
        settings = self.core.settings
        table = settings.tools.get(record.tool, settings.default)
        # A tool of a message may have the name of a function.
        given = self.given.of(record.tool, compensable=record.info.compensable) if record.info.call is None else None
        return table if given is None or (given.compensate is None and table.compensate is not None) else given

    def _action(self, record: CallRecord, steps: _Steps) -> Action:
        policy = self._policy(record)
        if record.state == "compensated":
            return "nothing"
        if record.state in ("failed", "suspended"):
            return "irreversible" if steps.within(record) else "nothing"
        if not record.thread:
            # Another thread may have been answered from the record, and rest on the effect.
            return "irreversible"
        if policy.compensate is None and record.info.compensable:
            return "undeclared"
        if policy.compensate is None:
            return "settle" if record.state in ("started", "in_doubt") and policy.reconcile else "irreversible"
        if record.state == "started" or (record.state == "in_doubt" and policy.reconcile is not None):
            return "settle"
        return "compensate"

    async def run(
        self, hands: Hands, thread: str, to: str, *, accept_irreversible: Collection[str], by: str
    ) -> Rollback:
        """See `milepost.ledger.Ledger.rollback`. To be called under the thread's lease."""
        plan, found = await self.plan(hands, thread, to)
        open_ = [undo for undo in plan.calls if undo.record.tool not in accept_irreversible]
        if unknown := [undo.record for undo in open_ if undo.action == "undeclared"]:
            tools = sorted({record.tool for record in unknown})
            raise InvalidConfig(
                f"{len(unknown)} calls of {', '.join(tools)} in thread {thread!r} were made under a class that can undo them, "
                "and this ledger has not been told how: nothing was done. Name them, with their compensate=…, in the "
                "ledger's tools=… (what was given to once or effect is known to that Ledger alone, by the function's "
                "name if only one has it), or in accept_irreversible to let their effects stand.",
                what="tools",
                value=repr(tools),
            )
        if refused := [undo.record for undo in open_ if undo.action == "irreversible"]:
            tools = sorted({record.tool for record in refused})
            raise Irreversible(
                f"{len(refused)} calls of {', '.join(tools)} in thread {thread!r} cannot be undone: nothing was done. Give "
                "their tools a compensate=…, or name them in accept_irreversible. (What stays in any case: calls of global "
                "scope, as other threads may rest on them, and effects within a call that has not succeeded.)",
                thread=thread,
                tools=tools,
                keys=[record.key for record in refused],
            )
        self._check(hands, plan)
        store = await self.core.store(hands)
        for undo in plan.calls:
            if undo.action in ("compensate", "settle"):
                await self._undo(hands, store, undo.record, accept_irreversible, by)
        return replace(plan, fork=await self._fork(hands, plan, found))

    def _check(self, hands: Hands, plan: Rollback) -> None:
        """Raise `InvalidConfig`, before anything is done, for functions that cannot be called here."""
        for undo in plan.calls:
            policy = self._policy(undo.record)
            needed = {
                "compensate": policy.compensate if undo.action in ("compensate", "settle") else None,
                "reconcile": policy.reconcile if undo.action == "settle" else None,
            }
            for what, function in needed.items():
                if hands.blocking and is_async(function):
                    raise InvalidConfig(
                        f"the {what} function of {undo.record.tool!r} is async, and rollback blocks: nothing was done. Use "
                        "arollback, or give a plain function",
                        what=what,
                        value=repr(undo.record.tool),
                    )

    async def _undo(
        self, hands: Hands, store: CallStore, record: CallRecord, accept_irreversible: Collection[str], by: str
    ) -> None:
        row = await self._settled(hands, store, record)
        if row.state not in ("succeeded", "in_doubt", "compensating", "compensation_failed"):
            return
        policy = self._policy(record)
        if policy.compensate is None:
            if record.tool in accept_irreversible:
                return
            raise Irreversible(
                f"the call {record.key!r} of {record.tool!r} took place after all, and cannot be undone",
                thread=record.thread,
                tools=[record.tool],
                keys=[record.key],
            )
        core, book = self.core, self.core.book
        fence = core.fence(row.thread)
        begun = book.change(row.thread, row.key, row.mark, "compensating", by=by, lease=core.settings.lease)
        row = _done(await store.claim(row.thread, begun, fence=fence), record)
        mark = row.mark
        try:
            await self._compensate(hands, book.open(row), policy)
        except CallStopped:
            raise
        except Exception as exc:
            reason = words(exc)
            failed = book.change(row.thread, row.key, mark, "compensation_failed", by=by, note=reason, lease=0.0)
            await store.settle(row.thread, failed, fence=fence)
            raise CompensationFailed(
                f"the call {record.key!r} of {record.tool!r} could not be undone ({reason}); what came after it is. See to "
                "the cause, then repeat the rollback.",
                thread=record.thread,
                key=record.key,
                tool=record.tool,
            ) from exc
        undone = book.change(row.thread, row.key, mark, "compensated", by=by, lease=0.0)
        _done(await store.settle(row.thread, undone, fence=fence), record)

    async def _settled(self, hands: Hands, store: CallStore, record: CallRecord) -> CallRow:
        """The record, once nobody can act on it any more, and with what can be found out about it."""
        core, policy = self.core, self._policy(record)
        info = record.info
        request = CallRequest(tool=record.tool, thread=record.thread, policy=policy)
        plan = Plan(request, policy, record.thread, record.key, info, core.fence(record.thread))
        while True:
            page = await store.calls(CallQuery(record.thread, (record.key,)), None, 1)
            row, held = page.rows[0], core.book.open(page.rows[0])
            if row.state == "started":
                if row.until > page.now:
                    await core.wait(hands, plan, held, row.until - page.now)
                else:
                    await core.expired(store, row, plan.fence)
                continue
            if row.state != "in_doubt":
                return row
            quiet = row.until + info.max_duration + core.settings.skew
            if page.now < quiet:
                await core.wait(hands, plan, held, quiet - page.now)
                continue
            if policy.reconcile is None:
                return row
            verdict = await core.asked(hands, policy, held)
            if verdict.kind == "unknown":
                if policy.compensate is None:
                    raise Conflict(
                        f"the call {record.key!r} of {record.tool!r} is in doubt: settle it with Ledger.resolve"
                        f"{verdict.note and f' ({verdict.note})'}",
                        thread=record.thread,
                    )
                return row
            await core.judge(store, row, verdict, "reconcile", plan.fence)

    async def _compensate(self, hands: Hands, record: CallRecord, policy: ToolPolicy) -> None:
        """Undo one call: a call that is recorded itself, so that a crash repeats it under the same key."""
        info = replace(
            record.info,
            arguments=None,
            fingerprint=record.info.fingerprint,
            kind="idempotent",
            step=UNDO,
            step_of=record.generation,
            checkpoints=(),
            earlier=(),
            claim=0,
            window=None,
            compensable=False,
            human="",
        )
        how = idempotent(max_duration=policy.max_duration)
        request = CallRequest(tool=record.tool, thread=record.thread, policy=how)
        plan = Plan(request, how, record.thread, call_key(record.thread, info), info, self.core.fence(record.thread))
        compensate = policy.compensate
        assert compensate is not None

        # What it returns nobody reads: it need not be anything that can be stored.
        await self.core.performed(hands, plan, lambda: compensate(record, record.result), keep=False)

    async def _fork(self, hands: Hands, plan: Rollback, found: CheckpointTuple) -> RunnableConfig:
        """A copy of the checkpoint on top of it: the thread's latest from now on."""
        operations = self.core.saver.operations
        head = await operations.get_tuple(hands.side, Place(plan.thread, "", None))
        if head is not None and cast("dict[str, Any]", head.metadata).get(ROLLED_BACK) == plan.to:
            return head.config
        place = Place(plan.thread, "", plan.to)
        checkpoint: dict[str, Any] = {
            **found.checkpoint,
            "id": str(uuid6(clock_seq=-2)),
            "ts": datetime.now(UTC).isoformat(),
        }
        metadata = {
            "source": "fork",
            "step": found.metadata.get("step", -1) + 1,
            "parents": found.metadata.get("parents", {}),
            ROLLED_BACK: plan.to,
        }
        draft = operations.codec.draft(
            plan.thread,
            "",
            checkpoint["id"],
            plan.to,
            cast("Checkpoint", checkpoint),
            cast("CheckpointMetadata", metadata),
            {},
        )
        return await operations.put(hands.side, place, draft)


class _Steps:
    """The effects within calls that have records of their own."""

    def __init__(self, thread: str, records: Iterable[CallRecord]) -> None:
        self._of: dict[str, list[CallRecord]] = {}
        for record in records:
            info = record.info
            if info.step and info.step != UNDO and record.state not in ("failed", "suspended", "compensated"):
                self._of.setdefault(call_key(thread, replace(info, step="", step_of=0)), []).append(record)

    def within(self, record: CallRecord) -> list[CallRecord]:
        """Those of a call, as it was performed last, that may stand."""
        of = [step for key in (record.key, *record.aliases) for step in self._of.get(key, ())]
        return [step for step in of if step.info.step_of == record.generation]


class _Later:
    """Which calls were begun from a checkpoint, or from one that descends from it."""

    def __init__(self, chart: Chart, to: str) -> None:
        roots = {row.id: row for row in chart.rows if row.ns == ""}
        self._known = roots.keys()
        self._at = roots[to].at
        children: dict[str | None, list[str]] = {}
        for row in roots.values():
            children.setdefault(row.parent, []).append(row.id)
        self._later = {to}
        ahead = [to]
        while ahead:
            for child in children.get(ahead.pop(), ()):
                if child not in self._later:
                    self._later.add(child)
                    ahead.append(child)

    def of(self, info: CallInfo) -> bool:
        """Whether the task of an attempt whose effect may stand started from one of them."""
        return not self._later.isdisjoint(_roots_of(info))

    def has(self, record: CallRecord) -> bool:
        """By where its tasks started; of a checkpoint that is not known (any more), by when."""
        if self.of(record.info):
            return True
        roots = _roots_of(record.info) if record.placed and record.info.checkpoints else {""}
        return not roots <= self._known and record.began >= self._at


def _roots_of(info: CallInfo) -> set[str]:
    """The checkpoints of the root namespace that those tasks started from."""
    return {id for ns, id in (*info.checkpoints, *info.earlier) if ns == ""}


def _done(answer: CallAnswer, record: CallRecord) -> CallRow:
    if not answer.done or answer.row is None:
        raise Conflict(
            f"the call {record.key!r} of {record.tool!r} was changed while it was undone: repeat the rollback",
            thread=record.thread,
        )
    return answer.row
