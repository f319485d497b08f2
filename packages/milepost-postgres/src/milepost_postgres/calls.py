"""The requests of the ledger's verbs, and what their answers say."""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import Any, Final

from milepost.callstore import UNSETTLED, CallAnswer, CallChange, CallPage, CallQuery, CallRow
from milepost.fences import thread_deleted

from milepost_postgres import wire
from milepost_postgres.leases import Answers, refuse_late
from milepost_postgres.queries import Queries
from milepost_postgres.request import Parameters, Request

_LENGTH: Final = struct.Struct(">I")


def request(
    queries: Queries,
    thread: str,
    change: CallChange,
    beside: Collection[str] | None,
    after: Sequence[str],
    fence: int | None,
    fresh: bytes,
) -> Request:
    """For `claim` (`beside` is not None) and `settle`."""
    expect = change.expect
    parameters: Parameters = {
        "thread": wire.digest(thread),
        "thread_id": wire.text(thread),
        "fresh": fresh,
        "fence": wire.int8(fence),
        "named": wire.texts(after),
        "own": None,
        "key": wire.digest(change.key),
        "key_text": wire.text(change.key),
        "generation": wire.int8(change.generation),
        "attempt": wire.int8(change.attempt),
        "state": wire.text(change.state),
        "stamp": wire.text(change.stamp),
        "owner": wire.text(change.owner),
        "lease": None if change.lease is None else wire.float8(change.lease),
        "call": change.call,
        "outcome": change.outcome,
        "match": wire.text(change.match),
        "entry": b"" if change.entry is None else _LENGTH.pack(len(change.entry)) + change.entry,
        "alias": None if change.alias is None else wire.digest(change.alias),
        "alias_text": wire.text(change.alias),
        "beside": wire.byteas(map(wire.digest, beside or ())),
        "was_generation": wire.int8(expect.generation if expect else None),
        "was_attempt": wire.int8(expect.attempt if expect else None),
        "was_state": wire.text(expect.state if expect else None),
        "was_revision": wire.int8(expect.revision if expect else None),
    }
    if expect is None:
        names = ["call_thread", "call_new", "call_found"]
        if change.match:
            names = ["call_thread", "call_alike", "call_new", "call_found", "call_relatives"]
    elif change.alias is None:
        names = ["call_change", "call_found"]
    else:
        names = ["call_hold", "call_alias", "call_change", "call_found"]
    op = "claim a call" if beside is not None else "settle a call"
    return Request(op, tuple(queries[name].step(parameters) for name in names))


def answer(thread: str, change: CallChange, fence: int | None, answers: Answers) -> CallAnswer:
    """What the answers to `request` say. Raises `LeaseLost` or `ThreadDeleted`."""
    looks_around = change.expect is None and bool(change.match)
    ((now, later, dead, *found),) = answers[-2] if looks_around else answers[-1]
    refuse_late(thread, fence, later)
    if dead is not None:
        raise thread_deleted(thread, "a call", dead)
    if found[0] is None:
        kin = tuple(row(thread, columns) for columns in answers[-1]) if looks_around else ()
        return CallAnswer(False, None, now, kin)
    held = row(thread, found)
    return CallAnswer(held.stamp == change.stamp, held, now)


def row(thread: str, columns: Sequence[Any]) -> CallRow:
    """The record that the columns of a row hold."""
    *plain, aliases, trail = columns
    key, generation, attempt, state, revision, stamp, owner, call, outcome, match, started, until, updated = plain
    return CallRow(
        thread=thread,
        key=key,
        generation=generation,
        attempt=attempt,
        state=state,
        revision=revision,
        stamp=stamp,
        owner=owner,
        call=bytes(call),
        outcome=bytes(outcome),
        match=match,
        started=started,
        until=until,
        updated=updated,
        aliases=tuple(aliases),
        trail=tuple(_entries(bytes(trail))),
    )


def _entries(trail: bytes) -> list[bytes]:
    entries: list[bytes] = []
    place = 0
    while place < len(trail):
        (length,) = _LENGTH.unpack_from(trail, place)
        place += _LENGTH.size + length
        entries.append(trail[place - length : place])
    return entries


def listing(queries: Queries, query: CallQuery, after: tuple[str, ...] | None, limit: int) -> Request:
    """For `calls`."""
    key, started, name = (int(after[0]), float(after[1]), after[2]) if after else (-1, 0.0, "")
    parameters: Parameters = {
        "thread": None if query.thread is None else wire.digest(query.thread),
        "keys": None if query.keys is None else wire.byteas(map(wire.digest, query.keys)),
        "states": None if query.states is None else wire.texts(sorted(query.states)),
        "after_thread": wire.int8(key),
        "after_started": wire.float8(started),
        "after_key": wire.text(name),
        "limit": wire.int8(limit),
    }
    if query.thread is not None:
        which = "calls_of_thread"
    elif query.prefix:
        which = wire.among("calls", query.prefix)
        parameters["prefix"] = wire.text(query.prefix)
    else:
        which = "calls_unsettled" if query.states is not None and query.states <= UNSETTLED else "calls_of_all"
    return Request("list calls", (queries[which].step(parameters), queries["clock"].step({})))


def forgetting(queries: Queries, thread: str, calls: Collection[tuple[str, int]]) -> Request:
    """For `forget`."""
    parameters: Parameters = {
        "thread": wire.digest(thread),
        "hashes": wire.byteas(wire.digest(key) for key, _ in calls),
        "revisions": wire.int8s(revision for _, revision in calls),
    }
    return Request("forget calls", (queries["forget_calls"].step(parameters),))


def page(answers: Answers, limit: int) -> CallPage:
    """What the answers to `listing` say."""
    found, ((now,),) = answers
    rows = tuple(row(thread, columns) for _, _, thread, *columns in found)
    cursor = (str(found[-1][1]), repr(rows[-1].started), rows[-1].key) if rows and len(rows) >= limit else None
    return CallPage(rows, cursor, now)


def loading(thread: str, rows: Sequence[CallRow]) -> Parameters:
    """The parameters that stand for records to be taken over."""
    aliases = [(alias, row.key) for row in rows for alias in row.aliases]
    return {
        "thread": wire.digest(thread),
        "alias_hashes": wire.byteas(wire.digest(alias) for alias, _ in aliases),
        "alias_keys": wire.texts(alias for alias, _ in aliases),
        "alias_targets": wire.byteas(wire.digest(key) for _, key in aliases),
        "hashes": wire.byteas(wire.digest(row.key) for row in rows),
        "keys": wire.texts(row.key for row in rows),
        "generations": wire.int8s(row.generation for row in rows),
        "attempts": wire.int8s(row.attempt for row in rows),
        "states": wire.texts(row.state for row in rows),
        "revisions": wire.int8s(row.revision for row in rows),
        "stamps": wire.texts(row.stamp for row in rows),
        "owners": wire.texts(row.owner for row in rows),
        "calls": wire.byteas(row.call for row in rows),
        "outcomes": wire.byteas(row.outcome for row in rows),
        "matches": wire.texts(row.match for row in rows),
        "starts": wire.float8s(row.started for row in rows),
        "untils": wire.float8s(row.until for row in rows),
        "updates": wire.float8s(row.updated for row in rows),
        "trails": wire.byteas(b"".join(_LENGTH.pack(len(entry)) + entry for entry in row.trail) for row in rows),
    }
