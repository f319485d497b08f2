"""The ledger as middleware of LangChain's agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ToolCallRequest

if TYPE_CHECKING:
    from milepost.tools.adapter import Ledger


class LedgerMiddleware(AgentMiddleware[Any, Any, Any]):
    """Each call of a tool goes through the ledger. The last of an agent's middleware: innermost around the tool."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """See `Ledger.wrap_tool_call`."""
        return self.ledger.wrap_tool_call(request, handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """See `Ledger.awrap_tool_call`."""
        return await self.ledger.awrap_tool_call(request, handler)
