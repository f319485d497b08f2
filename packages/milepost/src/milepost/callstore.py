"""The part of a store's contract that serves the ledger: records of calls, and the verbs `claim`, `settle` and `calls`.

A record is opaque bytes sealed by the codec, plus the few plain fields that a compare-and-set needs. Records of a thread
live with the thread; those of global keys live under the thread id ``""``, which no thread has. Nothing but `settle`,
`claim`, `forget` and a deletion of the thread ever changes or removes a record: no clock does, and no prune.

Times are of the store's one clock, and fine enough that a claim which follows another one has a later time (whole
milliseconds are not): in the order of these times, backwards, effects are undone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from milepost.errors import UnsettledCalls

State: TypeAlias = Literal[
    "started",
    "succeeded",
    "failed",
    "suspended",
    "in_doubt",
    "compensating",
    "compensated",
    "compensation_failed",
]

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    "started": frozenset({"started", "succeeded", "failed", "suspended", "in_doubt"}),
    "failed": frozenset({"started"}),
    "suspended": frozenset({"started"}),
    "in_doubt": frozenset({"started", "succeeded", "failed", "compensating"}),
    "succeeded": frozenset({"compensating"}),
    "compensating": frozenset({"compensating", "compensated", "compensation_failed"}),
    "compensation_failed": frozenset({"compensating", "compensated"}),
    "compensated": frozenset({"started"}),
}
"""From a state to those that may follow it. A state may follow itself when its lease is renewed or it is re-bound."""

UNSETTLED: Final[frozenset[State]] = frozenset({"started", "in_doubt", "compensating", "compensation_failed"})
"""States in which the world may have been changed, or may be changing, without the record knowing how."""

CALL_PAGE: Final = 256


class Mark(NamedTuple):
    """What a change expects to find: the version of a record."""

    generation: int
    attempt: int
    state: State
    revision: int


@dataclass(frozen=True, slots=True)
class CallChange:
    """One transition of the record `key`. ``None`` in `lease`, `call`, `outcome` and `match` leaves what is there."""

    key: str
    expect: Mark | None
    """The version it applies to; None: there must be no record (only for `claim`)."""
    generation: int
    attempt: int
    state: State
    stamp: str
    """Random, of this change alone: a change that finds its own stamp was applied before its reply was lost."""
    entry: bytes | None
    """Sealed; appended to the record's audit trail. None: the owner goes on, which is no transition."""
    owner: str = ""
    lease: float | None = None
    """Seconds from now, by the store's clock, that the owner may act."""
    call: bytes | None = None
    """Sealed: what is called, and for whom."""
    outcome: bytes | None = None
    """Sealed: what came of it."""
    match: str | None = None
    """Equal for calls that may be the same call in other words; "" is equal to none."""
    alias: str | None = None
    """A further key by which the record is found from now on."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """One record, as the store keeps it."""

    thread: str
    key: str
    generation: int
    attempt: int
    state: State
    revision: int
    """Counts the changes of this record."""
    stamp: str
    owner: str
    call: bytes
    outcome: bytes
    match: str
    started: float
    """Seconds since the epoch, by the store's clock, of the first claim of this generation."""
    until: float
    """Until when the owner may act, by the store's clock."""
    updated: float
    aliases: tuple[str, ...] = ()
    trail: tuple[bytes, ...] = ()

    @property
    def mark(self) -> Mark:
        return Mark(self.generation, self.attempt, self.state, self.revision)


class CallAnswer(NamedTuple):
    """Answer to `claim` and `settle`."""

    done: bool
    """The change is applied: now, or by an earlier try whose reply was lost."""
    row: CallRow | None
    """The record as it is now; None when there is none (then `kin` tells why a claim did not make one)."""
    now: float
    """The store's clock."""
    kin: tuple[CallRow, ...] = ()
    """Records that kept a claim from making a new one: they have its `match`, and are none of those it knows."""


@dataclass(frozen=True, slots=True)
class CallQuery:
    """Which records `calls` lists. All conditions must hold; ``None`` means any."""

    thread: str | None = None
    """A thread id, "" for the records of global keys, None for all."""
    keys: tuple[str, ...] | None = None
    """Keys or aliases."""
    states: frozenset[State] | None = None
    prefix: str = ""
    """With ``thread=None``: only threads whose id begins with this."""


class CallPage(NamedTuple):
    """Some records: of one thread by the time of their start, of all threads thread by thread."""

    rows: tuple[CallRow, ...]
    cursor: tuple[str, ...] | None
    now: float


@runtime_checkable
class CallStore(Protocol):
    """The verbs of a store that declares the capability "ledger". The rules of `milepost.store` hold for them."""

    async def claim(
        self,
        thread: str,
        change: CallChange,
        *,
        beside: Collection[str] = (),
        after: Sequence[str] = (),
        fence: int | None = None,
    ) -> CallAnswer:
        """Take a call: make its record where there is none, or change the one that is at ``change.expect``.

        Where a record (or an alias) is found that does not fit, answers it, and writes nothing. Where none is found,
        `change` has a `match`, and other records of the thread have the same whose keys and aliases are all not in
        `beside`, answers those as `kin`, and writes nothing.

        Raises `LeaseLost` when the thread's lease has a fence greater than `fence`, and `ThreadDeleted` by the
        tombstone rule for the checkpoint ids `after`.
        """
        ...

    async def settle(self, thread: str, change: CallChange, *, fence: int | None = None) -> CallAnswer:
        """Change the record that is at ``change.expect``, and give it ``change.alias``, or do nothing.

        An alias that is another record's key (or alias) keeps the change from being done. Raises `LeaseLost` as `claim`.
        """
        ...

    async def calls(self, query: CallQuery, after: tuple[str, ...] | None, limit: int) -> CallPage:
        """At most `limit` records, from `after` on. A page may hold fewer and still have a cursor."""
        ...

    async def forget(self, thread: str, listed: Collection[tuple[str, int]]) -> None:
        """Remove those of the `listed` records of a thread, each (key, revision), that are settled and still have this
        revision; with their aliases. The others stay."""
        ...


class Joined(Protocol):
    """What a store of a backend that declares the capability "transactions" also has."""

    async def transaction(self) -> int:
        """Names the transaction that the store is in, whatever savepoint it is in."""
        ...

    async def committed(self, transaction: int) -> bool:
        """Whether that transaction has ended, and was committed."""
        ...


@runtime_checkable
class Joins(Protocol):
    """What a backend that declares the capability "transactions" also has."""

    def joining(self, connection: object) -> CallStore:
        """The store within the transaction of a connection of the application's, in the flavour of that connection.

        Raises `InvalidConfig` for a connection that is not usable: of another kind, or in no transaction.
        """
        ...

    def joined(self, connection: object) -> bool:
        """Whether that transaction has not ended yet."""
        ...


# For stores that keep the records of one thread together, and would have those of all global keys in one place.

SHARDS: Final = 256
_GLOBAL: Final = "\0calls/"
"""Begins the names under which the records of global keys lie. No thread id has a NUL."""


def drawers(thread: str, keys: Collection[str] | None) -> list[str]:
    """The names, as threads, under which the records of `thread` lie; with "" those of global keys."""
    if thread:
        return [thread]
    if keys is not None:
        return sorted({drawer("", key) for key in keys})
    return [f"{_GLOBAL}{number:02x}" for number in range(SHARDS)]


def drawer(thread: str, key: str) -> str:
    """The name, as a thread, under which the record of a key lies."""
    return thread or _GLOBAL + hashlib.blake2b(key.encode(), digest_size=1).hexdigest()


def owner_of(drawer: str) -> str:
    """The thread that the records in a drawer are of."""
    return "" if drawer.startswith(_GLOBAL) else drawer


# For stores that decide in Python.


def changed(thread: str, row: CallRow | None, change: CallChange, now: float) -> CallRow | None:
    """The record after `change`, or None when it does not apply to `row`. (`change` was not applied before.)"""
    if row is None:
        if change.expect is not None:
            return None
    elif change.expect != row.mark:
        return None
    anew = row is None or row.generation != change.generation
    held_until = 0.0 if row is None else row.until
    alias = () if change.alias is None else (change.alias,)
    return CallRow(
        thread=thread,
        key=change.key if row is None else row.key,
        generation=change.generation,
        attempt=change.attempt,
        state=change.state,
        revision=1 if row is None else row.revision + 1,
        stamp=change.stamp,
        owner=change.owner,
        call=_kept(change.call, b"" if row is None else row.call),
        outcome=_kept(change.outcome, b"" if row is None else row.outcome),
        match=change.match if change.match is not None else "" if row is None else row.match,
        started=now if row is None or anew else row.started,
        until=held_until if change.lease is None else now + change.lease,
        updated=now,
        aliases=(*(() if row is None else row.aliases), *alias),
        trail=(*(() if row is None else row.trail), *(() if change.entry is None else (change.entry,))),
    )


def _kept(new: bytes | None, old: bytes) -> bytes:
    return old if new is None else new


def kin_of(rows: Iterable[CallRow], beside: Collection[str]) -> tuple[CallRow, ...]:
    """Those of `rows` that no known call explains."""
    known = frozenset(beside)
    return tuple(row for row in rows if row.key not in known and known.isdisjoint(row.aliases))


def call_cursor(row: CallRow) -> tuple[str, ...]:
    """Where the page after `row` begins."""
    return (row.thread, repr(row.started), row.key)


def call_order(row: CallRow) -> tuple[str, float, str]:
    """The order of `calls`."""
    return (row.thread, row.started, row.key)


def from_cursor(after: tuple[str, ...]) -> tuple[str, float, str]:
    """The `call_order` that a cursor stands for."""
    return (after[0], float(after[1]), after[2])


def refuse_unsettled(thread: str, states: Iterable[State]) -> None:
    """Raise `UnsettledCalls` if any of `states` is unsettled."""
    count = sum(state in UNSETTLED for state in states)
    if count:
        raise unsettled(thread, count)


def unsettled(thread: str, count: int) -> UnsettledCalls:
    """The error of a deletion that would forget what became of `count` calls."""
    return UnsettledCalls(
        f"thread {thread!r} has {count} calls of which nobody knows whether they changed the world: settle them with "
        "Ledger.resolve, or delete with force=True, which keeps the records of those calls",
        thread=thread,
        count=count,
    )


class CallTable:
    """Records of one thread in memory: the reference of the verbs.

    `rows` is the truth, whatever interrupts a change: `aliases` and `matches` may name more than is there.
    """

    def __init__(self) -> None:
        self.rows: dict[str, CallRow] = {}
        self.aliases: dict[str, str] = {}
        self.matches: dict[str, dict[str, None]] = {}

    def find(self, key: str) -> CallRow | None:
        """The record of a key or alias."""
        row = self.rows.get(key)
        if row is None and (named := self.rows.get(self.aliases.get(key, ""))) is not None and key in named.aliases:
            return named
        return row

    def enter(self, row: CallRow) -> None:
        """Put `row` in the place of its former version."""
        old = self.rows.get(row.key)
        if row.match:
            self.matches.setdefault(row.match, {})[row.key] = None
        for alias in row.aliases:
            self.aliases[alias] = row.key
        self.rows[row.key] = row
        if old is not None and old.match and old.match != row.match:
            self._unmatch(old)

    def forget(self, calls: Iterable[tuple[str, int]]) -> None:
        """See `CallStore.forget`."""
        for key, revision in calls:
            row = self.rows.get(key)
            if row is None or row.revision != revision or row.state in UNSETTLED:
                continue
            del self.rows[key]
            for alias in row.aliases:
                self.aliases.pop(alias, None)
            self._unmatch(row)

    def _unmatch(self, row: CallRow) -> None:
        alike = self.matches.get(row.match, {})
        alike.pop(row.key, None)
        if not alike:
            self.matches.pop(row.match, None)

    def kin(self, match: str, beside: Collection[str]) -> tuple[CallRow, ...]:
        """Records with this `match` that are none of `beside`."""
        if not match:
            return ()
        found = (self.rows.get(key) for key in self.matches.get(match, ()))
        return kin_of([row for row in found if row is not None and row.match == match], beside)

    def change(self, thread: str, change: CallChange, beside: Collection[str] | None, now: float) -> CallAnswer:
        """Carry out a claim (`beside` is not None) or a settlement. The record that is answered is in the table."""
        answer = decide(thread, change, beside, now, self.find, self.kin)
        if answer.done and answer.row is not None:
            self.enter(answer.row)
        return answer


def decide(
    thread: str,
    change: CallChange,
    beside: Collection[str] | None,
    now: float,
    find: Callable[[str], CallRow | None],
    kin: Callable[[str, Collection[str]], tuple[CallRow, ...]],
) -> CallAnswer:
    """What a claim (`beside` is not None) or a settlement leads to; nothing is changed."""
    row = find(change.key)
    if row is not None and row.stamp == change.stamp:
        return CallAnswer(True, row, now)
    if row is None:
        if beside is None or change.expect is not None:
            return CallAnswer(False, None, now)
        if change.match and (found := kin(change.match, beside)):
            return CallAnswer(False, None, now, found)
    elif change.alias is not None and find(change.alias) is not None:
        return CallAnswer(False, row, now)
    new = changed(thread, row, change, now)
    return CallAnswer(False, row, now) if new is None else CallAnswer(True, new, now)
