"""Group commit by flat combining: concurrent writers of one log share a write and a sync.

A writer puts its change in the queue of the log. If nobody is at work there it becomes the leader, at once and in its
own thread, so a writer alone pays nothing. Whoever comes meanwhile waits; the leader takes all who wait as one batch.

A leader may be interrupted (Ctrl-C) between any two steps. So the queue says for whose job it is led: who is told to
stop passes the lead on if, and only if, it is his.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from milepost.errors import MilepostError, Unavailable

from milepost_files.log import Change, Log

_ROUNDS: Final = 8
"""After so many batches a leader hands over: its caller wants to go on too."""


class Job:
    """One change on its way through a queue. `wake` and `promote` may be called more often than needed."""

    __slots__ = ("change", "done", "error", "promote", "wake")

    def __init__(self, change: Change, wake: Callable[[], object], promote: Callable[[], bool]) -> None:
        self.change = change
        self.error: BaseException | None = None
        self.done = False
        self.wake = wake
        self.promote = promote
        """Has somebody call `Queue.lead` for this job's sake. False when nobody can."""

    def finish(self, error: BaseException | None) -> None:
        """Tell who waits. Of a job that is done already, the outcome stays."""
        if not self.done:
            if isinstance(error, (MilepostError, OSError, EOFError)):
                # It says all there is to say. The frames it came through would keep it, and the log open.
                error.__traceback__ = None
            self.error = error
            self.done = True
        self.wake()

    def release(self) -> None:
        """Nobody waits for this job any more."""
        self.wake = self.promote = _nobody

    def check(self) -> None:
        """Raise what went wrong, and forget it: an error that knows where it was raised would keep the job for ever."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            error = None


def _nobody() -> bool:
    return False


class Queue:
    """The writers of one log in this process."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._gate = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._batch: tuple[Job, ...] = ()
        self._leader: Job | None = None
        self._at_work = False
        """Whether the leader has begun."""

    def enter(self, job: Job) -> bool:
        """Queue a job. True when the caller has to see to it that `lead` is called."""
        with self._gate:
            self._waiting.append(job)
            if self._leader is not None:
                return False
            self._appoint(job)
            return True

    def withdraw(self, job: Job) -> bool:
        """Take back a job that has not begun."""
        with self._gate:
            try:
                self._waiting.remove(job)
            except ValueError:
                return False
            return True

    def leave(self, job: Job) -> None:
        """`withdraw` for who was interrupted, and may have been about to lead."""
        self.withdraw(job)
        with self._gate:
            if self._leader is job and not self._at_work:
                self._pass_on()

    def run(self, change: Change) -> None:
        """Carry out a change in this thread, or wait until another has. Raises what went wrong with it."""
        signal = threading.Lock()
        signal.acquire()

        def wake() -> bool:
            if signal.locked():
                signal.release()
            return True

        job = Job(change, wake, wake)
        try:
            if self.enter(job):
                self.lead(job)
            while not job.done:
                signal.acquire()
                if not job.done:
                    self.lead(job)
        except BaseException:  # this thread is told to stop
            self.leave(job)
            raise
        job.check()

    def lead(self, job: Job) -> None:
        """Carry out batches until nobody waits, or somebody else takes the lead. Only if the queue is led for `job`."""
        try:
            rounds = 0
            while self._take(job, rounds):
                self._carry_out()
                rounds += 1
        except BaseException:  # this thread is told to stop; the others must not wait for it for ever
            self._give_up(job)
            raise

    def _take(self, job: Job, rounds: int) -> bool:
        """Make a batch of all who wait. False when it is not, or no longer, for `job` to carry it out."""
        with self._gate:
            if self._leader is not job or (self._at_work and rounds == 0):
                return False
            if not self._waiting:
                self._leader = None
                return False
            if rounds >= _ROUNDS and self._waiting[0].promote():
                self._appoint(self._waiting[0])
                return False
            self._at_work = True
            self._batch = tuple(self._waiting)
            self._waiting.clear()
            return True

    def _carry_out(self) -> None:
        batch = self._batch
        errors: list[BaseException | None] = []
        try:
            errors.extend(self.log.commit([job.change for job in batch]))
        except Exception as exc:
            self.log.lose()
            errors.extend([exc] * len(batch))
        for job, error in zip(batch, errors, strict=True):
            job.finish(error)
        self._batch = ()
        self.log.rest()

    def _give_up(self, job: Job) -> None:
        with self._gate:
            if self._leader is not job:
                return
            self.log.lose()
            for each in self._batch:
                each.finish(_interrupted())
            self._batch = ()
            for each in [each for each in self._waiting if each.done]:
                self._waiting.remove(each)
            self._pass_on()

    def _appoint(self, job: Job) -> None:
        self._at_work = False
        self._leader = job

    def _pass_on(self) -> None:
        while self._waiting:
            if self._waiting[0].promote():
                self._appoint(self._waiting[0])
                return
            self._waiting.popleft().finish(_interrupted())
        self._leader = None


def _interrupted() -> Unavailable:
    return Unavailable(
        "the thread that was to carry out this write, with others, was interrupted; try again",
        backend="files",
        op="write",
    )
