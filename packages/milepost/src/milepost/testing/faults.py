"""A port that fails on demand: before a request is sent, after it was carried out, or by not answering."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Literal, Protocol

from milepost.errors import Unavailable
from milepost.flavour import run
from milepost.pending import running_loop
from milepost.store import Backend, Port, Store

Moment = Literal["before", "after", "hang", "twice"]
"""When a call goes wrong.

- "before": `Unavailable`, and the request was never sent
- "after": `Unavailable`, though the request was carried out: its reply is lost
- "hang": the request is carried out, and its reply comes when `Plan.release` is called
- "twice": the request is carried out a second time, as by a port that repeats it after a lost reply
"""


class Plan:
    """Which calls go wrong, and how. Shared by the ports of one backend; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: tuple[Moment, int, int] | None = None
        self._released: Future[None] = Future()
        self.calls = 0
        """Calls since the plan was last armed."""
        self.hanging: Future[None] = Future()
        """Done as soon as a call hangs."""

    def arm(self, moment: Moment, at: int = 0, times: int = 1) -> None:
        """The calls number `at` to ``at + times - 1``, counted from now on and from 0, go wrong in this way."""
        with self._lock:
            self._armed = (moment, at, times)
            self._released, self.hanging = Future(), Future()
            self.calls = 0

    def disarm(self) -> None:
        """Let all calls succeed from now on."""
        with self._lock:
            self._armed = None
            self.calls = 0

    def release(self) -> None:
        """Let the replies go that are held back."""
        if not self._released.done():
            self._released.set_result(None)

    def next(self) -> Moment | None:
        """What happens to the call that comes now."""
        with self._lock:
            number = self.calls
            self.calls += 1
            if self._armed is None:
                return None
            moment, at, times = self._armed
            return moment if at <= number < at + times else None

    async def hang(self) -> None:
        """Wait for `release`: on the running loop if there is one, else blocking."""
        released = self._released
        if not self.hanging.done():
            self.hanging.set_result(None)
        if running_loop() is None:
            released.result()
        else:
            await asyncio.wrap_future(released)


class FaultyPort:
    """`port`, going wrong by `plan`."""

    def __init__(self, port: Port, plan: Plan) -> None:
        self._port = port
        self._plan = plan

    async def call(self, request: object) -> object:
        moment = self._plan.next()
        if moment == "before":
            raise Unavailable("the fault port did not send a request: try again", backend="faulty", op="send")
        reply = await self._port.call(request)
        if moment == "after":
            raise Unavailable("the fault port lost a reply: try again", backend="faulty", op="receive")
        if moment == "twice":
            return await self._port.call(request)
        if moment == "hang":
            await self._plan.hang()
        return reply


class Overable(Protocol):
    """A backend that offers its store over another port."""

    def over(self, port: Port) -> Store:
        """The same data, reached through `port`."""
        ...


class FaultyBackend:
    """A backend whose store is reached through a `FaultyPort` in both flavours."""

    def __init__(self, backend: Backend, store: Store) -> None:
        self._backend = backend
        self._store = store
        self.name = backend.name
        self.capabilities = backend.capabilities - {"tenants"}  # the store given is of one tenant already

    def blocking(self) -> Store:
        return self._store

    def asynchronous(self) -> Store:
        return self._store

    def close(self) -> None:
        self._backend.close()
        run(self._store.close())

    async def aclose(self) -> None:
        await self._backend.aclose()
        await self._store.close()
