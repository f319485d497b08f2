"""One thread's log: bringing the index up to date, appending, recovering, replacing.

The rules that make it safe with any number of processes:

- A writer holds the lock of the log's file while it decides, writes and syncs, and nothing of the user's runs then.
- A log is only ever appended to. Bytes that readers may have taken for a frame are never changed; what a writer cuts
  off is less than a frame. Everything else makes a new file and renames it over the old one.
- After its sync and before it answers, a writer makes sure that the path still names the file it wrote, and that
  nobody is about to replace it (see `milepost_files.lock`). If not, it does its work again on the new file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from milepost.errors import Corrupt, MilepostError, Unavailable

from milepost_files import frames, handle, rewrite, scan
from milepost_files.handle import Handle, Look
from milepost_files.index import Index
from milepost_files.lock import Superseded, Turns, beside
from milepost_files.rewrite import FrameDraft, Read
from milepost_files.scan import Tail
from milepost_files.snapshot import Snapshot
from milepost_files.uptime import Uptime, uptime

_log = logging.getLogger("milepost.files")

_KEPT_TAILS: Final = 4
_KEPT_BYTES: Final = 1 << 20
_WASTE: Final = 1 << 20
_TRIES: Final = 64


class Change(ABC):
    """One write operation on a log."""

    reset: ClassVar[bool] = False
    """Whether what `decide` returns replaces everything that the log holds."""
    tidy: bool | None = False
    """Whether the log should be looked at for waste afterwards. None: not now, another change follows."""
    answer: Any = None
    """What the last `decide` led to."""

    @abstractmethod
    def decide(self, index: Index, read: Read, now: float) -> FrameDraft | None:
        """What to append, decided against `index`; None for nothing. Must not change anything: it may be repeated."""

    def placed(self, index: Index) -> None:
        """Told what the log holds after what `decide` returned was added."""
        return


@dataclass(frozen=True, slots=True)
class Settings:
    """What all logs of a store have in common."""

    clock: Callable[[], float] = time.time
    uptime: Callable[[], Uptime | None] = uptime
    """The machine's own time, by which leases end."""
    sync: bool = True
    """Whether an answer waits for the disk."""
    lock_timeout: float = 5.0
    preallocate: int = 0
    """How many bytes to grow a log by at a time; 0: by what is appended."""


class Log:
    """The log of one thread, as this process sees it. `mutex` guards everything but what a writer does on its own."""

    def __init__(self, folder: str, name: str, thread: str | None, settings: Settings) -> None:
        self._thread = thread
        self.mutex = threading.Lock()
        self._folder = folder
        self._stem = os.path.join(folder, name)
        self._path = self._stem + ".log"
        self.settings = settings
        self._turns = Turns(self._stem, settings.lock_timeout)
        self._handle: Handle | None = None
        self._index: Index | None = None
        self._tail = Tail.CLEAN
        self._check = False
        self._seen = (0, 0)
        self._size = 0
        """Of the file, when a writer last looked."""
        self._unsynced = False
        self._settled = False
        self._wrote = False
        self._snapshot = Snapshot(self._stem)
        self._told: frozenset[str] = frozenset()

    @property
    def known(self) -> bool:
        """Whether it is known whose log this is."""
        return self._thread is not None

    @property
    def thread(self) -> str:
        assert self._thread is not None
        return self._thread

    # -- reading ----------------------------------------------------------------------------------------------------

    def view(self) -> tuple[Index, Handle] | None:
        """The index as of now and the file it is about; None when there is no such log. Hold `mutex`.

        Raises `Unavailable` when the store itself is gone: then nothing can be said about a thread.
        """
        held = self._handle
        if held is None or not handle.names(self._path, held):
            held = self._reopen()
            if held is None:
                self._gone()
                return None
        index = self._index
        end, length = (0, 0) if index is None else (index.end, frames.HEADER.size)
        index = self._refresh(held, handle.look(held.fd, end, length))
        if index is None and self._tail is Tail.GARBAGE:
            index = Index(0)
        return None if index is None else (index, held)

    def _gone(self) -> None:
        """There is no log. Raises `Unavailable` where the store itself is not there either."""
        self.forget()
        above = os.path.dirname(self._folder)
        if not os.path.isdir(above):
            raise Unavailable(
                f"the folder that holds {self._path} is gone: mount or restore it, then try again",
                backend="files",
                op="read",
                errno=errno.ENOENT,
            )

    def damage(self, index: Index) -> tuple[str, ...]:
        """What had to be skipped, in words, as far as words are kept. Hold `mutex`."""
        if self._tail is not Tail.GARBAGE and not index.damage:
            return ()
        words = list(index.damage)
        if index.more_damage:
            words.append(f"{index.more_damage} more places of the log are damaged")
        if self._tail is Tail.GARBAGE:
            words.append(f"what follows byte {index.end} of the log is not a frame")
        return tuple(words)

    def news(self, index: Index) -> tuple[str, ...]:
        """`damage`, without what this was answered before. Hold `mutex`."""
        words = self.damage(index)
        told, self._told = self._told, frozenset(words)
        return tuple(each for each in words if each not in told)

    def lost(self, index: Index) -> int:
        """Offset of the last place at which a frame was lost, or -1. Hold `mutex`."""
        return index.end if self._tail is Tail.GARBAGE else index.lost

    def nameless(self) -> str | None:
        """What is wrong with a log that does not say whose it is; None when it is merely empty."""
        with self.mutex:
            view = self.view()
            damage = () if view is None else self.damage(view[0])
        if not damage:
            return None
        return (
            f"the log {self._path} has lost the frame that names its thread ({damage[0]}); "
            "it is found by the thread's id, and in listings again when something was written to the thread"
        )

    def distrust(self, index: Index) -> None:
        """Have the whole log verified before it is used again: `index` led to bytes that are not what it says."""
        with self.mutex:
            if self._index is index:
                self._index = None
                self._snapshot.distrust()

    def lose(self) -> None:
        """Forget everything, the lock too: the next operation starts from the disk. Only for who writes."""
        with self.mutex:
            if self._handle is not None:  # who was interrupted has perhaps not come to unlocking it
                self._handle.unlock()
            self.forget()

    def forget(self) -> None:
        """`lose` for who holds `mutex`."""
        self._handle = None
        self._index = None
        self._settled = False

    @property
    def weight(self) -> int:
        """What the index holds, roughly: in frames, each of them worth some hundred bytes of memory."""
        index = self._index
        return 0 if index is None else index.frames

    def size(self) -> int:
        """Bytes of the log's file."""
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _reopen(self) -> Handle | None:
        """Open what the path names now, if anything. `_refresh` finds out whether the index fits it."""
        try:
            held = self._handle = handle.opened(self._path)
        except FileNotFoundError:
            return None
        self._settled = False
        self._check = True
        return held

    def _fits(self, held: Handle, index: Index, size: int) -> bool:
        """Whether the file, of this size, begins with all that `index` has seen."""
        place, raw = index.tip
        return bool(raw) and size >= index.end and scan.pread(held.fd, len(raw), place) == raw

    def _refresh(self, held: Handle, look: Look) -> Index | None:
        index, trusted = self._index, not self._check
        end, size, tail = look
        if index is not None and trusted:
            blank = end == index.end < size <= index.blank and tail and not tail.strip(b"\0")
            if size == index.end or (blank and self._fits(held, index, size)):
                self._tail = Tail.CLEAN
                return index
        seen = (size, os.fstat(held.fd).st_mtime_ns)
        if index is not None and trusted and self._tail is Tail.GARBAGE and seen == self._seen:
            return index  # it takes long to search, and is the same as before
        self._seen = seen
        if index is not None and not self._fits(held, index, size):
            index = self._index = None
        self._check = False
        if index is None:
            index = self._thaw(held, size) or scan.begin(held.fd, size)
            if index is None:
                self._tail = Tail.GARBAGE if size >= frames.HEADER.size else Tail.PARTIAL if size else Tail.CLEAN
                return None
            self._index = index
        before = index.end
        self._tail = scan.advance(held.fd, index, size)
        if index.end != before:
            self._unsynced = True
        if self._thread is None:
            self._thread = index.thread
        elif index.thread not in (None, self._thread):
            self.forget()
            raise Corrupt(
                f"the log {self._path} is not that of thread {self._thread!r}: it was copied there from another one. Put "
                "the thread's own log back from a backup, or remove this one",
                thread=self._thread,
                damage="log of another thread",
            )
        return index

    def _thaw(self, held: Handle, size: int) -> Index | None:
        index = self._snapshot.read()
        if (
            index is None
            or (self._thread and index.thread not in (None, self._thread))
            or not self._fits(held, index, size)
        ):
            return None
        self._snapshot.covers(index)
        return index

    # -- writing ----------------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change]) -> list[Exception | None]:
        """Carry out changes, with as few writes and syncs as can be. Returns what went wrong, for each of them."""
        outcome: list[Exception | None] = []
        start = 0
        while start < len(changes):
            stop = start + 1
            if changes[start].reset:
                outcome.append(self._reset(changes[start]))
            else:
                while stop < len(changes) and not changes[stop].reset:
                    stop += 1
                outcome += self._append(changes[start:stop])
            start = stop
        return outcome

    def rest(self, *, last: bool = False) -> None:
        """What can wait until everybody has his answer: the snapshot of the index. Who only reads leaves none."""
        index = self._index
        if index is None or not self._wrote or not self._snapshot.due(index, last=last):
            return
        with self.mutex:
            index = self._index
            if index is None:
                return
            data = self._snapshot.freeze(index)
        self._snapshot.write(data)

    def _append(self, changes: Sequence[Change]) -> list[Exception | None]:
        batch = _Batch([None] * len(changes))
        for _ in range(_TRIES):
            try:
                held, look = self._lock()
                unlocked = False
                try:
                    batch = self._write(held, look, changes)
                    if batch.data or self._unsynced:
                        self._sync(held, batch)
                    wasteful = self._wasteful(changes)
                    if self._turns.confirmed(held, unlock=wasteful is None):
                        unlocked = wasteful is None
                        if wasteful is not None:
                            self._tidy(held, wasteful)
                        return batch.errors
                finally:
                    if not unlocked:
                        held.unlock()
                self._turns.wait_out()
                if self._survived(batch):
                    return batch.errors
            except Superseded:
                self._let_go()
            except (OSError, EOFError, MilepostError) as exc:
                self.lose()
                return [error or exc for error in batch.errors]
        return [self._restless()] * len(changes)

    def _reset(self, change: Change) -> Exception | None:
        for _ in range(_TRIES):
            if not os.path.exists(self._path):
                above = os.path.dirname(self._folder)
                return None if os.path.isdir(above) else FileNotFoundError(errno.ENOENT, "no such folder", above)
            try:
                held, look = self._lock()
                try:
                    if not self._start_over(held, look, change):
                        return None
                finally:
                    held.unlock()
                self.lose()
            except Superseded:
                self._let_go()
            except (OSError, EOFError, MilepostError) as exc:
                self.lose()
                return exc
            else:
                return None
        return self._restless()

    def remove(self, goes: Callable[[Index, float], bool]) -> bool:
        """Remove the log if it `goes`, by its index and the time. Not while somebody writes to it.

        Only for a log that nothing else in this process uses: it takes the lock for itself.
        """
        try:
            held = handle.opened(self._path)
        except FileNotFoundError:
            return False
        look = handle.lock(held.fd, 0, 0) if held.writable else None
        if look is None:
            return False
        try:
            with self.mutex:
                self._handle = held
                if not goes(self._catch_up(held, look), self.settings.clock()):
                    return False
            removed = self._turns.remove(held)
            if removed:
                self._spare()
            return removed
        finally:
            held.unlock()
            self.lose()

    def _start_over(self, held: Handle, look: Look, change: Change) -> bool:
        now = self.settings.clock()
        with self.mutex:
            draft = change.decide(self._catch_up(held, look), _reader(held), now)
        if draft is None:
            if not self._turns.confirmed(held):
                raise Superseded
            return False
        drafts: list[FrameDraft] = [([[frames.THREAD, self.thread]], []), draft]
        # A tombstone alone matters to late writers, which a machine that failed takes along; fences and calls remain.
        losable = all(record[0] == frames.TOMBSTONE for record in draft[0])
        self._renew(held, lambda: drafts, now, losable=losable)
        return True

    def _renew(
        self, held: Handle, drafts: Callable[[], Iterable[FrameDraft]], at: float, *, losable: bool = False
    ) -> None:
        """Put a new log in the place of `held`. Where the disk is full, what can be spared makes room for it: with
        `losable` the old log itself."""

        def fill(fd: int) -> None:
            rewrite.fill(fd, Index(secrets.randbits(64)), drafts(), at)

        try:
            self._turns.replace(held, fill, losable=losable)
        except OSError as exc:
            if exc.errno not in (errno.ENOSPC, errno.EDQUOT) or not (self._spare() or losable):
                raise
            if losable:
                os.ftruncate(held.fd, 0)
            self._turns.replace(held, fill, losable=losable)
        self._spare()

    def _spare(self) -> bool:
        """Remove what was kept beside the log. Whether there was anything."""
        spared = [path for infix in (".idx", ".torn-") for path in beside(self._stem, infix)]
        for path in spared:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        return bool(spared)

    def _lock(self) -> tuple[Handle, Look]:
        """The log's file, locked, and created if need be. Whether the path still names it is to be `confirmed`."""
        for _ in range(_TRIES):
            held = self._handle
            if held is None or not held.writable:
                held = handle.created(self._path)
                with self.mutex:
                    self._handle = held
                    self._check = True
                    self._settled = False
            index = self._index
            end = 0 if index is None else index.end
            look = handle.lock(held.fd, end, frames.HEADER.size)
            if look is None and self._turns.take(held, functools.partial(rewrite.copy, held)):
                look = handle.look(held.fd, end, frames.HEADER.size)
            if look is not None:
                return held, look
            with self.mutex:
                if self._handle is held:
                    self._handle = None
        raise self._restless()

    def _let_go(self) -> None:
        """Have `_lock` open what the path names now."""
        with self.mutex:
            self._handle = None

    def _catch_up(self, held: Handle, look: Look) -> Index:
        """The index as of now, after cutting off what a writer that died has left unfinished. Hold lock and `mutex`."""
        if self._handle is not held:  # a reader has met another file meanwhile; the index may be about that one
            self._handle = held
            self._check = True
        _, self._size, _ = look
        index = self._refresh(held, look)
        if self._tail is not Tail.CLEAN:
            size, self._size = self._size, index.end if index else 0
            self._cut(held, self._size, size)
            self._tail = Tail.CLEAN
        if index is None:
            index = self._index = Index(secrets.randbits(64))
        return index

    def _cut(self, held: Handle, end: int, size: int) -> None:
        _log.warning("the log %s ends in %d bytes that are no whole frame; cutting them off", self._path, size - end)
        try:
            kept = beside(self._stem, ".torn-")
            for path in kept[: max(len(kept) - _KEPT_TAILS + 1, 0)]:
                os.unlink(path)
            with open(f"{self._stem}.torn-{time.time_ns():020d}", "xb") as file:
                file.write(scan.pread(held.fd, min(size - end, _KEPT_BYTES), end))
        except OSError as exc:
            _log.warning("cannot keep the cut end of %s aside: %s", self._path, exc)
        os.ftruncate(held.fd, end)

    def _write(self, held: Handle, look: Look, changes: Sequence[Change]) -> _Batch:
        with self.mutex:
            index = self._catch_up(held, look)
            batch = _Batch([None] * len(changes), index.log, index.end)
            now = self.settings.clock()
            read = _reader(held)
            parts: list[bytes] = []
            ends = [0] * len(changes)
            opening: FrameDraft = ([[frames.THREAD, self.thread]], [])
            for number, change in enumerate(changes):
                try:
                    draft = change.decide(index, read, now)
                    drafts = [] if draft is None else [draft] if index.thread is not None else [opening, draft]
                    encoded = [frames.encode(index.log, now, records, blobs) for records, blobs in drafts]
                except Exception as exc:
                    batch.errors[number] = exc  # its own failure, and no other's
                    continue
                for frame in encoded:
                    rewrite.place(index, frame)
                    parts.append(frame.data)
                    ends[number] = index.end
                if encoded:
                    change.placed(index)
            batch.data = parts[0] if len(parts) == 1 else b"".join(parts)
            if batch.data:
                self._put_down(held, index, batch, ends)
            elif index.end == 0:
                self._index = None
            return batch

    def _put_down(self, held: Handle, index: Index, batch: _Batch, ends: Sequence[int]) -> None:
        """Write a batch. What did not make it to the file as a whole is cut off, and its changes fail."""
        self._wrote = True
        data = batch.data
        step, size, need = self.settings.preallocate, self._size, index.end + frames.HEADER.size
        if need > size and (step or size > batch.start):
            # Zeros after the last frame tell readers that it may be half written although its room is there.
            step = step or 1
            data = data.ljust(-(-need // step) * step - batch.start, b"\0")
        done, error = handle.write(held.fd, data, batch.start)
        if error is None or done >= len(batch.data):
            if error is None and len(data) > len(batch.data):
                index.blank = batch.start + len(data)
            return
        whole = max((end for end in ends if end <= batch.start + done), default=batch.start)
        whole = max(whole, batch.start)
        self._lose_index()
        os.ftruncate(held.fd, whole)
        for number, end in enumerate(ends):
            if end > whole:
                batch.errors[number] = error
        batch.data = batch.data[: whole - batch.start]

    def _sync(self, held: Handle, batch: _Batch) -> None:
        if not self.settings.sync:
            self._unsynced = False
            return
        try:
            os.fdatasync(held.fd)
            if not self._settled:
                # Whoever made the file, or the folder, may have died before it had synced what names it.
                handle.sync_folder(self._folder)
                handle.sync_folder(os.path.dirname(self._folder))
                self._settled = True
        except OSError:
            # What the disk holds now is unknown, and syncing again would not tell. A copy that syncs does.
            with self.mutex:
                self._lose_index()
            self._turns.replace(held, functools.partial(rewrite.copy, held))
        self._unsynced = False

    def _survived(self, batch: _Batch) -> bool:
        """Whether the file that took our place holds what we wrote to the one before."""
        with self.mutex:
            view = self.view()
            if view is None:
                return False
            index, held = view
            return index.log == batch.log and scan.pread(held.fd, len(batch.data), batch.start) == batch.data

    def _wasteful(self, changes: Sequence[Change]) -> Index | None:
        """The index, if it says that so much of the log is dead that it should be rewritten."""
        index = self._index
        # Who drops something wants the space back; in the middle of a run it can wait.
        if index is None or index.dead * 4 < index.end or index.damage:
            return None
        wishes = {change.tidy for change in changes}
        if None in wishes:
            return None
        return index if True in wishes or (index.dead * 2 >= index.end and index.dead >= _WASTE) else None

    def _tidy(self, held: Handle, index: Index) -> None:
        """Rewrite the log. The changes are done; if this fails, it is for another time."""
        # Whoever reads meanwhile may find that somebody took the log over, and bring this index up to date.
        with self.mutex:
            alive, updated = rewrite.living(index), index.updated
        try:
            self._renew(held, lambda: rewrite.live(alive, _reader(held)), updated)
        except (OSError, EOFError, Superseded) as exc:
            _log.warning("cannot give back the unused space of %s: %s", self._path, exc)
            return
        self.lose()

    def _lose_index(self) -> None:
        self._index = None
        self._snapshot.forget()

    def _restless(self) -> Unavailable:
        return Unavailable(
            f"the log {self._path} was replaced again and again while it was in use; try again",
            backend="files",
            op="open",
        )


@dataclass(slots=True)
class _Batch:
    """What was written for some changes."""

    errors: list[Exception | None]
    log: int = 0
    start: int = 0
    data: bytes = field(default=b"")


def _reader(held: Handle) -> Read:
    return lambda ranges: scan.gather(held.fd, ranges)
