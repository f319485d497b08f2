from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import milepost
import pytest
from langchain_core.messages import HumanMessage
from milepost import ArchiveFolder
from milepost.flavour import run
from milepost.store import Batch, Pack
from milepost.testing.chain import at, checkpoint
from milepost_inspector.cli import main

URL = "file:./store?durability=os"

COMPACTOR = """
from milepost.compaction import trim_messages
trim = trim_messages(last=2, channel="m")
"""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads of six checkpoints in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_URL", URL)
    with milepost.connect(URL) as saver:
        for thread in ("a", "b"):
            parent = None
            for number in range(1, 7):
                messages = [HumanMessage(f"{one} " * 200, id=str(one)) for one in range(number)]
                made = checkpoint(f"{number:04}", {"m": messages})
                saver.put(
                    at(thread, "", parent), made, {"source": "loop", "step": number, "parents": {}}, {"m": number}
                )
                parent = f"{number:04}"


def ids(thread: str) -> list[str]:
    with milepost.connect(URL) as saver:
        return [item.checkpoint["id"] for item in saver.list(at(thread))]


def told(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_a_dry_run_and_the_run_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["maintain", "--keep-last", "2", "--json"]
    assert main([*arguments, "--dry-run"]) == 0
    planned = told(capsys)
    assert len(ids("a")) == 6
    assert main(arguments) == 0
    done = told(capsys)
    assert (planned.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert planned == done
    assert (done["seen"], done["checkpoints"], len(done["threads"])) == (2, 8, 2)
    assert ids("a") == ids("b") == ["0006", "0005"]


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", "--keep-last", "2", "--thread", "a", "--dry-run"]) == 0
    assert "a: 4 of 6 checkpoints" in capsys.readouterr().out
    assert main(["maintain", "--keep-last", "2", "--threads", "b*"]) == 0
    assert "2 of 2 threads done: 4 checkpoints" in capsys.readouterr().out
    assert (len(ids("a")), len(ids("b"))) == (6, 2)


def test_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", "--keep-last", "1", "--archive", "archive"]) == 0
    with milepost.connect(URL) as saver:
        store = saver.backend.blocking()
        run(store.load("left", Batch(packs=(Pack(7, 1, 1, b"an item"),))))

        class Full(ArchiveFolder):
            def erase(self, thread: str) -> object:
                raise OSError("the disk is full")

        saver.erase(["a", "b"], hooks=Full("archive"))
        saver.put(at("b", "", None), checkpoint("0009", {}), {}, {})
    capsys.readouterr()
    assert main(["sweep", "--archive", "archive", "--dry-run"]) == 1
    shown = capsys.readouterr().out
    assert "thread left: 7 bytes" in shown
    assert "archive b: its erasure ended in the middle" in shown
    assert main(["sweep", "--archive", "archive", "--json"]) == 1
    found = {(one["kind"], one["thread"], one["removed"]) for one in told(capsys)["leftovers"]}
    assert found == {("thread", "left", True), ("archive", "a", True), ("archive", "b", False)}
    assert main(["erase", "b", "--archive", "archive"]) == 0
    capsys.readouterr()
    assert main(["sweep", "--archive", "archive"]) == 0
    assert capsys.readouterr().out == "0 leftovers, 0 removed, 0 bytes given back\n"
    assert [path.name for path in (tmp_path / "archive").iterdir()] == ["erasures.milepost-log"]


def test_archived_imported_and_erased(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", "--keep-last", "1", "--thread", "a", "--archive", "archive"]) == 0
    (archive,) = (tmp_path / "archive").iterdir()
    assert main(["import", str(archive), "--thread", "again"]) == 0
    assert ids("again") == ["0005", "0004", "0003", "0002", "0001"]
    assert main(["import", str(archive)]) == 2
    assert "restore it to another" in capsys.readouterr().err
    assert main(["erase", "a", "nobody", "--archive", "archive", "--json"]) == 0
    found = told(capsys)
    assert [(one["thread"], one["archived"], one["error"]) for one in found] == [("a", 1, ""), ("nobody", 0, "")]
    assert not archive.exists()
    assert ids("a") == []


def test_a_compactor_of_the_application(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_compactors.py").write_text(COMPACTOR)
    try:
        arguments = ["maintain", "--compact", "my_compactors:trim", "--json"]
        assert main([*arguments, "--quiet", "1h"]) == 0
        assert [one["compacted"] for one in told(capsys)["threads"]] == [[], []]
        assert main([*arguments, "--quiet", "0s"]) == 0
        assert [one["compacted"] for one in told(capsys)["threads"]] == [["m"], ["m"]]
        assert main([*arguments, "--compact", "my_compactors:nothing"]) == 2
    finally:
        sys.modules.pop("my_compactors", None)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keep-last", "-1"], "keep_last"),
        (["--keep-for", "30"], "keep_for"),
        (["--thin", "7d:x"], "thin"),
        (["--compact-over", "large"], "compact_over"),
        (["--url", "nosuch:x"], "nosuch"),
    ],
)
def test_what_cannot_be_right(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert len(ids("a")) == 6


@pytest.mark.parametrize(
    "command",
    [["maintain"], ["maintain", "--dry-run"], ["erase", "a"], ["sweep"], ["schema", "scan"]],
    ids=" ".join,
)
@pytest.mark.parametrize(
    ("url", "said"), [("file:./nostore", "there is no file store in"), ("memory:", "a memory store is empty")]
)
def test_a_store_that_is_not_there_is_not_made(
    command: list[str], url: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--url", url]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "nostore").exists()


def test_a_thread_that_is_not_there_is_not_maintained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", "--keep-last", "1", "--thread", "a", "--thread", "nope"]) == 2
    assert "there is no thread 'nope' in the store" in capsys.readouterr().err
    assert len(ids("a")) == 6


def test_archives_are_not_loaded_into_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "some.archive", "--url", "memory:"]) == 2
    assert "a memory store" in capsys.readouterr().err


def test_a_factory_of_compactors_is_no_compactor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maintain", "--compact", "milepost.compaction:trim_messages", "--quiet", "0s"]) == 2
    error = capsys.readouterr().err
    assert "trim_messages, which cannot be called with a state and a context" in error
    assert error.count("\n") == 1
