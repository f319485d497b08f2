"""Logs that were cut short or damaged: the newest whole checkpoint is there, and writers go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import milepost
import pytest
from files.kit import log_of, newest_whole, whole
from files.states import chain, content, name, opened, put, writes
from milepost.errors import Corrupt
from milepost.flavour import run
from milepost.observe import Event
from milepost.store import CheckpointRow, Loaded, Pack, Query, Span, Store
from milepost.testing.chain import at, checkpoint
from milepost_files import frames
from milepost_files.frames import HEADER

LENGTH = 4


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "store"
    backend, store = opened(path, durability="os")
    chain(store, "t", LENGTH)
    backend.close()
    return path


def frames_of(data: bytes) -> list[tuple[int, int]]:
    """(offset, length) of each frame."""
    found: list[tuple[int, int]] = []
    offset = 0
    while offset < len(data):
        head = frames.parse_head(data[offset:])
        assert head is not None
        found.append((offset, head.length))
        offset += head.length
    return found


def test_a_log_cut_at_any_byte(tmp_path: Path, pristine: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(pristine, path)
    log = log_of(path)
    data = log.read_bytes()
    ends = [offset + length for offset, length in frames_of(data)][1:]
    for size in range(len(data)):
        log.write_bytes(data[:size])
        backend, store = opened(path, durability="os")
        intact = sum(end <= size for end in ends) - 1
        assert newest_whole(store, "t") == intact, size
        put(store, "t", intact + 1, name(intact) if intact >= 0 else None)
        assert newest_whole(store, "t") == intact + 1, size
        backend.close()
        backend, store = opened(path, durability="os")
        assert newest_whole(store, "t") == intact + 1, size
        loaded = run(store.get("t", "", None))
        assert loaded is not None
        assert loaded.damage == ()
        backend.close()
    assert len(list(log.parent.glob("*.torn-*"))) == 4


def test_what_is_cut_off_is_kept_aside(tmp_path: Path, pristine: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(pristine, path)
    log = log_of(path)
    data = log.read_bytes()
    last, _ = frames_of(data)[-1]
    log.write_bytes(data[:-3])
    _, store = opened(path)
    put(store, "t", LENGTH - 1, name(LENGTH - 2))
    (kept,) = log.parent.glob("*.torn-*")
    assert kept.read_bytes() == data[last:-3]
    run(store.delete_thread("t"))
    assert [file.suffix for file in log.parent.iterdir()] == [".log"]


@pytest.mark.parametrize("room", [False, True])
@pytest.mark.parametrize("length", [HEADER.size, 1 << 20])
def test_any_frame_begins_with_zeros_and_what_follows_is_there(
    tmp_path: Path, pristine: Path, length: int, *, room: bool
) -> None:
    """Zeros are the end of a log only where nothing comes after them; what a writer cuts off is kept aside."""
    path = tmp_path / "store"
    shutil.copytree(pristine, path)
    log = log_of(path)
    data = log.read_bytes()
    for number, (offset, size) in enumerate(frames_of(data)):
        damaged = bytearray(data)
        damaged[offset : offset + min(length, size)] = bytes(min(length, size))
        log.write_bytes(damaged + bytes(5000 if room else 0))
        hit = number - 1
        last = hit == LENGTH - 1
        backend, store = opened(path, durability="os", preallocate=room)
        loaded = run(store.get("t", "", None))
        assert loaded is not None
        assert loaded.snapshots[0].row.id == name(LENGTH - 2 if last else LENGTH - 1)
        assert loaded.damage or (last and length >= size)
        for other in range(LENGTH):
            try:
                found = run(store.get("t", "", name(other)))
            except Corrupt:
                assert other == hit
            else:
                # The last frame, wholly zeros, cannot be told from room for a frame.
                assert found is not None or (last and other == hit and length >= size), (number, other)
                assert other != hit or found is None
        put(store, "t", LENGTH + 1, name(LENGTH - 1))
        backend.close()
        backend, store = opened(path, durability="os", preallocate=room)
        kept = {row.row.id for row in run(store.page(Query(thread="t"), None, 100)).snapshots}
        assert kept == {name(other) for other in (*range(LENGTH), LENGTH + 1) if other != hit}
        backend.close()


@pytest.mark.parametrize("mask", [0x01, 0xFF])
def test_any_byte_flipped(tmp_path: Path, pristine: Path, mask: int) -> None:
    path = tmp_path / "store"
    shutil.copytree(pristine, path)
    log = log_of(path)
    data = log.read_bytes()
    places = frames_of(data)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= mask
        log.write_bytes(damaged)
        hit = next(number for number, (offset, length) in enumerate(places) if offset <= place < offset + length)
        backend, store = opened(path, durability="os")
        loaded = run(store.get("t", "", None))
        assert loaded is not None, place
        assert loaded.damage, place
        sound: list[int] = []
        for number in range(LENGTH):
            try:
                found = run(store.get("t", "", name(number)))
            except Corrupt:
                assert number == hit - 1, place
            else:
                assert found is not None, place
                if whole(found):
                    sound.append(number)
        assert sound[: hit - 1 if hit else LENGTH] == list(range(hit - 1 if hit else LENGTH)), place
        assert newest_whole(store, "t") == max(sound, default=-1), place
        head = loaded.snapshots[0].row.id
        row = CheckpointRow(ns="", id="000009", parent=head, header=b"new", spans=(Span(2, 0, 1),))
        run(store.put("t", row, [Pack(2, 0, 1, content(9))], None))
        backend.close()
        backend, store = opened(path, durability="os")
        loaded = run(store.get("t", "", None))
        assert loaded is not None, place
        assert loaded.snapshots[0].row.header == b"new", place
        assert [pack.data for pack in loaded.packs["t"]] == [content(9)], place
        assert [row.thread for row in run(store.threads(None, 9)).rows] == ["t"], place
        backend.close()


def test_damage_under_a_snapshot_is_met_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "store"
    backend, store = opened(path, durability="os")
    chain(store, "t", 300)
    run(store.put_writes("t", "", name(299), writes("a", "one", "two"), None))
    backend.close()
    log = log_of(path)
    assert log.with_suffix(".idx").exists()
    data = bytearray(log.read_bytes())
    data[data.index(b"header 200") + 3] ^= 0xFF
    log.write_bytes(data)
    _, store = opened(path)
    loaded = run(store.get("t", "", name(200)))
    assert loaded is not None
    assert loaded.damage
    assert not whole(loaded)
    assert newest_whole(store, "t") == 299


def test_half_of_the_writes_of_a_task_never_pass_for_all(tmp_path: Path) -> None:
    path = tmp_path / "store"
    backend, store = opened(path)
    chain(store, "t", 1)
    run(store.put_writes("t", "", name(0), writes("a", "first value", "second value"), None))
    run(store.put_writes("t", "", name(0), writes("b", "third value", "fourth value"), None))
    backend.close()
    log = log_of(path)
    data = bytearray(log.read_bytes())
    data[data.index(b"second value")] ^= 0xFF
    log.write_bytes(data)
    _, store = opened(path)
    loaded = run(store.get("t", "", None))
    assert loaded is not None
    assert {(row.task, row.value) for row in loaded.snapshots[0].writes} == {
        ("b", b"third value"),
        ("b", b"fourth value"),
    }
    assert "task 'a'" in loaded.damage[0]
    again = run(store.put_writes("t", "", name(0), writes("a", "first value", "second value"), None))
    assert again.accepted == (True, True)


def test_a_frame_inside_a_value_is_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "store"
    backend, store = opened(path)
    put(store, "t", 0, None)
    planted = frames.encode(1, 0.0, [[frames.CHECKPOINT, "", "999999", None, None, 0.0, 0]], []).data
    run(store.put("t", CheckpointRow(ns="", id="000001", parent="000000", header=planted), [], None))
    backend.close()
    log = log_of(path)
    data = bytearray(log.read_bytes())
    offset, _ = frames_of(bytes(data))[-1]
    data[offset + 5] ^= 0xFF
    log.write_bytes(data)
    _, store = opened(path)
    loaded = run(store.get("t", "", None))
    assert loaded is not None
    assert loaded.snapshots[0].row.id == name(0)


def test_a_log_without_a_single_frame_is_not_an_absent_thread(tmp_path: Path) -> None:
    path = tmp_path / "store"
    backend, store = opened(path)
    chain(store, "t", 2)
    backend.close()
    log = log_of(path)
    log.write_bytes(bytes(byte ^ 0x55 for byte in log.read_bytes()))
    _, store = opened(path)
    with pytest.raises(Corrupt, match="nothing of thread 't'"):
        run(store.get("t", "", None))
    put(store, "t", 0, None)
    assert newest_whole(store, "t") == 0


def test_zeros_after_the_last_frame_are_its_end(tmp_path: Path, pristine: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(pristine, path)
    log = log_of(path)
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + bytes(1000))
    _, store = opened(path)
    loaded = run(store.get("t", "", None))
    assert loaded is not None
    assert whole(loaded)
    assert loaded.damage == ()
    put(store, "t", LENGTH, name(LENGTH - 1))
    assert log.read_bytes()[size : size + HEADER.size] != bytes(HEADER.size)
    assert newest_whole(store, "t") == LENGTH


@pytest.mark.parametrize("seen", ["read", "written"])
@pytest.mark.parametrize("then", ["put", "read"])
@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("zeros", [0, 1000])
def test_a_log_that_gets_shorter_under_who_has_it_open(
    tmp_path: Path, pristine: Path, seen: str, then: str, kept: int, zeros: int
) -> None:
    """As where an older copy is restored over it: what was cut off is not believed in any more."""
    path = tmp_path / "store"
    shutil.copytree(pristine, path)
    log = log_of(path)
    cut = frames_of(log.read_bytes())[kept][0]
    with log.open("ab") as file:
        file.write(bytes(zeros))
    _, store = opened(path)
    if seen == "read":
        assert newest_whole(store, "t") == LENGTH - 1
    else:
        put(store, "t", LENGTH, name(LENGTH - 1))
    with log.open("rb+") as file:
        file.truncate(cut)
    last = max(kept - 2, -1)  # the first frame names the thread
    if then == "read":
        assert newest_whole(store, "t") == last
    put(store, "t", last + 1, name(last) if last >= 0 else None)
    assert newest_whole(store, "t") == last + 1
    _, other = opened(path)
    loaded = run(other.get("t", "", None))
    assert loaded is not None
    assert whole(loaded)
    assert loaded.damage == ()
    assert newest_whole(other, "t") == last + 1


@pytest.mark.parametrize("then", ["put", "read"])
def test_an_older_copy_of_a_preallocated_log_restored_under_who_has_it_open(tmp_path: Path, then: str) -> None:
    """It has the same size."""
    _, store = opened(tmp_path, preallocate=True)
    chain(store, "t", 3)
    copy = log_of(tmp_path).read_bytes()
    for number in range(3, 6):
        put(store, "t", number, name(number - 1))
    log = log_of(tmp_path)
    assert log.stat().st_size == len(copy)
    with log.open("rb+") as file:
        file.write(copy)
    if then == "read":
        assert newest_whole(store, "t") == 2
    put(store, "t", 3, name(2))
    assert newest_whole(store, "t") == 3
    _, other = opened(tmp_path)
    loaded = run(other.get("t", "", None))
    assert loaded is not None
    assert loaded.damage == ()
    assert newest_whole(other, "t") == 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of a chain of ten checkpoints, each with a write to channel x."""
    backend, store = opened(tmp_path, durability="os")
    for number in range(10):
        put(store, "t", number, name(number - 1) if number else None)
        run(store.put_writes("t", "", name(number), writes("a", f"written at {number}"), None))
    backend.close()
    return tmp_path


def hit(path: Path, what: bytes, *, manifest: bool = False) -> None:
    """Damage the only place that says `what`, or the manifest of the frame it is in."""
    log = log_of(path)
    data = bytearray(log.read_bytes())
    assert data.count(what) == 1
    place = data.index(what)
    if manifest:
        place = next(start for start, length in frames_of(bytes(data)) if start <= place < start + length) + HEADER.size
    data[place] ^= 0x01
    log.write_bytes(data)


def walked(store: Store, id: str, *, limit: int = 64, channels: tuple[str, ...] = ("x",)) -> list[Loaded]:
    pages: list[Loaded] = []
    after: tuple[str, ...] | None = None
    while True:
        page = run(store.lineage("t", "", id, channels, after, limit))
        assert page is not None
        pages.append(page)
        if (after := page.cursor) is None:
            return pages


def test_a_checkpoint_that_may_be_lost_is_not_said_to_be_absent(path: Path) -> None:
    assert run(opened(path)[1].get("t", "", name(77))) is None
    hit(path, b"header 5 ", manifest=True)
    _, store = opened(path)
    with pytest.raises(Corrupt, match="may be among what is lost") as caught:
        run(store.get("t", "", name(5)))
    assert (caught.value.thread, caught.value.checkpoint) == ("t", name(5))
    with pytest.raises(Corrupt, match="may be among what is lost"):
        run(store.lineage("t", "", name(5), None, None, 9))
    latest = run(store.get("t", "", None))
    assert latest is not None
    assert latest.snapshots[0].row.id == name(9)
    assert "has lost its manifest" in latest.damage[0]
    assert run(store.get("t", "", name(4))) is not None


def test_a_checkpoint_without_its_damaged_writes_is_not_handed_out_by_its_id(path: Path) -> None:
    hit(path, b"written at 9")
    hit(path, b"written at 5")
    _, store = opened(path)
    with pytest.raises(Corrupt, match="task 'a' at checkpoint '000005'") as caught:
        run(store.get("t", "", name(5)))
    assert caught.value.checkpoint == name(5)
    for _ in range(2):
        latest = run(store.get("t", "", None))
        assert latest is not None
        assert latest.snapshots[0].writes == ()
        assert any("task 'a' at checkpoint '000009'" in words for words in latest.damage)
    run(store.put_writes("t", "", name(5), writes("a", "written at 5"), None))
    again = run(store.get("t", "", name(5)))
    assert again is not None
    assert [row.value for row in again.snapshots[0].writes] == [b"written at 5"]


def test_a_thread_whose_root_is_lost_does_not_begin_again(tmp_path: Path) -> None:
    backend, store = opened(tmp_path)
    put(store, "t", 0, None)
    run(store.put("t", CheckpointRow(ns="inner", id="1", parent=None, header=b"sound"), [], None))
    backend.close()
    hit(tmp_path, b"header 0 ", manifest=True)
    _, store = opened(tmp_path)
    with pytest.raises(Corrupt, match="nothing of thread 't'"):
        run(store.get("t", "", None))
    assert run(store.get("t", "inner", None)) is not None
    assert run(store.get("t", "another", None)) is None


def test_a_lineage_says_where_it_is_damaged_and_not_before(path: Path) -> None:
    hit(path, b"written at 4")
    _, store = opened(path)
    pages = walked(store, name(9))
    assert [[snapshot.row.id for snapshot in page.snapshots] for page in pages] == [
        [name(number) for number in (8, 7, 6, 5)],
        [name(4)],
        [name(number) for number in (3, 2, 1, 0)],
    ]
    assert [len(page.damage) for page in pages] == [0, 1, 0]
    assert "task 'a' at checkpoint '000004'" in pages[1].damage[0]
    assert [page.damage for page in walked(store, name(9), channels=("y",))] == [()]
    assert [page.damage for page in walked(store, name(3))] == [()]


def test_a_lineage_that_ends_at_what_may_be_lost_says_so(path: Path) -> None:
    hit(path, b"header 4 ", manifest=True)
    _, store = opened(path)
    pages = walked(store, name(9))
    assert [[snapshot.row.id for snapshot in page.snapshots] for page in pages[:2]] == [
        [name(number) for number in (8, 7, 6)],
        [name(5)],
    ]
    assert [len(page.damage) for page in pages] == [0, 1, 1]
    assert pages[2].snapshots == ()
    assert "'000004' is not found" in pages[2].damage[0]


@pytest.mark.parametrize("again", [False, True])
def test_a_lineage_doubts_what_a_lost_frame_may_have_held(path: Path, *, again: bool) -> None:
    """The frame is the write at 6. It might as well be one at 7, or at any before: but not at 8, as 7 came later."""
    hit(path, b"written at 6", manifest=True)
    _, store = opened(path)
    if again:
        for number in (7, 6):
            put(store, "t", number, name(number - 1))
    pages = walked(store, name(9))
    assert [snapshot.row.id for snapshot in pages[0].snapshots] == [name(8)]
    assert [bool(page.damage) for page in pages] == [False, *[True] * 8]
    assert run(store.get("t", "", name(6))) is not None


def test_a_pruned_lineage_of_a_sound_log_ends_quietly(path: Path) -> None:
    _, store = opened(path)
    run(store.put("t", CheckpointRow(ns="", id="000099", parent="never stored", header=b""), [], None))
    (page,) = walked(store, "000099")
    assert (page.snapshots, page.damage) == ((), ())


def test_damage_is_told_once_and_in_few_words(tmp_path: Path) -> None:
    backend, store = opened(tmp_path, durability="os")
    chain(store, "t", 200)
    backend.close()
    log = log_of(tmp_path)
    data = bytearray(log.read_bytes())
    for number in range(100):
        data[data.index(f"header {number} ".encode())] ^= 0x01
    log.write_bytes(data)
    log.with_suffix(".idx").unlink(missing_ok=True)
    _, store = opened(tmp_path)
    loaded = run(store.get("t", "", None))
    assert loaded is not None
    assert len(loaded.damage) == 65
    assert loaded.damage[-1] == "36 more places of the log are damaged"
    for again in (run(store.get("t", "", None)), run(store.page(Query(thread="t", ns="x"), None, 9))):
        assert again is not None
        assert again.damage == ()


def test_a_damaged_pack_takes_the_place_of_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    backend, store = opened(path, durability="os")
    packs = [Pack(7, number, 1, b"item %d" % number) for number in (1, 2, 3)]
    merged = Pack(7, 1, 3, b"all the three")
    row = CheckpointRow("", "1", None, b"header", (Span(7, 1, 3),))
    generation = run(store.put("t", row, packs, None)).generation
    run(store.put("t", row, (), generation, merged=merged))
    assert run(store.fetch("t", [Span(7, 2, 1)])) == [merged]
    backend.close()
    log = log_of(path)
    log.write_bytes(log.read_bytes().replace(merged.data, b"all the thref"))
    for snapshot in path.rglob("*.idx"):
        snapshot.unlink()
    backend, store = opened(path, durability="os")
    assert sorted(run(store.fetch("t", [Span(7, 1, 3)]))) == packs
    backend.close()


def test_the_log_of_another_thread(tmp_path: Path) -> None:
    path = tmp_path / "store"
    backend, store = opened(path)
    chain(store, "t", 1)
    log = log_of(path)
    chain(store, "u", 2)
    backend.close()
    (other,) = {*path.glob("threads/*/*.log")} - {log}
    for left in path.glob("threads/*/*.idx"):
        left.unlink()
    shutil.copy(other, log)
    backend, store = opened(path)
    acts: list[Any] = [lambda: store.get("t", "", None), lambda: store.page(Query("t"), None, 5)]
    for act in acts:
        with pytest.raises(Corrupt, match="not that of thread 't'"):
            run(act())
    with pytest.raises(Corrupt):
        put(store, "t", 5, name(0))
    assert log.read_bytes() == other.read_bytes()
    assert newest_whole(store, "u") == 1
    run(store.delete_thread("u"))
    backend.close()


def test_a_saver_tells_a_damaged_checkpoint_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with milepost.connect(f"file:{path}?durability=os") as saver:
        parent = None
        for id in ("1", "2"):
            saver.put(at("t", "", parent), checkpoint(id, {}), {"source": "loop", "step": 0, "parents": {}}, {})
            parent = id
    log = log_of(path)
    data = bytearray(log.read_bytes())
    data[-8] ^= 0xFF
    log.write_bytes(data)
    for index in path.glob("threads/*/*.idx"):
        index.unlink()
    for read in (lambda: saver.get_tuple(at("t")), lambda: list(saver.list(at("t"))), lambda: list(saver.list(None))):
        events: list[Event] = []
        with milepost.connect(f"file:{path}?durability=os") as saver:
            saver.observe(events.append)
            read()
        (told,) = [event.error for event in events if event.outcome == "fallback"]
        assert "'2'" in told
        assert "passed over" in told
