"""Arguments that are not the same in each validation, in graphs: what was asked for is what a call is known by.

As a program, a run over a store that is killed within its tool: ``python test_ledger_arguments.py URL``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import milepost
import pytest
from driving import Flavour, Graph, graph_of, thread
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, MessagesState
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy
from milepost.saver import Saver
from milepost.tools import Ledger, current_call, fan_out, keyed
from pydantic import BaseModel, Field

ONE = thread("one")
GO = {"messages": [HumanMessage("go", id="h")]}


class Order(BaseModel):
    id: str
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    nonce: str = Field(default_factory=lambda: uuid4().hex)
    tags: set[str] = set()


@pytest.fixture
def memory() -> Iterator[Saver]:
    with milepost.connect("memory:") as saver:
        yield saver


class Api:
    """Fails the first `failures` times, after the effect: by an exception, or by the end of the process."""

    def __init__(self, failures: int, *, deadly: bool = False) -> None:
        self.left = failures
        self.deadly = deadly
        self.keys: list[str] = []

    def pay(self, **arguments: Any) -> str:
        self.keys.append(current_call().key)
        if self.left:
            self.left -= 1
            if self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ConnectionError("no answer")
        return "paid"


def paying(saver: Saver, api: Api, arguments: dict[str, Any]) -> Graph:
    ledger = Ledger(saver, {"pay": keyed(window="1h", max_duration=0)}, skew=0, lease=0)
    pay = StructuredTool(name="pay", description="Pay.", args_schema=Order, func=api.pay)
    asks = AIMessage("", id="a", tool_calls=[{"name": "pay", "args": arguments, "id": "c"}])

    def think(state: MessagesState) -> dict[str, Any]:
        said = any(isinstance(one, AIMessage) for one in state["messages"])
        return {"messages": [AIMessage("done", id="end") if said else asks]}

    node = ToolNode([pay], wrap_tool_call=ledger.wrap_tool_call, awrap_tool_call=ledger.awrap_tool_call)
    builder = graph_of(MessagesState)
    builder.add_node("model", think)
    builder.add_node("tools", node, retry_policy=RetryPolicy(initial_interval=0.001, jitter=False))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", fan_out("tools"), ["tools", END])
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("arguments", [{"id": "o-1"}, {"id": "o-1", "nonce": "given"}])
async def test_a_call_with_values_of_factories_is_retried_and_replayed(
    memory: Saver, flavour: Flavour, arguments: dict[str, Any]
) -> None:
    api = Api(failures=1)
    graph = paying(memory, api, arguments)
    state = await flavour.invoke(graph, GO, ONE)
    assert state["messages"][-2].content == "paid"
    assert len(api.keys) == 2
    assert len(set(api.keys)) == 1
    before = next(one.config for one in graph.get_state_history(ONE) if one.next == ("tools",))
    state = await flavour.invoke(graph, None, before)
    assert state["messages"][-2].response_metadata["milepost"]["replay"]
    assert len(api.keys) == 2
    (record,) = Ledger(memory).calls("one")
    assert record.arguments == {**arguments, "tags": []}


TAGGED = {"id": "o-1", "tags": ["a", "b", "c", "d", "e", "f"]}


def _order(seed: str) -> str:
    told = subprocess.run(
        [sys.executable, "-c", f"print(list(set({TAGGED['tags']})), end='')"],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return told.stdout


def _killed(url: str, seed: str) -> int:
    command = [sys.executable, __file__, url]
    return subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=False).returncode


async def test_another_process_retries_a_call_that_a_kill_has_cut_short(tmp_path: Path, flavour: Flavour) -> None:
    url = f"file:{tmp_path}"
    # This process runs through the set in another order, whatever its own seed is.
    orders = {seed: _order(seed) for seed in ("1", "2")}
    seed = next(seed for seed, order in orders.items() if order != str(list(set(TAGGED["tags"]))))
    assert await asyncio.to_thread(_killed, url, seed) == -signal.SIGKILL
    with milepost.connect(url) as saver:
        api = Api(failures=0)
        state = await flavour.invoke(paying(saver, api, TAGGED), None, ONE)
        assert state["messages"][-2].content == "paid"
        (record,) = Ledger(saver).calls("one")
        assert (record.state, record.attempt, len(api.keys)) == ("succeeded", 1, 1)
        assert record.arguments == TAGGED


if __name__ == "__main__":
    with milepost.connect(sys.argv[1]) as saver:
        paying(saver, Api(failures=1, deadly=True), TAGGED).invoke(GO, ONE, durability="sync")
