"""Arguments as they reach a tool, and results as they come back from the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.types import Command, Send
from pydantic import BaseModel, ValidationError

T = TypeVar("T")

MARK = "milepost"
"""In ``response_metadata`` of a tool message: it was answered from the ledger."""


def arguments_of(tool: BaseTool | None, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments by the tool's schema: converted, defaults filled in, injected ones left out.

    Arguments that do not fit are returned as they are: the tool will refuse them.
    """
    schema = tool.tool_call_schema if tool is not None else None
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return given
    try:
        fitted = schema.model_validate(given)
    except ValidationError:
        return given
    try:
        return fitted.model_dump(mode="json")
    except ValueError:
        # What is no JSON is for a fingerprint function to leave out.
        return fitted.model_dump()


def replayed(result: T, key: str, then: str | None, now: str | None) -> T:
    """`result` of the call `then` as the answer to the call `now`, its tool messages marked."""
    answer: T = _walk(result, key, then, now)
    return answer


def _walk(value: Any, key: str, then: str | None, now: str | None) -> Any:
    if isinstance(value, ToolMessage):
        if value.tool_call_id != then:
            return value
        marked = {**value.response_metadata, MARK: {"replay": True, "key": key}}
        return value.model_copy(update={"tool_call_id": now, "response_metadata": marked})
    if isinstance(value, Command):
        return replace(value, update=_walk(value.update, key, then, now), goto=_walk(value.goto, key, then, now))
    if isinstance(value, Send):
        return Send(value.node, _walk(value.arg, key, then, now))
    if isinstance(value, list | tuple):
        return type(value)(_walk(one, key, then, now) for one in value)
    if isinstance(value, dict):
        return {name: _walk(one, key, then, now) for name, one in value.items()}
    return value
