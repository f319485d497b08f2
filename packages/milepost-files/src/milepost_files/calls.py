"""The ledger's records in a log: where their bytes lie, and the verbs over them.

Records of a thread lie in its log, those of global keys in logs of their own: 256 of them, chosen by the key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from milepost.callstore import (
    UNSETTLED,
    CallAnswer,
    CallChange,
    CallQuery,
    CallRow,
    decide,
    kin_of,
    refuse_unsettled,
)
from milepost.errors import Corrupt

from milepost_files import frames
from milepost_files.frames import Record

Range = tuple[int, int]
"""(offset, length)."""

_COST: Final = 256
"""About what a record takes in a log besides its sealed parts."""


@dataclass(slots=True)
class CallSpot:
    """One record: its plain fields, without bytes and thread, and where its parts lie."""

    row: CallRow
    call: Range
    outcome: Range
    trail: tuple[Range, ...]

    @property
    def ranges(self) -> list[Range]:
        return [self.call, self.outcome, *self.trail]

    def filled(self, thread: str, parts: Sequence[bytes]) -> CallRow:
        """The whole record, from what lies at `ranges`."""
        call, outcome, *trail = parts
        return replace(self.row, thread=thread, call=call, outcome=outcome, trail=tuple(trail))

    @property
    def cost(self) -> int:
        return _COST + sum(length for _, length in self.ranges)


def _plain_row(fields: Sequence[Any]) -> CallRow:
    """A record without its parts, from what `record` says of it."""
    *first, match, started, until, updated, aliases = fields
    key, generation, attempt, state, revision, stamp, owner = first
    nothing = b""
    return CallRow(
        "", key, generation, attempt, state, revision, stamp, owner,
        nothing, nothing, match, started, until, updated, tuple(aliases),
    )  # fmt: skip


class CallIndex:
    """The records of one log."""

    def __init__(self) -> None:
        self.spots: dict[str, CallSpot] = {}
        self.aliases: dict[str, str] = {}
        self.matches: dict[str, list[str]] = {}
        self.live = 0

    def find(self, key: str) -> CallSpot | None:
        """The record of a key or alias."""
        return self.spots.get(self.aliases.get(key, key))

    def apply(self, record: Record, offset: int) -> int:
        """Take over a record whose parts begin at `offset`. Returns where they end."""
        _, *plain, lengths, _ = record
        row = _plain_row(plain)
        parts: list[Range | None] = []
        for length in lengths:
            parts.append(None if length is None else (offset, length))
            offset += length or 0
        old = self.spots.get(row.key)
        call, outcome, *trail = parts
        spot = CallSpot(
            row,
            call or (old.call if old else (0, 0)),
            outcome or (old.outcome if old else (0, 0)),
            (*(old.trail if old else ()), *(entry for entry in trail if entry is not None)),
        )
        self._enter(spot, old)
        return offset

    def _enter(self, spot: CallSpot, old: CallSpot | None) -> None:
        row = spot.row
        before = old.row.match if old is not None else ""
        if before != row.match:
            if before:
                self._unmatch(before, row.key)
            if row.match:
                self.matches.setdefault(row.match, []).append(row.key)
        self.spots[row.key] = spot
        for alias in row.aliases:
            self.aliases[alias] = row.key
        self.live += spot.cost - (0 if old is None else old.cost)

    def settled(self, calls: Iterable[tuple[str, int]]) -> list[str]:
        """The keys of those, each (key, revision), that are settled and still have this revision."""
        found = ((key, revision, self.spots.get(key)) for key, revision in calls)
        return [
            key
            for key, revision, spot in found
            if spot is not None and spot.row.revision == revision and spot.row.state not in UNSETTLED
        ]

    def forget(self, keys: Iterable[str]) -> None:
        """The records of these keys are gone."""
        for key in keys:
            spot = self.spots.pop(key, None)
            if spot is None:
                continue
            self.live -= spot.cost
            for alias in spot.row.aliases:
                del self.aliases[alias]
            if spot.row.match:
                self._unmatch(spot.row.match, key)

    def _unmatch(self, match: str, key: str) -> None:
        alike = self.matches[match]
        alike.remove(key)
        if not alike:
            del self.matches[match]

    def select(self, query: CallQuery, after: tuple[float, str] | None) -> list[CallSpot]:
        """The records that a query asks for after a (start, key), in this order."""
        if query.keys is None:
            spots = list(self.spots.values())
        else:
            spots = list({spot.row.key: spot for key in query.keys if (spot := self.find(key)) is not None}.values())
        spots = [spot for spot in spots if query.states is None or spot.row.state in query.states]
        spots.sort(key=lambda spot: (spot.row.started, spot.row.key))
        return [spot for spot in spots if after is None or (spot.row.started, spot.row.key) > after]

    def freeze(self) -> list[Any]:
        """For a snapshot."""
        return [
            [record(spot.row, (None, None))[1:13], [spot.call, spot.outcome, *spot.trail]]
            for spot in self.spots.values()
        ]

    def thaw(self, frozen: Iterable[Any]) -> None:
        """The inverse of `freeze`."""
        for plain, parts in frozen:
            row = _plain_row(plain)
            call, outcome, *trail = ((offset, length) for offset, length in parts)
            self._enter(CallSpot(row, call, outcome, tuple(trail)), None)


def record(row: CallRow, parts: Sequence[bytes | None]) -> Record:
    """The record that says how a call stands; `parts` are the new ones, None for one that stays where it lies."""
    return [
        frames.CALL,
        row.key,
        row.generation,
        row.attempt,
        row.state,
        row.revision,
        row.stamp,
        row.owner,
        row.match,
        row.started,
        row.until,
        row.updated,
        list(row.aliases),
        [None if part is None else len(part) for part in parts],
        frames.checksum(b"".join(part for part in parts if part is not None)),
    ]


def whole(row: CallRow) -> tuple[Record, list[bytes]]:
    """A record with all its parts: for a new log."""
    parts = [row.call, row.outcome, *row.trail]
    return record(row, parts), parts


def length_of(found: Record) -> int:
    """Bytes of a record's parts."""
    return sum(length or 0 for length in found[13])


class Decision:
    """What a change of a record leads to, against one state of a log."""

    def __init__(self, thread: str, index: CallIndex, read: Any, *, lost: bool) -> None:
        self._thread = thread
        self._index = index
        self._read = read
        self._lost = lost

    def _filled(self, spot: CallSpot) -> CallRow:
        return spot.filled(self._thread, self._read(spot.ranges))

    def _find(self, key: str) -> CallRow | None:
        spot = self._index.find(key)
        return None if spot is None else self._filled(spot)

    def _kin(self, match: str, beside: Collection[str]) -> tuple[CallRow, ...]:
        spots = [self._index.spots[key] for key in self._index.matches.get(match, ())]
        explained = {row.key for row in kin_of((spot.row for spot in spots), beside)}
        return tuple(self._filled(spot) for spot in spots if spot.row.key in explained)

    def make(
        self, change: CallChange, beside: Collection[str] | None, now: float
    ) -> tuple[CallAnswer, tuple[Record, list[bytes]] | None]:
        """The answer, and what is to be appended."""
        before = self._index.find(change.key)
        if before is None and self._lost:
            raise Corrupt(
                f"a part of the log of thread {self._thread!r} is lost, and the record of call {change.key!r} may be "
                "among it: whether the call was performed cannot be told. Restore the thread from a backup.",
                thread=self._thread,
                damage="log",
            )
        answer = decide(self._thread, change, beside, now, self._find, self._kin)
        row = answer.row
        if not answer.done or row is None or (before is not None and before.row.revision == row.revision):
            return answer, None
        entries = () if change.entry is None else (change.entry,)
        parts: list[bytes | None] = [change.call, change.outcome, *entries]
        return answer, (record(row, parts), [part for part in parts if part is not None])


def kept(thread: str, index: CallIndex, read: Any, *, force: bool) -> list[CallRow]:
    """The records that a deletion of the thread leaves. Raises `UnsettledCalls`."""
    if not force:
        refuse_unsettled(thread, (spot.row.state for spot in index.spots.values()))
    stay = [spot for spot in index.spots.values() if spot.row.state in UNSETTLED]
    return [spot.filled(thread, read(spot.ranges)) for spot in stay]
