"""Whether a checkpoint is the end of a run, as well as what is stored tells without the graph.

LangGraph starts a node when one of the channels that trigger it has a value that the node has not seen. Which channels
these are only the graph knows, but those of a StateGraph and of an entrypoint have names of their own: what such a
channel holds is gone in the step after it was written. Wherever that does not decide, there is work left: to resume a
run that is at its end does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from milepost.codec import Codec, Header
from milepost.codec.layout import INLINES, Layout
from milepost.schema.image import INTERRUPT, JOIN, START, TASKS
from milepost.store import Snapshot

_BRANCHES: Final = ("branch:", "start:")
_VERSION: Final = 4
"""Of checkpoints, from which on channels have the names above."""


def work_left(codec: Codec, snapshot: Snapshot) -> bool:
    """Whether a run goes on from this checkpoint. Raises as `Codec.header` does."""
    if snapshot.writes:
        return True  # of a step that did not come to its end
    thread = snapshot.thread
    header = codec.header(thread, snapshot.row)
    versions = header.checkpoint.get("channel_versions") or {}
    if header.metadata.get("source") == "input" or header.checkpoint.get("v") != _VERSION or START not in versions:
        return True
    return any(_triggers(codec, thread, header, versions, name, layout) for name, layout in header.layouts.items())


def _triggers(
    codec: Codec, thread: str, header: Header, versions: Mapping[str, Any], channel: str, layout: Layout
) -> bool:
    """Whether the value of a channel starts a node, or may do so."""

    def value() -> Any:
        return codec.value(thread, channel, layout, codec.shelf(thread, ()))

    if (channel == TASKS or channel.startswith(JOIN)) and layout[0] not in INLINES:
        return True
    if (starts := _by_name(channel, value)) is not None:
        return starts
    seen = (read for node, read in header.checkpoint.get("versions_seen", {}).items() if node != INTERRUPT)
    return any(channel in read and read[channel] != versions.get(channel) for read in seen)


def surely_due(checkpoint: Mapping[str, Any]) -> bool:
    """Whether nodes of the graph that put this checkpoint, read whole, are certain to be started by it: a graph that has
    nothing to do there is another one."""
    if checkpoint.get("v") != _VERSION or START not in checkpoint["channel_versions"]:
        return False
    values: Mapping[str, Any] = checkpoint["channel_values"]
    return any(_by_name(channel, partial(values.get, channel)) for channel in values)


def _by_name(channel: str, value: Callable[[], Any]) -> bool | None:
    """Whether the value of a channel starts a node; None where its name does not tell."""
    if channel == START or channel.startswith(_BRANCHES):
        return True
    if channel == TASKS:
        return bool(value())
    return _complete(channel, value()) if channel.startswith(JOIN) else None


def _complete(channel: str, value: Any) -> bool:
    """Whether all nodes of a join have come to their end: the channel is named after them."""
    starts = channel[len(JOIN) :].rpartition(":")[0]
    seen = value[0] if isinstance(value, tuple) else value
    return len("+".join(map(str, seen))) >= len(starts)
