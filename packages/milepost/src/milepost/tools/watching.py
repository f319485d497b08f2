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
            return tool.model_copy(update=update)
        # A copy of an unknown class would take what its tool remembers with it: it is called from outside instead.
        watched = _Outside(name=tool.name, description=tool.description, args_schema=tool.args_schema)
        watched.let_in(tool, self)
        return watched

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


def _keeps(kind: type[StructuredTool | Tool], *methods: str) -> bool:
    """Whether a class of tool has these methods from LangChain: one of its own may do the work, and not call the function."""
    base = StructuredTool if issubclass(kind, StructuredTool) else Tool
    return all(getattr(kind, name) is getattr(base, name) for name in methods)


class _Outside(BaseTool):
    """A tool of a class that we cannot look into."""

    def let_in(self, tool: BaseTool, watch: Watch) -> None:
        self._tool = tool
        self._watch = watch

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        with self._unless_refused():
            return self._heard(self._tool.invoke(input, config, **kwargs))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        with self._unless_refused():
            return self._heard(await self._tool.ainvoke(input, config, **kwargs))

    @contextmanager
    def _unless_refused(self) -> Generator[None]:
        """Arguments that the schema refuses never reach the body."""
        try:
            with self._watch.inside():
                yield
        except ValidationError as exc:
            methods = (getattr(type(self._tool), name) for name in ("_run", "_arun"))
            bodies = {getattr(method, "__code__", None) for method in methods}
            self._watch.entered = any(frame.f_code in bodies for frame, _ in traceback.walk_tb(exc.__traceback__))
            raise

    def _heard(self, answer: Any) -> Any:
        """An exception of which the tool has made a message: which one it was, it does not say."""
        if self._tool.handle_tool_error and isinstance(answer, ToolMessage) and answer.status == "error":
            self._watch.error = ToolException(answer.text)
        return answer

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(args, kwargs)
