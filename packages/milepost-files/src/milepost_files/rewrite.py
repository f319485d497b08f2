"""Making a new log: from what is live in an old one, or from nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from milepost.fences import Lease

from milepost_files import frames, handle, scan
from milepost_files.calls import CallSpot, whole
from milepost_files.frames import Frame, Record
from milepost_files.handle import Handle
from milepost_files.index import Index
from milepost_files.uptime import Uptime

FrameDraft = tuple[list[Record], list[bytes]]
"""The records and blobs of one frame."""

Read = Callable[[Sequence[tuple[int, int]]], list[bytes]]
"""The bytes of each (offset, length) of a log."""

_DRAFT_BYTES: Final = 1 << 20
_DRAFT_RECORDS: Final = 256


def place(index: Index, frame: Frame) -> None:
    """Bring `index` up to date with a frame that follows the last one."""
    index.apply(frame.at, frame.records, index.end + frame.body)
    index.tip = (index.end, frame.data[: frames.HEADER.size])
    index.end += len(frame.data)


def fill(fd: int, index: Index, drafts: Iterable[FrameDraft], at: float) -> None:
    """Append frames to a file that holds what `index` says, without syncing."""
    for records, blobs in drafts:
        frame = frames.encode(index.log, at, records, blobs)
        _, error = handle.write(fd, frame.data, index.end)
        if error is not None:
            raise error
        place(index, frame)


class Living(NamedTuple):
    """Everything alive in a log, by where it lies: taken from an index that others may go on with."""

    opening: list[Record]
    things: list[tuple[int, int, Record]]
    """Offset, length and record, in the order of the log."""
    spots: list[CallSpot]


def living(index: Index) -> Living:
    """What is alive now. Hold what guards the index."""
    things = _records(index)
    things.sort(key=lambda thing: thing[0])
    opening: list[Record] = [] if index.thread is None else [[frames.THREAD, index.thread]]
    if index.tombstone is not None:
        opening.append(tombstone_record(index))
    if index.lease.fence:
        opening += lease_records(index.lease, index.ends)
    return Living(opening, things, list(index.calls.spots.values()))


def live(alive: Living, read: Read) -> Iterator[FrameDraft]:
    """All of that, in the order it was written in, as frames of a bounded size."""
    opening, things, spots = alive
    yield opening, []
    start = 0
    while start < len(things):
        stop, size = start, 0
        while stop < len(things) and stop - start < _DRAFT_RECORDS and size < _DRAFT_BYTES:
            size += things[stop][1]
            stop += 1
        some = things[start:stop]
        blobs = read([(offset, length) for offset, length, _ in some])
        records = [record for _, _, record in some]
        for record, blob in zip(records, blobs, strict=True):
            if record[0] == frames.PACK:
                record[5] = frames.checksum(blob)
        yield records, blobs
        start = stop
    yield from _calls(spots, read)


def _calls(spots: Sequence[CallSpot], read: Read) -> Iterator[FrameDraft]:
    for start in range(0, len(spots), _DRAFT_RECORDS):
        records: list[Record] = []
        blobs: list[bytes] = []
        for spot in spots[start : start + _DRAFT_RECORDS]:
            record, parts = whole(spot.filled("", read(spot.ranges)))
            records.append(record)
            blobs += parts
        yield records, blobs


def lease_records(lease: Lease, ends: Uptime | None) -> list[Record]:
    """The records that say how a lease stands."""
    return [[frames.LEASE, *lease], *([] if ends is None else [[frames.ENDS, *ends]])]


def tombstone_record(index: Index) -> Record:
    """The record that says what the index knows of a deletion."""
    assert index.tombstone is not None
    return [frames.TOMBSTONE, list(index.tombstone.ids), index.tombstone.floor, index.tombstone.at]


def copy(held: Handle, fd: int) -> None:
    """Write a log to another file, byte for byte: for readers it is the same log, and damage is kept for a repair."""
    size = held.size
    offset = 0
    while offset < size and (data := scan.pread(held.fd, min(_DRAFT_BYTES, size - offset), offset)):
        _, error = handle.write(fd, data, offset)
        if error is not None:
            raise error
        offset += len(data)


def _records(index: Index) -> list[tuple[int, int, Record]]:
    things: list[tuple[int, int, Record]] = []
    for ns, namespace in index.namespaces.items():
        for row in namespace.rows.values():
            key = None if row.key == row.id else row.key
            record = [frames.CHECKPOINT, ns, row.id, row.parent, key, row.at, row.length]
            things.append((row.offset, row.length, record))
        for id, writes in namespace.writes.items():
            for (task, idx), write in writes.items():
                record = [frames.WRITES, ns, id, task, [idx, write.channel, write.length]]
                things.append((write.offset, write.length, record))
    for offset, length, *span in index.every_pack():
        things.append((offset, length, [frames.PACK, *span, length, 0]))
    return things
