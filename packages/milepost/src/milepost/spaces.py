"""Which namespace of a store LangGraph means, where nodes were renamed: see `milepost.schema.spaces`.

A migration copies a namespace to its name of now, and then removes it under the former one. As long as it is there under
both, the former one counts; what removes it raises the thread's generation, which every write to it depends on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from milepost.codec import Codec
from milepost.errors import SchemaMismatch
from milepost.places import NAMED, versions_before
from milepost.schema import Schema, Schemas
from milepost.schema.schema import Where
from milepost.schema.schemas import call_of, may_lie_elsewhere
from milepost.schema.spaces import Read, names_of, present_name
from milepost.store import Snapshot, Store

_KNOWN: Final = 1 << 14


class Known(NamedTuple):
    """Where a namespace is kept."""

    space: str
    generation: int
    """Of the thread, when that was found out. Where `space` is a former name, a later one may not hold any more: a
    migration gives namespaces their names of now."""
    names: Sequence[str] = ()
    """What releases call it, the oldest first."""


class Spaces:
    """What was found out. LangGraph reads a namespace before it writes there, so that writing only has to look here."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._known: dict[tuple[str, str], Known] = {}

    def known(self, thread: str, ns: str) -> str:
        """Where `ns` is kept, as far as is known: there, or under a former name."""
        found = self._known.get((thread, ns))
        return ns if found is None else found.space

    def knows(self, thread: str, ns: str) -> bool:
        """Whether anything is known of `ns`: it may be another one by now."""
        return (thread, ns) in self._known

    def names(self, thread: str, ns: str) -> Sequence[str]:
        """What releases call `ns`, as far as is known, the oldest first."""
        found = self._known.get((thread, ns))
        return () if found is None else found.names

    def named(self, ns: str) -> tuple[int, str] | None:
        """What a checkpoint of `ns` has to say for itself (`milepost.places.NAMED`); None if its name tells."""
        parent, name = call_of(ns)
        schema = self._schemas.of(parent) if ns else None
        return None if schema is None or name not in schema.renamed else (schema.version, ns)

    def generation(self, thread: str, ns: str, placed: int | None) -> int | None:
        """The generation that a write to `ns` depends on, if its addresses are of generation `placed`."""
        found = self._known.get((thread, ns))
        if found is None or found.space == ns:
            return placed
        # The thread is at one of them at most: with the older one, the store will say so.
        return found.generation if placed is None else min(found.generation, placed)

    def forget_one(self, thread: str, ns: str) -> None:
        """Where `ns` is kept may be elsewhere now: the thread has changed as a whole."""
        self._known.pop((thread, ns), None)

    async def look_again(self, store: Store, thread: str, ns: str) -> None:
        """`forget_one`, unless it is kept under a former name and is there still: as long as it is, that one counts. Who asks
        now may not know the call that it was found by."""
        found = self._known.get((thread, ns))
        if found is None or found.space == ns or await store.get(thread, found.space, None) is None:
            self.forget_one(thread, ns)

    def forget(self, thread: str) -> None:
        """The thread is gone."""
        for place in [place for place in tuple(self._known) if place[0] == thread]:
            self._known.pop(place, None)

    async def find(self, store: Store, codec: Codec, thread: str, ns: str, read: Read) -> str:
        """Where `ns` is kept. Looks into the store, unless that is known. Raises `SchemaMismatch` if what another node has
        stored lies there."""
        if (thread, ns) in self._known or not may_lie_elsewhere(self._schemas, ns):
            return self.known(thread, ns)
        here = await store.get(thread, ns, None)
        (parent, name), owner = call_of(ns), ""
        if here is not None:
            owner = await self._node(store, codec, parent, name, here.snapshots[0])
        names = await names_of(self._schemas, ns, read)
        for space in names.former:
            there = await store.get(thread, space, None)
            if there is None or await self._node(store, codec, parent, name, there.snapshots[0]) != name:
                continue
            other = owner not in ("", name)
            if here is None or other or await _counts(store, there.snapshots[0], here.snapshots[0]):
                return self._settle(thread, ns, Known(space, there.snapshots[0].generation, names.by_age(ns)))
        if here is not None and owner != name:
            raise _taken(thread, ns, here.snapshots[0].row.id, owner, self._schemas.of(parent))
        return self._settle(thread, ns, Known(ns, -1, names.by_age(ns)))

    async def _node(self, store: Store, codec: Codec, parent: str, meant: str, snapshot: Snapshot) -> str:
        """The name of now of the node that stored the latest checkpoint of a namespace; `parent` is that of the call, by
        the names of now, and `meant` the node that this is about."""
        thread, row = snapshot.thread, snapshot.row
        above, name = call_of(row.ns)
        schema = self._schemas.of(parent)
        if schema is None or name not in schema.renamed:
            # It lies elsewhere because of what is above it, or what was renamed are tasks of the functional API.
            return meant
        metadata = codec.header(thread, row).metadata
        if named := metadata.get(NAMED):
            version, ns = named
            return present_name(schema.renames_since(version), call_of(ns)[1])
        id = (metadata.get("parents") or {}).get(above)
        for space in dict.fromkeys((parent, above)) if id else ():
            if (found := await store.get(thread, space, id)) is not None:
                caller = found.snapshots[0].row
                header = codec.header(thread, caller)
                verdict = schema.judge(header.stamp, Where(thread, space, caller.id))
                # Who called it after a migration and knew of its renames would have said so.
                was = versions_before(header.metadata)
                return present_name(schema.renames_of_calls(was, verdict.version), name)
        # Who knew of the renames would have said so.
        return present_name(schema.node_chains[0], name)

    def _settle(self, thread: str, ns: str, found: Known) -> str:
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[thread, ns] = found
        return found.space


def _taken(thread: str, ns: str, id: str, owner: str, schema: Schema | None) -> SchemaMismatch:
    version = schema.version if schema else 0
    return SchemaMismatch(
        f"namespace {ns!r} of thread {thread!r} holds what node {owner!r} has stored under its former name, and another node "
        f"has that name now. Nothing was changed: migrate the thread first (`Saver.migrate`), which moves that to {owner!r}; "
        "or give the new node another name.",
        thread=thread,
        ns=ns,
        checkpoint=id,
        schema=schema.name if schema else "",
        found=None,
        expected=version,
    )


async def _counts(store: Store, there: Snapshot, here: Snapshot) -> bool:
    """Whether what lies under the former name `there` is not a namespace of another node that has this name now."""
    if ":" in there.row.ns.rpartition("|")[2]:
        return there.row.key >= here.row.key
    return await store.get(there.thread, there.row.ns, here.row.id) is not None
