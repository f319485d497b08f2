"""Results of tools: as they are recorded, and as they come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

from langchain_core.messages import ToolMessage

from milepost.ledger.commands import Command, Send

T = TypeVar("T")

MARK = "milepost"
"""In ``response_metadata`` of a tool message: it was answered from the ledger."""


def stored(result: T, call_id: str | None) -> T:
    """`result` for the record: its answers to the call name no id, as it may be another's when it is needed again."""
    answer: T = _walk(result, frozenset((call_id,)), {"tool_call_id": ""}, {})
    return answer


def replayed(result: T, key: str, then: str | None, now: str | None) -> T:
    """What `stored` has made, as the answer to the call `now`: its answers marked as replayed. Answers that name the
    call `then` are the call's as well: a person may have given them."""
    mark = {MARK: {"replay": True, "key": key}}
    answer: T = _walk(result, frozenset(("", then)), {"tool_call_id": now}, mark)
    return answer


def _walk(value: Any, own: frozenset[str | None], update: dict[str, Any], mark: dict[str, Any]) -> Any:
    if isinstance(value, ToolMessage):
        if value.tool_call_id not in own:
            return value
        return value.model_copy(update={**update, "response_metadata": {**value.response_metadata, **mark}})
    if isinstance(value, Command):
        parts = {name: getattr(value, name) for name in ("update", "goto")}
        changed = _changed(parts, own, update, mark)
        return replace(value, **changed) if changed else value
    if isinstance(value, Send):
        arg = _walk(value.arg, own, update, mark)
        return value if arg is value.arg else Send(value.node, arg)
    if isinstance(value, list | tuple):
        make = getattr(value, "_make", type(value) if type(value) in (list, tuple) else None)
        changed = _changed(dict(enumerate(value)), own, update, mark)
        # How to build another class of list is not known.
        return make([changed.get(at, one) for at, one in enumerate(value)]) if changed and make else value
    if isinstance(value, dict):
        changed = _changed(value, own, update, mark)
        if not changed:
            return value
        again = copy(value)
        again.update(changed)
        return again
    return value


def _changed(
    parts: Mapping[Any, Any], own: frozenset[str | None], update: dict[str, Any], mark: dict[str, Any]
) -> dict[Any, Any]:
    """Those of `parts` that contain an answer, with what takes its place. The rest keeps its identity, so that values of
    any class pass."""
    walked = ((name, part, _walk(part, own, update, mark)) for name, part in parts.items())
    return {name: new for name, part, new in walked if new is not part}


def answer_of(result: Any, tool: str, call_id: str | None) -> Any:
    """What a ToolNode takes as an answer: `result` itself, or a tool message that says it.

    Results of tools are of the right type; those of a person's or a reconcile function's verdict need not be.
    """
    parts = result if isinstance(result, list) and result else [result]
    if all(isinstance(part, ToolMessage | Command) for part in parts):
        return result
    if result is None:
        text = "This call was performed. What it returned is not known."
    else:
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=repr)
    return ToolMessage(text, name=tool, tool_call_id=call_id or "")
