"""Which packs of a thread to write anew: those that are partly dead, and many small ones as a few large ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from milepost.store import Outline, Span

KEEP_WHOLE = 0.75
"""A pack of which at least this part is live stays as it is."""
SMALL = 64 << 10
"""Packs of fewer bytes are merged with their neighbours."""
LARGE = 1 << 20
"""Bytes of the packs that are merged into one, at most."""
LEAST = 4
"""Fewer packs are not worth being merged."""
_DENSE = 0.8
"""Live part of what is merged, at least: clearly over `KEEP_WHOLE`, or it would soon be written anew."""


@dataclass(slots=True)
class Use:
    """One pack, and how much of it is needed."""

    span: Span
    size: int
    used: int

    @property
    def worn(self) -> bool:
        """Whether it should be written anew."""
        return 0 < self.used < self.span.count * KEEP_WHOLE


@dataclass(slots=True)
class Group:
    """Packs of one writer that one pack may take the place of. Between them lies nothing but what is dead."""

    packs: list[Use] = field(default_factory=list)

    def takes(self, pack: Use) -> bool:
        """Whether `pack` may join."""
        if not self.packs:
            return True
        first = self.packs[0].span.first
        span = pack.span.first + pack.span.count - first
        used = sum(one.used for one in self.packs) + pack.used
        return used >= _DENSE * span and sum(one.size for one in self.packs) + pack.size <= LARGE


def uses(outline: Outline, live: Sequence[Span]) -> list[Use]:
    """The thread's packs by address. `live` is sorted and does not overlap."""
    starts = [span[:2] for span in live]
    found: list[Use] = []
    for pack, size in sorted(zip(outline.packs, outline.sizes, strict=True)):
        end = pack.first + pack.count
        used = 0
        for at in range(max(bisect_right(starts, (pack.writer, pack.first)) - 1, 0), len(live)):
            span = live[at]
            if (span.writer, span.first) >= (pack.writer, end):
                break
            if span.writer == pack.writer:
                used += max(min(end, span.first + span.count) - max(pack.first, span.first), 0)
        found.append(Use(pack, size, used))
    return found


def groups(packs: Sequence[Use]) -> Iterator[Group]:
    """What to merge. Only over addresses that are known to be over: a gap may be an item that is on its way."""
    group = Group()
    end = (0, 0)
    for pack in packs:
        apart = (pack.span.writer, pack.span.first) != end
        end = (pack.span.writer, pack.span.first + pack.span.count)
        small = pack.size < SMALL or pack.worn
        if apart or (pack.used and not (small and group.takes(pack))):
            if len(group.packs) >= LEAST:
                yield group
            group = Group()
        if pack.used and small:
            group.packs.append(pack)
    if len(group.packs) >= LEAST:
        yield group
