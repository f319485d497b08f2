"""What runs next, and what runs again: Command, Send with a failing task, retries, cancellation, a saver that fails."""

from __future__ import annotations

import asyncio
import operator
import threading
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from driving import STEPWISE, Durability, Flavour, Graph, graph_of, thread
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.graph import END, START
from langgraph.types import Command, RetryPolicy, Send, interrupt
from milepost.errors import Unavailable
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


async def test_command_goto_and_update(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    def route(state: Log) -> Command[Literal["left", "right"]]:
        went = len(state["log"])
        return Command(goto="left" if went < 3 else "right", update={"log": [f"route {went}"]})

    builder = graph_of(Log)
    builder.add_node("route", route)
    builder.add_node("left", lambda _: Command(goto="route", update={"log": ["left"]}), destinations=("route",))
    builder.add_node("right", lambda _: {"log": ["right"]})
    builder.add_edge(START, "route")
    builder.add_edge("right", END)
    graph = builder.compile(checkpointer=saver)
    went = await flavour.invoke(graph, {"log": []}, ONE, durability=durability)
    assert went == {"log": ["route 0", "left", "route 2", "left", "route 4", "right"]}
    assert (await flavour.state(graph, ONE)).values == went


async def test_command_resume_with_update_and_goto(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    builder = graph_of(Log)
    builder.add_node("ask", lambda _: {"log": [f"asked {interrupt('?')}"]})
    builder.add_node("aside", lambda _: {"log": ["aside"]})
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    await flavour.invoke(graph, {"log": ["in"]}, ONE, durability=durability)
    answer: Command[Any] = Command(resume="yes", update={"log": ["from outside"]}, goto="aside")
    done = await flavour.invoke(graph, answer, ONE, durability=durability)
    assert sorted(done["log"]) == ["aside", "asked yes", "from outside", "in"]
    assert done["log"][:2] == ["in", "from outside"]


def _fan_out(saver: BaseCheckpointSaver[Any], calls: Counter[str], broken: set[str], **options: Any) -> Graph:
    lock = threading.Lock()

    def work(state: dict[str, str]) -> Log:
        with lock:
            calls[state["job"]] += 1
            if state["job"] in broken:
                broken.discard(state["job"])
                message = f"no luck with {state['job']}"
                raise ConnectionError(message)
        return {"log": [f"did {state['job']}"]}

    builder = graph_of(Log)
    builder.add_node("work", work, **options)
    builder.add_node("sum", lambda state: {"log": [f"{len(state['log'])} done"]})
    builder.add_conditional_edges(START, lambda _: [Send("work", {"job": f"job {n}"}) for n in range(5)], ["work"])
    builder.add_edge("work", "sum")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("durability", STEPWISE)
async def test_finished_siblings_of_a_failed_task_are_not_run_again(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    calls: Counter[str] = Counter()
    graph = _fan_out(saver, calls, {"job 3"})
    # One at a time, so that some have finished when it fails.
    with pytest.raises(ConnectionError, match="job 3"):
        await flavour.invoke(graph, {"log": []}, {**ONE, "max_concurrency": 1}, durability=durability)
    failed = await flavour.state(graph, ONE)
    assert "ConnectionError('no luck with job 3')" in [str(task.error) for task in failed.tasks]
    # One that was cancelled while it ran has no result, and runs again.
    finished = {text.removeprefix("did ") for task in failed.tasks for text in (task.result or {}).get("log", [])}

    done = await flavour.invoke(graph, None, ONE, durability=durability)
    assert done == {"log": [*(f"did job {n}" for n in range(5)), "5 done"]}
    assert calls["job 3"] == 2
    assert all(calls[job] == 1 for job in finished)
    assert finished


async def test_a_retry_policy_repeats_the_failed_task_alone(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    calls: Counter[str] = Counter()
    retry = RetryPolicy(initial_interval=0.001, jitter=False, retry_on=ConnectionError)
    graph = _fan_out(saver, calls, {"job 1", "job 4"}, retry_policy=retry)
    done = await flavour.invoke(graph, {"log": []}, ONE, durability=durability)
    assert done == {"log": [*(f"did job {n}" for n in range(5)), "5 done"]}
    assert calls == {"job 0": 1, "job 1": 2, "job 2": 1, "job 3": 1, "job 4": 2}


def _counting(saver: BaseCheckpointSaver[Any], node: Callable[[Log], Any]) -> Graph:
    builder = graph_of(Log)
    builder.add_node("first", lambda _: {"log": ["first"]})
    builder.add_node("second", node)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("durability", STEPWISE)
async def test_a_cancelled_run_goes_on_from_its_last_checkpoint(saver: Saver, durability: Durability) -> None:
    reached, starts = asyncio.Event(), Counter[str]()

    async def second(_: Log) -> Log:
        starts["second"] += 1
        if starts["second"] == 1:
            reached.set()
            await asyncio.Event().wait()
        return {"log": ["second"]}

    graph = _counting(saver, second)
    run = asyncio.create_task(graph.ainvoke({"log": []}, ONE, durability=durability))
    await reached.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    state = await graph.aget_state(ONE)
    assert (state.values, state.next) == ({"log": ["first"]}, ("second",))
    assert await graph.ainvoke(None, ONE, durability=durability) == {"log": ["first", "second"]}


class FailsOnce(Saver):
    """The `put` of one step is refused, once, as by a store that could not be reached."""

    refuse_step = 1

    def _refuse(self, metadata: CheckpointMetadata) -> None:
        if metadata.get("step") == self.refuse_step:
            self.refuse_step = -99
            message = "the store could not be reached"
            raise Unavailable(message, backend="test", op="put")

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self._refuse(metadata)
        return super().put(config, checkpoint, metadata, new_versions)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self._refuse(metadata)
        return await super().aput(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize("durability", STEPWISE)
async def test_a_run_whose_saver_fails_once_can_be_repeated(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    graph = _counting(FailsOnce(saver.backend), lambda _: {"log": ["second"]})
    with pytest.raises(Unavailable):
        await flavour.invoke(graph, {"log": []}, ONE, durability=durability)
    head = (await flavour.history(graph, ONE))[0]
    assert head.metadata is not None
    # What the first node wrote is there, beside the checkpoint that it ran on.
    assert (head.metadata.get("step"), [task.result for task in head.tasks]) == (0, [{"log": ["first"]}])
    assert await flavour.invoke(graph, None, ONE, durability=durability) == {"log": ["first", "second"]}
    assert (await flavour.state(graph, ONE)).values == {"log": ["first", "second"]}
