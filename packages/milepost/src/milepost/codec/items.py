"""From values to items: how a channel's value is cut into pieces that are stored once.

A list is a sequence of items, a dict a list of keys and a list of values, anything else one item; what is small lies
inline in the header. A `Piece` is a value after encoding and before its items have addresses.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it

from milepost.checksums import crc32
from milepost.codec.coding import Coding
from milepost.codec.exts import array_header
from milepost.codec.guard import BLOCK, SameObjects, Seen, Traced, guardable, look
from milepost.errors import Unserializable

INLINE = 64
"""An encoded value of at most this many bytes lies in the header itself."""
INLINE_WHOLE = 256
"""The same for a list or dict of a few elements as a whole."""
CHUNK = 64
"""Elements of a list of small scalars that make one item together."""

_FEW = 8
_CHUNK_BYTES = 4096
_FLAT: frozenset[type] = frozenset({int, float, bool, str, type(None)})

_packb = ormsgpack.packb


class Item:
    """One immutable encoded piece. Its address is good once the store has acknowledged it, in generation `epoch`."""

    __slots__ = ("coding", "digest", "epoch", "number", "plain", "sum", "writer")

    def __init__(self, plain: bytes, coding: Coding) -> None:
        self.plain = plain
        self.coding = coding
        self.digest = digest_of_plain(plain)
        # A checksum of secret bytes would confirm a guess of them: any number serves, it is compared with its copy.
        self.sum = secrets.randbits(32) if coding.secret else crc32(plain)
        self.epoch: int | None = None
        self.writer = 0
        self.number = 0


def digest_of_plain(plain: bytes) -> bytes:
    """Names an item's content within this process. Never stored."""
    return sha256(plain).digest()[:16]


class Block:
    """Consecutive items of a list, and what proves them unchanged.

    With `after`, the block is that one and more items behind it; what was found out about its addresses stays good.
    """

    __slots__ = ("epoch", "items", "placed", "runs", "seen", "size", "sums")

    def __init__(
        self, items: list[Item], seen: Seen | Traced | SameObjects | None = None, after: Block | None = None
    ) -> None:
        self.items: list[Item] = after.items + items if after else items
        self.seen = seen
        self.size: int = sum([len(item.plain) for item in items]) + (after.size if after else 0)
        self.epoch: int | None = after.epoch if after else None
        """The generation in which `runs` and `sums` are good."""
        self.placed: int = after.placed if after else 0
        """How many of the items, from the first on, `runs` and `sums` speak for."""
        self.runs: list[tuple[int, int, int]] = list(after.runs) if after else []
        self.sums: bytes = after.sums if after else b""

    def unplaced(self, epoch: int | None) -> list[Item]:
        """The items whose addresses in generation `epoch` are not in `runs`; starts anew in another generation."""
        if self.epoch is None or self.epoch != epoch:
            self.epoch, self.placed, self.runs, self.sums = epoch, 0, [], b""
        return self.items[self.placed :]


@dataclass(slots=True)
class Inline:
    """A value that lies in the header."""

    data: bytes


@dataclass(slots=True)
class One:
    """A value that is one item."""

    item: Item


@dataclass(slots=True)
class Many:
    """A list that is a sequence of items."""

    blocks: list[Block]
    count: int


@dataclass(slots=True)
class Keyed:
    """A dict: its keys and its values, each as a list."""

    keys: Inline | Many
    values: Inline | Many


@dataclass(slots=True)
class Delta:
    """The snapshot of a delta channel."""

    inner: Inline | One | Many | Keyed


Piece = Inline | One | Many | Keyed | Delta


def cut(value: Any, coding: Coding, before: Piece | None = None) -> Piece:
    """Encode `value`. `before` is what the same channel was the step before, if that is known.

    Raises `Unserializable` for what cannot be stored.
    """
    kind = type(value)
    if kind in _FLAT and coding.bare:  # most channels, and nothing can be hidden in them
        try:
            plain = _packb(value)
        except TypeError:
            plain = coding.encode(value)
        return Inline(plain) if len(plain) <= INLINE else One(Item(plain, coding))
    if coding.splits and kind is _DeltaSnapshot and type(value.value) is not _DeltaSnapshot:
        inner = cut(value.value, coding, before.inner if isinstance(before, Delta) else None)
        assert not isinstance(inner, Delta)
        return Delta(inner)
    if coding.splits and kind is list and value:
        if not coding.typed or guardable(value):
            return _cut_list(value, coding, before)
    elif coding.splits and kind is dict and value:
        if (len(value) <= _FEW or coding.typed) and (
            len(whole := coding.encode(value)) <= max(INLINE_WHOLE, 64 * len(value) if coding.typed else 0)
        ):
            return Inline(coding.finish(whole)) if len(whole) <= INLINE_WHOLE else One(Item(whole, coding))
        known = before if isinstance(before, Keyed) else None
        keys = _cut_list(list(value), coding, known.keys if known else None)
        return Keyed(keys, _cut_list(list(value.values()), coding, known.values if known else None))
    plain = coding.encode(value)
    return Inline(coding.finish(plain)) if len(plain) <= INLINE else One(Item(plain, coding))


def _cut_list(value: list[Any], coding: Coding, before: Piece | None) -> Inline | Many:
    try:
        return _cut_elements(value, coding, before)
    except Unserializable:
        coding.encode(value)  # raises again, and says which element it is
        raise


def _cut_elements(value: list[Any], coding: Coding, before: Piece | None) -> Inline | Many:
    known = before.blocks if isinstance(before, Many) else ()
    flat = not coding.typed and _FLAT.issuperset(map(type, value))
    if not known and len(value) <= _FEW:
        if not coding.typed and not flat:
            return _cut_few(value, coding)
        if len(whole := coding.encode(value)) <= INLINE_WHOLE:
            return Inline(coding.finish(whole))
    step, cutter = (CHUNK, _cut_flat) if flat else (BLOCK, _cut_block)
    blocks: list[Block] = []
    for place, at in enumerate(range(0, len(value), step)):
        old = known[place] if place < len(known) else None
        blocks.append(cutter(value[at : at + step], coding, old))
    return Many(blocks, len(value))


def _cut_few(value: list[Any], coding: Coding) -> Inline | Many:
    """A short list of elements whose fragments, joined, are the list: encoded once, wherever it will lie."""
    seen = look(value, coding.eyes, None)
    plains = [coding.encode(element) for element in value]
    if sum(map(len, plains)) < INLINE_WHOLE:
        return Inline(coding.finish(b"".join((array_header(len(value)), *plains))))
    return Many([Block([Item(plain, coding) for plain in plains], seen)], len(value))


def _cut_flat(value: list[Any], coding: Coding, old: Block | None) -> Block:
    seen = SameObjects(value)
    if old is not None and old.seen is not None and old.seen.same(value, coding.eyes):
        return old
    # One item for the lot, so that a list of numbers does not cost more in addresses than in bytes; long texts, which
    # would be written again and again while the chunk fills, are items of their own.
    joined = coding.encode(value)
    if len(joined) <= _CHUNK_BYTES:
        return Block([Item(joined[len(array_header(len(value))) :], coding)], seen)
    return Block([Item(coding.encode(element), coding) for element in value], seen)


def _cut_block(value: list[Any], coding: Coding, old: Block | None) -> Block:
    after: Block | None = None
    if old is not None and isinstance(old.seen, Seen | Traced) and len(value) >= len(old.items):
        upto = len(old.items)
        if old.seen.same(value if upto == len(value) else value[:upto], coding.eyes):
            if upto == len(value):
                return old
            after, value = old, value[upto:]
    # Looked at before it is encoded: should another thread change a message between the two, the next look differs
    # from this one and the message is encoded again.
    seen = look(value, coding.eyes, after.seen if after else None)
    return Block([Item(coding.encode(element), coding) for element in value], seen, after)


def watched(piece: Piece) -> bool:
    """Whether any part of `piece` can be proven unchanged the next time."""
    if isinstance(piece, Many):
        return any(block.seen is not None for block in piece.blocks)
    if isinstance(piece, Keyed):
        return watched(piece.keys) or watched(piece.values)
    return isinstance(piece, Delta) and watched(piece.inner)


def size(piece: Piece) -> int:
    """Bytes of a value as it is encoded, before anything is compressed."""
    if isinstance(piece, Many):
        return sum(block.size for block in piece.blocks)
    if isinstance(piece, Keyed):
        return size(piece.keys) + size(piece.values)
    if isinstance(piece, Delta):
        return size(piece.inner)
    return len(piece.item.plain if isinstance(piece, One) else piece.data)


def weight(piece: Piece) -> int:
    """Bytes that `piece` keeps in memory, roughly."""
    if isinstance(piece, Many):
        return sum([block.size + 300 * len(block.items) for block in piece.blocks])
    if isinstance(piece, Keyed):
        return weight(piece.keys) + weight(piece.values)
    if isinstance(piece, Delta):
        return weight(piece.inner)
    return len(piece.item.plain if isinstance(piece, One) else piece.data) + 100
