"""The shape of a state: its channels with their types and reducers, in words that stay the same from run to run."""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from langchain_core.messages import AnyMessage
from typing_extensions import ReadOnly, is_typeddict

from milepost.errors import InvalidConfig
from milepost.schema.changes import ClassName

_WRAPPERS: Final = {ReadOnly, typing.Required, typing.NotRequired}
_LIBRARIES: Final = {"langchain", "langchain_core", "langgraph"}
"""Whose states, such as `MessagesState`, are used as they are."""
_NAME, _TYPE = 3, 3
"""Bytes of a channel's name and type in a table."""


@dataclasses.dataclass(frozen=True)
class Shape:
    """Channel -> type and reducer, in words. Equal shapes have equal fingerprints, on every machine."""

    channels: Mapping[str, str]
    former: Mapping[str, str]
    """The same as it was once worded: with the top package alone of each class. There are stamps and baselines of it."""

    @classmethod
    def of(cls, state: object, called: Mapping[ClassName, str] | None = None) -> Shape:
        """The shape of a TypedDict, dataclass or Pydantic model. Raises `InvalidConfig` for anything else.

        Classes that are in `called` go by that name, without their fields.
        """
        if not isinstance(state, type) or not (
            is_typeddict(state) or dataclasses.is_dataclass(state) or hasattr(state, "model_fields")
        ):
            raise InvalidConfig(
                f"{state!r} is no state schema: it must be a TypedDict, a dataclass or a Pydantic model",
                what="state",
                value=repr(state)[:200],
            )
        home = _top(state.__module__)
        hints = {name: hint for name, hint in _fields(state).items() if not _managed(hint)}
        now = _Wording(None if home in _LIBRARIES else home, called or {})
        then = _Wording(home, called or {}, paths=False)
        return cls(*({name: form.words(hint, (state,)) for name, hint in hints.items()} for form in (now, then)))

    @classmethod
    def join(cls, shapes: Iterable[Shape]) -> Shape:
        """All channels of several shapes."""
        channels: dict[str, str] = {}
        former: dict[str, str] = {}
        for shape in shapes:
            channels |= shape.channels
            former |= shape.former
        return cls(channels, former)

    @functools.cached_property
    def fingerprint(self) -> bytes:
        """Eight bytes."""
        return _fingerprint(self.channels)

    @functools.cached_property
    def fingerprints(self) -> frozenset[bytes]:
        """All that the shape has had."""
        return frozenset((self.fingerprint, _fingerprint(self.former)))

    @functools.cached_property
    def table(self) -> bytes:
        """For each channel a few bytes of its name's digest and of its type's."""
        return b"".join(sorted(_digest(name)[:_NAME] + _digest(words)[:_TYPE] for name, words in self.channels.items()))


def deltas_of(state: type) -> dict[str, Any]:
    """The delta channels that a state declares: LangGraph's ``DeltaChannel`` in an annotation, as LangGraph makes one of it."""
    found: dict[str, Any] = {}
    for name, hint in _fields(state).items():
        typ, marks = _bare(hint)
        mark: Any = next((one for one in marks if hasattr(one, "from_checkpoint") and not isinstance(one, type)), None)
        if hasattr(mark, "replay_writes"):
            found[name] = type(mark)(mark.reducer, typ, snapshot_frequency=mark.snapshot_frequency)
    return found


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
    then = _types(table)
    now = {_digest(name)[:_NAME]: name for name in shape.channels}
    names = {_digest(name)[:_NAME]: name for name in stored}
    gone = [names.get(key) for key in then if key not in now]
    unnamed = gone.count(None)
    return Drift(
        appeared=tuple(sorted(name for key, name in now.items() if key not in then)),
        vanished=(*sorted(name for name in gone if name), *((f"{unnamed} without a value",) if unnamed else ())),
        changed=tuple(
            sorted(name for key, name in now.items() if key in then and not _is_type(shape, name, then[key]))
        ),
    )


def has_name(reducer: object) -> bool:
    """Whether a reducer is a function that its module and its name tell from others."""
    if not isinstance(reducer, types.FunctionType | types.BuiltinFunctionType):
        return False
    return "<" not in reducer.__qualname__


def kept_type(shape: Shape, name: str, table: bytes, stored: str) -> bool:
    """Whether channel `name` of `shape` has the type and the reducer that `table` tells of for channel `stored`."""
    found = _types(table).get(_digest(stored)[:_NAME])
    return found is not None and name in shape.channels and _is_type(shape, name, found)


def _types(table: bytes) -> dict[bytes, bytes]:
    size = _NAME + _TYPE
    return {table[at : at + _NAME]: table[at + _NAME : at + size] for at in range(0, len(table), size)}


def _is_type(shape: Shape, name: str, found: bytes) -> bool:
    return found in (_digest(words[name])[:_TYPE] for words in (shape.channels, shape.former))


def spellings(cls: ClassName) -> list[str]:
    """How a class may be named in words."""
    module, name = cls
    return list(dict.fromkeys((f"{module}:{name}", f"{_top(module).lstrip('_')}:{name}")))


def _fingerprint(channels: Mapping[str, str]) -> bytes:
    return _digest(repr(sorted(channels.items())))[:8]


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
    return any(
        isinstance(mark, type) and any(base.__name__ == "ManagedValue" for base in mark.__mro__)
        for mark in _bare(hint)[1]
    )


def _bare(hint: Any) -> tuple[Any, Sequence[Any]]:
    """A type without what wraps it, and the marks of its annotation."""
    marks: list[Any] = []
    while get_origin(hint) in {Annotated, *_WRAPPERS}:
        hint, *more = get_args(hint)
        marks += more
    return hint, marks


@dataclasses.dataclass(frozen=True, slots=True)
class _Wording:
    """How types are put in words."""

    home: str | None
    """The application's package; None where the state is a library's."""
    called: Mapping[ClassName, str]
    paths: bool = True
    """Whether the application's classes are named by their whole paths, as their objects are in the store."""

    def words(self, hint: Any, within: tuple[type, ...]) -> str:
        # A union of a library's own, which grows with its releases.
        if hint == AnyMessage:
            return "AnyMessage"
        origin, args = get_origin(hint), get_args(hint)
        if origin in _WRAPPERS:
            return self.words(args[0], within)
        if origin is Annotated:
            reducers = [_reducer(mark) for mark in args[1:] if _reduces(mark)]
            return " by ".join([self.words(args[0], within), *reducers])
        if origin is Union or origin is types.UnionType:
            return " | ".join(sorted({self.words(arg, within) for arg in args}))
        if origin is Literal:
            return f"Literal[{', '.join(sorted(map(repr, args)))}]"
        if origin is not None:
            inner = ", ".join(self.words(arg, within) for arg in args)
            return f"{self.words(origin, within)}[{inner}]"
        if isinstance(hint, list):
            return f"[{', '.join(self.words(arg, within) for arg in hint)}]"
        if isinstance(hint, type):
            return self._class(hint, within)
        if hint is None:
            return "None"
        return str(getattr(hint, "__name__", hint))

    def _class(self, cls: type, within: tuple[type, ...]) -> str:
        if cls is type(None):
            return "None"
        other = self.called.get((cls.__module__, cls.__qualname__))
        if other is not None:
            return other
        own = _top(cls.__module__) == self.home
        name = f"{cls.__module__}:{cls.__qualname__}" if own and self.paths else _name(cls)
        # The fields of the application's own classes are part of the shape. Those of libraries change with their releases.
        if cls in within or not own:
            return name
        if issubclass(cls, enum.Enum):
            return f"{name}({', '.join(cls.__members__)})"
        if is_typeddict(cls) or dataclasses.is_dataclass(cls) or hasattr(cls, "model_fields"):
            fields = (f"{field}: {self.words(hint, (*within, cls))}" for field, hint in _fields(cls).items())
            return f"{name}({', '.join(fields)})"
        return name


def _name(thing: Any) -> str:
    # Where in a library something lies changes with its releases, and `operator.add` is of `_operator` where that is written
    # in C. Nothing that is stored tells where a reducer lies.
    package = _top(str(getattr(thing, "__module__", None) or "")).lstrip("_")
    name = getattr(thing, "__qualname__", None) or type(thing).__qualname__
    return str(name) if package in ("builtins", "typing", "") else f"{package}:{name}"


def _top(module: str) -> str:
    return module.partition(".")[0]


def _reduces(mark: Any) -> bool:
    """Whether LangGraph would take an annotation's mark for a reducer or a channel."""
    return (
        isinstance(mark, types.FunctionType | types.BuiltinFunctionType | functools.partial)
        or hasattr(mark, "from_checkpoint")
        or (callable(mark) and not isinstance(mark, type) and _top(type(mark).__module__) != "pydantic")
    )


def _reducer(mark: Any) -> str:
    if isinstance(mark, functools.partial):
        return f"partial({_reducer(mark.func)})"
    inner = getattr(mark, "operator", None) or getattr(mark, "reducer", None)
    named = _name(mark if hasattr(mark, "__qualname__") else type(mark))
    return f"{named}({_reducer(inner)})" if callable(inner) and not isinstance(mark, type) else named
