"""Writes that go together: who is interrupted, and who is left behind."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from milepost import combine
from milepost.combine import Alone, AsyncCombiner, Batch, Combiner, Job
from milepost.errors import Unavailable
from waiting import until


class Line:
    """What carries out batches, once it is let go."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.leads: set[int] = set()
        """Threads that have sent several."""
        self.open = threading.Event()
        self.combiner: Combiner[int, str] = Combiner(self._send)

    def _send(self, requests: Sequence[int]) -> list[str | None]:
        self.sent.append(list(requests))
        if len(requests) > 1:
            self.leads.add(threading.get_ident())
        assert self.open.wait(30)
        if 13 in requests and len(requests) > 1:
            raise Alone
        return [None if request == 14 else f"answer {request}" for request in requests]

    def waiting(self) -> int:
        return len(self.combiner._waiting)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started in the background, by a shell that has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(combine, "PATIENCE", 3600.0)
    return Line()


def test_those_who_come_meanwhile_go_together(line: Line) -> None:
    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(line.combiner.run, number) for number in range(2)]
        until(lambda: len(line.sent) == 2)
        futures += [pool.submit(line.combiner.run, number) for number in range(2, 12)]
        until(lambda: line.waiting() == 10)
        line.open.set()
        assert [future.result(30) for future in futures] == [f"answer {number}" for number in range(12)]
    assert sorted(map(len, line.sent)) in ([1, 1, 10], [1, 1, 1, 9])
    assert not line.combiner._lanes._taken


@pytest.mark.parametrize("alone", [(13, range(2, 14)), (14, [14])])
def test_those_who_are_not_answered_go_alone(line: Line, alone: tuple[int, Sequence[int]]) -> None:
    which, expected = alone
    numbers = [*range(2, 13), which]
    with ThreadPoolExecutor(20) as pool:
        first = [pool.submit(line.combiner.run, number) for number in range(2)]
        until(lambda: len(line.sent) == 2)
        futures = [pool.submit(line.combiner.run, number) for number in numbers]
        until(lambda: line.waiting() == len(numbers))
        line.open.set()
        for future in first:
            future.result(30)
        outcomes = {number: future.exception(30) for number, future in zip(numbers, futures, strict=True)}
    left = [number for number, outcome in outcomes.items() if isinstance(outcome, Alone)]
    assert which in left or [which] in line.sent
    assert set(left) <= set(expected)
    assert not line.combiner._lanes._taken


@pytest.mark.usefixtures("interruptible")
def test_a_waiter_that_is_interrupted_takes_its_write_back(line: Line) -> None:
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(line.combiner.run, number) for number in range(2)]
        until(lambda: len(line.sent) == 2)
        waiter = threading.get_ident()

        def interrupt() -> None:
            until(lambda: line.waiting() == 1)
            signal.pthread_kill(waiter, signal.SIGINT)

        interrupting = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            line.combiner.run(2)
        interrupting.result(30)
        assert not line.waiting()
        line.open.set()
        for future in futures:
            future.result(30)
    assert line.combiner.run(3) == "answer 3"
    assert [2] not in line.sent
    assert not line.combiner._lanes._taken


def test_a_leader_that_is_interrupted_passes_the_lane_on(line: Line) -> None:
    job = Job[int, str](2)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(line.combiner.run, 0)
        until(lambda: len(line.sent) == 1)
        lane = line.combiner._lanes.begin()
        line.combiner._waiting.append(job)
        line.combiner._pass_on(lane)
        other = pool.submit(line.combiner.run, 3)
        until(lambda: line.waiting() == 1)
        assert job.lane is not None
        line.combiner._leave(job)
        until(lambda: [3] in line.sent)
        line.open.set()
        first.result(30)
        assert other.result(30) == "answer 3"
    assert not line.combiner._lanes._taken


def test_a_leader_that_is_interrupted_at_the_end_wakes_those_it_led(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the lane that it has not given back holds up nobody for long."""
    passed_on = line.combiner._pass_on
    interrupted: list[object] = []

    def pass_on(lane: object) -> None:
        if threading.get_ident() in line.leads and not interrupted:
            interrupted.append(lane)
            raise KeyboardInterrupt
        passed_on(lane)

    monkeypatch.setattr(line.combiner, "_pass_on", pass_on)
    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(line.combiner.run, number) for number in range(2)]
        until(lambda: len(line.sent) == 2)
        futures += [pool.submit(line.combiner.run, number) for number in range(2, 12)]
        until(lambda: line.waiting() == 10)
        line.open.set()
        outcomes = [future.exception(30) for future in futures]
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [KeyboardInterrupt]
        assert len(interrupted) == 1
        monkeypatch.setattr(combine, "PATIENCE", 0.05)
        more = [pool.submit(line.combiner.run, number) for number in range(20, 40)]
        assert [future.result(30) for future in more] == [f"answer {number}" for number in range(20, 40)]


@pytest.mark.parametrize("answer", [None, "there"])
def test_who_is_not_woken_goes_on_by_himself(line: Line, monkeypatch: pytest.MonkeyPatch, answer: str | None) -> None:
    monkeypatch.setattr(combine, "PATIENCE", 0.05)
    combiner = line.combiner
    with ThreadPoolExecutor(1) as pool:
        lanes = combiner._lanes.begin(), combiner._lanes.begin()
        monkeypatch.setattr(combiner, "_overtake", lambda _: False)
        future = pool.submit(combiner.run, 2)
        until(lambda: line.waiting() == 1)
        job = combiner._waiting.popleft()
        job.answer, job.batch = answer, Batch()
        job.batch.over = True
        if answer is None:
            with pytest.raises(Alone):
                future.result(30)
        else:
            assert future.result(30) == answer
    assert all(map(combiner._lanes.end, lanes))


def test_who_was_to_lead_and_is_led_passes_the_lane_on(line: Line) -> None:
    """So it is where whoever handed the lane over was interrupted in the middle of that."""
    combiner = line.combiner
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(combiner.run, number) for number in range(2)]
        until(lambda: len(line.sent) == 2)
        futures += [pool.submit(combiner.run, 2)]
        until(lambda: line.waiting() == 1)
        (job,) = combiner._waiting
        job.lane = combiner._lanes.overtake()
        line.open.set()
        assert [future.result(30) for future in futures] == ["answer 0", "answer 1", "answer 2"]
    assert line.sent.count([2]) == 1
    assert not combiner._lanes._taken


class Interrupted(deque[Job[int, str]]):
    """Those who wait, for a leader that is interrupted when he has taken three of them along."""

    def popleft(self) -> Job[int, str]:
        if len(self) == 8:
            raise KeyboardInterrupt
        return super().popleft()


def test_a_leader_that_is_interrupted_among_those_it_leads(line: Line) -> None:
    combiner = line.combiner
    combiner._waiting = Interrupted()
    with ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(combiner.run, number) for number in range(2)]
        until(lambda: len(line.sent) == 2)
        futures += [pool.submit(combiner.run, number) for number in range(2, 12)]
        until(lambda: line.waiting() == 10)
        line.open.set()
        outcomes = [future.exception(30) for future in futures]
    kinds = [type(outcome) for outcome in outcomes if outcome is not None]
    assert kinds.count(KeyboardInterrupt) == 1
    assert {*kinds} <= {KeyboardInterrupt, Alone}
    assert not line.waiting()
    assert not combiner._lanes._taken


class Busy:
    """What carries nothing out for several: there is no connection."""

    def __init__(self) -> None:
        self.sent = 0
        self.open = asyncio.Event()

    async def send(self, requests: Sequence[int]) -> list[str]:
        self.sent += 1
        await self.open.wait()
        if requests[0] < 2:
            return ["answer"]
        raise Unavailable("busy", backend="test", op="connect")


@pytest.mark.parametrize("count", [1, 5])
async def test_tasks_whose_batch_fails_have_an_error_each(count: int) -> None:
    """And it is asked for once, not once more by each alone."""
    busy, unheard = Busy(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    combiner = AsyncCombiner[int, str](busy.send)
    tasks = [asyncio.create_task(combiner.run(number)) for number in range(2 + count)]
    await asyncio.sleep(0)
    busy.open.set()
    outcomes = (await asyncio.gather(*tasks, return_exceptions=True))[2:]
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    assert len({*map(id, outcomes)}) == count
    assert busy.sent == 3
    del tasks
    gc.collect()
    assert not unheard
