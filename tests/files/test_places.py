"""Where a file store cannot be, and names that are none."""

from __future__ import annotations

import json
from pathlib import Path

import milepost
import pytest
from milepost.errors import InvalidConfig


@pytest.mark.parametrize("tail", ["&durability=os", ";durability=os", "#part", "\ud800"])
def test_urls_that_name_no_folder(tail: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig):
        milepost.connect(f"file:{tmp_path}/x{tail}")


def test_such_characters_are_written_in_hex(tmp_path: Path) -> None:
    with milepost.connect(f"file:{tmp_path}/a%23b%26c=d") as saver:
        saver.setup()
    assert [path.name for path in tmp_path.iterdir()] == ["a#b&c=d"]


@pytest.mark.parametrize("kind", ["file", "below a file", "dangling", "loop", "threads is a file"])
def test_paths_that_are_no_folder(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    if kind == "threads is a file":
        path.mkdir()
        (path / "threads").touch()
    elif kind.endswith("file"):
        path.touch()
    else:
        path.symlink_to(path if kind == "loop" else tmp_path / "nowhere" / "at all")
    url = f"file:{path / 'x' if kind == 'below a file' else path}"
    with milepost.connect(url) as saver, pytest.raises(InvalidConfig):
        saver.setup()
    assert not (path / "FORMAT").exists()


@pytest.mark.parametrize("number", ["-1", "0", "true", "1.5", '"1"', "null", "[" * 100_000 + "]" * 100_000])
def test_formats_that_are_no_number(number: str, tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'store'}"
    with milepost.connect(url) as saver:
        saver.setup()
    path = tmp_path / "store" / "FORMAT"
    kind = json.loads(path.read_text())["kind"]
    path.write_text(f'{{"format": {number}, "kind": "{kind}"}}')
    with milepost.connect(url) as saver, pytest.raises(InvalidConfig):
        saver.setup()
