"""The guard must never call a message unchanged whose encoding would differ."""

from __future__ import annotations

import copy
import gc
import sys
import weakref
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_c import needs_c
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from milepost.codec import guard
from milepost.codec.guard import BLOCK, SameObjects, Seen, Traced, guardable
from milepost.codec.values import Serializer

eyes = Serializer()
encode = eyes.encode

Guard = Callable[..., Seen | Traced]


def in_python(messages: list[Any], after: Seen | None = None) -> Seen:
    return Seen(messages, eyes, after)


def in_c(messages: list[Any], after: Traced | None = None) -> Traced:
    looked = guard.look(messages, eyes, after)
    assert isinstance(looked, Traced)
    return looked


GUARDS = [pytest.param(in_python, id="Python"), pytest.param(in_c, id="C", marks=needs_c)]
both = pytest.mark.parametrize("look", GUARDS)


def conversation() -> list[AnyMessage]:
    return [
        SystemMessage("be brief", id="s"),
        HumanMessage([{"type": "text", "text": "hello"}, "there"], id="h", additional_kwargs={"a": {"b": [1, 2]}}),
        AIMessage(
            "calling",
            id="a",
            tool_calls=[{"name": "search", "args": {"q": ["x", {"deep": 1}]}, "id": "c1"}],
            response_metadata={"tokens": 1, "flag": True},
            usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
        ),
        ToolMessage("result", tool_call_id="c1", id="t", artifact={"rows": [[1, 2], [3, 4]], "raw": b"raw"}),
    ]


# Each takes a conversation and changes one thing in place, at some depth.
MUTATIONS: dict[str, Callable[[list[Any]], Any]] = {
    "content replaced": lambda m: setattr(m[0], "content", "be long"),
    "content of equal text": lambda m: setattr(m[0], "content", "be briefly"[:8]),
    "content block": lambda m: m[1].content[0].update(text="bye"),
    "content list appended": lambda m: m[1].content.append("more"),
    "content list shortened": lambda m: m[1].content.pop(),
    "additional_kwargs key": lambda m: m[2].additional_kwargs.update(x=1),
    "additional_kwargs deep": lambda m: m[1].additional_kwargs["a"]["b"].append(3),
    "additional_kwargs replaced": lambda m: setattr(m[1], "additional_kwargs", {}),
    "tool call argument deep": lambda m: m[2].tool_calls[0]["args"]["q"][1].update(deep=2),
    "tool call id": lambda m: m[2].tool_calls[0].update(id="c2"),
    "tool call added": lambda m: m[2].tool_calls.append({"name": "n", "args": {}, "id": "c9"}),
    "int for equal bool": lambda m: m[2].response_metadata.update(flag=1),
    "float for equal int": lambda m: m[2].response_metadata.update(tokens=1.0),
    "bool for equal int": lambda m: m[2].response_metadata.update(tokens=True),
    "usage": lambda m: m[2].usage_metadata.update(total_tokens=4),
    "artifact deep": lambda m: m[3].artifact["rows"][1].reverse(),
    "tuple for equal list": lambda m: m[3].artifact["rows"].__setitem__(0, (1, 2)),
    "bytearray for equal bytes": lambda m: m[3].artifact.update(raw=bytearray(b"raw")),
    "artifact replaced": lambda m: setattr(m[3], "artifact", None),
    "status": lambda m: setattr(m[3], "status", "error"),
    "id": lambda m: setattr(m[3], "id", "other"),
    "name": lambda m: setattr(m[0], "name", "n"),
    "extra field": lambda m: setattr(m[0], "surprise", 1),
    "dict order": lambda m: m[1].additional_kwargs.update(z=m[1].additional_kwargs.pop("a")),
    "message replaced": lambda m: m.__setitem__(0, HumanMessage("be brief", id="s")),
    "order": lambda m: m.reverse(),
    "field smuggled in": lambda m: m[0].__dict__.update(smuggled=1),
    "field removed": lambda m: m[0].__dict__.pop("name"),
}


@both
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_change_is_seen(name: str, look: Guard) -> None:
    messages = conversation()
    seen = look(messages)
    assert seen.same(messages, eyes)
    MUTATIONS[name](messages)
    assert not seen.same(messages, eyes)


@both
def test_a_value_that_cannot_be_stored_any_more_is_a_change(look: Guard) -> None:
    messages = conversation()
    seen = look(messages)
    messages[1].additional_kwargs["handle"] = object()
    assert not seen.same(messages, eyes)


@both
def test_a_run_that_grows_is_seen_as_a_whole(look: Guard) -> None:
    messages = conversation()
    seen = look(messages[3:], look(messages[:3]))
    assert seen.same(messages, eyes)
    assert not seen.same(messages[:3], eyes)
    messages[1].additional_kwargs["a"]["b"].append(3)
    assert not seen.same(messages, eyes)


def test_a_run_that_changes_while_it_grows_is_not_vouched_for() -> None:
    messages = conversation()
    with pytest.raises(TypeError, match="changed"):
        Seen(messages[3:], eyes, seen_before(messages))


def seen_before(messages: list[Any]) -> Seen:
    before = Seen(messages[:3], eyes)
    messages[1].additional_kwargs["a"]["b"].append(4)
    return before


@both
def test_untouched_copies_of_the_list_are_the_same_and_deep_copies_are_not(look: Guard) -> None:
    messages = conversation()
    seen = look(messages)
    assert seen.same(list(messages), eyes)
    assert not seen.same(copy.deepcopy(messages), eyes)


@both
def test_a_changed_and_restored_message_is_the_same(look: Guard) -> None:
    messages = conversation()
    seen = look(messages)
    content = messages[0].content
    messages[0].content = "other"
    messages[0].content = content
    assert seen.same(messages, eyes)


def test_extras_and_subclasses_are_not_guarded() -> None:
    class Mine(HumanMessage):
        pass

    extra = HumanMessage("x")
    extra.surprise = 1  # type: ignore[attr-defined]  # pydantic allows extra fields here
    assert guardable(conversation())
    assert not guardable([*conversation(), Mine(content="x")])
    assert not guardable([extra])
    assert not guardable(["text"])


def test_same_objects_are_the_same_and_equal_ones_are_not() -> None:
    values: list[Any] = [1, "a", None, 1.5]
    seen = SameObjects(values)
    assert seen.same(list(values), eyes)
    assert not seen.same([True, "a", None, 1.5], eyes)
    assert not seen.same([1.0, "a", None, 1.5], eyes)
    assert not seen.same([*values, 2], eyes)
    assert not seen.same(values[:3], eyes)


json = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, width=16) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
message = st.one_of(
    st.builds(
        HumanMessage, st.text(max_size=5), additional_kwargs=st.dictionaries(st.text(max_size=2), json, max_size=2)
    ),
    st.builds(AIMessage, st.text(max_size=5), response_metadata=st.dictionaries(st.text(max_size=2), json, max_size=2)),
    st.builds(lambda text, artifact: ToolMessage(text, tool_call_id="c", artifact=artifact), st.text(max_size=5), json),
)


@both
@given(st.lists(message, min_size=1, max_size=6), st.data())
def test_whenever_the_guard_says_same_the_encoding_is_the_same(
    look: Guard, messages: list[Any], data: st.DataObject
) -> None:
    before = [encode(one) for one in messages]
    seen = look(messages)
    victim = data.draw(st.sampled_from(messages))
    change = data.draw(st.sampled_from(["content", "kwargs", "artifact", "metadata", "nothing"]))
    value = data.draw(json)
    if change == "content":
        victim.content = str(value)
    elif change == "kwargs":
        victim.additional_kwargs["k"] = value
    elif change == "metadata":
        victim.response_metadata["m"] = value
    elif change == "artifact" and isinstance(victim, ToolMessage):
        victim.artifact = value
    if seen.same(messages, eyes):
        assert [encode(one) for one in messages] == before


@both
def test_blocks_are_of_a_size_that_one_pass_is_worth(look: Guard) -> None:
    many = [HumanMessage(f"m{at}", id=str(at)) for at in range(BLOCK)]
    seen = look(many)
    assert seen.same(many, eyes)
    many[BLOCK // 2].content = "changed"
    assert not seen.same(many, eyes)


def cyclic() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["loop"] = [loop]
    return loop


def deep(levels: int) -> list[Any]:
    return [deep(levels - 1)] if levels else []


@needs_c
@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        bytearray(b"raw"),
        object(),
        Decimal(1),
        {"a": {1: "not text"}},
        HumanMessage("inside"),
        cyclic(),
        deep(90),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_identity_cannot_vouch_for_is_left_to_the_closer_look(value: Any) -> None:
    messages = conversation()
    trace = guard.look(messages[:1], eyes, None)
    assert isinstance(trace, Traced)
    messages[1].additional_kwargs["odd"] = value
    assert not isinstance(guard.look(messages[:3], eyes, None), Traced)
    assert guard.look(messages[1:3], eyes, trace) is None


@needs_c
def test_a_trace_keeps_what_it_saw_alive_and_gives_it_back() -> None:
    from milepost_speedups import trace

    messages = conversation()
    messages[0].content = str(b"be brief", "ascii")
    content, nested = messages[0].content, messages[1].additional_kwargs["a"]
    before = sys.getrefcount(content), sys.getrefcount(nested)
    traces = [trace(messages, guard.GUARDED)]
    for _ in range(50):
        traces.append(trace(messages[:1], guard.GUARDED, traces[-1]))
        assert traces[-1] is not None
        assert not traces[-1].same(messages)
    assert sys.getrefcount(content) > before[0]
    assert trace([*messages, "text"], guard.GUARDED) is None
    assert not traces[0].same([*messages[:3], HumanMessage("new")])  # type: ignore[union-attr]
    traces.clear()
    gc.collect()
    assert (sys.getrefcount(content), sys.getrefcount(nested)) == before


@needs_c
@pytest.mark.parametrize("into", ["itself", "the other"])
def test_a_list_put_into_itself_is_a_change(into: str) -> None:
    one: list[Any] = []
    message = HumanMessage("x", additional_kwargs={"a": [one, one, {"b": one}]})
    seen = guard.look([message], eyes, None)
    assert isinstance(seen, Traced)
    assert seen.same([message], eyes)
    one.append(one if into == "itself" else message.additional_kwargs["a"])
    assert not seen.same([message], eyes)


@needs_c
@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.data())
def test_a_trace_speaks_for_all_that_it_goes_on_from(steps: list[int], data: st.DataObject) -> None:
    from milepost_speedups import trace

    every = [HumanMessage(f"{at}", additional_kwargs={"at": [at]}) for at in range(sum(steps))]
    traces, upto = [trace([], guard.GUARDED)], [0]
    for step in steps:
        traces.append(trace(every[upto[-1] : upto[-1] + step], guard.GUARDED, traces[-1]))
        upto.append(upto[-1] + step)
    changed = data.draw(st.integers(-1, len(every) - 1))
    if changed >= 0:
        every[changed].additional_kwargs["at"].append(0)
    for made, count in zip(traces, upto, strict=True):
        assert made is not None
        assert made.same(every[:count]) == (not 0 <= changed < count)
        assert count == len(every) or not made.same(every[: count + 1])


@needs_c
def test_a_trace_in_a_cycle_is_collected() -> None:
    from milepost_speedups import trace

    message = HumanMessage("x")
    gone = weakref.ref(message)
    holder: list[Any] = []
    message.additional_kwargs["holder"] = holder
    holder.append(trace([message], guard.GUARDED))
    assert holder[0] is not None
    del message, holder
    gc.collect()
    assert gone() is None


@needs_c
def test_a_trace_refuses_what_is_not_a_list_of_messages() -> None:
    from milepost_speedups import trace

    wrong: list[tuple[Any, ...]] = [((), guard.GUARDED), ([], {HumanMessage}), ([], guard.GUARDED, "after"), ()]
    for arguments in wrong:
        with pytest.raises(TypeError):
            trace(*arguments)
    made = trace([HumanMessage("x")], guard.GUARDED)
    assert made is not None
    with pytest.raises(TypeError):
        made.same(())  # type: ignore[arg-type]
