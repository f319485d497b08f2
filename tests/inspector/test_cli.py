from __future__ import annotations

from pathlib import Path

import pytest
from milepost_inspector.cli import main


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "nonsense"], "nonsense"),
        (["--url", "nosuch:x"], "nosuch"),
        (["--url", "file:./x?colour=red"], "colour"),
        (["--url", "memory:"], "one process"),
        (["--records", "5001"], "5000"),
    ],
)
def test_what_cannot_be_started_is_one_line_and_exit_code_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("milepost: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["demo", "--records", "0"], ["demo", "--kills", "-1"], ["demo", "--batch", "x"], ["dmo"], []]
)
def test_wrong_arguments_are_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert "usage: milepost" in capsys.readouterr().err


def test_a_folder_that_the_demo_has_not_made_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "milepost-demo" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("precious")
    assert main(["demo"]) == 2
    assert "--dir" in capsys.readouterr().err
    assert mine.read_text() == "precious"


@pytest.mark.parametrize("url", ["nosuch:x", "file:./x?colour=red", "memory:", "file:./note"])
def test_what_the_last_demo_left_stays_if_the_next_cannot_begin(url: str, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("no folder")
    folder = tmp_path / "milepost-demo"
    folder.mkdir()
    (folder / "made-by-milepost-demo").touch()
    (folder / "world.jsonl").write_text("results")
    assert main(["demo", "--url", url]) == 2
    assert (folder / "world.jsonl").read_text() == "results"


def test_a_folder_that_cannot_be_made_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["demo", "--dir", "file/below"]) == 2
    assert "file/below" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["--version"])
    assert exit.value.code == 0
    assert capsys.readouterr().out.startswith("milepost ")
