"""What LangGraph's tools may return, and what its graphs are told. The ledger also serves programs without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from langgraph.errors import InvalidUpdateError
    from langgraph.types import Command, Send, StateUpdate
else:
    try:
        from langgraph.errors import InvalidUpdateError
        from langgraph.types import Command, Send, StateUpdate
    except ImportError:

        class Command:
            """Stands in for LangGraph's, of which there are none."""

        class Send:
            """Stands in for LangGraph's."""

        class StateUpdate:
            """Stands in for LangGraph's."""

        class InvalidUpdateError(Exception):
            """Stands in for LangGraph's."""


END: Final = "__end__"
"""Where a run goes on that ends."""

__all__ = ["END", "Command", "InvalidUpdateError", "Send", "StateUpdate"]
