"""The call that is being performed: what a tool asks for its key, and what an adapter hands back to be settled."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from milepost.callstore import Mark
from milepost.codec.calls import CallInfo, Checkpoints, downstream
from milepost.flavour import run
from milepost.ledger.errors import CallSuperseded
from milepost.ledger.hands import check_function
from milepost.ledger.policy import ToolPolicy
from milepost.ledger.record import CallRecord

if TYPE_CHECKING:
    from milepost.ledger.core import Core

_current: ContextVar[Call | None] = ContextVar("milepost_call", default=None)


class Call:
    """One authorised execution of a call. Made by the ledger alone."""

    def __init__(
        self,
        core: Core,
        *,
        thread: str,
        home: str,
        record_key: str,
        info: CallInfo,
        policy: ToolPolicy,
        mark: Mark | None,
        until: float,
        fence: int | None,
        places: Checkpoints = (),
        began: float | None = None,
    ) -> None:
        self._core = core
        self.home = home
        """Where the record lies: the thread id, or "" for a key of global scope."""
        self.thread = thread
        """The thread that the call is made in."""
        self.record_key = record_key
        """The key of the record: what `Ledger.resolve` takes."""
        self.info = info
        self.policy = policy
        self.mark = mark
        """The version of the record that this execution owns; None for a call that is not recorded."""
        self.until = until
        self.fence = fence
        """The fence of the thread's lease, if there is one."""
        self.places = places
        """The checkpoints that its task started from."""
        self.began = began
        """When this attempt was claimed, by the store's clock; None where the record's own beginning says it."""
        self.checked = core.monotonic()
        self.pledge = ""
        """The stamp of the change by which a transaction of the application's settles the call, once it is committed."""
        self.joined: object = None
        """The connection of that transaction."""
        self.transaction = 0
        """Names it."""
        self.committed = False
        """That transaction is known to be committed."""
        self.over = False
        """The call is settled, given up, or another worker's."""
        self.passed = ""
        """The digest of an answer that the run was resumed with, and that is none to a question of this call's function."""
        self.abandoned = False
        """Whoever waited for its function has left it, and it may go on in its thread."""
        self.in_doubt = False
        """Its function has raised, and nobody has found out that the effect did not take place."""

    @property
    def recorded(self) -> bool:
        """Whether there is a record: not for tools that are `readonly`."""
        return self.mark is not None

    @property
    def key(self) -> str:
        """What to hand to an API as its idempotency key: the same for every attempt, at most 64 characters."""
        return downstream(self.info.handle, self.generation, self.info.step)

    @property
    def tool(self) -> str:
        return self.info.tool

    @property
    def generation(self) -> int:
        """Rises when the call is performed anew after it was undone."""
        return 0 if self.mark is None else self.mark.generation

    @property
    def attempt(self) -> int:
        """0 at first; greater when it is performed again although, or because, an earlier attempt did not end well."""
        return 0 if self.mark is None else self.mark.attempt

    @property
    def deadline(self) -> float:
        """Until when the effect may begin, in seconds since the epoch by the store's clock. `check` moves it."""
        return self.until

    def check(self) -> None:
        """Make sure, right before the effect, that this execution is still the one that may act; renews its lease.

        One round trip. Raises `CallSuperseded` when it is not: then nothing must be done any more.
        """
        run(self._core.check(self._core.blocking(), self))

    async def acheck(self) -> None:
        """`check`, async."""
        await self._core.check(self._core.asynchronous(), self)

    def settle_with(self, connection: object, result: Any = None) -> None:
        """Settle the call in the transaction of `connection`: its effect and its record are committed together, or not at
        all. For tools that are `transactional`.

        `connection` is a connection to the ledger's own database that is in a transaction, in which the effect was made.
        `result` is what the call is to have returned when it is asked for again. Raises `CallSuperseded` when another
        worker has taken the call over: let it roll the transaction back.
        """
        run(self._core.join(self, connection, result))

    async def asettle_with(self, connection: object, result: Any = None) -> None:
        """`settle_with`, for an async connection."""
        await self._core.join(self, connection, result)

    def once(self, step: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Perform one of several effects of this call once: it has a record of its own, named `step`.

        What it returned is returned again when the tool runs from its top, after an ``interrupt()`` or a crash.
        `args` are part of its fingerprint, and must be JSON.
        """
        check_function(function, blocking=True)
        return run(self._core.step(self._core.blocking(), self, step, function, args, kwargs))

    async def aonce(self, step: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`once`, async."""
        check_function(function, blocking=False)
        return await self._core.step(self._core.asynchronous(), self, step, function, args, kwargs)

    def superseded(self) -> CallSuperseded:
        """The error that says so."""
        return CallSuperseded(
            f"the call of {self.tool!r} in thread {self.thread!r} was taken over by another worker, or given up by its "
            "own run: this attempt must not act any more, and its result does not count. Run the thread again to get the "
            "call's result.",
            thread=self.thread,
            key=self.record_key,
            tool=self.tool,
        )


def current_call() -> Call:
    """The call that is being performed here. Raises ``LookupError`` outside of one."""
    call = _current.get()
    if call is None:
        raise LookupError("no call is being performed here: current_call() is for the body of a tool under a ledger")
    return call


class performing:  # noqa: N801 - reads as a statement: `with performing(call):`
    """`call` is `current_call` within."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._token = _current.set(self._call)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


@dataclass(frozen=True, slots=True)
class Run:
    """The call may be performed, once, with `call` as `current_call`; then it is to be settled."""

    call: Call


@dataclass(frozen=True, slots=True)
class Replay:
    """The call is finished: `result` is what it returned, or what a person or `reconcile` said it would have."""

    record: CallRecord
    result: Any


@dataclass(frozen=True, slots=True)
class Done:
    """The call was performed now, and is recorded."""

    call: Call
    result: Any
