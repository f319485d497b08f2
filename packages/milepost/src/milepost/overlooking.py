"""What a graph passes over of the checkpoint that it goes on from, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from langgraph.checkpoint.base import CheckpointTuple

from milepost.codec.drafts import Draft
from milepost.schema.changes import PLUMBING
from milepost.schema.image import START


def overlooked(draft: Draft) -> str:
    """What the graph does not know of the checkpoint before a draft; "" for nothing."""
    if not (draft.lost or draft.passed or draft.left):  # nearly always
        return ""
    parts = [
        f"{what} {', '.join(map(repr, names))}, {end}"
        for what, names, end in (
            ("values for", draft.lost, "which the graph does not know: from here on they are gone"),
            (
                "writes to",
                draft.passed,
                "which the graph did not take up, for it does not know the channel or the task",
            ),
            (
                "the delta channels",
                draft.left,
                "which the graph does not know: what they hold stays behind, and goes with the checkpoints before",
            ),
        )
        if names
    ]
    return (
        f"the checkpoint before {draft.id!r} has {'; it has '.join(parts)}. If keys of its state were renamed or removed, "
        "declare a schema with an upgrade."
    )


def written_keys(found: CheckpointTuple) -> Collection[str]:
    """The keys of the state that tasks, or the input of a run, have written to."""
    values = found.checkpoint["channel_values"]
    if not found.pending_writes and START not in values:
        return ()
    entered: object = values.get(START)
    names = [channel for _, channel, _ in found.pending_writes or ()]
    names += [key for key in entered if isinstance(key, str)] if isinstance(entered, Mapping) else []
    return [name for name in names if not name.startswith(PLUMBING)]
