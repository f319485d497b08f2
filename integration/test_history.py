"""Time travel, forks that keep apart, and state that is edited from outside."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from driving import STEPWISE, Durability, Flavour, Graph, graph_of, place, thread
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START
from langgraph.graph.message import add_messages
from langgraph.types import StateSnapshot, StateUpdate
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    total: Annotated[int, operator.add]


def _graph(saver: BaseCheckpointSaver[Any]) -> Graph:
    def answer(state: State) -> dict[str, Any]:
        number = len(state["messages"])
        return {"messages": [AIMessage(f"answer {number}", id=f"a{number}")], "total": 1}

    builder = graph_of(State)
    builder.add_node("answer", answer)
    builder.add_node("check", lambda _: {"total": 10})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "check")
    return builder.compile(checkpointer=saver)


async def _talk(flavour: Flavour, graph: Graph, turns: int, durability: Durability = "sync") -> None:
    for turn in range(turns):
        question = HumanMessage(f"question {turn}", id=f"q{turn}")
        await flavour.invoke(graph, {"messages": [question]}, ONE, durability=durability)


def _shape(history: list[StateSnapshot]) -> list[tuple[Any, ...]]:
    return [
        (one.values, one.next, (one.metadata or {}).get("source"), (one.metadata or {}).get("step")) for one in history
    ]


async def test_the_history_is_the_memory_savers(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    ours, theirs = _graph(saver), _graph(InMemorySaver())
    for graph in (ours, theirs):
        await _talk(flavour, graph, 3, durability)
    history = await flavour.history(ours, ONE)
    assert _shape(history) == _shape(await flavour.history(theirs, ONE))
    assert len(history) == (3 if durability == "exit" else 12)
    assert _shape(await flavour.history(ours, ONE, limit=2)) == _shape(history[:2])
    assert await flavour.history(ours, ONE, before=history[1].config) == history[2:]
    filtered = await flavour.history(ours, ONE, filter={"step": 3, "source": "input"})
    assert filtered == [one for one in history if (one.metadata or {}).get("step") == 3 and one.next == (START,)]
    for one in history:
        assert await flavour.state(ours, one.config) == one


async def test_forks_of_one_checkpoint_keep_apart(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    graph = _graph(saver)
    await _talk(flavour, graph, 2, durability)
    trunk = await flavour.history(graph, ONE)
    # The end of the first turn.
    origin = next(one for one in trunk if (one.metadata or {}).get("step") == 2)
    forks: dict[str, list[str]] = {}
    configs = {}
    for name in ("left", "right"):
        config = await flavour.update(graph, origin.config, {"messages": [HumanMessage(name, id=name)]}, as_node=START)
        await flavour.invoke(graph, None, config, durability=durability)
        head = await flavour.state(graph, ONE)
        configs[name] = head.config
        forks[name] = [str(message.content) for message in head.values["messages"]]
    assert forks == {
        "left": ["question 0", "answer 1", "left", "answer 3"],
        "right": ["question 0", "answer 1", "right", "answer 3"],
    }
    # Each branch is what it was, and so is the trunk.
    left = await flavour.state(graph, configs["left"])
    assert [str(message.content) for message in left.values["messages"]] == forks["left"]
    assert left.values["total"] == 22
    for one in trunk:
        assert await flavour.state(graph, one.config) == one


async def test_replaying_from_a_checkpoint_runs_the_steps_after_it(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    ours, theirs = _graph(saver), _graph(InMemorySaver())
    results = []
    for graph in (ours, theirs):
        await _talk(flavour, graph, 2)
        history = await flavour.history(graph, ONE)
        before_the_check = next(one for one in history if one.next == ("check",))
        results.append(await flavour.invoke(graph, None, before_the_check.config, durability=durability))
    assert results[0] == results[1]
    assert results[0]["total"] == 22
    assert _shape(await flavour.history(ours, ONE)) == _shape(await flavour.history(theirs, ONE))


async def test_updating_state(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    graph = _graph(saver)
    await _talk(flavour, graph, 2, durability)
    changes = [AIMessage("rewritten", id="a1"), RemoveMessage(id="q1")]
    config = await flavour.update(graph, ONE, {"messages": changes, "total": 100}, as_node="answer")
    state = await flavour.state(graph, ONE)
    assert [message.content for message in state.values["messages"]] == ["question 0", "rewritten", "answer 3"]
    assert (state.values["total"], state.next) == (122, ("check",))
    assert place(state.config) == place(config)
    done = await flavour.invoke(graph, None, ONE, durability=durability)
    assert done["total"] == 132


async def test_bulk_updates_make_one_checkpoint_for_each_superstep(saver: Saver, flavour: Flavour) -> None:
    results = []
    for checkpointer in (saver, InMemorySaver()):
        graph = _graph(checkpointer)
        await _talk(flavour, graph, 1)
        await flavour.bulk_update(
            graph,
            ONE,
            [
                [StateUpdate({"total": 5}, "answer"), StateUpdate({"total": 6}, "check")],
                [StateUpdate({"messages": [HumanMessage("late", id="late")]}, "answer")],
            ],
        )
        results.append(_shape(await flavour.history(graph, ONE)))
    assert results[0] == results[1]
    assert [values["total"] for values, *_ in results[0][:3]] == [22, 22, 11]


async def test_metadata_and_run_ids_are_found_again(saver: Saver, flavour: Flavour) -> None:
    graph = _graph(saver)
    for user in ("ann", "bob"):
        config = thread(user, user=user)
        config["metadata"] = {"team": "blue", "weight": 1.5}
        config["run_name"] = "named"
        await flavour.invoke(graph, {"messages": [HumanMessage("hi")]}, config)
    found = await flavour.tuples(saver, None, filter={"user": "bob", "weight": 1.5})
    assert {place(one.config)["thread_id"] for one in found} == {"bob"}
    assert len(found) == 4
    assert await flavour.tuples(saver, None, filter={"team": "red"}) == []


@pytest.mark.parametrize("durability", STEPWISE)
async def test_a_pruned_thread_goes_on_as_if_nothing_had_been(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    graph = _graph(saver)
    await _talk(flavour, graph, 3, durability)
    await flavour.copy_thread(saver, "one", "twin")
    before = await flavour.state(graph, ONE)
    await flavour.prune(saver, ["one"])
    pruned = await flavour.history(graph, ONE)
    assert [one.values for one in pruned] == [before.values]
    turn = {"messages": [HumanMessage("more", id="more")]}
    ours = await flavour.invoke(graph, turn, ONE, durability=durability)
    assert ours == await flavour.invoke(graph, turn, thread("twin"), durability=durability)
    assert len(await flavour.history(graph, thread("twin"))) == 16
