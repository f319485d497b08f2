"""Where async requests go. Connections of our own carry the requests of many tasks at once: those that come while a
reply is waited for go out together, when it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from redis.asyncio.cluster import PipelineCommand
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as TooLate

from milepost_redis.sources import Route, Words, pack
from milepost_redis.trouble import FAILURES, closed

T = TypeVar("T")

GRACE = 5.0
"""Seconds for which a request that is cancelled may go on, on a client of the application's: mostly the answer is under way,
and the connection stays good."""


class AsyncSource(Protocol):
    """Carries out commands for tasks of one event loop."""

    async def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        """As `milepost_redis.sources.Source.talk`. Cancelled, it ends when the replies are there.

        `last` is sent after all commands of all requests that go together, and its reply counts for each of them.
        """
        ...

    def close(self) -> Awaitable[None]:
        """Begin to close, from the event loop; awaited, it is done."""
        ...


class _Job:
    """The commands of one request on their way."""

    __slots__ = ("commands", "ended", "error", "last", "replies", "waiter")

    def __init__(self, commands: Sequence[Words], last: Words | None, loop: asyncio.AbstractEventLoop) -> None:
        self.commands = commands
        self.last = last
        self.replies: list[Any] = []
        self.error: BaseException | None = None
        self.waiter: asyncio.Future[None] = loop.create_future()
        self.ended = False

    def finish(self, error: BaseException | None = None) -> None:
        if not self.ended:
            self.ended = True
            self.error = error
            if not self.waiter.done() and not self.waiter.get_loop().is_closed():
                self.waiter.set_result(None)

    async def result(self) -> list[Any]:
        """The replies. A cancelled task waits for them too: what was sent is carried out, and must not be later."""
        cancelled: asyncio.CancelledError | None = None
        while not self.ended:
            try:
                await self.waiter
            except asyncio.CancelledError as exc:
                cancelled = exc
                self.waiter = asyncio.get_running_loop().create_future()
        if cancelled is not None:
            raise cancelled
        if self.error is not None:
            raise self.error
        return self.replies


class _Line:
    """One connection, and the task that talks over it while there is anything to say."""

    def __init__(self, connection: Any, timeout: float, most: int) -> None:
        self._connection = connection
        self._timeout = timeout
        self._most = most
        self._queue: list[_Job] = []
        self._task: asyncio.Task[None] | None = None
        self._stale = False
        self.waiting = 0

    def submit(self, job: _Job, *, fresh: bool) -> None:
        self._queue.append(job)
        self._stale = self._stale or fresh
        self.waiting += 1
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._over)

    async def _run(self) -> None:
        jobs: list[_Job] = []
        try:
            while self._queue:
                jobs, self._queue = self._queue[: self._most], self._queue[self._most :]
                try:
                    if self._stale:
                        self._stale = False
                        await self._connection.disconnect(nowait=True)
                    async with asyncio.timeout(self._timeout):
                        await self._converse(jobs)
                except TimeoutError:
                    await self._drop(jobs, TooLate(f"no reply within {self._timeout:g} s"))
                except Exception as exc:  # whatever it is, those who wait have to be told
                    await self._drop(jobs, exc)
        finally:
            self._halt(jobs)

    def _over(self, task: asyncio.Task[None]) -> None:
        if self._task is task:  # it was cancelled before it began, and has seen to nothing
            self._halt(())

    def _halt(self, jobs: Sequence[_Job]) -> None:
        """Whoever still waits does so because the loop is being stopped, and the task of the line with it."""
        self._task = None
        for job in (*jobs, *self._queue):
            self._end(job, Disconnected("the event loop was stopped"))
        self._queue.clear()

    async def _converse(self, jobs: Sequence[_Job]) -> None:
        connection = self._connection
        commands = [words for job in jobs for words in job.commands]
        last = next((job.last for job in jobs if job.last), None)
        await send(connection, commands if last is None else [*commands, last])
        for job in jobs:
            for _ in job.commands:
                job.replies.append(await receive(connection))
            if job.last is None:
                self._end(job)
        if last is not None:
            reply = await receive(connection)
            for job in jobs:
                if job.last is not None:
                    job.replies.append(reply)
                    self._end(job)

    async def _drop(self, jobs: Sequence[_Job], error: BaseException) -> None:
        await self._connection.disconnect(nowait=True)
        for job in jobs:
            self._end(job, error)

    def _end(self, job: _Job, error: BaseException | None = None) -> None:
        if not job.ended:
            self.waiting -= 1
            job.finish(error)

    async def close(self) -> None:
        """Close the connection once nothing is said over it any more; at once, if whoever closes is cancelled."""
        try:
            if self._task is not None:
                await asyncio.wait([self._task])
            await self._connection.disconnect()
        except asyncio.CancelledError:
            await self._connection.disconnect(nowait=True)
            raise


class Watch:
    """Closes something with the event loop it belongs to, if nobody did it before: a loop that ends closes its
    generators.

    It closes them in any order. Others may have something to say once this is `over`, and then to be closed after it.
    """

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close
        self._life: AsyncGenerator[None] | None = None
        self._closed = asyncio.Event()
        self.over = False

    async def begin(self) -> None:
        if self._life is None and not self.over:
            self._life = self._lives()
            await anext(self._life)

    async def end(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            await life.aclose()
        elif self.over:  # by somebody else, who may still be at it
            await self._closed.wait()

    async def _lives(self) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            self.over = True
            try:
                await self._close()
            finally:
                self._closed.set()


class Lines:
    """The connections of our own of one event loop, few of them: each carries any number of requests.

    `end` closes what `make` uses.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        size: int,
        timeout: float,
        most: int = 64,
        end: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._make = make
        self._size = size
        self._timeout = timeout
        self._most = most
        self._end = end
        self._lines: list[_Line] = []
        self._closed = False
        self._watch = Watch(self._close_lines)

    async def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        await self._watch.begin()
        if self._closed:
            raise closed()
        job = _Job(commands, last, asyncio.get_running_loop())
        self._line().submit(job, fresh=fresh)
        try:
            return await job.result()
        finally:
            if self._watch.over:
                await self._close_lines()

    def _line(self) -> _Line:
        best = min(self._lines, key=lambda line: line.waiting, default=None)
        if best is None or (best.waiting and len(self._lines) < self._size):
            best = _Line(self._make(), self._timeout, self._most)
            self._lines.append(best)
        return best

    async def _close_lines(self) -> None:
        await surely(self._close_all)

    async def _close_all(self) -> None:
        while self._lines:
            await self._lines.pop().close()
        if self._end is not None:
            await self._end()

    async def close(self) -> None:
        self._closed = True
        await self._watch.end()


class AsyncBorrowed:
    """The connections of an async client that the application owns: standalone or behind sentinels."""

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool

    async def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        return await whole(self._talk(commands if last is None else [*commands, last], fresh=fresh))

    async def _talk(self, commands: Sequence[Words], *, fresh: bool) -> list[Any]:
        pool = self._pool
        connection = await pool.get_connection()
        try:
            if fresh:
                await connection.disconnect(nowait=True)
            await send(connection, commands)
            replies = [await receive(connection) for _ in commands]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        else:
            return replies
        finally:
            await pool.release(connection)

    async def close(self) -> None:
        """The client stays open."""


class AsyncRouted:
    """An async cluster client. One that is `owned` is closed after at most `patience` seconds, whoever still talks."""

    def __init__(self, client: Any, *, owned: bool, patience: float = 0.0) -> None:
        self._client = client
        self._patience = patience
        self._watch = Watch(self._last) if owned else None
        self._talks = 0
        """How many are at work. The client closes what is open at that moment, not what is just being connected."""
        self._idle = asyncio.Event()
        self._idle.set()

    async def talk(self, commands: Sequence[Words], last: Words | None = None, *, fresh: bool = False) -> list[Any]:
        if self._watch is None:
            return await self._whole(commands, last, fresh=fresh)
        await self._watch.begin()
        self._talks += 1
        self._idle.clear()
        try:
            return await self._whole(commands, last, fresh=fresh)
        finally:
            self._talks -= 1
            if not self._talks:
                self._idle.set()
                if self._watch.over:
                    await self._end()

    async def _whole(self, commands: Sequence[Words], last: Words | None, *, fresh: bool) -> list[Any]:
        if last is not None:
            (command,) = commands
            return await whole(self._together(command, last, fresh=fresh))
        return await whole(self._talk(commands))

    async def _last(self) -> None:
        # The client tries again by itself: with a node that does not answer, a talk may take many times its timeout. Whoever
        # is left then is disturbed, and closes what he connects.
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self._idle.wait()
        finally:
            await self._end()

    async def _end(self) -> None:
        await surely(self._close_all)

    async def _close_all(self) -> None:
        with suppress(*FAILURES):  # of what was said, the answers are there
            await self._client.aclose()
        # A client that gave a cluster up for lost takes itself for closed, and keeps what was connected meanwhile.
        for nodes in ("nodes_cache", "startup_nodes"):
            with suppress(*FAILURES):
                await self._client.nodes_manager.aclose(nodes)

    async def _talk(self, commands: Sequence[Words]) -> list[Any]:
        replies: list[Any] = []
        for words in commands:
            try:
                replies.append(await self._client.execute_command(words[0].decode(), *words[1:], NEVER_DECODE=True))
            except ResponseError as exc:
                replies.append(exc)
            except AttributeError as exc:
                # When the client learns of other nodes, it may end a connection that is just being made.
                raise Disconnected(f"the cluster client ended a connection: {exc}") from exc
        return replies

    async def _together(self, command: Words, last: Words, *, fresh: bool) -> list[Any]:
        """As `milepost_redis.sources.Routed`."""
        client = await self._client.initialize()
        if fresh:
            await client.nodes_manager.initialize()
        route = Route(command, last)
        node = client.get_node_from_key(route.key)
        while True:
            sent = [PipelineCommand(nr, *words, NEVER_DECODE=True) for nr, words in enumerate(route.commands)]
            await node.execute_pipeline(sent)
            replies = [each.result for each in sent]
            for reply in replies:
                if isinstance(reply, Exception) and not isinstance(reply, ResponseError):
                    raise reply
            to = route.redirected(replies)
            if to is None:
                return route.answer(replies)
            node = client.get_node(*to)
            if node is None or route.moved:
                await client.nodes_manager.initialize()
                node = route.known(client.get_node(*to))

    async def close(self) -> None:
        if self._watch is not None:
            await self._watch.end()


async def send(connection: Any, commands: Sequence[Words]) -> None:
    """Send commands over an async connection of redis-py."""
    packed = pack(connection, commands)
    if not connection.is_connected:
        await connection.connect()
    await connection.send_packed_command([packed], check_health=False)


async def receive(connection: Any) -> Any:
    """The next reply; an error of the server is one too."""
    try:
        return await connection.read_response(disable_decoding=True)
    except ResponseError as exc:
        return exc


async def surely(close: Callable[[], Awaitable[None]]) -> None:
    """Carry out `close`; if that is cancelled, go on with what it has left open."""
    try:
        await close()
    except asyncio.CancelledError:
        await close()
        raise


def _not_needed(timer: asyncio.TimerHandle, _: object) -> None:
    timer.cancel()


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Carry out `work` to its end, even if the task that waits for it is cancelled meanwhile; then for `GRACE` at most."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            if task.cancelled():
                raise
            if cancelled is None:
                task.add_done_callback(partial(_not_needed, loop.call_later(GRACE, task.cancel)))
            cancelled = exc
        except Exception:
            break  # told below
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()
