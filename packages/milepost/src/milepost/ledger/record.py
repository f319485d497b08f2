"""Records as the ledger reads them, and how changes of them are sealed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from milepost.callstore import TRANSITIONS, UNSETTLED, CallChange, CallRow, Mark, State
from milepost.codec import Codec
from milepost.codec.calls import CallInfo, Part, about_call, downstream


@dataclass(frozen=True, slots=True)
class Transition:
    """One entry of a record's audit trail."""

    state: State
    generation: int
    attempt: int
    at: datetime
    """By the clock of who made it."""
    by: str
    note: str


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One recorded call. Times are seconds since the epoch by the store's clock."""

    thread: str
    """Thread id; "" for a key of global scope."""
    key: str
    """What `Ledger.resolve` takes."""
    state: State
    generation: int
    """Rises when the call is performed anew after it was undone."""
    attempt: int
    owner: str
    started: float
    """When this generation was first claimed."""
    began: float
    """When its latest attempt was claimed; at the latest, where that is not recorded."""
    until: float
    """Until when the owner may begin to act."""
    updated: float
    aliases: tuple[str, ...]
    info: CallInfo
    result: Any
    """What the tool returned, once it has succeeded."""
    reason: str
    """Why it failed, or why its outcome is not known."""
    told: bool
    """It was its own owner who said that the outcome is unknown, after the execution had ended: nobody is at it any more."""
    trail: tuple[Transition, ...]

    @property
    def tool(self) -> str:
        return self.info.tool

    @property
    def arguments(self) -> Any:
        return self.info.arguments

    @property
    def downstream_key(self) -> str:
        """The key that was handed to the API."""
        return downstream(self.info.handle, self.generation, self.info.step)

    @property
    def placed(self) -> bool:
        """Whether `info.checkpoints` are what its latest attempt started from."""
        return all(entry.state != "started" for entry in self.trail[self.info.claim + 1 :])

    @property
    def settled(self) -> bool:
        """Whether the record knows what became of the call."""
        return self.state not in UNSETTLED


class Book:
    """Seals and opens the records of one codec."""

    def __init__(self, codec: Codec, clock: Callable[[], float], owner: str) -> None:
        self._codec = codec
        self._clock = clock
        self.owner = owner

    def open(self, row: CallRow) -> CallRecord:
        """Raises `Corrupt` or `Unserializable` when the record cannot be read: then nothing may be done about it."""
        outcome = self._outcome(row)
        trail = tuple(_transition(self._part(row, entry, "entry")) for entry in row.trail)
        claims = sum(entry.state == "started" and entry.generation == row.generation for entry in trail)
        return CallRecord(
            thread=row.thread,
            key=row.key,
            state=row.state,
            generation=row.generation,
            attempt=row.attempt,
            owner=row.owner,
            started=row.started,
            began=outcome.get("began", row.started if claims <= 1 else row.updated),
            until=row.until,
            updated=row.updated,
            aliases=row.aliases,
            info=self.info(row),
            result=outcome.get("result"),
            reason=outcome.get("reason", ""),
            told=outcome.get("told", False),
            trail=trail,
        )

    def info(self, row: CallRow) -> CallInfo:
        """What a record is about."""
        return CallInfo.unpack(self._part(row, row.call, "call"))

    def began(self, row: CallRow) -> float | None:
        """What `change` is to be told of the latest attempt: None where the record's own beginning says it."""
        if row.state != "started":
            return cast("float | None", self._outcome(row).get("began"))
        return None if len(row.trail) == 1 else row.updated

    def _outcome(self, row: CallRow) -> Mapping[str, Any]:
        return cast("Mapping[str, Any]", self._part(row, row.outcome, "outcome")) if row.outcome else {}

    def _part(self, row: CallRow, data: bytes, part: Part) -> Any:
        return self._codec.unseal(data, about_call(row.thread, row.key, part))

    def seal_info(self, thread: str, key: str, info: CallInfo) -> bytes:
        """The sealed part `call`."""
        return self._codec.seal(info.pack(), about_call(thread, key, "call"))

    def change(
        self,
        thread: str,
        key: str,
        expect: Mark | None,
        state: State,
        *,
        generation: int | None = None,
        attempt: int | None = None,
        outcome: Mapping[str, Any] | None = None,
        note: str = "",
        by: str | None = None,
        began: float | None = None,
        **plain: Any,
    ) -> CallChange:
        """A transition with its entry of the trail. `began` goes with `outcome`; `plain` are fields of `CallChange` as
        they are."""
        assert expect is None or state in TRANSITIONS[expect.state] or state == expect.state
        to_generation = generation if generation is not None else expect.generation if expect else 0
        to_attempt = attempt if attempt is not None else expect.attempt if expect else 0
        by = self.owner if by is None else by
        if outcome is not None and began is not None:
            outcome = {**outcome, "began": began}
        entry = [state, to_generation, to_attempt, self._clock(), by, note]
        return CallChange(
            key=key,
            expect=expect,
            generation=to_generation,
            attempt=to_attempt,
            state=state,
            stamp=secrets.token_hex(16),
            entry=self._codec.seal(entry, about_call(thread, key, "entry")),
            owner=self.owner,
            outcome=None if outcome is None else self._codec.seal(dict(outcome), about_call(thread, key, "outcome")),
            **plain,
        )

    def renewal(self, key: str, expect: Mark, lease: float) -> CallChange:
        """The owner goes on: another `lease` seconds."""
        return CallChange(
            key=key,
            expect=expect,
            generation=expect.generation,
            attempt=expect.attempt,
            state=expect.state,
            stamp=secrets.token_hex(16),
            entry=None,
            owner=self.owner,
            lease=lease,
        )


def _transition(entry: Any) -> Transition:
    state, generation, attempt, at, by, note = entry
    return Transition(state, generation, attempt, datetime.fromtimestamp(at, UTC), by, note)
