"""The ledger in runs that are cancelled: a cancellation stops no thread, and what goes on in one may still have its effect."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from driving import Graph
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.types import Command
from milepost.errors import Conflict
from milepost.ledger import CallSuperseded, ToolPolicy
from milepost.saver import Saver
from milepost.tools import CallInProgress, Ledger, current_call, idempotent, keyed, not_applied, unsafe
from test_ledger_graphs import GO, ONE, agent, asks, hand_built, texts

POLICIES = {"keyed": keyed(window="24h"), "idempotent": idempotent(), "unsafe": unsafe()}


@pytest.fixture
def slow() -> Iterator[Slow]:
    slow = Slow()
    yield slow
    slow.released.set()


class Slow:
    """A blocking function whose first execution goes on until it is released."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.entered, self.released, self.left = threading.Event(), threading.Event(), threading.Event()
        self.checked: list[str] = []

    def __call__(self, order: str) -> str:
        self.begun.append(order)
        if len(self.begun) == 1:
            self.entered.set()
            self.released.wait()
            try:
                current_call().check()
            except CallSuperseded:
                self.checked.append("superseded")
            self.left.set()
        return f"charged {order}"

    def tool(self) -> BaseTool:
        @tool
        def charge(order: str) -> str:
            """Charge a card."""
            return self(order)

        return charge

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """The first execution goes on within, and has ended after."""
        assert self.begun, "an execution has begun"
        assert not self.left.is_set(), "and goes on"
        try:
            yield
        finally:
            self.released.set()
            await asyncio.to_thread(self.left.wait)


async def cancelled(slow: Slow, running: Coroutine[Any, Any, Any]) -> None:
    """Cancel a run in the middle of the function."""
    task = asyncio.ensure_future(running)
    await asyncio.to_thread(slow.entered.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_cancel(slow: Slow, saver: Saver, ledger: Ledger) -> Graph:
    graph = hand_built(saver, ledger, [slow.tool()], [asks("a")])
    await cancelled(slow, graph.ainvoke(GO, ONE))
    return graph


async def by_step_timeout(slow: Slow, saver: Saver, ledger: Ledger) -> Graph:
    graph = hand_built(saver, ledger, [slow.tool()], [asks("a")])
    graph.step_timeout = 1.0
    # A step that ran out of time before the tool began is simply repeated.
    given: Any = GO
    while not slow.begun:
        with pytest.raises((TimeoutError, CallInProgress)):
            await graph.ainvoke(given, ONE)
        given = None
    graph.step_timeout = None
    return graph


async def by_a_sibling(slow: Slow, saver: Saver, ledger: Ledger) -> Graph:
    failed: list[str] = []

    @tool
    async def fail(order: str) -> str:
        """Fail, once, after the other has begun."""
        await asyncio.to_thread(slow.entered.wait)
        if not failed:
            failed.append(order)
            raise ValueError("declined")
        return f"charged {order}"

    both = asks("a")
    both.tool_calls.append({"name": "fail", "args": {"order": "b"}, "id": "other", "type": "tool_call"})
    graph = agent(saver, [slow.tool(), fail], [both], [ledger.middleware()])
    with pytest.raises(ValueError, match="declined"):
        await graph.ainvoke(GO, ONE)
    return graph


WAYS = {"cancel": by_cancel, "step timeout": by_step_timeout, "sibling": by_a_sibling}


def ledger_of(saver: Saver, policy: ToolPolicy, **options: Any) -> Ledger:
    """Waits for nobody."""
    return Ledger(saver, {"charge": policy, "fail": unsafe(not_applied=(ValueError,))}, wait_timeout=0, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", POLICIES)
async def test_nobody_begins_while_an_abandoned_thread_may_act(saver: Saver, slow: Slow, policy: str, way: str) -> None:
    ledger = ledger_of(saver, POLICIES[policy])
    graph = await WAYS[way](slow, saver, ledger)
    async with slow.held():
        (record,) = [one for one in await ledger.acalls("one") if one.tool == "charge"]
        # LangGraph may cancel a task for a second time, while its call is being settled.
        assert record.state in ("in_doubt", "started")
        assert not record.told
        try:
            asked = await graph.ainvoke(None, ONE)
        except CallInProgress:
            pass
        else:
            (question,) = asked["__interrupt__"]
            with pytest.raises(CallInProgress):
                await graph.ainvoke(Command(resume={question.id: "not_applied"}), ONE)
        with pytest.raises(Conflict):
            await ledger.aresolve(record.key, not_applied(), by="ann")
    assert slow.begun == ["a"]
    assert slow.checked == ["superseded"], "and it is told so if it asks"


@pytest.mark.parametrize("make", [idempotent, lambda **more: keyed(window="24h", **more)], ids=["idempotent", "keyed"])
async def test_it_is_retried_once_the_thread_can_act_no_more(
    saver: Saver, slow: Slow, make: Callable[..., ToolPolicy]
) -> None:
    ledger = ledger_of(saver, make(max_duration=0), lease=0, skew=0)
    graph = await by_cancel(slow, saver, ledger)
    async with slow.held():
        assert texts(await graph.ainvoke(None, ONE)) == ["charged a"]
        (record,) = await ledger.acalls("one")
        assert (record.state, record.attempt) == ("succeeded", 1)
    assert slow.checked == ["superseded"]
    assert await ledger.acalls("one") == [record]


async def test_an_abandoned_thread_begins_no_further_effect(saver: Saver, slow: Slow) -> None:
    captured: list[str] = []
    refused = threading.Event()

    @tool
    def charge(order: str) -> str:
        """Hold, then capture."""
        call = current_call()
        held = slow(order)
        try:
            return str(call.once("capture", captured.append, order))
        except CallSuperseded:
            refused.set()
            return held

    ledger = ledger_of(saver, unsafe())
    graph = hand_built(saver, ledger, [charge], [asks("a")])
    await cancelled(slow, graph.ainvoke(GO, ONE))
    async with slow.held():
        pass
    await asyncio.to_thread(refused.wait)
    assert captured == []
    assert [one.state for one in await ledger.acalls("one")] == ["in_doubt"]


async def test_a_function_that_leaves_a_thread_behind(saver: Saver, slow: Slow) -> None:
    """Its own time-out is a cancellation of what it waits for, as is that of whoever called it."""
    ledger = ledger_of(saver, idempotent())

    async def hasty(order: str) -> str:
        waiting = asyncio.create_task(asyncio.to_thread(slow, order))
        await asyncio.to_thread(slow.entered.wait)
        return await asyncio.wait_for(waiting, 0)

    async def once() -> Any:
        return await ledger.aonce("charge a", hasty, "a", thread_id="one", policy=idempotent())

    with pytest.raises(TimeoutError):
        await once()
    async with slow.held():
        with pytest.raises(CallInProgress):
            await once()
        (record,) = await ledger.acalls("one")
        assert (record.state, record.told) == ("in_doubt", False)
    other = Slow()
    await cancelled(other, ledger.aonce("b", lambda: asyncio.to_thread(other, "b"), thread_id="one"))
    async with other.held():
        assert [one.told for one in await ledger.apending("one")] == [False, False]


async def test_an_answer_of_a_class_of_tool_that_does_not_wait(saver: Saver, slow: Slow) -> None:

    class Hasty(StructuredTool):
        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            task = asyncio.create_task(super().ainvoke(input, config, **kwargs))
            await asyncio.to_thread(slow.entered.wait)
            del task
            raise TimeoutError("no answer")

    def charge(order: str) -> str:
        """Charge a card."""
        return slow(order)

    ledger = ledger_of(saver, idempotent())
    graph = hand_built(saver, ledger, [Hasty.from_function(charge)], [asks("a")], handle=True)
    (said,) = texts(await graph.ainvoke(GO, ONE))
    assert "The outcome of this call is unknown" in said
    async with slow.held():
        (record,) = await ledger.acalls("one")
        assert (record.state, record.told) == ("in_doubt", False)
