"""Archives: what maintenance removes from a thread, in one compressed file per thread, which can be loaded again.

A file is a sequence of frames, each appended as a whole and synced before anything is deleted:

    u32, u64, u32       lengths of the head and of the body, and the CRC-32 of these twelve bytes; little endian
    head                an envelope around the msgpack of [version, thread, spans of the packs]
    body                an envelope around the msgpack of [rows, writes, packs], compressed

The thread's name is the one that it has in the store, with its tenant. Checkpoints, writes and packs are as the store
has them, so what was sealed with a key is sealed here too; ids are not. Ancestors that stay, and that a delta channel of
what goes is rebuilt from, are there as well. What an earlier frame has as it is, a pack too, is left out. A
last frame that was cut short is what a crash left, of a step that was not carried out: it is passed over, and replaced
by the next one. Lengths that do not verify are damage, behind which nothing is read, and nothing written.

Beside the files lies a list of what was erased, as hashes: maintenance that read a thread before it was erased finds it
there, and does not bring the thread back. While a thread is being erased, a file beside its archive has its name: from
before the thread goes until the archive has gone.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from bisect import bisect_right
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import ormsgpack

from milepost.checksums import crc32
from milepost.codec.envelope import unwrap, wrap
from milepost.codec.pack import MERGE_LEVEL
from milepost.errors import Corrupt, FormatTooNew, InvalidConfig, UnsettledCalls
from milepost.places import check_path, check_thread
from milepost.store import Batch, CheckpointRow, Pack, Span, WriteRow, merge_spans
from milepost.tenants import check_tenant, full_name
from milepost.upkeep import Hooks

try:
    import fcntl
except ImportError:  # no locks there: one process at a time
    fcntl = None  # type: ignore[assignment]

VERSION = 1
SUFFIX = ".milepost-archive"

ERASURES = "erasures.milepost-log"
_MARK = ".milepost-erasing"
_BEGUN = 3600.0
"""Seconds after which a mark that says nothing yet is of nobody who is still at it."""

_LENGTHS = struct.Struct("<IQI")
_CHECKED = 12
"""Bytes of the lengths that their checksum is of."""
_NOTED: ContextVar[Mapping[Path, int] | None] = ContextVar("milepost-archiving", default=None)
"""How long the list of erasures was when what is to be archived was not yet read."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One step of maintenance: what went with it."""

    thread: str
    """The name that it has in the store, with its tenant."""
    batch: Batch
    end: int
    """Where it ends in the file."""


class ArchiveFolder(Hooks):
    """Hooks that archive what goes into `folder`, a file for each thread; `erase` removes the file.

    A plan that could not be archived is not carried out. `milepost.saver.Saver.restore` loads a file again.

    Args:
        folder: made when something is to be archived. It is for the threads of one store: another store's thread of the
            same id would have the same file.
        tenant: that of the saver whose threads are archived, None for one without. Savers refuse an archive that is not
            for their tenant. Several tenants may share a folder, also with a saver of the whole store.

    Raises `InvalidConfig` for what is no path or no tenant.
    """

    blocking = ("archive", "erase", "unfinished")

    def __init__(self, folder: str | os.PathLike[str], *, tenant: str | None = None) -> None:
        self.folder = Path(check_path(folder, "folder"))
        self.tenant = None if tenant is None else check_tenant(tenant)
        self._erasures = self.folder / ERASURES

    def path_of(self, thread: str) -> Path:
        """The file of a thread, whether or not it exists."""
        return self.folder / (self._digest(thread).hex() + SUFFIX)

    def _name(self, thread: str) -> str:
        name = check_thread(thread)
        return name if self.tenant is None else full_name(self.tenant, name)

    def _digest(self, thread: str) -> bytes:
        return hashlib.sha256(self._name(thread).encode("utf-8", "surrogatepass")).digest()[:20]

    @contextmanager
    def archiving(self, thread: str) -> Generator[None]:
        # Whoever erases and finds no folder has deleted the thread before it is read here.
        self.folder.mkdir(parents=True, exist_ok=True)
        noted = self._erasures.stat().st_size if self._erasures.exists() else 0
        token = _NOTED.set({**(_NOTED.get() or {}), self.folder: noted})
        try:
            yield
        finally:
            _NOTED.reset(token)

    def archive(self, thread: str, batch: Batch) -> object:
        path = self.path_of(thread)
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(path) as file:
            # Whoever erases lists the thread before the file goes: what is appended after this look goes with it.
            if self._erased(thread):
                if not os.fstat(file.fileno()).st_size:
                    path.unlink()
                return False
            end, known, new = _end_of(file, path, batch)
            file.truncate(end)
            if new.rows or new.writes:
                file.write(_encoded(self._name(thread), new, known))
            file.flush()
            os.fsync(file.fileno())
        self._sync()
        return True

    def _erased(self, thread: str) -> bool:
        """Whether the thread was erased since `archiving` began."""
        noted = (_NOTED.get() or {}).get(self.folder)
        if noted is None or not self._erasures.exists():
            return False
        with self._erasures.open("rb") as file:
            file.seek(noted)
            return self._digest(thread) in file.read()

    def erase(self, thread: str) -> object:
        if not self.folder.is_dir():
            return 0
        path = self.path_of(thread)
        with _locked(path) as file:
            found = os.fstat(file.fileno()).st_size > 0
            with self._erasures.open("ab") as erasures:
                erasures.write(self._digest(thread))
                erasures.flush()
                os.fsync(erasures.fileno())
            path.unlink()
        self._sync()
        return int(found)

    @contextmanager
    def erasing(self, thread: str) -> Generator[None]:
        # The mark comes before the thread goes, and goes after the archive: whoever is killed in between leaves it.
        mark = _mark_of(self.path_of(thread))
        if not self.folder.is_dir():
            yield
            return
        with mark.open("wb") as file:
            file.write(self._name(thread).encode())
            file.flush()
            os.fsync(file.fileno())
        self._sync()
        try:
            yield
        except UnsettledCalls:  # nothing of the thread went
            mark.unlink(missing_ok=True)
            raise
        mark.unlink(missing_ok=True)
        self._sync()

    def unfinished(self) -> list[str]:
        own = "" if self.tenant is None else full_name(self.tenant, "")
        names: list[str] = []
        for mark in sorted(self.folder.glob(f"*{_MARK}")):
            with suppress(FileNotFoundError, UnicodeDecodeError):
                name = mark.read_bytes().decode()
                if not name and time.time() - mark.stat().st_mtime > _BEGUN:
                    mark.unlink()  # whoever made it was killed before anything of the thread went
                elif name and name.startswith(own):
                    names.append(name[len(own) :])
        return names

    def _sync(self) -> None:
        """Have the names in the folder survive a crash."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _mark_of(path: Path) -> Path:
    """What says that the thread of the archive at `path` is being erased."""
    return path.with_name(path.name.removesuffix(SUFFIX) + _MARK)


def is_being_erased(path: str | os.PathLike[str]) -> bool:
    """Whether the erasure of the thread of an archive was begun, and has not come to its end."""
    return _mark_of(Path(path)).exists()


@contextmanager
def _locked(path: Path) -> Generator[IO[bytes]]:
    """The file at `path`, which is made if need be, and nobody else's for the block."""
    while True:
        with path.open("a+b") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                # It may have been removed before the lock was ours.
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    yield file
                    return


def frames(path: str | os.PathLike[str]) -> Iterator[Frame]:
    """What an archive holds, oldest first. Packs come with the first frame that needed them.

    Raises `InvalidConfig` when there is no such file, `Corrupt` for what does not verify, `FormatTooNew`.
    """
    try:
        file = Path(path).open("rb")  # noqa: SIM115  # closed below, whoever stops listening
    except OSError as exc:
        raise InvalidConfig(f"the archive {path} cannot be read: {exc}", what="path", value=repr(str(path))) from exc
    with file:
        for head, start, end in _pieces(file, Path(path)):
            _, thread, _ = _head(head, Path(path))
            file.seek(start)
            yield Frame(thread, _batch(unwrap(file.read(end - start))), end)


class Whole(NamedTuple):
    """All that an archive holds."""

    thread: str
    """The name that it has in the store, with its tenant."""
    batch: Batch
    """Oldest first. Its packs may overlap."""
    cut: int
    """Bytes at the end that are no whole frame: of a step that a crash kept from being carried out, or lost."""


def whole(path: str | os.PathLike[str]) -> Whole:
    """All that an archive holds. Raises as `frames`."""
    rows: dict[tuple[str, str], CheckpointRow] = {}
    parents: dict[tuple[str, str], str | None] = {}
    writes: dict[tuple[str, str, str, int], tuple[str, str, WriteRow]] = {}
    packs: list[Pack] = []
    thread, end = "", 0
    for frame in frames(path):
        if thread not in ("", frame.thread):
            raise Corrupt(f"the archive {path} holds frames of several threads", damage="archive")
        thread, end = frame.thread, frame.end
        # A step that was not carried out is archived again.
        rows |= {(row.ns, row.id): row for row in frame.batch.rows}
        # An ancestor that stayed, and got another parent before it went: what is rebuilt from it has to find the first one.
        parents = {(row.ns, row.id): row.parent for row in frame.batch.rows} | parents
        writes |= {(ns, id, row.task, row.idx): (ns, id, row) for ns, id, row in frame.batch.writes}
        packs += frame.batch.packs
    if not thread:
        raise Corrupt(f"the archive {path} holds nothing", damage="archive")
    linked = [row._replace(parent=up) if (row.ns, up := parents[at]) in rows else row for at, row in rows.items()]
    ordered = sorted(linked, key=lambda row: (row.key, row.ns))
    batch = Batch(tuple(ordered), tuple(writes.values()), tuple(packs))
    return Whole(thread, batch, max(0, Path(path).stat().st_size - end))


def _pieces(file: IO[bytes], path: Path) -> Iterator[tuple[bytes, int, int]]:
    """(head, where the body begins, where it ends) of each whole frame, up to one that was cut short."""
    at, size = 0, os.fstat(file.fileno()).st_size
    while True:
        file.seek(at)
        lengths = file.read(_LENGTHS.size)
        if len(lengths) < _LENGTHS.size:
            return
        head_size, body_size, noted = _LENGTHS.unpack(lengths)
        if crc32(lengths[:_CHECKED]) != noted:
            if not any(lengths) and not file.read().strip(b"\0"):
                return  # room that a file system had given to a frame, when the power failed
            raise Corrupt(f"the archive {path} is damaged at byte {at}", damage="archive")
        start = at + _LENGTHS.size + head_size
        if start + body_size > size:
            return
        at = start + body_size
        yield file.read(head_size), start, at


def _end_of(file: IO[bytes], path: Path, batch: Batch) -> tuple[int, tuple[Span, ...], Batch]:
    """Where the last whole frame ends, which items the frames have, and what of `batch` they do not have as it is. Raises
    `Corrupt` for what does not verify: nothing may rest on an archive that cannot be restored."""
    known: list[Span] = []
    rows = {(row.ns, row.id): row for row in batch.rows}
    writes = dict.fromkeys(batch.writes)
    last = 0
    for head, start, end in _pieces(file, path):
        known += (Span(*span) for span in _head(head, path)[2])
        file.seek(start)
        try:
            held = _batch(unwrap(file.read(end - start)))
        except Corrupt as exc:
            raise Corrupt(f"the archive {path} is damaged between bytes {start} and {end}", damage="archive") from exc
        for row in held.rows:
            found = rows.get((row.ns, row.id))
            if found is not None and found[:5] == row[:5]:
                del rows[row.ns, row.id]
        for write in held.writes:
            writes.pop(write, None)
        last = end
    return last, merge_spans(known), replace(batch, rows=tuple(rows.values()), writes=tuple(writes))


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
    lengths = _LENGTHS.pack(len(head), len(sealed), 0)[:_CHECKED]
    return lengths + struct.pack("<I", crc32(lengths)) + head + sealed


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
