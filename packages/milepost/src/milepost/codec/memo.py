"""What a saver remembers of threads it wrote or read, so that it can refer to what is stored instead of sending it.

Forgetting costs bytes, never correctness: whatever is not remembered is sent again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Generic, TypeVar

from milepost.codec.coding import Coding
from milepost.codec.envelope import Vault
from milepost.codec.heard import Heard
from milepost.codec.items import Piece, digest_of_plain, watched, weight
from milepost.codec.lanes import Fresh, Lanes, is_apart
from milepost.codec.layout import Address, Layout
from milepost.codec.loose import Loose
from milepost.codec.pack import open_pack
from milepost.errors import MilepostError
from milepost.store import Pack

T = TypeVar("T")

RAW_LIMIT = 8 << 20
"""Bytes of read packs kept until a put wants to know what is in them."""
_READS = 4
"""How many readings of a thread are kept so: LangGraph reads a checkpoint and the latest one before a run."""
_CHECKPOINTS = 8
"""How many checkpoints of a namespace are remembered: the parent of the next put is among them."""
_NAMESPACES = 256
"""And of how many namespaces: a step may call many subgraphs at once."""
_LOOSE = 64
"""Of how many lanes small packs are merged: each put looks through them."""
_KNOWN_COST = 200

_data = attrgetter("data")

Values = Mapping[str, tuple[object, Layout]]
"""Of one checkpoint: channel -> (version label, layout)."""


class Recent(Generic[T]):
    """Something of the latest checkpoints of each namespace. Those of one do not push out those of another: what is not
    known of the parent is taken from the values that the graph holds, which may have changed since."""

    def __init__(self) -> None:
        self._spaces: OrderedDict[str, OrderedDict[str, T]] = OrderedDict()

    def get(self, place: tuple[str, str]) -> T | None:
        """What is kept of (ns, id)."""
        space = self._spaces.get(place[0])
        return None if space is None else space.get(place[1])

    def keep(self, ns: str, id: str, kept: T) -> None:
        space = self._spaces.setdefault(ns, OrderedDict())
        space[id] = kept
        space.move_to_end(id)
        self._spaces.move_to_end(ns)
        if len(space) > _CHECKPOINTS:
            space.popitem(last=False)
        if len(self._spaces) > _NAMESPACES:
            self._spaces.popitem(last=False)

    def clear(self) -> None:
        self._spaces.clear()


class ThreadMemo:
    """What is remembered of one thread. Guarded by `lock`, which is never held across anything but computing."""

    def __init__(self, *, merging: bool = False) -> None:
        # The application's code may run under it (a dump function of a registered type), and read the thread.
        self.lock = threading.RLock()
        self.epoch: int | None = None
        """The generation that everything below is good for."""
        self.known: dict[bytes, Address] = {}
        self.size = 0
        self.accounted = 0
        """Of `size`, what `Memory` has counted."""
        self.used = 0.0
        self.lanes = Lanes()
        self._family: object = None
        self.sizes: dict[tuple[str, str], int] = {}
        """(ns, channel) -> bytes of the value that was put last, where somebody wants to know."""
        self._pieces: dict[tuple[str, str], tuple[Piece, int]] = {}
        self._values = Recent[Values]()
        self.heard = Recent[Heard]()
        """By (ns, id), of checkpoints that leave anything."""
        self._raw: deque[tuple[str, Sequence[Pack], int]] = deque()
        """What was read and not looked at yet, and how many bytes each reading had."""
        self._raw_size = 0
        self._packs: set[tuple[int, int, int]] = set()
        """(writer, first, count) of the packs whose items are in `known`."""
        self._merging = merging
        self._loose: OrderedDict[int, Loose] = OrderedDict()
        """By writer, of the lanes that were used last."""

    def at(self, epoch: int) -> None:
        """Addresses of another generation than `epoch` are worth nothing from now on."""
        if epoch != self.epoch:
            self.epoch = None  # wherever a signal interrupts this, nothing is left that seems good for `epoch`
            self.known.clear()
            self._values.clear()
            self._forget_packs()
            self.epoch = epoch

    def speak(self, coding: Coding) -> None:
        """Forget what was encoded in another way than `coding` does."""
        if coding.family != self._family:
            self.known.clear()
            self._pieces.clear()
            self._forget_packs()
            self._family = coding.family

    def piece(self, ns: str, channel: str) -> Piece | None:
        found = self._pieces.get((ns, channel))
        return found[0] if found else None

    def keep_piece(self, ns: str, channel: str, piece: Piece) -> None:
        """Keep what the guard can speak for; the rest would only take room."""
        size = weight(piece) if watched(piece) else 0
        old = self._pieces.pop((ns, channel), None)
        if size:
            self._pieces[ns, channel] = (piece, size)
        self.size += size - (old[1] if old else 0)

    def values(self, ns: str, id: str) -> Values | None:
        return self._values.get((ns, id))

    def keep_values(self, ns: str, id: str, values: Values) -> None:
        self._values.keep(ns, id, values)

    def keep_heard(self, ns: str, id: str, heard: Heard) -> None:
        self.heard.keep(ns, id, heard)

    def learn(self, fresh: Fresh) -> None:
        """The store acknowledged these items under their addresses."""
        writer, first, apart = fresh.writer, fresh.first, is_apart(fresh.lane)
        for at, item in enumerate(fresh.items):
            item.epoch = None  # while it has half an address
            item.writer, item.number = writer, first + at
            item.epoch = self.epoch
            if not apart:
                self.known[item.digest] = (writer, first + at, item.sum)
        self._packs.add((writer, first, len(fresh.items)))
        self.size += _KNOWN_COST * len(fresh.items)

    def due(self) -> Sequence[Pack]:
        """Small packs of one writer that are to be stored as one."""
        for loose in self._loose.values():
            before = loose.size
            run = loose.due()
            self.size += loose.size - before
            if run:
                return run
        return ()

    def stored(self, pack: Pack) -> None:
        """The store acknowledged a pack of one of these writers."""
        if self._merging:
            loose = self._loose.setdefault(pack.writer, Loose())
            self._loose.move_to_end(pack.writer)
            before = loose.size
            loose.add(pack)
            self.size += loose.size - before
            if len(self._loose) > _LOOSE:
                self.size -= self._loose.popitem(last=False)[1].size

    def merged(self, run: Sequence[Pack], pack: Pack) -> None:
        """The store acknowledged `pack` in the place of `run`."""
        self._packs.add(pack[:3])
        if (loose := self._loose.get(pack.writer)) is not None:
            before = loose.size
            loose.done(run)
            self.size += loose.size - before

    def keep_raw(self, thread: str, packs: Sequence[Pack]) -> None:
        """Packs just read: what they hold is looked at when a put first needs to know."""
        size = sum(map(len, map(_data, packs)))
        if not size or size > RAW_LIMIT:
            return
        self._raw.append((thread, packs, size))
        self._raw_size += size
        self.size += size
        while self._raw_size > RAW_LIMIT or len(self._raw) > _READS:
            _, _, gone = self._raw.popleft()
            self._raw_size -= gone
            self.size -= gone

    def digest_raw(self, coding: Coding, vault: Vault | None) -> None:
        """Find out which values the packs read so far hold."""
        if not self._raw:
            return
        raw, self._raw = self._raw, deque()
        for thread, pack in [(thread, pack) for thread, packs, _ in raw for pack in packs]:
            if pack[:3] in self._packs:
                continue
            self._packs.add(pack[:3])
            # An item of another serializer or key, or a damaged one, is not known: then it is sent again.
            with suppress(MilepostError, ValueError, TypeError):
                opened = open_pack(thread, pack, vault)
                for at, data in enumerate(opened.items(0, pack.count)):
                    if not data:
                        continue  # a hole
                    digest = digest_of_plain(coding.plain(data))
                    if digest not in self.known:
                        self.known[digest] = pack.writer, pack.first + at, opened.checksums[at]
                        self.size += _KNOWN_COST
        self.size -= self._raw_size
        self._raw_size = 0

    def trim(self) -> None:
        """Forget what is known by content only; what the guard can speak for keeps its addresses."""
        self.known.clear()
        self._forget_packs()

    def _forget_packs(self) -> None:
        self._raw.clear()
        self._raw_size = 0
        self._packs.clear()
        self._loose.clear()
        self._resize()

    def _resize(self) -> None:
        pieces = sum(size for _, size in self._pieces.values())
        loose = sum(loose.size for loose in self._loose.values())
        self.size = pieces + _KNOWN_COST * len(self.known) + self._raw_size + loose


class Memory:
    """The threads a saver remembers: the least recently used go when they are over `limit` bytes together, or when
    they were not used for `idle` seconds. Shared by a saver's clones. With `merging`, small packs are merged as they pile up."""

    def __init__(
        self,
        limit: int = 64 << 20,
        idle: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        merging: bool = False,
    ) -> None:
        self.limit = limit
        self._merging = merging
        self._idle = idle
        self._clock = clock
        self.renew()

    def renew(self) -> None:
        """Start with nothing: after a fork, a lock may be held by a thread that is not there, and the writers of the
        memos are those of another process."""
        self._lock = threading.Lock()
        self._threads: OrderedDict[str, ThreadMemo] = OrderedDict()
        self._total = 0

    def thread(self, thread: str) -> ThreadMemo:
        """The memo of `thread`; what is over the limits is forgotten on this occasion."""
        memo = self._threads.get(thread)
        if memo is None:
            memo = self._threads.setdefault(thread, ThreadMemo(merging=self._merging))
        memo.used = self._clock()
        # Nobody waits here. Every call of every thread comes this way: once they queue up at a lock, each of them has to
        # be woken for it, and the queue never ends. What is not counted now is counted at the next use.
        if self._lock.acquire(blocking=False):
            try:
                self._count(thread, memo)
            finally:
                self._lock.release()
        return memo

    def _count(self, thread: str, memo: ThreadMemo) -> None:
        if self._threads.get(thread) is not memo:
            return  # forgotten meanwhile
        self._threads.move_to_end(thread)
        if memo.size > self.limit:
            memo.trim()
        self._total += memo.size - memo.accounted
        memo.accounted = memo.size
        while len(self._threads) > 1:
            try:
                oldest = next(iter(self._threads.values()))
            except RuntimeError:  # another thread was entered just then: at the next use
                return
            if self._total <= self.limit and memo.used - oldest.used <= self._idle:
                break
            self._total -= oldest.accounted
            self._threads.popitem(last=False)

    def forget(self, thread: str) -> None:
        with self._lock:
            memo = self._threads.pop(thread, None)
            if memo is not None:
                self._total -= memo.accounted
