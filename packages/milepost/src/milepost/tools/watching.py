"""What really happened in a tool: ToolNode and tools themselves may turn an exception into a message before we see it."""

from __future__ import annotations

import functools
import threading
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, Tool, ToolException
from pydantic import ValidationError

from milepost.ledger import CallStopped


class Watch:
    """Watches one run of a tool: whether its function was entered, and left, and what came out of it as an exception."""

    def __init__(self) -> None:
        self.entered = False
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._within = 0
        self._closed = False

    @contextmanager
    def inside(self) -> Generator[None]:
        """The body of the tool."""
        with self._lock:
            if self._closed:
                raise CallStopped("the run of this tool was left before it began: it must not begin any more")
            self.entered = True
            self._within += 1
        try:
            yield
        except BaseException as exc:
            self.error = exc
            raise
        finally:
            with self._lock:
                self._within -= 1

    def close(self) -> bool:
        """Have nobody enter any more. Whether somebody is within still: the thread of a function that nobody waits for."""
        with self._lock:
            self._closed = True
            return self._within > 0

    def over(self, tool: BaseTool) -> BaseTool:
        """`tool`, watched. It is to be run once."""
        update: dict[str, Any] = {}
        if tool.handle_tool_error:
            update["handle_tool_error"] = self._told(tool.handle_tool_error)
        if isinstance(tool, StructuredTool | Tool) and _keeps(type(tool), "_run", "_arun"):
            # What calls these may have done the work already.
            self.entered = not _keeps(type(tool), "invoke", "ainvoke", "run", "arun")
            if tool.func is not None:
                update["func"] = self._around(tool.func)
            if tool.coroutine is not None:
                update["coroutine"] = self._around_async(tool.coroutine)
            return _Outside.around(tool.model_copy(update=update), self)
        # A copy of an unknown class would take what its tool remembers with it: it is called from outside instead.
        return _OfItsOwn.around(tool, self)

    def _around(self, function: Any) -> Any:
        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.inside():
                return function(*args, **kwargs)

        return watched

    def _around_async(self, function: Any) -> Any:
        @functools.wraps(function)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            with self.inside():
                return await function(*args, **kwargs)

        return watched

    def _told(self, handler: Any) -> Any:
        """The tool's own handler of `ToolException`, which keeps the exception for us."""

        def handle(error: ToolException) -> Any:
            self.error = error
            if callable(handler):
                return handler(error)
            if isinstance(handler, str):
                return handler
            return error.args[0] if error.args else "Tool execution error"

        return handle


def _base_of(kind: type[BaseTool]) -> type[BaseTool]:
    return next(base for base in (StructuredTool, Tool, BaseTool) if issubclass(kind, base))


def _keeps(kind: type[BaseTool], *methods: str) -> bool:
    """Whether a class of tool has these methods from LangChain: one of its own may do the work, and not call the function."""
    base = _base_of(kind)
    return all(getattr(kind, name) is getattr(base, name) for name in methods)


def _may_say(handler: object, text: str) -> bool:
    """Whether a tool's handler of validation errors may have made `text` of one."""
    return callable(handler) or text == (handler if isinstance(handler, str) else "Tool input validation error")


class Handled(Exception):
    """The tool has made a message of an exception of its own, and does not say of which."""


class _Outside(BaseTool):
    """Around a watched tool: what is raised once its function has returned is an exception of the tool as well."""

    @classmethod
    def around(cls, tool: BaseTool, watch: Watch) -> BaseTool:
        made = cls(name=tool.name, description=tool.description, args_schema=tool.args_schema)
        made.let_in(tool, watch)
        return made

    def let_in(self, tool: BaseTool, watch: Watch) -> None:
        self._tool = tool
        self._watch = watch

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        with self._watching():
            return self._heard(self._tool.invoke(input, config, **kwargs), input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        with self._watching():
            return self._heard(await self._tool.ainvoke(input, config, **kwargs), input)

    @contextmanager
    def _watching(self) -> Generator[None]:
        try:
            yield
        except BaseException as exc:
            if self._watch.entered and self._watch.error is None:
                self._watch.error = exc
            raise

    def _heard(self, answer: Any, _asked: Any) -> Any:
        return answer

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(args, kwargs)


class _OfItsOwn(_Outside):
    """Around a tool of a class that we cannot look into: it is its body, but where arguments are known not to reach that."""

    @contextmanager
    def _watching(self) -> Generator[None]:
        try:
            with self._watch.inside():
                yield
        except ValidationError as exc:
            if self._checks_first() and _raised_by_the_check(exc, _base_of(type(self._tool))):
                self._watch.entered, self._watch.error = False, None
            raise

    def _heard(self, answer: Any, asked: Any) -> Any:
        """An exception of which the tool has made a message: which one it was, it does not say."""
        tool = self._tool
        checked = tool.handle_validation_error
        if not (tool.handle_tool_error or checked) or not isinstance(answer, ToolMessage) or answer.status != "error":
            return answer
        if not checked or not _may_say(checked, answer.text):
            self._watch.error = ToolException(answer.text)
        elif self._checks_first() and self._refuses(asked):
            self._watch.entered = False
        else:
            self._watch.error = Handled(answer.text)
        return answer

    def _checks_first(self) -> bool:
        """Whether it is LangChain that calls its body, once the arguments fit. Who overrides that may do the work there."""
        return _keeps(type(self._tool), "invoke", "ainvoke", "run", "arun", "_to_args_and_kwargs", "_parse_input")

    def _refuses(self, asked: Any) -> bool:
        """Whether the schema refuses the arguments, asked again."""
        try:
            self._tool._parse_input(dict(asked["args"]), asked["id"])  # noqa: SLF001 - what LangChain asks first
        except ValidationError:
            return True
        return False


def _raised_by_the_check(error: BaseException, base: type[BaseTool]) -> bool:
    """Whether it comes from LangChain's check of the arguments: the body, too, may call tools that refuse theirs."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    running = (BaseTool.run.__code__, BaseTool.arun.__code__)
    run = next((at for at, code in enumerate(codes) if code in running), len(codes))
    # It raises again what it has caught, and is there twice.
    called = next((code for code in codes[run:] if code not in running), None)
    return called is base._to_args_and_kwargs.__code__  # noqa: SLF001
