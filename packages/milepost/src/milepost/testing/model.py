"""The contract of a saver as a dictionary: what must come back, without a word on how it is stored."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key

from milepost.store import sort_key

Place = tuple[str, str]
"""(namespace, checkpoint id)."""


class Refused(Exception):  # it says what the saver has to say
    """The saver has to refuse this: `ThreadDeleted`, or `Conflict` for a copy. The model is as it was."""


@dataclass
class ModelRow:
    """One checkpoint."""

    parent: str | None
    key: str
    values: dict[str, Any]
    versions: dict[str, Any]
    metadata: dict[str, Any]


@dataclass
class ModelThread:
    """One thread. `dead` are the checkpoint ids it had before it was deleted."""

    rows: dict[Place, ModelRow] = field(default_factory=dict)
    writes: dict[Place, dict[tuple[str, int], tuple[str, str, Any]]] = field(default_factory=dict)
    """Place -> (task, index) -> (path, channel, value)."""
    dead: set[str] = field(default_factory=set)

    def order(self, ns: str | None = None) -> list[Place]:
        """Checkpoints, newest first; of all namespaces with None."""
        found = [place for place in self.rows if ns is None or place[0] == ns]
        return sorted(found, key=lambda place: (self.rows[place].key, place[0]), reverse=True)

    def head(self, ns: str) -> str | None:
        """The id of the latest checkpoint of a namespace."""
        order = self.order(ns)
        return order[0][1] if order else None

    def pending(self, place: Place) -> list[tuple[str, str, Any]]:
        """Pending writes as a `CheckpointTuple` has them."""
        rows = [(path, task, idx, channel, value) for (task, idx), (path, channel, value) in self._held(place)]
        rows.sort(key=lambda row: writes_sort_key(*row[:3]))
        return [(task, channel, value) for _, task, _, channel, value in rows]

    def _held(self, place: Place) -> list[tuple[tuple[str, int], tuple[str, str, Any]]]:
        return list(self.writes.get(place, {}).items())

    def refuse(self, ids: Collection[str | None]) -> None:
        """Raise `Refused` if any of `ids` is of the deleted past."""
        alive = {id for _, id in self.rows}
        if any(id in self.dead and id not in alive for id in ids):
            raise Refused


class Model:
    """Threads by id."""

    def __init__(self) -> None:
        self.threads: dict[str, ModelThread] = {}

    def thread(self, name: str) -> ModelThread:
        """The thread, made when it is not there."""
        return self.threads.setdefault(name, ModelThread())

    def put(
        self,
        name: str,
        place: Place,
        parent: str | None,
        values: Mapping[str, Any],
        versions: Mapping[str, Any],
        metadata: Mapping[str, Any],
    ) -> None:
        thread = self.thread(name)
        thread.refuse([parent, place[1]])
        above = thread.rows.get((place[0], parent)) if parent is not None else None
        old = thread.rows.get(place)
        key = old.key if old else sort_key(place[1], above.key if above else parent)
        kept = copy.deepcopy((dict(values), dict(versions), dict(metadata)))
        thread.rows[place] = ModelRow(parent, key, *kept)

    def put_writes(self, name: str, place: Place, writes: Sequence[tuple[str, Any]], task: str, path: str) -> None:
        thread = self.thread(name)
        thread.refuse([place[1]])
        held = thread.writes.setdefault(place, {})
        for at, (channel, value) in enumerate(writes):
            idx = WRITES_IDX_MAP.get(channel, at)
            if idx < 0 or (task, idx) not in held:
                held[task, idx] = (path, channel, copy.deepcopy(value))

    def delete_thread(self, name: str) -> None:
        thread = self.thread(name)
        thread.dead |= {id for _, id in (*thread.rows, *thread.writes)}
        thread.rows, thread.writes = {}, {}

    def keep(self, name: str, kept: Collection[Place]) -> None:
        """Drop every other checkpoint, with its writes; give children to the nearest ancestor that stays."""
        thread = self.thread(name)
        parents = {place: self._parent(thread, place, kept) for place in kept}
        for place in list(thread.rows):
            if place in kept:
                thread.rows[place].parent = parents[place]
            else:
                del thread.rows[place]
                thread.writes.pop(place, None)

    def _parent(self, thread: ModelThread, place: Place, kept: Collection[Place]) -> str | None:
        ns, row = place[0], thread.rows[place]
        if row.parent is None or (ns, row.parent) not in thread.rows:
            return row.parent
        for ancestor in self._ancestors(thread, place):
            if (ns, ancestor) in kept:
                return ancestor
        return None

    def _ancestors(self, thread: ModelThread, place: Place) -> Iterator[str]:
        seen = {place[1]}
        parent = thread.rows[place].parent
        while parent is not None and parent not in seen and (place[0], parent) in thread.rows:
            yield parent
            seen.add(parent)
            parent = thread.rows[place[0], parent].parent

    def prune(self, name: str) -> None:
        thread = self.thread(name)
        heads = {(ns, thread.head(ns) or "") for ns in {ns for ns, _ in thread.rows}}
        self.keep(name, heads)

    def delete_run(self, run: str) -> None:
        for name, thread in self.threads.items():
            self.keep(name, {place for place, row in thread.rows.items() if row.metadata.get("run_id") != run})

    def copy(self, source: str, target: str) -> None:
        one = self.thread(source)
        if not one.rows and not one.writes:
            return
        other = self.thread(target)
        if other.rows.keys() - one.rows.keys():
            raise Refused
        other.dead = set()
        other.rows |= copy.deepcopy(one.rows)
        for place, writes in copy.deepcopy(one.writes).items():
            held = other.writes.setdefault(place, {})
            for (task, idx), write in writes.items():
                if idx < 0 or (task, idx) not in held:
                    held[task, idx] = write

    def history(self, name: str, ns: str, channel: str) -> dict[str, Any]:
        """`get_delta_channel_history` of the latest checkpoint, for one channel."""
        thread = self.thread(name)
        head = thread.head(ns)
        writes: list[Any] = []
        for ancestor in () if head is None else self._ancestors(thread, (ns, head)):
            place = (ns, ancestor)
            writes = [write for write in thread.pending(place) if write[1] == channel] + writes
            if channel in thread.rows[place].values:
                return {"writes": writes, "seed": thread.rows[place].values[channel]}
        return {"writes": writes}
