"""What goes in comes out: CASES.md V1 to V12, and the properties behind them."""

from __future__ import annotations

import enum
import ipaddress
import math
import pathlib
import re
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from exactly import same
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.store.base import Item, SearchItem
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy
from milepost.codec.exts import array_header, map_header
from milepost.codec.values import Serializer
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, field_validator

NEW_YORK = ZoneInfo("America/New_York")

serde = Serializer(allowed_msgpack_modules=True)


def again(value: Any) -> Any:
    return serde.decode(serde.encode(value))


class Outer:
    class Color(enum.Enum):
        RED = 1
        GREEN = (1, "two")

    class Level(enum.IntEnum):
        LOW = 1

    @dataclass
    class Inner:
        x: Any


class Size(enum.StrEnum):
    BIG = "big"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Shouting(str, enum.Enum):  # noqa: UP042  # the older form is a case of its own
    YES = "YES"


class Handler(enum.Enum):
    """Members whose values cannot be stored."""

    FIRST = object()


@dataclass
class Derived:
    base: int
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = self.base * 2


@dataclass(frozen=True, slots=True)
class Frozen:
    at: tuple[int, ...]
    seen: set[str] = field(default_factory=set)


@dataclass
class Seeded:
    seed: InitVar[int]
    value: int = 0

    def __post_init__(self, seed: int) -> None:
        self.value = seed + 1


@dataclass
class Cached:
    text: str

    @cached_property
    def length(self) -> int:
        return len(self.text)


@dataclass
class Lazy:
    name: str
    never: int = field(init=False)


class Point(NamedTuple):
    x: int
    y: Any = None


Pair = namedtuple("Pair", "left right")  # noqa: PYI024  # pyright: ignore[reportUntypedNamedTuple]  # the untyped form is a case of its own


class Plain(BaseModel):
    a: int
    b: str = "default"


class Nested(BaseModel):
    item: Plain
    anything: Any = None
    pair: tuple[int, ...] = ()


class Shorter(Plain):
    c: float = 0.5


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Aliased(BaseModel):
    a: int = Field(alias="the a")
    b: int = Field(default=1, validation_alias="the b")


class Hashing(BaseModel):
    """A validator that must not run twice."""

    word: str

    @field_validator("word")
    @classmethod
    def _hash(cls, word: str) -> str:
        return f"#{word}"


class Private(BaseModel):
    a: int
    _count: int = PrivateAttr(default=0)


class Numbers(RootModel[list[int]]):
    pass


SCALARS: list[Any] = [
    None,
    True,
    0,
    -1,
    2**63,
    2**64 - 1,
    -(2**63),
    2**64,
    -(2**63) - 1,
    10**400,
    math.nan,
    math.inf,
    -math.inf,
    -0.0,
    1e16,
    5e-324,
    "",
    "x\x00y",
    "a\ud800b",
    "\udfff",
    "é\U0001f600",
    b"",
    b"\x00\xc4",
    bytearray(b"ab"),
    1 + 2j,
    complex(-0.0, math.nan),
    Fraction(1, 3),
    Fraction(10**30, 7),
    Decimal("1.10"),
    Decimal("NaN"),
    Decimal("-0E+10"),
    range(3),
    range(10, -10, -3),
    UUID("12345678123456781234567812345678"),
    ipaddress.ip_address("10.0.0.1"),
    ipaddress.ip_interface("10.0.0.1/8"),
    ipaddress.ip_network("10.0.0.0/8"),
    ipaddress.ip_address("fe80::1%eth0"),
    ipaddress.ip_interface("::1/64"),
    ipaddress.ip_network("::/64"),
    re.compile("(?i)a+", re.MULTILINE),
    re.compile(rb"a\xff", re.DOTALL),
    pathlib.Path("a/b"),
    pathlib.Path(),
    pathlib.PurePosixPath("/a"),
    pathlib.PureWindowsPath("C:/a/b"),
    Outer.Color.RED,
    Outer.Color.GREEN,
    Outer.Level.LOW,
    Size.BIG,
    Access.READ,
    Access.READ | Access.WRITE,
    Access(0),
    Shouting.YES,
    Handler.FIRST,
    SecretStr("s"),
]

TIMES: list[Any] = [
    date(2026, 3, 7),
    datetime(2026, 3, 7, 9, tzinfo=NEW_YORK),
    datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK),
    datetime(2026, 11, 1, 1, 30, tzinfo=NEW_YORK, fold=1),
    datetime(2026, 1, 1, 1),  # noqa: DTZ001  # naive on purpose, as below
    datetime(2026, 1, 1, 1, fold=1),  # noqa: DTZ001
    datetime(2026, 1, 1, tzinfo=timezone.utc, fold=1),  # noqa: UP017  # what is under test
    datetime(2026, 1, 1, 1, 2, 3, 4, tzinfo=timezone(timedelta(hours=-3, seconds=7))),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(microseconds=1))),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
    datetime.max,  # noqa: DTZ901
    datetime.min,  # noqa: DTZ901
    time(1, 2, 3, 4),
    time(1, tzinfo=timezone.utc, fold=1),  # noqa: UP017
    time(1, tzinfo=NEW_YORK),
    timedelta(days=-1, seconds=1, microseconds=1),
    timezone.utc,  # noqa: UP017
    timezone(timedelta(hours=1), "CET"),
    NEW_YORK,
]

CONTAINERS: list[Any] = [
    (),
    (1, (2, [3, (4,)])),
    [(), [], {}],
    [bytearray(b"x"), {"a": bytearray(b"\xc4")}],
    ["ł", "Ā", {"ń": b"\xc5"}],
    {"x\x00y": 1, "a\ud800": 2},
    {1: "int", "1": "str", 2.5: "float", None: "none", b"1": "bytes"},
    {True: 1, 0: False},
    {(1, "a"): 1, (): 2, ((1,), None): 3},
    {(1, frozenset({2})): 1},
    {date(2026, 1, 1): 1, Outer.Color.RED: 2, Size.BIG: 3, frozenset({1}): 4, 2**70: 5, 1j: 6},
    {-0.0: 1},
    {"a": {1: {"b": {(1,): "deep\ud800"}}}},
    {1, 2, (3, (4,))},
    frozenset({"a", frozenset({1})}),
    set(),
    deque([1, 2], maxlen=2),
    deque([(1,)]),
    deque(maxlen=0),
    defaultdict(list, a=[1]),
    defaultdict(None, {1: 2}),
    defaultdict(Counter, {(1,): Counter("a")}),
    Counter("aab"),
    Counter({"a": -1, (1,): 0}),
    OrderedDict([("b", 1), (2, "a")]),
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "HumanMessage"], "kwargs": {}},
    {"lc": 2, "type": "constructor", "id": ["builtins", "set"], "args": [[1]]},
]

OBJECTS: list[Any] = [
    Point(1, (2,)),
    Pair(left=[1], right=None),
    Outer.Inner({"a": (1,)}),
    Frozen((1, 2), {"a"}),
    Seeded(4),
    Plain(a=1),
    Plain(a=1, b="x"),
    Nested(item=Shorter(a=1, c=1.5), anything=Plain(a=2), pair=(1, 2)),
    Plain.model_construct(a="not an int"),
    Loose(a=1, other=(2,)),  # type: ignore[call-arg]  # extras are allowed
    Aliased(**{"the a": 1, "the b": 2}),
    Hashing(word="w"),
    Numbers([1, 2]),
    Document("text", metadata={"a": (1,)}),
    Document("text", id="1"),
    Send("n", {"a": (1,)}),
    Send("n", None, timeout=TimeoutPolicy(run_timeout=timedelta(seconds=3))),
    Interrupt(value={"ask": (1,)}, id="i"),
    Command(update={"a": 1}, resume=[1], goto=("a", Send("b", 1))),
    Command(goto="a"),
    Overwrite([1]),
    _DeltaSnapshot([1, (2,)]),
    _DeltaSnapshot(b"bytes"),
]


@pytest.mark.parametrize("value", [*SCALARS, *TIMES, *CONTAINERS, *OBJECTS], ids=lambda v: f"{type(v).__name__}")
def test_comes_back_exactly(value: Any) -> None:
    if isinstance(value, Document):
        # LangGraph rebuilds its trusted models through their constructor: every field counts as given.
        value = Document(**value.__dict__)
    assert same(again(value), value)
    assert same(again([{"k": (value,)}]), [{"k": (value,)}])
    assert same(serde.loads_typed(serde.dumps_typed(value)), value)


def test_a_zone_is_kept_over_a_change_of_its_offset() -> None:
    day = timedelta(days=1)
    value = datetime(2026, 3, 7, 9, tzinfo=NEW_YORK)
    assert (again(value) + day).astimezone(timezone.utc) == (value + day).astimezone(timezone.utc)  # noqa: UP017


def test_what_a_dataclass_sets_up_itself_is_kept() -> None:
    value = Derived(2)
    value.double = 5
    assert again(value) == value
    cached = Cached("abc")
    assert cached.length == 3
    assert again(cached).__dict__ == cached.__dict__
    assert not hasattr(again(Lazy("x")), "never")


def test_private_attributes_of_a_model_are_kept() -> None:
    value = Private(a=1)
    value._count = 7
    assert again(value)._count == 7


def test_fields_given_to_a_model_stay_the_fields_given() -> None:
    assert again(Plain(a=1)).model_fields_set == {"a"}
    assert again(Loose(a=1, z=2)).model_fields_set == {"a", "z"}  # type: ignore[call-arg]  # extras are allowed


def test_subclasses_of_builtins_become_the_plain_value() -> None:
    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "another text"

    class Number(int):
        pass

    class Ratio(float):
        pass

    class Items(list[int]):
        pass

    class Mapping(dict[str, int]):
        def items(self) -> Any:
            raise AssertionError

    class Data(bytes):
        pass

    class Day(date):
        pass

    values = [Text("t"), Number(3), Number(2**70), Ratio(-0.0), Items([1]), Mapping(a=1), Data(b"d"), Day(2026, 1, 1)]
    plain = ["t", 3, 2**70, -0.0, [1], {"a": 1}, b"d", date(2026, 1, 1)]
    assert same(again(values), plain)
    assert same(again({Text("k"): Text("v")}), {"k": "v"}) is True
    assert same(again(AIMessage("x").text), "x")
    assert same(again(HumanMessage(AIMessage("x").text)).content, "x")


def test_an_exception_becomes_its_repr() -> None:
    assert again(ValueError("no")) == "ValueError('no')"


def test_items_of_a_store_come_back() -> None:
    now = datetime(2026, 1, 1, tzinfo=timezone.utc)  # noqa: UP017
    item = Item(value={"a": (1,)}, key="k", namespace=("n", "m"), created_at=now, updated_at=now)
    found = SearchItem(namespace=("n",), key="k", value={"a": 1}, created_at=now, updated_at=now, score=0.5)
    assert again(item) == item
    assert again(item).value == {"a": (1,)}
    assert (again(found), again(found).score) == (found, 0.5)


def test_nested_objects_in_messages_stay_objects() -> None:
    value = AIMessage("x", additional_kwargs={"parsed": Plain(a=1), "pair": (1, 2), 3: {4}})
    result = again(value)
    assert same(result.additional_kwargs, value.additional_kwargs)
    removed = again(RemoveMessage(id="1"))
    assert (type(removed), removed.id) == (RemoveMessage, "1")
    assert again(ChatMessage(content="x", role="r", name="n")) == ChatMessage(content="x", role="r", name="n")


# Properties.

text = st.text(st.characters(exclude_categories=()), max_size=8)
zones = st.sampled_from([NEW_YORK, ZoneInfo("UTC"), ZoneInfo("Asia/Kathmandu")])
offsets = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
hashable_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**66), 2**66),
    st.floats(allow_nan=False),
    text,
    st.binary(max_size=4),
    st.fractions(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.datetimes(timezones=st.none() | zones | offsets, allow_imaginary=False),
    st.times(timezones=st.none() | offsets),
    st.timedeltas(),
    st.uuids(),
    st.ip_addresses(),
    st.complex_numbers(allow_nan=False),
    st.sampled_from([*Outer.Color, *Outer.Level, *Size, *Shouting]),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9)),
    text.filter(lambda t: "\0" not in t).map(pathlib.PurePosixPath),
)
hashables: st.SearchStrategy[Any] = st.recursive(
    hashable_leaves,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(Point, inner, inner)
        | st.builds(Frozen, st.lists(inner, max_size=2).map(tuple), st.just(frozenset()))
    ),
    max_leaves=6,
)
leaves = hashables | st.floats() | st.builds(bytearray, st.binary(max_size=4)) | st.complex_numbers() | st.decimals()
values: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(text, inner, max_size=4),
        st.dictionaries(hashables, inner, max_size=4),
        st.sets(hashables, max_size=3),
        st.builds(deque, st.lists(inner, max_size=3), st.none() | st.integers(0, 3)),
        st.builds(OrderedDict, st.dictionaries(hashables, inner, max_size=3)),
        st.builds(defaultdict, st.sampled_from([None, list, dict, int]), st.dictionaries(hashables, inner, max_size=3)),
        st.builds(Counter, st.dictionaries(hashables, st.integers(), max_size=3)),
        st.builds(Outer.Inner, inner),
        st.builds(Point, st.integers(), inner),
        st.builds(Nested, item=st.builds(Plain, a=st.integers()), anything=inner),
        st.builds(lambda value: HumanMessage("x", additional_kwargs={"v": value}).additional_kwargs, inner),
    ),
    max_leaves=20,
)


@given(values)
@settings(max_examples=100, deadline=None)
def test_any_value_comes_back_exactly(value: Any) -> None:
    data = serde.encode(value)
    assert same(serde.decode(data), value)
    assert same(serde.decode(memoryview(data)), value)
    assert same(serde.loads_typed(serde.dumps_typed(value)), value)


@given(st.lists(values, max_size=20), st.dictionaries(text, values, max_size=20))
@settings(max_examples=40, deadline=None)
def test_a_container_is_its_header_and_the_encoded_elements(items: list[Any], mapping: dict[str, Any]) -> None:
    joined = array_header(len(items)) + b"".join(map(serde.encode, items))
    assert joined == serde.encode(items)
    if all(key[at] < "\ud800" or key[at] > "\udfff" for key in mapping for at in range(len(key))):
        pairs = b"".join(serde.encode(key) + serde.encode(value) for key, value in mapping.items())
        assert map_header(len(mapping)) + pairs == serde.encode(mapping)
    assert same(serde.decode(joined), items)


@pytest.mark.parametrize("count", [15, 16, 65535, 65536])
def test_headers_of_every_width(count: int) -> None:
    # Keys that are no strings force the exact walk, which writes the headers itself.
    for value in ({"a": [0] * count, 1: 2}, dict.fromkeys(range(count)), tuple([b"\xc4"] * count)):
        assert again(value) == value
    assert struct.calcsize(">I") == 4
