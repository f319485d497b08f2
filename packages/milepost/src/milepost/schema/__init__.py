"""State that outlives its code: versions of a graph's state, and how checkpoints of one become checkpoints of another.

Pure computing: it never talks to a store. See `Schema`, `Step`, and the changes that a step is made of.
"""

from __future__ import annotations

from milepost.schema.baseline import Finding, Release, compare
from milepost.schema.changes import (
    Change,
    add_channel,
    drop_channel,
    drop_node,
    map_channel,
    map_state,
    rename_channel,
    rename_class,
    rename_node,
)
from milepost.schema.schema import Schema, Step
from milepost.schema.schemas import Schemas
from milepost.schema.shape import Drift, Shape

__all__ = [
    "Change",
    "Drift",
    "Finding",
    "Release",
    "Schema",
    "Schemas",
    "Shape",
    "Step",
    "add_channel",
    "compare",
    "drop_channel",
    "drop_node",
    "map_channel",
    "map_state",
    "rename_channel",
    "rename_class",
    "rename_node",
]
