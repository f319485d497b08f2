"""The parts that a large thread is exported in: what is asked for each, and where the next one begins."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.errors import Conflict
from milepost.store import CheckpointRow, Pack, WriteRow

from milepost_postgres import wire
from milepost_postgres.found import Found
from milepost_postgres.request import Parameters
from milepost_postgres.wire import THREAD


def portion(phase: str, place: Sequence[str], thread: str, limit: int) -> Parameters:
    """The parameters of a part of an export, from the place where the part before ended."""
    at: Parameters
    if phase == "packs":
        writer, first = place or ("-1", "-1")
        at = {"after_writer": wire.int8(int(writer)), "after_first": wire.int8(int(first))}
    elif phase == "writes":
        spot, slot, idx = place or ("", "", str(-(1 << 31)))
        at = {
            "after_place": bytes.fromhex(spot),
            "after_slot": bytes.fromhex(slot),
            "after_idx": wire.int8(int(idx)),
        }
    else:
        key, ns = place or (None, None)
        at = {"after_key": wire.text(key), "after_ns": wire.text(ns)}
    return {"thread": wire.digest(thread), "limit": wire.int8(limit), **at}


def unchanged(thread: str, token: str, found: Found) -> None:
    """An export is of one state of the thread."""
    if any(row.t1 != token for row in found.kinds[THREAD]) or not found.kinds[THREAD]:
        raise Conflict(
            f"thread {thread!r} was written to while it was read: read it again from its beginning", thread=thread
        )


def onward(
    phase: str,
    token: str,
    rows: Sequence[CheckpointRow],
    writes: Sequence[tuple[str, str, WriteRow]],
    packs: Sequence[Pack],
    limit: int,
) -> tuple[str, ...] | None:
    """Where an export goes on."""
    if phase == "packs":
        if len(packs) >= limit:
            return (phase, token, str(packs[-1].writer), str(packs[-1].first))
        return ("writes", token)
    if phase == "writes":
        if len(writes) >= limit:
            ns, id, row = writes[-1]
            return (phase, token, wire.place(ns, id).hex(), wire.digest(row.task).hex(), str(row.idx))
        return ("rows", token)
    return (phase, token, rows[-1].key, rows[-1].ns) if len(rows) >= limit else ("calls", token)
