"""A store that was written by the first release of format 1 stays readable, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

from files.states import opened
from milepost.errors import ThreadDeleted
from milepost.flavour import run
from milepost.store import CheckpointRow, Drop, Pack, Span, Store, WriteRow
from milepost_files import frames

GOLDEN = Path(__file__).parent / "golden" / "1"


def make(path: Path) -> None:
    """How the golden store was made: every kind of record. Its files were written once and are kept."""
    backend, store = opened(path, clock=lambda: 1_700_000_000.25)
    fill(store, "all of it")
    chart = run(store.chart("all of it"))
    assert chart is not None
    drop = Drop(
        checkpoints=(("", "1"),),
        parents=(("", "2", None),),
        packs=(Span(7, 0, 2),),
        repacked=(Pack(7, 1, 1, b"item 1"),),
    )
    assert run(store.drop("all of it", drop, chart.token))
    fill(store, "deleted/../ü")
    run(store.delete_thread("deleted/../ü"))
    fill(store, "revived")
    batch = run(store.export("revived", None, 100))
    assert batch is not None
    run(store.delete_thread("revived"))
    run(store.load("revived", batch))
    backend.close()


def fill(store: Store, thread: str) -> None:
    first = CheckpointRow(ns="", id="1", parent=None, header=b"one", spans=(Span(7, 0, 2),), facets={"step": -1})
    run(store.put(thread, first, [Pack(7, 0, 2, b"items 0 and 1")], None))
    rows = [
        WriteRow("task", 0, "~path", "channel", b"value", (Span(7, 2, 1),), Pack(7, 2, 1, b"item 2")),
        WriteRow("task", -3, "~path", "__interrupt__", b"why", ()),
    ]
    run(store.put_writes(thread, "", "2", rows, None))
    huge: dict[str, str | int | float | bool] = {"step": 0, "big": 2**70, "odd": "\ud800", "float": 0.5, "yes": True}
    run(store.put(thread, CheckpointRow("", "2", "1", b"two" * 200, (Span(7, 1, 2),), huge), [], None))
    run(store.put(thread, CheckpointRow("node:1", "0", "2", b"late"), [], None))
    run(store.put(thread, CheckpointRow("", "0", "2", b"clock behind"), [], None))


def test_the_golden_store_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(GOLDEN, path)
    _, store = opened(path, clock=lambda: 1_700_000_100.0)  # while what the deletion left behind counts
    page = run(store.threads(None, 10))
    assert sorted((row.thread, row.head, row.checkpoints, row.writes, row.waiting) for row in page.rows) == [
        ("all of it", "0", 3, 2, False),
        ("revived", "0", 4, 2, False),
    ]
    loaded = run(store.get("all of it", "", "2"))
    assert loaded is not None
    assert loaded.damage == ()
    (snapshot,) = loaded.snapshots
    assert snapshot.row == CheckpointRow(
        ns="",
        id="2",
        parent=None,
        header=b"two" * 200,
        spans=(Span(7, 1, 2),),
        facets={"step": 0, "big": 2**70, "odd": "\ud800", "float": 0.5, "yes": True},
        key="2",
        at=1_700_000_000.25,
    )
    assert sorted(loaded.packs["all of it"]) == [Pack(7, 1, 1, b"item 1"), Pack(7, 2, 1, b"item 2")]
    assert sorted((row.idx, row.channel, row.path, row.value, row.spans) for row in snapshot.writes) == [
        (-3, "__interrupt__", "~path", b"why", ()),
        (0, "channel", "~path", b"value", (Span(7, 2, 1),)),
    ]
    head = run(store.get("all of it", "", None))
    assert head is not None
    assert (head.snapshots[0].row.key, head.snapshots[0].row.header) == ("2\x010", b"clock behind")
    for thread in ("deleted/../ü", "all of it"):
        assert run(store.get(thread, "", "1")) is None
    try:
        run(store.put("deleted/../ü", CheckpointRow("", "3", "2", b""), [], None))
        refused = False
    except ThreadDeleted:
        refused = True
    assert refused


def test_the_golden_store_has_every_kind_of_record() -> None:
    kinds: set[int] = set()
    for log in GOLDEN.glob("threads/*/*.log"):
        data = log.read_bytes()
        while data:
            head = frames.parse_head(data)
            assert head is not None
            parsed = frames.parse_manifest(head, data[frames.HEADER.size :][: head.manifest])
            assert parsed is not None
            kinds |= {record[0] for record in parsed[1]}
            data = data[head.length :]
    assert kinds == set(range(7))


def test_the_same_operations_still_write_the_same_records(tmp_path: Path) -> None:
    make(tmp_path / "store")
    for log in GOLDEN.glob("threads/*/*.log"):
        again = tmp_path / "store" / log.relative_to(GOLDEN)
        assert manifests(again.read_bytes()) == manifests(log.read_bytes())


def manifests(data: bytes) -> list[object]:
    found: list[object] = []
    while data:
        head = frames.parse_head(data)
        assert head is not None
        parsed = frames.parse_manifest(head, data[frames.HEADER.size :][: head.manifest])
        assert parsed is not None
        found.append([[*record[:1], *record[2:]] if record[0] == frames.DROP else record for record in parsed[1]])
        data = data[head.length :]
    return found
