"""Upgrades that would have to guess: two channels or two tasks that become one, and objects in the place of dicts."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
from langgraph.types import Send
from milepost import schema as ms
from milepost.errors import InvalidConfig, SchemaMismatch
from milepost.schema import Change, Schema, Step
from milepost.schema.image import Image, Write
from milepost.schema.schema import Verdict
from milepost.schema.tasks import Tasks, pulled
from pydantic import BaseModel
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    a: int


@dataclasses.dataclass
class Data:
    a: int = 0
    c: int | None = None


class Pair(NamedTuple):
    a: int


class Model(BaseModel):
    a: int = 0
    c: int | None = None
    d: int | None = None


def _image(**values: Any) -> Image:
    checkpoint = {"channel_values": values, "channel_versions": dict.fromkeys(values, 1), "versions_seen": {}}
    return Image("t", "", "1ef00000-0000-0000-0000-000000000001", checkpoint, {"step": 1})


def _write(channel: str, value: Any = 1, task: str = "1", path: str = "") -> Write:
    return Write(task, 0, path, channel, value, 1)


def _upgraded(image: Image, *changes: Change, writes: tuple[Write, ...] = ()) -> Image:
    step = Step(1, 2, *changes)
    Schema(State, version=2, upgrades=[step]).upgrade(image, Verdict(1, (step,)), {1: writes}, past={})
    return image


RENAME = ms.rename_channel("a", "b")


@pytest.mark.parametrize(
    ("values", "writes"),
    [
        ({"a": 1, "b": 2}, ()),
        ({"a": 1}, (_write("b"),)),
        ({"b": 1}, (_write("a"),)),
        ({}, (_write("a"), _write("b", task="2"))),
        ({"__start__": {"a": 1, "b": 2}}, ()),
        ({"__start__": {"a": 1}, "b": 2}, ()),
        ({"__pregel_tasks": [Send("n", {"a": 1, "b": 2})]}, ()),
        ({}, (_write("__pregel_tasks", Send("n", {"a": 1, "b": 2})),)),
    ],
)
def test_two_channels_that_hold_something_never_become_one(values: dict[str, Any], writes: tuple[Write, ...]) -> None:
    with pytest.raises(SchemaMismatch, match="thread 't' has something for channel 'b' already, which 'a' was to be"):
        _upgraded(_image(**values), RENAME, writes=writes)
    # Who says which of them counts, is understood.
    found = _upgraded(_image(**values), ms.drop_channel("b"), RENAME, writes=writes)
    assert "'a'" not in repr(found)


def test_counters_of_delta_channels_count_as_something() -> None:
    image = _image(a=1)
    image.metadata["counters_since_delta_snapshot"] = {"b": [1, 1]}
    with pytest.raises(SchemaMismatch, match="'b' already"):
        _upgraded(image, RENAME)


def _waiting(*nodes: str) -> tuple[Image, dict[str, Write]]:
    """A checkpoint with a task for each node, and a question that it may have asked."""
    image = _image(**dict.fromkeys((f"branch:to:{node}" for node in nodes), None))
    tasks = {node: next(Tasks(image).made(node))[0] for node in nodes}
    return image, {node: _write("__interrupt__", (), task, pulled(node)) for node, task in tasks.items()}


@pytest.mark.parametrize("change", [ms.rename_node("m", "n"), ms.drop_node("m", to="n")])
@pytest.mark.parametrize("asked", [("m", "n"), ("m",), ("n",)])
def test_two_tasks_never_become_one(change: Change, asked: tuple[str, ...]) -> None:
    image, questions = _waiting("m", "n")
    with pytest.raises(SchemaMismatch, match="a task of node 'm' and one of node 'n'"):
        _upgraded(image, change, writes=tuple(questions[node] for node in asked))


def test_a_join_that_has_heard_of_all_is_a_task() -> None:
    image, questions = _waiting("m")
    image.values["join:x+y:n"] = {"x"}
    _upgraded(image, ms.rename_node("m", "n"), writes=(questions["m"],))
    image, questions = _waiting("m")
    image.values["join:x+y:n"] = {"x", "y"}
    with pytest.raises(SchemaMismatch, match="a task of node 'm' and one of node 'n'"):
        _upgraded(image, ms.rename_node("m", "n"), writes=(questions["m"],))


def test_two_tasks_that_have_done_nothing_are_one() -> None:
    image, _ = _waiting("m", "n")
    assert set(_upgraded(image, ms.drop_node("m", to="n")).values) == {"branch:to:n"}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (Data(5), {"b": 5, "c": None}),
        (Model(a=5), {"b": 5}),
        (Model(a=5, c=None), {"b": 5, "c": None}),
        (collections.OrderedDict(a=5, c=6), collections.OrderedDict(b=5, c=6)),
    ],
)
def test_an_object_as_input_is_carried_over_by_field(value: Any, found: Any) -> None:
    entered = _upgraded(_image(__start__=value), RENAME).values["__start__"]
    assert entered == found
    assert type(entered) is type(found)
    # Nothing happens to one that the upgrade does not speak of.
    assert _upgraded(_image(__start__=value), ms.drop_channel("x")).values["__start__"] == value


@pytest.mark.parametrize("change", [RENAME, ms.drop_channel("a"), ms.map_channel("a", str), ms.map_state(dict)])
@pytest.mark.parametrize("value", [Data(5), Model(a=5), Pair(5)])
def test_an_object_as_argument_is_refused(value: Any, change: Change) -> None:
    name = type(value).__name__
    with pytest.raises(
        SchemaMismatch, match=f"Send to node 'n' whose argument is a {name}, and an upgrade changes its .*'a'"
    ):
        _upgraded(_image(__pregel_tasks=[Send("n", value)]), change)
    with pytest.raises(SchemaMismatch, match=f"whose argument is a {name}"):
        _upgraded(_image(), change, writes=(_write("__pregel_tasks", Send("n", value)),))
    _upgraded(_image(__pregel_tasks=[Send("n", value)]), ms.drop_channel("x"))


@pytest.mark.parametrize("name", ["__start__", "branch:to:n", 3, ""])
def test_a_free_function_gives_keys_of_a_state_alone(name: Any) -> None:
    with pytest.raises(SchemaMismatch, match="is no key of a state"):
        _upgraded(_image(a=1), ms.map_state(lambda _: {name: 1}))
    with pytest.raises(SchemaMismatch, match="is no key of a state"):
        _upgraded(_image(), ms.map_state(dict, writes=lambda _, value: [(name, value)]), writes=(_write("a"),))


def test_a_free_function_for_writes_gives_pairs() -> None:
    no_pairs: Any = [1]
    with pytest.raises(SchemaMismatch, match="for writes raised"):
        _upgraded(_image(), ms.map_state(dict, writes=lambda *_: no_pairs), writes=(_write("a"),))


def test_a_free_function_says_what_becomes_of_inputs_and_of_arguments() -> None:
    def writes(channel: str, value: Any) -> list[tuple[str, Any]]:
        return [] if channel == "gone" else [("b", value), ("c", 0)]

    says = ms.map_state(dict, writes=writes)
    assert _upgraded(_image(__start__={"a": 1, "gone": 2}), says).values["__start__"] == {"b": 1, "c": 0}
    (send,) = _upgraded(_image(__pregel_tasks=[Send("n", {"a": 1})]), says).values["__pregel_tasks"]
    assert send.arg == {"b": 1, "c": 0}


@pytest.mark.parametrize(
    "holds", [{"__start__": {"a": 1}}, {"__start__": Data(5)}, {"__pregel_tasks": [Send("n", {"a": 1})]}]
)
def test_a_free_function_that_does_not_say_so_is_refused(holds: dict[str, Any]) -> None:
    with pytest.raises(
        SchemaMismatch, match=r"(the input|the argument of a Send) of checkpoint .* holds a write to .*'a'"
    ):
        _upgraded(_image(**holds), ms.map_state(dict))
    twice = ms.map_state(dict, writes=lambda _, value: [("b", value), ("b", value)])
    with pytest.raises(SchemaMismatch, match="becomes two values for 'b'"):
        _upgraded(_image(**holds), twice)


def test_an_object_whose_class_has_changed_in_place_is_refused() -> None:
    # What was stored as `b` is gone when it is built with the class of now.
    for value in (Data(), Model()):
        for values in ({"__start__": value}, {"__pregel_tasks": [Send("n", value)]}):
            with pytest.raises(SchemaMismatch, match="has a field 'a' now and none for what was stored as 'b'"):
                _upgraded(_image(**values), ms.rename_channel("b", "a"))


def _class_renamed(old: str, new: str) -> Change:
    return ms.rename_class(f"m:{old}", f"m:{new}")


RENAMES = pytest.mark.parametrize("rename", [ms.rename_channel, ms.rename_node, _class_renamed])


@RENAMES
@pytest.mark.parametrize("pairs", [("ab", "ba"), ("ab", "bc"), ("ab", "bc", "ca"), ("xy", "ab", "yz", "ba")])
def test_renames_that_are_meant_to_happen_at_once_are_refused(rename: Any, pairs: tuple[str, ...]) -> None:
    """One after the other, an exchange makes both one."""
    with pytest.raises(InvalidConfig, match="one after the other, which makes one of both"):
        Step(1, 2, *(rename(*pair) for pair in pairs))
    for pair in pairs:
        Step(1, 2, rename(*pair))


@RENAMES
@pytest.mark.parametrize(
    "pairs", [("at", "ba", "tb"), ("at", "ca", "bc", "tb"), ("bc", "ab"), ("ab", "cd"), ("ac", "bc"), ("aa", "ab")]
)
def test_renames_that_are_meant_one_after_the_other_are_not(rename: Any, pairs: tuple[str, ...]) -> None:
    assert len(Step(1, 2, *(rename(*pair) for pair in pairs)).changes) == len(pairs)


def test_a_new_key_may_have_a_name_that_was_made_free_for_it() -> None:
    step = Step(1, 2, ms.rename_channel("a", "t"), ms.add_channel("a", 1), ms.rename_channel("t", "b"))
    upgraded = Image("t", "", "1", {"channel_values": {"a": 7}, "channel_versions": {"a": 1}, "versions_seen": {}}, {})
    Schema(State, version=2, upgrades=[step]).upgrade(upgraded, Verdict(1, (step,)), {}, past={})
    assert upgraded.values == {"a": 1, "b": 7}
