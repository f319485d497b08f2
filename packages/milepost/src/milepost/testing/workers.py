"""Workers over one ledger: what a behaviour of the ledger is tried with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from milepost.callstore import CallStore
from milepost.ledger import (
    Call,
    CallRecord,
    CallRequest,
    Done,
    Ledger,
    Repair,
    Replay,
    Rollback,
    Run,
    ToolPolicy,
    Verdict,
    current_call,
)
from milepost.ledger.request import Outcome
from milepost.testing.lab import Face, Lab


class Worker:
    """A ledger over one saver, in the flavour of a lab. Leases do not end, and nobody waits, unless `options` say so."""

    def __init__(self, lab: Lab, face: Face | None = None, **options: Any) -> None:
        self.face = face or lab.saver
        given: dict[str, Any] = {"lease": "1h", "wait_timeout": 0, "skew": 0, **options}
        self.ledger = Ledger(self.face.saver, **given)
        self._blocking = lab.flavour == "blocking"
        self.performed: list[tuple[str, int]] = []
        """(downstream key, attempt) of each execution by `do`."""

    async def enter(self, request: CallRequest) -> Run | Replay:
        return self.ledger.enter(request) if self._blocking else await self.ledger.aenter(request)

    async def run(self, request: CallRequest) -> Call:
        """`enter`, where the call may run."""
        entry = await self.enter(request)
        assert isinstance(entry, Run), entry
        return entry.call

    async def settle(self, call: Call, outcome: Outcome) -> Replay | None:
        return self.ledger.settle(call, outcome) if self._blocking else await self.ledger.asettle(call, outcome)

    async def perform(self, request: CallRequest, function: Callable[[], Any]) -> Done | Replay:
        if self._blocking:
            return self.ledger.perform(request, function)
        return await self.ledger.aperform(request, function)

    async def do(self, request: CallRequest, result: Any = "done") -> Any:
        """`perform` something that notes that it was performed; gives the result."""

        def function() -> Any:
            call = current_call()
            self.performed.append((call.key, call.attempt))
            if isinstance(result, BaseException):
                raise result
            return result

        return (await self.perform(request, function)).result

    async def check(self, call: Call) -> None:
        call.check() if self._blocking else await call.acheck()

    async def once(self, key: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._blocking:
            return self.ledger.once(key, function, *args, **kwargs)
        return await self.ledger.aonce(key, function, *args, **kwargs)

    async def step(self, call: Call, step: str, function: Callable[..., Any], *args: Any) -> Any:
        return call.once(step, function, *args) if self._blocking else await call.aonce(step, function, *args)

    async def calls(self, thread: str = "thread") -> list[CallRecord]:
        return self.ledger.calls(thread) if self._blocking else await self.ledger.acalls(thread)

    async def states(self, thread: str = "thread") -> list[tuple[str, int, int]]:
        """(state, generation, attempt) of each record."""
        return [(record.state, record.generation, record.attempt) for record in await self.calls(thread)]

    async def pending(self, thread: str | None = None) -> list[CallRecord]:
        return self.ledger.pending(thread) if self._blocking else await self.ledger.apending(thread)

    async def orphans(self, thread: str, branch: Any = None) -> list[CallRecord]:
        if self._blocking:
            return self.ledger.orphans(thread, branch)
        return await self.ledger.aorphans(thread, branch)

    async def resolve(self, key: str | CallRecord, verdict: Verdict, **how: Any) -> CallRecord:
        how = {"by": "operator", **how}
        if self._blocking:
            return self.ledger.resolve(key, verdict, **how)
        return await self.ledger.aresolve(key, verdict, **how)

    async def forget(self, thread: str = "thread", **how: Any) -> list[CallRecord]:
        how = {"older_than": 0, **how}
        return self.ledger.forget(thread, **how) if self._blocking else await self.ledger.aforget(thread, **how)

    async def repair(self, **how: Any) -> Repair:
        return self.ledger.repair("thread", **how) if self._blocking else await self.ledger.arepair("thread", **how)

    async def rollback(self, to: str, **how: Any) -> Rollback:
        if self._blocking:
            return self.ledger.rollback("thread", to=to, **how)
        return await self.ledger.arollback("thread", to=to, **how)

    async def store(self) -> CallStore:
        """The store behind it."""
        core = self.ledger.core
        return await core.store(core.blocking() if self._blocking else core.asynchronous())


def wants(tool: str = "charge", message: str | None = "m1", call: str | None = "c1", **more: Any) -> CallRequest:
    """A request of thread "thread"."""
    arguments: Mapping[str, Any] = more.pop("arguments", {"amount": 5})
    given: dict[str, Any] = {"thread": "thread", "arguments": arguments, **more}
    return CallRequest(tool=tool, message=message, call=call, **given)


def quick(make: Callable[..., ToolPolicy], **options: Any) -> ToolPolicy:
    """A class of tools whose effects take no time: nothing has to be waited for."""
    return make(**{"max_duration": 0, **options})
