"""The folder of a store: its format, and the logs in it that are open."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import os
import random
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from milepost.errors import FormatTooNew, InvalidConfig, Unavailable

from milepost_files.commit import Queue
from milepost_files.handle import sync_folder
from milepost_files.log import Log, Settings
from milepost_files.scan import log_owner

FORMAT: Final = 1
_FORMAT_FILE: Final = "FORMAT"
_MOST_FRAMES: Final = 1 << 18
_WEIGHED_EVERY: Final = 32
"""After so many newly opened logs all of them are weighed."""
_MOST_VIEWS: Final = 4
_MOST_OWNERS: Final = 1 << 16
_KIND: Final = "milepost-files"


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a listing over all threads has still to hand out."""

    spots: Sequence[tuple[str, str, str, str]]
    """(sort key, thread, ns, id), ascending: listings go from the end."""
    complete: bool
    """Whether nothing comes after these."""


class Views:
    """The listings that are under way, by names that their cursors carry. One that is forgotten is gathered anew."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._views: OrderedDict[str, Ahead] = OrderedDict()

    def keep(self, ahead: Ahead) -> str:
        name = secrets.token_hex(8)
        with self._lock:
            self._views[name] = ahead
            while len(self._views) > _MOST_VIEWS:
                self._views.popitem(last=False)
        return name

    def find(self, name: str) -> Ahead | None:
        with self._lock:
            ahead = self._views.get(name)
            if ahead is not None:
                self._views.move_to_end(name)
            return ahead


def _number(format: object) -> int:
    if type(format) is not int or format < 1:
        raise ValueError(format)
    return format


@functools.lru_cache(maxsize=4096)
def log_name(thread: str) -> str:
    """The name of a thread's log."""
    return hashlib.blake2b(thread.encode(), digest_size=16).hexdigest()


class Root:
    """One store folder, as this process sees it.

    At most `max_open` logs are kept open with their index, and fewer where the indexes are large.
    """

    def __init__(self, path: str, settings: Settings, max_open: int) -> None:
        self.path = path
        self.settings = settings
        self._threads = os.path.join(path, "threads")
        self._format = os.path.join(path, _FORMAT_FILE)
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Queue] = OrderedDict()
        self._opened = 0
        self._owners: dict[str, str] = {}
        """Names of logs to the threads that they are of."""
        self.views = Views()
        self.ready = False

    def renew(self) -> None:
        """Open everything anew: this process was forked from the one that had it open."""
        self._lock = threading.Lock()
        self._open = OrderedDict()
        self.views = Views()

    def setup(self) -> None:
        """Create the folder if it is not there, and see that it is a whole store of a format we know."""
        if not os.path.exists(self._format):
            try:
                os.makedirs(self.path, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as exc:
                raise InvalidConfig(
                    f"{self.path} cannot be a folder: it, or a part of its path, is a file or a link that leads nowhere",
                    what="path",
                    value=repr(self.path)[:200],
                ) from exc
            if os.path.isdir(self._threads) and os.listdir(self._threads) and not os.path.exists(self._format):
                raise Unavailable(
                    f"the store in {self.path} has threads but has lost its file {_FORMAT_FILE}: restore it from a "
                    f'backup, or write {{"format": {FORMAT}, "kind": "{_KIND}"}} into it',
                    backend="files",
                    op="open",
                )
            strangers = [
                name
                for name in os.listdir(self.path)
                if not (name.startswith(_FORMAT_FILE) or (name == "threads" and os.path.isdir(self._threads)))
            ]
            if strangers:
                raise InvalidConfig(
                    f"the folder {self.path} is not a Milepost store and not empty (it holds {min(strangers)!r}): name "
                    "an empty folder, or one that does not exist yet",
                    what="path",
                    value=repr(self.path)[:200],
                )
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._threads)
            self._write_format()
        self.verify()

    def verify(self) -> None:
        """See that the folder is a whole store of a format we know. Writes nothing."""
        try:
            with open(self._format, encoding="utf-8") as file:
                content = json.load(file)
            number = _number({_KIND: content["format"]}[content["kind"]])
        except FileNotFoundError as exc:
            raise Unavailable(
                f"there is no file store in {self.path}: call setup() to create it, or mount what holds it",
                backend="files",
                op="open",
                errno=exc.errno,
            ) from exc
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise InvalidConfig(
                f"the file {self._format} is not one of a Milepost store: if the folder is one, restore the file from a "
                "backup, else name another folder",
                what="path",
                value=repr(self.path)[:200],
            ) from exc
        if number > FORMAT:
            raise FormatTooNew(
                f"the store in {self.path} has format {number}, and this release reads up to {FORMAT}: upgrade "
                "milepost-files",
                found=number,
                supported=FORMAT,
            )
        if not os.path.isdir(self._threads):
            raise Unavailable(
                f"the store in {self.path} has lost its folder 'threads': restore it from a backup, or remove "
                f"{_FORMAT_FILE} to start with an empty store",
                backend="files",
                op="open",
            )
        self.ready = True

    def queue(self, thread: str) -> Queue:
        """The log of a thread, with its writers. Reads nothing from the disk."""
        name = log_name(thread)
        with self._lock:
            queue = self._open.get(name)
            if queue is None:
                queue = self._open[name] = Queue(
                    Log(os.path.join(self._threads, name[:2]), name, thread, self.settings)
                )
                self._make_room()
            else:
                self._open.move_to_end(name)
            return queue

    def _make_room(self) -> None:
        while len(self._open) > self._max_open:
            self._open.popitem(last=False)
        self._opened += 1
        if self._opened % _WEIGHED_EVERY:
            return
        weight = sum(queue.log.weight for queue in self._open.values())
        while weight > _MOST_FRAMES and len(self._open) > 1:
            _, queue = self._open.popitem(last=False)
            weight -= queue.log.weight

    def log(self, thread: str) -> Log:
        return self.queue(thread).log

    def names(self, after: str = "") -> Iterator[str]:
        """Names of all logs after `after`, ascending; one shard's at a time is in memory."""
        for shard in sorted(os.listdir(self._threads)):
            if shard < after[: len(shard)]:
                continue
            try:
                files = os.listdir(os.path.join(self._threads, shard))
            except NotADirectoryError:
                continue
            for file in sorted(files):
                name, dot, kind = file.partition(".")
                if dot and kind == "log" and name > after:
                    yield name

    def stems(self, after: str = "") -> Iterator[tuple[str, list[str]]]:
        """What logs are named, or were, after `after`, ascending, with the names of the files that are there of each."""
        for shard in sorted(os.listdir(self._threads)):
            if shard < after[: len(shard)]:
                continue
            try:
                files = os.listdir(os.path.join(self._threads, shard))
            except NotADirectoryError:
                continue
            named = ((file.partition(".")[0], file) for file in sorted(files) if "." in file)
            for name, some in itertools.groupby(named, key=lambda pair: pair[0]):
                if name > after:
                    yield name, [file for _, file in some]

    def file(self, name: str, file: str) -> str:
        """Where a file of the log of this name is."""
        return os.path.join(self._threads, name[:2], file)

    def sample(self, thread: str, most: int, largest: int) -> list[str]:
        """Names of some logs of at most `largest` bytes that lie in the same folder as a thread's, without that one."""
        own = log_name(thread)
        folder = os.path.join(self._threads, own[:2])
        files = [file for file in os.listdir(folder) if file.endswith(".log") and file[:-4] != own]
        chosen = random.sample(files, min(most, len(files)))
        return [file[:-4] for file in chosen if os.stat(os.path.join(folder, file)).st_size <= largest]

    def anew(self, name: str) -> Log:
        """The log of this name, shared with nobody."""
        return Log(os.path.join(self._threads, name[:2]), name, None, self.settings)

    def named(self, name: str) -> Log:
        """The log of this name, without keeping it open. It is not `known` when it is of no thread (any more)."""
        with self._lock:
            queue = self._open.get(name)
        if queue is not None:
            return queue.log
        log = self.anew(name)
        with log.mutex:
            log.view()
        return log

    def named_within(self, name: str, prefix: str) -> Log | None:
        """The log of this name, unless it says that it is of a thread whose id does not begin with `prefix`. Of another
        thread's log only the first frame is read, and once: what a log is named after does not change."""
        if prefix:
            thread = self._owners.get(name) or log_owner(os.path.join(self._threads, name[:2], f"{name}.log"))
            if thread is not None:
                if len(self._owners) >= _MOST_OWNERS:
                    self._owners.clear()
                self._owners[name] = thread
                if not thread.startswith(prefix):
                    return None
        return self.named(name)

    def close(self) -> None:
        with self._lock:
            queues = list(self._open.values())
            self._open.clear()
        self._owners.clear()
        for queue in queues:
            queue.log.rest(last=True)
        self.views = Views()

    def _write_format(self) -> None:
        temporary = f"{self._format}.{secrets.token_hex(8)}"
        try:
            with open(temporary, "x", encoding="utf-8") as file:
                json.dump({"format": FORMAT, "kind": _KIND}, file)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._format)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_folder(self.path)
        sync_folder(os.path.dirname(os.path.abspath(self.path)))
