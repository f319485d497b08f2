"""Delta channels out of a store: what they are rebuilt from, and their values where an upgrade has to see these."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from langgraph.checkpoint.base import DeltaChannelHistory

from milepost.codec import Codec, Header
from milepost.codec.codec import of_checkpoint
from milepost.collector import unhurried
from milepost.errors import Conflict, Corrupt, MilepostError, SchemaMismatch
from milepost.former import original
from milepost.history import Walk
from milepost.places import Place, kept_space
from milepost.schema import Schema
from milepost.schema.changes import NotDeclared
from milepost.schema.schema import REFUSED, Midway, Where
from milepost.store import Loaded, Snapshot, Store
from milepost.upgrading import Upgrader

PAGE = 64
"""Ancestors fetched at a time, at first; at most four times as many."""

TRIES = 8
"""How often something is read that changes meanwhile."""

T = TypeVar("T")


class Moved(Conflict):
    """A checkpoint was rewritten, or has gone, while its ancestors were read. It is looked for anew."""


async def again(read: Callable[[], Awaitable[T]]) -> T:
    """What `read` gives, which is tried anew while it is `Moved`; for ever it is not."""
    for _ in range(TRIES - 1):
        with suppress(Moved):
            return await read()
    return await read()


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """Reads along the parents of a namespace. Everything is as `schema` has it, where one is given."""

    store: Store
    codec: Codec
    upgrader: Upgrader | None
    schema: Schema | None
    thread: str
    ns: str
    """As it is called now."""
    space: str
    """As it is called in the store."""

    async def history(
        self, id: str | None, channels: Sequence[str], *, known: bool = False
    ) -> Mapping[str, DeltaChannelHistory]:
        """For each channel, what was written before checkpoint `id` (None: the latest), oldest first, since the value that
        it begins with; that is the ``seed``, if there is one. Raises `Corrupt`, what upgrading raises, and `Moved` if it goes
        meanwhile, or is `known` to have been there."""
        if not channels:
            return {}
        place = Place(self.thread, self.space, id)
        walk = Walk(self.codec, self.upgrader, self.schema, place, channels)
        names, after, limit = walk.names, None, PAGE
        while not walk.over:
            loaded = await self.store.lineage(self.thread, self.space, id, names, after, limit)
            limit = min(2 * limit, 4 * PAGE)  # a snapshot is mostly near; who has none goes a long way
            if loaded is None:
                if known or after is not None:
                    raise self._gone(id)
                break
            loaded = await self._then(loaded)
            with unhurried(len(loaded.snapshots)):
                further = walk.take(loaded)
            if not further:
                break
            after = loaded.cursor
        spans = walk.spans()
        packs = await self.store.fetch(self.thread, spans) if spans else ()
        return walk.result(packs, {made: await self._values(made) for made in walk.made})

    async def past(self, snapshot: Snapshot, header: Header, stored: bytes | None = None) -> Mapping[str, Any]:
        """The delta channels that a free function on the way of a checkpoint has to see, by their names there, where the
        checkpoint itself has no value of them. `stored` is its header in the store, where that is another one. Raises
        `SchemaMismatch` if they cannot be rebuilt, `Corrupt`, and `Moved` if it is not what it was any more."""
        if self.upgrader is None or self.schema is None:
            return {}
        row = snapshot.row
        wanted = self.upgrader.wanting(self.schema, self.thread, row, header)
        if wanted is None:
            return {}
        midway, channels = wanted
        try:
            history = await replace(self, schema=midway).history(row.id, list(channels), known=True)
            return {name: _replayed(name, channel, history[name]) for name, channel in channels.items()}
        except (SchemaMismatch, Corrupt, NotDeclared) as exc:
            # A migration rewrites a checkpoint before what it is rebuilt from.
            loaded = await self.store.get(self.thread, self.space, row.id)
            if loaded is None or loaded.snapshots[0].row.header != (stored or row.header):
                raise self._gone(row.id) from exc
            if isinstance(exc, Corrupt):
                raise
            raise self.schema.refusal(
                Where(self.thread, row.ns, row.id),
                midway.version,
                REFUSED,
                f"the free function of map_state cannot be given the delta channels {', '.join(map(repr, channels))}, for {exc}",
            ) from exc

    def _gone(self, id: str | None) -> Moved:
        return Moved(
            f"checkpoint {id!r} of thread {self.thread!r} was rewritten or removed while it was read: read it again",
            thread=self.thread,
        )

    async def _then(self, loaded: Loaded) -> Loaded:
        """Ancestors as they were in the version that they are looked at in, of those that a migration has rewritten since: a
        run of the older release may have gone on from them meanwhile."""
        schema, snapshots = self.schema, list[Snapshot]()
        packs = {*loaded.packs.get(self.thread, ())}
        if not isinstance(schema, Midway):
            return loaded
        for snapshot in loaded.snapshots:
            where = Where(self.thread, snapshot.row.ns, snapshot.row.id)
            then = snapshot
            if not schema.takes_up(self.codec.header(self.thread, snapshot.row).stamp, where):
                kept = await self.store.get(self.thread, kept_space(self.space, self.space), snapshot.row.id)
                if kept is not None:
                    then = original(self.codec, kept.snapshots[0])
                    # What it was written since is of the older release too, or does not count.
                    there = {(write.task, write.idx) for write in then.writes}
                    since = (write for write in snapshot.writes if (write.task, write.idx) not in there)
                    then = then._replace(writes=(*then.writes, *since))
                    packs.update(kept.packs.get(self.thread, ()))
            snapshots.append(then)
        return replace(loaded, snapshots=tuple(snapshots), packs={self.thread: sorted(packs)})

    async def _values(self, id: str) -> Mapping[str, Any]:
        """What the channels of an ancestor hold."""
        loaded = await self.store.get(self.thread, self.space, id)
        if loaded is None or self.upgrader is None or self.schema is None:
            raise self._gone(id)
        stored = loaded.snapshots[0].row.header
        loaded = await self._then(loaded)
        # What was written to it is not asked for.
        snapshot = loaded.snapshots[0]._replace(writes=())
        header = self.codec.header(self.thread, snapshot.row)
        past = await self.past(snapshot, header, stored)
        shelf = self.codec.shelf(self.thread, loaded.packs.get(self.thread, ()))
        try:
            image, _ = self.upgrader.read(self.schema, snapshot, header, shelf, (self.ns,), past=past, waiting=False)
        except MilepostError as exc:
            raise of_checkpoint(exc, self.thread, snapshot.row) from exc
        return image.values


def _replayed(name: str, channel: Any, history: DeltaChannelHistory) -> Any:
    """What LangGraph would make of it. Raises `NotDeclared` where the reducer raises."""
    try:
        rebuilt = channel.from_checkpoint(history.get("seed"))
        rebuilt.replay_writes(history["writes"])
        return rebuilt.get()
    except Exception as exc:
        raise NotDeclared(f"the reducer of {name!r} raised {exc!r}") from exc
