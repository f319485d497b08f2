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
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from milepost.codec.exts import array_header
from milepost.codec.values import Serializer
from milepost.codec.walk import has_binary

if TYPE_CHECKING:
    from milepost_speedups import Trace

BLOCK = 128
"""Messages checked together."""

GUARDED: frozenset[type] = frozenset({AIMessage, HumanMessage, SystemMessage, ToolMessage})
_SCALARS: frozenset[type] = frozenset({str, int, float, bool, bytes, type(None)})

_trace: Callable[[list[Any], frozenset[type], Trace | None], Trace | None] | None
try:
    from milepost_speedups import trace as _trace
except ImportError:
    _trace = None

_fields = attrgetter("__dict__")
_extras = attrgetter("__pydantic_extra__")


class Seen:
    """What a run of messages looked like when it was encoded."""

    __slots__ = ("boxed", "boxes", "classes", "names", "plain", "values")

    def __init__(self, messages: Sequence[Any], eyes: Serializer, after: Seen | None = None) -> None:
        """With `after`, the run is that one, known to be the same still, and `messages` behind it.

        Raises `Unserializable` for a value that cannot be stored, and ``TypeError`` for one that changes meanwhile.
        """
        dicts = list(map(_fields, messages))
        values: list[Any] = list(chain.from_iterable(map(dict.values, dicts)))
        start = len(after.values) if after else 0
        boxed = [at for at, value in enumerate(values, start) if type(value) not in _SCALARS]
        self.classes: list[type] = list(map(type, messages))
        self.names: list[str] = list(chain.from_iterable(dicts))
        self.values: list[Any] = values
        self.boxed: list[int] = boxed
        if after:
            self.classes = after.classes + self.classes
            self.names = after.names + self.names
            self.values = after.values + values
            self.boxed = after.boxed + boxed
        boxes = [self.values[at] for at in self.boxed]
        self.boxes = b""
        self.plain: bool = after is None or after.plain
        if self.plain:
            # Where there is nothing binary, equal glances prove equal values; elsewhere a closer look is needed. What
            # a glance came through has no cycle, in which the search would have no end.
            try:
                self.boxes = eyes.glance(boxes)
                self.plain = not has_binary([values[at - start] for at in boxed])
            except TypeError:
                self.plain = False
        if not self.plain:
            self.boxes = eyes.encode(boxes)
        if after and not self.body().startswith(after.body()):
            # Another thread changed something since `after` was found the same: these boxes would vouch for items
            # that were encoded before.
            raise TypeError("changed while it was looked at")

    def body(self) -> bytes:
        """The encoded boxes, one after the other."""
        return self.boxes[len(array_header(len(self.boxed))) :]

    def same(self, messages: Sequence[Any], eyes: Serializer) -> bool:
        """Whether `messages`, as many as then, would be encoded to the same bytes as then."""
        if list(map(type, messages)) != self.classes or any(map(_extras, messages)):
            return False
        dicts = list(map(_fields, messages))
        names = list(chain.from_iterable(dicts))
        values: list[Any] = list(chain.from_iterable(map(dict.values, dicts)))
        if len(values) != len(self.values) or names != self.names or not all(map(is_, values, self.values)):
            return False
        boxes = [values[at] for at in self.boxed]
        # What cannot be encoded any more has changed; encoding the message itself will say what is wrong with it.
        try:
            return (eyes.glance(boxes) if self.plain else eyes.encode(boxes)) == self.boxes
        except TypeError:
            return False


class Traced:
    """`Seen` by the package milepost-speedups, which also goes into dicts, lists and tuples by identity."""

    __slots__ = ("trace",)

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def same(self, messages: list[Any], eyes: Serializer) -> bool:
        """As `Seen.same`."""
        del eyes  # every object is the same as then, down to immutable scalars
        return self.trace.same(messages)


def look(messages: list[Any], eyes: Serializer, after: Seen | Traced | SameObjects | None) -> Seen | Traced | None:
    """What proves the next time that `messages`, or those that `after` speaks for and `messages`, are unchanged.

    None where nothing can. `after` is known to be the same still, and of the kind that this function returns.
    """
    if not guardable(messages):
        return None
    if _trace is not None and not isinstance(after, Seen):
        trace = _trace(messages, GUARDED, after.trace if isinstance(after, Traced) else None)
        if trace is not None:
            return Traced(trace)
        if after is not None:
            return None  # a look of another kind would have to look at what `after` spoke for, too
    try:
        return Seen(messages, eyes, after if isinstance(after, Seen) else None)
    except TypeError:
        return None  # encoding the message itself will raise, and say where


class SameObjects:
    """The same for a run of plain immutable scalars: the very same objects are the same bytes."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)

    def same(self, values: Sequence[Any], eyes: Serializer) -> bool:
        """As `Seen.same`. The lists may differ in length: then they are not the same."""
        del eyes  # nothing below an immutable scalar can change
        return len(values) == len(self.values) and all(map(is_, values, self.values))


def guardable(messages: Sequence[Any]) -> bool:
    """Whether `Seen` can speak for every one of `messages`."""
    return GUARDED.issuperset(map(type, messages)) and not any(map(_extras, messages))
