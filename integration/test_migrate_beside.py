"""`milepost migrate` that is killed, over and over, while the application goes on with the threads that it rewrites."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import IO

import migrating_app as app
import milepost
import pytest
from driving import thread
from stores import environment, url_of

KILLS, TURNS = 3, 2
"""Turns that the application is asked for whenever the migration is through with a thread, so that it is never far behind."""
COMMAND = str(Path(sys.executable).with_name("milepost"))
# Not as a script: the classes would be those of another module, which is stored with them.
APPLICATION = [sys.executable, "-c", f"import sys, {app.__name__}; {app.__name__}.serve(sys.argv[1])"]


def _run(url: str, *arguments: str) -> str:
    """What the command prints."""
    command = [COMMAND, *arguments, "--url", url]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _migrate(url: str, arguments: list[str], turns: IO[str], threads: int) -> int:
    """Migrate beside the application, killed when it has done something to so many threads; its exit code."""
    command = [COMMAND, *arguments, "--url", url, "--json"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as migration:
        assert migration.stdout is not None
        for line in migration.stdout:
            turns.write("\n" * TURNS)
            turns.flush()
            threads -= bool(json.loads(line)["changed"])
            if not threads:
                migration.send_signal(signal.SIGKILL)
                break
    return migration.returncode


@pytest.mark.parametrize("store", ["files", "postgres", "redis"])
def test_the_application_goes_on_while_a_migration_is_killed_and_run_again(store: str, tmp_path: Path) -> None:
    url = url_of(store, tmp_path)
    app.prepare(url)
    migrate = ["migrate", "--schema", f"{app.__name__}:SECOND"]
    everything = [*migrate, "--history", "--cursor", str(tmp_path / "far.json")]
    choose = random.Random(2026)
    with subprocess.Popen(
        [*APPLICATION, url], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        first = process.stdout.readline()
        codes = [_migrate(url, everything, process.stdin, choose.randrange(1, 5)) for _ in range(KILLS)]
        assert codes.count(-signal.SIGKILL) >= KILLS - 1
        assert _migrate(url, everything, process.stdin, -1) == 0
        _run(url, *migrate, "--finalise")
        process.stdin.close()
        taken = Counter(map(int, [first, *process.stdout]))
    assert process.returncode == 0
    # What the application had in hand in between.
    _run(url, *migrate, "--history")
    _run(url, *migrate, "--finalise")
    found = json.loads(_run(url, "schema", "scan", "--history", "--json"))
    assert found["versions"].keys() == {"shop 2", "desk 2"}
    with milepost.connect(url, schema=app.ALONE) as saver:
        graph = app.release(2, saver)
        for number in range(app.THREADS):
            state = graph.get_state(thread(str(number)))
            log = state.values["log"]
            assert log == app.expected(number, taken[number])
            assert state.values["purchase"] == app.Purchase(number)
            assert state.next == (() if taken[number] % 2 else ("office",))
            for past in graph.get_state_history(thread(str(number))):
                before = past.values.get("log", [])
                assert log[: len(before)] == before
