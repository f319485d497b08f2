"""How a thread's latest checkpoint is made smaller: a new one is planned whose parent it is, and nothing runs again.

The new checkpoint has the channel versions and ``versions_seen`` of the old one, so that the same nodes are due; only
values are others. It is entered by compare-and-set on the whole thread. That needs a settled boundary: while a task has
written, or a subgraph has begun, what they did is found by the id of the old checkpoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from milepost.codec import Codec, Header
from milepost.codec.codec import Placed
from milepost.compaction import Compactor, Context
from milepost.errors import InvalidConfig
from milepost.packing import uses
from milepost.places import ATTACHMENTS, COUNTERS, FORKS, PINNED
from milepost.store import Batch, Chart, CheckpointRow, Store, merge_spans, sort_key

History = Callable[[str, str, Sequence[str]], Awaitable[Mapping[str, DeltaChannelHistory]]]
"""The writes and seeds of delta channels, of thread and checkpoint of the root namespace."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What to make of the latest checkpoint of each thread."""

    compactors: tuple[Compactor, ...] = ()
    over: int | None = None
    """Only of heads that occupy more bytes."""
    quiet: float = 60.0
    """Seconds since the head was put, at least: a run that goes on would not notice the new checkpoint."""
    channels: Mapping[str, Any] = field(default_factory=dict)
    """Those of the graph, which know how to rebuild delta channels."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A smaller head, to be entered, and which channels it changes."""

    batch: Batch
    channels: tuple[str, ...]


async def compacted(
    store: Store,
    codec: Codec,
    thread: str,
    chart: Chart,
    compaction: Compaction,
    history: History,
    now: float,
    *,
    dry_run: bool,
) -> Compacted | None:
    """What makes the head smaller; None when there is nothing to do, or it is not the time for it."""
    head = max((row for row in chart.rows if not row.ns), key=lambda row: row.key, default=None)
    if head is None or head.at > now - compaction.quiet:
        return None
    if compaction.over is not None and head_size(chart, head) <= compaction.over:
        return None
    header = codec.header(thread, head)
    if not _settled(codec, thread, chart, head, header):
        return None
    loaded = await store.get(thread, "", head.id)
    if loaded is None or loaded.snapshots[0].row.header != head.header:
        return None  # somebody was faster
    snapshot, packs = loaded.snapshots[0], loaded.packs.get(thread, ())
    values = codec.values(thread, header, codec.shelf(thread, packs))
    state, deltas = await _state(thread, head, header, values, compaction.channels, history)
    context = Context(thread, head.id, dict(header.metadata))
    changed = await _changed(compaction.compactors, state, context, dry_run=dry_run)
    if not changed:
        return None
    codec.remember(thread, snapshot.generation, snapshot.row, header, packs)
    # With a snapshot, the ancestors that a delta channel was rebuilt from are not needed for it any more.
    smaller = {**changed, **{name: _DeltaSnapshot(changed.get(name, state[name])) for name in deltas}}
    placed = _smaller_head(codec, thread, chart, head, header, {**values, **smaller}, smaller, sorted(changed), now)
    # The time is that of the old head: the thread was not used since.
    rows = [replace(placed.row, key=sort_key(placed.row.id, head.key), at=head.at)]
    new = list(placed.packs)
    for attachment in _attached(codec, thread, chart, context):
        rows.append(replace(attachment.row, key=attachment.row.id, at=head.at))
        new += attachment.packs
    return Compacted(Batch(tuple(rows), packs=tuple(new)), tuple(sorted(changed)))


def _settled(codec: Codec, thread: str, chart: Chart, head: CheckpointRow, header: Header) -> bool:
    """Whether nothing of the superstep after `head` was begun, and its subgraphs would be the same under another id."""
    if chart.writes.get(("", head.id)):
        return False
    forked = header.metadata.get("source") in FORKS
    for row in chart.rows:
        if ":" in row.ns and (codec.header(thread, row).metadata.get("parents") or {}).get("") == head.id:
            return False
        # A fork reads subgraphs that remember as of its parent.
        if forked and row.ns not in ("", ATTACHMENTS) and ":" not in row.ns:
            return False
    return True


async def _state(
    thread: str,
    head: CheckpointRow,
    header: Header,
    values: Mapping[str, Any],
    channels: Mapping[str, Any],
    history: History,
) -> tuple[dict[str, Any], set[str]]:
    """What compactors see, and which of it are delta channels. Those that nobody can rebuild are left out."""
    versions = header.checkpoint.get("channel_versions") or {}
    deltas = {name for name, channel in channels.items() if hasattr(channel, "replay_writes") and name in versions}
    missing = sorted(name for name in deltas if name not in values)
    pasts = await history(thread, head.id, missing) if missing else {}
    state = {name: value for name, value in values.items() if type(value) is not _DeltaSnapshot or name in deltas}
    for name in deltas:
        past: Mapping[str, Any] = pasts.get(name, {})
        channel = channels[name].from_checkpoint(values.get(name, past.get("seed")))
        channel.replay_writes(past.get("writes", []))
        state[name] = channel.get()
    return state, deltas


async def _changed(
    compactors: Sequence[Compactor], state: dict[str, Any], context: Context, *, dry_run: bool
) -> dict[str, Any]:
    """The channels that the compactors change, each seeing what those before it made of the state."""
    changed: dict[str, Any] = {}
    for compactor in compactors:
        if dry_run and getattr(compactor, "costly", False):
            continue
        found = compactor({**state, **changed}, context)
        answer: object = await found if inspect.isawaitable(found) else found
        if answer is None:
            continue
        if not isinstance(answer, Mapping) or any(name not in state for name in answer):
            raise InvalidConfig(
                f"compactor {compactor!r} returned {_shown(answer)}: it must return the changed ones of the channels "
                f"{sorted(state)}, or None",
                what="compact",
            )
        changed |= answer
    return changed


def _shown(answer: object) -> str:
    return f"a value for {sorted(map(str, answer))}" if isinstance(answer, Mapping) else repr(answer)[:200]


def _smaller_head(
    codec: Codec,
    thread: str,
    chart: Chart,
    head: CheckpointRow,
    header: Header,
    values: Mapping[str, Any],
    smaller: Mapping[str, Any],
    changed: Sequence[str],
    now: float,
) -> Placed:
    versions = header.checkpoint["channel_versions"]
    id = _next_id(head.id, {row.id for row in chart.rows})
    made = {**header.checkpoint, "id": id, "ts": datetime.fromtimestamp(now, UTC).isoformat(), "channel_values": values}
    facts = {name: value for name, value in header.metadata.items() if name != PINNED}
    if facts.get("source") in FORKS:
        facts["source"] = "loop"
    if counters := facts.get(COUNTERS):
        facts[COUNTERS] = {name: pair for name, pair in counters.items() if name not in smaller}
    facts["compacted"] = list(changed)
    draft = codec.draft(
        thread,
        "",
        id,
        head.id,
        cast("Checkpoint", made),
        cast("CheckpointMetadata", facts),
        {name: versions[name] for name in smaller},
        header.stamp,
    )
    placed = codec.place(draft)
    # A store that does not tell its generations gets everything again.
    return placed if placed.generation in (None, chart.generation) else codec.place(draft, everything=True)


def _attached(codec: Codec, thread: str, chart: Chart, context: Context) -> Iterator[Placed]:
    there = {row.id for row in chart.rows if row.ns == ATTACHMENTS}
    for address, content in context.attachments.items():
        if address not in there:
            checkpoint: Any = {
                "v": 4,
                "id": address,
                "ts": "",
                "channel_values": {"content": content},
                "channel_versions": {},
                "versions_seen": {},
                "updated_channels": None,
            }
            draft = codec.draft(thread, ATTACHMENTS, address, None, checkpoint, cast("CheckpointMetadata", {}), {})
            yield codec.place(draft, everything=True)


def _next_id(id: str, taken: set[str]) -> str:
    """The id that comes next after `id`: whatever a run puts afterwards is later than that."""
    while True:
        try:
            id = str(UUID(int=UUID(id).int + 1))
        except ValueError:
            id += "+"
        if id not in taken:
            return id


def head_size(chart: Chart, head: CheckpointRow) -> int:
    """Bytes of a checkpoint's header and of the packs that its values lie in."""
    return len(head.header) + sum(use.size for use in uses(chart, merge_spans(head.spans)) if use.used)
