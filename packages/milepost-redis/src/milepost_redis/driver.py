"""The two engines of the Redis store: one verb, "carry out this request", with its retries and its errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from milepost.combine import Alone, Combiner
from milepost.errors import MilepostError
from redis.exceptions import NoScriptError

from milepost_redis.lines import AsyncSource
from milepost_redis.request import Request
from milepost_redis.sources import Source, Words
from milepost_redis.trouble import FAILURES, translate, trouble, undurable

_TRIES: Final = 4
_PAUSES: Final = (0.0, 0.05, 0.25)
"""Seconds before each further try."""


@dataclass(frozen=True, slots=True)
class Durability:
    """What a write waits for after it was carried out."""

    option: str
    command: tuple[bytes, ...] = ()
    """The command that waits."""
    needed: int = 0

    def reached(self, reply: Any) -> int:
        """How many confirmed; in the reply to WAITAOF, the server itself comes first."""
        return int(reply[0] if isinstance(reply, list) else reply)


class _Talk:
    """One request: what is to be sent, and what its replies mean."""

    def __init__(self, request: Request, durability: Durability) -> None:
        self._request = request
        self._waits = durability if request.writes and durability.command else None
        self._failed = 0
        self.whole = False
        """Whether scripts go with their text."""

    def commands(self) -> tuple[list[Words], Words | None]:
        """What is sent, and what is sent last."""
        commands: list[Words] = [step.words(whole=self.whole) for step in self._request.steps]
        return commands, self._waits.command if self._waits else None

    def answers(self, replies: list[Any]) -> list[Any] | None:
        """The answers; None when the server does not know a script and the request has to go once more."""
        for reply in replies:
            if isinstance(reply, NoScriptError) and not self.whole:
                self.whole = True
                return None
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        if self._waits:
            got = self._waits.reached(replies.pop())
            if got < self._waits.needed:
                raise undurable(self._request.op, self._waits.option, got)
        return replies

    def outcome(self, replies: list[Any]) -> list[Any] | MilepostError | None:
        """`answers` where others go together with this request: an error is its own, and returned."""
        try:
            return self.answers(replies)
        except MilepostError as exc:
            return exc
        except FAILURES as exc:
            return self.outcome_of(exc)

    def outcome_of(self, exc: BaseException) -> MilepostError | None:
        """The error that `exc` is for this request; None where it may go better if it goes again, alone."""
        if trouble(exc).again:
            return None
        error = translate(exc, self._request.op)
        error.__cause__ = exc
        return error

    def again(self, exc: BaseException) -> float | None:
        """How many seconds to wait before another try, or None when `exc` is final."""
        self._failed += 1
        if self._failed >= _TRIES or not trouble(exc).again:
            return None
        return _PAUSES[self._failed - 1]


class Engine:
    """What the blocking stores of a backend share: it carries out requests in the calling thread."""

    def __init__(self, source: Source, durability: Durability) -> None:
        self._source = source
        self._durability = durability
        self._combiner = Combiner[Request, list[Any]](self._send)

    def call(self, request: Request) -> list[Any]:
        if request.together and self._source.shares:
            try:
                return self._combiner.run(request)
            except Alone:
                pass  # what was wrong shows when the request goes alone
        return self._alone(request)

    def _send(self, requests: Sequence[Request]) -> Sequence[list[Any] | MilepostError | None]:
        """Carry out requests: their answers, and for those that have to go alone, None."""
        if len(requests) == 1:
            return [self._alone(requests[0])]
        talks = [_Talk(request, self._durability) for request in requests]
        asked = [talk.commands() for talk in talks]
        commands = [words for own, _ in asked for words in own]
        last = next((wait for _, wait in asked if wait), None)
        try:
            replies = iter(self._source.talk(commands, last))
        except FAILURES as exc:
            return [talk.outcome_of(exc) for talk in talks]
        dealt = [[next(replies) for _ in own] for own, _ in asked]
        waited = list(replies)
        return [
            talk.outcome([*own, *waited] if wait else own)
            for talk, own, (_, wait) in zip(talks, dealt, asked, strict=True)
        ]

    def _alone(self, request: Request) -> list[Any]:
        talk = _Talk(request, self._durability)
        fresh = False
        while True:
            try:
                answers = talk.answers(self._source.talk(*talk.commands(), fresh=fresh))
            except FAILURES as exc:
                pause = talk.again(exc)
                if pause is None:
                    raise translate(exc, request.op) from exc
                fresh = True
            else:
                if answers is not None:
                    return answers
                pause = 0.0
            time.sleep(pause)

    def close(self) -> None:
        self._source.close()


class AsyncEngine:
    """What the async stores of one event loop share."""

    def __init__(self, source: AsyncSource, durability: Durability) -> None:
        self._source = source
        self._durability = durability
        self._loop = asyncio.get_running_loop()

    async def call(self, request: Request) -> list[Any]:
        talk = _Talk(request, self._durability)
        fresh = False
        while True:
            try:
                answers = talk.answers(await self._source.talk(*talk.commands(), fresh=fresh))
            except FAILURES as exc:
                pause = talk.again(exc)
                if pause is None:
                    raise translate(exc, request.op) from exc
                fresh = True
            else:
                if answers is not None:
                    return answers
                pause = 0.0
            await asyncio.sleep(pause)

    def close(self) -> None:
        """Begin to close, from any thread."""
        loop = self._loop
        if loop.is_closed():
            return
        try:
            running = asyncio.get_running_loop() is loop
        except RuntimeError:
            running = False
        if running:
            _keep(loop.create_task(self.aclose()))
        elif loop.is_running():
            loop.call_soon_threadsafe(lambda: _keep(loop.create_task(self.aclose())))

    async def aclose(self) -> None:
        await self._source.close()


_closing: set[asyncio.Task[None]] = set()


def _keep(task: asyncio.Task[None]) -> None:
    """A task that nobody refers to may vanish before it has run."""
    _closing.add(task)
    task.add_done_callback(_closing.discard)
