"""Values come back as they went in, or are refused by name before anything is stored."""

from __future__ import annotations

import dataclasses
import enum
import socket
import sqlite3
import sys
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address
from pathlib import PurePosixPath
from typing import Any, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from pydantic import BaseModel

from milepost.codec.values import Placeholder, Registered, Serializer
from milepost.errors import Unserializable
from milepost.testing.chain import Chain, at, id_of, inside
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same, assert_same_items
from milepost.testing.suite.basis import Behaviours


class Order:
    """A class with a class in it."""

    class State(enum.Enum):
        """Found by its qualified name only."""

        OPEN = "open"
        PAID = "paid"


@dataclasses.dataclass
class Job:
    """A dataclass with a field that its constructor does not take."""

    name: str
    tags: list[str]
    attempts: int = dataclasses.field(default=0, init=False)


class Person(BaseModel):
    """A pydantic model of an application."""

    name: str
    age: int | None = None


@dataclasses.dataclass
class Undecided:
    """As arrays and tables are: neither true nor false."""

    rows: list[int]

    def __bool__(self) -> bool:
        raise ValueError("neither true nor false")


class Table:
    """A class that no serializer knows of."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.rows == other.rows

    __hash__ = None  # type: ignore[assignment]  # mutable: no hash, as Python does it for a class with __eq__ alone


def _job() -> Job:
    job = Job("index", ["a", "b"])
    job.attempts = 3
    return job


def _call(number: int) -> dict[str, Any]:
    return {"name": "search", "args": {"q": ["a", 1, True, None, 1.5]}, "id": f"call-{number}", "type": "tool_call"}


_MESSAGES = [
    SystemMessage("be brief", id="0"),
    HumanMessage("hi", id="1", name="ann", additional_kwargs={"x": {"y": [1, True, 1.0]}}),
    AIMessage(
        [{"type": "text", "text": "let me look"}, "now"],
        id="2",
        tool_calls=[_call(1)],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        response_metadata={"model": "scripted"},
    ),
    ToolMessage("3 results", id="3", tool_call_id="call-1", status="error", artifact={"raw": (1, 2)}),
    AIMessageChunk(content="par", id="4", tool_call_chunks=[{"name": "a", "args": "{", "id": "c", "index": 0}]),
]

VALUES: dict[str, Any] = {
    "none": None,
    "booleans": [True, False, 1, 0, 1.0, 0.0],
    "nan": float("nan"),
    "infinity": [float("inf"), -float("inf")],
    "minus zero": -0.0,
    "large float": 1e16,
    "large integers": [2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**100],
    "text": ["", "plain", "x\x00y", "ünïcödé", "\U0001f600", "a\nb", "'; DROP TABLE checkpoints; --"],
    "lone surrogate": "a\ud800b",
    "long text": "long " * 50_000,
    "bytes": [b"", b"\x00\xff", bytearray(b"abc")],
    "empty containers": [[], {}, (), set(), frozenset()],
    "fraction": Fraction(1, 3),
    "complex": 1 + 2j,
    "range": range(3),
    "pure path": PurePosixPath("/a"),
    "bounded deque": deque([1, 2], maxlen=2),
    "deque": deque([1, 2]),
    "defaultdict": defaultdict(list, {"a": [1]}),
    "counter": Counter("aab"),
    "ordered dict": OrderedDict([("b", 1), ("a", 2)]),
    "zoned datetime": datetime(2026, 3, 7, 9, tzinfo=ZoneInfo("America/New_York")),
    "folded datetime": datetime(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York"), fold=1),
    "datetimes": [datetime.fromisoformat("2026-01-01T12:00"), datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1)],
    "fixed offset": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    "timedelta": timedelta(seconds=1),
    "decimal": Decimal("1.10"),
    "sets": [frozenset({1}), {1, 2}],
    "tuples": [(1, 2), (), ((1,), [2])],
    "nested enum": Order.State.PAID,
    "dataclass": _job(),
    "neither true nor false": Undecided([1, 2]),
    "pydantic model": Person(name="ann"),
    "uuid": UUID(int=7),
    "address": IPv4Address("127.0.0.1"),
    "lc as data": {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "AIMessage"], "kwargs": {}},
    "dict with odd keys": {1: "a", None: "b", (1, 2): "c", 1.5: "d"},
    "keys that look alike": {"1": "text", 1: "int"},
    "deep": [[[[[[[[[[{"a": [{"b": [1, (2, {"c": None})]}]}]]]]]]]]]],
    "messages": _MESSAGES,
    "one message": _MESSAGES[2],
    "messages by name": {"ann": _MESSAGES[1], "bob": _MESSAGES[2]},
    "documents": [Document("text", metadata={"page": 1}), Document("more", id="7")],
    "long list of numbers": list(range(1000)),
    "long list of mixed": [*range(100), *"abc", 1.0, True, None, *_MESSAGES] * 3,
    "message with a field of its own": AIMessage("x", id="1", custom={"own": [1, (2,)]}),
    "large dict": {f"key {number}": {"n": number} for number in range(300)},
}
"""What a channel may hold, by what it is about."""

_CASES = [pytest.param(value, id=name) for name, value in VALUES.items()]


class Values(Behaviours):
    """Channel values, writes and metadata are equal, type by type, when they come back."""

    @pytest.mark.parametrize("value", _CASES)
    async def test_a_channel_and_a_write_keep_their_value(self, lab: Lab, value: Any) -> None:
        chain = Chain(lab.saver)
        state = {"x": value, "wrapped": {"in": [value]}}
        await chain.put(state)
        await chain.writes(("x", value), ("__resume__", value))
        await chain.put(state, changed=())
        async for saver in lab.views():
            [second, first] = await saver.list(chain.latest)
            assert_same(state, first.checkpoint["channel_values"], "first")
            assert_same(state, second.checkpoint["channel_values"], "second")
            assert_same([("task", "__resume__", value), ("task", "x", value)], first.pending_writes, "pending_writes")

    async def test_more_elements_than_16_bits_can_count(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        state = {"list": [*range(66_000), "end"], "dict": {str(number): number for number in range(66_000)}}
        await chain.put(state)
        assert_same(state, (await (await lab.reopen()).got(chain.latest)).checkpoint["channel_values"])

    async def test_odd_names_of_channels(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        values = {
            name: number for number, name in enumerate(["x\x00y", "", "branch:to:a", "join:a+b:c", "ключ", "a\ud800"])
        }
        await chain.put(values)
        await chain.writes(*values.items())
        found = await (await lab.reopen()).got(chain.latest)
        assert_same(values, found.checkpoint["channel_values"])
        assert_same([("task", *item) for item in values.items()], found.pending_writes)

    async def test_metadata_keeps_every_character_and_type(self, lab: Lab) -> None:
        metadata = {
            "x\x00y": "a key with a NUL",
            "surrogate": "\ud800",
            "nan": float("nan"),
            "huge": 2**70,
            "nested": {"a": [1, True, None, "n\x00l"]},
            "writes": {"node": [1]},
            "run_id": "r",
            "user.name": "ann",
        }
        chain = Chain(lab.saver)
        # LangGraph itself takes NULs out of the texts at the top level of metadata, and its tests insist on it.
        await chain.put({"x": 1}, metadata={**metadata, "text": "a\x00b"})
        found = await (await lab.reopen()).got(chain.latest)
        assert_same_items(
            {"source": "loop", "step": 1, "parents": {}, **metadata, "text": "ab"}, cast("Any", found.metadata)
        )

    async def test_a_zone_still_knows_its_rules(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        before = datetime(2026, 3, 7, 9, tzinfo=ZoneInfo("America/New_York"))
        await chain.put({"x": before})
        after = (await chain.values())["x"] + timedelta(days=1)
        assert after.utcoffset() == timedelta(hours=-4), "the day of the change to summer time came an hour off"

    async def test_every_key_of_a_checkpoint_survives(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        made = (await lab.saver.got(chain.latest)).checkpoint
        odd: Any = {
            **made,
            "id": "0002",
            "updated_channels": ["x", "y"],
            "of_the_future": {"a": (1, 2)},
            "versions_seen": {"__interrupt__": {"x": "7"}, "__snapshot_bumps__": {"x": 3}, "node": {}},
        }
        await lab.saver.put(chain.latest, odd)
        assert_same_items(odd, (await (await lab.reopen()).got(at("thread", "", "0002"))).checkpoint)

    @pytest.mark.parametrize("label", [1, 1.5, "1", f"{3:032}.{0.25:016}", "00000000000000000000000000000003.7", "a.b"])
    async def test_versions_keep_their_type_and_text(self, lab: Lab, label: Any) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        made: Any = {**(await lab.saver.got(chain.latest)).checkpoint, "id": "0002"}
        made["channel_versions"] = {"x": label, "gone": label}
        made["versions_seen"] = {"node": {"x": label}}
        await lab.saver.put(chain.latest, made)
        assert_same_items(made, (await (await lab.reopen()).got(chain.latest)).checkpoint)

    async def test_what_is_handed_out_is_fresh(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": [HumanMessage("hi", id="1")], "d": {"a": {"b": 1}}}, metadata={"deep": {"a": 1}})
        await chain.writes(("x", [1]))
        first = await lab.saver.got(chain.latest)
        first.checkpoint["channel_values"]["x"][0].content = "changed"
        first.checkpoint["channel_values"]["x"].append(1)
        first.checkpoint["channel_values"]["d"]["a"]["b"] = 2
        first.checkpoint["channel_versions"].clear()
        first.checkpoint["versions_seen"].clear()
        del first.metadata["step"]
        cast("Any", first.metadata)["deep"]["a"] = 2
        inside(first.config).clear()
        assert first.pending_writes is not None
        first.pending_writes[0][2].append(2)
        [again] = await lab.saver.list(chain.latest)
        for found in (await lab.saver.got(chain.latest), again):
            assert_same([HumanMessage("hi", id="1")], found.checkpoint["channel_values"]["x"])
            assert found.checkpoint["channel_values"]["d"] == {"a": {"b": 1}}
            wanted = {"source": "loop", "step": 1, "parents": {}, "deep": {"a": 1}}
            assert_same_items(wanted, cast("Any", found.metadata), "metadata")
            assert found.checkpoint["channel_versions"].keys() == {"x", "d"}
            assert found.pending_writes == [("task", "x", [1])]
            assert id_of(found.config) == "0001"

    async def test_what_is_passed_in_may_change_afterwards(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        message, tags, writes = HumanMessage("before", id="1"), ["before"], deque([("x", ["before"])])
        await chain.put({"m": [message], "d": {"tags": tags}})
        await lab.saver.put_writes(chain.at(), writes, "task")
        message.content = "after"
        tags[0] = writes[0][1][0] = "after"
        found = await lab.saver.got(chain.latest)
        assert_same(
            {"m": [HumanMessage("before", id="1")], "d": {"tags": ["before"]}}, found.checkpoint["channel_values"]
        )
        assert found.pending_writes == [("task", "x", ["before"])]

    async def test_a_registered_class_goes_by_its_functions(self, lab: Lab) -> None:
        entry = Registered(Table, "table", lambda table: table.rows, Table)
        saver = lab.open(serde=Serializer(types=[entry]))
        chain = Chain(saver)
        value = {"one": Table([[1, 2]]), "list": [Table([[3]]), Table([])]}
        await chain.put(value)
        await chain.writes(("x", Table([[4]])))
        found = await saver.got(chain.latest)
        assert found.checkpoint["channel_values"] == value
        assert found.pending_writes == [("task", "x", Table([[4]]))]


def _with_vanishing_class(name: str) -> tuple[Any, Callable[[], None]]:
    """A dataclass instance from a module that exists for now, and what makes the module go."""
    module = types.ModuleType(name)
    cls = dataclasses.make_dataclass("Memo", [("text", str)])
    cls.__module__, cls.__qualname__ = name, "Memo"
    module.Memo = cls  # type: ignore[attr-defined]  # a module made up here
    sys.modules[name] = module

    def vanish() -> None:
        del sys.modules[name]

    return cls("remember"), vanish


_HANDLES: list[Any] = [
    pytest.param(socket.socket, id="socket"),
    pytest.param(lambda: open(__file__, "rb"), id="file"),  # noqa: SIM115, PTH123  # the test closes it
    pytest.param(threading.Lock, id="lock"),
    pytest.param(lambda: sqlite3.connect(":memory:"), id="connection"),
    pytest.param(lambda: (n for n in range(3)), id="generator"),
    pytest.param(lambda: lambda: None, id="function"),
]


class Refused(Behaviours):
    """What cannot be stored, or not rebuilt, is said so: which channel, where in it, which class."""

    @pytest.mark.parametrize("make", _HANDLES)
    async def test_a_live_handle_names_channel_and_path(self, lab: Lab, make: Callable[[], Any]) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        handle = make()
        try:
            for value, path in (({"a": [0, handle]}, "['a'][1]"), ([handle], "[0]"), (handle, "")):
                with pytest.raises(Unserializable) as caught:
                    await chain.put({"fine": 1, "broken": value})
                _names(caught.value, "broken", path, handle)
                with pytest.raises(Unserializable) as caught:
                    await chain.writes(("fine", 1), ("broken", value))
                _names(caught.value, "broken", path, handle)
        finally:
            getattr(handle, "close", lambda: None)()
        assert await chain.ids() == ["0001"]
        found = await lab.saver.got(chain.latest)
        assert found.pending_writes == [], "a part of a refused batch was stored"

    async def test_a_handle_inside_a_message(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        message = HumanMessage("hi", additional_kwargs={"deep": [{"lock": threading.Lock()}]})
        with pytest.raises(Unserializable) as caught:
            await chain.put({"messages": [HumanMessage("fine"), message]})
        _names(
            caught.value,
            "messages",
            "[1].additional_kwargs['deep'][0]['lock']",
            message.additional_kwargs["deep"][0]["lock"],
        )
        assert await lab.saver.get(chain.latest) is None

    async def test_a_list_that_contains_itself(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        loop: list[Any] = [1]
        loop.append(loop)
        with pytest.raises(Unserializable) as caught:
            await chain.put({"broken": loop})
        assert caught.value.channel == "broken"

    async def test_metadata_that_cannot_be_stored(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        with pytest.raises(Unserializable) as caught:
            await chain.put({"x": 1}, metadata={"handle": threading.Lock()})
        assert caught.value.thread == "thread"
        assert "handle" in caught.value.path
        assert await lab.saver.get(chain.latest) is None

    async def test_a_class_that_is_gone(self, lab: Lab) -> None:
        value, vanish = _with_vanishing_class(f"milepost_vanishing_{lab.flavour}")
        chain = Chain(lab.saver)
        await chain.put({"memo": value, "other": 1})
        await chain.put({"memo": 2, "other": 2})
        vanish()
        saver = await lab.reopen()
        with pytest.raises(Unserializable) as caught:
            await saver.get(chain.at("0001"))
        assert (caught.value.thread, caught.value.channel) == ("thread", "memo")
        assert caught.value.type.endswith(".Memo")
        assert (await saver.got(chain.latest)).checkpoint["channel_values"] == {"memo": 2, "other": 2}

    async def test_a_placeholder_writes_back_what_it_read(self, lab: Lab) -> None:
        name = f"milepost_returning_{lab.flavour}"
        value, vanish = _with_vanishing_class(name)
        cls = type(value)
        chain = Chain(lab.saver)
        await chain.put({"memo": value, "list": [value, 1]})
        vanish()
        saver = await lab.reopen(serde=Serializer(unknown="placeholder"))
        found = await saver.got(chain.latest)
        values = found.checkpoint["channel_values"]
        assert isinstance(values["memo"], Placeholder)
        later = Chain(saver, "later")
        await later.put({**values, "more": [values["memo"], values["memo"]]})
        module: Any = types.ModuleType(name)
        module.Memo = cls
        sys.modules[name] = module
        try:
            back = (await (await lab.reopen()).got(later.latest)).checkpoint["channel_values"]
        finally:
            vanish()
        assert back == {"memo": value, "list": [value, 1], "more": [value, value]}


def _names(error: Unserializable, channel: str, path: str, handle: Any) -> None:
    assert error.thread == "thread"
    assert error.channel == channel
    assert error.path == path, f"the path is {error.path!r}, not {path!r}"
    assert error.type.rpartition(".")[2] == type(handle).__qualname__.rpartition(".")[2]
    assert channel in str(error)
    assert path in str(error)
