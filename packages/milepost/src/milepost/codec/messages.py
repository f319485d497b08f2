"""LangChain messages without pydantic: packed from the instance dict, rebuilt without validation.

Both give exactly what the official serializer gives, but only for messages of the usual shape: an exact class known
here, without extra attributes, with today's fields, each of the type that validation would leave as it is. The caller
takes the official way for everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import ormsgpack
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from pydantic import BaseModel

if TYPE_CHECKING:
    from milepost_speedups import Messages

_Messages: type[Messages] | None
try:
    from milepost_speedups import Messages as _Messages
except ImportError:
    _Messages = None

_BASE: Final = ("content", "additional_kwargs", "response_metadata", "type", "name", "id")
_AI: Final = (*_BASE, "tool_calls", "invalid_tool_calls", "usage_metadata")
_AI_CHUNK: Final = (*_AI, "tool_call_chunks", "chunk_position")
_TOOL: Final = (*_BASE, "tool_call_id", "artifact", "status")
_CALL: Final = ("name", "args", "id", "type")
_COUNTS: Final = ("input_tokens", "output_tokens", "total_tokens")

_PARTS: Final = {str, dict}
_TEXT: Final = {str}
_NUMBER: Final = {int}
_STATUS: Final = ("success", "error")

_Check = Callable[[dict[str, Any]], bool]

_new = object.__new__
# What `BaseModel` keeps beside its fields. The descriptors' own methods are quicker than `object.__setattr__`.
_set_dict = BaseModel.__dict__["__dict__"].__set__
_set_given = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private = BaseModel.__dict__["__pydantic_private__"].__set__


def _plain_content(content: Any) -> bool:
    # The type sets in this module are built by C loops: these checks are most of the price of a message.
    kind = type(content)
    return kind is str or (kind is list and {*map(type, content)} <= _PARTS)


def _plain_call(call: Any) -> bool:
    if type(call) is not dict or tuple(call) != _CALL:
        return False
    name, args, id, kind = call.values()
    if type(name) is not str or type(args) is not dict or kind != "tool_call":
        return False
    return (id is None or type(id) is str) and {*map(type, args)} <= _TEXT


def _plain_usage(usage: Any) -> bool:
    # Token details are rare enough, and lax validation of them subtle enough, to leave them to pydantic.
    return type(usage) is dict and tuple(usage) == _COUNTS and {*map(type, usage.values())} == _NUMBER


def _check_base(fields: dict[str, Any]) -> bool:
    content, kwargs, metadata, _, name, id = fields.values()
    return (
        type(kwargs) is dict
        and type(metadata) is dict
        and (name is None or type(name) is str)
        and (id is None or type(id) is str)
        and _plain_content(content)
    )


def _check_ai(fields: dict[str, Any]) -> bool:
    content, kwargs, metadata, _, name, id, calls, invalid, usage = fields.values()
    if (
        type(kwargs) is not dict
        or type(metadata) is not dict
        or (name is not None and type(name) is not str)
        or (id is not None and type(id) is not str)
        or (type(content) is not str and not _plain_content(content))
        or type(calls) is not list
        or type(invalid) is not list
        or invalid
        or (usage is not None and not _plain_usage(usage))
    ):
        return False
    if calls:
        return all(map(_plain_call, calls))
    # The validator would parse calls out of these.
    return not kwargs.get("tool_calls")


def _check_ai_chunk(fields: dict[str, Any]) -> bool:
    values = tuple(fields.values())
    chunks, position = values[9:]
    calls, invalid, usage = values[6:9]
    # Calls and their chunks are derived from each other when a chunk is built.
    return (
        all(type(part) is list and not part for part in (calls, invalid, chunks))
        and (position is None or (position == "last" and type(position) is str and type(values[0]) is str))
        and (usage is None or _plain_usage(usage))
        and _check_base(dict(zip(_BASE, values, strict=False)))
        and not fields["additional_kwargs"].get("tool_calls")
    )


def _check_tool(fields: dict[str, Any]) -> bool:
    content, kwargs, metadata, _, name, id, call_id, _artifact, status = fields.values()
    return (
        type(kwargs) is dict
        and type(metadata) is dict
        and (name is None or type(name) is str)
        and (id is None or type(id) is str)
        and type(call_id) is str
        and type(status) is str
        and status in _STATUS
        and (type(content) is str or _plain_content(content))
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """The usual shape of one message class."""

    cls: type[BaseMessage]
    module: str
    name: str
    names: tuple[str, ...]
    """The fields, in the order in which an instance holds them."""
    kind: str
    """What its ``type`` field must say."""
    check: _Check
    """Whether validation would leave all of these fields (in order) as they are."""
    rules: bytes | None
    """The same for the part in C: a letter for each field, see its ``_revive.c``; None when only `check` knows."""

    def build(self, fields: Any) -> BaseMessage | None:
        """The message that the class would make of `fields`, or None when it must be asked itself.

        Takes `fields` over: it becomes the dict of the message.
        """
        if type(fields) is not dict or tuple(fields) != self.names or fields["type"] != self.kind:
            return None
        if not self.check(fields):
            return None
        message = _new(self.cls)
        _set_dict(message, fields)
        _set_given(message, set(self.names))
        _set_extra(message, {})
        _set_private(message, None)
        return message


def _usual(cls: type[BaseMessage], names: tuple[str, ...], validators: frozenset[str]) -> bool:
    """Whether the installed class is the one that the checks above were written against."""
    decorators = cls.__pydantic_decorators__
    return (
        tuple(cls.model_fields) == names
        and frozenset(decorators.model_validators) == validators
        and not cls.__private_attributes__
        and cls.__pydantic_post_init__ is None
        and not (
            decorators.validators
            or decorators.field_validators
            or decorators.root_validators
            or decorators.field_serializers
            or decorators.model_serializers
            or decorators.computed_fields
        )
    )


def _shapes() -> dict[type, Shape]:
    compat = frozenset({"_backwards_compat_tool_calls"})
    coerce = frozenset({"coerce_args"})
    chunk = compat | {"init_tool_calls", "init_server_tool_calls"}
    known: list[tuple[type[BaseMessage], tuple[str, ...], frozenset[str], _Check, bytes | None]] = [
        (HumanMessage, _BASE, frozenset(), _check_base, b"cddtoo"),
        (HumanMessageChunk, _BASE, frozenset(), _check_base, b"cddtoo"),
        (SystemMessage, _BASE, frozenset(), _check_base, b"cddtoo"),
        (SystemMessageChunk, _BASE, frozenset(), _check_base, b"cddtoo"),
        (AIMessage, _AI, compat, _check_ai, b"ckdtooleu"),
        (AIMessageChunk, _AI_CHUNK, chunk, _check_ai_chunk, None),
        (ToolMessage, _TOOL, coerce, _check_tool, b"cddtoosaz"),
        (ToolMessageChunk, _TOOL, coerce, _check_tool, b"cddtoosaz"),
    ]
    return {
        cls: Shape(cls, cls.__module__, cls.__name__, names, cls.model_fields["type"].default, check, rules)
        for cls, names, validators, check, rules in known
        if _usual(cls, names, validators)
    }


SHAPES: Final = _shapes()
BY_NAME: Final = {shape.name: shape for shape in SHAPES.values()}


def compiled() -> Messages | None:
    """`Shape.build` of all shapes that have rules, in C; None where the package milepost-speedups is not there."""
    if _Messages is None:
        return None
    rows = [
        (shape.cls, shape.module, shape.name, shape.names, shape.kind, shape.rules)
        for shape in SHAPES.values()
        if shape.rules
    ]
    slots = (BaseModel.__dict__[f"__pydantic_{name}__"] for name in ("fields_set", "extra", "private"))
    return _Messages(rows, ormsgpack.unpackb, ormsgpack.OPT_NON_STR_KEYS, *slots)
