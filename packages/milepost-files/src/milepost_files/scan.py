"""Reading a log's bytes: frames in order, past damage, up to where the log ends for now."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import Enum
from operator import gt
from typing import Final

from milepost_files import frames
from milepost_files.calls import length_of
from milepost_files.frames import HEADER, MAGIC, Record
from milepost_files.index import Index

_CHUNK: Final = 1 << 20
_GAP: Final = 1 << 14
_RUN: Final = 1 << 18
_NEIGHBOURS: Final = 4096


class Tail(Enum):
    """What follows the last frame."""

    CLEAN = "nothing, or zeros up to the end of the file"
    PARTIAL = "the beginning of a frame"
    GARBAGE = "bytes that no writer left there on purpose"


def pread(fd: int, length: int, offset: int) -> bytes:
    """`length` bytes at `offset`, or fewer only where the file ends."""
    data = os.pread(fd, length, offset)
    if len(data) == length or not data:
        return data
    parts = [data]
    got = len(data)
    while got < length and (data := os.pread(fd, length - got, offset + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def gather(fd: int, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes of each (offset, length), in the order asked for. Neighbours are read together.

    Raises ``EOFError`` when the file ends before one of them does.
    """
    if any(map(gt, ranges, ranges[1:])):
        order = sorted(range(len(ranges)), key=ranges.__getitem__)
        blobs = dict(zip(order, gather(fd, [ranges[number] for number in order]), strict=True))
        return [blobs[number] for number in range(len(ranges))]
    found: list[bytes] = []
    while len(found) < len(ranges):
        place = stop = len(found)
        start = end = ranges[place][0]
        for offset, length in ranges[place : place + _NEIGHBOURS]:
            past = offset + length
            if stop > place and (offset - end > _GAP or past - start > _RUN):
                break
            end = max(end, past)
            stop += 1
        data = pread(fd, end - start, start)
        if len(data) < end - start:
            raise EOFError(f"a log ends at byte {start + len(data)}, before byte {end}")
        found += [data[offset - start : offset - start + length] for offset, length in ranges[place:stop]]
    return found


class _Window:
    """A file read forward in chunks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._start = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        place = offset - self._start
        if place < 0 or place + length > len(self._data):
            self._data = pread(self._fd, max(length, _CHUNK), offset)
            self._start, place = offset, 0
        return self._data[place : place + length]

    def zeros(self, offset: int, size: int) -> bool:
        """Whether there is nothing else from `offset` to `size`."""
        while offset < size:
            data = self.read(offset, min(_CHUNK, size - offset))
            if data.strip(b"\0"):
                return False
            offset += len(data) or size
        return True

    def blank(self, index: Index, raw: bytes, size: int) -> bool:
        """Whether zeros are all that follows what `index` knows, `raw` first. No place is looked at twice for that."""
        if raw.strip(b"\0") or not self.zeros(max(index.end, index.blank), size):
            return False
        index.blank = size
        return True

    def find(self, offset: int, size: int, log: int | None) -> int | None:
        """Where the next header (of `log`, if given) begins, from `offset` on."""
        while offset + HEADER.size <= size:
            data = self.read(offset, min(_CHUNK, size - offset))
            place = data.find(MAGIC)
            if place < 0:
                offset += max(len(data) - len(MAGIC) + 1, 1)
                continue
            offset += place
            head = frames.parse_head(self.read(offset, HEADER.size))
            if head is not None and log in (None, head.log):
                return offset
            offset += 1
        return None


def log_owner(path: str) -> str | None:
    """The thread that a log is of, by its first frame; None when that does not tell."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        head = frames.parse_head(pread(fd, HEADER.size, 0))
        parsed = None if head is None else frames.parse_manifest(head, pread(fd, head.manifest, HEADER.size))
    finally:
        os.close(fd)
    records = parsed[1] if parsed else ()
    return records[0][1] if records and records[0][0] == frames.THREAD else None


def begin(fd: int, size: int) -> Index | None:
    """An empty index for the log in this file; None when the file has no frame at all (yet)."""
    head = frames.parse_head(pread(fd, HEADER.size, 0))
    if head is None:
        window = _Window(fd)
        place = window.find(0, size, None)
        head = None if place is None else frames.parse_head(window.read(place, HEADER.size))
    return None if head is None else Index(head.log)


def advance(fd: int, index: Index, size: int) -> Tail:
    """Bring `index` up to date with the first `size` bytes of its log. Damage is skipped and noted in the index."""
    window = _Window(fd)
    while True:
        start = index.end
        raw = window.read(start, HEADER.size)
        head = frames.parse_head(raw)
        if head is None or head.log != index.log:
            if start + HEADER.size > size:
                return Tail.CLEAN if window.blank(index, raw, size) else Tail.PARTIAL
            if window.blank(index, raw, size):
                return Tail.CLEAN
            found = window.find(start + 1, size, index.log)
            if found is None:
                return Tail.GARBAGE
            index.note(f"bytes {start} to {found} of the log are not a frame")
            index.lost = start
            index.end = found
            continue
        if start + head.length > size:
            return Tail.PARTIAL
        parsed = frames.parse_manifest(head, window.read(start + HEADER.size, head.manifest))
        at, records = parsed or (0.0, [])
        body = start + HEADER.size + head.manifest
        damaged, damage = _verify(window, records, body)
        if parsed is None:
            damage = [f"the frame at byte {start} of the log, {head.length} bytes long, has lost its manifest"]
        # Before zeros, that is in preallocated space, a frame may be half written although its room is there.
        after = start + head.length
        if damage and after < size and window.zeros(after, size):
            return Tail.PARTIAL
        for words in damage:
            index.note(words)
        if parsed is None:
            index.lost = start
        index.apply(at, records, body, damaged)
        index.tip = (start, raw)
        index.end = after


def _verify(window: _Window, records: Sequence[Record], offset: int) -> tuple[set[int], list[str]]:
    """Numbers of the records whose blob does not verify, and what that means."""
    damaged: set[int] = set()
    damage: list[str] = []
    for number, record in enumerate(records):
        kind = record[0]
        if kind == frames.CHECKPOINT:
            if not frames.sound(window.read(offset, record[6])):
                damaged.add(number)
                damage.append(
                    f"checkpoint {record[2]!r} of namespace {record[1]!r}, at byte {offset} of the log, is damaged"
                )
            offset += record[6]
        elif kind == frames.PACK:
            if not frames.intact(window.read(offset, record[4]), record):
                damaged.add(number)
                damage.append(
                    f"items {record[2]} to {record[2] + record[3] - 1} of writer {record[1]}, at byte {offset} of the log, are "
                    "damaged"
                )
            offset += record[4]
        elif kind == frames.CALL:
            length = length_of(record)
            if frames.checksum(window.read(offset, length)) != record[-1]:
                damaged.add(number)
                damage.append(f"the record of call {record[1]!r}, at byte {offset} of the log, is damaged")
            offset += length
        elif kind == frames.WRITES:
            for length in record[4][2::3]:
                if not frames.sound(window.read(offset, length)):
                    damaged.add(number)
                    damage.append(
                        f"pending writes of task {record[3]!r} at checkpoint {record[2]!r}, at byte {offset} of the log, are "
                        "damaged"
                    )
                offset += length
    return damaged, damage
