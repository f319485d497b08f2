"""Many threads at work: what they share must not have them wait for each other with every call."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time

import pytest
from milepost import draws
from milepost.codec.memo import Memory
from milepost.draws import draw


def test_nobody_waits_for_what_is_known_of_another_thread() -> None:
    memory = Memory(limit=100)
    memo = memory.thread("a")
    found: list[object] = []

    def known(name: str) -> None:
        found.append(memory.thread(name))

    with memory._lock:
        others = [threading.Thread(target=known, args=(name,)) for name in "ab"]
        for other in others:
            other.start()
        for other in others:
            other.join(30)
        assert len(found) == 2
        assert memory.thread("a") is memo
        memo.size += 60
        memory.thread("b").size += 60
    # What was not counted then is counted with the next use: one of the two is over the limit.
    memory.thread("b")
    memory.thread("a")
    assert list(memory._threads) == ["a"]
    assert memory._total == memo.accounted == 60


def test_what_was_forgotten_meanwhile_is_not_counted() -> None:
    memory = Memory(limit=100)
    memo = memory.thread("a")
    memory.forget("a")
    memo.size += 60
    memory._count("a", memo)
    assert memory._total == 0
    assert memory.thread("a") is not memo


def test_threads_that_come_while_others_are_counted() -> None:
    """Here they come between any two steps."""
    memory = Memory(limit=100)
    errors: list[BaseException] = []

    def come(name: str) -> None:
        try:
            for number in range(2000):
                memory.thread(f"{name}{number % 50}").size += 60
        except BaseException as exc:  # told below
            errors.append(exc)

    others = [threading.Thread(target=come, args=(name,)) for name in "abcdefgh"]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for other in others:
            other.start()
        for other in others:
            other.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not errors
    for name in "ab":
        memory.thread(name).size += 60
        memory.thread(name)
    assert 0 < memory._total == sum(memo.accounted for memo in memory._threads.values())
    assert len(memory._threads) < 8 * 50


def test_numbers_are_drawn_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    random.seed(0)
    drawn = [draw() for _ in range(100)]
    random.seed(0)
    drawn += [draw() for _ in range(100)]
    assert all(0 <= number < 1 << 63 for number in drawn)
    # A machine that goes on from what its memory was a while ago.
    state, now = draws._dice._random.getstate(), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600)
    drawn += [draw() for _ in range(100)]
    draws._dice._random.setstate(state)
    monkeypatch.setattr(time, "monotonic", lambda: now + 7200)
    drawn += [draw() for _ in range(100)]
    assert len({*drawn}) == 400


# Not `os.fork`, which tells Python of it: some servers fork without.
CHILDREN = """
import ctypes, os, sys
from milepost.codec.memo import ThreadMemo
from milepost.draws import draw

draw()
fork = ctypes.PyDLL(None).fork
for _ in range(2):
    if fork() == 0:
        print(draw(), ThreadMemo().lanes.allocate((), 1)[0], flush=True)
        os._exit(0)
    os.wait()
print(draw(), ThreadMemo().lanes.allocate((), 1)[0])
"""


def test_children_of_a_server_that_forks_by_itself_draw_others() -> None:
    output = subprocess.run([sys.executable, "-c", CHILDREN], check=True, capture_output=True, text=True).stdout
    assert len({*output.split()}) == 6
