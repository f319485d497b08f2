"""Beside LangGraph's own serializer: its bytes are read, its safety switches hold."""

from __future__ import annotations

import copy
import dataclasses
import enum
import logging
import pathlib
import pickle
import uuid
from collections import deque
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from exactly import same
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, ToolMessage
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Command, Interrupt, Send
from milepost.codec.values import Serializer
from milepost.errors import Corrupt, Unserializable
from pydantic import BaseModel
from pydantic.v1 import BaseModel as V1Model

official = JsonPlusSerializer()
serde = Serializer()


class Kind(enum.Enum):
    A = "a"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: Any
    right: Any


class Model(BaseModel):
    a: int
    inner: Point | None = None


class Old(V1Model):
    a: int


class Outside:
    class Inner(BaseModel):
        a: int


@pytest.fixture
def events() -> Iterator[list[SerdeEvent]]:
    seen: list[SerdeEvent] = []
    stop = register_serde_event_listener(seen.append)
    yield seen
    stop()


text = st.text(max_size=8)
json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | text | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(text, inner, max_size=4)
        | st.dictionaries(
            st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | text | st.binary(max_size=5), inner
        )
    ),
    max_leaves=20,
)


@given(json)
@settings(max_examples=150, deadline=None)
def test_plain_data_has_the_official_bytes(value: Any) -> None:
    assert serde.dumps_typed(value) == official.dumps_typed(value)
    assert same(serde.loads_typed(official.dumps_typed(value)), value)


EXACT_OFFICIALLY: list[Any] = [
    None,
    b"x",
    uuid.UUID(int=5),
    Decimal("1.10"),
    date(2026, 1, 1),
    datetime(2026, 1, 1, 1, 2, 3, 4),  # noqa: DTZ001  # naive on purpose
    datetime(2026, 1, 1, tzinfo=timezone.utc),  # noqa: UP017  # what is under test
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3))),
    time(1, tzinfo=ZoneInfo("Europe/Rome"), fold=1),
    timedelta(1, 2, 3),
    timezone(timedelta(hours=1), "CET"),
    ZoneInfo("Europe/Rome"),
    pathlib.Path("a/b"),
    {1},
    frozenset({"a"}),
    deque([1, 2]),
    Send("n", {"a": 1}),
    Interrupt(value=1, id="i"),
    Command(update={"a": 1}, goto="n"),
    Document("x", id="1", metadata={"a": 1}),
    HumanMessage("x", id="1"),
    {"messages": [HumanMessage("x"), ToolMessage("y", tool_call_id="1")], "at": [Decimal(1)]},
]


@pytest.mark.parametrize("value", EXACT_OFFICIALLY, ids=lambda v: type(v).__name__)
def test_what_the_official_serializer_keeps_has_its_bytes(value: Any) -> None:
    assert serde.dumps_typed(value) == official.dumps_typed(value)


OFFICIAL: list[Any] = [
    *EXACT_OFFICIALLY,
    bytearray(b"x"),
    (1, (2, 3)),
    Kind.A,
    Point(1, 2),
    Pair([1], 2),
    Model(a=1),
    Model(a=1, inner=Point(1)),
    Old(a=1),
    {"k": Kind.A, "l": [Point(3)]},
    ValueError("x"),
    "a\ud800b",
    {2: "a", (1, 2): "b"},
    datetime(2026, 3, 7, 9, tzinfo=ZoneInfo("America/New_York"), fold=1),
    deque([1], maxlen=1),
]


@pytest.mark.parametrize("value", OFFICIAL, ids=lambda v: type(v).__name__)
def test_official_bytes_are_read_as_the_official_serializer_reads_them(value: Any) -> None:
    typed = official.dumps_typed(value)
    assert same(serde.loads_typed(typed), official.loads_typed(typed))
    cipher = EncryptedSerializer.from_pycryptodome_aes(serde=official, key=b"0" * 16)
    sealed = cipher.dumps_typed(value)
    assert same(EncryptedSerializer(cipher.cipher, serde).loads_typed(sealed), official.loads_typed(typed))


READABLE_OFFICIALLY: list[Any] = [Kind.A, Point(1, 2), Pair([1], 2), Model(a=1, inner=Point(1)), Old(a=1)]


@pytest.mark.parametrize("value", READABLE_OFFICIALLY, ids=lambda v: type(v).__name__)
def test_our_bytes_of_application_classes_are_understood_by_the_official_serializer(value: Any) -> None:
    assert official.loads_typed(serde.dumps_typed(value)) == value


def test_elements_of_an_official_set_were_tuples() -> None:
    assert serde.loads_typed(official.dumps_typed({(1, (2,)), 3})) == {(1, (2,)), 3}


def test_official_bytes_of_classes_nested_in_classes_are_read_as_their_data() -> None:
    assert serde.loads_typed(official.dumps_typed(Outside.Inner(a=1))) == {"a": 1}
    assert same(serde.decode(serde.encode(Outside.Inner(a=1))), Outside.Inner(a=1))


def test_json_of_old_checkpoints_is_read() -> None:
    old = b'{"lc": 2, "type": "constructor", "id": ["langchain_core", "messages", "human", "HumanMessage"], '
    old += b'"kwargs": {"content": "x"}}'
    assert serde.loads_typed(("json", b'{"a": [1, null]}')) == {"a": [1, None]}
    assert serde.loads_typed(("json", old)) == official.loads_typed(("json", old))
    with pytest.raises(Corrupt, match="json"):
        serde.loads_typed(("json", b'{"a":'))


def test_pickles_are_read_and_written_only_when_asked_for() -> None:
    trusting = Serializer(pickle_fallback=True)
    stored = JsonPlusSerializer(pickle_fallback=True).dumps_typed(object)
    assert stored[0] == "pickle"
    assert trusting.loads_typed(stored) is object
    assert trusting.decode(trusting.encode({"a": object})) == {"a": object}
    assert trusting.dumps_typed([object]) == ("pickle", pickle.dumps([object]))
    assert trusting.dumps_typed([1]) == official.dumps_typed([1])
    with pytest.raises(Unserializable, match="pickle_fallback=True"):
        serde.loads_typed(stored)
    with pytest.raises(Unserializable, match="pickle_fallback=True"):
        serde.decode(trusting.encode(object))
    with pytest.raises(Unserializable, match="what"):
        serde.loads_typed(("what", b""))
    with pytest.raises(Unserializable, match=r"\['a'\]"):
        trusting.encode({"a": lambda: None})


STRICT: list[Any] = [Kind.A, Point(1), Pair(1, [2]), Model(a=1), Old(a=1), Outside.Inner(a=1)]


@pytest.mark.parametrize("value", STRICT, ids=lambda v: type(v).__name__)
def test_a_class_that_is_not_allowed_comes_back_as_its_data(value: Any, events: list[SerdeEvent]) -> None:
    strict = Serializer(allowed_msgpack_modules=None)
    strictly = JsonPlusSerializer(allowed_msgpack_modules=None)
    for typed in (official.dumps_typed(value), serde.dumps_typed(value)):
        assert same(strict.loads_typed(typed), strictly.loads_typed(typed))
    assert {(event["kind"], event["module"]) for event in events} == {("msgpack_blocked", __name__)}
    cls = type(value)
    for allowed in ([cls], [(cls.__module__, cls.__name__)], [(cls.__module__, cls.__qualname__)]):
        lenient = Serializer(allowed_msgpack_modules=allowed)
        events.clear()
        assert same(lenient.decode(serde.encode(value)), value)
        assert events == []
        clone = strict.with_msgpack_allowlist(allowed)
        assert isinstance(clone, Serializer)
        assert same(copy.copy(clone).decode(clone.encode(value)), value)
    assert type(strict.decode(serde.encode(value))) is not cls


def test_a_class_that_is_merely_unregistered_is_built_with_an_event_and_one_warning(
    events: list[SerdeEvent], caplog: pytest.LogCaptureFixture
) -> None:
    @dataclasses.dataclass
    class Fresh:
        x: int

    Fresh.__qualname__ = f"Fresh{uuid.uuid4().hex}"
    Fresh.__name__ = Fresh.__qualname__
    globals()[Fresh.__qualname__] = Fresh
    permissive = Serializer(allowed_msgpack_modules=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert permissive.decode(permissive.encode(Fresh(1))) == Fresh(1)
    assert [record.levelname for record in caplog.records if Fresh.__qualname__ in record.getMessage()] == ["WARNING"]
    assert [event["kind"] for event in events] == ["msgpack_unregistered_allowed"] * 3


def test_the_environment_switch_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_msgpack, "STRICT_MSGPACK_ENABLED", True)
    assert Serializer().decode(serde.encode(Point(1))) == {"x": 1, "y": 0}
    monkeypatch.setattr(_msgpack, "STRICT_MSGPACK_ENABLED", False)
    assert Serializer().decode(serde.encode(Point(1))) == Point(1)


def test_what_needs_no_import_of_application_code_is_always_allowed() -> None:
    strict = Serializer(allowed_msgpack_modules=None)
    value = [
        2**70,
        (1,),
        {(1, frozenset()): 1},
        deque(maxlen=1),
        1j,
        Send("a", (1,)),
        Interrupt((1,), id="i"),
    ]
    assert same(strict.decode(strict.encode(value)), value)


def test_a_model_around_something_that_is_not_allowed_is_validated_as_officially() -> None:
    # Point comes back as its data: a model that took this over unchecked would hold a dict where it declares a Point.
    strict = Serializer(allowed_msgpack_modules=[Model])
    assert same(strict.decode(serde.encode(Model(a=1, inner=Point(1)))).inner, Point(1))


def test_only_the_known_method_is_called(events: list[SerdeEvent]) -> None:
    from ormsgpack import Ext, packb

    hostile = packb(Ext(3, packb(["os", "system", "true", "__call__"])))
    assert serde.decode(hostile) == "true"
    assert [event["kind"] for event in events] == ["msgpack_method_blocked"]


def test_only_classes_are_called() -> None:
    from ormsgpack import Ext, packb

    for code, args in ((0, "true"), (1, ["true"]), (2, {"command": "true"})):
        hostile = packb(Ext(code, packb(["os", "system", args])))
        assert serde.decode(hostile) == args


def test_a_hook_of_the_user_is_used_as_it_is() -> None:
    custom = Serializer(__unpack_ext_hook__=lambda code, data: (code, data))
    assert custom.decode(serde.encode(2**70))[0] == 65
    assert custom.with_msgpack_allowlist([Point]).decode(serde.encode(2**70))[0] == 65


def test_permissive_serializers_and_known_allowlists_are_not_copied() -> None:
    permissive = Serializer(allowed_msgpack_modules=True)
    assert permissive.with_msgpack_allowlist([Point]) is permissive
    known = Serializer(allowed_msgpack_modules=[Point])
    assert known.with_msgpack_allowlist([Point]) is known
    assert known.with_msgpack_allowlist([Model]).decode(serde.encode([Point(1), Model(a=1)])) == [Point(1), Model(a=1)]
