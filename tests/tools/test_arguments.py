"""What was asked for: the arguments of a call by its tool's schema."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langchain_core.tools import InjectedToolCallId, StructuredTool, tool
from milepost.codec.calls import fingerprint
from milepost.errors import InvalidConfig
from milepost.tools.arguments import Arguments, arguments_of
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_serializer
from pydantic.dataclasses import dataclass as checked_dataclass


@tool
def pay(amount: Decimal, day: date, id: Annotated[str, InjectedToolCallId], note: str = "none") -> str:
    """Pay."""
    return f"{amount} {day} {id} {note}"


def test_arguments_are_converted_completed_and_rid_of_what_is_injected() -> None:
    given = {"amount": "1.10", "day": "2026-01-02", "id": "forged", "unknown": 1}
    shown = {"amount": "1.10", "day": "2026-01-02", "note": "none"}
    assert arguments_of(pay, given) == Arguments(shown, frozenset({"note"}))


def test_arguments_that_do_not_fit_stay_as_they_are() -> None:
    assert arguments_of(pay, {"amount": "much"}).shown == {"amount": "much"}


def test_arguments_by_a_json_schema_stay_as_they_are() -> None:
    one = StructuredTool(name="pay", description="Pay.", args_schema={"type": "object", "properties": {}}, func=print)
    assert arguments_of(one, {"a": 1}) == Arguments({"a": 1})
    assert arguments_of(None, {"a": 1}) == Arguments({"a": 1})


def test_arguments_that_are_no_json_are_left_to_a_fingerprint_function() -> None:
    @tool
    def send(data: bytes, amount: float) -> str:
        """Send."""
        return f"{data!r} {amount}"

    assert arguments_of(send, {"data": b"\xff", "amount": 1}).shown["data"] == b"\xff"
    shown = arguments_of(send, {"data": b"a", "amount": math.nan}).shown
    assert math.isnan(shown["amount"])
    with pytest.raises(InvalidConfig, match="nan"):
        fingerprint("send", shown)


_count = itertools.count()


def _other() -> str:
    return f"{next(_count)}"


def _takes(schema: type[BaseModel]) -> StructuredTool:
    return StructuredTool(name="take", description="Take.", args_schema=schema, func=print)


class Line(BaseModel):
    model_config = ConfigDict(frozen=True)

    item: str
    nonce: str = Field(default_factory=_other)


@dataclasses.dataclass
class Plain:
    item: str
    nonce: str = dataclasses.field(default_factory=_other)


@checked_dataclass
class Checked:
    item: str
    nonce: str = Field(default_factory=_other, alias="once")


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    item: str = Field(alias="thing")
    nonce: str = Field(default_factory=_other, alias="once")


class Lines(RootModel[list[Line]]):
    pass


class Order(BaseModel):
    id: str
    at: str = Field(default_factory=_other)
    after: str = Field(default_factory=lambda data: data["id"] + _other())
    tags: list[str] = Field(default_factory=list)
    line: Line = Line(item="static")
    lines: Lines = Lines([])
    by_name: dict[int, list[Line]] = {}
    pair: tuple[str, Line] | None = None
    plain: list[Plain] = []
    checked: Checked | None = None
    aliased: Aliased | None = None
    several: set[Line] = set()


WHOLE: dict[str, Any] = {
    "id": "o-1",
    "lines": [{"item": "a"}, {"item": "b", "nonce": "given"}],
    "by_name": {"7": [{"item": "c"}]},
    "pair": ["x", {"item": "d"}],
    "plain": [{"item": "e"}, {"item": "f", "nonce": "given"}],
    "checked": {"item": "g"},
    "aliased": {"thing": "h"},
    "several": [{"item": "i"}, {"item": "j"}],
}


def test_what_a_factory_makes_is_left_out_and_what_was_given_is_not() -> None:
    first, second = (arguments_of(_takes(Order), WHOLE) for _ in range(2))
    assert first.former != second.former
    assert (first.shown, first.filled) == (second.shown, second.filled)
    assert first.filled == {"tags", "line"}
    assert first.shown == {
        "id": "o-1",
        "tags": [],
        "line": {"item": "static"},
        "lines": [{"item": "a"}, {"item": "b", "nonce": "given"}],
        "by_name": {"7": [{"item": "c"}]},
        "pair": ["x", {"item": "d"}],
        "plain": [{"item": "e"}, {"item": "f", "nonce": "given"}],
        "checked": {"item": "g"},
        "aliased": {"thing": "h"},
        "several": [{"item": "i"}, {"item": "j"}],
    }
    given = {**WHOLE, "at": "noon", "checked": {"item": "g", "once": "given"}, "aliased": {"thing": "h", "once": "x"}}
    shown = arguments_of(_takes(Order), given).shown
    assert (shown["at"], shown["checked"]["nonce"], shown["aliased"]["once"]) == ("noon", "given", "x")


def test_arguments_without_such_values_are_as_they_were() -> None:
    assert arguments_of(
        _takes(Order), {"id": "o-1", "at": "noon", "after": "one", "line": {"item": "a", "nonce": "b"}}
    ) == (
        {
            "id": "o-1",
            "at": "noon",
            "after": "one",
            "tags": [],
            "line": {"item": "a", "nonce": "b"},
            "lines": [],
            "by_name": {},
            "pair": None,
            "plain": [],
            "checked": None,
            "aliased": None,
            "several": [],
        },
        frozenset({"tags", "lines", "by_name", "pair", "plain", "checked", "aliased", "several"}),
        None,
    )


class Joined(BaseModel):
    numbers: set[int]

    @field_serializer("numbers")
    def _join(self, value: set[int]) -> str:
        return ",".join(map(str, sorted(value)))


class Sets(BaseModel):
    numbers: set[int] = set()
    words: frozenset[str] = frozenset()
    deep: dict[str, list[set[int]]] = {}
    joined: Joined | None = None
    anything: Any = None


def test_sets_have_an_order() -> None:
    # Those of each pair are equal, and run through in another order.
    assert list({0, 8}) != list({8, 0})
    spelled = [
        arguments_of(
            _takes(Sets),
            {"numbers": one, "deep": {"a": [one]}, "joined": {"numbers": one}, "anything": [set(one)]},
        )
        for one in ([0, 8], [8, 0, 8])
    ]
    assert spelled[0].shown == spelled[1].shown
    assert spelled[0].shown["deep"] == {"a": [[0, 8]]}
    assert spelled[0].shown["joined"] == {"numbers": "0,8"}


SCRIPT = """
from milepost.codec.calls import fingerprint
from test_arguments import Sets, _takes, arguments_of
words = ["a", "b", "c", "d", "e", "f"]
print(list(set(words)), fingerprint("take", arguments_of(_takes(Sets), {"words": words}).shown), sep="|")
"""


def test_another_process_finds_the_same_fingerprint() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("|")
        for seed in ("1", "2")
    ]
    assert told[0][0] != told[1][0]
    assert told[0][1] == told[1][1]


class Numbered(BaseModel):
    names: dict[int | str, str] = {}


def test_keys_are_text_and_two_that_are_the_same_text_are_refused() -> None:
    take = _takes(Numbered)
    assert arguments_of(take, {"names": {1: "a", "2": "b"}}).shown == {"names": {"1": "a", "2": "b"}}
    shown = arguments_of(take, {"names": {1: "a", "1": "b"}}).shown
    assert shown == {"names": {1: "a", "1": "b"}}, "a fingerprint function sees both"
    with pytest.raises(InvalidConfig, match="the key 1 is of type int"):
        fingerprint("take", shown)


@pytest.mark.parametrize("make", [lambda: uuid4().hex, date.today])
def test_a_factory_of_ones_own_is_no_plain_default(make: Callable[[], Any]) -> None:
    class Made(BaseModel):
        value: Any = Field(default_factory=make)

    assert arguments_of(_takes(Made), {}).shown == {}


def test_a_tool_without_arguments() -> None:
    class Nothing(BaseModel):
        pass

    assert arguments_of(_takes(Nothing), {}) == Arguments({})
