"""Which parts of a thread may go: pure functions from its chart to a `Drop`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from milepost.store import Chart, CheckpointRow, Span, merge_spans

Place = tuple[str, str]
"""(ns, checkpoint id)."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """A thread as retention sees it."""

    rows: Mapping[Place, CheckpointRow]
    channels: Callable[[CheckpointRow], Collection[str]]
    """The channels that have a value in a checkpoint."""
    deltas: Callable[[CheckpointRow], Collection[str]]
    """The delta channels that a checkpoint has, with or without a value."""

    def heads(self) -> set[Place]:
        """The latest checkpoint of each namespace."""
        latest: dict[str, CheckpointRow] = {}
        for row in self.rows.values():
            if row.ns not in latest or row.key > latest[row.ns].key:
                latest[row.ns] = row
        return {(row.ns, row.id) for row in latest.values()}

    def latest(self, root_of: Callable[[CheckpointRow], str | None]) -> set[Place]:
        """What a thread goes on from: the latest checkpoint of each namespace.

        The namespace of a single call of a subgraph (it has a task id, after a colon) goes with the root checkpoint
        that made the call, `root_of` its head, once that one was stored: nothing will ever resume it.
        """
        heads = self.heads()
        roots = self.needed(place for place in heads if not place[0])

        def over(place: Place) -> bool:
            root = root_of(self.rows[place]) if ":" in place[0] else None
            return root is not None and ("", root) in self.rows and ("", root) not in roots

        return {place for place in heads if not over(place)}

    def needed(self, kept: Iterable[Place]) -> set[Place]:
        """`kept`, and the ancestors that their delta channels are rebuilt from: up to the nearest one with a value."""
        needed = set(kept)
        # Per ancestor, the channels that were looked for there: what one walk found the next one need not.
        sought: dict[Place, set[str]] = {}
        for place in tuple(needed):
            row = self.rows[place]
            missing = set(self.deltas(row)) - set(self.channels(row))
            parent = row.parent
            while missing and parent is not None and (above := self.rows.get((row.ns, parent))) is not None:
                before = sought.setdefault((above.ns, above.id), set())
                missing -= before
                before |= missing
                if missing:
                    needed.add((above.ns, above.id))
                    missing -= set(self.channels(above))
                parent = above.parent
        return needed

    def parent_among(self, row: CheckpointRow, kept: Collection[Place]) -> str | None:
        """The nearest ancestor of `row` that is in `kept`; a parent that was never stored is left as it is."""
        parent, walked = row.parent, {row.id}
        while parent is not None and (row.ns, parent) not in kept:
            above = self.rows.get((row.ns, parent))
            if above is None:
                return parent if parent == row.parent else None
            if above.id in walked:
                return None
            walked.add(above.id)
            parent = above.parent
        return parent


def live_spans(chart: Chart, kept: Collection[Place]) -> tuple[Span, ...]:
    """Every item that the kept checkpoints, and the writes that are not dropped with one, refer to."""
    rows = {(row.ns, row.id): row for row in chart.rows}
    spans = [span for place in kept for span in rows[place].spans]
    for place, writes in chart.writes.items():
        if place in kept or place not in rows:
            spans += [span for write in writes for span in write.spans]
    return merge_spans(spans)
