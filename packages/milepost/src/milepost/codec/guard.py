"""The guard: which messages of a list are, provably, the ones that were encoded the step before.

A growing transcript is the same objects plus a few. Encoding a message again costs 3 to 30 microseconds; proving that
its encoding cannot have changed costs under one. The proof, for messages of known classes whose encoding is a function
of class, instance ``__dict__`` and extras:

- the same class, no pydantic extras, the same field names;
- every field value is the *same object* as then (so equal values of another type count as changed);
- of the values that are not plain immutable scalars (dicts, lists, anything else), the encoded form is byte for byte
  what it was: mutation in place at any depth shows there.

The values compared are held by strong reference, so that no address can be reused. Blocks of messages are checked
together, in a handful of C-level passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

BLOCK = 128
"""Messages checked together."""

GUARDED: frozenset[type] = frozenset({AIMessage, HumanMessage, SystemMessage, ToolMessage})
_SCALARS: frozenset[type] = frozenset({str, int, float, bool, bytes, type(None)})

_fields = attrgetter("__dict__")
_extras = attrgetter("__pydantic_extra__")

Encode = Callable[[Any], bytes]


class Seen:
    """What a run of messages looked like when it was encoded."""

    __slots__ = ("_boxed", "_boxes", "_classes", "_names", "_values")

    def __init__(self, messages: Sequence[Any], encode: Encode) -> None:
        """Raises whatever `encode` raises for a value that cannot be stored."""
        dicts = list(map(_fields, messages))
        self._classes = list(map(type, messages))
        self._names = list(chain.from_iterable(dicts))
        self._values: list[Any] = list(chain.from_iterable(map(dict.values, dicts)))
        self._boxed = [at for at, value in enumerate(self._values) if type(value) not in _SCALARS]
        self._boxes = encode([self._values[at] for at in self._boxed])

    def same(self, messages: Sequence[Any], encode: Encode) -> bool:
        """Whether `messages`, as many as then, would be encoded to the same bytes as then."""
        if list(map(type, messages)) != self._classes or any(map(_extras, messages)):
            return False
        dicts = list(map(_fields, messages))
        names = list(chain.from_iterable(dicts))
        values: list[Any] = list(chain.from_iterable(map(dict.values, dicts)))
        if len(values) != len(self._values) or names != self._names or not all(map(is_, values, self._values)):
            return False
        boxes = [values[at] for at in self._boxed]
        # What cannot be encoded any more has changed; encoding the message itself will say what is wrong with it.
        try:
            return encode(boxes) == self._boxes
        except TypeError:
            return False


class SameObjects:
    """The same for a run of plain immutable scalars: the very same objects are the same bytes."""

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = list(values)

    def same(self, values: Sequence[Any], encode: Encode) -> bool:
        """As `Seen.same`. The lists may differ in length: then they are not the same."""
        del encode  # nothing below an immutable scalar can change
        return len(values) == len(self._values) and all(map(is_, values, self._values))


def guardable(messages: Sequence[Any]) -> bool:
    """Whether `Seen` can speak for every one of `messages`."""
    return GUARDED.issuperset(map(type, messages)) and not any(map(_extras, messages))
