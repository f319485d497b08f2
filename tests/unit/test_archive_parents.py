"""What an archive tells of a checkpoint that was archived more than once."""

from __future__ import annotations

from pathlib import Path

from milepost.archive import ArchiveFolder, frames, whole
from milepost.store import Batch, CheckpointRow


def _row(id: str, parent: str | None) -> CheckpointRow:
    return CheckpointRow("", id, parent, b"header", key=id)


def test_an_ancestor_keeps_the_parent_that_it_had_first(tmp_path: Path) -> None:
    folder = ArchiveFolder(tmp_path)
    steps = [
        (_row("1", None), _row("2", "1"), _row("3", "2")),
        (_row("2", "1"),),  # as it is there already
        (_row("2", None), _row("4", "2"), _row("5", "gone")),
        (_row("5", "4"),),  # its first parent is not in the archive
    ]
    for rows in steps:
        folder.archive("t", Batch(rows))
    path = folder.path_of("t")
    assert [len(frame.batch.rows) for frame in frames(path)] == [3, 3, 1]
    assert {row.id: row.parent for row in whole(path).batch.rows} == {"1": None, "2": "1", "3": "2", "4": "2", "5": "4"}
