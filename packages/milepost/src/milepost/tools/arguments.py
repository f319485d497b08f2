"""Arguments of tool calls: what was asked for, in one spelling."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from langchain_core.tools import BaseTool
from pydantic import BaseModel, RootModel, ValidationError
from pydantic.fields import FieldInfo

_ALWAYS_ALIKE: Final = (list, dict, set, frozenset, tuple, str, bytes, int, float, bool)
"""Factories that make the same each time: their values are as good as plain defaults."""
_UNKNOWN: Final = object()


class Arguments(NamedTuple):
    """The arguments of a call, for its record and its fingerprint."""

    shown: Mapping[str, Any]
    filled: frozenset[str] = frozenset()
    """Names of `shown` that were not given: the tool's defaults."""
    former: Mapping[str, Any] | None = None
    """What an earlier release took for `shown`, where that is something else."""


class _Collide(Exception):
    """Two keys of one dict are the same text."""


def arguments_of(tool: BaseTool | None, given: Mapping[str, Any]) -> Arguments:
    """The arguments by the tool's schema: converted, defaults filled in, injected ones left out.

    Values of default factories that nobody gave are left out, however deep: each validation makes another one. Sets are
    lists in an order of their own. Keys that are no text are the text that JSON has for them; where that makes two keys
    one, and where a value has no JSON, the arguments are Python's, for a fingerprint function to deal with.

    Arguments that do not fit are returned as they are: the tool will refuse them.
    """
    schema = tool.tool_call_schema if tool is not None else None
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return Arguments(given)
    try:
        fitted = schema.model_validate(given)
    except ValidationError:
        return Arguments(given)
    try:
        former = fitted.model_dump(mode="json")
        shown = _asked(fitted, former, given)
    except (ValueError, _Collide):
        former = fitted.model_dump()
        shown = _asked(fitted, former, given)
    filled = frozenset(shown.keys() - fitted.model_fields_set)
    return Arguments(shown, filled, None if shown == former else former)


def _asked(value: Any, dumped: Any, given: Any) -> Any:
    """`dumped`, which pydantic has made of `value`, without what nobody gave, and with sets in order.

    `given` is what `value` was validated from, where that is known. What a serializer of the user's has made into
    something else stays as it is.
    """
    if isinstance(value, RootModel):
        return _asked(value.root, dumped, given)
    if isinstance(dumped, dict):
        if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            return _of_fields(value, dumped, given)
        if isinstance(value, Mapping):
            return _of_mapping(value, dumped, given)
    elif isinstance(dumped, list | tuple) and isinstance(value, Sequence | AbstractSet) and len(value) == len(dumped):
        ordered = not isinstance(value, AbstractSet)
        whole = ordered and isinstance(given, list | tuple) and len(given) == len(dumped)
        parts = given if whole else [_UNKNOWN] * len(dumped)
        found = [_asked(*three) for three in zip(value, dumped, parts, strict=True)]
        if not ordered:
            return sorted(found, key=_text)
        return dumped if found == list(dumped) else found
    return dumped


def _of_fields(value: Any, dumped: dict[str, Any], given: Any) -> dict[str, Any]:
    """That of a model or a dataclass."""
    fields: Mapping[str, Any] | None = getattr(type(value), "__pydantic_fields__", None)
    if fields is None:
        declared = {field.name: field for field in dataclasses.fields(value)}
        fields = {name: one.default if isinstance(one.default, FieldInfo) else one for name, one in declared.items()}
    by_alias = {getattr(field, "serialization_alias", None): name for name, field in fields.items()}
    asked: dict[str, Any] = {}
    for key, made in dumped.items():
        name = key if key in fields else by_alias.get(key, key)
        field = fields.get(name)
        aliases = [alias for what in ("alias", "validation_alias") if (alias := getattr(field, what, None)) is not None]
        part = _part(given, name, *aliases)
        if field is not None and _varies(field.default_factory):
            if isinstance(value, BaseModel):
                lacks = name not in value.model_fields_set
            else:
                # A dataclass does not remember it, and what it was made of is not known everywhere.
                lacks = part is _UNKNOWN and isinstance(given, Mapping) and all(isinstance(one, str) for one in aliases)
            if lacks:
                continue
        asked[key] = _asked(getattr(value, name, None), made, part)
    return asked


def _of_mapping(value: Mapping[Any, Any], dumped: dict[Any, Any], given: Any) -> dict[Any, Any]:
    if len(dumped) < len(value) and not all(isinstance(key, str) for key in value):
        raise _Collide
    if len(dumped) != len(value):
        return dumped
    whole = isinstance(given, Mapping) and len(given) == len(value)
    parts = given.values() if whole else [_UNKNOWN] * len(value)
    parted = zip(dumped, value.values(), dumped.values(), parts, strict=True)
    return {key: _asked(*three) for key, *three in parted}


def _part(given: Any, *names: Any) -> Any:
    """What was given under one of `names`."""
    if not isinstance(given, Mapping):
        return _UNKNOWN
    return next((given[name] for name in names if isinstance(name, str) and name in given), _UNKNOWN)


def _varies(factory: Any) -> bool:
    return factory not in (None, dataclasses.MISSING, *_ALWAYS_ALIKE)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
