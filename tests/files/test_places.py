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


@pytest.mark.parametrize("url", ["file:~/state", "file:./~ann/state"])
def test_a_home_folder_is_written_out(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidConfig, match="%7E"):
        milepost.connect(url)
    with milepost.connect(url.replace("~", "%7E")) as saver:
        saver.setup()
    assert [path.name[0] for path in tmp_path.iterdir()] == ["~"]


def test_a_path_is_no_url(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="is a path and no URL: write 'file:") as caught:
        milepost.connect(tmp_path / "a b")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with milepost.connect(str(caught.value).split("'")[-2]) as saver:
        saver.setup()
    assert (tmp_path / "a b" / "FORMAT").exists()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("file:./a@b?durability=os", "<Saver of file:./a@b>"),
        ("postgresql://ann:secret@host/db?sslmode=require", "<Saver of postgresql://host/db>"),
        ("postgresql://ann@host/db?password=secret", "<Saver of postgresql://host/db>"),
        ("redis://:secret@host:1/2", "<Saver of redis://host:1/2>"),
        ("redis+sentinel://ann:secret@one,two/service", "<Saver of redis+sentinel://one,two/service>"),
        ("memory:", "<Saver of memory:>"),
    ],
)
def test_a_saver_says_where_its_store_is_and_not_the_password(url: str, shown: str) -> None:
    with milepost.connect(url) as saver:
        assert repr(saver) == shown
    assert repr(saver) == f"{shown[:-1]}, closed>"


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
