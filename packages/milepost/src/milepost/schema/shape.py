"""The shape of a state: its channels with their types and reducers, in words that stay the same from run to run."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from langchain_core.messages import AnyMessage
from typing_extensions import ReadOnly, is_typeddict

from milepost.errors import InvalidConfig

_WRAPPERS: Final = {ReadOnly, typing.Required, typing.NotRequired}
_NAME, _TYPE = 3, 3
"""Bytes of a channel's name and type in a table."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Channel -> type and reducer, in words. Equal shapes have equal fingerprints, on every machine."""

    channels: Mapping[str, str]

    @classmethod
    def of(cls, state: object) -> Shape:
        """The shape of a TypedDict, dataclass or Pydantic model. Raises `InvalidConfig` for anything else."""
        if not isinstance(state, type) or not (
            is_typeddict(state) or dataclasses.is_dataclass(state) or hasattr(state, "model_fields")
        ):
            raise InvalidConfig(
                f"{state!r} is no state schema: it must be a TypedDict, a dataclass or a Pydantic model",
                what="state",
                value=repr(state)[:200],
            )
        home = state.__module__.partition(".")[0]
        return cls({name: _words(hint, home, (state,)) for name, hint in _fields(state).items() if not _managed(hint)})

    @classmethod
    def join(cls, shapes: Iterable[Shape]) -> Shape:
        """All channels of several shapes."""
        return cls({name: words for shape in shapes for name, words in shape.channels.items()})

    @functools.cached_property
    def fingerprint(self) -> bytes:
        """Eight bytes."""
        return _digest(repr(sorted(self.channels.items())))[:8]

    @functools.cached_property
    def table(self) -> bytes:
        """For each channel a few bytes of its name's digest and of its type's."""
        return b"".join(sorted(_digest(name)[:_NAME] + _digest(words)[:_TYPE] for name, words in self.channels.items()))


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """How the shape something was stored with differs from another one."""

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]
    """Names where they are known; otherwise how many there are."""
    changed: tuple[str, ...]

    def __str__(self) -> str:
        parts = [
            f"{what} {', '.join(map(repr, names))}"
            for what, names in (("appeared:", self.appeared), ("vanished:", self.vanished), ("changed:", self.changed))
            if names
        ]
        return "; ".join(parts) or "their order or number alone"


def drift(shape: Shape, table: bytes, stored: Iterable[str]) -> Drift:
    """How `shape` differs from what `table` tells of; `stored` are the channels that are known to have been there."""
    size = _NAME + _TYPE
    then = {table[at : at + _NAME]: table[at + _NAME : at + size] for at in range(0, len(table), size)}
    now = {_digest(name)[:_NAME]: name for name in shape.channels}
    names = {_digest(name)[:_NAME]: name for name in stored}
    gone = [names.get(key) for key in then if key not in now]
    unnamed = gone.count(None)
    return Drift(
        appeared=tuple(sorted(name for key, name in now.items() if key not in then)),
        vanished=(*sorted(name for name in gone if name), *((f"{unnamed} without a value",) if unnamed else ())),
        changed=tuple(
            sorted(
                name for key, name in now.items() if key in then and _digest(shape.channels[name])[:_TYPE] != then[key]
            )
        ),
    )


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def _fields(cls: type) -> dict[str, Any]:
    try:
        hints = get_type_hints(cls, include_extras=True)
    except (NameError, TypeError, AttributeError) as exc:
        raise InvalidConfig(
            f"the annotations of {cls.__qualname__} cannot be resolved ({exc}): a fingerprint needs them, so make what "
            "they name importable in its module",
            what="state",
            value=cls.__qualname__,
        ) from exc
    named: Iterable[str] = (
        [field.name for field in dataclasses.fields(cls)]
        if dataclasses.is_dataclass(cls)
        else getattr(cls, "model_fields", hints)
    )
    return {name: hints[name] for name in named if name in hints}


def _managed(hint: Any) -> bool:
    """A value that LangGraph computes (``RemainingSteps``): no channel."""
    marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return any(
        isinstance(mark, type) and any(base.__name__ == "ManagedValue" for base in mark.__mro__) for mark in marks
    )


def _words(hint: Any, home: str, within: tuple[type, ...]) -> str:
    # A union of a library's own, which grows with its releases.
    if hint == AnyMessage:
        return "AnyMessage"
    origin, args = get_origin(hint), get_args(hint)
    if origin in _WRAPPERS:
        return _words(args[0], home, within)
    if origin is Annotated:
        reducers = [_reducer(mark) for mark in args[1:] if _reduces(mark)]
        return " by ".join([_words(args[0], home, within), *reducers])
    if origin is Union or origin is types.UnionType:
        return " | ".join(sorted({_words(arg, home, within) for arg in args}))
    if origin is Literal:
        return f"Literal[{', '.join(sorted(map(repr, args)))}]"
    if origin is not None:
        inner = ", ".join(_words(arg, home, within) for arg in args)
        return f"{_words(origin, home, within)}[{inner}]"
    if isinstance(hint, list):
        return f"[{', '.join(_words(arg, home, within) for arg in hint)}]"
    if isinstance(hint, type):
        return _class(hint, home, within)
    if hint is None:
        return "None"
    return str(getattr(hint, "__name__", hint))


def _class(cls: type, home: str, within: tuple[type, ...]) -> str:
    if cls is type(None):
        return "None"
    name = _name(cls)
    # The fields of the application's own classes are part of the shape. Those of libraries change with their releases.
    if cls in within or cls.__module__.partition(".")[0] != home:
        return name
    if issubclass(cls, enum.Enum):
        return f"{name}({', '.join(cls.__members__)})"
    if is_typeddict(cls) or dataclasses.is_dataclass(cls) or hasattr(cls, "model_fields"):
        fields = (f"{field}: {_words(hint, home, (*within, cls))}" for field, hint in _fields(cls).items())
        return f"{name}({', '.join(fields)})"
    return name


def _name(thing: Any) -> str:
    # `operator.add` is of `_operator` where that is written in C.
    module = str(getattr(thing, "__module__", None) or "").partition(".")[0].lstrip("_")
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    return str(name) if module in ("builtins", "typing", "") else f"{module}:{name}"


def _reduces(mark: Any) -> bool:
    """Whether LangGraph would take an annotation's mark for a reducer or a channel."""
    return (
        isinstance(mark, types.FunctionType | types.BuiltinFunctionType | functools.partial)
        or hasattr(mark, "from_checkpoint")
        or (callable(mark) and not isinstance(mark, type) and type(mark).__module__.partition(".")[0] != "pydantic")
    )


def _reducer(mark: Any) -> str:
    if isinstance(mark, functools.partial):
        return f"partial({_reducer(mark.func)})"
    inner = getattr(mark, "operator", None) or getattr(mark, "reducer", None)
    named = _name(mark) if hasattr(mark, "__qualname__") else _name(type(mark))
    return f"{named}({_reducer(inner)})" if callable(inner) and not isinstance(mark, type) else named
