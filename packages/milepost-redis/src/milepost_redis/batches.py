"""How much goes into one script: no script may run for long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

from milepost.store import Drop, Pack, Span

from milepost_redis import wire

BATCH: Final = 100
"""How many parts of a thread one script takes or hands out."""
VOLUME: Final = 2 << 20
"""Bytes of packs after which a batch is full."""

T = TypeVar("T")


def droppings(drop: Drop) -> Iterator[list[bytes]]:
    """What the script `drop` is given, behind the token and the fresh generation: once, or where it is much several times.
    Then the packs come last, and one that is written anew goes in the step in which the new ones come: what is left when
    one step is the last to be carried out is whole."""
    places = [wire.place(ns, id) for ns, id in drop.checkpoints]
    parents = [part for ns, id, to in drop.parents for part in (wire.place(ns, id), wire.parent(to))]
    gone = [wire.member(span) for span in drop.packs]
    if len(parents) + len(places) + len(gone) + len(drop.repacked) <= 2 * BATCH:
        yield _dropping(places, parents, gone, drop.repacked)
        return
    for some in slices(parents, 2 * BATCH):
        yield _dropping(parents=some)
    for some in slices(places, BATCH):
        yield _dropping(places=some)
    for some, packs in exchanges(drop):
        yield _dropping(gone=some, repacked=packs)


def _dropping(
    places: Sequence[bytes] = (),
    parents: Sequence[bytes] = (),
    gone: Sequence[bytes] = (),
    repacked: Sequence[Pack] = (),
) -> list[bytes]:
    counts = (b"%d" % len(places), b"%d" % (len(parents) // 2), b"%d" % len(gone))
    return [*counts, *places, *parents, *gone, *flat(repacked)]


def exchanges(drop: Drop) -> Iterator[tuple[list[bytes], list[Pack]]]:
    """Packs that go with those that come in their place, and then the packs that go for good."""
    spans: list[tuple[Span, Pack | None]] = [(span, None) for span in drop.packs]
    spans += ((Span(pack.writer, pack.first, pack.count), pack) for pack in drop.repacked)
    groups: list[tuple[list[bytes], list[Pack]]] = []
    end = (0, 0)
    for span, pack in sorted(spans, key=lambda part: part[0]):
        if not groups or (span.writer, span.first) >= end:
            groups.append(([], []))
        end = max(end, (span.writer, span.first + span.count))
        old, new = groups[-1]
        if pack is None:
            old.append(wire.member(span))
        else:
            new.append(pack)
    yield from (group for group in groups if group[1])
    for some in slices([member for old, new in groups if not new for member in old], BATCH):
        yield some, []


def flat(packs: Sequence[Pack]) -> list[bytes]:
    """Packs as the arguments of a script."""
    return [part for pack in packs for part in (wire.member(pack), pack.data)]


def slices(parts: list[T], size: int) -> Iterator[list[T]]:
    """Runs of at most `size` of `parts`."""
    for at in range(0, len(parts), size):
        yield parts[at : at + size]


def volumes(parts: Sequence[tuple[bytes, ...]]) -> Iterator[list[tuple[bytes, ...]]]:
    """Runs of `parts` that are not too much for one script."""
    some: list[tuple[bytes, ...]] = []
    volume = 0
    for part in parts:
        if len(some) >= 2 * BATCH or volume >= VOLUME:
            yield some
            some, volume = [], 0
        some.append(part)
        volume += sum(map(len, part))
    if some:
        yield some
