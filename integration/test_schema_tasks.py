"""The contract with the LangGraph that is installed: how it names tasks and questions. A pending write of a renamed node
must get the id that LangGraph computes for the new name; should its rule change, these tests fail first."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from typing import Annotated, Any

import milepost
import pytest
from driving import FLAVOURS, AnyGraph, Flavour, Graph, graph_of, thread
from langgraph.channels import DeltaChannel
from langgraph.func import entrypoint, task
from langgraph.graph import END, START
from langgraph.types import Command, Send, interrupt
from milepost import schema as ms
from milepost.errors import SchemaMismatch
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    key: str


FIRST = milepost.Schema(State, version=1)


def _second(*changes: ms.Change, state: type = State) -> milepost.Schema:
    return milepost.Schema(state, version=2, name="State", upgrades=[ms.Step(1, 2, *changes)])


def _after(saver: Saver, schema: Any) -> Saver:
    """The saver of the next release over the same store."""
    return Saver(saver.backend, schema=schema)


@pytest.fixture
def first() -> Any:
    with milepost.connect("memory:", schema=FIRST) as saver:
        yield saver


def _asks(name: str, questions: int = 1) -> Callable[[State], Any]:
    def node(_: State) -> dict[str, Any]:
        return {"log": [f"{name}: {interrupt((name, number))}" for number in range(questions)]}

    return node


def _says(name: str) -> Callable[[State], Any]:
    return lambda _: {"log": [name]}


def _straight(saver: Saver, name: str, questions: int = 1) -> Graph:
    builder = graph_of(State)
    builder.add_node("start", _says("start"))
    builder.add_node(name, _asks(name, questions))
    builder.add_edge(START, "start")
    builder.add_edge("start", name)
    builder.add_edge(name, END)
    return builder.compile(checkpointer=saver)


def _conditional(saver: Saver, name: str) -> Graph:
    builder = graph_of(State)
    builder.add_node("start", _says("start"))
    builder.add_node(name, _asks(name))
    builder.add_edge(START, "start")
    builder.add_conditional_edges("start", lambda _: name, [name])
    return builder.compile(checkpointer=saver)


def _joined(saver: Saver, name: str) -> Graph:
    """The node is behind a join, and before another one which its neighbour has reached."""
    builder = graph_of(State)
    for one in ("a", "b", "other", "last"):
        builder.add_node(one, _says(one))
    builder.add_node(name, _asks(name))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge(["a", "b"], name)
    builder.add_edge("b", "other")
    builder.add_edge([name, "other"], "last")
    return builder.compile(checkpointer=saver)


def _sent(saver: Saver, name: str) -> Graph:
    builder = graph_of(State)
    builder.add_node("start", _says("start"))
    builder.add_node("other", lambda state: {"log": [f"other {state['key']}"]})
    builder.add_node(name, lambda state: {"log": [f"{state['key']} {interrupt(state['key'])}"]})
    builder.add_edge(START, "start")
    targets = [("other", "0"), (name, "1"), (name, "2")]
    builder.add_conditional_edges("start", lambda _: [Send(node, {"key": key}) for node, key in targets])
    return builder.compile(checkpointer=saver)


def _functional(saver: Saver, name: str, flow: str = "flow") -> AnyGraph:
    def called(number: int) -> int:
        return number + int(interrupt(number))

    called.__name__ = called.__qualname__ = name
    asks = task(called)

    @task
    def plain(number: int) -> int:
        return number

    def runs(number: int) -> list[int]:
        return [plain(number).result(), asks(number).result(), asks(number + 1).result()]

    runs.__name__ = runs.__qualname__ = flow
    return entrypoint(checkpointer=saver)(runs)


SHAPES: dict[str, Any] = {
    "straight": _straight,
    "conditional": _conditional,
    "joined": _joined,
    "sent": _sent,
    "twice": lambda saver, name: _straight(saver, name, 2),
}


def _answers(shape: str) -> list[Any]:
    return ["yes"] * (2 if shape in ("twice", "sent") else 1)


async def _answer(flavour: Flavour, graph: AnyGraph, *, by_id: bool) -> Any:
    """Answer the first question that waits."""
    state = await flavour.state(graph, ONE)
    question = next(one for found in state.tasks for one in found.interrupts)
    several = sum(len(found.interrupts) for found in state.tasks) > 1
    return await flavour.invoke(graph, Command(resume={question.id: "yes"} if by_id or several else "yes"), ONE)


@pytest.mark.parametrize("by_id", [False, True], ids=["plain", "by id"])
@pytest.mark.parametrize(("shape", "answered"), [*((shape, 0) for shape in SHAPES), ("twice", 1), ("sent", 1)])
async def test_a_waiting_node_is_renamed(
    first: Saver, flavour: Flavour, shape: str, answered: int, by_id: bool
) -> None:
    make = SHAPES[shape]

    async def run(rename: bool) -> Any:
        saver = first if rename else milepost.connect("memory:", schema=FIRST)
        old = make(saver, "old")
        await flavour.invoke(old, {"log": ["in"]}, ONE)
        for _ in range(answered):
            await _answer(flavour, old, by_id=by_id)
        name = "new" if rename else "old"
        schema = _second(ms.rename_node("old", "new")) if rename else FIRST
        graph = make(_after(saver, schema), name)
        waiting = await flavour.state(graph, ONE)
        assert name in waiting.next
        done: Any = None
        for _ in range(len(_answers(shape)) - answered):
            done = await _answer(flavour, graph, by_id=by_id)
        assert (await flavour.state(graph, ONE)).next == ()
        return (
            waiting.next,
            sorted(line.replace("old:", "new:") for line in done["log"]),
            waiting.created_at is not None,
        )

    waiting, log, _ = await run(rename=True)
    control, expected, _ = await run(rename=False)
    assert sorted(name.replace("old", "new") for name in control) == sorted(waiting)
    assert log == expected


async def test_a_called_task_is_renamed(first: Saver, flavour: Flavour) -> None:
    await flavour.invoke(_functional(first, "old"), 10, ONE)
    graph = _functional(_after(first, _second(ms.rename_node("old", "new"))), "new")
    # The answer of the first call is kept under its new id: it is not asked again.
    await flavour.invoke(graph, Command(resume=1), ONE)
    assert await flavour.invoke(graph, Command(resume=2), ONE) == [10, 11, 13]


async def test_an_answered_call_is_renamed(first: Saver, flavour: Flavour) -> None:
    old = _functional(first, "old")
    await flavour.invoke(old, 10, ONE)
    await flavour.invoke(old, Command(resume=1), ONE)
    graph = _functional(_after(first, _second(ms.rename_node("old", "new"))), "new")
    assert await flavour.invoke(graph, Command(resume=2), ONE) == [10, 11, 13]


@pytest.mark.parametrize("by_id", [False, True], ids=["plain", "by id"])
@pytest.mark.parametrize("answered", [0, 1])
async def test_an_entrypoint_is_renamed(first: Saver, flavour: Flavour, answered: int, by_id: bool) -> None:
    old = _functional(first, "old")
    await flavour.invoke(old, 10, ONE)
    for _ in range(answered):
        await flavour.invoke(old, Command(resume=1), ONE)
    asked = first.question_ids(ONE)
    # Both names change, in one step or in two.
    rename = ms.rename_node("flow", "other", calls=["plain", "old"])
    changes = [rename, ms.rename_node("old", "new")]
    steps = [ms.Step(1, 3, *changes)] if by_id else [ms.Step(1, 2, changes[0]), ms.Step(2, 3, changes[1])]
    after = _after(first, milepost.Schema(State, version=3, upgrades=steps))
    graph = _functional(after, "new", "other")
    assert (await flavour.state(graph, ONE)).next == ("other",)
    ids = after.question_ids(ONE)
    answer: Any = {ids[id]: 1 + answered for id in asked} if by_id else 1 + answered
    done = await flavour.invoke(graph, Command(resume=answer), ONE)
    if not answered:
        done = await flavour.invoke(graph, Command(resume=2), ONE)
    assert done == [10, 11, 13]


async def test_an_entrypoint_is_renamed_and_its_calls_are_not_named(first: Saver, flavour: Flavour) -> None:
    await flavour.invoke(_functional(first, "old"), 10, ONE)
    graph = _functional(_after(first, _second(ms.rename_node("flow", "other"))), "old", "other")
    with pytest.raises(SchemaMismatch, match=r"'flow'.*calls="):
        await flavour.state(graph, ONE)


async def test_a_node_is_dropped_for_another(first: Saver, flavour: Flavour) -> None:
    await flavour.invoke(_straight(first, "old"), {"log": ["in"]}, ONE)

    def other(saver: Saver) -> Graph:
        builder = graph_of(State)
        builder.add_node("start", _says("start"))
        builder.add_node("other", _says("other"))
        builder.add_edge(START, "start")
        builder.add_edge("start", "other")
        return builder.compile(checkpointer=saver)

    graph = other(_after(first, _second(ms.drop_node("old", to="other"))))
    state = await flavour.state(graph, ONE)
    assert state.next == ("other",)
    assert [found.interrupts for found in state.tasks] == [()]
    assert await flavour.invoke(graph, None, ONE) == {"log": ["in", "start", "other"]}
    gone = other(_after(first, _second(ms.drop_node("old"))))
    assert (await flavour.state(gone, thread("none"))).next == ()


async def test_a_thread_waits_before_a_node_and_a_key_is_removed(saver_url: str, flavour: Flavour) -> None:
    """Left in the versions, the removed key looks like an update for ever: LangGraph stops before the node again."""

    def graph(saver: Saver, state: Any) -> Graph:
        builder = graph_of(state)
        builder.add_node("a", lambda _: {"log": ["a"], **({"key": "k"} if state is State else {})})
        builder.add_node("b", _says("b"))
        builder.add_edge(START, "a")
        builder.add_edge("a", "b")
        return builder.compile(checkpointer=saver, interrupt_before=["b"])

    class Smaller(TypedDict, total=False):
        log: Annotated[list[str], operator.add]

    async with milepost.connect(saver_url, schema=FIRST) as first:
        await flavour.invoke(graph(first, State), {"log": ["in"]}, ONE)
        undeclared = graph(_after(first, None), Smaller)
        assert await flavour.invoke(undeclared, None, ONE) == {"log": ["in", "a"]}
        new = graph(_after(first, _second(ms.drop_channel("key"), state=Smaller)), Smaller)
        assert await flavour.invoke(new, None, ONE) == {"log": ["in", "a", "b"]}


async def test_a_key_is_renamed_and_nobody_says_so(saver_url: str, flavour: Flavour) -> None:
    class Renamed(TypedDict, total=False):
        log: Annotated[list[str], operator.add]
        other: str

    def graph(saver: Saver, state: Any) -> Graph:
        builder = graph_of(state)
        # An annotation of the node would bring the old key along.
        builder.add_node("a", lambda _: {"log": [interrupt("?")]})
        builder.add_edge(START, "a")
        return builder.compile(checkpointer=saver)

    async with milepost.connect(saver_url) as old:
        await flavour.invoke(graph(old, State), {"log": ["in"], "key": "k"}, ONE)
        new = Saver(old.backend)
        told: list[Any] = []
        new.observe(lambda event: told.append((event.op, event.outcome, event.error)))
        await flavour.invoke(graph(new, Renamed), Command(resume="yes"), ONE)
        (drift,) = [at for at, one in enumerate(told) if one[1] == "drift"]
        assert "'key'" in told[drift][2]
        # Before the first put, which leaves it out.
        assert [one[0] for one in told].index("put") > drift
        found = await flavour.tuples(old, ONE)
        assert ["key" in one.checkpoint["channel_values"] for one in found][:2] == [False, True]


async def test_old_code_meets_new_data(saver_url: str, flavour: Flavour) -> None:
    async with milepost.connect(saver_url, schema=milepost.Schema(State, version=4)) as first:
        await flavour.invoke(_straight(first, "old"), {"log": ["in"]}, ONE)
        ran: list[str] = []
        builder = graph_of(State)
        builder.add_node("old", lambda _: ran.append("old"))
        builder.add_edge(START, "old")
        graph = builder.compile(checkpointer=_after(first, milepost.Schema(State, version=3)))
        before = await first.astats()
        inputs: list[Any] = [Command(resume="yes"), {"log": ["more"]}, None]
        for given in inputs:
            with pytest.raises(SchemaMismatch, match="version 4"):
                await flavour.invoke(graph, given, ONE)
        assert (ran, await first.astats()) == ([], before)


@pytest.mark.parametrize("flavour", FLAVOURS, ids=lambda flavour: flavour.name)
async def test_a_subgraph_has_a_schema_of_its_own(flavour: Flavour) -> None:
    class Child(TypedDict, total=False):
        log: Annotated[list[str], operator.add]
        mine: str

    class NewChild(TypedDict, total=False):
        log: Annotated[list[str], operator.add]
        yours: str

    def graph(saver: Saver, child: Any, key: str, name: str) -> Graph:
        inner = graph_of(child)
        inner.add_node("first", lambda _: {key: "value"})
        inner.add_node(name, lambda state: {"log": [f"{state[key]} {interrupt('?')}"]})
        inner.add_edge(START, "first")
        inner.add_edge("first", name)
        outer = graph_of(State)
        outer.add_node("child", inner.compile())
        outer.add_edge(START, "child")
        return outer.compile(checkpointer=saver)

    old = {"": FIRST, "child": milepost.Schema(Child, version=1, name="child")}
    upgrade = ms.Step(1, 2, ms.rename_channel("mine", "yours"), ms.rename_node("old", "new"))
    new = {"": FIRST, "child": milepost.Schema(NewChild, version=2, name="child", upgrades=[upgrade])}
    with milepost.connect("memory:", schema=old) as saver:
        await flavour.invoke(graph(saver, Child, "mine", "old"), {"log": ["in"]}, ONE)
        again = graph(_after(saver, new), NewChild, "yours", "new")
        state = await flavour.state(again, ONE, subgraphs=True)
        inner: Any = state.tasks[0].state
        assert (inner.next, inner.values["yours"]) == (("new",), "value")
        done = await flavour.invoke(again, Command(resume="yes"), ONE)
        assert done["log"] == ["in", "in", "value yes"]


async def test_a_delta_channel_is_renamed(flavour: Flavour) -> None:
    def extend(value: list[str], writes: Any) -> list[str]:
        return [*value, *(line for write in writes for line in write)]

    def state_of(key: str) -> Any:
        fields = {key: Annotated[list[str], DeltaChannel(extend, snapshot_frequency=3)], "n": int}
        return TypedDict("Lines", fields, total=False)  # type: ignore[operator]  # mypy wants a literal

    def graph(saver: Saver, key: str) -> Graph:
        builder = graph_of(state_of(key))
        builder.add_node("a", lambda state: {key: [f"line {state['n']}"], "n": state["n"] + 1})
        builder.add_edge(START, "a")
        builder.add_conditional_edges("a", lambda state: END if state["n"] % 5 == 0 else "a", ["a", END])
        return builder.compile(checkpointer=saver)

    old = milepost.Schema(state_of("old"), version=1, name="lines")
    new = milepost.Schema(
        state_of("new"),
        version=2,
        name="lines",
        upgrades=[
            ms.Step(1, 2, ms.rename_channel("old", "new"), ms.map_channel("new", lambda some: [*map(str.upper, some)]))
        ],
    )
    with milepost.connect("memory:", schema=old) as saver:
        await flavour.invoke(graph(saver, "old"), {"n": 0}, ONE)
        after = graph(_after(saver, new), "new")
        expected = [f"LINE {number}" for number in range(5)]
        assert (await flavour.state(after, ONE)).values["new"] == expected
        done = await flavour.invoke(after, {"n": 5}, ONE)
        assert done["new"] == [*expected, *(f"line {number}" for number in range(5, 10))]
        history = await flavour.history(after, ONE)
        assert history[0].values["new"] == done["new"]
        assert all(one.values.get("new", []) == done["new"][: len(one.values.get("new", []))] for one in history)


class Child(TypedDict, total=False):
    log: Annotated[list[str], operator.add]
    seen: Annotated[list[str], operator.add]


def _nested(saver: Saver, name: str, inner: str, *, depth: int = 1, kept: bool = False, before: bool = False) -> Graph:
    """A subgraph (or one in one) in the node `name`, which asks in its second node; behind it a node that joins."""
    child = graph_of(Child)
    child.add_node("first", lambda _: {"seen": ["first"]})
    child.add_node(inner, lambda state: {"log": [f"{len(state['seen'])} {interrupt('?')}"], "seen": ["asked"]})
    child.add_edge(START, "first")
    child.add_edge("first", inner)
    compiled = child.compile(checkpointer=True if kept else None, interrupt_before=[inner] if before else None)
    for _ in range(depth - 1):
        middle = graph_of(Child)
        middle.add_node(name, compiled)
        middle.add_edge(START, name)
        compiled = middle.compile()
    builder = graph_of(State)
    builder.add_node(name, compiled)
    builder.add_node("other", _says("other"))
    builder.add_node("last", _says("last"))
    builder.add_edge(START, name)
    builder.add_edge(START, "other")
    builder.add_edge([name, "other"], "last")
    return builder.compile(checkpointer=saver)


_RENAME = ms.Step(1, 2, ms.rename_node("old", "new"))


@pytest.mark.parametrize("inner", ["ask", "old"])
@pytest.mark.parametrize("migrated", [False, True], ids=["read", "migrated"])
@pytest.mark.parametrize("shape", ["plain", "kept", "static", "deep"])
async def test_the_node_of_a_subgraph_is_renamed(flavour: Flavour, shape: str, inner: str, migrated: bool) -> None:
    every: dict[str, dict[str, Any]] = {
        "plain": {},
        "kept": {"kept": True},
        "static": {"before": True},
        "deep": {"depth": 2},
    }
    options = every[shape]
    now = "new" if inner == "old" else inner
    path = "new|new" if shape == "deep" else "new"
    former = "old|old" if shape == "deep" else "old"
    old: dict[str, Any] = {"": FIRST, former: milepost.Schema(Child, version=1, name="child")}
    new: dict[str, Any] = {
        "": milepost.Schema(State, version=2, upgrades=[_RENAME]),
        path: milepost.Schema(Child, version=2, name="child", upgrades=[_RENAME]),
    }
    if shape == "deep":
        old["old"] = milepost.Schema(Child, version=1, name="middle")
        new["new"] = milepost.Schema(Child, version=2, name="middle", upgrades=[_RENAME])
    with milepost.connect("memory:", schema=old) as saver:
        await flavour.invoke(_nested(saver, "old", inner, **options), {"log": ["in"]}, ONE)
        if migrated:
            (told,) = _after(saver, new).migrate()
            assert not told.refused
            new = {ns: milepost.Schema(State if not ns else Child, version=2, name=one.name) for ns, one in new.items()}
        # Another process each time: nothing is known from before.
        graph = _nested(_after(saver, new), "new", now, **options)
        state = await flavour.state(graph, ONE, subgraphs=True)
        assert state.next == ("new",)
        inside: Any = state.tasks[0].state
        if shape == "deep":
            inside = inside.tasks[0].state
        assert (inside.next, inside.values["seen"]) == ((now,), ["first"])
        if shape == "static":
            await flavour.invoke(_nested(_after(saver, new), "new", now, **options), None, ONE)
        graph = _nested(_after(saver, new), "new", now, **options)
        done = await flavour.invoke(graph, Command(resume="yes"), ONE)
        # The first node of the subgraph did not run again.
        assert "1 yes" in done["log"]
        assert done["log"][-1] == "last"
        assert (await flavour.state(graph, ONE)).next == ()
        if shape == "kept":
            # What the subgraph remembers from turn to turn goes on too.
            again = _nested(_after(saver, new), "new", now, **options)
            await flavour.invoke(again, {"log": ["more"]}, ONE)
            done = await flavour.invoke(_nested(_after(saver, new), "new", now, **options), Command(resume="yes"), ONE)
            assert "3 yes" in done["log"]


async def test_a_subgraph_behind_a_join_of_renamed_nodes(flavour: Flavour) -> None:
    """Its own node keeps its name, and its task has another id all the same."""

    def graph(saver: Saver, name: str) -> Graph:
        child = graph_of(Child)
        child.add_node("first", lambda _: {"seen": ["first"]})
        child.add_node("ask", lambda state: {"log": [f"{len(state['seen'])} {interrupt('?')}"]})
        child.add_edge(START, "first")
        child.add_edge("first", "ask")
        builder = graph_of(State)
        for node in (name, "other"):
            builder.add_node(node, _says(node))
            builder.add_edge(START, node)
        builder.add_node("child", child.compile())
        builder.add_edge([name, "other"], "child")
        return builder.compile(checkpointer=saver)

    with milepost.connect("memory:", schema=FIRST) as saver:
        await flavour.invoke(graph(saver, "old"), {"log": ["in"]}, ONE)
        after = graph(_after(saver, _second(ms.rename_node("old", "new"))), "new")
        done = await flavour.invoke(after, Command(resume="yes"), ONE)
        assert done["log"][-1] == "1 yes"


@pytest.mark.parametrize("handler", ["own", "of all"])
@pytest.mark.parametrize("sent", [False, True], ids=["triggered", "sent"])
async def test_the_error_of_a_node_is_handled_under_another_name(
    first: Saver, flavour: Flavour, sent: bool, handler: str
) -> None:
    """The handler asks a question; neither it nor the node that failed runs from the beginning again."""

    def graph(saver: Saver, name: str) -> Graph:
        def fails(_: Any) -> None:
            failed.append(name)
            raise ValueError("on purpose")

        def handle(_: Any) -> Any:
            return {"log": [f"{interrupt('retry?')} {interrupt('sure?')}"]}

        builder: Any = graph_of(State)
        builder.add_node(name, fails, **({"error_handler": handle} if handler == "own" else {}))
        if handler == "of all":
            builder.set_node_defaults(error_handler=handle)
        if sent:
            builder.add_conditional_edges(START, lambda _: [Send(name, {"key": "k"})])
        else:
            builder.add_edge(START, name)
        compiled: Graph = builder.compile(checkpointer=saver)
        return compiled

    failed: list[str] = []
    await flavour.invoke(graph(first, "old"), {"log": ["in"]}, ONE)
    await flavour.invoke(graph(first, "old"), Command(resume="yes"), ONE)
    asked = first.question_ids(ONE)
    after = _after(first, _second(ms.rename_node("old", "new"), ms.rename_channel("key", "word")))
    ids = after.question_ids(ONE)
    assert len(asked) == 1
    assert set(ids) > set(asked)
    answers = {ids[id]: "no" for id in asked}
    assert (await flavour.invoke(graph(after, "new"), Command(resume=answers), ONE))["log"] == ["in", "yes no"]
    assert failed == ["old"]


@pytest.mark.parametrize("migrated", [False, True], ids=["read", "migrated"])
@pytest.mark.parametrize(("flow", "called"), [("flow", "new"), ("other", "old"), ("other", "new")])
async def test_a_subgraph_within_a_called_task(
    first: Saver, flavour: Flavour, flow: str, called: str, migrated: bool
) -> None:
    ran: list[str] = []

    def runs_once(_: Any) -> dict[str, Any]:
        ran.append("first")
        return {"seen": ["first"]}

    def make(saver: Saver, flow: str, called: str) -> AnyGraph:
        child = graph_of(Child)
        child.add_node("first", runs_once)
        child.add_node("ask", lambda state: {"log": [f"{len(state['seen'])} {interrupt('?')}"]})
        child.add_edge(START, "first")
        child.add_edge("first", "ask")
        inner = child.compile()

        def calls(number: int) -> Any:
            return inner.invoke({"log": [str(number)]})["log"]

        calls.__name__ = calls.__qualname__ = called
        asks = task(calls)

        def runs(number: int) -> Any:
            return asks(number).result()

        runs.__name__ = runs.__qualname__ = flow
        return entrypoint(checkpointer=saver)(runs)

    await flavour.invoke(make(first, "flow", "old"), 1, ONE)
    changes = [ms.rename_node("flow", "other", calls=["old"])] if flow == "other" else []
    changes += [ms.rename_node("old", "new")] if called == "new" else []
    after = _after(first, _second(*changes))
    if migrated:
        assert [one.refused for one in after.migrate()] == [()]
        after = _after(first, milepost.Schema(State, version=2))
    assert await flavour.invoke(make(after, flow, called), Command(resume="yes"), ONE) == ["1", "1 yes"]
    assert ran == ["first"]


_NESTED: dict[str, Any] = {
    "in a subgraph": lambda saver, name: _nested(saver, name, "ask"),
    "in one that remembers": lambda saver, name: _nested(saver, name, "ask", kept=True),
    "in one in one": lambda saver, name: _nested(saver, name, name, depth=2),
}


@pytest.mark.parametrize("migrated", [False, True], ids=["read", "migrated"])
@pytest.mark.parametrize("shape", [*SHAPES, *_NESTED])
async def test_an_answer_to_a_question_of_the_former_release(flavour: Flavour, shape: str, migrated: bool) -> None:
    """Somebody has kept the ids of the questions from before the node was renamed."""
    make = {**SHAPES, **_NESTED}[shape]
    rename = milepost.Schema(Child, version=2, name="child", upgrades=[_RENAME])
    old = milepost.Schema(Child, version=1, name="child")
    with milepost.connect("memory:", schema={"": FIRST, "old": old, "old|old": old}) as saver:
        first = make(saver, "old")
        await flavour.invoke(first, {"log": ["in"]}, ONE)
        if shape == "twice":
            await _answer(flavour, first, by_id=True)
        asked = {one.id for found in (await flavour.state(first, ONE)).tasks for one in found.interrupts}
        assert set(saver.question_ids(ONE).items()) == {(id, id) for id in asked}
        after = _after(saver, {"": _second(ms.rename_node("old", "new")), "new": rename, "new|new": rename})
        if migrated:
            assert [one.refused for one in after.migrate()] == [()]
            assert [one.changed for one in after.migrate()] == [0]
        graph = make(after, "new")
        # What is handed out is right, with and without the state of subgraphs.
        now = {one.id for found in (await flavour.state(graph, ONE)).tasks for one in found.interrupts}
        assert not asked & now
        if flavour.name == "async":
            ids = await after.aquestion_ids(ONE)
        else:
            ids = await asyncio.to_thread(after.question_ids, ONE)
        assert {ids[id] for id in asked} == now == {ids[id] for id in now}
        if migrated:
            # Also for who does not know of the rename any more.
            assert _after(saver, None).question_ids(ONE).keys() == now
        await flavour.invoke(graph, Command(resume={ids[id]: "yes" for id in asked}), ONE)
        assert (await flavour.state(graph, ONE)).next == ()
