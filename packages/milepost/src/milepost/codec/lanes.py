"""Which items are numbered one after the other.

A layout names the items of a list by runs of numbers, so a list that grows should get numbers in a row, whatever else is
stored between its items. What a task writes to a channel is mostly what the channel's list has next, and what that list has
got without a task, such as an input, comes between them: they share a lane. Unless what such a task writes is not what the
list has afterwards: LangGraph gives messages their ids after the write of them may have been encoded. Such writes have a lane of
their own, and the list does not refer to it also where it could: what it took of such a lane would lie in pieces.

All calls of a subgraph share its lanes: their lists are short and many, and packs are merged within a lane.
"""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from milepost.codec.items import Item, Many

Lane = tuple[str, ...]
"""(graph, channel): the items of its list. (graph, channel, task path): what such a task writes, and the list does not take as it
is. (): all other items. The graph is the namespace without the ids of tasks."""

_MOST = 256
"""Lanes, and channels whose last writes are remembered."""
_TAIL = 32
"""How many of a list's last items are looked at."""
_MISSED, _APART, _WORST = 3, 4, 8
"""What a write counts that the list does not take as it is (one that it takes counts -1), from which sum on such writes have a
lane of their own, and the greatest sum: where less than a quarter of them is missed, they share the list's."""


_CALL = re.compile(r":[^|]*")


def of_list(ns: str, channel: str) -> Lane:
    """The lane of the items of a channel's list."""
    return (_CALL.sub("", ns) if ":" in ns else ns), channel


def is_apart(lane: Lane) -> bool:
    """Whether it is the lane of writes alone."""
    return len(lane) == 3


@dataclass(slots=True)
class Fresh:
    """The new items of one lane, which become a pack, and the address of the first."""

    lane: Lane
    items: list[Item]
    writer: int = 0
    first: int = 0


class Lanes:
    """The numbers of a thread's items. Each lane has a writer of its own."""

    def __init__(self) -> None:
        self._next: OrderedDict[Lane, tuple[int, int]] = OrderedDict()
        """Lane -> (writer, number of its next item)."""
        self._written: OrderedDict[tuple[str, str, str], dict[str, bytes]] = OrderedDict()
        """(ns, channel, checkpoint) -> task path -> digest of the last item that was written so to the channel at the checkpoint,
        until one is put that comes after that."""
        self._scores: OrderedDict[Lane, int] = OrderedDict()
        """How often what such a task writes was not what the list had then, of late."""

    def allocate(self, lane: Lane, count: int) -> tuple[int, int]:
        """(writer, first) of `count` addresses that nobody else will ever get."""
        writer, first = self._next.get(lane) or (secrets.randbits(63), 1)
        self._next[lane] = writer, first + count
        self._next.move_to_end(lane)
        if len(self._next) > _MOST:
            self._next.popitem(last=False)
        return writer, first

    def give_back(self, fresh: Fresh) -> None:
        """Addresses that were not sent anywhere: if they are the last ones of their lane, they may be given again."""
        if self._next.get(fresh.lane) == (fresh.writer, fresh.first + len(fresh.items)):
            self._next[fresh.lane] = fresh.writer, fresh.first

    def of_write(self, ns: str, channel: str, path: str) -> Lane:
        """The lane of what a task of this path writes."""
        shared = of_list(ns, channel)
        apart = (*shared, path)
        return apart if self._scores.get(apart, 0) >= _APART else shared

    def wrote(self, ns: str, channel: str, checkpoint: str, path: str, item: Item) -> None:
        """The last item of what a task has written at a checkpoint."""
        self._written.setdefault((ns, channel, checkpoint), {})[path] = item.digest
        if len(self._written) > _MOST:
            self._written.popitem(last=False)

    def took(self, ns: str, channel: str, parent: str | None, piece: Many) -> None:
        """What the list is in a checkpoint that comes after `parent`."""
        written = None if parent is None else self._written.pop((ns, channel, parent), None)
        if written:
            tail = {item.digest for item in islice(_from_the_end(piece), _TAIL + 2 * len(written))}
            for path, digest in written.items():
                lane = (*of_list(ns, channel), path)
                score = self._scores.pop(lane, 0) + (-1 if digest in tail else _MISSED)
                if score > 0:
                    self._scores[lane] = min(score, _WORST)
            while len(self._scores) > _MOST:
                self._scores.popitem(last=False)


def _from_the_end(piece: Many) -> Iterator[Item]:
    for block in reversed(piece.blocks):
        yield from reversed(block.items)
