"""What an operator does: look at records, say what became of a call, make a thread whole again."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from langchain_core.messages import AIMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it

from milepost.callstore import CALL_PAGE, UNSETTLED, CallAnswer, CallQuery, CallRow, State
from milepost.codec.calls import CallInfo
from milepost.errors import Conflict, InvalidConfig
from milepost.ledger.basis import LAST_LOOK
from milepost.ledger.core import Core
from milepost.ledger.hands import Hands
from milepost.ledger.policy import Verdict
from milepost.ledger.record import CallRecord
from milepost.places import COUNTERS, Place

_TRIES = 8


def space_of(info: CallInfo) -> str:
    """The namespace of the graph that made a call."""
    return info.checkpoints[0][0] if info.checkpoints else ""


def of_changes(found: CheckpointTuple, channel: str) -> bool:
    """Whether a channel is stored as changes, which only its graph can put together."""
    counted = cast("dict[str, Any]", found.metadata).get(COUNTERS) or ()
    return channel in counted or isinstance(found.checkpoint["channel_values"].get(channel), _DeltaSnapshot)


def root_of(info: CallInfo) -> str | None:
    """The checkpoint of the root namespace that a call's task started from."""
    return next((id for ns, id in info.checkpoints if ns == ""), None)


class Upkeep:
    """Operations on records, over a core."""

    def __init__(self, core: Core) -> None:
        self.core = core

    async def listed(self, hands: Hands, query: CallQuery) -> list[CallRow]:
        """All records that a query asks for."""
        store = await self.core.store(hands)
        rows: list[CallRow] = []
        after: tuple[str, ...] | None = None
        while True:
            page = await store.calls(query, after, CALL_PAGE)
            rows += page.rows
            if (after := page.cursor) is None:
                return rows

    async def calls(
        self, hands: Hands, thread: str | None, states: Collection[State] | None = None
    ) -> list[CallRecord]:
        """See `milepost.ledger.Ledger.calls`."""
        book = self.core.book
        wanted = None if states is None else frozenset(states)
        return [book.open(row) for row in await self.listed(hands, CallQuery(thread, states=wanted))]

    async def orphans(
        self, hands: Hands, thread: str, branch: Collection[tuple[str, str]] | None, channel: str
    ) -> list[CallRecord]:
        """See `milepost.ledger.Ledger.orphans`."""
        records = await self.calls(hands, thread)
        asked = [record for record in records if record.info.own is None and record.info.message is not None]
        if branch is not None:
            given = frozenset(branch)
            return [record for record in asked if given.isdisjoint(record.info.asked_by)]
        spaces = {"", *(space_of(record.info) for record in asked)}
        there = {ns: await self._branch(hands, Place(thread, ns, None), channel) for ns in spaces}
        left_behind = await self._left_behind(hands, thread) if len(spaces) > 1 else frozenset[str]()

        def known(info: CallInfo) -> bool:
            own = frozenset[tuple[str, str]]() if root_of(info) in left_behind else there[space_of(info)]
            return not (there[""] | own).isdisjoint(info.asked_by)

        return [record for record in asked if not known(record.info)]

    async def _branch(self, hands: Hands, place: Place, channel: str) -> frozenset[tuple[str, str]]:
        """The calls in the messages of the latest checkpoint."""
        found = await self.core.saver.operations.get_tuple(hands.side, place)
        if found is None:
            return frozenset()
        if of_changes(found, channel):
            raise InvalidConfig(
                f"the channel {channel!r} of thread {place.thread!r} is stored as changes, which only its graph can put "
                "together: name the calls of its messages, branch=…",
                what="branch",
            )
        messages = found.checkpoint["channel_values"].get(channel) or []
        return frozenset(
            (message.id, call["id"] or "")
            for message in messages
            if isinstance(message, AIMessage) and message.id is not None
            for call in message.tool_calls
        )

    async def _left_behind(self, hands: Hands, thread: str) -> frozenset[str]:
        """The checkpoints of the root namespace that the latest one does not descend from."""
        operations = self.core.saver.operations
        head = await operations.get_tuple(hands.side, Place(thread, "", None))
        outline = await (await operations.open(hands.side)).outline(thread)
        marks = () if outline is None else outline.marks
        parents = {mark.id: mark.parent for mark in marks if mark.ns == ""}
        here = None if head is None else head.checkpoint["id"]
        line: set[str] = set()
        while here is not None and here not in line:
            line.add(here)
            here = parents.get(here)
        return frozenset(parents.keys() - line)

    async def resolve(
        self, hands: Hands, call: str | CallRecord, verdict: Verdict, *, by: str, note: str, thread: str | None
    ) -> CallRecord:
        """See `milepost.ledger.Ledger.resolve`."""
        asked: object = call
        if not isinstance(asked, str | CallRecord):
            raise InvalidConfig(
                f"the call is {asked!r:.200}: pass its record, or the record's key", what="key", value=repr(asked)[:200]
            )
        seen = None if isinstance(call, str) else call
        key, thread = (call, thread) if isinstance(call, str) else (call.key, call.thread)
        given: object = verdict
        if not isinstance(given, Verdict):
            raise InvalidConfig(
                f"the verdict is {given!r:.200}: applied(…) or not_applied()", what="verdict", value=repr(given)[:200]
            )
        if verdict.kind == "unknown":
            raise InvalidConfig("a verdict says applied or not applied", what="verdict", value="unknown")
        if not by or not isinstance(cast("object", by), str):
            raise InvalidConfig("say who decided: by=…", what="by", value=repr(by)[:200])
        for _ in range(_TRIES):
            row = await self._find(hands, key, thread)
            if seen is not None and (row.generation, row.attempt) != (seen.generation, seen.attempt):
                raise Conflict(
                    f"the call {key!r} was performed again since attempt {seen.attempt}, which the verdict is about: it is "
                    f"attempt {row.attempt} now, and {row.state.replace('_', ' ')}",
                    thread=row.thread,
                )
            answer = await self._decide(hands, row, verdict, by, note)
            if answer.done and answer.row is not None:
                return self.core.book.open(answer.row)
        raise Conflict(f"the call {key!r} changes faster than it can be settled: try again", thread=thread)

    async def _find(self, hands: Hands, key: str, thread: str | None) -> CallRow:
        if thread is not None:
            rows = await self.listed(hands, CallQuery(thread, keys=(key,)))
        else:
            rows = await self.listed(hands, CallQuery("", keys=(key,)))
            # Most keys that are asked for are of calls in doubt, of which there are few.
            rows = rows or [
                row
                for row in await self.listed(hands, CallQuery(None, states=frozenset(UNSETTLED)))
                if key == row.key or key in row.aliases
            ]
            rows = rows or await self.listed(hands, CallQuery(None, keys=(key,)))
        if len(rows) == 1:
            return rows[0]
        where = "in several threads" if rows else "not recorded"
        raise InvalidConfig(f"the call {key!r} is {where}: name its thread, thread_id=…", what="key", value=repr(key))

    async def _quiet(self, hands: Hands, row: CallRow) -> None:
        """Wait until a worker that was given up can act no more: what a person did not see may else still come."""
        core, waited = self.core, 0.0
        record = core.book.open(row)
        while not record.told:
            now = (await (await core.store(hands)).calls(CallQuery(row.thread, keys=(row.key,)), None, 1)).now
            left = row.until + record.info.max_duration + core.settings.skew - now
            if left <= 0:
                return
            if waited >= core.settings.wait_timeout:
                raise Conflict(
                    f"the call {row.key!r} may still take effect for {left:.1f} s: say then that it did not",
                    thread=row.thread,
                )
            pause = min(left, LAST_LOOK)
            await hands.sleep(pause)
            waited += pause

    async def _decide(self, hands: Hands, row: CallRow, verdict: Verdict, by: str, note: str) -> CallAnswer:
        core = self.core
        store, fence = await core.store(hands), core.fence(row.thread)
        if row.state == "started":
            now = (await store.calls(CallQuery(row.thread, keys=(row.key,)), None, 1)).now
            if row.until > now:
                raise Conflict(
                    f"the call {row.key!r} is being performed by {row.owner}, whose lease has {row.until - now:.1f} s to go: "
                    "wait for it to end",
                    thread=row.thread,
                )
            answer = await core.expired(store, row, fence)
            if not answer.done or answer.row is None:
                return answer
            row = answer.row
        if row.state == "in_doubt":
            if verdict.kind == "not_applied":
                await self._quiet(hands, row)
            words = Verdict(verdict.kind, verdict.result, note or verdict.note)
            return await core.judge(store, row, words, by, fence)
        if row.state == "compensation_failed":
            if verdict.kind == "applied":
                change = core.book.change(
                    row.thread, row.key, row.mark, "compensated", by=by, note=note or "undone by hand"
                )
                return await store.settle(row.thread, change, fence=fence)
            raise Conflict("a compensation that failed is tried again by a rollback", thread=row.thread)
        raise Conflict(
            f"the call {row.key!r} is {row.state.replace('_', ' ')}: there is nothing to decide", thread=row.thread
        )
