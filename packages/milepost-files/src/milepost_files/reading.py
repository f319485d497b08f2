"""What the read verbs do: find the places in the index, read the bytes, and try again if the log changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from milepost.collector import many, unhurried
from milepost.errors import Corrupt
from milepost.store import CheckpointRow, Pack, Snapshot, Span, WriteRow, merge_spans

from milepost_files import frames, scan
from milepost_files.handle import Handle
from milepost_files.index import Index, PackPlace, Row, WritePlaces
from milepost_files.log import Log

P = TypeVar("P")
T = TypeVar("T")

Cited = tuple[str, int, str, int, int]
"""Place of a pending write: (task, idx, channel, offset, length)."""

_TRIES: Final = 16
_WORDS: Final = 8
"""How many damaged places an error names."""


class Moved(Exception):
    """The bytes at a place are not what the index says, or the thread went to another generation while it was read."""


@dataclass(slots=True)
class Found:
    """A checkpoint's place, and the places of the writes that are wanted with it."""

    ns: str
    row: Row
    writes: list[Cited]


class Reader:
    """A log at one moment. Reads bytes; takes the log's mutex only to look up packs."""

    def __init__(self, log: Log, index: Index, held: Handle) -> None:
        self.thread = log.thread
        self.generation = index.generation
        self.damage: list[str] = []
        """What of this reading does not verify, in words."""
        self.lost = log.lost(index)
        """Offset of the last place at which a frame was lost, or -1."""
        self.index = index
        self._log = log
        self._held = held

    def told(self, losses: Sequence[str]) -> tuple[str, ...]:
        """`losses`, the damage of this reading, and that of the log that nobody has been told of yet: each once."""
        with self._log.mutex:
            return tuple(dict.fromkeys((*losses, *self.damage, *self._log.news(self.index))))

    def missing(self, ns: str, id: str | None) -> None:
        """Raise `Corrupt` unless a checkpoint, or with None the latest one, is certainly not stored."""
        with self._log.mutex:
            damage = self._log.damage(self.index)
        if id is not None:
            if self.lost < 0:
                return
            what = f"checkpoint {id!r} of thread {self.thread!r} is not found, and may be among what is lost"
            advice = "go on from another checkpoint, or restore the thread from a backup"
        elif damage and (self.index.empty or (not ns and self.lost >= 0)):
            what = f"nothing of thread {self.thread!r} can be read"
            advice = "restore the thread from a backup, or delete it to start afresh"
        else:
            return
        words = "; ".join(damage[:_WORDS])
        raise Corrupt(f"{what} ({words}): {advice}", thread=self.thread, ns=ns, checkpoint=id, damage=words)

    def blobs(self, rows: Sequence[Row]) -> list[bytes]:
        """The bytes of checkpoints, verified by nobody yet."""
        return self._read([(row.offset, row.length) for row in rows])

    def checkpoints(self, found: Sequence[Found]) -> list[CheckpointRow]:
        blobs = self.blobs([each.row for each in found])
        return [self._checkpoint(each, blob) for each, blob in zip(found, blobs, strict=True)]

    def snapshots(self, found: Sequence[Found]) -> tuple[Snapshot, ...]:
        ranges = [(each.row.offset, each.row.length) for each in found]
        for each in found:
            ranges.extend((offset, length) for *_, offset, length in each.writes)
        blobs = iter(self._read(ranges))
        rows = [self._checkpoint(each, next(blobs)) for each in found]
        return tuple(
            Snapshot(
                self.thread,
                row,
                tuple(write(task, idx, channel, next(blobs)) for task, idx, channel, _, _ in each.writes),
                self.generation,
            )
            for each, row in zip(found, rows, strict=True)
        )

    def packs(self, spans: Collection[Span]) -> list[Pack]:
        """Every stored pack that overlaps one of `spans`."""
        with self._log.mutex:
            if self.index.generation != self.generation:
                raise Moved
            places = self.index.places(spans)
        return self.at(places)

    def at(self, places: Sequence[PackPlace]) -> list[Pack]:
        if not places:
            return []
        with unhurried(len(places)):
            offsets, lengths, writers, firsts, counts = zip(*places, strict=True)
            blobs = self._read(list(zip(offsets, lengths, strict=True)))
            return many(Pack, zip(writers, firsts, counts, blobs, strict=True))

    def parts(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of these places, as they are."""
        return self._read(ranges)

    def writes(self, writes: Sequence[Cited]) -> list[WriteRow]:
        blobs = self._read([(offset, length) for *_, offset, length in writes])
        return [write(task, idx, channel, blob) for (task, idx, channel, _, _), blob in zip(writes, blobs, strict=True)]

    def _checkpoint(self, found: Found, blob: bytes) -> CheckpointRow:
        """A damaged checkpoint is handed out as it is, without its items: the codec says what is wrong with it."""
        row = found.row
        spans: tuple[Span, ...] = ()
        facets: dict[str, frames.Facet] = {}
        if frames.sound(blob):
            spans, facets = frames.checkpoint_meta(blob)
        else:
            where = f"at byte {row.offset} of the log"
            self.damage.append(f"checkpoint {row.id!r} of namespace {found.ns!r}, {where}, is damaged")
        return CheckpointRow(
            ns=found.ns,
            id=row.id,
            parent=row.parent,
            header=frames.value_of(blob),
            spans=spans,
            facets=facets,
            key=row.key,
            at=row.at,
        )

    def _read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        try:
            return scan.gather(self._held.fd, ranges)
        except EOFError as exc:
            raise Moved from exc


def find(index: Index, ns: str, row: Row, channels: Collection[str] | None = None) -> Found:
    """A checkpoint with its writes to `channels`, or all of them."""
    return Found(ns, row, cite(index.writes(ns, row.id), channels))


def cite(writes: WritePlaces, channels: Collection[str] | None = None) -> list[Cited]:
    """The places of writes, all of them or those to `channels`."""
    return [
        (task, idx, channel, offset, length)
        for (task, idx), (channel, offset, length) in writes.items()
        if channels is None or channel in channels
    ]


def reading(log: Log, plan: Callable[[Index], P], read: Callable[[Reader, P], T]) -> T | None:
    """What `read` makes of the places that `plan` finds in the log as it is now; None when there is no log.

    `plan` runs under the log's mutex. Starts again when a drop came between, and has the whole log verified first when
    its bytes are not what the index says.
    """
    for _ in range(_TRIES):
        with log.mutex:
            view = log.view()
            if view is None:
                return None
            reader = Reader(log, *view)
            planned = plan(reader.index)
        try:
            return read(reader, planned)
        except Moved:
            if reader.index.generation == reader.generation:
                log.distrust(reader.index)
    raise EOFError(f"the log of thread {log.thread!r} changes faster than it can be read")


def fetch(log: Log, spans: Collection[Span]) -> list[Pack] | None:
    """Every stored pack that overlaps one of `spans`; None when there is no log."""
    return reading(log, lambda _: None, lambda reader, _: reader.packs(spans))


def spans_in(snapshots: Iterable[Snapshot], *, rows: bool = True) -> tuple[Span, ...]:
    """What the writes of `snapshots` refer to, and with `rows` the checkpoints too."""
    spans: set[Span] = set()
    for snapshot in snapshots:
        if rows:
            spans.update(snapshot.row.spans)
        for each in snapshot.writes:
            spans.update(each.spans)
    return merge_spans(spans)


def write(task: str, idx: int, channel: str, blob: bytes) -> WriteRow:
    """A pending write from its blob. Raises `Moved` when the blob does not verify."""
    if not frames.sound(blob):
        raise Moved
    (path, numbers), value = frames.unseal(blob)
    return WriteRow(task=task, idx=idx, path=path, channel=channel, value=value, spans=frames.spans_of(numbers))
