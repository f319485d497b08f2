"""Archives: what maintenance removes from a thread, in one compressed file per thread, which can be loaded again.

A file is a sequence of frames, each appended as a whole and synced before anything is deleted:

    u32, u64            lengths of the head and of the body, little endian
    head                an envelope around the msgpack of [version, thread, spans of the packs]
    body                an envelope around the msgpack of [rows, writes, packs], compressed

Checkpoints, writes and packs are as the store has them, so what was sealed with a key is sealed here too; ids are not.
A pack that an earlier frame has is left out. A frame that was cut short is what a crash left, of a step that was not
carried out: it is passed over, and replaced by the next one.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ormsgpack

from milepost.codec.envelope import unwrap, wrap
from milepost.codec.pack import MERGE_LEVEL
from milepost.errors import Corrupt, FormatTooNew, InvalidConfig
from milepost.pending import running_loop
from milepost.store import Batch, CheckpointRow, Pack, Span, WriteRow, merge_spans
from milepost.upkeep import Hooks

try:
    import fcntl
except ImportError:  # no locks there: one process at a time
    fcntl = None  # type: ignore[assignment]

VERSION = 1
SUFFIX = ".milepost-archive"

_LENGTHS = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of maintenance: what went with it."""

    thread: str
    batch: Batch


class ArchiveFolder(Hooks):
    """Hooks that archive what goes into `folder`, a file for each thread; `erase` removes the file.

    A plan that could not be archived is not carried out. `milepost.saver.Saver.restore` loads a file again.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path_of(self, thread: str) -> Path:
        """The file of a thread, whether or not it exists."""
        return self.folder / (hashlib.sha256(thread.encode("utf-8", "surrogatepass")).hexdigest()[:40] + SUFFIX)

    def archive(self, thread: str, batch: Batch) -> object:
        if running_loop() is not None:
            return asyncio.to_thread(self._append, thread, batch)
        self._append(thread, batch)
        return None

    def _append(self, thread: str, batch: Batch) -> None:
        path = self.path_of(thread)
        self.folder.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            end, known = _end_of(file, path)
            file.truncate(end)
            file.write(_encoded(thread, batch, known))
            file.flush()
            os.fsync(file.fileno())
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def erase(self, thread: str) -> object:
        with suppress(FileNotFoundError):
            self.path_of(thread).unlink()
            return 1
        return 0


def frames(path: str | os.PathLike[str]) -> Iterator[Frame]:
    """What an archive holds, oldest first. Packs come with the first frame that needed them.

    Raises `InvalidConfig` when there is no such file, `Corrupt` for what does not verify, `FormatTooNew`.
    """
    try:
        file = Path(path).open("rb")  # noqa: SIM115  # closed below, whoever stops listening
    except OSError as exc:
        raise InvalidConfig(f"the archive {path} cannot be read: {exc}", what="path", value=repr(str(path))) from exc
    with file:
        for head, body in _frames(file):
            _, thread, _ = _head(head, Path(path))
            yield Frame(thread, _batch(unwrap(body)))


def whole(path: str | os.PathLike[str]) -> tuple[str, Batch]:
    """The thread that an archive is of, and all it holds, oldest first. Its packs may overlap. Raises as `frames`."""
    rows: dict[tuple[str, str], CheckpointRow] = {}
    writes: dict[tuple[str, str, str, int], tuple[str, str, WriteRow]] = {}
    packs: list[Pack] = []
    thread = ""
    for frame in frames(path):
        thread = frame.thread
        # A step that was not carried out is archived again.
        rows |= {(row.ns, row.id): row for row in frame.batch.rows}
        writes |= {(ns, id, row.task, row.idx): (ns, id, row) for ns, id, row in frame.batch.writes}
        packs += frame.batch.packs
    if not thread:
        raise Corrupt(f"the archive {path} holds nothing", damage="archive")
    ordered = sorted(rows.values(), key=lambda row: (row.key, row.ns))
    return thread, Batch(tuple(ordered), tuple(writes.values()), tuple(packs))


def _frames(file: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    while len(lengths := file.read(_LENGTHS.size)) == _LENGTHS.size:
        head_size, body_size = _LENGTHS.unpack(lengths)
        head = file.read(head_size)
        body = file.read(body_size)
        if len(head) < head_size or len(body) < body_size:
            return
        yield head, body


def _end_of(file: IO[bytes], path: Path) -> tuple[int, tuple[Span, ...]]:
    """Where the last whole frame ends, and which items the frames have."""
    file.seek(0)
    end = 0
    size = os.fstat(file.fileno()).st_size
    known: list[Span] = []
    while len(lengths := file.read(_LENGTHS.size)) == _LENGTHS.size:
        head_size, body_size = _LENGTHS.unpack(lengths)
        if end + _LENGTHS.size + head_size + body_size > size:
            break
        known += (Span(*span) for span in _head(file.read(head_size), path)[2])
        end += _LENGTHS.size + head_size + body_size
        file.seek(end)
    return end, merge_spans(known)


def _head(data: bytes, path: Path) -> Any:
    try:
        head = ormsgpack.unpackb(unwrap(data))
    except ValueError as exc:
        raise Corrupt(f"the archive {path} is damaged", damage="archive") from exc
    if head[0] > VERSION:
        raise FormatTooNew(
            f"the archive {path} has format {head[0]}; this release reads up to {VERSION}. Upgrade milepost.",
            found=head[0],
            supported=VERSION,
        )
    return head


def _encoded(thread: str, batch: Batch, known: tuple[Span, ...]) -> bytes:
    packs = [pack for pack in batch.packs if not _has(known, pack)]
    head = wrap(ormsgpack.packb([VERSION, thread, [list(pack[:3]) for pack in packs]]))
    rows = [
        [row.ns, row.id, row.parent, row.header, [list(span) for span in row.spans], dict(row.facets), row.key, row.at]
        for row in batch.rows
    ]
    writes = [
        [ns, id, row.task, row.idx, row.path, row.channel, row.value, [list(span) for span in row.spans]]
        for ns, id, row in batch.writes
    ]
    body = ormsgpack.packb([rows, writes, [list(pack) for pack in packs]])
    sealed = wrap(body, compress_over=0, level=MERGE_LEVEL)
    return _LENGTHS.pack(len(head), len(sealed)) + head + sealed


def _has(known: tuple[Span, ...], pack: Pack) -> bool:
    """Whether one of `known`, which are sorted and apart, covers the whole pack."""
    at = bisect_right(known, pack[:2], key=lambda span: span[:2]) - 1
    return at >= 0 and known[at].writer == pack.writer and pack.first + pack.count <= sum(known[at][1:])


def _batch(data: bytes) -> Batch:
    try:
        rows, writes, packs = ormsgpack.unpackb(data)
        return Batch(
            tuple(
                CheckpointRow(ns, id, parent, header, _spans(spans), facets, (), key, at)
                for ns, id, parent, header, spans, facets, key, at in rows
            ),
            tuple(
                (ns, id, WriteRow(task, idx, path, channel, value, _spans(spans)))
                for ns, id, task, idx, path, channel, value, spans in writes
            ),
            tuple(Pack(*pack) for pack in packs),
        )
    except (ValueError, TypeError) as exc:
        raise Corrupt("a frame of an archive does not make sense", damage="archive") from exc


def _spans(flat: list[list[int]]) -> tuple[Span, ...]:
    return tuple(Span(*span) for span in flat)
