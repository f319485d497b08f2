"""Tool calls of LangGraph that never run twice: adapters of the ledger for ToolNode and for agents of LangChain."""

from __future__ import annotations

from milepost.tools.routing import fan_out

__all__ = ["fan_out"]
