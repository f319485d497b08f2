"""The history of delta channels: what was written to them since the values that they are rebuilt from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from langgraph.checkpoint.base import DeltaChannelHistory, PendingWrite, writes_sort_key

from milepost.codec import Codec
from milepost.codec.layout import Layout, spans_of
from milepost.errors import Corrupt
from milepost.places import Place, channel_name, store_name
from milepost.schema import Schema
from milepost.store import Loaded, Pack, Snapshot, Span, WriteRow, merge_spans
from milepost.upgrading import Seed, Upgrader


class Walk:
    """From a checkpoint up its ancestors, until each of `channels` has met the value that it is rebuilt from, its seed.

    The store's pages come in by `take`, and the packs that the seeds lie in by `result`, with the values of the
    checkpoints `made` where an upgrade makes a seed. Everything is as `schema` has it, where one is given.
    """

    def __init__(
        self, codec: Codec, upgrader: Upgrader | None, schema: Schema | None, place: Place, channels: Sequence[str]
    ) -> None:
        self._codec = codec
        self._place = place
        self._upgrade: tuple[Upgrader, Schema] | None = (upgrader, schema) if upgrader and schema else None
        self._writes: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        self._seeds: dict[str, Layout | Seed] = {}
        self._made: dict[str, str] = {}
        """Channel -> the checkpoint at which an upgrade makes its seed."""
        self._sought: set[str] = set(channels)
        """Those that have neither a seed nor one that an upgrade makes."""
        self._walked: set[str] = set()

    @property
    def names(self) -> list[str] | None:
        """What the store may have the channels under; None for whatever there is."""
        channels = self._writes
        names = self._upgrade[0].names(self._upgrade[1], channels) if self._upgrade else channels
        return None if names is None else [*map(store_name, names)]

    @property
    def over(self) -> bool:
        """Whether every channel has its seed."""
        return not self._sought

    @property
    def made(self) -> Sequence[str]:
        """The checkpoints whose values, as they are read now, have seeds that lie nowhere."""
        return list(dict.fromkeys(self._made.values()))

    def take(self, loaded: Loaded) -> bool:
        """Add what a page of ancestors has. False when nothing further up is wanted, or there: its last one has no parent, or
        the parents are a cycle. Raises `Corrupt` for a page with damage: rebuilt without what is lost, a channel would
        silently be another one."""
        place = self._place
        if loaded.damage:
            raise Corrupt(
                f"the history of {sorted(self._writes)} in thread {place.thread!r} is damaged: {loaded.damage[0]}",
                thread=place.thread,
                ns=place.ns,
                checkpoint=place.id,
                damage=loaded.damage[0],
            )
        shelf = self._codec.shelf(place.thread, loaded.packs.get(place.thread, ()))
        further = loaded.cursor is not None
        replayed: list[tuple[Snapshot, WriteRow]] = []
        for snapshot in loaded.snapshots:
            # What lies beyond is not looked at: it may be of a version that nobody knows any more.
            if self.over or snapshot.row.id in self._walked:
                further = False
                break
            self._walked.add(snapshot.row.id)
            # The writes to a checkpoint come after its value.
            if self._upgrade is None:
                replayed += self._replayed(snapshot)
            else:
                upgrader, schema = self._upgrade
                for write in upgrader.replayed(schema, snapshot, shelf, self._sought):
                    self._writes[write[1]].append(write)
            layouts, made = self._found(snapshot)
            if made:
                self._made |= dict.fromkeys(made, snapshot.row.id)
                self._sought.difference_update(made)
            if layouts and (found := self._sought & layouts.keys()):
                self._seeds |= {channel: layouts[channel] for channel in found}
                self._sought -= found
        values = self._codec.write_values(replayed, shelf) if replayed else ()
        for (_, row), value in zip(replayed, values, strict=True):
            channel = channel_name(row.channel)
            self._writes[channel].append((row.task, channel, value))
        return further

    def _found(self, snapshot: Snapshot) -> tuple[Mapping[str, Layout | Seed], Collection[str]]:
        """Where the values of an ancestor lie, and those that an upgrade makes."""
        thread, row, sought = snapshot.thread, snapshot.row, self._sought
        if self._upgrade is None:
            return self._codec.layouts(thread, row, sought), ()
        upgrader, schema = self._upgrade
        header = self._codec.header(thread, row)
        return upgrader.seeds(schema, thread, row, header), upgrader.made(schema, thread, row, header, sought)

    def _replayed(self, snapshot: Snapshot) -> Iterable[tuple[Snapshot, WriteRow]]:
        """The writes of an ancestor to the channels that are sought, last first."""
        writes = snapshot.writes
        ordered = sorted(writes, key=write_order, reverse=True) if len(writes) > 1 else writes
        return [(snapshot, write) for write in ordered if channel_name(write.channel) in self._sought]

    def spans(self) -> tuple[Span, ...]:
        """Where the seeds lie."""
        lying = [seed.layout if isinstance(seed, Seed) else seed for seed in self._seeds.values()]
        return merge_spans(span for layout in lying for span in spans_of(layout))

    def result(
        self, packs: Sequence[Pack], values: Mapping[str, Mapping[str, Any]]
    ) -> Mapping[str, DeltaChannelHistory]:
        """For each channel its writes, oldest first, and the value of its seed if it has one; `packs` cover `spans`, and
        `values` are those of the checkpoints `made`."""
        shelf = self._codec.shelf(self._place.thread, packs)
        result: dict[str, DeltaChannelHistory] = {}
        for channel, replayed in self._writes.items():
            result[channel] = {"writes": replayed[::-1]}
            found = values.get(self._made.get(channel, ""), {})
            if channel in found:
                result[channel]["seed"] = found[channel]
            seed = self._seeds.get(channel)
            if isinstance(seed, Seed):
                assert self._upgrade is not None
                upgrader, schema = self._upgrade
                result[channel]["seed"] = upgrader.seed(schema, seed, shelf)
            elif seed is not None:
                result[channel]["seed"] = self._codec.value(self._place.thread, channel, seed, shelf)
        return result


def write_order(write: WriteRow) -> tuple[str, str, int]:
    """LangGraph's order of pending writes, as a key to sort by."""
    return writes_sort_key(write.path, write.task, write.idx)
