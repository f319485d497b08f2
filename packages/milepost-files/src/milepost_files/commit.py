"""Group commit by flat combining: concurrent writers of one log share a write and a sync.

A writer puts its change in the queue of the log. If nobody is at work there it becomes the leader, at once and in its
own thread, so a writer alone pays nothing. Whoever comes meanwhile waits; the leader takes all who wait as one batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from milepost.errors import Unavailable

from milepost_files.log import Change, Log

_ROUNDS: Final = 8
"""After so many batches a leader hands over: its caller wants to go on too."""


class Job:
    """One change on its way through a queue."""

    __slots__ = ("_promote", "_wake", "change", "done", "error")

    def __init__(self, change: Change, wake: Callable[[], object], promote: Callable[[], bool]) -> None:
        self.change = change
        self.error: BaseException | None = None
        self.done = False
        self._wake = wake
        self._promote = promote

    def finish(self, error: BaseException | None) -> None:
        self.error = error
        self.done = True
        self._wake()

    def promote(self) -> bool:
        """Have somebody lead the queue for this job's sake. False when nobody can."""
        return self._promote()


class Queue:
    """The writers of one log in this process."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._gate = threading.Lock()
        self._waiting: deque[Job] = deque()
        self._led = False

    def enter(self, job: Job) -> bool:
        """Queue a job. True when the caller has to see to it that `lead` is called."""
        with self._gate:
            self._waiting.append(job)
            if self._led:
                return False
            self._led = True
            return True

    def withdraw(self, job: Job) -> bool:
        """Take back a job that has not begun."""
        with self._gate:
            try:
                self._waiting.remove(job)
            except ValueError:
                return False
            return True

    def run(self, change: Change) -> None:
        """Carry out a change in this thread, or wait until another has. Raises what went wrong with it."""
        signal = threading.Lock()
        signal.acquire()
        chosen = False

        def promote() -> bool:
            nonlocal chosen
            chosen = True
            signal.release()
            return True

        job = Job(change, signal.release, promote)
        if self.enter(job):
            self.lead()
        else:
            try:
                signal.acquire()
            except BaseException:  # this thread is told to stop
                self.withdraw(job)
                if chosen:
                    self.lead()
                raise
            if chosen:
                self.lead()
        if job.error is not None:
            raise job.error

    def lead(self) -> None:
        """Carry out batches until nobody waits, or somebody else takes the lead."""
        rounds = 0
        while True:
            with self._gate:
                if not self._waiting:
                    self._led = False
                    return
                if rounds >= _ROUNDS and self._waiting[0].promote():
                    return
                batch = tuple(self._waiting)
                self._waiting.clear()
            self._carry_out(batch)
            rounds += 1

    def _carry_out(self, batch: tuple[Job, ...]) -> None:
        errors: list[BaseException | None] = []
        try:
            errors.extend(self.log.commit([job.change for job in batch]))
        except Exception as exc:
            self.log.lose()
            errors.extend([exc] * len(batch))
        except BaseException:  # this thread is told to stop; the others must not wait for it for ever
            self.log.lose()
            for job in batch:
                job.finish(_interrupted())
            self._abdicate()
            raise
        for job, error in zip(batch, errors, strict=True):
            job.finish(error)
        self.log.rest()

    def _abdicate(self) -> None:
        with self._gate:
            while self._waiting:
                if self._waiting[0].promote():
                    return
                self._waiting.popleft().finish(_interrupted())
            self._led = False


def _interrupted() -> Unavailable:
    return Unavailable(
        "the thread that was to carry out this write, with others, was interrupted; try again",
        backend="files",
        op="write",
    )
