"""The exceptions of LangGraph that pass through a ToolNode and through retries. The ledger also serves programs without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langgraph.errors import GraphBubbleUp, GraphInterrupt
else:
    try:
        from langgraph.errors import GraphBubbleUp, GraphInterrupt
    except ImportError:

        class GraphBubbleUp(Exception):
            """Stands in for LangGraph's."""

        class GraphInterrupt(GraphBubbleUp):
            """Stands in for LangGraph's."""


__all__ = ["GraphBubbleUp", "GraphInterrupt"]
