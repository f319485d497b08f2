"""`milepost demo`, really: its own processes, real kills, exit codes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import milepost
import pytest
from milepost.testing import servers_redis

DEMO = [sys.executable, "-c", "from milepost_inspector.cli import main; raise SystemExit(main())", "demo"]
SMALL = ["--records", "120", "--batch", "20"]


def demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*DEMO, *arguments]
    return subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False
    )


def cell(output: str, label: str) -> str:
    found = re.search(rf"│ {label}\s*│\s*(.*?)\s*│", output)
    assert found is not None, output
    return found[1]


def world_log(folder: Path) -> Path:
    (log,) = folder.glob("milepost-demo/world-*.jsonl")
    return log


def world_logs(folder: Path) -> list[Path]:
    """Without the ledger, then with it."""
    return sorted(folder.glob("milepost-demo/world-*.jsonl"), key=lambda log: "without" not in log.stem)


def effects_in(log: Path) -> list[str]:
    return [json.loads(line)["id"] for line in log.read_text().splitlines()]


def effects_of(folder: Path) -> list[str]:
    return effects_in(world_log(folder))


def children_left(mark: str) -> list[str]:
    lines = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if mark in line and "milepost_inspector.demo." in line]


def test_an_agent_that_is_killed_over_and_over_misses_nothing(tmp_path: Path) -> None:
    done = demo(tmp_path, *SMALL, "--kills", "3", "--seed", "45")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "OK: 120 of 120 records are right" in done.stdout
    assert "there is no terminal to ask at" in done.stdout
    # A worker that ends before its signal is not killed.
    kills = done.stdout.count("SIGKILL to worker")
    assert 1 <= kills <= 3
    assert cell(done.stdout, "worker processes") == f"{kills + 2}, {kills} killed"
    assert cell(done.stdout, "approval") == "books closed"
    assert len(effects_of(tmp_path)) == 121
    assert len(set(effects_of(tmp_path))) == 121
    assert cell(done.stdout, "effects, closing the books too") == "121"
    assert cell(done.stdout, "effects repeated") == "0"
    assert int(cell(done.stdout, "calls answered by the ledger")) >= 0
    assert sorted(p.name for p in (tmp_path / "milepost-demo").iterdir() if p.suffix == ".err") == []


def test_without_the_ledger_it_shows_both_ways_in_one_table(tmp_path: Path) -> None:
    done = demo(tmp_path, *SMALL, "--kills", "3", "--seed", "45", "--no-ledger")
    assert done.returncode == 0, done.stdout + done.stderr
    without, with_it = map(effects_in, world_logs(tmp_path))
    repeated = len(without) - len(set(without))
    assert len(with_it) == len(set(with_it)) == 121
    assert re.search(rf"│ effects, closing the books too\s*│\s*{len(without)} │\s*121 │", done.stdout), done.stdout
    assert re.search(rf"│ effects repeated\s*│\s*{repeated} │\s*0 │", done.stdout), done.stdout
    assert "approve, as before" in done.stdout
    assert 2 <= done.stdout.count("SIGKILL to worker") <= 6


def test_what_it_says_about_the_state_is_true(tmp_path: Path) -> None:
    url = f"file:{tmp_path.as_posix()}/elsewhere"
    done = demo(tmp_path, *SMALL, "--kills", "0", "--yes", "--url", url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "approved by --yes" in done.stdout
    with milepost.connect(url) as saver:
        (thread,) = saver.threads()
        assert f"as thread {thread.thread}" in done.stdout
        checkpoints = list(saver.list({"configurable": {"thread_id": thread.thread}}))
        assert cell(done.stdout, "checkpoints written") == str(len(checkpoints))
        assert cell(done.stdout, "bytes stored") == f"{saver.stats(thread.thread).bytes:,}"
    assert checkpoints[0].checkpoint["channel_values"]["totals"]["pay count"] > 100
    snippet = done.stdout[done.stdout.index("    import milepost") : done.stdout.index("OK:")]
    shown = subprocess.run(
        [sys.executable, "-c", re.sub("^    ", "", snippet, flags=re.MULTILINE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(shown.stdout.splitlines()) == 5


def test_a_tampered_log_is_found_and_the_exit_code_is_1(tmp_path: Path) -> None:
    """The person at the terminal takes their time; meanwhile an effect disappears from the world's log."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*DEMO, *SMALL, "--kills", "0"], cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, text=True
    ) as running:
        os.close(theirs)
        assert running.stdout is not None
        said = ""
        while "[y/N]" not in said:
            letter = running.stdout.read(1)
            assert letter, said
            said += letter
        log = world_log(tmp_path)
        lines = log.read_text().splitlines(keepends=True)
        log.write_text("".join(lines[:7] + lines[8:]))
        os.write(ours, b"y\n")
        said += running.stdout.read()
    os.close(ours)
    assert running.returncode == 1, said
    assert f"wrong: {json.loads(lines[7])['id']}: no effect in the world's log" in said
    assert "FAILED" in said


def test_a_person_may_refuse(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*DEMO, *SMALL, "--kills", "1"], cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, text=True
    ) as running:
        os.close(theirs)
        os.write(ours, b"n\n")
        said, _ = running.communicate(timeout=200)
    os.close(ours)
    assert running.returncode == 0, said
    assert cell(said, "approval") == "refused, books left open"
    assert '"close"' not in world_log(tmp_path).read_text()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(tmp_path: Path, how: signal.Signals) -> None:
    # A shell that runs the tests in the background has Ctrl-C ignored, and what it starts would inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    running = subprocess.Popen(
        [*DEMO, *SMALL], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    signal.signal(signal.SIGINT, before)
    with running:
        assert running.stderr is not None
        deadline = time.monotonic() + 100
        while not any(path.stat().st_size for path in tmp_path.glob("milepost-demo/world-*.jsonl")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        thread = world_log(tmp_path).stem.removeprefix("world-")
        assert children_left(thread)
        running.send_signal(how)
        error = running.stderr.read()
    if how is signal.SIGINT:
        assert running.returncode == 130
        assert error == b"milepost: interrupted; every process of it has ended\n"
    while children_left(thread):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_next_run_starts_afresh_unless_told_to_keep(tmp_path: Path) -> None:
    few = ["--records", "3", "--batch", "2", "--kills", "0"]
    assert demo(tmp_path, *few).returncode == 0
    first = world_log(tmp_path)
    assert demo(tmp_path, *few).returncode == 0
    assert world_log(tmp_path) != first
    assert demo(tmp_path, *few, "--keep").returncode == 0
    assert len(list(tmp_path.glob("milepost-demo/world-*.jsonl"))) == 2
    with milepost.connect(f"file:{tmp_path.as_posix()}/milepost-demo/state") as saver:
        assert len(list(saver.threads())) == 2


def test_an_unwritable_store_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not a folder")
    done = demo(tmp_path, *SMALL, "--url", f"file:{tmp_path.as_posix()}/plain/state")
    assert done.returncode == 2
    assert done.stderr.startswith("milepost: ")
    assert done.stderr.count("\n") == 1
    assert "plain" in done.stderr


@pytest.mark.parametrize(("url", "mark"), [("postgres:", "milepost-pg-"), ("valkey:", "milepost-redis-")])
def test_a_server_of_its_own(tmp_path: Path, url: str, mark: str) -> None:
    done = demo(tmp_path, "--url", url, "--records", "40", "--batch", "20", "--kills", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "OK: 40 of 40 records are right" in done.stdout
    (folder,) = set(re.findall(rf"/\S*?{mark}\w+", done.stdout))
    assert not Path(folder).exists(), "the server was not stopped"


def test_a_redis_that_is_there(tmp_path: Path) -> None:
    with servers_redis.Redis(port=True) as server:
        url = f"{server.url()}?durability=memory"
        done = demo(tmp_path, "--url", url, "--records", "40", "--batch", "20", "--kills", "1")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "OK: 40 of 40 records are right" in done.stdout
        with milepost.connect(url) as saver:
            assert len(list(saver.threads())) == 1


@pytest.mark.parametrize("kind", ["servers.Postgres", "servers_redis.Redis"])
def test_a_server_ends_with_the_process_that_started_it(kind: str) -> None:
    text = (
        "import os, signal; from milepost.testing import servers, servers_redis; "
        f"print({kind}().start().url(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL
    (folder,) = re.findall(r"/\S*?milepost-\w+-\w+", done.stdout)
    until = time.monotonic() + 60
    while Path(folder).exists():
        assert time.monotonic() < until, "the server goes on"
        time.sleep(0.05)
