"""The verb `export`: a thread in portions, packs first, so that what is loaded never refers to what is not there yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from milepost.errors import Conflict
from milepost.store import Batch

from milepost_files.calls import CallSpot
from milepost_files.changes import token
from milepost_files.index import Index, PackPlace
from milepost_files.log import Log
from milepost_files.reading import Cited, Found, Reader, cite, reading

_PORTION_BYTES: Final = 4 << 20
_AGAIN: Final = "5"
"""The stage in which packs are read once more."""

Reached = tuple[str, ...]
"""Stage, then what orders the things of the stage."""


@dataclass(slots=True)
class _Portion:
    packs: list[PackPlace] = field(default_factory=list)
    rows: list[Found] = field(default_factory=list)
    writes: list[tuple[str, str, list[Cited]]] = field(default_factory=list)
    calls: list[CallSpot] = field(default_factory=list)
    cursor: tuple[str, ...] | None = None


_Thing = tuple[Reached, int, PackPlace | Found | tuple[str, str, list[Cited]] | CallSpot]


def export(log: Log, after: tuple[str, ...] | None, limit: int) -> Batch | None:
    """The cursor names the generation and the last rewriting: what was handed out before a drop, or a migration, does not
    go with what is there after it. It also names the state that the packs were first read in: when that is another
    one at the end, packs of checkpoints that were read later may have come, so all packs are read once more; and again
    where some of them have meanwhile become one, which may lie before the cursor."""

    def plan(index: Index) -> _Portion | None:
        if index.empty:
            return None
        past, state, *reached = after or (_past(index), _state(index))
        return _portion(index, state, tuple(reached), max(limit, 1)) if past == _past(index) else None

    batch = reading(log, plan, _read)
    if batch is None and after is not None:
        raise Conflict(
            f"thread {log.thread!r} was shortened, deleted or rewritten while it was read: read it again from its beginning",
            thread=log.thread,
        )
    return batch


def _portion(index: Index, state: str, reached: Reached, limit: int) -> _Portion:
    portion = _Portion()
    size = count = 0
    last: Reached = ()
    again = reached[:1] == (_AGAIN,)
    for place, length, thing in _packs(index, _AGAIN) if again else _things(index):
        if place <= reached:
            continue
        if count >= limit or size >= _PORTION_BYTES:
            portion.cursor = (_past(index), state, *last)
            break
        if isinstance(thing, Found):
            portion.rows.append(thing)
        elif isinstance(thing, CallSpot):
            portion.calls.append(thing)
        elif len(thing) == 5:
            portion.packs.append(thing)
        else:
            portion.writes.append(thing)
        size, count, last = size + length, count + 1, place
    else:
        if state != _state(index, again=again):
            portion.cursor = (_past(index), _state(index, again=True), _AGAIN)
    return portion


def _past(index: Index) -> str:
    """Names what was taken away, or put in the place of other things."""
    return f"{index.generation}.{index.rewritten}"


def _state(index: Index, *, again: bool = False) -> str:
    """What the packs of an export are read in; read once `again`, only those that became one matter."""
    return f"{index.log:x}.{index.merged}" if again else token(index)


def _packs(index: Index, stage: str) -> Iterator[_Thing]:
    for place in index.every_pack():
        yield (stage, *(f"{number:020d}" for number in place[2:])), place[1], place


def _things(index: Index) -> Iterator[_Thing]:
    yield from _packs(index, "1")
    rows = [(row.key, ns, row.id) for ns, namespace in index.namespaces.items() for row in namespace.rows.values()]
    for key, ns, id in sorted(rows):
        row = index.namespaces[ns].rows[id]
        yield ("2", key, ns, id), row.length, Found(ns, row, [])
    for ns, namespace in sorted(index.namespaces.items()):
        for id, writes in sorted(namespace.writes.items()):
            yield ("3", ns, id), sum(write.length for write in writes.values()), (ns, id, cite(writes))
    for key, spot in sorted(index.calls.spots.items()):
        yield ("4", key), spot.cost, spot


def _read(reader: Reader, portion: _Portion | None) -> Batch | None:
    if portion is None:
        return None
    return Batch(
        rows=tuple(reader.checkpoints(portion.rows)),
        writes=tuple((ns, id, row) for ns, id, writes in portion.writes for row in reader.writes(writes)),
        packs=tuple(reader.at(portion.packs)),
        cursor=portion.cursor,
        calls=tuple(spot.filled(reader.thread, reader.parts(spot.ranges)) for spot in portion.calls),
    )
