"""What cannot be stored or rebuilt says so: which type, where, why, and what to do."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import enum
import logging
import pickle
import socket
import sqlite3
import struct
import sys
import threading
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from exactly import same
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Send
from milepost.codec import exts
from milepost.codec.values import Placeholder, Registered, Serializer, register
from milepost.errors import Corrupt, InvalidConfig, Unserializable
from ormsgpack import Ext, packb
from pydantic import BaseModel, Field, PrivateAttr, create_model, field_serializer, field_validator

serde = Serializer(allowed_msgpack_modules=True)


@dataclasses.dataclass
class Box:
    inside: Any


@dataclasses.dataclass
class Guarded:
    x: int

    def __post_init__(self) -> None:
        self.lock = threading.Lock()


class Model(BaseModel):
    a: Any
    b: Any = None


class Client(BaseModel):
    """A live handle that its own serializer turns into text."""

    handle: Any

    @field_serializer("handle")
    def _address(self, handle: Any) -> str:
        return "address"

    @field_validator("handle")
    @classmethod
    def _connect(cls, handle: Any) -> Any:
        return threading.Lock() if handle == "address" else handle


class Holder(BaseModel):
    a: int
    _lock: Any = PrivateAttr(default_factory=threading.Lock)


class Secretive(BaseModel):
    a: int
    key: str = Field(default="", exclude=True)


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[dict[str, Any]]:
    async def coroutine() -> None: ...

    waiting = coroutine()
    with (
        socket.socket() as sock,
        (tmp_path / "f").open("w") as file,
        sqlite3.connect(":memory:") as connection,
    ):
        yield {
            "socket.socket": sock,
            "_io.TextIOWrapper": file,
            "_thread.lock": threading.Lock(),
            "sqlite3.Connection": connection,
            "builtins.generator": (n for n in range(1)),
            "builtins.function": lambda: None,
            "builtins.builtin_function_or_method": len,
            "builtins.module": sys,
            "builtins.type": int,
            "builtins.object": object(),
            "builtins.coroutine": waiting,
            "asyncio.locks.Lock": asyncio.Lock(),
            "types.SimpleNamespace": types.SimpleNamespace(a=1),
            "builtins.dict_keys": {}.keys(),
        }
    connection.close()
    waiting.close()


def test_what_cannot_be_stored_is_named_with_its_type(handles: dict[str, Any]) -> None:
    for name, value in handles.items():
        for store in (serde.encode, serde.dumps_typed):
            with pytest.raises(Unserializable) as caught:
                store({"a": [0, value]})
            assert caught.value.path == "['a'][1]"
            assert caught.value.type == name
            assert name in str(caught.value)
            assert "['a'][1]" in str(caught.value)
            with pytest.raises(Unserializable) as caught:
                store(value)
            assert caught.value.path == ""


PLACES: list[tuple[str, Callable[[Any], Any]]] = [
    ("['a'][3]['b']", lambda v: {"a": [0, 1, 2, {"b": v}]}),
    ("[0][1]", lambda v: [(0, v)]),
    (
        ".tool_calls[0]['args']['lock']",
        lambda v: AIMessage("", tool_calls=[{"name": "", "args": {"lock": v}, "id": ""}]),
    ),
    ("['m'][0].additional_kwargs['k']", lambda v: {"m": [HumanMessage("", additional_kwargs={"k": v})]}),
    ("['m'].inside.a[0]", lambda v: {"m": Box(Model(a=[v]))}),
    (".b.a", lambda v: Model(a=1, b=Model(a=v))),
    ("[1]", lambda v: Send("n", v)),
    ("[1]['x']", lambda v: Send("n", {"x": v})),
    ("['d']['k']", lambda v: {"d": defaultdict(list, k=v)}),
    ("[7]", lambda v: {7: v}),
    ("['x\\x00']['\\ud800']", lambda v: {"x\x00": {"\ud800": v}}),
    ("['a'][tuple]", lambda v: {"a": {(1, frozenset()): v}}),
    ("['a']<key lock>", lambda v: {"a": {v: 1}}),
    ("['a'].deep['e']", lambda v: {"a": HumanMessage("", deep={"e": v})}),
]


@pytest.mark.parametrize(("path", "put"), PLACES, ids=[path for path, _ in PLACES])
def test_the_path_leads_to_what_cannot_be_stored(path: str, put: Callable[[Any], Any]) -> None:
    with pytest.raises(Unserializable) as caught:
        serde.encode(put(threading.Lock()))
    assert caught.value.path == path
    assert caught.value.type == "_thread.lock"


def test_a_failing_class_is_named() -> None:
    class Broken(BaseModel):
        def model_dump(self, **_: Any) -> Any:
            raise RuntimeError("no")

    with pytest.raises(Unserializable, match=r"Broken at \['a'\].*RuntimeError\('no'\)"):
        serde.encode({"a": Broken()})


def cyclic_list() -> Any:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def cyclic_object() -> Any:
    box = Box(None)
    box.inside = (box,)
    return box


def cyclic_message() -> Any:
    message = HumanMessage("")
    message.additional_kwargs["me"] = [message]
    return message


@pytest.mark.parametrize(
    ("path", "make"),
    [("[1]['again']", cyclic_list), (".inside[0]", cyclic_object), (".additional_kwargs['me'][0]", cyclic_message)],
)
def test_a_cycle_is_an_error_with_its_path(path: str, make: Callable[[], Any]) -> None:
    with pytest.raises(Unserializable, match="contains itself") as caught:
        serde.encode(make())
    assert caught.value.path == path


NESTINGS: list[Callable[[Any], Any]] = [
    lambda v: [v],
    lambda v: {"a": v},
    lambda v: (v,),
    lambda v: {1: v, (frozenset(),): 1},
    Box,
    lambda v: Model(a=v),
    lambda v: HumanMessage("", additional_kwargs={"v": v}),
]


@pytest.mark.parametrize("nest", NESTINGS, ids=["list", "dict", "tuple", "pairs", "dataclass", "model", "message"])
@pytest.mark.parametrize("depth", [190, 5000])
def test_deep_values_come_back_or_are_an_error(nest: Callable[[Any], Any], depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = nest(value)
    if depth > 1000:
        with pytest.raises(Unserializable, match="deeper"):
            serde.encode(value)
    else:
        data = serde.encode(value)
        assert serde.encode(serde.decode(data)) == data


def test_what_is_written_can_be_read_from_further_down_the_stack() -> None:
    value: Any = 1
    data = b""
    while True:
        try:
            data = serde.encode((value,))
        except Unserializable:
            break
        value = (value,)

    def down(levels: int) -> Any:
        return serde.decode(data) if levels == 0 else down(levels - 1)

    assert down(500) == value


# Live parts that need not be stored.


def test_a_handle_that_the_class_makes_itself_is_made_again() -> None:
    guarded = serde.decode(serde.encode(Guarded(3)))
    assert guarded.x == 3
    assert guarded.lock.acquire(blocking=False)
    holder = serde.decode(serde.encode([Holder(a=2)]))[0]
    assert holder.a == 2
    assert holder.model_fields_set == {"a"}
    assert holder._lock.acquire(blocking=False)
    client = serde.decode(serde.encode(Client(handle=threading.Lock())))
    assert client.handle.acquire(blocking=False)


def test_excluded_fields_are_not_stored() -> None:
    data = serde.encode(Secretive(a=1, key="sk-secret"))
    assert b"sk-secret" not in data
    assert serde.decode(data) == Secretive(a=1)


# Classes that cannot be found.


def test_instances_of_local_classes_are_stored_as_their_data_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    @dataclasses.dataclass
    class LocalData:
        x: Any

    class LocalModel(BaseModel):
        x: Any

    class LocalEnum(enum.Enum):
        A = "a"

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert serde.decode(serde.encode([LocalData((1,)), LocalModel(x=1), LocalEnum.A])) == [
                {"x": (1,)},
                {"x": 1},
                "a",
            ]
    named = [record.getMessage() for record in caplog.records]
    assert [sum(f"{cls.__name__} can be found" in text for text in named) for cls in (LocalData, LocalModel)] == [1, 1]


def test_a_class_that_no_module_has_is_an_error_at_write() -> None:
    made = create_model("Made", x=(int, 1))
    with pytest.raises(Unserializable, match="no class Made") as caught:
        serde.encode({"a": made()})
    assert caught.value.path == "['a']"


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    module = types.ModuleType("milepost_test_passing")
    source = (
        "import dataclasses, enum, pydantic, typing\n"
        "@dataclasses.dataclass\nclass Data:\n    x: object\n"
        "class Model(pydantic.BaseModel):\n    x: object\n"
        "class Color(enum.Enum):\n    RED = 1\n"
        "class Pair(typing.NamedTuple):\n    x: object\n"
    )
    sys.modules[module.__name__] = module
    exec(source, module.__dict__)
    yield module
    sys.modules.pop(module.__name__, None)


@pytest.mark.parametrize("name", ["Data", "Model", "Color", "Pair"])
@pytest.mark.parametrize("gone", ["module", "class", "constructor"])
def test_a_lost_class_is_an_error_or_a_placeholder_that_writes_back_the_same_bytes(
    module: types.ModuleType, name: str, gone: str
) -> None:
    cls = getattr(module, name)
    value = {"a": [1, cls(1) if name == "Color" else cls(x=1)]}
    data = serde.encode(value)
    if gone == "module":
        del sys.modules[module.__name__]
    elif gone == "class":
        delattr(module, name)
    else:
        other: Any = types.new_class(name)
        other.__module__, other.__qualname__ = module.__name__, name
        setattr(module, name, other)
    with pytest.raises(Unserializable) as caught:
        serde.decode(data)
    assert caught.value.type == f"milepost_test_passing.{name}"
    assert name in str(caught.value)
    keeping = Serializer(unknown="placeholder", allowed_msgpack_modules=True)
    kept = keeping.decode(data)
    assert isinstance(kept["a"][1], Placeholder)
    assert kept["a"][1].type == f"milepost_test_passing.{name}"
    assert keeping.encode(kept) == data
    assert serde.encode(copy.deepcopy(pickle.loads(pickle.dumps(kept)))) == data
    payload = Serializer(unknown="payload", allowed_msgpack_modules=True).decode(data)
    assert payload == {"a": [1, 1 if name == "Color" else {"x": 1}]}
    sys.modules[module.__name__] = module
    setattr(module, name, cls)
    assert same(serde.decode(serde.encode(kept)), value)


def test_official_bytes_of_a_lost_module_are_an_error_too(module: types.ModuleType) -> None:
    data = JsonPlusSerializer().dumps_typed(module.Data(1))[1]
    delattr(module, "Data")
    assert serde.decode(data) == {"x": 1}
    del sys.modules[module.__name__]
    with pytest.raises(Unserializable, match="milepost_test_passing"):
        serde.decode(data)


def test_a_dataclass_that_has_changed_is_built_by_its_constructor(module: types.ModuleType) -> None:
    data = serde.encode(module.Data(1))
    exec("@dataclasses.dataclass\nclass Data:\n    x: object\n    y: int = 5\n", module.__dict__)
    assert serde.decode(data) == module.Data(1, 5)
    exec("@dataclasses.dataclass\nclass Data:\n    z: object\n", module.__dict__)
    with pytest.raises(Unserializable, match="refused"):
        serde.decode(data)


def test_a_model_that_has_changed_is_validated(module: types.ModuleType) -> None:
    data = serde.encode(module.Model(x=1))
    exec("class Model(pydantic.BaseModel):\n    x: str = ''\n    y: int = 5\n", module.__dict__)
    with pytest.raises(Unserializable, match="refused"):
        serde.decode(data)
    exec("class Model(pydantic.BaseModel):\n    x: int\n    y: int = 5\n", module.__dict__)
    assert serde.decode(data) == module.Model(x=1, y=5)
    exec("class Color(enum.Enum):\n    RED = 'now text'\n", module.__dict__)


def test_an_enum_is_found_by_member_then_by_value(module: types.ModuleType) -> None:
    data = serde.encode(module.Color.RED)
    exec("class Color(enum.Enum):\n    BLUE = 1\n    RED = 2\n", module.__dict__)
    assert serde.decode(data) is module.Color.RED
    exec("class Color(enum.Enum):\n    CRIMSON = 1\n", module.__dict__)
    assert serde.decode(data) is module.Color.CRIMSON


class Elsewhere(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=2)

    def dst(self, _: datetime | None) -> timedelta:
        return timedelta(0)

    def tzname(self, _: datetime | None) -> str:
        return "X"


def test_a_zone_of_another_library_becomes_its_offset() -> None:
    value = datetime(2026, 1, 1, tzinfo=Elsewhere())
    assert serde.decode(serde.encode(value)) == value


def test_a_factory_that_is_code_is_an_error() -> None:
    with pytest.raises(Unserializable, match="default_factory"):
        serde.encode(defaultdict(lambda: 1))


# Registered types (V16). The stand-in has what made a data frame hard: no dict, no fields, an odd equality.


class Frame:
    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns

    def __eq__(self, other: object) -> Any:
        return [self._columns == getattr(other, "_columns", None)]

    __hash__ = None  # type: ignore[assignment]  # as data frames have it

    def columns(self) -> dict[str, list[Any]]:
        return self._columns


class Wide(Frame):
    pass


FRAME = Registered(Frame, "frame", Frame.columns, Frame)


def test_a_registered_type_comes_back() -> None:
    knowing = Serializer(types=[FRAME], allowed_msgpack_modules=None)
    value = {"f": [Frame({"a": [1, (2,), {3: "\ud800"}]})]}
    data = knowing.encode(value)
    assert same(knowing.decode(data)["f"][0].columns(), value["f"][0].columns())
    clone = copy.copy(knowing).with_msgpack_allowlist([Box])
    assert same(clone.decode(clone.encode(value))["f"][0].columns(), value["f"][0].columns())
    with pytest.raises(Unserializable, match="Wide"):
        knowing.encode(Wide({}))
    with pytest.raises(Unserializable, match="frame"):
        serde.decode(data)
    keeping = Serializer(unknown="placeholder")
    assert keeping.encode(keeping.decode(data)) == data


def test_a_registered_type_that_fails_is_an_error() -> None:
    def fail(_: Any) -> Any:
        raise LookupError("no")

    data = Serializer(types=[FRAME]).encode(Frame({}))
    with pytest.raises(Unserializable, match=r"frame.*LookupError"):
        Serializer(types=[Registered(Frame, "frame", Frame.columns, fail)]).decode(data)
    with pytest.raises(Unserializable, match=r"Frame.*LookupError"):
        Serializer(types=[Registered(Frame, "frame", fail, Frame)]).encode(Frame({}))
    with pytest.raises(Unserializable, match=r"lock at \['k'\]"):
        Serializer(types=[FRAME]).encode({"k": Frame({"a": [threading.Lock()]})})


class Global:
    def __init__(self, n: int) -> None:
        self.n = n


def test_register_is_for_every_serializer() -> None:
    before = Serializer()
    with pytest.raises(Unserializable):
        before.encode(Global(1))
    register(Global, name="tests.global", dump=vars, load=lambda d: Global(**d))
    assert before.decode(before.encode(Global(2))).n == 2
    with pytest.raises(InvalidConfig, match="already"):
        register(Global, name="tests.other", dump=vars, load=lambda d: Global(**d))


def test_unusable_settings_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="unknown="):
        Serializer(unknown="ignore")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidConfig, match="cannot be registered"):
        Serializer(types=[Registered(str, "s", str, str)])
    with pytest.raises(InvalidConfig, match="already"):
        Serializer(types=[FRAME, Registered(Wide, "frame", Frame.columns, Wide)])
    with pytest.raises(TypeError):
        Serializer(no_such_option=1)


# Damage and malice.

SAMPLES: list[Any] = [
    {
        "messages": [
            HumanMessage("hello", id="1"),
            AIMessage("x", tool_calls=[{"name": "t", "args": {"a": 1}, "id": "1"}]),
        ]
    },
    [2**70, (1, 2), {(1, 2**70): 1}, "\ud800", bytearray(b"x"), 1j, {1, 2}, timedelta(1), Send("n", (1,))],
    {"deque": defaultdict(list, a=[1]), "box": Box([1]), "model": Model(a=1)},
]
strict = Serializer(allowed_msgpack_modules=[Box, Model])


@pytest.mark.parametrize("value", SAMPLES, ids=["messages", "kinds", "classes"])
def test_a_truncated_value_is_corrupt(value: Any) -> None:
    data = strict.encode(value)
    for cut in range(len(data)):
        with pytest.raises(Corrupt):
            strict.decode(data[:cut])
    with pytest.raises(Corrupt):
        strict.decode(data + b"\x00")


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=250, deadline=None)
def test_flipped_bytes_never_raise_anything_untyped(value: Any, draw: st.DataObject) -> None:
    data = bytearray(strict.encode(value))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(Corrupt, Unserializable):
        strict.decode(bytes(data))


CODES = [*range(8), *range(64, 83), 100, 127]
payloads = st.binary(max_size=6) | st.one_of(
    st.none(), st.integers(0, 9), st.text(max_size=3), st.lists(st.integers(-9, 9) | st.text(max_size=3), max_size=5)
).map(packb)


@given(st.sampled_from(CODES), payloads)
@settings(max_examples=250, deadline=None)
def test_extensions_with_other_contents_never_raise_anything_untyped(code: int, payload: bytes) -> None:
    with contextlib.suppress(Corrupt, Unserializable):
        assert strict.decode(packb([Ext(code, payload)])) != [None] or payload == b"\xc0"


@pytest.mark.parametrize("code", CODES)
def test_an_extension_without_sense_is_no_value(code: int) -> None:
    if code in (exts.DELTA_SNAPSHOT, exts.BIG_INT, exts.TEXT, exts.BYTEARRAY):
        with pytest.raises(Corrupt):
            strict.decode(b"\xc7\x05" + bytes([code]) + b"\xff")
        return
    for payload in (b"\x07", b"\x91\xc1", b"\xc1", b""):
        with pytest.raises((Corrupt, Unserializable)):
            strict.decode(packb(Ext(code, payload)))


def test_deeply_nested_extensions_are_corrupt() -> None:
    data = b"\x01"
    for _ in range(3000):
        data = packb(Ext(exts.TUPLE, b"\x91" + data))
    with pytest.raises(Corrupt):
        strict.decode(data)


def test_a_header_that_promises_too_much_is_corrupt() -> None:
    for head in (0xDD, 0xDF, 0xC6, 0xDB, 0xC9):
        with pytest.raises(Corrupt):
            strict.decode(struct.pack(">BI", head, 2**32 - 1) + b"\x00")
