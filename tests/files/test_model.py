"""The file store against the memory store: the same operations get the same answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from milepost.errors import ThreadDeleted
from milepost.flavour import run
from milepost.memory import MemoryBackend
from milepost.store import (
    Batch,
    Chart,
    CheckpointRow,
    Drop,
    Loaded,
    Pack,
    Query,
    Snapshot,
    Span,
    Store,
    WriteRow,
)
from milepost_files import open_backend

THREADS = ("a", "b/../c", "ü" * 50)
SPACES = ("", "node:1", "node:1|x")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """Both stores, and what a saver would remember of each."""

    def __init__(self, path: Path, seed: int, **options: Any) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.path = path
        self.options = options
        self.model: Store = MemoryBackend(self.clock).blocking()
        self.backend = open_backend(path, clock=self.clock, **options)
        self.subject: Store = self.backend.blocking()
        run(self.subject.setup())
        self.generations: dict[str, tuple[int, int]] = {}
        self.items = 0

    def reopen(self) -> None:
        self.backend.close()
        self.backend = open_backend(self.path, clock=self.clock, **self.options)
        self.subject = self.backend.blocking()

    def both(self, verb: Callable[[Store], Any]) -> tuple[Any, Any]:
        """What the verb answers on both stores; a refusal counts as an answer."""
        answers: list[Any] = []
        for store in (self.model, self.subject):
            try:
                answers.append(run(verb(store)))
            except ThreadDeleted as exc:
                answers.append(("deleted", exc.facts))
        return answers[0], answers[1]

    def call(self, verb: str, *arguments: Any) -> tuple[Any, Any]:
        return self.both(lambda store: getattr(store, verb)(*arguments))

    def step(self) -> None:
        self.clock.now += 1
        weights = {self.put: 8, self.put_writes: 6, self.drop: 2, self.delete: 0.4, self.copy: 0.4, self.reopen: 0.6}
        self.random.choices(list(weights), list(weights.values()))[0]()

    def _pack(self) -> Pack:
        first, count = self.items, self.random.randint(1, 4)
        self.items += count
        return Pack(7, first, count, self.random.randbytes(self.random.choice((0, 10, 3000)) * count))

    def _spans(self) -> tuple[Span, ...]:
        if not self.items:
            return ()
        first = self.random.randrange(self.items)
        return (Span(7, first, self.random.randint(1, min(self.items - first, 20))),)

    def _id(self) -> str:
        return f"{self.random.randrange(60):03}"

    def _generation(self, thread: str) -> tuple[int | None, int | None]:
        if self.random.random() < 0.3:
            return None, None
        return self.generations.get(thread, (None, None))

    def _remember(self, thread: str, answers: tuple[Any, Any]) -> None:
        model, subject = answers
        assert (model[0] == "deleted") == (subject[0] == "deleted")
        if model[0] == "deleted":
            assert model == subject
            return
        assert model[0] == subject[0]
        assert model[2:] == subject[2:] or model[0]
        if model[1] == -1:
            # The thread is not there; the log of a deleted one may have a generation all the same.
            self.generations.pop(thread, None)
        else:
            self.generations[thread] = model[1], subject[1]

    def put(self) -> None:
        thread, ns = self.random.choice(THREADS), self.random.choice(SPACES)
        parent = self.random.choice((None, self._id(), self._id()))
        packs = [self._pack() for _ in range(self.random.randrange(3))]
        row = CheckpointRow(
            ns=ns,
            id=self._id(),
            parent=parent,
            header=self.random.randbytes(50),
            spans=self._spans(),
            facets={"step": self.random.randrange(3), "big": 2**70, "odd": "\ud800"},
            ancestors=(self._id(),) if self.random.random() < 0.2 else (),
        )
        generations = dict(zip((self.model, self.subject), self._generation(thread), strict=True))
        self._remember(thread, self.both(lambda store: store.put(thread, row, packs, generations[store])))

    def put_writes(self) -> None:
        thread, ns, id = self.random.choice(THREADS), self.random.choice(SPACES), self._id()
        task = f"task{self.random.randrange(2)}"
        rows = [
            WriteRow(
                task=task,
                idx=self.random.randint(-3, 2),
                path=self.random.choice(("~a", "~b")),
                channel=self.random.choice(("x", "__interrupt__")),
                value=self.random.choice((b"v", b"w")),
                spans=self._spans(),
                pack=self._pack() if self.random.random() < 0.3 else None,
            )
            for _ in range(self.random.randint(1, 4))
        ]
        generations = dict(zip((self.model, self.subject), self._generation(thread), strict=True))
        self._remember(thread, self.both(lambda store: store.put_writes(thread, ns, id, rows, generations[store])))

    def drop(self) -> None:
        thread = self.random.choice(THREADS)
        model, subject = self.both(lambda store: store.chart(thread))
        assert (model is None) == (subject is None)
        if model is None:
            return
        gone = [row for row in model.rows if self.random.random() < 0.5]
        kept = [row for row in model.rows if row not in gone]
        packs = [span for span in model.packs if self.random.random() < 0.4]
        halves = [span for span in packs if span.count > 1 and self.random.random() < 0.5]
        drop = Drop(
            checkpoints=(*((row.ns, row.id) for row in gone), ("", "nowhere")),
            parents=tuple((row.ns, row.id, None) for row in kept if self.random.random() < 0.3),
            packs=tuple(packs),
            repacked=tuple(Pack(span.writer, span.first, 1, b"half") for span in halves),
        )
        tokens = {self.model: model.token, self.subject: subject.token}
        if self.random.random() < 0.2:
            self.put()
        done, same = (answer is not None for answer in self.both(lambda store: store.drop(thread, drop, tokens[store])))
        assert done == same

    def delete(self) -> None:
        thread = self.random.choice(THREADS)
        self.both(lambda store: store.delete_thread(thread))

    def copy(self) -> None:
        source, target = self.random.sample(THREADS, 2)
        parts = export_all(self.model, source)
        mine = export_all(self.subject, source)
        assert whole(parts) == whole(mine)
        self.both(lambda store: store.delete_thread(target))
        for batch in mine:
            self.call("load", target, batch)

    def compare(self) -> None:
        for thread in THREADS:
            for ns in SPACES:
                self.same_loaded("get", thread, ns, None)
                id = self._id()
                self.same_loaded("get", thread, ns, id)
                self.same_lineage(thread, ns)
            charts = self.call("chart", thread)
            assert chart(charts[0]) == chart(charts[1])
            spans = self._spans()
            fetched = self.call("fetch", thread, spans)
            assert sorted(fetched[0]) == sorted(fetched[1])
            stats = self.call("stats", thread)
            assert stats[0][:-1] == stats[1][:-1]
        before = self._id()
        for query in (
            Query(),
            Query(thread="a"),
            Query(ns="node:1"),
            Query(thread="a", ns="", before=before),
            Query(before=before),
            Query(id=before),
            Query(match=lambda header: header[0] < 128),
        ):
            assert pages(self.model, query) == pages(self.subject, query)
        rows = [sorted(every_thread(store)) for store in (self.model, self.subject)]
        assert rows[0] == rows[1]

    def same_loaded(self, verb: str, *arguments: Any) -> None:
        model, subject = self.call(verb, *arguments)
        assert plain(model) == plain(subject)

    def same_lineage(self, thread: str, ns: str) -> None:
        for channels in (None, ["x"]):
            found: list[list[Any]] = [[], []]
            for number, store in enumerate((self.model, self.subject)):
                after: tuple[str, ...] | None = None
                for _ in range(70):
                    loaded = run(store.lineage(thread, ns, None, channels, after, 3))
                    found[number].append(loaded and [normal(snapshot) for snapshot in loaded.snapshots])
                    after = loaded.cursor if loaded else None
                    if after is None:
                        break
            assert [row for part in found[0] for row in part or ()] == [row for part in found[1] for row in part or ()]


def normal(snapshot: Snapshot) -> Any:
    writes = sorted(snapshot.writes, key=lambda row: (row.task, row.idx))
    row = snapshot.row
    return snapshot.thread, row.ns, row.id, row.parent, row.key, row.at, row.header, row.spans, row.facets, writes


def plain(loaded: Loaded | None) -> Any:
    if loaded is None:
        return None
    packs = {thread: sorted(packs) for thread, packs in loaded.packs.items() if packs}
    return [normal(snapshot) for snapshot in loaded.snapshots], packs


def chart(found: Chart | None) -> Any:
    if found is None:
        return None
    rows = sorted((row.ns, row.id, row.parent, row.key, row.at, row.header, row.spans) for row in found.rows)
    writes = {place: sorted(rows, key=repr) for place, rows in found.writes.items() if rows}
    return rows, writes, sorted(found.packs)


def pages(store: Store, query: Query) -> list[Any]:
    found: list[Any] = []
    after: tuple[str, ...] | None = None
    while True:
        loaded = run(store.page(query, after, 4))
        found += [normal(snapshot) for snapshot in loaded.snapshots]
        after = loaded.cursor
        if after is None:
            return found


def every_thread(store: Store) -> list[Any]:
    found: list[Any] = []
    after: tuple[str, ...] | None = None
    while True:
        page = run(store.threads(after, 2))
        found += [(row.thread, row.head, *row[2:5], row.waiting) for row in page.rows if row.head]
        after = page.cursor
        if after is None:
            return found


def export_all(store: Store, thread: str) -> list[Batch]:
    found: list[Batch] = []
    after: tuple[str, ...] | None = None
    while (batch := run(store.export(thread, after, 7))) is not None:
        found.append(batch)
        after = batch.cursor
        if after is None:
            break
    return found


def whole(batches: Sequence[Batch]) -> Any:
    rows = sorted((row.ns, row.id, row.header, row.key, row.at) for batch in batches for row in batch.rows)
    writes = sorted((write for batch in batches for write in batch.writes), key=repr)
    return rows, writes, sorted(pack for batch in batches for pack in batch.packs)


@pytest.mark.parametrize("preallocate", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_same_operations_get_the_same_answers(tmp_path: Path, seed: int, *, preallocate: bool) -> None:
    world = World(tmp_path / "store", seed, durability="os", preallocate=preallocate, max_open=2)
    for number in range(160):
        world.step()
        if number % 12 == 11:
            world.compare()
    world.reopen()
    world.compare()
    world.backend.close()
