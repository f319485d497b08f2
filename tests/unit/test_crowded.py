"""Many threads at work: what they share must not have them wait for each other with every call."""

from __future__ import annotations

import os
import random
import threading

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


def test_numbers_are_drawn_by_nobody_else() -> None:
    random.seed(0)
    drawn = [draw() for _ in range(100)]
    random.seed(0)
    more = [draw() for _ in range(100)]
    assert len({*drawn, *more}) == 200
    assert all(0 <= number < 1 << 63 for number in drawn)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"%d" % draw())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    assert int(os.read(read, 100)) != draw()
    os.close(read)
