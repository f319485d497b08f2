"""Messages built in C are the ones that are built in Python, and only the usual ones are."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from typing import Any

import ormsgpack
import pytest
from exactly import same
from in_c import needs_c
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from milepost.codec import messages, revive
from milepost.codec.exts import PYDANTIC_V2
from milepost.codec.messages import SHAPES
from milepost.codec.revive import Policy, Revival
from milepost.codec.values import Serializer
from milepost.errors import Corrupt

pytestmark = needs_c

CALL = {"name": "t", "args": {"a": 1}, "id": "1", "type": "tool_call"}
USAGE = {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
USUAL: list[AnyMessage] = [
    HumanMessage("h", id="1", name="n", additional_kwargs={"a": [1, {"b": None}]}),
    HumanMessage([{"type": "text", "text": "t"}, "plain"]),
    SystemMessage("s", response_metadata={"m": 1}),
    AIMessage("a", tool_calls=[CALL, {**CALL, "id": None, "args": {}}], usage_metadata=USAGE),
    AIMessage("", id="2"),
    ToolMessage("t", tool_call_id="1", artifact={"x": [1]}, status="error"),
]
ODD: list[Any] = [
    None, True, 0, 1.5, "", "other", b"x", [], ["x"], [1], [None], {}, {"a": 1}, {1: 2}, {"tool_calls": []},
    {"tool_calls": [1]}, [CALL], [{**CALL, "type": "other"}], [{**CALL, "args": []}], [{**CALL, "args": {1: 2}}],
    [{**CALL, "id": 1}], [{**CALL, "name": None}], [dict(reversed(CALL.items()))], [{**CALL, "extra": 1}], [{}],
    {**USAGE, "total_tokens": True}, {**USAGE, "total_tokens": 2**70}, {**USAGE, "total_tokens": 1.0},
    {**USAGE, "more": 1}, dict(reversed(USAGE.items())),
]  # fmt: skip

serde = Serializer()


def revival() -> Revival:
    return Revival(serde._policy)


def extension(module: str, name: str, fields: Any, *more: Any) -> bytes:
    parts = [module, name, fields, *(more or ("model_validate_json",))]
    return ormsgpack.packb(parts, option=ormsgpack.OPT_NON_STR_KEYS)


def outcome(hook: Any, data: bytes) -> Any:
    try:
        return hook(PYDANTIC_V2, data)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"


def variants(message: AnyMessage) -> list[Any]:
    fields = dict(message.__dict__)
    changed: list[Any] = [{**fields, name: value} for name in fields for value in ODD if _packs(value)]
    changed += [{key: value for key, value in fields.items() if key != name} for name in fields]
    changed += [fields, dict(reversed(fields.items())), {**fields, "extra": 1}, {**fields, 5: 1}, {}, [], None, "x"]
    return changed


def _packs(value: Any) -> bool:
    try:
        ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("message", USUAL, ids=lambda message: f"{message.type} {message.content!s:.5}")
def test_every_variant_of_a_message_is_the_same_in_both(message: AnyMessage, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = SHAPES[type(message)]
    asked: list[Any] = []
    whole = Revival.finish

    def finish(self: Revival, code: int, data: bytes, parts: Any, degraded: int) -> Any:
        asked.append(parts)
        return whole(self, code, data, parts, degraded)

    monkeypatch.setattr(Revival, "finish", finish)
    for fields in variants(message):
        data = extension(shape.module, shape.name, fields)
        asked.clear()
        in_c, in_python = outcome(revival().ext_hook, data), outcome(revival().hook, data)
        assert same(in_c, in_python), fields
        usual = shape.build(ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)[2]) is not None
        assert (not asked) == usual, fields


@pytest.mark.parametrize(
    "data",
    [
        extension("elsewhere", "HumanMessage", {}),
        extension(HumanMessage.__module__, "NoMessage", {}),
        extension(HumanMessage.__module__, "HumanMessage", dict(HumanMessage("x").__dict__), "m", None),
        ormsgpack.packb([HumanMessage.__module__, "HumanMessage"]),
        ormsgpack.packb([1, 2, {}, 4]),
        ormsgpack.packb({"a": 1}),
        ormsgpack.packb(None),
        b"",
        b"\xc1",
        b"\x94\xa1",
    ],
)
def test_what_is_no_message_is_left_to_python(data: bytes) -> None:
    assert same(outcome(revival().ext_hook, data), outcome(revival().hook, data))


def test_the_first_error_is_told() -> None:
    seen = revival()
    with pytest.raises(ormsgpack.MsgpackDecodeError):
        seen.ext_hook(PYDANTIC_V2, b"\xc1")
    assert isinstance(seen.error, Corrupt)
    first = seen.error
    with pytest.raises(ormsgpack.MsgpackDecodeError):
        seen.ext_hook(PYDANTIC_V2, b"")
    assert seen.error is first


def test_nested_extensions_are_built_inside_out() -> None:
    inner = AIMessage("a", tool_calls=[CALL])
    outer = ToolMessage("t", tool_call_id="1", artifact={"kept": [inner, {1, 2}]})
    found = serde.decode(serde.encode(outer))
    assert found == outer
    assert list(map(type, found.artifact["kept"])) == [AIMessage, set]


def test_messages_nested_too_deep_are_corrupt() -> None:
    shape = SHAPES[ToolMessage]
    fields = dict(ToolMessage("t", tool_call_id="1").__dict__)
    data = extension(shape.module, shape.name, fields)
    for _ in range(3000):
        fields["artifact"] = ormsgpack.Ext(PYDANTIC_V2, data)
        if len(data) > 1 << 20:
            break
        data = extension(shape.module, shape.name, fields)
    with pytest.raises(Corrupt):
        serde.decode(ormsgpack.packb(ormsgpack.Ext(PYDANTIC_V2, data)))


def test_renamed_classes_are_not_built_in_c() -> None:
    policy = Policy(None, "error", serde._policy.registry, pickles=False, renamed={})
    assert Revival(policy).ext_hook != Revival(policy).hook
    renamed = {(HumanMessage.__module__, "HumanMessage"): SystemMessage}
    policy = Policy(None, "error", serde._policy.registry, pickles=False, renamed=renamed)
    data = extension(HumanMessage.__module__, "HumanMessage", {"content": "x"})
    assert isinstance(Revival(policy).ext_hook(PYDANTIC_V2, data), SystemMessage)


def test_nothing_is_kept_and_nothing_is_given_away() -> None:
    data = serde.encode(copy.deepcopy(USUAL))
    shared = [AIMessage, HumanMessage.__module__, SHAPES[AIMessage].names, None]
    for _ in range(3):
        serde.decode(data)
    gc.collect()
    before = [sys.getrefcount(each) for each in shared[:3]]
    for _ in range(200):
        serde.decode(data)
    gc.collect()
    after = [sys.getrefcount(each) for each in shared[:3]]
    assert all(abs(then - now) < 20 for then, now in zip(before, after, strict=True)), (before, after)


def test_a_message_in_a_cycle_is_collected() -> None:
    (message,) = serde.decode(serde.encode([HumanMessage("x")]))
    gone = weakref.ref(message)
    message.additional_kwargs["self"] = message
    del message
    gc.collect()
    assert gone() is None


def test_a_hook_in_a_cycle_is_collected() -> None:
    class Holder:
        pass

    holder: Any = Holder()
    made = messages.compiled()
    assert made is not None
    holder.hook = made.hook(holder)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_tables_that_make_no_sense_are_refused() -> None:
    from milepost_speedups import Messages

    slots = (type.__dict__["__dict__"],) * 3
    names = ("content",)
    row = (HumanMessage, "m", "n", names, "human", b"c")
    good = (ormsgpack.unpackb, 0)
    wrong_rows: list[Any] = [
        [(*row[:5], b"cc")], [(*row[:5], b"?")], [(HumanMessage, "m", "n", (1,), "human", b"c")],
        [(HumanMessage, "m", "n", ("x",) * 17, "human", b"a" * 17)], [row[:5]], [list(row)], [(1, *row[1:])],
    ]  # fmt: skip
    for rows in wrong_rows:
        with pytest.raises((TypeError, ValueError)):
            Messages(rows, *good, *slots)
    for arguments in [(), ([row], None, 0, *slots), ([row], *good, 1, 2, 3), ((row,), *good, *slots)]:
        with pytest.raises(TypeError):
            Messages(*arguments)  # type: ignore[arg-type]
    assert revive.Revival(serde._policy).ext_hook is not None


def test_decoding_leaves_nothing_to_the_collector() -> None:
    data = serde.encode(USUAL)
    gc.collect()
    gc.disable()
    try:
        serde.decode(data)
        left = [one for one in gc.get_objects() if type(one) is Revival]
    finally:
        gc.enable()
    assert left == []
