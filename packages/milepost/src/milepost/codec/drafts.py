"""A put on its way to the store: encoded, and then with addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.codec.items import Piece
from milepost.codec.lanes import Fresh
from milepost.codec.layout import Layout
from milepost.codec.memo import ThreadMemo
from milepost.store import CheckpointRow, Pack, WriteRow

Facets = dict[str, str | int | float | bool]


@dataclass(slots=True)
class Draft:
    """A put after encoding, before its items have addresses. It holds no live value but those in `unchanged`."""

    thread: str
    ns: str
    id: str
    parent: str | None
    ancestors: tuple[str, ...]
    front: bytes
    facets: Facets
    versions: Mapping[str, Any]
    pieces: dict[str, Piece | Layout]
    """By channel, in order; a layout where the parent's is referred to, or the value is `Kept`."""
    unchanged: dict[str, Any]
    """The values of those, should the store be found to have lost them."""
    memo: ThreadMemo
    epoch: int | None
    """The generation of the layouts in `pieces`."""
    lost: list[str] = field(default_factory=list)
    """Channels that the parent has a value of, and that this checkpoint leaves out although nobody wrote to them."""
    passed: list[str] = field(default_factory=list)
    """Channels that were written to at the parent, and that the graph did not take up."""
    left: list[str] = field(default_factory=list)
    """Delta channels of the parent's that the graph does not know."""
    rests: list[str] = field(default_factory=list)
    """Delta channels that have no value here: they are rebuilt from the parent and what comes before it."""


@dataclass(slots=True)
class Placed:
    """A draft with addresses: what goes to the store, and what is learned when the store has acknowledged it."""

    row: CheckpointRow
    packs: tuple[Pack, ...]
    generation: int | None
    fresh: list[Fresh]
    values: dict[str, tuple[object, Layout]]
    memo: ThreadMemo
    merged: Pack | None = None
    """What is to take the place of `run`."""
    run: Sequence[Pack] = ()
    """Small packs of earlier writes."""

    @property
    def bytes(self) -> int:
        """How many bytes of values are sent."""
        packs = self.packs if self.merged is None else (*self.packs, self.merged)
        return len(self.row.header) + sum(len(pack.data) for pack in packs)

    @property
    def reused(self) -> int:
        """How many items are referred to and not sent."""
        return sum(span.count for span in self.row.spans) - self.new

    @property
    def new(self) -> int:
        """How many items are sent."""
        return sum(len(fresh.items) for fresh in self.fresh)

    def withdraw(self) -> None:
        """It was not, and will not be, sent to a store: its addresses are free again. Call it in the reverse order."""
        with self.memo.lock:
            for fresh in self.fresh:
                self.memo.lanes.give_back(fresh)


@dataclass(slots=True)
class DraftWrite:
    """One pending write after encoding."""

    task: str
    idx: int
    path: str
    channel: str
    piece: Piece | Layout
    """A layout where the value is stored as it lies."""
    stamp: bytes | None = None


@dataclass(slots=True)
class PlacedWrites:
    """Drafted writes with addresses."""

    rows: tuple[WriteRow, ...]
    generation: int | None
    memo: ThreadMemo
    fresh: list[Fresh | None] = field(default_factory=list)
    """Per row: its new items, if it has any."""
