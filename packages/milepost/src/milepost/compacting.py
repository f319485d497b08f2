"""How a thread's latest checkpoint is made smaller: a new one is planned whose parent it is, and nothing runs again.

The new checkpoint has the channel versions and ``versions_seen`` of the old one, so that the same nodes are due; only
values are others. It is entered by compare-and-set on the whole thread. That needs a settled boundary: while a task has
written, or a subgraph has begun, what they did is found by the id of the old checkpoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, DeltaChannelHistory
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from milepost.codec import Codec, Header
from milepost.codec.drafts import Placed
from milepost.compaction import Compactor, Context, parted
from milepost.errors import InvalidConfig
from milepost.packing import uses
from milepost.places import ATTACHMENTS, COMPACTED, COUNTERS, FORKS, PINNED, WAS, shown
from milepost.store import Batch, CheckpointRow, Mark, Store, merge_spans, sort_key
from milepost.survey import Survey

History = Callable[[str, str, str, Sequence[str]], Awaitable[Mapping[str, DeltaChannelHistory]]]
"""The writes and seeds of delta channels, of thread, namespace and checkpoint."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What to make of the latest checkpoint of each thread."""

    compactors: tuple[Compactor, ...] = ()
    ns: str = ""
    """The namespace: that of the graph, or of a subgraph that remembers."""
    over: int | None = None
    """Only of heads that occupy more bytes."""
    quiet: float = 60.0
    """Seconds since the head was put, at least: a run that goes on would not notice the new checkpoint."""
    channels: Mapping[str, Any] = field(default_factory=dict)
    """Those of the graph, which know how to rebuild delta channels."""
    current: Callable[[str, CheckpointRow, bytes | None], bool] = lambda *_: True
    """Whether a thread's checkpoint, with its stamp, is of the schema version of now: compactors know that one alone."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """A smaller head, to be entered, and which channels it changes."""

    batch: Batch
    channels: tuple[str, ...]


async def compacted(
    store: Store,
    codec: Codec,
    survey: Survey,
    compaction: Compaction,
    history: History,
    now: float,
    *,
    dry_run: bool,
) -> Compacted | None:
    """What makes the head smaller; None when there is nothing to do, or it is not the time for it."""
    thread, ns = survey.thread, compaction.ns
    mark = next(iter(survey.lineage.spaces.get(ns, ())), None)
    if mark is None or mark.at > now - compaction.quiet:
        return None
    await survey.read([(ns, mark.id)])
    head = survey.row((ns, mark.id))
    if head is None or (compaction.over is not None and head_size(survey, head) <= compaction.over):
        return None
    # Raises where the data of an object stands for it: that is not to be stored in its place.
    exact = codec.exact()
    header = exact.header(thread, head)
    if not compaction.current(thread, head, header.stamp) or not await _settled(survey, mark):
        return None
    loaded = await store.get(thread, ns, head.id)
    if loaded is None or loaded.snapshots[0].row.header != head.header:
        return None  # somebody was faster
    snapshot, packs = loaded.snapshots[0], loaded.packs.get(thread, ())
    values = codec.values(thread, header, codec.shelf(thread, packs))
    state, deltas = await _state(thread, head, header, values, compaction.channels, history)
    context = Context(thread, head.id, dict(shown(header.metadata)))
    changed = await _changed(compaction.compactors, state, context, dry_run=dry_run)
    if not changed:
        return None
    shelf = codec.shelf(thread, packs)
    for name in header.layouts.keys() & (changed.keys() | deltas):
        exact.value(thread, name, header.layouts[name], shelf)
    codec.remember(thread, snapshot.generation, snapshot.row, header, packs)
    # With a snapshot, the ancestors that a delta channel was rebuilt from are not needed for it any more.
    smaller = {**changed, **{name: _DeltaSnapshot(changed.get(name, state[name])) for name in deltas}}
    placed = _smaller_head(codec, survey, head, header, {**values, **smaller}, smaller, sorted(changed), now)
    # The time is that of the old head: the thread was not used since.
    rows = [placed.row._replace(key=sort_key(placed.row.id, head.key), at=head.at)]
    attached = list(_attached(codec, survey, context))
    rows += [one.row._replace(key=one.row.id, at=head.at) for one in attached]
    new = [pack for one in (placed, *attached) for pack in one.packs]
    if dry_run:
        # A run that follows is to find everything as this one did.
        for one in reversed((placed, *attached)):
            one.withdraw()
    return Compacted(Batch(tuple(rows), packs=tuple(new)), tuple(sorted(changed)))


async def _settled(survey: Survey, head: Mark) -> bool:
    """Whether nothing of the superstep after `head` was begun, and its subgraphs would be the same under another id."""
    below = f"{head.ns}|" if head.ns else ""
    subgraphs = [place for place in survey.marks if place[0] not in ("", ATTACHMENTS) and place[0].startswith(below)]
    calls = [place for place in subgraphs if ":" in place[0]]
    await survey.read(calls)
    if head.writes or any(survey.facts(place).parents.get(head.ns) == head.id for place in calls):
        return False
    # A fork reads subgraphs that remember as of its parent.
    remembers = any(":" not in ns and ns != head.ns for ns, _ in subgraphs)
    return not (remembers and survey.facts((head.ns, head.id)).forked)


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
    pasts = await history(thread, head.ns, head.id, missing) if missing else {}
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
        for name, value in answer.items():
            if why := parted(changed.get(name, state[name]), value):
                raise InvalidConfig(
                    f"compactor {compactor!r} returned {name!r}, but {why}", what="compact", channel=name
                )
        changed |= answer
    return {name: value for name, value in changed.items() if not _same(state[name], value)}


def _same(one: object, other: object) -> bool:
    try:
        return one is other or (type(one) is type(other) and bool(one == other))
    except Exception:
        return False  # an array, say, that does not tell


def _shown(answer: object) -> str:
    return f"a value for {sorted(map(str, answer))}" if isinstance(answer, Mapping) else repr(answer)[:200]


def _smaller_head(
    codec: Codec,
    survey: Survey,
    head: CheckpointRow,
    header: Header,
    values: Mapping[str, Any],
    smaller: Mapping[str, Any],
    changed: Sequence[str],
    now: float,
) -> Placed:
    versions = header.checkpoint["channel_versions"]
    thread, roots = survey.thread, survey.lineage.spaces.get("", ())
    # Replaying a root checkpoint reads a subgraph that remembers as of then: those that are there read what they did.
    latest = max([head.id, *(root.id for root in roots[:1])])
    id = _next_id(latest, {id for _, id in survey.marks})
    made = {**header.checkpoint, "id": id, "ts": _stamp(now), "channel_values": values}
    facts = {name: value for name, value in header.metadata.items() if name not in (PINNED, WAS)}
    if facts.get("source") in FORKS:
        facts["source"] = "loop"
    if counters := facts.get(COUNTERS):
        facts[COUNTERS] = {name: pair for name, pair in counters.items() if name not in smaller}
    facts[COMPACTED] = list(changed)
    draft = codec.draft(
        thread,
        head.ns,
        id,
        head.id,
        cast("Checkpoint", made),
        cast("CheckpointMetadata", facts),
        {name: versions[name] for name in smaller},
        header.stamp,
    )
    placed = codec.place(draft)
    # A store that does not tell its generations gets everything again.
    if placed.generation in (None, survey.outline.generation):
        return placed
    placed.withdraw()
    return codec.place(draft, everything=True)


def _stamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="microseconds")


def _attached(codec: Codec, survey: Survey, context: Context) -> Iterator[Placed]:
    for address, content in context.attachments.items():
        if (ATTACHMENTS, address) not in survey.marks:
            checkpoint: Any = {
                "v": 4,
                "id": address,
                "ts": "",
                "channel_values": {"content": content},
                "channel_versions": {},
                "versions_seen": {},
                "updated_channels": None,
            }
            draft = codec.draft(
                survey.thread, ATTACHMENTS, address, None, checkpoint, cast("CheckpointMetadata", {}), {}
            )
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


def head_size(survey: Survey, head: CheckpointRow) -> int:
    """Bytes of a checkpoint's header and of the packs that its values lie in."""
    return len(head.header) + sum(use.size for use in uses(survey.outline, merge_spans(head.spans)) if use.used)
