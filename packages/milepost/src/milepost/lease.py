"""Leases for whoever drives a thread: taken for a block of code, kept alive by a heartbeat, carried by every write in it.

What the store keeps is a `milepost.fences.Lease`. Who holds one is known by a context variable, which LangGraph's
executors and tasks hand on: so the writes of a run carry the fence wherever they are made.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Self, TypeGuard

from milepost.errors import Busy, InvalidConfig, LeaseLost, MilepostError
from milepost.fences import Lease
from milepost.flavour import run
from milepost.observe import Event, Observers, hushed, log, thread_hash
from milepost.places import check_id
from milepost.store import Store
from milepost.ticking import ticking

Clock = Callable[[], float]
Opener = Callable[[], Coroutine[Any, Any, Store]]
"""The store in one flavour, set up."""

_BEATS: Final = 3
"""Heartbeats in the time that a lease lasts."""
_HURRY: Final = 4
"""How much sooner than that a heartbeat is tried again that did not get through."""
_SOON: Final = 0.02
_SELDOM: Final = 1.0
"""Seconds between two looks at a lease that somebody else has: at first `_SOON`, at most this."""
_LONGEST: Final = 1e8
_ERROR_LENGTH: Final = 2000


class _Held:
    """A lease that this process has taken, as its writes and its heartbeat see it."""

    __slots__ = ("_clock", "active", "error", "lease", "of", "safe_until", "thread", "ttl")

    def __init__(self, of: object, thread: str, lease: Lease, ttl: float, asked: float, clock: Clock) -> None:
        self.of = of
        self.thread = thread
        self.lease = lease
        self.ttl = ttl
        self.safe_until = asked + ttl
        """By the clock of this process: until then nobody can have taken it without a hand-over."""
        self._clock = clock
        self.active = True
        self.error: LeaseLost | None = None
        """Why it is known to be lost."""

    def fence(self) -> int:
        """What a write carries. Raises `LeaseLost` when the lease is known to be lost."""
        if self.error is not None:
            raise LeaseLost(self.error.message, **self.error.facts)
        return self.lease.fence

    def check(self) -> None:
        """Raise `LeaseLost` if, as far as is known here, somebody else can have it. Asks nobody."""
        self._check_begun()
        if self._clock() >= self.safe_until:
            raise _unsure(self, "its heartbeat is late")

    def _check_begun(self) -> None:
        self.fence()
        if not self.active:
            raise _unsure(self, "it was given back at the end of its block")

    async def ask(self, opener: Opener) -> None:
        """Renew the lease. Raises `LeaseLost` when it is somebody else's."""
        self._check_begun()
        store = await opener()
        asked = self._clock()
        try:
            await store.renew(self.thread, self.lease.owner, self.lease.fence, self.ttl)
        except LeaseLost as exc:
            self.error = self.error or exc
            raise
        self.safe_until = max(self.safe_until, asked + self.ttl)

    async def beat(self, store: Store, pause: Callable[[float], Awaitable[bool]], report: Callable[[], None]) -> None:
        """Renew the lease until `pause` says that it is enough, or until it is lost."""
        step = self.ttl / _BEATS
        while await pause(step):
            asked = self._clock()
            try:
                await store.renew(self.thread, self.lease.owner, self.lease.fence, self.ttl)
            except LeaseLost as exc:
                self.error = exc
            except Exception as exc:  # whatever it is, the run has to learn of it
                if self._clock() >= self.safe_until:
                    self.error = _unsure(self, f"its heartbeat does not get through ({exc})")
                step = self.ttl / _BEATS / _HURRY
            else:
                self.safe_until = asked + self.ttl
                step = self.ttl / _BEATS
            if self.error is not None:
                report()
                return


_leases: ContextVar[tuple[_Held, ...]] = ContextVar("milepost_leases", default=())


def fence_for(of: object, thread: str) -> int | None:
    """The fence that a write to `thread` carries here, None without a lease. `of` is what savers of one store share.

    Raises `LeaseLost` when the lease is known to be lost.
    """
    for held in reversed(_leases.get()):
        if held.of is of and held.thread == thread:
            return held.fence()
    return None


def refused(of: object, thread: str, error: LeaseLost) -> None:
    """A write to `thread` was refused here: what is done next under the same lease need not ask for that."""
    for held in _leases.get():
        if held.of is of and held.thread == thread and held.lease.fence == error.facts.get("fence"):
            held.error = held.error or error


def check(of: object, thread: str) -> None:
    """Raise `LeaseLost` if code that runs here under a lease of `thread` may not be the only one any more.

    For what comes before an effect that no store can refuse. Without a lease it does nothing.
    """
    for held in reversed(_leases.get()):
        if held.of is of and held.thread == thread:
            return held.check()
    return None


@dataclass(frozen=True, slots=True)
class Terms:
    """What `milepost.saver.Saver.lease` was asked for."""

    ttl: float
    wait: float | None
    steal: bool | str
    owner: str


class ThreadLease:
    """The lease of a thread, for a ``with`` or ``async with``. Made by `milepost.saver.Saver.lease`; used once."""

    def __init__(
        self,
        of: object,
        thread: str,
        terms: Terms,
        openers: tuple[Opener, Opener],
        observers: Observers,
        clock: Clock = ticking,
    ) -> None:
        self._of = of
        self.thread_id = thread
        self._terms = terms
        self._open, self._open_async = openers
        self._observers = observers
        self._clock = clock
        self._held: _Held | None = None
        self._inner = False
        self._failure: str | None = None
        self._store: Store | None = None
        self._stop = threading.Event()
        self._heart: threading.Thread | asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if not self._within_another():
            run(self._take(self._open(), _sleep))
            heart = threading.Thread(target=self._beat, name="milepost-lease", daemon=True)
            self._heart = heart
            heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inner:
            return
        self._leave(error)
        self._stop.set()
        if isinstance(self._heart, threading.Thread):
            self._heart.join()
        run(self._give_back())

    async def __aenter__(self) -> Self:
        if not self._within_another():
            await self._take(self._open_async(), asyncio.sleep)
            self._heart = asyncio.get_running_loop().create_task(self._beat_async())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inner:
            return
        self._leave(error)
        if isinstance(self._heart, asyncio.Task):
            self._heart.cancel()
            await asyncio.wait((self._heart,))
        await self._give_back()

    @property
    def owner(self) -> str:
        """The name under which the thread is held, as `milepost.errors.Busy` tells it to others."""
        return self._taken().lease.owner

    @property
    def fence(self) -> int:
        """What every write in the block carries."""
        return self._taken().lease.fence

    @property
    def tries(self) -> int:
        """How many owners in a row crashed or failed before this one."""
        return self._taken().lease.tries

    @property
    def last_error(self) -> str:
        """What the last of them said, if he said anything."""
        return self._taken().lease.error

    @property
    def failure(self) -> str:
        """What `fail` was told, as it is kept."""
        return self._failure or ""

    @property
    def lost(self) -> bool:
        """Whether it is known that the thread is another's now: from a heartbeat, from `check`, or because a write was
        refused. Then every further write in the block raises. It asks nobody: `check` does."""
        return self._taken().error is not None

    def check(self) -> None:
        """Make sure, right before what cannot be taken back, that the thread is this owner's; renews the lease.

        One round trip, that blocks. When this returns, nobody gets the thread for `ttl` seconds, unless he takes it over.
        Raises `LeaseLost` when it is somebody else's, and `Unavailable` when the store cannot be asked: nothing must be
        done then.
        """
        run(self._taken().ask(self._open))

    async def acheck(self) -> None:
        """`check`, async."""
        await self._taken().ask(self._open_async)

    def fail(self, error: BaseException | str) -> None:
        """Have this owner counted as one that failed, when the lease is given back: see `milepost.recover`."""
        text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        self._failure = text.replace("\0", "").encode("utf-8", "replace").decode()[:_ERROR_LENGTH]

    def bind(self) -> None:
        """Have what is called from here on carry the fence, in whatever context this is."""
        held = self._taken()
        if held not in _leases.get():
            _leases.set((*_leases.get(), held))

    # How it is done.

    def _taken(self) -> _Held:
        if self._held is None:
            raise RuntimeError("a lease is held inside its with block only")
        return self._held

    def _within_another(self) -> bool:
        """Whether this code holds the thread's lease already; then it is that one."""
        if self._held is not None:
            raise RuntimeError("a lease is for one with block: call saver.lease(…) again")
        outer = (held for held in _leases.get() if held.of is self._of and held.thread == self.thread_id)
        self._held = next((held for held in outer if held.active), None)
        self._inner = self._held is not None
        return self._inner

    async def _take(self, opening: Coroutine[Any, Any, Store], pause: Callable[[float], Awaitable[object]]) -> None:
        event = Event("lease", self._observers.backend, thread_hash(self.thread_id))
        started = self._clock()
        owner = f"{self._terms.owner}:{secrets.token_hex(4)}"
        try:
            store = self._store = await opening
            try:
                lease, asked = await self._acquire(store, owner, pause)
            except Busy:
                raise
            except BaseException:
                # Its reply may be what was lost, or what a cancelled task did not wait for.
                await self._end(store, owner)
                raise
        except BaseException as exc:
            event.outcome, event.error = "error", type(exc).__name__
            raise
        finally:
            event.seconds = self._clock() - started
            self._observers.emit(event)
        self._held = _Held(self._of, self.thread_id, lease, self._terms.ttl, asked, self._clock)
        self.bind()

    async def _acquire(
        self, store: Store, owner: str, pause: Callable[[float], Awaitable[object]]
    ) -> tuple[Lease, float]:
        """The lease, and when it was asked for."""
        terms, started, step = self._terms, self._clock(), _SOON
        while True:
            asked = self._clock()
            lease = await store.acquire(self.thread_id, owner, terms.ttl)
            if lease.owner == owner:
                return lease, asked
            left = step if terms.wait is None else started + terms.wait - self._clock()
            if left <= 0:
                break
            await pause(min(left, step * random.uniform(0.5, 1.0)))  # noqa: S311  # nothing is kept secret by it
            step = min(step * 2, _SELDOM)
        if terms.steal is True or terms.steal == lease.owner:
            asked = self._clock()
            lease = await store.acquire(self.thread_id, owner, terms.ttl, lease.fence)
            if lease.owner == owner:
                return lease, asked
        raise _busy(self.thread_id, lease)

    def _beat(self) -> None:
        async def pause(seconds: float) -> bool:
            return not self._stop.wait(seconds)

        assert self._store is not None
        run(self._taken().beat(self._store, pause, self._report))

    async def _beat_async(self) -> None:
        async def pause(seconds: float) -> bool:
            await asyncio.sleep(seconds)
            return True

        assert self._store is not None
        await self._taken().beat(self._store, pause, self._report)

    def _report(self) -> None:
        error = self._taken().error
        assert error is not None
        log.warning("%s", hushed(error.message, self.thread_id))
        hashed = thread_hash(self.thread_id)
        self._observers.emit(Event("lease", self._observers.backend, hashed, "error", error=type(error).__name__))

    def _leave(self, error: BaseException | None) -> None:
        if self._failure is None and isinstance(error, KeyboardInterrupt | SystemExit | asyncio.CancelledError):
            # This process or task is told to end (under asyncio, Ctrl-C is a cancellation, too), and nobody is told that
            # its work is not done.
            self.fail(error)
        held = self._taken()
        held.active = False
        _leases.set(tuple(each for each in _leases.get() if each is not held))

    async def _give_back(self) -> None:
        assert self._store is not None
        await self._end(self._store, self.owner)

    async def _end(self, store: Store, owner: str) -> None:
        try:
            await store.release(self.thread_id, owner, self._failure)
        except MilepostError as exc:
            log.warning("a lease was not given back (%s); it will expire", hushed(exc.message, self.thread_id))


async def _sleep(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251  # the blocking flavour


def terms_of(ttl: object, wait: object, steal: object, owner: object) -> Terms:
    """The arguments of `Saver.lease`, checked."""
    if not _number(ttl) or not 0 < ttl <= _LONGEST:
        raise _unusable("ttl", ttl, f"a number of seconds, more than 0 and at most {_LONGEST:g}")
    if wait is not None and not (_number(wait) and wait >= 0):
        raise _unusable("wait", wait, "a number of seconds, 0 or more, or None to wait for ever")
    if not isinstance(steal, bool | str):
        raise _unusable("steal", steal, "true, false, or the owner to take it from")
    named = f"{socket.gethostname()}:{os.getpid()}" if owner is None else check_id(owner, "owner")
    return Terms(float(ttl), None if wait is None else float(wait), steal, named)


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unusable(what: str, value: object, wanted: str) -> InvalidConfig:
    return InvalidConfig(f"{what} is {value!r}: it must be {wanted}", what=what, value=repr(value)[:200])


def _unsure(held: _Held, why: str) -> LeaseLost:
    fence = held.lease.fence
    return LeaseLost(
        f"the lease of thread {held.thread!r} with fence {fence} may be lost: {why}, so another worker may have the "
        "thread. Stop this run; to go on, take the lease anew and start from the thread's latest checkpoint.",
        thread=held.thread,
        fence=fence,
        found=None,
    )


def _busy(thread: str, lease: Lease) -> Busy:
    since, until = (datetime.fromtimestamp(at, UTC).isoformat(" ", "seconds") for at in (lease.since, lease.expires))
    return Busy(
        f"thread {thread!r} is driven by {lease.owner!r} since {since}; without a further heartbeat its lease is over "
        f"at {until}. Try again later, wait for it with wait=…, or take it over with steal=True.",
        thread=thread,
        owner=lease.owner,
        since=lease.since,
        expires=lease.expires,
    )
