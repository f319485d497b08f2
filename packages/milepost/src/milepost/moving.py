"""Which namespaces of a thread are called otherwise now, because nodes were renamed: what a migration moves.

LangGraph keeps a subgraph's checkpoints in a namespace made of its node's name and its task's id, which is a hash of
names. What it is now is computed from the checkpoint that made the call, and proven by the name it had.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from milepost.codec import Codec
from milepost.errors import OF_WHAT_IS_STORED
from milepost.parents import Place
from milepost.places import BEFORE, NAMED, versions_before
from milepost.schema import Schema
from milepost.schema.image import Image
from milepost.schema.schema import Where
from milepost.schema.spaces import present_name, present_space
from milepost.store import Chart, CheckpointRow, Snapshot
from milepost.upgrading import Upgrader

Read = Callable[[Snapshot, str], Awaitable[Image]]
"""A checkpoint by the names of now, as one of the namespace given."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What is to be done to the namespaces of a thread."""

    spaces: Mapping[str, str] = field(default_factory=dict)
    """Those that have another name now -> that name."""
    callers: Mapping[str, frozenset[Place]] = field(default_factory=dict)
    """For each of `spaces`, the checkpoints that made the call, above one another: they are rewritten after it has
    moved, so that what one of this version has under a former name was called from it since."""
    refused: Mapping[Place, str] = field(default_factory=dict)
    """The latest checkpoints of those of which nobody can tell -> why."""
    stuck: frozenset[str] = frozenset()
    """Those of `spaces` that stay where they are."""


class Moving:
    """Finds out what moves. For one thread; what was read once is not read again."""

    def __init__(self, codec: Codec, upgrader: Upgrader, read: Read, *, history: bool) -> None:
        self._codec = codec
        self._upgrader = upgrader
        self._read = read
        self._history = history
        self._images: dict[tuple[str, str, str, bytes], Image] = {}

    async def of(self, chart: Chart, thread: str, heads: Collection[Place]) -> Moves:
        """What moves of a thread that has these latest checkpoints.

        Without the history, it is what goes on from them: the calls that the root's latest one has made, and subgraphs
        that remember.
        """
        if not self._upgrader.renames_nodes:
            return Moves()
        rows = {(row.ns, row.id): row for row in chart.rows}
        spaces: dict[str, str] = {}
        callers: dict[str, frozenset[Place]] = {}
        refused: dict[Place, str] = {}
        passed: set[str] = set()
        for ns, id in sorted(heads):
            if not ns or ns.startswith(BEFORE):
                continue
            try:
                metadata = self._codec.header(thread, rows[ns, id]).metadata
                parents = metadata.get("parents") or {}
                if not (self._history or ":" not in ns or ("", parents.get("")) in heads):
                    continue
                lookup = _Lookup(self, thread, chart, rows, parents)
                named = metadata.get(NAMED)
                now = await lookup.present(ns, named)
                again = now != ns and named is None and lookup.goes_on(ns, now)
            except OF_WHAT_IS_STORED as exc:
                refused[ns, id] = exc.message
                continue
            if now != ns:
                spaces[ns] = now
                callers[ns] = frozenset(parents.items())
                passed |= {ns} if again else set()
        stuck = _held_up(passed, spaces, callers)
        for ns, id in heads:
            if ns in stuck:
                refused[ns, id] = (
                    f"namespace {ns!r} of thread {thread!r} is called {spaces[ns]!r} now, and names were exchanged or passed on "
                    "among the nodes of subgraphs: none of these moves. They are read where they are as long as the "
                    "rename_node is declared"
                )
        return Moves(spaces, callers, refused, stuck)

    async def image(self, snapshot: Snapshot, ns: str) -> Image:
        """`snapshot` by the names of now, as of namespace `ns`."""
        key = (snapshot.row.ns, snapshot.row.id, ns, snapshot.row.header)
        if key not in self._images:
            self._images[key] = await self._read(snapshot, ns)
        return self._images[key]

    def renames(self, thread: str, row: CheckpointRow, ns: str) -> tuple[tuple[str, str], ...]:
        """The nodes renamed since `row`, which is of namespace `ns` now, may have made calls, as (old, new)."""
        schema = self.schema(ns)
        if schema is None:
            return ()
        header = self._codec.header(thread, row)
        verdict = schema.judge(header.stamp, Where(thread, row.ns, row.id))
        return schema.renames_of_calls(versions_before(header.metadata), verdict.version)

    def schema(self, ns: str) -> Schema | None:
        """That of a namespace, by its name of now."""
        return self._upgrader.schema(ns)


def _held_up(
    passed: Collection[str], spaces: Mapping[str, str], callers: Mapping[str, frozenset[Place]]
) -> frozenset[str]:
    """The namespaces that do not move because of those whose name is `passed` on: these, what would come to where they
    are or go to, all that is within them, and what the same checkpoints have called, which stay of their version."""
    ends = spaces.keys() & set(spaces.values())
    crossing = {ns for ns, now in spaces.items() if ns in passed or ns in ends or now in ends}
    found = -1
    while found < len(crossing):
        found = len(crossing)
        held = {place for ns in crossing for place in callers[ns]}
        within = tuple(f"{ns}|" for ns in crossing)
        crossing |= {ns for ns in spaces if callers[ns] & held or ns.startswith(within)}
    return frozenset(crossing)


class _Lookup:
    def __init__(
        self,
        moving: Moving,
        thread: str,
        chart: Chart,
        rows: Mapping[Place, CheckpointRow],
        parents: Mapping[str, str],
    ) -> None:
        self._moving = moving
        self._thread = thread
        self._chart = chart
        self._rows = rows
        self._parents = parents

    async def present(self, ns: str, named: Sequence[Any] | None = None) -> str:
        """What `ns` is called now; itself where nothing proves another name. `named` is what its latest checkpoint says
        (`milepost.places.NAMED`)."""
        if not ns:
            return ns
        above, _, last = ns.rpartition("|")
        now = await self.present(above)
        start = f"{now}|" if now else ""
        if last.isdigit():
            return start + last
        schema = self._moving.schema(now)
        if named is not None and schema is not None:
            renames, meant = schema.renames_since(named[0]), named[1].rpartition("|")[2]
            if ":" not in last or not renames:
                name, mark, task = meant.partition(":")
                return f"{start}{present_name(renames, name)}{mark}{task}"
        caller = self._caller(above, now)
        if ":" not in last:
            caller = caller or self._latest(above, now)
            return start + (present_name(self._moving.renames(self._thread, caller, now), last) if caller else last)
        if caller is None:
            return await self._called(ns, above, now)
        if now == above and not self._moving.renames(self._thread, caller, now):
            return ns
        return present_space(schema, await self._image(caller, now), ns, above) or ns

    def goes_on(self, ns: str, now: str) -> bool:
        """Whether what has arrived at `now`, from `ns`, looks as if it had to go on from there: it has the former name of
        another node."""
        (above, _, _), (above_now, _, last) = ns.rpartition("|"), now.rpartition("|")
        caller = self._caller(above, above_now) or (None if ":" in last else self._latest(above, above_now))
        if caller is None:
            above, above_now = above.rpartition("|")[0], above_now.rpartition("|")[0]
            caller = self._caller(above, above_now)
        name = last.partition(":")[0]
        return caller is not None and present_name(self._moving.renames(self._thread, caller, above_now), name) != name

    async def _called(self, ns: str, caller: str, caller_now: str) -> str:
        """What `ns` is called now if a task of the functional API called it within the task `caller`, which has no
        checkpoints of its own."""
        above, now = caller.rpartition("|")[0], caller_now.rpartition("|")[0]
        row = self._caller(above, now) if caller else None
        if row is None or (caller == caller_now and not self._moving.renames(self._thread, row, now)):
            return ns
        image = await self._image(row, now)
        return present_space(self._moving.schema(now), image, ns, above, caller_now) or ns

    async def _image(self, row: CheckpointRow, now: str) -> Image:
        writes = tuple(self._chart.writes.get((row.ns, row.id), ()))
        return await self._moving.image(Snapshot(self._thread, row, writes, self._chart.generation), now)

    def _caller(self, above: str, now: str) -> CheckpointRow | None:
        """The checkpoint that made the call."""
        id = self._parents.get(above, "")
        return self._rows.get((now, id)) or self._rows.get((above, id))

    def _latest(self, above: str, now: str) -> CheckpointRow | None:
        rows = [row for row in self._chart.rows if row.ns in (above, now)]
        return max(rows, key=lambda row: row.key, default=None)
