"""What cannot be right is refused before anything is performed or recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import milepost
import pytest
from milepost.errors import InvalidConfig, MilepostError, TooLarge
from milepost.ledger import CallRequest
from milepost.saver import Saver
from milepost.tools import Ledger, applied, current_call, idempotent, keyed, unsafe


@pytest.fixture
def saver() -> Iterator[Saver]:
    with milepost.connect("memory:") as saver:
        yield saver


WRONG: list[Callable[[], Any]] = [
    lambda: unsafe(not_applied=("ValueError",)),
    lambda: unsafe(not_applied=ValueError),
    lambda: unsafe(reconcile="x"),
    lambda: unsafe(compensate=5),
    lambda: unsafe(key="x"),
    lambda: unsafe(fingerprint="x"),
    lambda: unsafe(max_duration=10**400),
    lambda: keyed(window="10s"),
    lambda: keyed(window=0),
    lambda: keyed(window=None),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", WRONG)
def test_classes_that_cannot_be(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidConfig):
        make()


@pytest.mark.parametrize("options", [{"tools": ["a"]}, {"tenant": 5.5}, {"owner": "x" * 10_000}, {"lease": 10**400}])
def test_ledgers_that_cannot_be(saver: Saver, options: Any) -> None:
    with pytest.raises((InvalidConfig, TooLarge)):
        Ledger(saver, **options)
    with pytest.raises(InvalidConfig):
        Ledger("memory:")  # type: ignore[arg-type]


async def _later() -> str:
    return "done"


def _parts() -> Iterator[str]:
    yield "done"


async def _later_parts() -> AsyncIterator[str]:
    yield "done"


@pytest.mark.parametrize("function", [_later, None, _parts, _later_parts, partial(_parts)])
def test_functions_that_cannot_be_performed_leave_no_record(saver: Saver, function: Any) -> None:
    ledger = Ledger(saver)
    with pytest.raises(InvalidConfig):
        ledger.once("k", function, thread_id="t")
    with pytest.raises(InvalidConfig):
        ledger.once("k", print, policy="unsafe", thread_id="t")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="arguments"):
        ledger.once("k", lambda a: a, 1, 2, thread_id="t")
    assert ledger.calls("t") == []

    def steps() -> None:
        with pytest.raises(InvalidConfig):
            current_call().once("step", function)

    ledger.once("k", steps, thread_id="t", policy=idempotent)
    assert [record.key for record in ledger.calls("t")] == ["k"]


@pytest.mark.parametrize("what", ["key", "fingerprint"])
def test_a_function_of_the_class_that_raises_stops_the_run(saver: Saver, what: str) -> None:
    policy = unsafe(**{what: lambda arguments: arguments["nope"]})
    ledger = Ledger(saver, {"print": policy})
    with pytest.raises(MilepostError, match=f"the {what} function of 'print' raised KeyError"):
        ledger.perform(CallRequest(tool="print", thread="t", message="m", call="c"), print)
    assert ledger.calls("t") == []


@pytest.mark.parametrize("thread", [b"x", "a\0b", "x" * 5_000, ["t"]])
def test_threads_that_cannot_be(saver: Saver, thread: Any) -> None:
    ledger = Ledger(saver)
    for method in (ledger.calls, ledger.pending, ledger.orphans):
        with pytest.raises(MilepostError):
            method(thread)


def test_verdicts_that_cannot_be(saver: Saver) -> None:
    ledger = Ledger(saver)
    with pytest.raises(InvalidConfig, match="verdict"):
        ledger.resolve("k", "applied", by="ann")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="who decided"):
        ledger.resolve("k", applied(), by=5)  # type: ignore[arg-type]


def test_an_effect_is_one_call_in_whatever_spelling(saver: Saver) -> None:
    ran: list[Any] = []

    @Ledger(saver).effect(key=lambda a, *_, **__: f"e{a}", scope="global")
    def charge(a: int, b: int = 2, *, c: str = "x") -> int:
        ran.append((a, b, c))
        return a

    assert [charge(1), charge(1, 2), charge(a=1), charge(b=2, a=1, c="x")] == [1, 1, 1, 1]
    assert ran == [(1, 2, "x")]
    with pytest.raises(MilepostError, match="other arguments"):
        charge(1, 3)


def test_a_method_under_effect_leaves_its_object_out(saver: Saver) -> None:
    ledger = Ledger(saver)
    sent: list[str] = []

    class Mail:
        def __init__(self, server: str) -> None:
            self.server = server

        @ledger.effect(key=lambda self, to: f"{self.server} {to}", scope="global")
        def send(self, to: str) -> str:
            sent.append(f"{self.server} {to}")
            return sent[-1]

        @ledger.effect(key=lambda self, to: f"async {self.server} {to}", scope="global")
        async def asend(self, to: str) -> str:
            return f"{self.server} {to}"

        @classmethod
        @ledger.effect(key=lambda cls, to: f"{cls.__name__} {to}", scope="global")
        def broadcast(cls, to: str) -> str:
            sent.append(f"all {to}")
            return sent[-1]

        @staticmethod
        @ledger.effect(key=lambda mail, to: f"static {mail.server} {to}", scope="global")
        def pass_on(mail: Mail, to: str) -> str:
            return mail.send(to)

    class Post(Mail):
        def send(self, to: str) -> str:
            return super().send(to)

    for mail in (Mail("a"), Mail("a"), Post("b")):
        assert mail.send("ann") == f"{mail.server} ann"
        assert asyncio.run(mail.asend("ann")) == f"{mail.server} ann"
        assert mail.broadcast("ann") == "all ann"
    assert sent == ["a ann", "all ann", "b ann", "all ann"]
    assert {tuple(record.arguments["args"]) for record in ledger.calls("")} == {("ann",)}
    with pytest.raises(MilepostError):
        Mail.pass_on(Mail("a"), "ann")


@pytest.mark.parametrize("value", ["unsafe", None, 5, {"keyed": "24h"}])
def test_a_class_of_tools_that_is_none(value: Any) -> None:
    with milepost.connect("memory:") as saver, pytest.raises(InvalidConfig, match="readonly, idempotent, keyed"):
        Ledger(saver, {"send": value})


@pytest.mark.parametrize("function", [_parts, _later_parts])
async def test_generators_are_no_effects(saver: Saver, function: Any) -> None:
    ledger = Ledger(saver)
    with pytest.raises(InvalidConfig, match="generator"):
        await ledger.aonce("k", function, thread_id="t")
    with pytest.raises(InvalidConfig, match="generator"):
        ledger.effect(key=lambda: "k", scope="global")(function)()
    assert ledger.calls("t") == ledger.calls("") == []
