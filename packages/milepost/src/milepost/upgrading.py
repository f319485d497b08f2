"""Checkpoints of other schema versions, upgraded in memory while they are read. What is stored stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import PendingWrite, writes_sort_key
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from milepost.codec import Codec, Header
from milepost.codec.layout import Kept, Layout, is_snapshot
from milepost.codec.shelf import Shelf
from milepost.errors import MilepostError, SchemaMismatch
from milepost.places import COUNTERS, channel_name, versions_before
from milepost.schema.carry import gathered
from milepost.schema.changes import PLUMBING, Change, NotDeclared, add
from milepost.schema.image import (
    BRANCH,
    CONTROL,
    INTERRUPT,
    JOIN,
    NO_WRITES,
    RESUME,
    SOURCE,
    START,
    TASKS,
    Image,
    Write,
)
from milepost.schema.questions import Below, Ids, merged, question_ids
from milepost.schema.schema import REFUSED, Midway, Schema, Step, Verdict, Where, classes_of, current_name, settled
from milepost.schema.schemas import Schemas
from milepost.schema.sends import sealed, steps_below, unseal
from milepost.schema.spaces import Read, names_of, respaced
from milepost.schema.stamps import decode
from milepost.store import CheckpointRow, Snapshot, WriteRow

_AS_IT_IS: Final = Verdict(0)

Stays = Callable[[Verdict, str], bool]
"""Whether a channel's value, or a write to it, is not decoded but `Kept`."""


def _none_stay(*_: object) -> bool:
    return False


Tell = Callable[[str, str], None]
"""Called with a thread and how what it holds differs from the schema."""


class Found(NamedTuple):
    """One write, before its value is read."""

    row: WriteRow
    channel: str
    layout: Layout
    verdict: Verdict
    stamp: bytes | None


class _Source(NamedTuple):
    """What values come from: a checkpoint, or a pending write."""

    ns: str
    """Of now."""
    where: Where
    verdict: Verdict
    stamp: bytes | None


class Seed(NamedTuple):
    """Where the value of a delta channel lies, and what it is stored as."""

    layout: Layout
    verdict: Verdict
    channel: str
    where: Where


class Upgrader:
    """How one saver reads the namespaces that have a schema."""

    def __init__(self, codec: Codec, schemas: Schemas, tell: Tell) -> None:
        self._codec = codec
        self._schemas = schemas
        self._tell = tell
        self._told: set[tuple[Schema, bytes]] = set()
        self._views: dict[tuple[Step, ...], Codec] = {}

    def schema(self, ns: str) -> Schema | None:
        """That of a namespace, or None."""
        return self._schemas.of(ns)

    @property
    def nested(self) -> bool:
        """Whether any subgraph has a schema."""
        return self._schemas.nested

    def below(self, ns: str, node: str) -> Schema | None:
        """That of the subgraph in a node, or None."""
        return self._schemas.below(ns, node)

    def stamp(self, ns: str, values: Mapping[str, Any]) -> bytes | None:
        """See `milepost.schema.schemas.Schemas.stamp`."""
        return self._schemas.stamp(ns, values)

    def write_stamp(self, ns: str, writes: Iterable[tuple[str, Any]]) -> bytes | None:
        """See `milepost.schema.schemas.Schemas.write_stamp`."""
        return self._schemas.write_stamp(ns, writes)

    @property
    def renames_nodes(self) -> bool:
        """Whether any schema gives a node another name."""
        return self._schemas.renames_nodes

    @property
    def frees(self) -> bool:
        """Whether any schema has a free function of the state."""
        return self._schemas.frees

    async def question_ids(self, image: Image, below: Below) -> dict[tuple[str, int], Ids]:
        """See `milepost.schema.questions.question_ids`. Raises `SchemaMismatch`."""
        if not self.renames_nodes or all(write.channel != INTERRUPT for write in image.writes):
            return {}
        try:
            return await question_ids(self._schemas, image, below)
        except NotDeclared as exc:
            raise self._mismatch(image, f"waits for answers, and {exc}") from exc

    async def every_question_id(self, image: Image, below: Below) -> dict[str, str]:
        """The ids of all questions that wait. Raises `SchemaMismatch` for one that two of them have or had."""
        ids = merged(self._schemas, (await self.question_ids(image, below)).values())
        for id, now in ids.items():
            if now is None:
                raise self._mismatch(
                    image,
                    f"waits for answers, and the id {id!r} is that of one question now and was that of another one, for "
                    "nodes have exchanged names or passed them on: answer by the ids that get_state gives",
                )
        return {id: now for id, now in ids.items() if now is not None}

    def _mismatch(self, image: Image, why: str) -> SchemaMismatch:
        return SchemaMismatch(
            f"{Where(image.thread, image.ns, image.id)} {why}. Nothing was changed.",
            thread=image.thread,
            ns=image.ns,
            checkpoint=image.id,
            schema=", ".join(schema.name for schema in self._schemas.by_ns.values()),
            found=image.version,
            expected=max(schema.version for schema in self._schemas.by_ns.values()),
        )

    def counts(self, ns: str) -> bool:
        """Whether a namespace is looked at: those with a schema, or all if there is none at all."""
        return not self._schemas.by_ns or self._schemas.of(ns) is not None

    def check(self, schema: Schema, thread: str, row: CheckpointRow) -> None:
        """Raise what reading a checkpoint does if it has another shape and `schema` refuses that. Values are not read."""
        if schema.drift == "refuse":
            where, header = Where(thread, row.ns, row.id), self._codec.header(thread, row)
            self._check_drift(schema, schema.judge(header.stamp, where), where, header)

    def read(
        self,
        schema: Schema,
        snapshot: Snapshot,
        header: Header,
        shelf: Shelf,
        names: Sequence[str] = (),
        *,
        past: Mapping[str, Any] | None,
        keep: bool = False,
        waiting: bool = True,
    ) -> tuple[Image, bool]:
        """A checkpoint with its writes in LangGraph's order, and whether its values are others than what is stored. With
        `keep`, values that no change speaks of are `Kept`.

        `names` are what releases call its namespace, the oldest first. `past` is what `milepost.rebuilding` finds; None
        where the writes alone are wanted. Without `waiting`, it may wait for a node that the schema does not have. Raises
        `SchemaMismatch`, and what decoding raises.
        """
        thread, row = snapshot.thread, snapshot.row
        where = Where(thread, row.ns, row.id)
        verdict = schema.judge(header.stamp, where)
        self._check_drift(schema, verdict, where, header)
        located = list(self.located(schema, snapshot, where))
        # What a task has sent tells which one it is, so that the writes of every version have to do with it.
        several = _changes(verdict, *(found.verdict for found in located))
        stays = partial(self._stays, several) if keep else _none_stay
        ns = names[-1] if names else row.ns
        source = _Source(ns, where, verdict, header.stamp)
        checkpoint = {**header.checkpoint, "channel_values": self._values(source, header, shelf, stays)}
        was = versions_before(header.metadata)
        image = Image(thread, row.ns, row.id, checkpoint, header.metadata, version=verdict.version, was=was)
        writes: dict[int, list[Write]] = {}
        for found in located:
            write, version = found.row, found.verdict.version
            kept = stays(found.verdict, found.channel)
            # Of what goes unread, the task's output is left: that it had one.
            channel = NO_WRITES if _unread(found.verdict, found.channel) else found.channel
            value = Kept(found.layout) if kept else self.value(where, found, shelf, ns)
            writes.setdefault(version, []).append(Write(write.task, write.idx, write.path, channel, value, version))
        changed = bool(verdict.steps) or any(version != verdict.version for version in writes)
        if changed:
            # Containers of the header's are changed in place below.
            image.checkpoint = {**copy.deepcopy(header.checkpoint), "channel_values": checkpoint["channel_values"]}
            image.metadata = dict(header.metadata)
            schema.upgrade(image, verdict, writes, names, past=past)
            if image.gone:
                # LangGraph passes over those of tasks that it does not know, and has whatever goes on from here begin with
                # snapshots of the channels; what the former release has put above has taken them up.
                deltas = self.deltas(schema, thread, (row,))
                image.writes += settled(write for write in image.gone if write.channel in deltas)
                image.gone = [write for write in image.gone if write.channel not in deltas]
            freed = schema.frees and past is not None and schema.midway(verdict) is not None
            for name, channel in schema.deltas.items():
                if freed and name not in image.values:
                    # Whatever its ancestors have of it, it begins here.
                    add(image, name, channel.from_checkpoint(None).get())
                if name in image.values and type(image.values[name]) not in (_DeltaSnapshot, Kept):
                    # In LangGraph's form, which those who go on from here are known to leave out.
                    image.values[name] = _DeltaSnapshot(image.values[name])
        else:
            image.writes = settled(gathered(image, [write for some in writes.values() for write in some], names))
        resent = unseal(self._schemas, ns, image, stamped=True)
        if waiting:
            schema.check_nodes(image)
        image.writes.sort(key=lambda write: writes_sort_key(write.path, write.task, write.idx))
        return image, changed or resent

    def plain(
        self, snapshot: Snapshot, header: Header, shelf: Shelf, names: Sequence[str] = (), *, keep: bool = False
    ) -> Image:
        """A checkpoint with its writes as they are, in LangGraph's order. `names` and `keep` are as for `read`."""
        thread, row, codec = snapshot.thread, snapshot.row, self._codec
        image = Image(thread, row.ns, row.id, {**header.checkpoint}, header.metadata)
        stays = partial(self._stays, ()) if keep else _none_stay
        source = _Source(names[-1] if names else row.ns, Where(thread, row.ns, row.id), _AS_IT_IS, None)
        image.checkpoint["channel_values"] = self._values(source, header, shelf, stays)
        for write in snapshot.writes:
            layout, stamp = codec.write_layout(thread, row.ns, row.id, write)
            channel = channel_name(write.channel)
            kept = stays(_AS_IT_IS, channel)
            value = Kept(layout) if kept else self._value(source, channel, layout, shelf)
            image.writes.append(Write(write.task, write.idx, write.path, channel, value, stamp=stamp))
        image.writes = settled(gathered(image, image.writes, names))
        unseal(self._schemas, source.ns, image, stamped=False)
        image.writes.sort(key=lambda write: writes_sort_key(write.path, write.task, write.idx))
        return image

    async def called(self, ns: str, read: Read) -> Sequence[str]:
        """What releases call the namespace `ns`, the oldest first."""
        return (await names_of(self._schemas, ns, read)).by_age(ns)

    def respaced(self, image: Image, ns: str) -> Image:
        """See `milepost.schema.spaces.respaced`. Raises `SchemaMismatch`."""
        try:
            return respaced(image, ns)
        except NotDeclared as exc:
            raise self._mismatch(image, f"cannot be read as one of {ns!r}, as that is called now: {exc}") from exc

    def located(self, schema: Schema, snapshot: Snapshot, where: Where) -> Iterable[Found]:
        """The pending writes of a checkpoint, with what their stamps mean."""
        for row in snapshot.writes:
            layout, stamp = self._codec.write_layout(snapshot.thread, where.ns, where.id, row)
            if schema.takes_up(stamp, where):
                yield Found(row, channel_name(row.channel), layout, schema.judge(stamp, where), stamp)

    def value(self, where: Where, found: Found, shelf: Shelf, ns: str | None = None) -> Any:
        """The value of a write as it is stored; None where an upgrade drops it unread. `ns` is the namespace of now."""
        if _unread(found.verdict, found.channel):
            return None
        source = _Source(where.ns if ns is None else ns, where, found.verdict, found.stamp)
        return self._value(source, found.channel, found.layout, shelf)

    def names(self, schema: Schema, channels: Iterable[str]) -> set[str] | None:
        """Every name under which delta channels may be stored; None where a free function may give any write to them."""
        return None if schema.frees else {former for channel in channels for former in schema.former_names(channel)}

    def replayed(
        self, schema: Schema, snapshot: Snapshot, shelf: Shelf, sought: Collection[str]
    ) -> Iterator[PendingWrite]:
        """The writes of an ancestor to the channels `sought`, as they are now, last first."""
        where = Where(snapshot.thread, snapshot.row.ns, snapshot.row.id)
        for found in sorted(self.located(schema, snapshot, where), key=_order, reverse=True):
            freed = schema.frees and schema.midway(found.verdict) is not None and not found.channel.startswith(PLUMBING)
            if freed or current_name(found.verdict, found.channel) in sought:
                value = self.value(where, found, shelf)
                updates = schema.history_writes(found.verdict, found.channel, value, where)
                for channel, new in reversed(updates):
                    if channel in sought:
                        yield found.row.task, channel, new

    def lying(self, schema: Schema, where: Where, header: Header) -> dict[str, Layout]:
        """Where the values of a checkpoint lie that no change speaks of, by the names of now."""
        verdict = schema.judge(header.stamp, where)
        changes = _changes(verdict)
        return {
            name: layout
            for channel, layout in header.layouts.items()
            if not channel.startswith(PLUMBING)
            and untouched(changes, channel)
            and (name := current_name(verdict, channel)) is not None
            and not _becomes_delta(schema, name, layout)
        }

    def made(
        self, schema: Schema, thread: str, row: CheckpointRow, header: Header, sought: Collection[str]
    ) -> set[str]:
        """Which of `sought` have at a checkpoint the value that an upgrade gives them, and not one that lies there."""
        verdict = schema.judge(header.stamp, Where(thread, row.ns, row.id))
        there, made = {*header.layouts}, set[str]()
        for change in _changes(verdict):
            if change.whole:
                return set(sought)
            there, made = _renamed(change, there), _renamed(change, made)
            made.update(name for name in change.adds if name not in there)
        return made & {*sought}

    def wanting(
        self, schema: Schema, thread: str, row: CheckpointRow, header: Header
    ) -> tuple[Midway, Mapping[str, Any]] | None:
        """The delta channels that a free function has to see and that have no value at a checkpoint: what rebuilds them, by
        the names that it knows, and the schema that they are rebuilt by. None where there are none.

        Raises `SchemaMismatch` where nothing says how to rebuild one.
        """
        if not schema.frees:
            return None
        where = Where(thread, row.ns, row.id)
        verdict = schema.judge(header.stamp, where)
        midway = schema.midway(verdict)
        deltas = delta_channels(header) if midway is not None else ()
        if midway is None or not deltas:
            return None
        then = midway.judge(header.stamp, where)
        stored = {name: one for one in sorted(deltas) if (name := current_name(then, one)) is not None}
        there = self.seeds(midway, thread, row, header).keys() | self.made(midway, thread, row, header, stored)
        table = b"" if header.stamp is None else decode(header.stamp).table
        channels = {name: midway.channel(name, table, one) for name, one in stored.items() if name not in there}
        if unknown := [name for name, channel in channels.items() if channel is None]:
            raise schema.refusal(
                where,
                verdict.version,
                REFUSED,
                f"the free function of map_state has to see the delta channels {', '.join(map(repr, unknown))}, and nothing says "
                "by which reducer they are rebuilt as they were: pass deltas={…: DeltaChannel(reducer, type)}",
            )
        return (midway, channels) if channels else None

    def deltas(self, schema: Schema, thread: str, rows: Iterable[CheckpointRow]) -> set[str]:
        """The delta channels that any of `rows` has, or that the state declares, by their names of now."""
        found = {*schema.deltas}
        for row in rows:
            with suppress(MilepostError):  # one that nobody can read tells nothing
                header = self._codec.header(thread, row)
                verdict = schema.judge(header.stamp, Where(thread, row.ns, row.id))
                found |= {name for one in delta_channels(header) if (name := current_name(verdict, one)) is not None}
        return found

    def unsettled(self, thread: str, row: CheckpointRow) -> set[str]:
        """The delta channels of a checkpoint, by their names of now, that are rebuilt from its ancestors."""
        schema, header = self.schema(row.ns), self._codec.header(thread, row)
        verdict = schema.judge(header.stamp, Where(thread, row.ns, row.id)) if schema else _AS_IT_IS
        deltas = {now for name in delta_channels(header) if (now := current_name(verdict, name)) is not None}
        return deltas - self.settled(thread, row, deltas)

    def settled(self, thread: str, row: CheckpointRow, sought: Collection[str]) -> set[str]:
        """Which of `sought` have a value at a checkpoint."""
        schema, header = self.schema(row.ns), self._codec.header(thread, row)
        if schema is None:
            return {*header.layouts} & {*sought}
        return {*self.seeds(schema, thread, row, header)} | self.made(schema, thread, row, header, sought)

    def seeds(self, schema: Schema, thread: str, row: CheckpointRow, header: Header) -> Mapping[str, Seed]:
        """Where the values of a checkpoint lie, by the names of now."""
        where = Where(thread, row.ns, row.id)
        verdict = schema.judge(header.stamp, where)
        named = ((current_name(verdict, channel), channel, layout) for channel, layout in header.layouts.items())
        return {name: Seed(layout, verdict, channel, where) for name, channel, layout in named if name is not None}

    def seed(self, schema: Schema, seed: Seed, shelf: Shelf) -> Any:
        """The value that a delta channel is rebuilt from, as it is now."""
        value = self._view(seed.verdict.steps).value(seed.where.thread, seed.channel, seed.layout, shelf)
        return schema.history_seed(seed.verdict, seed.channel, value, seed.where)

    def _values(self, source: _Source, header: Header, shelf: Shelf, stays: Stays) -> dict[str, Any]:
        schema = self._schemas.of(source.ns)
        return {
            channel: Kept(layout)
            if stays(source.verdict, channel)
            and not _becomes_delta(schema, current_name(source.verdict, channel), layout)
            else self._value(source, channel, layout, shelf)
            for channel, layout in header.layouts.items()
            if not _unread(source.verdict, channel)
        }

    def _value(self, source: _Source, channel: str, layout: Layout, shelf: Shelf) -> Any:
        """As it is stored; what is sent to subgraphs is sealed."""
        ns, where, verdict, stamp = source
        steps = verdict.steps
        if channel != TASKS or not self._schemas.nested:
            return self._view(steps).value(where.thread, channel, layout, shelf)
        below = {} if stamp is None else decode(stamp).below
        view = self._view((*steps, *steps_below(self._schemas, ns, steps, below, where)))
        return sealed(self._schemas, ns, view.value(where.thread, channel, layout, shelf), steps, below)

    def _stays(self, several: Sequence[Change], verdict: Verdict, channel: str) -> bool:
        """Whether no change speaks of the value of a channel, or of a write to it. `several` are all changes to the
        checkpoint and its writes."""
        if channel.startswith((BRANCH, JOIN)) or channel == SOURCE:
            return False
        changes = _changes(verdict)
        if any(change.classes for change in changes):
            return False
        if channel == TASKS and self._schemas.lists_nodes:
            return False
        if channel in (START, TASKS, INTERRUPT):
            # These hold names of nodes and channels, or ids that are made of such.
            return not (self.renames_nodes or self._schemas.nested) and all(change.adds for change in several)
        if channel in CONTROL:
            # Of several releases' answers, the most count.
            return channel != RESUME or not self.renames_nodes
        return untouched(changes, channel)

    def _view(self, steps: tuple[Step, ...]) -> Codec:
        if not steps:
            return self._codec
        view = self._views.get(steps)
        if view is None:
            classes = classes_of(Verdict(0, steps))
            view = self._views[steps] = self._codec.renaming(classes) if classes else self._codec
        return view

    def _check_drift(self, schema: Schema, verdict: Verdict, where: Where, header: Header) -> None:
        if verdict.table is None:
            return
        if schema.drift == "warn" and (schema, verdict.table) in self._told:
            return
        stored = header.checkpoint.get("channel_versions") or {}
        text = (
            f"the state of schema {schema.name!r}, version {schema.version}, has another shape than what {where} was "
            f"stored with: {schema.drifted(verdict, stored)}"
        )
        if schema.drift == "refuse":
            raise SchemaMismatch(
                f"{text}. Give the new shape a version of its own, with an upgrade.",
                thread=where.thread,
                ns=where.ns,
                checkpoint=where.id,
                schema=schema.name,
                found=schema.version,
                expected=schema.version,
            )
        self._told.add((schema, verdict.table))
        self._tell(where.thread, text)


def delta_channels(header: Header) -> set[str]:
    """The delta channels that a checkpoint has anything of, or its ancestors have."""
    versions: Collection[str] = header.checkpoint.get("channel_versions") or ()
    counted: Collection[str] = header.metadata.get(COUNTERS) or ()
    return {name for name in counted if name in versions} | {
        name for name, layout in header.layouts.items() if is_snapshot(layout)
    }


def _becomes_delta(schema: Schema | None, channel: str | None, layout: Layout) -> bool:
    """Whether a delta channel's value is still that of a plain key. `channel` is its name of now."""
    return schema is not None and channel in schema.deltas and not is_snapshot(layout)


def _renamed(change: Change, names: Iterable[str]) -> set[str]:
    return {now for name in names if (now := change.channel(name)) is not None}


def untouched(changes: Iterable[Change], channel: str) -> bool:
    """Whether `changes` leave what a channel holds as it is, under whatever name."""
    name: str | None = channel
    for change in changes:
        whole = change.whole and not channel.startswith(PLUMBING)
        if name is None or whole or change.classes or name in change.maps:
            return False
        name = change.channel(name)
    return name is not None


def _changes(*verdicts: Verdict) -> list[Change]:
    return [change for verdict in verdicts for step in verdict.steps for change in step.changes]


def _order(found: Found) -> tuple[str, str, int]:
    return writes_sort_key(found.row.path, found.row.task, found.row.idx)


def _unread(verdict: Verdict, channel: str) -> bool:
    """Whether the upgrade drops a channel without looking at its value, which may be of a class that is gone."""
    return (
        bool(verdict.steps)
        and not any(change.whole for step in verdict.steps for change in step.changes)
        and current_name(verdict, channel) is None
    )
