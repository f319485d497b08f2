"""What a migration keeps of the checkpoints that it rewrites, and how that is put back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from milepost import maintenance
from milepost.codec import Codec
from milepost.errors import OF_WHAT_IS_STORED, Conflict, MilepostError
from milepost.parents import Place, ancestors, by_depth
from milepost.places import BEFORE, channel_name, kept_space, spaces_of, store_name
from milepost.schema.image import Image
from milepost.store import Batch, Chart, CheckpointRow, Snapshot, Store, WriteRow
from milepost.upgrading import delta_channels

TRIES: Final = 32
"""How often a thread is looked at anew because it was written to."""

Read = Callable[[Snapshot, str], Awaitable[Image]]
"""A checkpoint by the names of now, as one of the namespace given."""


class Former:
    """What was there before, of the threads of one store. It lies in namespaces of its own (`milepost.places.kept_space`),
    its pending writes under channels that nobody knows. `declared` says whether a namespace has a schema."""

    def __init__(self, store: Store, codec: Codec, read: Read, declared: Callable[[str], bool]) -> None:
        self._store = store
        self._codec = codec
        self._read = read
        self._declared = declared

    def keep(self, chart: Chart, snapshot: Snapshot, ns: str) -> Iterator[tuple[CheckpointRow, Sequence[WriteRow]]]:
        """What is to be kept of a checkpoint that goes to namespace `ns`, unless something older is."""
        thread, row = snapshot.thread, snapshot.row
        kept = {_now((one.ns, one.id)): one for one in chart.rows if one.ns.startswith(BEFORE) and one.id == row.id}
        older = kept.get((row.ns, row.id))
        if older is None and (ns, row.id) not in kept:
            before, waiting = self._codec.rehome(thread, snapshot, kept_space(ns, row.ns))
            yield before, [_named(write, BEFORE + channel_name(write.channel)) for write in waiting]
        elif older is not None and ns != row.ns:
            found = Snapshot(thread, older, written_to(chart, older), chart.generation)
            yield self._codec.rehome(thread, found, kept_space(ns, spaces_of(older.ns)[1]))

    async def finalise(self, thread: str, chart: Chart, *, checked: bool = False) -> int | None:
        """Remove it, and tell of how many checkpoints it was. None if `chart` was `checked`, and the thread is another by now."""
        former = {(row.ns, row.id) for row in chart.rows if row.ns.startswith(BEFORE)}
        if not former:
            return 0
        if not checked:
            await maintenance.drop_checkpoints(self._store, self._codec, thread, former)
            return len(former)
        plan = await maintenance.plan_thread(
            self._store, self._codec, thread, lambda lineage: {place for place in lineage.rows if place not in former}
        )
        if plan is None or plan.token != chart.token or not (await maintenance.carry_out(self._store, plan)).done:
            return None
        return len(former)

    async def undo(self, thread: str, only: Collection[Place] | None = None) -> tuple[int, tuple[str, ...]]:
        """Put back what was there before. A checkpoint that was written to since stays as it is, unless it is among `only`,
        and with it the namespace that it has moved to, and what is rebuilt from it. Tells how many were put back, and why
        others were not."""
        for _ in range(TRIES):
            chart = await self._store.chart(thread)
            if chart is None:
                return 0, ()
            there = {(row.ns, row.id): row for row in chart.rows}
            former = {place: _now(place) for place in there if place[0].startswith(BEFORE)}
            if only is not None:
                former = {place: now for place, now in former.items() if now in only}
            originals: dict[Place, Snapshot] = {}
            refused: dict[Place, str] = {}
            for place, now in former.items():
                if now in there:
                    try:
                        originals[now] = self._original(thread, chart, there[place])
                    except MilepostError as exc:
                        refused[now] = f"what is kept of checkpoint {now[1]!r} of thread {thread!r}: {exc.message}"
            if only is None:
                refused |= await self._touched(thread, chart, originals)
                refused |= self._resting(there, originals, refused)
            gone = {place for place, now in former.items() if now not in refused}
            rows: list[CheckpointRow] = []
            writes: list[tuple[str, str, WriteRow]] = []
            for now, original in originals.items():
                place = (original.row.ns, original.row.id)
                if now in refused:
                    continue
                if place != now:
                    # Last, for until then it is there under both names.
                    gone.add(now)
                if place == now or place not in there:
                    rows.append(original.row)
                    writes += ((*place, write) for write in original.writes)
            batch = Batch(tuple(rows), tuple(writes))
            if not rows or await self._store.rewrite(thread, batch, chart.token) is not None:
                if gone:
                    await maintenance.drop_checkpoints(self._store, self._codec, thread, gone)
                return len(originals.keys() - refused.keys()), tuple(refused.values())
        raise busy(thread)

    async def _touched(self, thread: str, chart: Chart, originals: Mapping[Place, Snapshot]) -> dict[Place, str]:
        """The checkpoints that stay as they are, because of what was written since they were rewritten."""
        refused: dict[Place, str] = {}
        for place, original in originals.items():
            try:
                since = await self._since(chart, place[0], original)
            except OF_WHAT_IS_STORED as exc:
                since = exc.message
            if since:
                refused[place] = f"checkpoint {place[1]!r} of thread {thread!r} was written to since: {since}"
        moved = {now: original.row.ns for (now, _), original in originals.items() if original.row.ns != now}
        while stay := self._staying(thread, chart, moved, originals.keys(), refused):
            refused |= stay
        return refused

    def _staying(
        self,
        thread: str,
        chart: Chart,
        moved: Mapping[str, str],
        originals: Collection[Place],
        refused: Collection[Place],
    ) -> dict[Place, str]:
        """Those in `moved` namespaces (by their names of now, with their former ones) that stay because of `refused`: a
        namespace goes back as a whole, and with the checkpoints that called it, which name its node."""
        stay: dict[Place, str] = {}
        ids = {id for _, id in refused}
        for now, origin in moved.items():
            mine = [place for place in originals if place[0] == now and place not in refused]
            rows = [row for row in chart.rows if row.ns == now] if mine else []
            if {row.id for row in rows} - {id for ns, id in originals if ns == now} or any(
                ns == now for ns, _ in refused
            ):
                why = f"namespace {now!r} of thread {thread!r}, which was {origin!r}, was written to since"
            elif any(not ids.isdisjoint(self._callers(thread, row)) for row in rows):
                why = (
                    f"namespace {now!r} of thread {thread!r}, which was {origin!r}, stays as it is, for a checkpoint that "
                    "called it does"
                )
            else:
                continue
            stay |= dict.fromkeys(mine, why)
        return stay

    def _callers(self, thread: str, row: CheckpointRow) -> Collection[str]:
        """The ids of the checkpoints that a checkpoint of a subgraph was called from."""
        with suppress(MilepostError):  # a damaged one stays by itself
            return (self._codec.header(thread, row).metadata.get("parents") or {}).values()
        return ()

    def _resting(
        self, there: Mapping[Place, CheckpointRow], originals: Mapping[Place, Snapshot], refused: Collection[Place]
    ) -> dict[Place, str]:
        """Which of `originals` cannot be put back because their delta channels are rebuilt from one of `refused`: what they
        were could not be read above what that is."""
        stay: dict[Place, str] = {}
        after = {**there, **{now: original.row for now, original in originals.items()}}
        for row in by_depth(there.values()) if refused else ():
            place = (row.ns, row.id)
            if place in originals and place not in refused:
                thread = originals[place].thread
                rest = next((one for one in self._walk(thread, after, place) if one in refused or one in stay), None)
                if rest is not None:
                    stay[place] = (
                        f"checkpoint {row.id!r} of thread {thread!r} stays as it is, for checkpoint {rest[1]!r} does, which its "
                        "delta channels are rebuilt from"
                    )
        return stay

    def _walk(self, thread: str, rows: Mapping[Place, CheckpointRow], place: Place) -> Iterator[Place]:
        """The ancestors that the delta channels of a checkpoint are rebuilt from."""
        first = self._codec.header(thread, rows[place])
        missing = delta_channels(first) - first.layouts.keys()
        for above, row in ancestors(rows, place):
            if not missing:
                break
            yield above
            with suppress(MilepostError):  # a damaged one has no value of anything
                header = self._codec.header(thread, row)
                # In another version, the names may be those of other channels.
                if header.stamp == first.stamp:
                    missing -= header.layouts.keys()

    def _original(self, thread: str, chart: Chart, row: CheckpointRow) -> Snapshot:
        """What is kept of a checkpoint, where it belongs."""
        return original(self._codec, Snapshot(thread, row, written_to(chart, row), chart.generation))

    async def _since(self, chart: Chart, now: str, original: Snapshot) -> str:
        """What was written to a checkpoint after it was rewritten, as one of namespace `now`, in words; "" for nothing."""
        row = original.row
        if now == row.ns and not self._declared(now):
            return "its namespace has no schema any more"
        image = await self._read(original, now)
        rewritten = {(write.task, write.idx) for write in image.writes}
        over = {write.task for write in image.gone}
        new = {
            channel_name(write.channel)
            for write in chart.writes.get((now, row.id), ())
            if (write.task, write.idx) not in rewritten and write.task not in over
        }
        return f"pending writes to {', '.join(map(repr, sorted(new)))}" if new else ""


def original(codec: Codec, kept: Snapshot) -> Snapshot:
    """What a migration keeps of a checkpoint, where it belongs."""
    row, waiting = codec.rehome(kept.thread, kept, spaces_of(kept.row.ns)[1])
    named = (_named(write, channel_name(write.channel).removeprefix(BEFORE)) for write in waiting)
    return Snapshot(kept.thread, row, tuple(named), kept.generation)


def busy(thread: str) -> Conflict:
    """The error for a thread that is written to all the time."""
    return Conflict(
        f"thread {thread!r} was written to {TRIES} times while it was to be migrated: try again when it is quiet",
        thread=thread,
    )


def is_kept_of(row: CheckpointRow, ns: str) -> bool:
    """Whether `row` is what was before of a checkpoint that is in `ns`."""
    return row.ns.startswith(BEFORE) and spaces_of(row.ns)[0] == ns


def written_to(chart: Chart, row: CheckpointRow) -> tuple[WriteRow, ...]:
    """The pending writes of a checkpoint."""
    return tuple(chart.writes.get((row.ns, row.id), ()))


def _now(kept: Place) -> Place:
    return spaces_of(kept[0])[0], kept[1]


def _named(write: WriteRow, channel: str) -> WriteRow:
    return write._replace(channel=store_name(channel), pack=None)
