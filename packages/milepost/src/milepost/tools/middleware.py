"""The ledger as middleware of LangChain's agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ToolCallRequest

from milepost.tools.adapter import Misplaced
from milepost.tools.pregel import is_of_tool_node

if TYPE_CHECKING:
    from milepost.tools.adapter import Ledger


class LedgerMiddleware(AgentMiddleware[Any, Any, Any]):
    """Each call of a tool goes through the ledger. The last of an agent's middleware: innermost around the tool.

    The first call raises `Misplaced`, before anything is recorded or performed, if it is not.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """See `Ledger.wrap_tool_call`."""
        _check_place(request, handler)
        return self.ledger.wrap_tool_call(request, handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """See `Ledger.awrap_tool_call`."""
        _check_place(request, handler)
        return await self.ledger.awrap_tool_call(request, handler)


def _check_place(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> None:
    tool = request.tool_call["name"]
    if not is_of_tool_node(handler):
        raise Misplaced(
            f"{tool!r} was not performed: the ledger's middleware is around another one that wraps tool calls, which "
            "could repeat a call without asking the ledger, or have it record other arguments than are performed. Name "
            "it last: create_agent(…, middleware=[…, ledger.middleware()]).",
            tool=tool,
        )
