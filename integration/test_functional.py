"""The functional API: entrypoints, tasks that are not run twice, and the value of the run before."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from driving import AnyGraph, Durability, Flavour, graph_of, thread
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from milepost.saver import Saver
from milepost.tools import Ledger, unsafe

ONE = thread("one")


def _blocking(saver: BaseCheckpointSaver[Any], calls: Counter[str]) -> AnyGraph:
    @task
    def square(number: int) -> int:
        calls[f"square {number}"] += 1
        return number * number

    @entrypoint(checkpointer=saver)
    def workflow(numbers: list[int], *, previous: Any = None) -> Any:
        squares = [future.result() for future in [square(number) for number in numbers]]
        answer = interrupt(squares)
        total = sum(squares) + (previous or 0)
        return entrypoint.final(value={"total": total, "answer": answer}, save=total)

    return workflow


def _async(saver: BaseCheckpointSaver[Any], calls: Counter[str]) -> AnyGraph:
    @task
    async def square(number: int) -> int:
        calls[f"square {number}"] += 1
        return number * number

    @entrypoint(checkpointer=saver)
    async def workflow(numbers: list[int], *, previous: Any = None) -> Any:
        squares = await asyncio.gather(*(square(number) for number in numbers))
        answer = interrupt(squares)
        total = sum(squares) + (previous or 0)
        return entrypoint.final(value={"total": total, "answer": answer}, save=total)

    return workflow


async def test_tasks_are_answered_from_the_record_and_previous_is_what_was_saved(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    calls: Counter[str] = Counter()
    workflow = (_blocking if flavour.name == "blocking" else _async)(saver, calls)
    for turn, total in ((1, 14), (2, 28)):
        asked = await flavour.invoke(workflow, [1, 2, 3], ONE, durability=durability)
        assert [one.value for one in asked["__interrupt__"]] == [[1, 4, 9]]
        done = await flavour.invoke(workflow, Command(resume=f"yes {turn}"), ONE, durability=durability)
        assert done == {"total": total, "answer": f"yes {turn}"}
        assert calls == {f"square {number}": turn for number in (1, 2, 3)}
    assert (await flavour.state(workflow, ONE)).values == {"total": 28, "answer": "yes 2"}


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_a_failed_entrypoint_is_repeated_without_its_finished_tasks(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    calls: Counter[str] = Counter()

    @task
    def step(name: str) -> str:
        calls[name] += 1
        if name == "b" and calls[name] == 1:
            message = "not yet"
            raise ConnectionError(message)
        return name.upper()

    @entrypoint(checkpointer=saver)
    def workflow(names: str) -> str:
        return "".join(step(name).result() for name in names)

    with pytest.raises(ConnectionError):
        await flavour.invoke(workflow, "abc", ONE, durability=durability)
    assert await flavour.invoke(workflow, None, ONE, durability=durability) == "ABC"
    assert calls == {"a": 1, "b": 2, "c": 1}


async def test_a_tool_call_in_a_task_is_recorded_once_its_checkpoint_is_stored(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    """Of a task, LangGraph names the checkpoint of the entrypoint around it as if it were in a namespace of the task's."""
    if durability == "exit":
        pytest.skip("nothing is recorded there: NotDurable")
    seen: list[str] = []

    @tool
    def charge(order: str) -> str:
        """Charge a card."""
        seen.append(order)
        return f"charged {order}"

    ledger = Ledger(saver, {"charge": unsafe}, barrier_timeout=10)
    node = ToolNode([charge], wrap_tool_call=ledger.wrap_tool_call, awrap_tool_call=ledger.awrap_tool_call)
    asks = AIMessage(
        "", id="asks", tool_calls=[{"name": "charge", "args": {"order": "1"}, "id": "c", "type": "tool_call"}]
    )
    tools = graph_of(MessagesState).add_node("tools", node).add_edge(START, "tools").compile()

    if flavour.name == "async":

        @task
        async def inner() -> Any:
            return (await tools.ainvoke({"messages": [asks]}))["messages"][-1].content

        @task
        async def outer() -> Any:
            return await inner()

        @entrypoint(checkpointer=saver)
        async def work(_: int) -> Any:
            return await outer()

    else:

        @task
        def inner() -> Any:
            return tools.invoke({"messages": [asks]})["messages"][-1].content

        @task
        def outer() -> Any:
            return inner().result()

        @entrypoint(checkpointer=saver)
        def work(_: int) -> Any:
            return outer().result()

    for _ in range(2):
        assert await flavour.invoke(work, 1, thread("one"), durability=durability) == "charged 1"
    assert seen == ["1"]
