"""Flat combining: writes that come at the same time share a round trip, and where there is one, a transaction.

Whoever finds a free lane goes at once, with a write alone: it pays nothing. Whoever comes while all lanes are taken
waits; when a lane is free, the first of those who wait takes all of them along. A batch that fails as a whole (one
of its writes had to wait for a lock, say, or the connection was lost) is taken apart: each write then goes alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from milepost.errors import MilepostError

R = TypeVar("R")
A = TypeVar("A")

LANES: Final = 2
"""Batches that are on their way at the same time: while one waits for its commit, another is made."""
LARGEST: Final = 64
PATIENCE: Final = 0.25
"""Seconds after which those who wait for a lane open another one: a lock that holds a lane up need not hold these up."""


class Alone(Exception):
    """The write is to be sent on its own."""


class Lanes:
    """Which batches are on their way. What stands for one is an object of its own."""

    def __init__(self) -> None:
        self._taken: deque[object] = deque()

    def begin(self) -> object | None:
        """Take a lane, if one is free."""
        return self._add() if len(self._taken) < LANES else None

    def overtake(self) -> object:
        """Take the lane of the batch that has been on its way for longest, which does not count any more: however long it
        is held up, others are not."""
        self._taken.popleft()
        return self._add()

    def end(self, lane: object) -> bool:
        """Give a lane back. Whether another batch may take it now."""
        if lane not in self._taken:
            return False
        self._taken.remove(lane)
        return True

    def _add(self) -> object:
        lane = object()
        self._taken.append(lane)
        return lane


class Batch:
    """Some writes that go together."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


class Job(Generic[R, A]):
    """A write on its way, and what the thread that waits for it is woken by."""

    __slots__ = ("answer", "batch", "lane", "request", "signal")

    def __init__(self, request: R) -> None:
        self.request = request
        self.answer: A | MilepostError | None = None
        self.batch: Batch | None = None
        """What it was taken along in."""
        self.lane: object | None = None
        """What it leads in."""
        self.signal = threading.Lock()
        self.signal.acquire()

    def wake(self) -> None:
        if self.signal.locked():
            self.signal.release()


@dataclass(eq=False, slots=True)
class Entry(Generic[R, A]):
    """A write on its way, and what the task that waits for it awaits: its answer or error, or None when it is to go alone."""

    request: R
    done: asyncio.Future[A | MilepostError | None]


def _apart(error: MilepostError, count: int) -> list[MilepostError]:
    """An error that `count` writes share, for each of them: what is raised in one thread must not be in another."""
    others = [type(error)(error.message, **error.facts) for _ in range(count - 1)]
    for other in others:
        other.__cause__ = error.__cause__
    return [error, *others]


def _told(answer: A | MilepostError | None) -> A:
    if answer is None:
        raise Alone
    if isinstance(answer, MilepostError):
        raise answer
    return answer


class Combiner(Generic[R, A]):
    """The writes of the threads of one process."""

    def __init__(self, send: Callable[[Sequence[R]], Sequence[A | MilepostError | None]]) -> None:
        self._send = send
        self._gate = threading.Lock()
        self._waiting: deque[Job[R, A]] = deque()
        self._lanes = Lanes()

    def run(self, request: R) -> A:
        """Have `request` carried out with others; its answer. Raises `Alone` when that did not work, and
        what was wrong with the write, or with all that it went with."""
        job: Job[R, A] | None = None
        with self._gate:
            lane = self._lanes.begin()
            if lane is None:
                job = Job(request)
                self._waiting.append(job)
        if job is None:
            try:
                return _told(self._send([request])[0])
            finally:
                self._pass_on(lane)
        try:
            while not job.signal.acquire(timeout=PATIENCE):
                # Who was to wake us may have been interrupted before that.
                if job.batch is None:
                    if self._overtake(job) or job.lane is not None:
                        break
                elif job.batch.over:
                    break
        except BaseException:  # this thread is told to stop
            self._leave(job)
            raise
        if job.batch is None and job.lane is not None:
            self._lead(job, job.lane)
        elif job.lane is not None:  # it was to lead when another one took it along
            self._pass_on(job.lane)
        return _told(job.answer)

    def _leave(self, job: Job[R, A]) -> None:
        """Take `job` back, unless it is on its way, and pass on what it was to lead."""
        with self._gate:
            if job in self._waiting:
                self._waiting.remove(job)
        if job.lane is not None:
            self._pass_on(job.lane)

    def _overtake(self, job: Job[R, A]) -> bool:
        """Let `job` lead in another lane, if it still waits."""
        with self._gate:
            if job not in self._waiting:
                return False
            self._waiting.remove(job)
            job.lane = self._lanes.overtake()
            return True

    def _lead(self, job: Job[R, A], lane: object) -> None:
        """Carry out `job` and all that wait with it. Interrupted at whatever place, it leaves nobody waiting."""
        batch, jobs = Batch(), [job]
        try:
            with self._gate:
                while self._waiting and len(jobs) < LARGEST:
                    self._waiting[0].batch = batch
                    jobs.append(self._waiting[0])
                    self._waiting.popleft()
            for each, answer in zip(jobs, self._send([each.request for each in jobs]), strict=True):
                each.answer = answer
        except Alone:
            pass  # each of them finds that it has no answer
        except MilepostError as exc:
            for each, error in zip(jobs, _apart(exc, len(jobs)), strict=True):
                each.answer = error
        except BaseException:
            with self._gate:
                self._waiting = deque(each for each in self._waiting if each.batch is None)
            raise
        finally:
            batch.over = True
            try:
                self._pass_on(lane)
            finally:
                for each in jobs[1:]:
                    each.wake()

    def _pass_on(self, lane: object) -> None:
        """Give the lane to the first who waits, or back."""
        with self._gate:
            if not self._lanes.end(lane) or not self._waiting:
                return
            job = self._waiting[0]
            # It has one already where whoever gave it that was interrupted before the next step.
            job.lane = job.lane or self._lanes.begin()
            self._waiting.popleft()
        job.wake()


class AsyncCombiner(Generic[R, A]):
    """The writes of the tasks of one event loop."""

    def __init__(self, send: Callable[[Sequence[R]], Awaitable[Sequence[A | MilepostError | None]]]) -> None:
        self._send = send
        self._waiting: deque[Entry[R, A]] = deque()
        self._lanes = Lanes()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, request: R) -> A:
        """As `Combiner.run`. A write that was cancelled is stored or not when this returns."""
        lane = self._lanes.begin()
        if lane is not None:
            try:
                return _told((await self._send([request]))[0])
            finally:
                self._pass_on(lane)
        loop = asyncio.get_running_loop()
        entry = Entry(request, loop.create_future())
        self._waiting.append(entry)
        timer = loop.call_later(PATIENCE, self._overtake, entry)
        try:
            answer = await self._settled(entry)
        finally:
            timer.cancel()
        return _told(answer)

    async def _settled(self, entry: Entry[R, A]) -> A | MilepostError | None:
        cancelled: asyncio.CancelledError | None = None
        while not entry.done.done():
            try:
                await asyncio.shield(entry.done)
            except asyncio.CancelledError as exc:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                    raise
                cancelled = exc
        if cancelled is not None:
            raise cancelled
        return entry.done.result()

    def _overtake(self, entry: Entry[R, A]) -> None:
        if entry in self._waiting:
            self._start(self._lanes.overtake())

    def _pass_on(self, lane: object) -> None:
        if self._lanes.end(lane) and self._waiting:
            self._start(self._lanes.begin())

    def _start(self, lane: object) -> None:
        """Carry out all that wait, in a task of its own: who cancels one of them must not cancel the others."""
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), LARGEST))]
        task = asyncio.get_running_loop().create_task(self._carry_out(batch, lane))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, batch: Sequence[Entry[R, A]], lane: object) -> None:
        answers: Sequence[A | MilepostError | None] = [None] * len(batch)
        try:
            answers = await self._send([entry.request for entry in batch])
        except Alone:
            return  # each of them finds that it has no answer
        except MilepostError as exc:
            answers = _apart(exc, len(batch))
        finally:
            self._pass_on(lane)
            for entry, answer in zip(batch, answers, strict=True):
                if not entry.done.done():
                    entry.done.set_result(answer)
