"""The codec: checkpoints and pending writes to rows of a store, and back. Pure computing: it never talks to a store."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import ormsgpack
from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from milepost.codec.calls import moved
from milepost.codec.coding import Coding, OwnCoding, coding_for, own_serializer
from milepost.codec.drafts import Draft, DraftWrite, Facets, Placed, PlacedWrites
from milepost.codec.envelope import Vault, unwrap, wrap
from milepost.codec.header import Header, front, open_header, open_layouts, reseal_header, seal_header, with_fact
from milepost.codec.heard import Heard
from milepost.codec.items import Inline, Many, One, Piece, cut, size
from milepost.codec.lanes import Fresh, Lane, of_list
from milepost.codec.layout import (
    DELTAS,
    INLINE,
    INLINES,
    TYPED,
    Address,
    Kept,
    Layout,
    Placer,
    from_wire,
    is_snapshot,
    spans_of,
    to_wire,
)
from milepost.codec.memo import Memory, ThreadMemo
from milepost.codec.pack import COMPRESS_OVER, join, merge, regroup, repack, reseal_pack, seal_pack
from milepost.codec.revive import Renames
from milepost.codec.shelf import Shelf
from milepost.codec.values import Serializer
from milepost.errors import Corrupt, MilepostError, Unserializable
from milepost.places import COUNTERS, PINNED, channel_name, store_name
from milepost.store import Batch, CheckpointRow, Pack, Snapshot, Span, WriteRow, merge_spans

T = TypeVar("T")

_OWN, _TYPED = b"\0", b"\1"
"""Whether a record's value was encoded by Milepost's serializer, or is a pair of a foreign one."""

FACET_LENGTH = 256
"""A string of the metadata that is longer is not a facet: no filter finds it by the store's help."""


class Codec:
    """Encodes with one serializer; shared by everything that uses this serializer object."""

    def __init__(self, serde: SerializerProtocol, memory: Memory, vault: Vault | None) -> None:
        self.serde = serde
        self._own = own_serializer(serde)
        self._own_coding: Coding = OwnCoding(self._own)
        self._coding = coding_for(serde, self._own)
        self._typed = TYPED if self._coding.typed else 0
        self._memory = memory
        self._vault = vault

    def renaming(self, classes: Renames) -> Codec:
        """The same, but reading objects of some classes as those of others. Only Milepost's serializer can."""
        own = self._own.renaming(classes)
        clone = Codec(own if isinstance(self.serde, Serializer) else self.serde, self._memory, self._vault)
        clone._own, clone._own_coding = own, OwnCoding(own)
        return clone

    def exact(self) -> Codec:
        """The same, but never giving the data of an object in its place: for what is read to be stored again. Of a
        serializer that is neither Milepost's nor LangGraph's nobody can tell."""
        own = self._own.exact()
        clone = Codec(own if isinstance(self.serde, Serializer) else self.serde, self._memory, self._vault)
        clone._own, clone._own_coding = own, OwnCoding(own)
        clone._coding = self._coding.exact()
        return clone

    @property
    def seals(self) -> bool:
        """Whether anything of the metadata may be told to the store."""
        return self._vault is not None or self._coding.secret

    # Writing: draft (at once, while the values are what they are), place (when the store's state is known), learn.

    def draft(
        self,
        thread: str,
        ns: str,
        id: str,
        parent: str | None,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        stamp: bytes | None = None,
        known: Container[str] | None = None,
    ) -> Draft:
        """Encode a checkpoint. Raises `Unserializable` naming thread, channel and path.

        `known` are the channels of the state, where that was declared: snapshots of other ones are not carried along.
        What is `Kept` must be of the generation that the thread is known to be at, and be placed before that changes.
        """
        memo = self._memory.thread(thread)
        versions = dict(checkpoint["channel_versions"])
        counted: Iterable[str] = metadata.get(COUNTERS) or ()  # type: ignore[assignment]  # LangGraph's own key
        pieces: dict[str, Piece | Layout] = {}
        unchanged: dict[str, Any] = {}
        lost: list[str] = []
        heard = None if parent is None else memo.heard.get((ns, parent))
        passed = [] if heard is None else heard.passed(versions, metadata.get("source"))
        left = [] if heard is None else heard.left(checkpoint["channel_values"], metadata)
        with memo.lock:
            memo.speak(self._coding)
            epoch = memo.epoch
            if heard is not None and metadata.get("source") == "fork":
                memo.keep_heard(ns, id, heard)  # of a copy, the same is left
            before = (memo.values(ns, parent) if parent is not None else None) or {}
            for channel, value in checkpoint["channel_values"].items():
                if type(value) is Kept:
                    pieces[channel] = value.layout
                    continue
                if channel not in new_versions and channel in versions and channel in before:
                    label, layout = before[channel]
                    if type(label) is type(versions[channel]) and label == versions[channel]:
                        pieces[channel], unchanged[channel] = layout, value
                        continue
                pieces[channel] = self._cut(memo, thread, ns, channel, value)
            for channel, (label, layout) in before.items():
                # The snapshot of a delta channel that nothing was written to since: LangGraph does not repeat it, but
                # looks for it under the version. Of any other channel, the graph does not know it.
                if channel in pieces or channel in new_versions or versions.get(channel) != label:
                    continue
                if is_snapshot(layout) and (known is None or channel in known):
                    pieces[channel] = layout
                elif channel not in left:
                    lost.append(channel)
        try:
            encoded = front(id, list(pieces), checkpoint, metadata, self.serde, stamp)
        except Unserializable as exc:
            raise Unserializable(
                f"the metadata or versions of checkpoint {checkpoint['id']!r} of thread {thread!r} cannot be stored: "
                f"{exc.message}",
                **{**exc.facts, "thread": thread, "channel": None},
            ) from exc
        return Draft(
            thread=thread,
            ns=ns,
            id=id,
            parent=parent,
            ancestors=tuple(map(str, (metadata.get("parents") or {}).values())),
            front=encoded,
            facets={PINNED: bool(metadata.get(PINNED))} if self.seals else facets(metadata),
            versions=versions,
            pieces=pieces,
            unchanged=unchanged,
            memo=memo,
            epoch=epoch,
            lost=lost,
            passed=passed,
            left=left,
            rests=[name for name in counted if name in versions and name not in pieces],
        )

    def _cut(self, memo: ThreadMemo, thread: str, ns: str, channel: str, value: Any) -> Piece:
        before = memo.piece(ns, channel)
        piece = self._encode(thread, channel, value, before)
        if before is not None or type(piece) is not Inline:
            memo.keep_piece(ns, channel, piece)
        return piece

    def _encode(self, thread: str, channel: str, value: Any, before: Piece | None = None) -> Piece:
        """`cut`, whose errors say what they are about. Those of a serializer of the user's stay what they are."""
        try:
            return cut(value, self._coding, before)
        except Unserializable as exc:
            raise _of_channel(exc, thread, channel) from exc
        except Exception as exc:
            exc.add_note(f"while encoding channel {channel!r} of thread {thread!r}")
            raise

    def place(self, draft: Draft, *, everything: bool = False, merging: bool = False) -> Placed:
        """Give a draft addresses; with `everything`, as if the store had nothing of the thread yet. With `merging`, small
        packs that earlier puts left behind are stored as one along with it, whenever there are enough of them."""
        memo = draft.memo
        with memo.lock:
            if everything or memo.epoch != draft.epoch:
                self._settle(draft, lambda _: False)
            # Most channels are a few bytes, which have no address.
            pieces: list[tuple[Lane, Piece]] = [
                (() if type(piece) is One else of_list(draft.ns, channel), piece)
                for channel, piece in draft.pieces.items()
                if type(piece) is not Inline and not isinstance(piece, tuple)
            ]
            placer = self._placer(memo, pieces, everything)
            inline = INLINE + self._typed
            layouts: dict[str, Layout] = {}
            for channel, piece in draft.pieces.items():
                if type(piece) is Inline:
                    layouts[channel] = (inline, piece.data)
                else:
                    layouts[channel] = piece if isinstance(piece, tuple) else placer.layout(piece, self._typed)
                    if type(piece) is Many:
                        memo.lanes.took(draft.ns, channel, draft.parent, piece)
            # Under the lock: the checksums in the pack must be those that the layouts were made with.
            packs = tuple(self._pack(draft.thread, fresh) for fresh in placer.fresh)
            epoch = memo.epoch
            run = memo.due() if merging and epoch is not None else ()
        spans = _spans(layouts.values())
        header = seal_header(draft.front, list(layouts.values()), draft.thread, draft.ns, draft.id, self._vault)
        return Placed(
            row=CheckpointRow(draft.ns, draft.id, draft.parent, header, spans, draft.facets, draft.ancestors),
            packs=packs,
            generation=epoch if run or placer.refers_elsewhere(spans) else None,
            fresh=placer.fresh,
            values={channel: (draft.versions.get(channel), layout) for channel, layout in layouts.items()},
            memo=memo,
            merged=join(draft.thread, run, self._vault) if run else None,
            run=run,
        )

    def size(self, draft: Draft) -> int:
        """Bytes of a draft's values before they are compressed, but for those that this process has never encoded."""
        sizes = draft.memo.sizes
        with draft.memo.lock:
            for channel, piece in draft.pieces.items():
                if not isinstance(piece, tuple):
                    sizes[draft.ns, channel] = size(piece)
            return sum(sizes.get((draft.ns, channel), 0) for channel in draft.pieces)

    def referred(self, draft: Draft) -> tuple[Span, ...]:
        """Where the values of the unchanged channels lie."""
        return _spans(piece for piece in draft.pieces.values() if isinstance(piece, tuple))

    def unrooted(self, draft: Draft) -> str | None:
        """The parent that delta channels of `draft` are rebuilt from, unless the thread, as it is known, has it."""
        if not draft.rests or draft.parent is None:
            return None
        with draft.memo.lock:
            return draft.parent if draft.memo.values(draft.ns, draft.parent) is None else None

    def restart(self, draft: Draft, generation: int, packs: Sequence[Pack]) -> None:
        """The store said that it is at `generation` now: keep of the unchanged channels what is in `packs` still."""
        shelf = self.shelf(draft.thread, packs)
        with draft.memo.lock:
            draft.memo.at(generation)
            draft.epoch = generation
            self._settle(draft, shelf.holds)

    def _settle(self, draft: Draft, holds: Callable[[Layout], bool]) -> None:
        """Encode after all what the draft refers to and the store may not have any more.

        The snapshot of a delta channel that was only carried along is left out then: the walk along the parents finds
        it, as it would have for any other saver. The front names channels by their place, and these are the last ones:
        those behind it are left out as well.
        """
        left_out = False
        for channel, piece in tuple(draft.pieces.items()):
            carried = isinstance(piece, tuple) and channel not in draft.unchanged
            if not isinstance(piece, tuple) or (holds(piece) and not (carried and left_out)):
                continue
            if carried:
                del draft.pieces[channel]
                left_out = True
            else:
                value = draft.unchanged.pop(channel)
                draft.pieces[channel] = self._cut(draft.memo, draft.thread, draft.ns, channel, value)

    def learn(self, placed: Placed, generation: int) -> None:
        """The store has acknowledged `placed`."""
        memo = placed.memo
        with memo.lock:
            memo.at(generation)
            for fresh in placed.fresh:
                memo.learn(fresh)
            memo.keep_values(placed.row.ns, placed.row.id, placed.values)
            if placed.merged is not None:
                memo.merged(placed.run, placed.merged)
            for pack in placed.packs:
                memo.stored(pack)

    def draft_writes(
        self, thread: str, writes: Sequence[tuple[str, Any]], task: str, path: str, stamp: bytes | None = None
    ) -> list[DraftWrite]:
        """Encode the pending writes of a task. Raises `Unserializable` naming thread, channel and path."""
        drafts: list[DraftWrite] = []
        for at, (channel, value) in enumerate(writes):
            piece = value.layout if type(value) is Kept else self._encode(thread, channel, value)
            drafts.append(DraftWrite(task, WRITES_IDX_MAP.get(channel, at), path, channel, piece, stamp))
        return drafts

    def place_writes(
        self, thread: str, ns: str, checkpoint: str, drafts: Sequence[DraftWrite], *, everything: bool = False
    ) -> PlacedWrites:
        """Give writes addresses. Each row brings its own new items: one that loses its place takes them along."""
        memo = self._memory.thread(thread)
        rows: list[WriteRow] = []
        fresh: list[Fresh | None] = []
        generation: int | None = None
        vault = self._vault
        with memo.lock:
            memo.speak(self._coding)
            for draft in drafts:
                piece, pack = draft.piece, None
                spans: tuple[Span, ...] = ()
                writers: dict[int, int] = {}
                if type(piece) is Inline:  # most of them, and it has no address
                    wire: Sequence[Any] = (INLINE + self._typed, piece.data)
                    fresh.append(None)
                else:
                    lane = memo.lanes.of_write(ns, draft.channel, draft.path)
                    placer = self._placer(memo, () if isinstance(piece, tuple) else ((lane, piece),), everything)
                    layout = piece if isinstance(piece, tuple) else placer.layout(piece, self._typed)
                    spans, wire = _spans((layout,)), to_wire(layout, writers)
                    if placer.refers_elsewhere(spans):
                        generation = memo.epoch
                    fresh.append(placer.fresh[0] if placer.fresh else None)
                    if placer.fresh:
                        pack = self._pack(thread, placer.fresh[0])
                        memo.lanes.wrote(ns, draft.channel, checkpoint, draft.path, placer.fresh[0].items[-1])
                about = _about_write(thread, ns, checkpoint, draft.task, draft.idx) if vault else b""
                parts = [list(writers), wire] if draft.stamp is None else [list(writers), wire, draft.stamp]
                value = wrap(ormsgpack.packb(parts), vault=vault, about=about)
                rows.append(WriteRow(draft.task, draft.idx, draft.path, store_name(draft.channel), value, spans, pack))
        return PlacedWrites(tuple(rows), generation, memo, fresh)

    def learn_writes(self, placed: PlacedWrites, accepted: Sequence[bool], generation: int) -> None:
        """The store has acknowledged the rows that are `accepted`; the items of the others are not stored."""
        memo = placed.memo
        with memo.lock:
            memo.at(generation)
            for kept, row, fresh in zip(accepted, placed.rows, placed.fresh, strict=True):
                if kept and fresh is not None:
                    memo.learn(fresh)
                    if row.pack is not None:
                        memo.stored(row.pack)

    def renew(self, thread: str, generation: int) -> None:
        """The store said that the thread is at `generation` now."""
        memo = self._memory.thread(thread)
        with memo.lock:
            memo.at(generation)

    def reset(self, thread: str) -> None:
        """Forget the thread: it is gone, or another one now, or part of it is damaged."""
        self._memory.forget(thread)

    def _placer(self, memo: ThreadMemo, pieces: Sequence[tuple[Lane, Piece]], everything: bool) -> Placer:
        known: Mapping[bytes, Address] = {} if everything else memo.known
        placer = Placer(known, None if everything else memo.epoch, memo.lanes.allocate)
        if pieces:
            if not everything:
                memo.digest_raw(self._coding, self._vault)
            placer.gather(pieces)
        return placer

    def _pack(self, thread: str, fresh: Fresh) -> Pack:
        items = [item.coding.finish(item.plain) for item in fresh.items]
        sums = [item.sum for item in fresh.items]
        return seal_pack(thread, fresh.writer, fresh.first, items, sums, self._vault)

    # Reading.

    def header(self, thread: str, row: CheckpointRow) -> Header:
        """Raises `Corrupt`, `FormatTooNew` or `Unserializable`, which name thread and checkpoint."""
        try:
            return open_header(row.header, thread, row.ns, row.id, own=self._own, serde=self.serde, vault=self._vault)
        except MilepostError as exc:
            raise of_checkpoint(exc, thread, row) from exc

    def pinned(self, thread: str, row: CheckpointRow, *, pin: bool) -> CheckpointRow:
        """The checkpoint with, or without, a mark in its metadata that keeps it. Raises as `header` does."""
        facets: Facets = {key: value for key, value in row.facets.items() if key != PINNED}
        if pin or self.seals:
            facets[PINNED] = pin
        try:
            header = with_fact(
                *(row.header, thread, row.ns, row.id, (PINNED, True if pin else None)),
                own=self._own.exact(),
                serde=self.serde,
                vault=self._vault,
            )
        except MilepostError as exc:
            raise of_checkpoint(exc, thread, row) from exc
        return row._replace(header=header, facets=facets)

    def layouts(self, thread: str, row: CheckpointRow, wanted: Container[str]) -> dict[str, Layout]:
        """Where the values of the channels `wanted` lie. Raises as `header` does."""
        try:
            return open_layouts(row.header, thread, row.ns, row.id, wanted, vault=self._vault)
        except MilepostError as exc:
            raise of_checkpoint(exc, thread, row) from exc

    def metadata(self, thread: str, ns: str, id: str, header: bytes) -> dict[str, Any]:
        """The metadata of a header. Raises as `header` does."""
        return open_header(header, thread, ns, id, own=self._own, serde=self.serde, vault=self._vault).metadata

    def shelf(self, thread: str, packs: Sequence[Pack], *, several: bool = False) -> Shelf:
        """The packs of a thread, ready to read values from: those of one checkpoint, or of `several`."""
        return Shelf(thread, packs, self._vault, several=several)

    def value(self, thread: str, channel: str, layout: Layout, shelf: Shelf) -> Any:
        """Decode one value. Raises `Corrupt`, or `Unserializable` naming thread and channel."""
        try:
            return shelf.value(layout, self._own_coding, self._coding)
        except Unserializable as exc:
            raise _of_channel(exc, thread, channel) from exc

    def values(self, thread: str, header: Header, shelf: Shelf) -> dict[str, Any]:
        """Decode all channel values of a checkpoint."""
        return {channel: self.value(thread, channel, layout, shelf) for channel, layout in header.layouts.items()}

    def write_layout(self, thread: str, ns: str, checkpoint: str, row: WriteRow) -> tuple[Layout, bytes | None]:
        """Where the value of a pending write lies, and the stamp of the schema it was stored under."""
        about = _about_write(thread, ns, checkpoint, row.task, row.idx) if self._vault else b""
        payload = unwrap(row.value, vault=self._vault, about=about)
        try:
            writers, wire, *stamp = ormsgpack.unpackb(payload)
        except (ValueError, TypeError) as exc:
            raise Corrupt(f"a pending write to {row.channel!r} does not make sense", damage="write") from exc
        return from_wire(wire, writers), stamp[0] if stamp else None

    def write_values(self, found: Sequence[tuple[Snapshot, WriteRow]], shelf: Shelf) -> list[Any]:
        """The values of pending writes, each with the checkpoint of one thread that it was written to. Raises as
        `write_layout` and `value` do."""
        layouts = [self.write_layout(at.thread, at.row.ns, at.row.id, write)[0] for at, write in found]
        try:
            return shelf.values(layouts, self._own_coding, self._coding)
        except Unserializable:
            # Which of them it was.
            return [
                self.value(at.thread, channel_name(write.channel), layout, shelf)
                for (at, write), layout in zip(found, layouts, strict=True)
            ]

    def remember(
        self,
        thread: str,
        generation: int,
        row: CheckpointRow,
        header: Header,
        packs: Sequence[Pack],
        heard: Collection[str] = (),
    ) -> None:
        """A checkpoint was read: the next put may refer to what it holds. `heard` are the channels that were written to."""
        memo = self._memory.thread(thread)
        versions = header.checkpoint.get("channel_versions") or {}
        values: dict[str, tuple[object, Layout]] = {}
        leaves = bool(heard) or COUNTERS in header.metadata
        for channel, layout in header.layouts.items():
            values[channel] = (versions.get(channel), layout)
            leaves = leaves or layout[0] in DELTAS
        with memo.lock:
            memo.speak(self._coding)
            memo.at(generation)
            memo.keep_values(row.ns, row.id, values)
            if leaves:
                memo.keep_heard(row.ns, row.id, Heard.of(header, heard))
            memo.keep_raw(thread, packs)

    # Records of the ledger: values on their own.

    def seal(self, value: Any, about: bytes) -> bytes:
        """`value` in an envelope, bound to `about`. Raises `Unserializable` with the path."""
        data = self._coding.finish(self._coding.encode(value))
        payload = (_TYPED if self._typed else _OWN) + data
        return wrap(payload, compress_over=COMPRESS_OVER, vault=self._vault, about=about)

    def unseal(self, data: bytes, about: bytes) -> Any:
        """What `seal` was given. Raises `Corrupt`, `FormatTooNew` or `Unserializable`."""
        payload = unwrap(data, vault=self._vault, about=about)
        coding = self._coding if payload[:1] == _TYPED else self._own_coding
        return coding.decode(payload[1:])

    # Moving: bytes that are bound to their place are bound to another one.

    def reseal(self, source: str, target: str, batch: Batch) -> Batch:
        """`batch` of thread `source` for thread `target`. The same bytes, unless there are keys or calls."""
        vault = self._vault
        if batch.calls and source != target:
            calls = tuple(moved(row, source, target, self.unseal, self.seal) for row in batch.calls)
            batch = replace(batch, calls=calls)
        if vault is None:
            return batch
        rows = tuple(
            row._replace(header=reseal_header(row.header, source, target, row.ns, row.id, vault)) for row in batch.rows
        )
        writes: list[tuple[str, str, WriteRow]] = []
        for ns, id, row in batch.writes:
            payload = unwrap(row.value, vault=vault, about=_about_write(source, ns, id, row.task, row.idx))
            value = wrap(payload, vault=vault, about=_about_write(target, ns, id, row.task, row.idx))
            writes.append((ns, id, row._replace(value=value)))
        packs = tuple(reseal_pack(pack, source, target, vault) for pack in batch.packs)
        return replace(batch, rows=rows, writes=tuple(writes), packs=packs)

    def rehome(self, thread: str, snapshot: Snapshot, ns: str) -> tuple[CheckpointRow, tuple[WriteRow, ...]]:
        """A checkpoint and its pending writes, for another namespace of the same thread. The same bytes, unless there
        are keys."""
        row, writes, vault = snapshot.row, snapshot.writes, self._vault
        if vault is None:
            return row._replace(ns=ns), writes
        header = reseal_header(row.header, thread, thread, row.ns, row.id, vault, ns)
        moved: list[WriteRow] = []
        for write in writes:
            payload = unwrap(
                write.value, vault=vault, about=_about_write(thread, row.ns, row.id, write.task, write.idx)
            )
            value = wrap(payload, vault=vault, about=_about_write(thread, ns, row.id, write.task, write.idx))
            moved.append(write._replace(value=value))
        return row._replace(ns=ns, header=header), tuple(moved)

    def repack(self, thread: str, pack: Pack, live: Sequence[Span]) -> list[Pack]:
        """The parts of `pack` that `live` needs, as packs of their own."""
        return repack(thread, pack, live, self._vault)

    def regroup(self, source: str, target: str, packs: Sequence[Pack], live: Sequence[Span]) -> Sequence[Pack]:
        """What `live` (sorted, not overlapping) needs of packs of `source`, however they overlap, for `target`."""
        return list(regroup(source, target, packs, live, self._vault))

    def merge(self, thread: str, packs: Sequence[Pack], live: Sequence[Span]) -> Pack:
        """What `live` (sorted, not overlapping) needs of `packs`, which are of one writer, as one compressed pack."""
        return merge(thread, packs, live, self._vault)


def _spans(layouts: Iterable[Layout]) -> tuple[Span, ...]:
    """Every address that `layouts` refer to."""
    found = [span for layout in layouts if layout[0] not in INLINES for span in spans_of(layout)]
    return merge_spans(found) if len(found) > 1 else tuple(found)


def of_checkpoint(exc: MilepostError, thread: str, row: CheckpointRow) -> MilepostError:
    """`exc`, saying which checkpoint it is about."""
    if "checkpoint" in exc.facts:
        return exc
    where = f"checkpoint {row.id!r} of thread {thread!r}" + (f", namespace {row.ns!r}" if row.ns else "")
    facts = {**exc.facts, "thread": thread, "ns": row.ns, "checkpoint": row.id}
    return type(exc)(f"{where}: {exc.message}", **facts)


def facets(metadata: Mapping[str, Any]) -> Facets:
    """The scalars of `metadata` that a store may index, and whether the checkpoint is pinned, by whatever it is."""
    return {
        **({PINNED: True} if metadata.get(PINNED) else {}),
        **_scalars(metadata),
    }


def _scalars(metadata: Mapping[str, Any]) -> Facets:
    return {
        key: value
        for key, value in metadata.items()
        if type(value) in (bool, int, float, str) and _told(value) and _plain(key)
    }


def _told(value: float | str) -> bool:
    """Whether a scalar is a facet."""
    if isinstance(value, str):
        return len(value) <= FACET_LENGTH and _plain(value)
    return -(1 << 53) <= value <= 1 << 53 if isinstance(value, int) else math.isfinite(value)


def _plain(text: str) -> bool:
    return "\0" not in text and (text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))


def _about_write(thread: str, ns: str, checkpoint: str, task: str, idx: int) -> bytes:
    return b"write\0" + "\0".join((thread, ns, checkpoint, task, str(idx))).encode("utf-8", "surrogatepass")


def _of_channel(exc: Unserializable, thread: str, channel: str) -> Unserializable:
    return Unserializable(
        f"channel {channel!r} of thread {thread!r}: {exc.message}",
        **{**exc.facts, "thread": thread, "channel": channel},
    )
