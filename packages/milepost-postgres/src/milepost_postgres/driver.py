"""The two engines of the Postgres store: one verb, "carry out this request", with its retries and its errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from milepost.combine import Alone, AsyncCombiner, Combiner

from milepost_postgres.pool import AsyncSource, Source
from milepost_postgres.request import Request, Step
from milepost_postgres.schema import Schema
from milepost_postgres.trouble import translate, trouble
from milepost_postgres.wire import text

Answers = list[list[tuple[Any, ...]]]
"""The rows of each step of a request."""

_BATCH_WAIT = "250"
"""Milliseconds that a batch waits for a lock before its writes go one by one."""
_TRIES = 3
_PAUSE = 0.05
"""Seconds before a third try; the second one follows at once."""


class _Batch:
    """The steps of several requests, by thread: so two batches take their locks in the same order."""

    def __init__(self, requests: Sequence[Request], schema: Schema) -> None:
        self._requests = requests
        self._order = sorted(range(len(requests)), key=lambda number: requests[number].group or "")
        timeout = schema.queries["lock_timeout"].step({"milliseconds": text(_BATCH_WAIT)})
        self.steps = [timeout, *(step for number in self._order for step in requests[number].steps)]

    def deal(self, answers: Answers) -> list[Answers]:
        """The answers of each request, in the order in which the requests came."""
        dealt: list[Answers] = [[] for _ in self._requests]
        at = 1
        for number in self._order:
            past = at + len(self._requests[number].steps)
            dealt[number] = answers[at:past]
            at = past
        return dealt


class Engine:
    """What the blocking stores of a backend share: it carries out requests in the calling thread."""

    def __init__(self, source: Source, schema: Schema, first: Sequence[Step] = ()) -> None:
        self._source = source
        self._schema = schema
        self._first = first
        """What comes first in every transaction."""
        self._combiner = Combiner[Request, Answers](self._send)

    def call(self, request: Request) -> Answers:
        if request.group is not None and self._source.shares:
            try:
                return self._combiner.run(request)
            except Alone:
                pass  # what was wrong with the batch shows when the request goes alone
        return self._alone(request)

    def _send(self, requests: Sequence[Request]) -> list[Answers]:
        if len(requests) == 1:
            return [self._alone(requests[0])]
        batch = _Batch(requests, self._schema)
        try:
            return batch.deal(self._run(batch.steps))
        except psycopg.Error as exc:
            raise Alone from exc

    def _alone(self, request: Request) -> Answers:
        attempt = 0
        while True:
            try:
                return self._run(request.steps, fresh=attempt > 0)
            except psycopg.Error as exc:
                attempt += 1
                if _final(exc, attempt, shares=self._source.shares):
                    raise translate(exc, request.op) from exc
            time.sleep(_PAUSE * (attempt - 1))

    def _run(self, steps: Sequence[Step], *, fresh: bool = False) -> Answers:
        if not self._first:
            return self._source.run(steps, fresh=fresh)
        return self._source.run((*self._first, *steps), fresh=fresh)[len(self._first) :]

    def close(self) -> None:
        self._source.close()


class AsyncEngine:
    """What the async stores of one event loop share."""

    def __init__(self, source: AsyncSource, schema: Schema, first: Sequence[Step] = ()) -> None:
        self._source = source
        self._schema = schema
        self._first = first
        self._combiner = AsyncCombiner[Request, Answers](self._send)

    async def call(self, request: Request) -> Answers:
        if request.group is not None and self._source.shares:
            try:
                return await self._combiner.run(request)
            except Alone:
                pass  # as in `Engine`
        return await self._alone(request)

    async def _send(self, requests: Sequence[Request]) -> list[Answers]:
        if len(requests) == 1:
            return [await self._alone(requests[0])]
        batch = _Batch(requests, self._schema)
        try:
            return batch.deal(await self._run(batch.steps))
        except psycopg.Error as exc:
            raise Alone from exc

    async def _alone(self, request: Request) -> Answers:
        attempt = 0
        while True:
            try:
                return await self._run(request.steps, fresh=attempt > 0)
            except psycopg.Error as exc:
                attempt += 1
                if _final(exc, attempt, shares=self._source.shares):
                    raise translate(exc, request.op) from exc
            await asyncio.sleep(_PAUSE * (attempt - 1))

    async def _run(self, steps: Sequence[Step], *, fresh: bool = False) -> Answers:
        if not self._first:
            return await self._source.run(steps, fresh=fresh)
        return (await self._source.run((*self._first, *steps), fresh=fresh))[len(self._first) :]

    def close(self) -> None:
        self._source.close()

    async def aclose(self) -> None:
        self.close()


def _final(exc: psycopg.Error, attempt: int, *, shares: bool) -> bool:
    return attempt == _TRIES or not shares or not trouble(exc).again
