"""What a checkpoint that was read leaves to the graph, and what of it the graph passes over since it does not know it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final, NamedTuple

from milepost.codec.header import Header
from milepost.codec.layout import is_snapshot
from milepost.places import COUNTERS

_COUNTED: Final = ("loop", "input", "update")
"""Values of the metadata "source" with which LangGraph counts for each delta channel of the graph."""


class Heard(NamedTuple):
    """Names of channels."""

    writes: frozenset[str] = frozenset()
    """Those that tasks of its step, or the input of a run, have written to."""
    deltas: frozenset[str] = frozenset()
    """Delta channels that the graph which stored it knew."""

    @classmethod
    def of(cls, header: Header, writes: Iterable[str]) -> Heard:
        """Of a checkpoint with this header."""
        versions = header.checkpoint.get("channel_versions") or {}
        updated = header.checkpoint.get("updated_channels") or ()
        deltas = {name for name in header.metadata.get(COUNTERS) or () if name in versions}
        # A snapshot of an older step may have been carried along by a graph that does not know the channel.
        deltas |= {name for name, layout in header.layouts.items() if is_snapshot(layout) and name in updated}
        return cls(frozenset(writes), frozenset(deltas))

    def passed(self, versions: Container[str], source: object) -> list[str]:
        """What the next checkpoint, which has these versions, has not taken up: a step gives each channel a version that
        it was written to."""
        return sorted(name for name in self.writes if name not in versions) if source == "loop" else []

    def left(self, values: Container[str], metadata: Mapping[str, Any]) -> list[str]:
        """The delta channels that the next checkpoint's graph does not know: it counts for those that it knows, but for
        those whose values are in the checkpoint."""
        counted: Container[str] = metadata.get(COUNTERS) or ()
        if metadata.get("source") not in _COUNTED:
            return []
        return sorted(name for name in self.deltas if name not in counted and name not in values)
