"""Delta channels across releases, as LangGraph's graphs see them: what a run returns is what is found afterwards."""

from __future__ import annotations

import operator
from functools import partial
from typing import Annotated, Any

import milepost
import pytest
from driving import Flavour, Graph, graph_of, thread
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START
from langgraph.types import Command, interrupt
from milepost import schema as ms
from milepost.errors import SchemaMismatch
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")


def _extend(value: list[str], writes: Any) -> list[str]:
    return [*value, *(line for write in writes for line in write)]


class Plain(TypedDict, total=False):
    k: str


class Lines(TypedDict, total=False):
    k: str
    d: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=50)]


class Often(TypedDict, total=False):
    k: str
    d: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=2)]


class Renamed(TypedDict, total=False):
    k: str
    e: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=50)]


def _graph(saver: Saver | None, state: Any, key: str = "d") -> Graph:
    """It waits in its second node."""
    delta = key in state.__annotations__

    def says(text: Any) -> dict[str, Any]:
        return {key: [text]} if delta else {"k": text}

    builder = graph_of(state)
    builder.add_node("a", lambda _: says("a"))
    builder.add_node("w", lambda _: says(interrupt("?")))
    builder.add_node("z", lambda _: says("z"))
    builder.add_edge(START, "a")
    builder.add_edge("a", "w")
    builder.add_edge("w", "z")
    builder.add_edge("z", END)
    return builder.compile(checkpointer=saver)


def _schema(state: type, version: int, *changes: ms.Change, **options: Any) -> milepost.Schema:
    upgrades = [ms.Step(1, 2, *changes)] if changes else []
    return milepost.Schema(state, version=version, name="lines", upgrades=upgrades, **options)


def _after(saver: Saver, schema: milepost.Schema) -> Saver:
    """The saver of the next release over the same store."""
    return Saver(saver.backend, schema=schema)


def _same(channel: str, value: Any) -> list[tuple[str, Any]]:
    return [(channel, value)]


ADDS = {
    "declared": ms.add_channel("d", ["default"]),
    "free function": ms.map_state(lambda state: {**state, "d": ["default"]}, writes=_same),
}


@pytest.mark.parametrize("kind", ADDS)
@pytest.mark.parametrize("state", [Lines, Often])
async def test_what_a_new_delta_channel_begins_with_stays(flavour: Flavour, kind: str, state: type) -> None:
    with milepost.connect("memory:", schema=_schema(Plain, 1)) as saver:
        await flavour.invoke(_graph(saver, Plain), {"k": "in"}, ONE)
        graph = _graph(_after(saver, _schema(state, 2, ADDS[kind])), state)
        assert (await flavour.state(graph, ONE)).values["d"] == ["default"]
        done = await flavour.invoke(graph, Command(resume="x"), ONE)
        assert done["d"] == ["default", "x", "z"]
        assert (await flavour.state(graph, ONE)).values["d"] == done["d"]
        history = await flavour.history(graph, ONE)
        assert [one.values["d"] for one in history] == [done["d"], done["d"][:2], *[["default"]] * 3]
        again = await flavour.invoke(graph, {"d": ["more"]}, ONE)
        assert again["d"] == [*done["d"], "more", "a"]


class Counted(TypedDict, total=False):
    k: str
    n: int


def _once(value: list[str], writes: Any) -> list[str]:
    return [*dict.fromkeys(_extend(value, writes))]


class Otherwise(TypedDict, total=False):
    """The same key, by another reducer."""

    k: str
    d: Annotated[list[str], DeltaChannel(_once)]


OLD = {"d": DeltaChannel(_extend, list)}
FREE: dict[str, tuple[Any, str, ms.Change, Any]] = {
    "keeps": (Lines, "d", ms.map_state(dict, writes=_same), list),
    "changes": (
        Lines,
        "d",
        ms.map_state(
            lambda state: {key: [line.upper() for line in value] for key, value in state.items()},
            writes=lambda channel, value: [(channel, [line.upper() for line in value])],
        ),
        lambda lines: [line.upper() for line in lines],
    ),
    "renames": (
        Renamed,
        "e",
        ms.map_state(
            lambda state: {"e" if key == "d" else key: value for key, value in state.items()},
            writes=lambda channel, value: [("e" if channel == "d" else channel, value)],
            deltas=OLD,
        ),
        list,
    ),
    "counts": (
        Counted,
        "n",
        ms.map_state(
            lambda state: {"n": len(state.get("d", []))}, writes=lambda _, value: [("n", len(value))], deltas=OLD
        ),
        len,
    ),
}


@pytest.mark.parametrize("kind", FREE)
@pytest.mark.parametrize("before", [Lines, Often])
async def test_a_free_function_sees_what_a_delta_channel_holds(flavour: Flavour, kind: str, before: type) -> None:
    state, key, change, then = FREE[kind]
    with milepost.connect("memory:", schema=_schema(before, 1)) as saver:
        old = _graph(saver, before)
        await flavour.invoke(old, {"d": ["in"]}, ONE)
        await flavour.invoke(old, Command(resume="x"), ONE)
        await flavour.invoke(old, {"d": ["in again"]}, ONE)
        lines = [one.values.get("d", []) for one in await flavour.history(old, ONE)]
        assert ["in", "a", "x", "z", "in again", "a"] in lines
        graph = _graph(_after(saver, _schema(state, 2, change)), state, key)
        found = [one.values.get(key, [] if key != "n" else 0) for one in await flavour.history(graph, ONE)]
        assert found == [then(some) for some in lines]
        if key != "n":
            done = await flavour.invoke(graph, Command(resume="y"), ONE)
            assert done[key] == [*then(["in", "a", "x", "z", "in again", "a"]), "y", "z"]
            assert (await flavour.state(graph, ONE)).values == done
            # A fork from where the older release was.
            history = await flavour.history(graph, ONE)
            there = next(one for one in reversed(history) if one.next == ("z",))
            assert (await flavour.invoke(graph, None, there.config))[key] == [*then(["in", "a", "x"]), "z"]


class Listed(TypedDict, total=False):
    k: str
    d: Annotated[list[str], operator.add]


@pytest.mark.parametrize("mode", ["as it is", "heads", "history"])
async def test_a_key_that_becomes_a_delta_channel_is_missed_by_nobody(
    flavour: Flavour, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    with milepost.connect("memory:", schema=_schema(Listed, 1)) as saver:
        await flavour.invoke(_graph(saver, Listed), {"d": ["in"]}, ONE)
        new = _after(saver, _schema(Lines, 2, ms.rename_channel("k", "k")))
        if mode != "as it is":
            assert [one.refused for one in new.migrate(history=mode == "history")] == [()]
        graph = _graph(new, Lines)
        await flavour.update(graph, ONE, {"k": "updated"})
        assert (await flavour.state(graph, ONE)).values == {"d": ["in", "a"], "k": "updated"}
        assert (await flavour.invoke(graph, Command(resume="x"), ONE))["d"] == ["in", "a", "x", "z"]
        assert (await flavour.state(graph, ONE)).values["d"] == ["in", "a", "x", "z"]
        assert "does not know" not in caplog.text


@pytest.mark.parametrize("mode", ["as it is", "heads", "history"])
async def test_a_delta_channel_that_a_free_function_leaves_out_begins_anew(flavour: Flavour, mode: str) -> None:
    change = ms.map_state(lambda state: {"k": "was " + state.get("k", "")}, writes=_same, deltas=OLD)
    with milepost.connect("memory:", schema=_schema(Lines, 1)) as saver:
        await flavour.invoke(_graph(saver, Lines), {"d": ["in"]}, ONE)
        new = _after(saver, _schema(Lines, 2, change))
        if mode != "as it is":
            assert [one.refused for one in new.migrate(history=mode == "history")] == [()]
        graph = _graph(new, Lines)
        assert (await flavour.invoke(graph, Command(resume="x"), ONE))["d"] == ["x", "z"]
        assert [one.refused for one in new.migrate(history=True)] == [()]
        assert (await flavour.state(_graph(_after(saver, _schema(Lines, 2)), Lines), ONE)).values["d"] == ["x", "z"]


class TwoLists(TypedDict, total=False):
    k: str
    d: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=50)]
    e: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=50)]


@pytest.mark.parametrize("mode", ["as it is", "heads", "history", "history afterwards"])
@pytest.mark.parametrize("how", ["resumed", "anew", "updated"])
async def test_what_a_task_of_a_dropped_node_has_written_last_does_not_come_back(
    flavour: Flavour, mode: str, how: str
) -> None:
    """It had finished while another one beside it waits: the run goes on without it, and so does what is read later."""

    def graph_over(saver: Saver, *names: str) -> Graph:
        builder = graph_of(TwoLists)
        builder.add_node("a", lambda _: {"e": ["a"]})
        builder.add_edge(START, "a")
        for name in names:
            builder.add_node(name, lambda _, name=name: {"e": [name]} if name == "x" else {"d": [interrupt("?")]})
            builder.add_edge("a", name)
            builder.add_edge(name, END)
        return builder.compile(checkpointer=saver)

    with milepost.connect("memory:", schema=_schema(TwoLists, 1)) as saver:
        await flavour.invoke(graph_over(saver, "x", "w"), {"d": ["in"]}, ONE)
        new = _after(saver, _schema(TwoLists, 2, ms.drop_node("x")))
        if mode in ("heads", "history"):
            assert [one.refused for one in new.migrate(history=mode == "history")] == [()]
        graph = graph_over(new, "w")
        if how == "updated":
            await flavour.update(graph, ONE, {"k": "updated"}, as_node="a")
        else:
            await flavour.invoke(graph, Command(resume="y") if how == "resumed" else {"d": ["more"]}, ONE)
        if mode == "history afterwards":
            assert [one.refused for one in new.migrate(history=True)] == [()]
        expected = ["a", "a"] if how == "anew" else ["a"]
        assert (await flavour.state(graph, ONE)).values["e"] == expected


@pytest.mark.parametrize("mode", ["as it is", "heads", "history"])
async def test_nodes_are_renamed_that_have_run_with_durability_exit(flavour: Flavour, mode: str) -> None:
    def graph_over(saver: Saver, name: str) -> Graph:
        builder = graph_of(Lines)
        builder.add_node(name, lambda _: {"d": ["a"]})
        builder.add_node("w", lambda _: {"d": [interrupt("?")]})
        builder.add_edge(START, name)
        builder.add_edge(name, "w")
        builder.add_edge("w", END)
        return builder.compile(checkpointer=saver)

    with milepost.connect("memory:", schema=_schema(Lines, 1)) as saver:
        old = graph_over(saver, "a")
        every: list[Any] = [{"d": ["in"]}, Command(resume="x"), {"d": ["again"]}]
        for asked in every:
            await flavour.invoke(old, asked, ONE, durability="exit")
        new = _after(saver, _schema(Lines, 2, ms.rename_node("a", "b")))
        if mode != "as it is":
            assert [one.refused for one in new.migrate(history=mode == "history")] == [()]
        graph = graph_over(new, "b")
        before = [one.values for one in await flavour.history(old, ONE)] if mode == "as it is" else None
        found = [one.values for one in await flavour.history(graph, ONE)]
        assert before is None or found == before
        assert (await flavour.invoke(graph, Command(resume="y"), ONE))["d"] == ["in", "a", "x", "again", "a", "y"]


async def test_an_update_of_what_was_migrated_loses_nothing(flavour: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    _, _, change, _ = FREE["keeps"]
    with milepost.connect("memory:", schema=_schema(Lines, 1)) as saver:
        await flavour.invoke(_graph(saver, Lines), {"d": ["in"]}, ONE)
        new = _after(saver, _schema(Lines, 2, change))
        assert [one.refused for one in new.migrate(history=True)] == [()]
        graph = _graph(new, Lines)
        await flavour.update(graph, ONE, {"k": "updated"})
        assert (await flavour.state(graph, ONE)).values == {"d": ["in", "a"], "k": "updated"}
        assert "does not know" not in caplog.text


def _tagged(value: list[str], writes: Any, tag: str = "") -> list[str]:
    return [*value, *(f"{tag}{line}" for write in writes for line in write)]


class Tagged(TypedDict, total=False):
    k: str
    d: Annotated[list[str], DeltaChannel(partial(_tagged, tag="1"))]


class TaggedAgain(TypedDict, total=False):
    k: str
    d: Annotated[list[str], DeltaChannel(partial(_tagged, tag="2"))]


async def test_reducers_of_one_name_are_not_taken_for_one_another(flavour: Flavour) -> None:
    _, _, change, _ = FREE["keeps"]
    with milepost.connect("memory:", schema=_schema(Tagged, 1)) as saver:
        await flavour.invoke(_graph(saver, Tagged), {"d": ["in"]}, ONE)
        graph = _graph(_after(saver, _schema(TaggedAgain, 2, change)), TaggedAgain)
        with pytest.raises(SchemaMismatch, match="by which reducer"):
            await flavour.state(graph, ONE)


@pytest.mark.parametrize(("state", "key"), [(Counted, "n"), (Otherwise, "d")])
async def test_what_a_delta_channel_was_reduced_by_must_be_said(flavour: Flavour, state: type, key: str) -> None:
    _, _, change, _ = FREE["keeps"]
    with milepost.connect("memory:", schema=_schema(Lines, 1)) as saver:
        old = _graph(saver, Lines)
        await flavour.invoke(old, {"d": ["in"]}, ONE)
        graph = _graph(_after(saver, _schema(state, 2, change)), state, key)
        for call in (flavour.state(graph, ONE), flavour.invoke(graph, Command(resume="x"), ONE)):
            with pytest.raises(SchemaMismatch, match=r"delta channels 'd'.*pass deltas="):
                await call
        # Nothing went on, and the release that it waits in goes on.
        assert (await flavour.invoke(old, Command(resume="x"), ONE))["d"] == ["in", "a", "x", "z"]


@pytest.mark.parametrize("state", [Lines, Often])
async def test_releases_that_take_turns_give_the_default_as_of_any_key(flavour: Flavour, state: type) -> None:
    """What a step of the older release has left out begins anew, in the run and when it is read afterwards."""
    wide = _schema(state, 2, ms.add_channel("d", ["default"]), readable_from=1)
    with milepost.connect("memory:", schema=_schema(Plain, 1)) as saver:
        graphs = {1: _graph(saver, Plain), 2: _graph(_after(saver, wide), state)}
        for begins, ends in ((1, 2), (2, 2), (2, 1), (1, 2), (2, 2)):
            asked: Any = {"k": "in"} if begins == 1 else {"d": ["in"]}
            await flavour.invoke(graphs[begins], asked, ONE)
            done = await flavour.invoke(graphs[ends], Command(resume="x"), ONE)
            found = (await flavour.state(graphs[2], ONE)).values["d"]
            assert found == (["default"] if ends == 1 else done["d"])
            assert found[0] == "default"


class Gone(TypedDict, total=False):
    k: str


async def _told(flavour: Flavour, before: Graph, after: Graph, saver: Saver, *, whole: bool = False) -> list[str]:
    """What is told when a thread that `before` has begun goes on with `after`, by what resumes it or from its input."""
    told: list[str] = []
    await flavour.invoke(before, {"k": "in", "d": ["in"]}, ONE)
    saver.observe(lambda event: told.append(event.error or "") if event.outcome == "drift" else None)
    if whole:
        first = (await flavour.history(after, ONE))[-1].config
        await flavour.invoke(after, None, first)
    await flavour.invoke(after, Command(resume="x"), ONE)
    await flavour.update(after, ONE, {"k": "updated"}, as_node="z")
    await flavour.invoke(after, {"k": "again"}, ONE)
    return told


@pytest.mark.parametrize("state", [Lines, Often])
@pytest.mark.parametrize("whole", [False, True])
async def test_delta_channels_that_a_graph_does_not_know_are_told_once(
    flavour: Flavour, state: type, whole: bool
) -> None:
    with milepost.connect("memory:") as saver:
        later = Saver(saver.backend)
        told = await _told(flavour, _graph(saver, state), _graph(later, Gone), later, whole=whole)
        # Where the input has not begun, the key in it is all there is of it.
        assert len(told) == 1
        assert ("writes to 'd'" if whole else "the delta channels 'd'") in told[0]


@pytest.mark.parametrize("state", [Lines, Often, Plain])
@pytest.mark.parametrize("whole", [False, True])
async def test_nothing_is_told_of_what_a_graph_knows(flavour: Flavour, state: type, whole: bool) -> None:
    with milepost.connect("memory:") as saver:
        later = Saver(saver.backend)
        before = _graph(saver, state)
        asked = before if "d" in state.__annotations__ else _graph(saver, Plain)
        assert await _told(flavour, asked, _graph(later, state), later, whole=whole and state is not Plain) == []


async def test_compaction_does_not_upgrade_twice(flavour: Flavour) -> None:
    with milepost.connect("memory:", schema=_schema(Lines, 1)) as saver:
        await flavour.invoke(_graph(saver, Lines), {"k": "in", "d": ["in"]}, ONE)
        louder = ms.map_channel("d", lambda lines: [f"{line}!" for line in lines])
        later = _after(saver, _schema(Lines, 2, louder))
        graph = _graph(later, Lines)
        await flavour.invoke(graph, Command(resume="x"), ONE)
        done = (await flavour.state(graph, ONE)).values["d"]
        assert done == ["in!", "a!", "x", "z"]
        for compact in (lambda _state, _: {"k": "K"}, lambda state, _: {"d": state["d"][-3:]}):
            (report,) = later.maintain(compact=compact, graph=graph, quiet=0).threads
            assert report.outcome == "changed", report
        found = (await flavour.state(graph, ONE)).values
        assert found == {"k": "K", "d": done[-3:]}


def _around(saver: Saver, name: str) -> Graph:
    """It calls one that waits, in a node of this name, unless it is told to pass over it."""
    builder = graph_of(Lines)
    builder.add_node(name, _graph(None, Lines))
    builder.add_conditional_edges(START, lambda state: END if state["k"] == "pass" else name, [name, END])
    builder.add_edge(name, END)
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("later", [False, True])
async def test_a_subgraph_of_a_renamed_node_is_answered_where_it_waits(
    saver: Saver, flavour: Flavour, later: bool
) -> None:
    """Also at a checkpoint that the thread has gone on from. The id of its question is the one of now, wherever it is read."""
    before = Saver(saver.backend, schema=_schema(Lines, 1))
    graph = _around(before, "child")
    await flavour.invoke(graph, {"k": "ask", "d": ["in"]}, ONE)
    if later:
        await flavour.invoke(graph, {"k": "pass"}, ONE)
    after = _after(saver, _schema(Lines, 2, ms.rename_node("child", "kid")))
    graph = _around(after, "kid")
    (waits,) = [one for one in await flavour.history(graph, ONE) if one.interrupts]
    inner = waits.config.get("configurable", {})
    place: RunnableConfig = {"configurable": {key: inner[key] for key in ("thread_id", "checkpoint_id")}}
    (question,) = waits.interrupts
    assert [one.id for one in (await flavour.state(graph, place)).interrupts] == [question.id]
    assert after.question_ids(place)[question.id] == question.id
    done = await flavour.invoke(graph, Command(resume={question.id: "x"}), place)
    assert done["d"] == ["in", "in", "a", "x", "z"]
