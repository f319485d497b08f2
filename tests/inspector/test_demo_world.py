from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from milepost_inspector.demo.records import checksum
from milepost_inspector.demo.world import ask


class Running(NamedTuple):
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def world(tmp_path: Path) -> Generator[Running]:
    log = tmp_path / "world.jsonl"
    command = [sys.executable, "-m", "milepost_inspector.demo.world", str(log)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Running(process, int(process.stdout.readline()), log)
        process.kill()


def test_an_effect_is_on_disk_when_it_is_answered(world: Running) -> None:
    payload = {"cents": 12, "note": "é"}
    assert ask(world.port, {"op": "effect", "id": "a", "run": 1, "payload": payload}) == {"attempt": 1}
    assert world.lines() == [{"id": "a", "sum": checksum(payload), "run": 1, "attempt": 1}]


def test_repeats_are_told_and_counted(world: Running) -> None:
    for run in (1, 2):
        assert ask(world.port, {"op": "effect", "id": "a", "run": run, "payload": {}}) == {"attempt": run}
    ask(world.port, {"op": "effect", "id": "b", "run": 2, "payload": {}})
    assert ask(world.port, {"op": "count"}) == {"distinct": 2, "effects": 3}


def test_a_key_is_performed_once_and_answered_again(world: Running) -> None:
    effect = {"op": "effect", "id": "a", "payload": {"cents": 1}, "key": "k"}

    def one(run: int) -> dict[str, int]:
        return ask(world.port, {**effect, "run": run})

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(8))) == [{"attempt": 1}] * 8
    assert ask(world.port, {**effect, "run": 9, "payload": {"cents": 2}}) == {"refused": 1}
    assert ask(world.port, {**effect, "run": 9, "key": "another"}) == {"attempt": 2}
    assert ask(world.port, {"op": "find", "id": "a"}) == {"effects": 2}
    assert ask(world.port, {"op": "find", "id": "b"}) == {"effects": 0}
    assert len(world.lines()) == 2


def test_many_at_once_are_each_written_once(world: Running) -> None:
    def one(number: int) -> dict[str, int]:
        return ask(world.port, {"op": "effect", "id": str(number), "run": 1, "payload": {"n": number}})

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(100))) == [{"attempt": 1}] * 100
    assert sorted(int(str(line["id"])) for line in world.lines()) == list(range(100))


def test_a_client_that_dies_in_the_middle_of_a_line_harms_nobody(world: Running) -> None:
    with socket.create_connection(("127.0.0.1", world.port)) as dying:
        dying.sendall(b'{"op": "effect", "id": "a"')
    assert ask(world.port, {"op": "count"}) == {"distinct": 0, "effects": 0}
    assert world.lines() == []


def test_it_ends_when_its_parent_closes_standard_input(world: Running) -> None:
    assert world.process.stdin is not None
    world.process.stdin.close()
    assert world.process.wait(30) == 0
