"""The two ports of the file store: where operations run, how they are cancelled, and what their errors become."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn, Protocol

from milepost.errors import MilepostError, Unavailable

from milepost_files.commit import Job, Queue
from milepost_files.log import Change

_WORKERS: Final = 32

_ADVICE: Final = {
    errno.ENOSPC: "the disk is full: make room, then try again; what was stored before is intact",
    errno.EDQUOT: "the disk quota is used up: make room, then try again; what was stored before is intact",
    errno.EFBIG: "the file would be larger than this process or file system allows: raise the limit, then try again",
    errno.EACCES: "permission denied: give this user read and write access to the store's folder",
    errno.EPERM: "not permitted: give this user read and write access to the store's folder",
    errno.EROFS: "the file system is read-only: mount it writable, or move the store",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n), or lower max_open",
    errno.ENFILE: "too many open files on this system: raise its limit, or lower max_open",
    errno.EIO: "the disk failed: check it; what was acknowledged before stays as it is on the disk",
    errno.ENOENT: "a part of the store's folder is missing: mount or restore it; nothing was created in its place",
    errno.ENOTDIR: "a part of the store's path is not a folder: restore it",
}


def translate(exc: BaseException, op: str) -> BaseException:
    """What callers of the store see for an error of the system. A new object each time: many may raise it."""
    if isinstance(exc, MilepostError):
        return type(exc)(exc.message, **exc.facts)
    if isinstance(exc, OSError):
        number = exc.errno or 0
        where = f" ({exc.filename})" if exc.filename else ""
        advice = _ADVICE.get(number, "see to the cause, then try again")
        reason = f"{errno.errorcode.get(number, 'error')}, {os.strerror(number)}" if number else str(exc)
        return Unavailable(
            f"the file store cannot {op}{where}: {reason}: {advice}", backend="files", op=op, errno=exc.errno
        )
    if isinstance(exc, EOFError):
        return Unavailable(
            f"the file store cannot {op}: {exc}; a log was cut short while it was read, try again",
            backend="files",
            op=op,
        )
    return exc


def raise_translated(exc: BaseException, op: str) -> NoReturn:
    """Raise what `translate` makes of `exc`, without leaving it in a variable: a cycle would keep files open."""
    error: BaseException | None = translate(exc, op)
    try:
        if error is exc:
            raise exc
        assert error is not None
        raise error from exc
    finally:
        error = None


class Commit:
    """A request that the log of a thread can combine with others: one change, and the queue to put it in."""

    __slots__ = ("change", "op", "queue")

    def __init__(self, queue: Queue, change: Change, op: str) -> None:
        self.queue = queue
        self.change = change
        self.op = op

    def __call__(self) -> object:
        self.queue.run(self.change)
        return self.change.answer


class Workers:
    """The threads of a backend that work for event loops, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self.stopped = False

    def pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self.stopped:
                raise closed()
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="milepost-files")
            return self._pool

    def stop(self) -> None:
        """Refuse new requests, and wait for those that have begun. Idempotent."""
        with self._lock:
            self.stopped = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def renew(self) -> None:
        """Forget the threads of the process that this one was forked from."""
        self._lock = threading.Lock()
        self._pool = None


class Premises(Protocol):
    """What a port has to see to before the first request: the store's folder."""

    ready: bool

    def verify(self) -> None:
        """Raise unless there is a store that this release can use."""
        ...


class BlockingPort:
    """Carries out requests in the calling thread; system calls that take long release the interpreter."""

    def __init__(self, premises: Premises, workers: Workers) -> None:
        self._premises = premises
        self._workers = workers
        self._closed = False

    def close(self) -> None:
        self._closed = True

    async def call(self, request: object) -> object:
        assert callable(request)
        try:
            self._admit()
            if not (self._premises.ready or _prepares(request)):
                self._premises.verify()
            return request()
        except Exception as exc:
            raise_translated(exc, _op(request))

    def _admit(self) -> None:
        if self._closed or self._workers.stopped:
            raise closed()


class AsyncPort(BlockingPort):
    """Carries out requests in worker threads, for the event loop that awaits them."""

    async def call(self, request: object) -> object:
        assert callable(request)
        try:
            self._admit()
            pool = self._workers.pool()
            loop = asyncio.get_running_loop()
            if not (self._premises.ready or _prepares(request)):
                await loop.run_in_executor(pool, self._premises.verify)
            if isinstance(request, Commit):
                return await self._commit(request, pool)
            return await loop.run_in_executor(pool, request)
        except Exception as exc:
            raise_translated(exc, _op(request))

    async def _commit(self, request: Commit, pool: ThreadPoolExecutor) -> object:
        """A change that has begun is awaited even by a cancelled task: no write may appear after its caller left."""
        loop = asyncio.get_running_loop()
        queue = request.queue
        settled = loop.create_future()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(_settle, settled)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

        def lead() -> bool:
            try:
                pool.submit(queue.lead, job)
            except RuntimeError:
                return False  # the store is being closed: whoever leads now goes on
            return True

        job = Job(request.change, wake, lead)
        cancelled: asyncio.CancelledError | None = None
        try:
            if queue.enter(job) and not lead():
                queue.lead(job)
            while not settled.done():
                try:
                    await asyncio.shield(settled)
                except asyncio.CancelledError as exc:
                    if queue.withdraw(job):
                        raise
                    cancelled = exc
        except BaseException:
            queue.leave(job)
            raise
        finally:
            job.release()  # which knows the two functions above, which know it
        if cancelled is not None:
            raise cancelled
        job.check()
        return request.change.answer


def closed() -> Unavailable:
    """What a store answers after it was closed."""
    return Unavailable("this file store was closed; open it again to go on", backend="files", op="use")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _prepares(request: object) -> bool:
    return bool(getattr(request, "prepares", False))


def _op(request: object) -> str:
    return str(getattr(request, "op", "be used"))
