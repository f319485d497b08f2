"""Whether a tool was entered, and how it ended, seen through everything that hides it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, Tool, ToolException, tool
from langgraph.errors import GraphInterrupt
from langgraph.graph import MessagesState
from langgraph.prebuilt import InjectedState
from milepost.ledger import CallStopped
from milepost.tools.watching import Handled, Watch
from pydantic import BaseModel, ValidationError


class Args(BaseModel):
    cents: int


class OfItsOwn(BaseTool):
    """A class of tool with its own memory."""

    name: str = "pay"
    description: str = "Pay."
    args_schema: Any = Args
    calls: int = 0

    def _run(self, cents: int) -> str:
        self.calls += 1
        return _pay(cents)


class WithoutItsFunction(StructuredTool):
    """A subclass that does its work itself."""

    def _run(self, *args: Any, config: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        return _pay(*args, **kwargs)

    async def _arun(self, *args: Any, config: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        return _pay(*args, **kwargs)


class WithoutItsRun(StructuredTool):
    """A subclass that does its work before anything of LangChain's is called."""

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return ToolMessage(_pay(**input["args"]), tool_call_id=input["id"])

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.invoke(input)


class WithItsOwnCall(BaseTool):
    """A class whose work is done before LangChain looks at the arguments."""

    name: str = "pay"
    description: str = "Pay."
    args_schema: Any = Args

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return _pay(**input["args"])

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return self.invoke(input)

    def _run(self, cents: int) -> str:
        raise NotImplementedError


class WithItsOwnRunning(WithItsOwnCall):
    """That does it a step later."""

    invoke = BaseTool.invoke
    ainvoke = BaseTool.ainvoke

    def run(self, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        return _pay(**tool_input)

    async def arun(self, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        return self.run(tool_input)


class WithAnotherInside(OfItsOwn):
    """That calls a tool whose arguments do not fit."""

    def _run(self, cents: int) -> str:
        return str(OfItsOwn().invoke(call("many")))


def _pay(cents: int) -> str:
    if cents == 13:
        raise ToolException("thirteen")
    if cents == 14:
        raise GraphInterrupt
    if cents == 15:
        Args.model_validate({})
    return f"paid {cents}"


async def _apay(cents: int) -> str:
    return _pay(cents)


def _function(cents: int) -> str:
    """Pay."""
    return _pay(cents)


KINDS: dict[str, Callable[[], BaseTool]] = {
    "function": lambda: tool("pay")(_function),
    "coroutine too": lambda: StructuredTool.from_function(_function, _apay, name="pay"),
    "class": OfItsOwn,
    "subclass": lambda: WithoutItsFunction.from_function(_function, name="pay"),
}


def call(cents: object) -> dict[str, Any]:
    return {"name": "pay", "args": {"cents": cents}, "id": "1", "type": "tool_call"}


def run(one: BaseTool, cents: object, *, blocking: bool) -> Any:
    return one.invoke(call(cents)) if blocking else asyncio.run(one.ainvoke(call(cents)))


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("kind", KINDS)
class TestEveryKindOfTool:
    def test_a_result(self, kind: str, blocking: bool) -> None:
        watch = Watch()
        answer = run(watch.over(KINDS[kind]()), 5, blocking=blocking)
        assert (answer.content, answer.tool_call_id) == ("paid 5", "1")
        assert (watch.entered, watch.error) == (True, None)

    @pytest.mark.parametrize(("cents", "error"), [(13, ToolException), (14, GraphInterrupt), (15, ValidationError)])
    def test_an_exception(self, kind: str, blocking: bool, cents: int, error: type[Exception]) -> None:
        watch = Watch()
        with pytest.raises(error) as raised:
            run(watch.over(KINDS[kind]()), cents, blocking=blocking)
        assert watch.entered
        assert watch.error is raised.value

    @pytest.mark.parametrize("handler", [True, "no", lambda error: f"no {error}"])
    def test_an_exception_that_the_tool_makes_a_message_of(self, kind: str, blocking: bool, handler: Any) -> None:
        plain, watched = KINDS[kind](), KINDS[kind]()
        plain.handle_tool_error = watched.handle_tool_error = handler
        watch = Watch()
        answer = run(watch.over(watched), 13, blocking=blocking)
        assert answer == run(plain, 13, blocking=blocking)
        assert watch.entered
        assert isinstance(watch.error, ToolException)

    @pytest.mark.parametrize("tells", [False, True, "no", lambda _error: "no"])
    def test_arguments_that_it_refuses(self, kind: str, blocking: bool, tells: Any) -> None:
        watch, one = Watch(), KINDS[kind]()
        one.handle_validation_error = tells
        with nullcontext() if tells else pytest.raises(ValidationError):
            answer = run(watch.over(one), "many", blocking=blocking)
            assert answer == run(one, "many", blocking=blocking)
        assert (watch.entered, watch.error) == (False, None)

    @pytest.mark.parametrize("tells", [True, "no", lambda _error: "no"])
    @pytest.mark.parametrize("both", [True, False])
    def test_what_does_not_fit_in_its_body_is_no_refusal(
        self, kind: str, blocking: bool, tells: Any, both: bool
    ) -> None:
        watch, one = Watch(), KINDS[kind]()
        one.handle_validation_error, one.handle_tool_error = tells, both
        assert run(watch.over(one), 15, blocking=blocking).status == "error"
        assert watch.entered
        assert isinstance(watch.error, ValidationError | Handled)

    def test_which_exception_was_told_is_known_by_its_words(self, kind: str, blocking: bool) -> None:
        watch, one = Watch(), KINDS[kind]()
        one.handle_validation_error, one.handle_tool_error = "no", True
        run(watch.over(one), 13, blocking=blocking)
        assert isinstance(watch.error, ToolException)


def test_a_tool_of_a_class_of_its_own_keeps_its_memory() -> None:
    one = OfItsOwn()
    Watch().over(one).invoke(call(1))
    assert one.calls == 1


def test_what_a_function_is_given_besides() -> None:
    @tool
    def pay(cents: int, id: Annotated[str, InjectedToolCallId], state: Annotated[MessagesState, InjectedState]) -> str:
        """Pay."""
        return f"{cents} {id} {state}"

    request = call(5)
    request["args"]["state"] = {"messages": []}
    watch = Watch()
    assert watch.over(pay).invoke(request).content == "5 1 {'messages': []}"
    assert watch.entered


def test_a_tool_of_one_string() -> None:
    watch = Watch()
    one = Tool("pay", lambda text: f"paid {text}", "Pay.")
    assert watch.over(one).invoke("five") == "paid five"
    assert watch.entered


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_enters_what_was_left(kind: str) -> None:
    """A run that is cancelled before the tool's function begins, in another thread, may say that it was not performed."""
    watch = Watch()
    one = watch.over(KINDS[kind]())
    assert not watch.close()
    with pytest.raises(CallStopped):
        run(one, 5, blocking=True)
    assert not watch.entered


def test_whether_somebody_is_within() -> None:
    watch, seen = Watch(), []

    def pay(cents: int) -> str:
        """Pay."""
        seen.append(watch.close())
        return _pay(cents)

    run(watch.over(tool("pay")(pay)), 5, blocking=True)
    assert (seen, watch.close()) == ([True], False)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_subclass_that_calls_nothing_of_its_class(blocking: bool) -> None:
    watch = Watch()
    answer = run(watch.over(WithoutItsRun.from_function(_function, name="pay")), 5, blocking=blocking)
    assert (answer.content, watch.entered) == ("paid 5", True)


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("kind", [WithItsOwnCall, WithItsOwnRunning, WithAnotherInside])
def test_what_a_class_does_in_its_own_way_may_have_been_done(kind: type[BaseTool], blocking: bool) -> None:
    watch = Watch()
    with pytest.raises(ValidationError) as raised:
        run(watch.over(kind()), 15, blocking=blocking)
    assert watch.entered
    assert watch.error is raised.value


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("kind", ["function", "class"])
def test_what_goes_wrong_after_its_function_is_the_tools(kind: str, blocking: bool) -> None:
    watch, one = Watch(), KINDS[kind]()
    one.response_format = "content_and_artifact"
    with pytest.raises(ValueError, match="two-tuple") as raised:
        run(watch.over(one), 5, blocking=blocking)
    assert watch.entered
    assert watch.error is raised.value
