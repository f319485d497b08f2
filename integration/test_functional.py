"""The functional API: entrypoints, tasks that are not run twice, and the value of the run before."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from driving import AnyGraph, Durability, Flavour, thread
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt
from milepost.saver import Saver

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
