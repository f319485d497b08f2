"""The order that parents give to the checkpoints of a thread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

Place = tuple[str, str]
"""(namespace, id) of a checkpoint."""


class Child(Protocol):
    """What is known of a checkpoint, at least."""

    @property
    def ns(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def parent(self) -> str | None: ...


Row = TypeVar("Row", bound=Child)


def ancestors(rows: Mapping[Place, Row], place: Place) -> Iterator[tuple[Place, Row]]:
    """The parent of the checkpoint at `place`, the parent of that, and so on, as far as `rows` has them; each once, also
    where they are a cycle."""
    ns, id = place
    row, walked = rows.get(place), {id}
    while row is not None and row.parent is not None and row.parent not in walked:
        place = (ns, row.parent)
        row = rows.get(place)
        if row is not None:
            yield place, row
            walked.add(place[1])


def by_depth(rows: Iterable[Row]) -> list[Row]:
    """Parents before their children; what is in a cycle last."""
    every = {(row.ns, row.id): row for row in rows}
    children: dict[tuple[str, str | None], list[Row]] = {}
    for row in every.values():
        parent = row.parent if row.parent is not None and (row.ns, row.parent) in every else None
        children.setdefault((row.ns, parent), []).append(row)
    ordered = [row for (_, parent), some in children.items() if parent is None for row in some]
    for row in ordered:
        ordered += children.pop((row.ns, row.id), ())
    return ordered + [row for (_, parent), some in children.items() if parent is not None for row in some]
