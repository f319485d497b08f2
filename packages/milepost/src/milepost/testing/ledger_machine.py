"""A hypothesis state machine: the life of calls under any sequence of arrivals, crashes, late ends and verdicts is as a
plain model says, and the world is never changed twice by one call.

    TestMine = ledger_machine(Mine).TestCase
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from milepost.errors import Conflict, InvalidConfig
from milepost.flavour import run
from milepost.ledger import (
    Call,
    CallInDoubt,
    CallInProgress,
    CallRequest,
    CallSuperseded,
    Failed,
    Replay,
    Run,
    Succeeded,
    applied,
    current_call,
    keyed,
    not_applied,
    unsafe,
)
from milepost.ledger.bubbling import GraphInterrupt
from milepost.testing.lab import Face, Flavour, Lab, Subject
from milepost.testing.workers import Worker, quick, wants

T = TypeVar("T")

TOOLS = ("keyed", "reconciled", "asks")
CALLS = tuple((tool, f"{tool}-{number}") for tool in TOOLS for number in range(2))
ENDS = ("returns", "refuses", "times out after", "times out before", "interrupts", "dies after", "dies before")
"""How an execution goes: "after" and "before" are the effect."""


_RUN = object()
"""That the call may run."""


class Refused(Exception):
    """The world says that nothing took place."""


@dataclass(slots=True)
class Held:
    """An execution whose worker has not ended it."""

    call: Call
    worker: Worker
    name: str
    applied: bool


@dataclass(slots=True)
class Life:
    """What a record should say."""

    state: str = ""
    attempt: int = 0
    result: Any = None
    live: bool = False
    """The lease has not ended."""
    holder: Held | None = None
    """Who holds the version that the record has."""


@dataclass(slots=True)
class World:
    """What took place, by downstream key. A world that takes keys performs each once."""

    effects: Counter[str] = field(default_factory=Counter)
    deduplicates: bool = False

    def change(self, key: str) -> None:
        if not (self.deduplicates and self.effects[key]):
            self.effects[key] += 1


class LedgerMachine(RuleBasedStateMachine):
    """See the module. Set `subject` and `flavour`, or use `ledger_machine`."""

    subject: ClassVar[type[Subject]]
    flavour: ClassVar[Flavour] = "blocking"

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(prefix="milepost-ledger-")
        self._loop = asyncio.new_event_loop() if self.flavour == "async" else None
        self._lab = Lab(self.subject(Path(self._directory.name)), self.flavour)
        self._worlds = {tool: World(deduplicates=tool == "keyed") for tool in TOOLS}
        self._lives = {name: Life() for _, name in CALLS}
        self._held: list[Held] = []
        self._number = 0
        self._open(self._lab.open())

    def _open(self, face: Face) -> None:
        tools = {
            "keyed": quick(keyed, window="24h", not_applied=(Refused,)),
            "reconciled": quick(unsafe, not_applied=(Refused,), reconcile=self._truth),
            "asks": quick(unsafe, not_applied=(Refused,)),
        }
        # One worker's leases never end, the other's end at once: no test waits for a clock.
        self._workers = [
            Worker(self._lab, face, lease=lease, tools=tools, on_unsettled="ignore") for lease in ("1h", 0)
        ]

    def _truth(self, record: Any) -> Any:
        took_place = self._worlds[record.tool].effects[record.downstream_key] > 0
        return applied("reconciled") if took_place else not_applied()

    def teardown(self) -> None:
        try:
            self._compare()
        finally:
            self._do(self._lab.close())
            if self._loop is not None:
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
                self._loop.close()
            self._directory.cleanup()

    def _do(self, text: Coroutine[Any, Any, T]) -> T:
        return run(text) if self._loop is None else self._loop.run_until_complete(text)

    @rule(which=st.sampled_from(CALLS), worker=st.integers(0, 1), end=st.sampled_from(ENDS))
    def arrive(self, which: tuple[str, str], worker: int, end: str) -> None:
        """A worker is asked for a call."""
        tool, name = which
        self._number += 1
        self._do(self._arrive(self._workers[worker], tool, name, end, live=worker == 0))

    async def _arrive(self, worker: Worker, tool: str, name: str, end: str, *, live: bool) -> None:
        life, request, result = self._lives[name], wants(tool, call=name), f"result {self._number}"
        if end.startswith("dies"):
            expected = self._foreseen(tool, name, life, live=live)
            entry = await _outcome(worker.enter(request))
            if expected is not _RUN:
                assert _shown(entry) == _shown(expected), (name, life)
                return
            assert isinstance(entry, Run), (entry, life)
            held = Held(entry.call, worker, name, end.endswith("after"))
            assert entry.call.attempt == life.attempt
            if held.applied:
                self._worlds[tool].change(entry.call.key)
            life.holder = held
            self._held.append(held)
            return
        expected = self._foreseen(tool, name, life, live=live)
        entry = await _outcome(self._perform(worker, request, tool, end, result))
        if expected is _RUN:
            expected = self._ended(tool, life, end, result)
        assert _shown(entry) == _shown(expected), (name, end, life)

    async def _perform(self, worker: Worker, request: CallRequest, tool: str, end: str, result: str) -> Any:
        def function() -> str:
            if end in ("returns", "times out after"):
                self._worlds[tool].change(current_call().key)
            if end == "refuses":
                raise Refused
            if end.startswith("times out"):
                raise TimeoutError
            if end == "interrupts":
                raise GraphInterrupt(())
            return result

        return (await worker.perform(request, function)).result

    def _foreseen(self, tool: str, name: str, life: Life, *, live: bool) -> Any:
        """What an arrival leads to: `_RUN`, or what it answers or raises. Brings the model to where it may run."""
        if life.state == "succeeded":
            return life.result
        if life.state == "started" and life.live:
            return CallInProgress
        if life.state == "started":
            life.state, life.holder = "in_doubt", None
        if life.state == "in_doubt":
            if tool == "asks":
                return CallInDoubt
            if tool == "reconciled":
                return life.result if self._reconcile(life, name) else self._begun(life, 1, live=live)
            return self._begun(life, 1, live=live)
        return self._begun(life, int(life.state == "failed"), live=live)

    def _reconcile(self, life: Life, name: str) -> bool:
        key = self._keys()[name]
        took_place = self._worlds["reconciled"].effects[key] > 0
        life.state, life.holder = ("succeeded" if took_place else "failed"), None
        life.result = "reconciled" if took_place else None
        return took_place

    def _keys(self) -> dict[str, str]:
        records = self._do_records()
        return {record.info.call: record.downstream_key for record in records}

    def _do_records(self) -> list[Any]:
        # Blocking even where the machine is async: the model is not what is tested.
        return self._workers[0].ledger.calls("thread")

    @staticmethod
    def _begun(life: Life, more: int, *, live: bool) -> object:
        life.state, life.live, life.holder = "started", live, None
        life.attempt += more
        return _RUN

    def _ended(self, tool: str, life: Life, end: str, result: str) -> Any:
        """How an execution that was not killed ends."""
        if end == "returns":
            life.state, life.result = "succeeded", result
            return result
        if end == "refuses":
            life.state = "failed"
            return Refused
        if end == "interrupts":
            life.state = "suspended"
            return GraphInterrupt
        if tool == "reconciled":
            after = end == "times out after"
            # What an earlier attempt did counts too.
            life.state = "succeeded" if after else "failed"
            life.result = "reconciled" if after else None
            return "reconciled" if after else TimeoutError
        life.state = "in_doubt"
        return TimeoutError if tool == "keyed" else CallInDoubt

    @rule(number=st.integers(0, 100))
    def end_late(self, number: int) -> None:
        """A worker that was taken for dead says what became of its call."""
        if not self._held:
            return
        held = self._held.pop(number % len(self._held))
        life = self._lives[held.name]
        mine = life.holder is held or (life.state == "in_doubt" and life.attempt == held.call.attempt)
        expected: Any = None
        if held.call.over:
            expected = None
        elif mine and life.state in ("started", "in_doubt"):
            life.state, life.holder = ("succeeded" if held.applied else "failed"), None
            life.result = "late" if held.applied else None
        elif life.state == "succeeded":
            expected = life.result
        else:
            expected = CallSuperseded
        outcome = Succeeded("late") if held.applied else Failed("late")
        entry = self._do(_outcome(held.worker.settle(held.call, outcome)))
        entry = entry.result if isinstance(entry, Replay) else entry
        assert _shown(entry) == _shown(expected), (held, life)

    @rule(number=st.integers(0, 100))
    def check(self, number: int) -> None:
        """A worker asks whether it may still act."""
        if not self._held:
            return
        held = self._held[number % len(self._held)]
        life = self._lives[held.name]
        expected = None if life.holder is held and life.state == "started" else CallSuperseded
        assert _shown(self._do(_outcome(held.worker.check(held.call)))) == _shown(expected), (held, life)

    @rule(which=st.sampled_from(CALLS))
    def decide(self, which: tuple[str, str]) -> None:
        """A person looks at the world, and says what is true."""
        tool, name = which
        life = self._lives[name]
        record = next((record for record in self._do_records() if record.info.call == name), None)
        key = "unknown" if record is None else record.key
        took_place = record is not None and self._worlds[tool].effects[record.downstream_key] > 0
        verdict = applied("decided") if took_place else not_applied()
        entry = self._do(_outcome(self._workers[0].resolve(key, verdict, thread_id="thread")))
        if record is None:
            assert isinstance(entry, InvalidConfig)
        elif life.state == "in_doubt" or (life.state == "started" and not life.live):
            life.state, life.holder = ("succeeded" if took_place else "failed"), None
            life.result = "decided" if took_place else None
            assert entry.state == life.state
        else:
            assert isinstance(entry, Conflict)

    @rule()
    def reopen(self) -> None:
        """All workers are gone; what they held is as it is."""
        self._held.clear()
        self._open(self._do(self._lab.reopen()))

    @invariant()
    def _compare(self) -> None:
        found = {
            record.info.call: (record.state, record.attempt, record.result if record.state == "succeeded" else None)
            for record in self._do_records()
        }
        expected = {
            name: (life.state, life.attempt, life.result if life.state == "succeeded" else None)
            for name, life in self._lives.items()
            if life.state
        }
        assert found == expected
        for tool, world in self._worlds.items():
            assert max(world.effects.values(), default=0) <= 1, f"{tool}: {world.effects}"


async def _outcome(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns, or raises."""
    try:
        return await coroutine
    except Exception as exc:
        return exc


def _shown(outcome: Any) -> Any:
    """What is compared: a result, or the class of an error."""
    if isinstance(outcome, Replay):
        return outcome.result
    return type(outcome) if isinstance(outcome, Exception) else outcome


def ledger_machine(subject: type[Subject], flavour: Flavour = "blocking") -> type[LedgerMachine]:
    """The state machine over `subject`; its `TestCase` is for pytest and unittest."""
    return type(f"{subject.__name__}Ledger", (LedgerMachine,), {"subject": subject, "flavour": flavour})
