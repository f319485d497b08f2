"""The contract of a backend: what a `Store` keeps, and the verbs it answers.

A store keeps opaque bytes made by `milepost.codec`. It knows threads, namespaces, checkpoint ids, parents, addresses
of items and the positions of pending writes; it never looks into a header, a value or a pack.

Rules for every verb:

- It is one atomic step (or, where said, bounded batches of them), and idempotent: a port may repeat it after a lost
  reply, and the second answer is as good as the first.
- It awaits nothing but its port. It raises `Unavailable` when the store cannot be reached; ``None`` means "not there".
- Reads never write, and a reader sees the old state of a thread or the complete new one.
- Ids and channel names are text without NUL and without lone surrogates; ids have at most `MAX_ID` characters (the
  saver sees to it). Otherwise they are arbitrary, and compared by code point.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from milepost.callstore import CallRow
from milepost.fences import NOBODY, Lease
from milepost.strays import Strays

MAX_ID = 4096
"""Longest thread id, namespace, checkpoint id, task id or task path, in characters. Longer ones are refused."""

TOMBSTONE_IDS = 256
"""How many of a deleted thread's newest checkpoint ids its tombstone names."""

TOMBSTONE_LIFE = 7 * 24 * 3600
"""Seconds, by the store's clock, after which a tombstone counts no more: no write is as late as that."""

_TAIL = "\x01"


class Span(NamedTuple):
    """`count` consecutive items of one writer, the first of them numbered `first`."""

    writer: int
    """A random number of 63 bits, one per saver instance and process: two writers never share an address."""
    first: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody asks of a span


class Pack(NamedTuple):
    """Items `first` to ``first + count - 1`` of `writer`, as the codec sealed them. Immutable once stored."""

    writer: int
    first: int
    count: int  # type: ignore[assignment]  # (as above)
    data: bytes


class CheckpointRow(NamedTuple):
    """One checkpoint, as the store keeps it."""

    ns: str
    id: str
    parent: str | None
    header: bytes
    spans: tuple[Span, ...] = ()
    """Every item the header refers to, merged and sorted."""
    facets: Mapping[str, str | int | float | bool] = {}
    """Scalars of the metadata that a store may use to find candidates for a filter. Never the last word."""
    ancestors: tuple[str, ...] = ()
    """Checkpoint ids (of any namespace) that this put descends from. For the tombstone rule; need not be kept."""
    key: str = ""
    """The sort key. Given by the store when the checkpoint is first put (see `sort_key`), then fixed."""
    at: float = 0.0
    """Seconds since the epoch by the store's clock, at the first put. Given by the store."""


class WriteRow(NamedTuple):
    """One pending write. Its place is (thread, ns, checkpoint, task, idx)."""

    task: str
    idx: int
    path: str
    channel: str
    value: bytes
    spans: tuple[Span, ...] = ()
    pack: Pack | None = None
    """New items of this row alone: stored only if the row is, and not handed out again with the row."""


class Put(NamedTuple):
    """Answer to `put`. When `stale`, nothing was written and `generation` is the thread's present one."""

    stale: bool
    generation: int


class Wrote(NamedTuple):
    """Answer to `put_writes`. `accepted[i]` tells whether row i is stored now; a row that lost to an earlier one of
    its place is not, and neither are its items."""

    stale: bool
    generation: int
    accepted: tuple[bool, ...]


class Snapshot(NamedTuple):
    """One checkpoint with its pending writes (in any order)."""

    thread: str
    row: CheckpointRow
    writes: tuple[WriteRow, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `get`, `page` and `lineage` return: checkpoints, and per thread the packs their items lie in.

    `packs` holds every stored pack that overlaps a span of the rows or writes asked for; what is missing from it is
    missing from the store.
    """

    snapshots: tuple[Snapshot, ...]
    packs: Mapping[str, Sequence[Pack]]
    cursor: tuple[str, ...] | None = None
    """Where the next page begins, or None when this was the last."""
    damage: tuple[str, ...] = ()
    """What the store had to skip because it did not verify, in words. The saver reports it. Damage of the checkpoints
    handed out is told every time, other damage of a thread once."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which checkpoints `page` lists. All conditions must hold; ``None`` means any."""

    thread: str | None = None
    ns: str | None = None
    id: str | None = None
    before: str | None = None
    """A checkpoint id: only checkpoints whose key is less than its key in their own namespace; an id that is not there
    is compared as it stands."""
    facets: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """A store may leave out rows whose facets differ from these. It need not."""
    runs: frozenset[str] = frozenset()
    """If not empty, only the checkpoints of these runs matter: a store may leave out rows that have a facet "run_id"
    which is, as text, none of these. It need not."""
    match: Callable[[bytes], bool] | None = None
    """The exact rule, on the header. A store that evaluates it in this process may leave out rows it refuses."""
    prefix: str = ""
    """With ``thread=None``: only threads whose id begins with this. Where the store has its threads in an order, it does
    not look at others."""


Status = Literal["running", "waiting", "abandoned", "idle"]


class ThreadRow(NamedTuple):
    """One thread, without any channel data."""

    thread: str
    head: str
    """Id of the latest checkpoint of the root namespace, or of the greatest namespace's where there is no root; "" where
    there are only pending writes."""
    namespaces: int
    checkpoints: int
    writes: int
    bytes: int
    """Bytes that the thread occupies in the store, roughly."""
    created_at: float
    updated_at: float
    waiting: bool
    """A head has a pending write to ``__interrupt__``: somebody is asked something."""
    lease: Lease = NOBODY
    leased: bool = False
    """Whether somebody holds the lease, by the store's clock."""
    settled: bool = False
    """Whether its latest checkpoint is known to be the end of a run. A store does not know."""

    @property
    def status(self) -> Status:
        """What goes on: "running" (its lease is held), "waiting" (for an answer to an interrupt), "abandoned" (its last
        owner crashed or failed, and left work), else "idle"."""
        if self.leased:
            return "running"
        if self.waiting:
            return "waiting"
        # What a copy has left in the middle is no run's work, and nobody is to go on with it by himself.
        return "abandoned" if self.tries and not self.settled and not self.lease.filling else "idle"

    @property
    def tries(self) -> int:
        """How many owners of its lease in a row crashed or failed."""
        return self.lease.tries + (bool(self.lease.owner) and not self.leased)


class ThreadPage(NamedTuple):
    """Some threads, and where the next page begins, or None."""

    rows: tuple[ThreadRow, ...]
    cursor: tuple[str, ...] | None


class Mark(NamedTuple):
    """One checkpoint of an outline."""

    ns: str
    id: str
    parent: str | None
    key: str
    at: float
    size: int
    """Bytes of the header."""
    pinned: bool | None
    """What the facet "pinned" says; None when the checkpoint has no facets, and only the header can tell."""
    writes: int = 0
    """How many pending writes it has."""
    written: int = 0
    """Bytes of their values."""


@dataclass(frozen=True, slots=True)
class Outline:
    """What plans a prune: of each checkpoint where it belongs and how large it is, and none of its bytes."""

    token: str
    """As that of a chart."""
    generation: int
    marks: tuple[Mark, ...]
    strays: Mapping[tuple[str, str], tuple[int, int]]
    """(ns, checkpoint id) -> number and bytes of pending writes whose checkpoint is not (yet) there."""
    packs: tuple[Span, ...]
    """What is stored: one span for each pack."""
    sizes: tuple[int, ...]
    """Bytes of each of `packs`."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything about a thread but its values."""

    token: str
    """Names this state of the thread. `drop` with it is refused as soon as anything was put since."""
    generation: int
    rows: tuple[CheckpointRow, ...]
    writes: Mapping[tuple[str, str], tuple[WriteRow, ...]]
    """(ns, checkpoint id) -> its pending writes, also of checkpoints that are not (yet) there."""
    packs: tuple[Span, ...]
    """What is stored: one span for each pack."""
    sizes: tuple[int, ...]
    """Bytes of each of `packs`."""


@dataclass(frozen=True, slots=True)
class Drop:
    """What `drop` removes. Everything it does not name stays as it is."""

    checkpoints: tuple[tuple[str, str], ...] = ()
    """(ns, id); their pending writes go with them."""
    parents: tuple[tuple[str, str, str | None], ...] = ()
    """(ns, id, new parent) for kept checkpoints whose parent goes. Sort keys stay as they are."""
    packs: tuple[Span, ...] = ()
    """Packs to delete, named by their exact span."""
    repacked: tuple[Pack, ...] = ()
    """Packs to store in the place of partly dead ones. Same addresses, so no header changes."""
    more: bool = False
    """Another step follows at once: what a store does to give space back can wait for that."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A part of a thread in transit: for copies, exports and imports."""

    rows: tuple[CheckpointRow, ...] = ()
    """With `key` and `at` filled in, oldest first."""
    writes: tuple[tuple[str, str, WriteRow], ...] = ()
    """(ns, checkpoint id, row)."""
    packs: tuple[Pack, ...] = ()
    cursor: tuple[str, ...] | None = None
    calls: tuple[CallRow, ...] = ()
    """The ledger's records."""


class Stats(NamedTuple):
    """Counts, and bytes occupied, roughly."""

    threads: int
    checkpoints: int
    writes: int
    packs: int
    bytes: int


@runtime_checkable
class Store(Strays, Protocol):
    """The verbs of a backend. See the module for the rules they share."""

    async def setup(self) -> None:
        """Create what is missing, or upgrade it. Safe when many processes do it at once; a no-op the second time.

        Raises `FormatTooNew` when the store was made by a newer release.
        """
        ...

    async def put(
        self,
        thread: str,
        row: CheckpointRow,
        packs: Sequence[Pack],
        generation: int | None,
        *,
        fence: int | None = None,
        heads: Sequence[str] | None = None,
        merged: Pack | None = None,
    ) -> Put:
        """Store a checkpoint and the items it newly needs, or replace a checkpoint of the same (ns, id).

        `generation` names the generation that the addresses in ``row.spans`` outside `packs` come from, or is None
        when there are none. If the thread is at another generation, answers ``stale`` and writes nothing.
        A replaced checkpoint keeps its sort key and its time. Packs that are stored already are left alone.

        `merged`, which is given with a generation only, holds what the packs hold that lie in it, under the same
        addresses, and takes their place. The generation stays, and nothing is merged where nothing is stored.

        Raises `LeaseLost` when the thread's lease has a fence greater than `fence`, `ThreadDeleted` by the tombstone
        rule (`Tombstone.refuses`) for ``row.id``, ``row.parent`` and ``row.ancestors``, and `Conflict` when `heads` are given, the
        checkpoint is new, and the namespace has a latest checkpoint that is none of them.
        """
        ...

    async def put_writes(
        self,
        thread: str,
        ns: str,
        checkpoint: str,
        rows: Sequence[WriteRow],
        generation: int | None,
        *,
        fence: int | None = None,
    ) -> Wrote:
        """Store pending writes of one task, also for a checkpoint that does not exist (yet).

        Decided row by row: a row with ``idx < 0`` (`WRITES_IDX_MAP`) replaces what is at its place; any other is
        stored only if its place is empty. `generation` and `fence` as in `put`, over all rows.
        The repetition of a call that was applied answers as the first did: a row that is there byte for byte counts as
        accepted if its pack is there too.

        Raises `LeaseLost` as `put` does, and `ThreadDeleted` by the tombstone rule for `checkpoint`.
        """
        ...

    async def get(self, thread: str, ns: str, id: str | None) -> Loaded | None:
        """The checkpoint, or with ``id=None`` the one with the greatest sort key, with its items and writes.

        With an id, raises `Corrupt` when writes of the checkpoint are lost, or when it is not found and may be among
        what is lost.
        """
        ...

    async def page(self, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool = True) -> Loaded:
        """At most `limit` checkpoints, by descending sort key (then thread, then ns), from `after` on.

        A page may hold fewer rows than `limit` and still have a cursor. With ``items=False`` no packs are read.
        """
        ...

    async def lineage(
        self,
        thread: str,
        ns: str,
        id: str | None,
        channels: Sequence[str] | None,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Loaded | None:
        """At most `limit` proper ancestors of the checkpoint, nearest first, following parents.

        Each comes with its writes to `channels` (all of them with None) and the packs of those writes; the items of
        the checkpoints themselves are not read (`fetch` does that). None when the checkpoint is not there. The walk
        ends at a parent that is not stored. A cycle is the caller's to notice. A page ends before an ancestor that
        damage may touch, so the `damage` of a page concerns only its own ancestors, or the parent the walk ends at.
        """
        ...

    async def fetch(self, thread: str, spans: Sequence[Span]) -> Sequence[Pack]:
        """Every stored pack that overlaps one of `spans`."""
        ...

    async def threads(self, after: tuple[str, ...] | None, limit: int, prefix: str = "") -> ThreadPage:
        """Threads that have a checkpoint or pending writes, in an order of the store's own, a page at a time; no channel
        data is read. With a `prefix`, only those whose id begins with it, as in `Query`."""
        ...

    async def chart(self, thread: str) -> Chart | None:
        """The thread's checkpoints, writes and packs, without the packs' bytes; None when there is no such thread.

        Write rows come with `pack` None.
        """
        ...

    async def outline(self, thread: str) -> Outline | None:
        """The thread's outline, as cheap as can be had; None when nothing of it is stored, not even a pack."""
        ...

    async def rows(self, thread: str, places: Sequence[tuple[str, str]]) -> Batch:
        """Those of these checkpoints (ns, id) that are there, and their pending writes, also of checkpoints that are
        not there. No packs, and in any order."""
        ...

    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        """Carry out `drop`, and raise the generation, if the thread is still as charted under `token`.

        Answers the token of the thread as this leaves it, or "" when that is not known: because this is a repetition,
        or nothing is left. None when the thread is not as charted: then nothing was written, or, where a store takes several
        steps for it, the first of them, each of which leaves a thread that is whole. Names of what is not there (any more)
        are no error. A put of the thread may have to wait for one such step, so whoever plans bounds it.
        """
        ...

    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        """Remove everything of the thread but its lease, leaving a tombstone. A no-op when there is no such thread.

        Raises `UnsettledCalls`, and removes nothing, when the ledger has unsettled calls of the thread; with `force`
        the records of those calls stay, and everything else goes.
        """
        ...

    async def export(self, thread: str, after: tuple[str, ...] | None, limit: int) -> Batch | None:
        """A part of the thread: at most about `limit` rows. None when there is no such thread. Raises `Conflict` where what
        came before `after` is not what the thread was going on from: it was shortened, deleted or rewritten since."""
        ...

    async def load(self, thread: str, batch: Batch) -> None:
        """Take over a batch of another thread or store as it is, keys and times included; of writes, as `put_writes` does.
        Clears a tombstone: who copies to it means it. The thread has another token then, also where all of it was there."""
        ...

    async def acquire(self, thread: str, owner: str, ttl: float, over: int | None = None) -> Lease:
        """Take the thread's lease for `ttl` seconds, if nobody holds it; the thread need not exist.

        Answers the lease as it is then: whoever is named as its owner holds it. `owner` names this acquisition alone,
        so that a repetition finds that it succeeded. A lease that expired, by the store's clock, nobody holds. One
        that is held under the fence `over` is taken all the same: a hand-over, which does nothing where another one
        came first. A new owner gets a greater fence than any before, whatever happened to the thread or the store.
        The rule is `milepost.fences.acquired`.
        """
        ...

    async def renew(self, thread: str, owner: str, fence: int, ttl: float) -> Lease:
        """Have the lease expire `ttl` seconds from now, also if it has expired and nobody took it.

        Raises `LeaseLost` when it is not `owner`'s any more.
        """
        ...

    async def release(self, thread: str, owner: str, error: str | None = None) -> None:
        """Give the lease back. A no-op when it is not `owner`'s. With an `error`, the owner has failed."""
        ...

    async def holder(self, thread: str) -> Lease | None:
        """The thread's lease, if somebody holds it now, by the store's clock."""
        ...

    async def rewrite(self, thread: str, batch: Batch, token: str) -> str | None:
        """Store the checkpoints of `batch`, with its packs and exactly its pending writes for each, in the place of
        those of the same (ns, id), if the thread is still as charted under `token`: keys and times included.

        Answers the token of the thread as this leaves it; None when the thread is not as charted: then nothing was
        written. One atomic step; a repetition of it may answer None. Every
        write of `batch` belongs to one of its checkpoints, and nothing that is stored already is deleted but writes.
        """
        ...

    async def stats(self, thread: str | None) -> Stats:
        """Counts and bytes of one thread, or of the store."""
        ...

    async def close(self) -> None:
        """Give back what this flavour of the store holds. Idempotent; using the store afterwards is `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What a deleted thread leaves behind, so that late writes of its past cannot bring it back."""

    ids: tuple[str, ...] = ()
    """The newest checkpoint ids it had, in any namespace, at most `TOMBSTONE_IDS`."""
    floor: str = ""
    """The least of `ids` when there were more than fit, else "": an unknown id below it counts as deleted."""
    at: float = 0.0

    @classmethod
    def of(cls, ids: Iterable[str], at: float, before: Tombstone | None = None) -> Tombstone:
        """The tombstone of a thread that had `ids`, and that had been deleted before (`before`)."""
        if before is not None and before.over(at):
            before = None
        everything = sorted({*ids, *(before.ids if before else ())})
        kept = everything[-TOMBSTONE_IDS:]
        cut = len(kept) < len(everything)
        return cls(tuple(kept), kept[0] if cut else (before.floor if before else ""), at)

    def over(self, now: float) -> bool:
        """Whether it counts no more."""
        return now - self.at >= TOMBSTONE_LIFE

    def refuses(self, id: str, *, stored: bool, own: bool = False) -> bool:
        """Whether a write that descends from `id` is of the thread's deleted past; with `own`, a put of `id` itself.

        A put's own id counts only if it is remembered: where it is less than `floor`, it may be that of a new run on a
        machine whose clock is behind.
        """
        if stored:
            return False
        place = bisect.bisect_left(self.ids, id)
        return (id < self.floor and not own) or (place < len(self.ids) and self.ids[place] == id)


def sort_key(id: str, parent_key: str | None) -> str:
    """The sort key of checkpoint `id` under a parent with `parent_key` (None: no parent; unknown: the parent's id).

    "Latest" must follow lineage even where clocks disagree: an id that does not sort after its parent's key gets a key
    that does: the first element of the parent's key with the id appended, or, where that is not enough, the whole of
    it. (Appending to the whole in every case would make keys grow with each step of a machine whose clock is behind.)
    """
    if parent_key is None or id > parent_key:
        return id
    base, tail, _ = parent_key.partition(_TAIL)
    if tail and (short := base + _TAIL + id) > parent_key:
        return short
    return parent_key + _TAIL + id


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same addresses as sorted, non-overlapping spans."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and merged[-1].writer == span.writer and span.first <= merged[-1].first + merged[-1].count:
            last = merged[-1]
            end = max(last.first + last.count, span.first + span.count)
            merged[-1] = Span(last.writer, last.first, end - last.first)
        else:
            merged.append(span)
    return tuple(merged)


def settle_row(row: WriteRow, at: WriteRow | None) -> tuple[bool, bool]:
    """How `row` fares at a place held by `at`: (store it, count it as accepted).

    The rule of `put_writes`, for stores that decide it in Python.
    """
    if at is None or row.idx < 0:
        return True, True
    return False, bare(row) == bare(at)


def bare(row: WriteRow) -> WriteRow:
    """`row` without its pack: what is stored at its place."""
    return row if row.pack is None else row._replace(pack=None)


@runtime_checkable
class Port(Protocol):
    """How a store reaches what keeps the data. The one thing a store awaits.

    `request` is what the backend's port understands: a statement, a script, or a function of no arguments to call.
    A port owns retries, time-outs and the mapping of driver errors. The blocking port of a backend never suspends.
    """

    async def call(self, request: object) -> object:
        """Carry out one request and return its reply."""
        ...


@runtime_checkable
class Backend(Protocol):
    """One opened store in both flavours, shared by a saver and its clones, any thread and any number of event loops."""

    name: str
    """Scheme-like name for events and errors: "memory", "files", "postgres"."""
    capabilities: frozenset[str]
    """What tests and tools may expect: "durable" (survives the process), "shared" (other processes see it),
    "damage" (parts can be lost under it), "merging" (many packs are dear to read, and small ones are merged in time),
    "ledger" (its stores are also `milepost.callstore.CallStore`),
    "transactions" (it is also `milepost.callstore.Joins`), "tenants" (it is also `milepost.tenants.Fenced`)."""

    def blocking(self) -> Store:
        """The store over the blocking port: its coroutines never suspend, and may be run from any thread."""
        ...

    def asynchronous(self) -> Store:
        """The store over the async port, for the running event loop. Cancelling one of its coroutines leaves all of
        a verb's effect or none, decided before the await returns."""
        ...

    def close(self) -> None:
        """Give back everything, from any thread. Idempotent."""
        ...

    async def aclose(self) -> None:
        """`close` for callers inside an event loop."""
        ...
