"""Which packs hold what is referred to, for stores that find them by the item they begin with."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from milepost.store import Pack, Snapshot, Span, merge_spans


def uncovered(spans: Iterable[Span], packs: Sequence[Pack]) -> tuple[Span, ...]:
    """The parts of `spans` that seem to be in none of `packs`, which are all different and each overlap one of them.

    For stores that find packs by where they begin, and of those that begin before a run only the nearest one. That is
    enough unless a pack lies inside another: then what only the outer one holds shows here. It may also show where the
    outer one is among `packs`.
    """
    wanted = merge_spans(spans)
    if len(packs) == sum([span[2] for span in wanted]) == sum([pack[2] for pack in packs]):
        return ()  # one for each item
    held: dict[int, list[tuple[int, int]]] = {}
    for writer, first, count, _ in packs:
        held.setdefault(writer, []).append((first, first + count))
    for runs in held.values():
        runs.sort()
    gaps: list[Span] = []
    for writer, first, count in wanted:
        runs, reached, end = held.get(writer, []), first, first + count
        for start, stop in runs[max(bisect.bisect_left(runs, (first + 1,)) - 1, 0) :]:
            if start > reached:
                break
            reached = max(reached, stop)
        if reached < end:
            gaps.append(Span(writer, reached, end - reached))
    return tuple(gaps)


def spans_in(snapshots: Iterable[Snapshot], *, rows: bool = True) -> list[Span]:
    """Every address that checkpoints and their pending writes refer to; without `rows`, that the writes do."""
    found: list[Span] = []
    for snapshot in snapshots:
        if rows:
            found += snapshot.row.spans
        for write in snapshot.writes:
            found += write.spans
    return found


def longest(packs: Iterable[Pack]) -> Sequence[Pack]:
    """Of packs that begin at the same item, the one that holds most."""
    found: dict[tuple[int, int], Pack] = {}
    for pack in packs:
        held = found.get(pack[:2])
        if held is None or held[2] < pack[2]:
            found[pack[:2]] = pack
    return list(found.values())
