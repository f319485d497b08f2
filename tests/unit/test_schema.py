"""Upgrades as such: composition, traces, refusal, and what a schema makes of annotations."""

from __future__ import annotations

import copy
import dataclasses
import enum
import itertools
import operator
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AnyMessage
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import MessagesState
from langgraph.managed import RemainingSteps
from langgraph.types import Interrupt, Send
from milepost import schema as ms
from milepost.errors import FormatTooNew, InvalidConfig, SchemaMismatch
from milepost.schema import Change, Schema, Schemas, Shape, Step
from milepost.schema.carry import carry
from milepost.schema.changes import NotDeclared
from milepost.schema.image import Image, Write
from milepost.schema.schema import Verdict, Where, classes_of, current_name, settled
from milepost.schema.spaces import former_spaces, present_space
from milepost.schema.stamps import Stamp, encode
from milepost.schema.tasks import Tasks, question_id
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    a: int


WHERE = Where("t", "", "01")
NAMES = ("a", "b", "c", "d")
NODES = ("n", "m", "k")
names, nodes = st.sampled_from(NAMES), st.sampled_from(NODES)
versions = st.dictionaries(st.sampled_from([*NAMES, "branch:to:n", "join:n+m:k"]), st.integers(1, 9))


lists = st.lists(st.integers(0, 9), max_size=4)
arguments = st.dictionaries(names, lists, max_size=2)
sends = st.builds(Send, nodes, arguments)


@st.composite
def images(draw: Any) -> Image:
    current = draw(versions)
    held = draw(st.dictionaries(names, lists | lists.map(_DeltaSnapshot), max_size=3))
    plumbing: dict[str, Any] = {}
    if draw(st.booleans()):
        plumbing["branch:to:n"] = None
    if draw(st.booleans()):
        plumbing["join:n+m:k"] = set(draw(st.sets(st.sampled_from(("n", "m")))))
    if draw(st.booleans()):
        plumbing["__start__"] = draw(arguments)
    if draw(st.booleans()):
        plumbing["__pregel_tasks"] = draw(st.lists(sends, min_size=1, max_size=3))
    checkpoint: dict[str, Any] = {
        "id": "01",
        "channel_values": {**held, **plumbing},
        "channel_versions": {**dict.fromkeys({*held, *plumbing}, 1), **current},
        "versions_seen": draw(st.dictionaries(nodes, versions, max_size=2)),
        "updated_channels": draw(st.none() | st.lists(names, unique=True)),
    }
    metadata: dict[str, Any] = {
        "step": 1,
        "counters_since_delta_snapshot": draw(st.dictionaries(names, st.just([1, 1]))),
    }
    return Image("t", "", "01", checkpoint, metadata)


# What a task writes is made when the checkpoint is known, and under which names: they are in the task's id.
outputs = st.one_of(
    st.tuples(names, lists),
    st.tuples(names, lists),
    st.tuples(st.just("__pregel_tasks"), sends),
    st.tuples(st.just("__interrupt__"), st.integers(0, 2)),
    st.tuples(st.just("__resume__"), lists),
    st.tuples(st.just("__error__"), st.just("no")),
)
"""A channel and a value; for a question, how many answers the task has had."""
doings = st.lists(st.tuples(st.sampled_from(("1", "2", *NODES, "sent 0", "sent 1")), outputs), max_size=4)


def _written(image: Image, doing: Iterable[tuple[str, tuple[str, Any]]], version: int = 1) -> list[Write]:
    """The writes of tasks of `image`: known by a number, by their node, or by the place of what was sent to it."""
    tasks, taken = Tasks(image), Counter[str]()
    found: list[Write] = []
    for name, (channel, value) in copy.deepcopy(list(doing)):
        task, path, node = name, "", name
        if name in NODES:
            task, path = next(tasks.made(name))
        elif name.startswith("sent"):
            at, sent = int(name[-1]), image.values.get("__pregel_tasks", ())
            node = sent[at].node if at < len(sent) else name
            path = f"~__pregel_push, {at:010d}, 0000000000"
            task = next((id for id, one in tasks.made(node) if one == path), name)
        if channel == "__interrupt__":
            value = (Interrupt("?", id=question_id(tasks.space(node, task), value)),)  # noqa: PLW2901
        at = WRITES_IDX_MAP.get(channel, taken[task])
        taken[task] += 1
        found.append(Write(task, at, path, channel, value, version))
    return list({(write.task, write.idx): write for write in found}.values())


def _free(state: dict[str, Any]) -> dict[str, Any]:
    return {**{name: value for name, value in state.items() if name != "a"}, "free": sorted(state)}


# No two channels and no two nodes ever meet under one name: each is given to one alone, also where writes of it come later.
renames = st.one_of(
    names.map(lambda name: lambda at: ms.rename_channel(name, f"{name}{at}")),
    nodes.map(lambda node: lambda at: ms.rename_node(node, f"{node}{at}")),
    nodes.map(lambda node: lambda at: ms.drop_node(node, to=f"{node}{at}")),
)
classes = st.sampled_from(("m:A", "m:B", "m:C"))
others = st.one_of(
    names.map(ms.drop_channel),
    st.builds(ms.add_channel, st.sampled_from(("x", "y")), st.lists(st.integers(0, 3))),
    names.map(lambda name: ms.map_channel(name, lambda value: [*value, 1])),
    nodes.map(ms.drop_node),
    st.builds(ms.rename_class, classes, classes),
    st.just(ms.map_state(_free, writes=lambda name, value: [] if name == "a" else [(name, value)])),
    st.just(ms.map_state(_free)),
)


def _declarable(found: list[Change]) -> bool:
    try:
        Step(1, 2, *found)
    except InvalidConfig:
        return False
    return True


changes = (
    st.lists(st.one_of(renames, others), max_size=6)
    .map(lambda found: [one if isinstance(one, Change) else one(at) for at, one in enumerate(found)])
    .filter(_declarable)
)


def _by_hand(image: Image, steps: Sequence[Step], written: Mapping[int, Sequence[Write]]) -> list[Write] | None:
    """Change by change, with the writes of each version; None where a change refuses."""
    carried = copy.deepcopy([*written.get(1, ())])
    try:
        for step in steps:
            for change in step.changes:
                carried = carry(change, image, carried)
            carried += copy.deepcopy(written.get(step.target, ()))
    except NotDeclared:
        return None
    return settled(carried)


@settings(max_examples=50, deadline=None)
@given(images(), doings, changes, st.data())
def test_an_upgrade_through_steps_is_the_composition(
    image: Image, doing: list[tuple[str, tuple[str, Any]]], every: list[Change], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(every) - 1, 1)), max_size=3)))
    bounds = [0, *[cut for cut in cuts if cut < len(every)], len(every)]
    steps = [Step(at + 1, at + 2, *every[start:end]) for at, (start, end) in enumerate(itertools.pairwise(bounds))]
    schema = Schema(State, version=len(steps) + 1, upgrades=steps)
    verdict = Verdict(1, tuple(steps))
    found = classes_of(verdict)
    for name in "ABC":
        now: Any = ("m", name)
        for change in every:
            now = change.classes.get(now, now)
        assert found.get(("m", name), ("m", name)) == now

    at_once, expected, one = (copy.deepcopy(image) for _ in range(3))
    written = _written(image, doing)
    by_hand = _by_hand(at_once, [Step(1, 2, *every)], {1: written})
    assert _upgraded(schema, one, verdict, {1: written}) == (by_hand is not None)
    if by_hand is not None:
        assert (one.checkpoint, one.metadata, one.writes) == (at_once.checkpoint, at_once.metadata, by_hand)
    # Writes that came later join on the way, and fare as if they had been upgraded by themselves.
    later: dict[int, list[Write]] = {}
    for does in doing:
        version = data.draw(st.integers(1, len(steps) + 1))
        then = copy.deepcopy(image)
        if _by_hand(then, steps[: version - 1], {}) is not None:
            later.setdefault(version, []).extend(_written(then, [does], version))
    late = copy.deepcopy(image)
    together = _by_hand(expected, steps, later)
    assert _upgraded(schema, late, verdict, later) == (together is not None)
    if together is not None:
        assert (late.checkpoint, late.metadata) == (expected.checkpoint, expected.metadata)
        singles = [_by_hand(copy.deepcopy(image), steps, {at: [write]}) for at, some in later.items() for write in some]
        assert None not in singles
        alone = settled(write for some in singles for write in some or ())
        assert sorted(map(repr, late.writes)) == sorted(map(repr, alone))


def _upgraded(schema: Schema, image: Image, verdict: Verdict, written: Mapping[int, Sequence[Write]]) -> bool:
    """Whether `image` was upgraded, and not refused."""
    try:
        schema.upgrade(image, verdict, copy.deepcopy(written), past={})
    except SchemaMismatch:
        return False
    return True


@settings(max_examples=40, deadline=None)
@given(images(), doings, names)
def test_a_dropped_channel_leaves_no_trace(image: Image, doing: list[tuple[str, tuple[str, Any]]], name: str) -> None:
    schema = Schema(State, version=2, upgrades=[Step(1, 2, ms.drop_channel(name))])
    written = _written(image, doing)
    before = len({write.task for write in written})
    schema.upgrade(image, schema.judge(STAMP, WHERE), {1: written}, past={})
    assert f"'{name}'" not in repr(image)
    assert len({write.task for write in image.writes}) == before


STAMP = encode(Stamp("State", 1, 1))[0]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), unique=True, max_size=8),
    st.one_of(
        st.none(),
        st.tuples(st.sampled_from(("State", "Other")), st.integers(1, 12), st.integers(1, 12)),
    ),
)
def test_what_no_way_leads_from_is_refused(
    version: int, ways: list[tuple[int, int]], stored: tuple[str, int, int] | None
) -> None:
    steps = [Step(*way) for way in ways if way[0] != way[1]]
    ups = [step for step in steps if step.source < step.target]
    downs = [step for step in steps if step.source > step.target]
    leads = {version}
    for _ in steps:
        leads |= {step.source for step in ups if step.target in leads and step.target <= version}
        leads |= {step.source for step in downs if step.target in leads and step.target >= version}
    ups = [step for step in ups if step.target <= version]
    downs = [step for step in downs if step.target >= version]
    if any(step.target not in leads for step in (*ups, *downs)):
        with pytest.raises(InvalidConfig, match="none leads from there to version"):
            Schema(State, version=version, upgrades=ups, downgrades=downs)
        ups, downs = ([step for step in some if step.target in leads] for some in (ups, downs))
    schema = Schema(State, version=version, upgrades=ups, downgrades=downs)
    ways = [(step.source, step.target) for step in (*ups, *downs)]
    data = None
    reachable = False
    if stored is not None:
        name, found, since = stored
        data = encode(Stamp(name, found, min(since, found)))[1]
        up = found <= version
        reached = {found}
        for _ in ways:
            reached |= {target for source, target in ways if source in reached and (source < target) == up}
        reachable = name == "State" and (version in reached or since <= version < found)
    if reachable:
        verdict = schema.judge(data, WHERE)
        ends = [verdict.version, *(step.target for step in verdict.steps)]
        assert ends[-1] == version or not verdict.steps
        assert [step.source for step in verdict.steps] == ends[:-1]
    else:
        with pytest.raises(SchemaMismatch) as caught:
            schema.judge(data, WHERE)
        assert (caught.value.thread, caught.value.checkpoint, caught.value.expected) == ("t", "01", version)
        assert caught.value.found == (stored[1] if stored else None)


def test_the_fewest_steps_are_taken() -> None:
    steps = [Step(1, 2), Step(2, 3), Step(3, 4), Step(1, 3)]
    found = Schema(State, version=4, upgrades=steps).path(1)
    assert found == (steps[3], steps[2])


@pytest.mark.parametrize("data", [b"", b"\x93", b"\xc0", b"\x92\x01\x02", b"\x97" + b"\x01" * 7])
def test_a_stamp_of_another_form(data: bytes) -> None:
    with pytest.raises(FormatTooNew, match="stamp"):
        Schema(State, version=1).judge(data, WHERE)


def test_classes_are_followed_through_steps() -> None:
    steps = (
        Step(1, 2, ms.rename_class("a:X", "b:Y")),
        Step(2, 3, ms.rename_class("b:Y", "c:Z"), ms.rename_class("b:Q", Step)),
    )
    assert classes_of(Verdict(1, steps)) == {("a", "X"): ("c", "Z"), ("b", "Y"): ("c", "Z"), ("b", "Q"): Step}
    assert classes_of(Verdict(2, steps[1:])) == {("b", "Y"): ("c", "Z"), ("b", "Q"): Step}


def test_names_are_followed_both_ways() -> None:
    steps = (Step(1, 2, ms.rename_channel("a", "b")), Step(2, 3, ms.rename_channel("b", "c"), ms.drop_channel("d")))
    schema = Schema(State, version=3, upgrades=steps)
    assert schema.former_names("c") == {"a", "b", "c"}
    assert schema.former_names("z") == {"z"}
    assert current_name(Verdict(1, steps), "a") == "c"
    assert current_name(Verdict(1, steps), "d") is None


# Nodes with a plus in their name, and joins.


@pytest.mark.parametrize(
    ("join", "change", "name", "value"),
    [
        ("join:a+b:c", ms.rename_node("a", "x"), "join:x+b:c", {"x"}),
        ("join:a+b:c", ms.rename_node("c", "x"), "join:a+b:x", {"a"}),
        ("join:a+b:a", ms.rename_node("a", "x"), "join:x+b:x", {"x"}),
        ("join:a+b+d:c", ms.rename_node("a+b", "x"), "join:x+d:c", {"a"}),
        ("join:a+b:c", ms.drop_node("a", to="x"), "join:x+b:c", {"x"}),
        ("join:a:c", ms.drop_node("a"), None, None),
        ("join:a+b:c", ms.drop_node("c"), None, None),
        ("join:aa+b:c", ms.rename_node("b", "x"), "join:aa+x:c", {"a"}),
    ],
)
def test_joins_follow_their_nodes(join: str, change: Change, name: str | None, value: Any) -> None:
    image = Image("t", "", "01", {"channel_values": {join: {"a"}}, "channel_versions": {join: 1}}, {})
    carry(change, image, [])
    assert image.values == ({} if name is None else {name: value})
    assert image.versions == ({} if name is None else {name: 1})


@pytest.mark.parametrize("change", [ms.drop_node("a"), ms.drop_node("a", to="b"), ms.rename_node("a", "b")])
def test_a_join_of_which_one_node_is_left_is_an_edge(change: Change) -> None:
    join, edge = "join:a+b:c", "branch:to:c"
    for heard, values in (({"a"}, {}), ({"b"}, {edge: None}), ((["b"], False), {edge: (None, True)})):
        checkpoint: dict[str, Any] = {
            "channel_values": {join: heard},
            "channel_versions": {join: 3, edge: 1},
            "versions_seen": {"c": {join: 3, edge: 1}},
            "updated_channels": ["x"],
        }
        carry(change, image := Image("t", "", "01", checkpoint, {}), [])
        assert image.values == values
        assert image.versions == {edge: 3}
        # The node runs, although it may have run since the other one was heard of.
        assert (image.seen, image.checkpoint["updated_channels"]) == (
            ({"c": {}}, ["x", edge]) if values else ({"c": {edge: 3}}, ["x"])
        )
    write = Write("1", 0, "", join, "b")
    assert [(one.channel, one.value) for one in carry(change, image, [write])] == [(edge, None)]


# Shapes.


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Part:
    size: int
    twin: Optional[Part] = None  # noqa: UP045  # written in the old way on purpose


class Model(BaseModel):
    a: int = Field(default=1, gt=0)
    part: Part | None = None


@dataclasses.dataclass
class Data:
    a: int = 1


def _join(a: list[int], b: list[int]) -> list[int]:
    return a + b


def _shape(**fields: Any) -> Shape:
    return Shape.of(TypedDict("State", fields))  # type: ignore[operator]  # mypy wants a literal


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "int"),
        (NotRequired[int], "int"),
        (int | None, "None | int"),
        (Optional[int], "None | int"),  # noqa: UP045  # (as above)
        (Union[str, int], "int | str"),  # noqa: UP007  # (as above)
        (Literal["b", "a"], "Literal['a', 'b']"),
        (dict[str, list[int]], "dict[str, list[int]]"),
        (Annotated[list[int], operator.add], "list[int] by operator:add"),
        (Annotated[list[int], "words", _join], "list[int] by tests:_join"),
        (Annotated[list[int], partial(_join, b=[])], "list[int] by partial(tests:_join)"),
        (list[AnyMessage], "list[AnyMessage]"),
        (Callable[[int], str], "collections:Callable[[int], str]"),
        (Any, "Any"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    assert _shape(x=hint).channels["x"].replace(__name__.partition(".")[0], "tests") == words


def test_shapes_of_all_kinds_of_states() -> None:
    assert Shape.of(Data).channels == {"a": "int"}
    (messages,) = Shape.of(MessagesState).channels.items()
    assert messages[0] == "messages"
    assert messages[1].startswith("list[AnyMessage] by langgraph:")
    found = Shape.of(Model).channels
    assert found.keys() == {"a", "part"}
    # The fields of the application's own classes count, also where a class holds itself.
    assert "size: int" in found["part"]
    assert "Part" in found["part"]
    assert _shape(x=Annotated[int, RemainingSteps], y=RemainingSteps, z=int).channels.keys() == {"x", "z"}


@pytest.mark.parametrize("state", [int, dict, "State", None, 3])
def test_what_is_no_state(state: Any) -> None:
    with pytest.raises(InvalidConfig, match="state schema"):
        Schema(state, version=1)


@pytest.mark.parametrize(
    "options",
    [
        {"version": 0},
        {"version": True},
        {"version": "1"},
        {"version": 1, "drift": "maybe"},
        {"version": 1, "readable_from": 2},
        {"version": 2, "upgrades": [Step(2, 1)]},
        {"version": 2, "upgrades": [Step(1, 1)]},
        {"version": 2, "upgrades": [Step(1, 2), Step(1, 2)]},
        {"version": 2, "upgrades": [3]},
        {"version": 2, "downgrades": [Step(1, 2)]},
        {"version": 2, "unstamped": 0},
        {"version": 2, "unstamped": 3},
        {"version": 2**63},
        {"version": 1, "name": ""},
        {"version": 1, "name": 3},
        {"version": 1, "name": "\ud800"},
        {"version": 1, "formerly": "shop"},
        {"version": 1, "formerly": [3]},
        {"version": 1, "formerly": None},
        {"version": 2, "upgrades": None},
        {"version": 2, "upgrades": Step(1, 2)},
        {"version": 2, "upgrades": ms.drop_channel("a")},
        {"version": 4, "upgrades": [Step(1, 2), Step(3, 4)]},
        {"version": 2, "upgrades": [Step(1, 3)]},
        {"version": 2, "downgrades": [Step(3, 1)]},
        {"version": 1, "nodes": "ask"},
        {"version": 1, "nodes": []},
        {"version": 1, "nodes": ["__start__"]},
        {"version": 1, "nodes": [3]},
        {"version": 1, "nodes": 3},
        {"version": 2, "nodes": ["a"], "upgrades": [Step(1, 2, ms.rename_node("b", "c"))]},
        {"version": 2, "nodes": ["a"], "upgrades": [Step(1, 2, ms.drop_node("b", to="c"))]},
    ],
)
def test_what_is_no_schema(options: Any) -> None:
    with pytest.raises(InvalidConfig):
        Schema(State, **options)


def test_what_waits_in_a_node_goes_on_in_one_that_there_is() -> None:
    steps = [
        Step(1, 2, ms.rename_node("a", "b"), ms.drop_node("x", to="b")),
        Step(2, 3, ms.rename_node("b", "c"), ms.drop_node("c", to="d")),
        Step(3, 4, ms.drop_node("d")),
        Step(3, 5, ms.rename_node("d", "e")),
        Step(4, 5),
    ]
    assert Schema(State, version=5, upgrades=steps, nodes=["e", "__start__"]).nodes == frozenset(("e",))
    with pytest.raises(InvalidConfig, match="node 'a' is to go on in 'e', which is not among"):
        Schema(State, version=5, upgrades=steps, nodes=["d"])


async def _later(value: Any) -> Any:
    return value


@pytest.mark.parametrize("ns", ["a|", "|", "a||b", "a:1", "a|1"])
def test_what_is_no_namespace(ns: str) -> None:
    with pytest.raises(InvalidConfig, match="names of nodes"):
        Schemas({ns: Schema(State, version=1)})


def test_what_is_no_change() -> None:
    for make in (
        lambda: Step(1, 2, "drop"),  # type: ignore[arg-type]  # on purpose
        lambda: ms.rename_channel("", "a"),
        lambda: ms.add_channel("a", ...),
        lambda: ms.add_channel("a", factory=3),  # type: ignore[arg-type]  # (as above)
        lambda: ms.map_channel("a", ...),  # type: ignore[arg-type]  # (as above)
        lambda: ms.map_state(len, writes="a"),  # type: ignore[arg-type]  # (as above)
        lambda: ms.drop_node("a", to=...),  # type: ignore[arg-type]  # (as above)
        lambda: ms.rename_node("a", "b", calls="c"),
        lambda: ms.rename_node("a", "b", calls=3),  # type: ignore[arg-type]  # (as above)
        lambda: ms.rename_node("a", "__end__"),
        lambda: ms.drop_node("a", to="__end__"),
        lambda: ms.rename_channel("__start__", "a"),
        lambda: ms.drop_channel("branch:to:a"),
        lambda: ms.drop_channel("join:a+b:c"),
        lambda: ms.add_channel("a"),
        lambda: ms.add_channel("a", 1, factory=list),
        lambda: ms.add_channel("a", threading.Lock()),
        lambda: ms.map_channel("a", _later),
        lambda: ms.map_state(_later),  # type: ignore[arg-type]  # (as above)
        lambda: Step("1", 2),  # type: ignore[arg-type]  # (as above)
        lambda: ms.rename_class("Class", int),
        lambda: ms.rename_class("module:", int),
    ):
        with pytest.raises(InvalidConfig):
            make()


def test_fingerprints_are_the_same_in_another_process() -> None:
    text = f"from {__name__} import Model; from milepost.schema import Shape; print(Shape.of(Model).fingerprint.hex())"
    paths = [str(Path(__file__).parents[2]), *sys.path]
    other = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}; {text}"],
        env={"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.split() == [Shape.of(Model).fingerprint.hex()]


# Namespaces of subgraphs.


def _called(node: str, *, seen: bool) -> Image:
    """A checkpoint that has called a subgraph in `node`."""
    versions = {f"branch:to:{node}": 2}
    checkpoint = {"channel_values": {}, "channel_versions": versions, "versions_seen": {node: versions} if seen else {}}
    return Image("t", "", "1ef00000-0000-0000-0000-000000000001", checkpoint, {"step": 1})


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_namespaces_are_found_both_ways(version: int, seen: bool) -> None:
    steps = [Step(1, 2, ms.rename_node("a", "b")), Step(2, 3, ms.rename_node("b", "c"), ms.rename_node("x", "a"))]
    schema = Schema(State, version=3, upgrades=steps)
    then = "abc"[version - 1]
    ((task, _), *_) = Tasks(_called(then, seen=seen)).made(then)
    ((now, _), *_) = Tasks(_called("c", seen=seen)).made("c")
    image = _called("c", seen=seen)
    assert present_space(schema, image, f"{then}:{task}", "") == f"c:{now}"
    found = list(former_spaces(schema, image, f"c:{now}", []))
    assert (f"{then}:{task}" in found) == (version < 3)
    assert present_space(schema, image, "a:0", "") is None
