"""Delta channels: values that LangGraph rebuilds from the pending writes of ancestors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import milepost
import pytest
from driving import Durability, Flavour, Graph, graph_of, thread
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START
from langgraph.graph.message import add_messages
from langgraph.types import Overwrite, Send
from milepost.saver import Saver
from stores import url_of
from typing_extensions import TypedDict

pytestmark = pytest.mark.filterwarnings("ignore:.*DeltaChannel.*beta")

ONE = thread("one")
FREQUENCY = 7


def _join(items: list[Any], batches: Sequence[list[Any]]) -> list[Any]:
    return [*items, *(item for batch in batches for item in batch)]


def _fold(messages: list[Any], batches: Sequence[Any]) -> list[Any]:
    for batch in batches:
        messages = add_messages(messages, batch)  # type: ignore[assignment]  # also knows single messages
    return messages


class State(TypedDict):
    items: Annotated[list[str], DeltaChannel(_join, snapshot_frequency=FREQUENCY)]
    messages: Annotated[list[Any], DeltaChannel(_fold)]
    rounds: Annotated[int, operator.add]


def _graph(saver: BaseCheckpointSaver[Any]) -> Graph:
    def work(state: dict[str, Any]) -> dict[str, Any]:
        return {"items": [f"{state['round']}.{state['worker']}"]}

    def close(state: State) -> dict[str, Any]:
        number = state["rounds"]
        return {"rounds": 1, "messages": [AIMessage(f"round {number}", id=f"a{number}")]}

    def spread(state: State) -> list[Send]:
        return [Send("work", {"round": state["rounds"], "worker": worker}) for worker in "cab"]

    builder = graph_of(State)
    builder.add_node("work", work)
    builder.add_node("close", close)
    builder.add_conditional_edges(START, spread, ["work"])
    builder.add_edge("work", "close")
    return builder.compile(checkpointer=saver)


async def _run(flavour: Flavour, graph: Graph, rounds: range, durability: Durability) -> Any:
    done: Any = None
    # What LangGraph stores at the end with "exit" is a list that its threads change without a lock: of blocking tasks that
    # run beside each other one may lose the write of another, with any saver (1.2.24: `PregelLoop.put_writes`).
    config: RunnableConfig = {**ONE, "max_concurrency": 1} if durability == "exit" else ONE
    for number in rounds:
        said = [HumanMessage(f"go {number}", id=f"h{number}")]
        done = await flavour.invoke(graph, {"messages": said}, config, durability=durability)
    return done


def _expected(rounds: int) -> dict[str, Any]:
    return {
        "items": [f"{number}.{worker}" for number in range(rounds) for worker in "cab"],
        "messages": [text for number in range(rounds) for text in (f"go {number}", f"round {number}")],
        "rounds": rounds,
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "messages": [message.content for message in values["messages"]]}


async def test_many_rounds_of_parallel_writers_come_back_as_they_were(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    graph = _graph(saver)
    done = await _run(flavour, graph, range(12), durability)
    assert _plain(done) == _expected(12)
    assert (await flavour.state(graph, ONE)).values == done
    if durability != "exit":
        model = _graph(InMemorySaver())
        await _run(flavour, model, range(12), durability)
        ours = [one.values for one in await flavour.history(graph, ONE)]
        assert ours == [one.values for one in await flavour.history(model, ONE)]
        assert len(ours) == 48


async def test_a_delta_channel_is_not_stored_whole(saver: Saver, flavour: Flavour) -> None:
    graph = _graph(saver)
    await _run(flavour, graph, range(12), "sync")
    kept = [one.checkpoint["channel_values"] for one in await flavour.tuples(saver, ONE)]
    snapshots = {tuple(values["items"].value) for values in kept if "items" in values}
    assert 1 <= len(snapshots) <= 36 // FREQUENCY + 1
    assert not any("messages" in values for values in kept)


async def test_a_thread_with_delta_channels_is_pruned_copied_and_goes_on(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    graph = _graph(saver)
    done = await _run(flavour, graph, range(5), durability)
    await flavour.copy_thread(saver, "one", "copy")
    await flavour.prune(saver, ["one"])
    assert (await flavour.state(graph, ONE)).values == done
    assert (await flavour.state(graph, thread("copy"))).values == done
    more = await _run(flavour, graph, range(5, 10), durability)
    assert _plain(more) == _expected(10)
    await flavour.prune(saver, ["one"])
    await flavour.prune(saver, ["one"])
    assert (await flavour.state(graph, ONE)).values == more
    assert (await flavour.state(graph, thread("copy"))).values == done


async def test_forks_of_a_delta_channel_keep_apart(saver: Saver, flavour: Flavour) -> None:
    graph = _graph(saver)
    await _run(flavour, graph, range(3), "sync")
    trunk = await flavour.history(graph, ONE)
    second = next(one for one in trunk if one.values["rounds"] == 2 and not one.next)
    heads = []
    for name in ("left", "right"):
        config = await flavour.update(graph, second.config, {"items": [name]}, as_node="work")
        heads.append((await flavour.invoke(graph, None, config), (await flavour.state(graph, ONE)).config))
    for name, (values, config) in zip(("left", "right"), heads, strict=True):
        assert values["items"] == [*_expected(2)["items"], name]
        assert (await flavour.state(graph, config)).values == values
    assert [one.values for one in (await flavour.history(graph, ONE))][-len(trunk) :] == [one.values for one in trunk]


async def test_an_overwrite_ends_what_is_rebuilt(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    graph = _graph(saver)
    await _run(flavour, graph, range(2), durability)
    await flavour.update(graph, ONE, {"items": Overwrite(["anew"])}, as_node="work")
    assert (await flavour.state(graph, ONE)).values["items"] == ["anew"]
    done = await _run(flavour, graph, range(2, 3), durability)
    assert done["items"] == ["anew", "2.c", "2.a", "2.b"]
    assert (await flavour.state(graph, ONE)).values["items"] == done["items"]


async def test_another_saver_rebuilds_the_same_values(tmp_path: Path, flavour: Flavour, durability: Durability) -> None:
    url = url_of("files", tmp_path)
    with milepost.connect(url) as first:
        done = await _run(flavour, _graph(first), range(9), durability)
    with milepost.connect(url) as second:
        graph = _graph(second)
        assert (await flavour.state(graph, ONE)).values == done
        assert _plain(await _run(flavour, graph, range(9, 11), durability)) == _expected(11)
