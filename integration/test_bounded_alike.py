"""After maintenance, every checkpoint that is left reads, resumes and forks as it does in a copy that was left alone.

The threads are of LangGraph's making and drawn at random: forks, time travel, updates, `Send`s, questions, both kinds of
subgraph, a delta channel, and calls that the ledger has recorded.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any

import pytest
from driving import Flavour, Graph, graph_of, place, thread
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.errors import GraphInterrupt
from langgraph.graph import START
from langgraph.types import Command, Send, StateSnapshot, interrupt
from milepost.ledger import idempotent
from milepost.retention import Retention
from milepost.saver import Saver
from milepost.tools import Ledger
from test_bounded import maintain
from typing_extensions import TypedDict

pytestmark = pytest.mark.filterwarnings("ignore:.*DeltaChannel.*beta")


def _extend(old: list[str] | None, updates: Sequence[list[str]]) -> list[str]:
    return [*(old or ()), *(one for update in updates for one in update)]


class Inner(TypedDict):
    question: str
    seen: Annotated[list[str], operator.add]


class Work(TypedDict):
    notes: Annotated[list[str], operator.add]
    log: Annotated[list[str], DeltaChannel(_extend, snapshot_frequency=4)]
    turn: int
    asks: bool


class Piece(TypedDict):
    number: int
    asks: bool


def working(saver: Saver, performed: list[str]) -> Graph:
    """Work in pieces, some of which ask; then a subgraph that may ask, and one that remembers."""
    ledger = Ledger(saver)

    def begin(state: Work) -> dict[str, Any]:
        turn = state.get("turn", 0) + 1
        ledger.once(f"turn {turn}", lambda: performed.append(f"turn {turn}"), policy=idempotent)
        return {"turn": turn, "log": [f"begin {turn}"], "notes": [f"begin {turn}"]}

    def pieces(state: Work) -> list[Send]:
        return [
            Send("piece", Piece(number=number, asks=state.get("asks", False) and number == 1)) for number in range(3)
        ]

    def piece(given: Piece) -> dict[str, Any]:
        said = f"piece {given['number']} {interrupt('which?') if given['asks'] else 'done'}"
        return {"notes": [said], "log": [said]}

    def first(state: Inner) -> dict[str, Any]:
        return {"seen": [f"first {state['question']}"]}

    def second(state: Inner) -> dict[str, Any]:
        return {"seen": [f"second {interrupt('sure?') if state['question'].endswith('?') else 'yes'}"]}

    inner = graph_of(Inner)
    inner.add_node("first", first)
    inner.add_node("second", second)
    inner.add_edge(START, "first")
    inner.add_edge("first", "second")
    calls, remembers = inner.compile(), inner.compile(checkpointer=True)

    def call(state: Work) -> dict[str, Any]:
        found = calls.invoke({"question": f"{state.get('turn', 0)}{'?' if state.get('asks') else ''}", "seen": []})
        return {"notes": found["seen"]}

    def remember(state: Work) -> dict[str, Any]:
        found = remembers.invoke({"question": f"{state.get('turn', 0)}", "seen": []})
        return {"notes": [f"seen {len(found['seen'])}"], "log": ["remembered"]}

    builder = graph_of(Work)
    for name, node in (("begin", begin), ("piece", piece), ("call", call), ("remember", remember)):
        builder.add_node(name, node)
    builder.add_edge(START, "begin")
    builder.add_conditional_edges("begin", pieces, ["piece"])
    builder.add_edge("piece", "call")
    builder.add_edge("call", "remember")
    return builder.compile(checkpointer=saver)


def of(name: str, id: str | None = None) -> RunnableConfig:
    return thread(name) if id is None else thread(name, checkpoint_id=id)


def ids_of(saver: Saver, name: str) -> list[str]:
    return [found.checkpoint["id"] for found in saver.list(thread(name, checkpoint_ns=""))]


async def live(dice: random.Random, saver: Saver, graph: Graph, flavour: Flavour) -> None:
    """Some turns of a thread, with people who answer, change their mind and go back."""
    await flavour.invoke(graph, {"notes": ["0"], "asks": dice.random() < 0.5}, of("one"))
    for number in range(dice.randint(2, 5)):
        latest = await flavour.state(graph, of("one"))
        some = dice.choice(ids_of(saver, "one"))
        what = dice.choice(["go on", "go on", "go on", "update", "travel", "rewrite"])
        with suppress(GraphInterrupt):
            if what == "go on" and latest.interrupts:
                await flavour.invoke(graph, Command(resume=f"yes {number}"), of("one"))
            elif what == "go on":
                await flavour.invoke(graph, {"notes": [f"{number}"], "asks": dice.random() < 0.5}, of("one"))
            elif what == "travel":
                await flavour.invoke(graph, None, of("one", some))
            else:
                at = of("one") if what == "update" else of("one", some)
                await flavour.update(graph, at, {"notes": [f"{what} {number}"]}, dice.choice(["begin", "remember"]))


def seen(state: StateSnapshot) -> tuple[Any, ...]:
    tasks = sorted((task.name, str(task.error), str([one.value for one in task.interrupts])) for task in state.tasks)
    return state.values, state.next, tasks, (state.metadata or {}).get("step")


async def followed(saver: Saver, graph: Graph, flavour: Flavour, source: str, id: str | None, how: str) -> Any:
    """What comes of going on from a checkpoint, in a copy."""
    await flavour.copy_thread(saver, source, "copy")
    try:
        if how == "update":
            await flavour.update(graph, of("copy", id), {"notes": ["changed"]})
        given: Any = {"resume": Command(resume="then"), "input": {"notes": ["more"], "asks": False}}.get(how)
        ended = await flavour.invoke(graph, given, of("copy", None if how == "update" else id))
        ended.pop("__interrupt__", None)
        return ended, seen(await flavour.state(graph, of("copy")))
    finally:
        saver.delete_thread("copy", force=True)


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_left_is_as_it_was(saver: Saver, flavour: Flavour, seed: int) -> None:
    dice, performed = random.Random(f"{seed} {flavour.name} {saver.backend.name}"), list[str]()
    graph = working(saver, performed)
    await live(dice, saver, graph, flavour)
    await flavour.copy_thread(saver, "one", "untouched")
    policy = Retention(
        keep_last=dice.choice([0, 1, 2, 4]), keep_waiting=dice.random() < 0.7, keep_forks=dice.random() < 0.7
    )
    planned = await maintain(flavour, saver, policy, threads=["one"], dry_run=True)
    done = await maintain(flavour, saver, policy, threads=["one"])
    assert planned.threads == done.threads
    assert (await maintain(flavour, saver, policy, threads=["one"])).threads == ()

    left = {(place(found.config)["checkpoint_ns"], found.checkpoint["id"]): found for found in saver.list(of("one"))}
    before = [
        found
        for found in saver.list(of("untouched"))
        if (place(found.config)["checkpoint_ns"], found.checkpoint["id"]) in left
    ]
    assert len(before) == len(left)
    for old, new in zip(before, left.values(), strict=True):
        assert (new.checkpoint, new.metadata, new.pending_writes) == (old.checkpoint, old.metadata, old.pending_writes)

    roots = [id for ns, id in left if not ns]
    for id in roots:
        states = [await flavour.state(graph, of(name, id), subgraphs=True) for name in ("one", "untouched")]
        assert seen(states[0]) == seen(states[1])
    effects = set(performed)
    assert len(effects) == len(performed)
    ways: list[tuple[str | None, str]] = [(None, how) for how in ("none", "resume", "input", "update")]
    ways += [(id, how) for id in dice.sample(roots, min(3, len(roots))) for how in ("none", "resume")]
    for start, how in ways:
        pruned, whole = [await followed(saver, graph, flavour, name, start, how) for name in ("one", "untouched")]
        assert pruned == whole, (start, how)
    # A copy takes the records of calls along: what was performed is not performed again.
    assert {effect for effect in effects if performed.count(effect) > 1} == set()
