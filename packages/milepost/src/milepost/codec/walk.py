"""Values to msgpack: the fast way, and the exact walk that is taken where the fast way ends.

The fast way is one call of ormsgpack, with a hook for what is not plain data. It stops at keys that are not strings,
at lone surrogates, and at whatever cannot be stored, without saying where; and it writes a bytearray as bytes. Then the
walk runs: it does the same in Python, knows the path, and notices cycles.
"""

from __future__ import annotations

from typing import Any, Final

import ormsgpack

from milepost.codec import exts
from milepost.codec.exts import EXT_DEPTH, PACK_OPTIONS, Registry, array_header, extension, map_header
from milepost.codec.messages import SHAPES
from milepost.codec.reduce import Reduced, dotted, reduce
from milepost.errors import Unserializable

MAX_DEPTH: Final = 400
"""Deepest nesting, of containers and objects together, that the walk follows."""

_EAGER: Final = 8
"""Above this depth the walk tries the fast way for each part first; below it, trying would cost more than it saves."""

_BARE: Final = frozenset({str, int, float, bool, type(None), bytes, *SHAPES})
"""Types whose objects are no bytearray. What one of them holds inside, the hook has looked at."""

_packb = ormsgpack.packb
_Ext = ormsgpack.Ext


class TooDeep(Exception):
    """The fast way met more nested extensions than may be written."""


class Level:
    """The fast way at one depth of extensions within extensions."""

    __slots__ = ("_depth", "_next", "registry")

    def __init__(self, registry: Registry, depth: int = 0) -> None:
        self.registry = registry
        self._depth = depth
        self._next: Level | None = None

    def below(self) -> Level:
        """The level of what lies inside an extension of this level."""
        if self._next is None:
            if self._depth >= EXT_DEPTH:
                raise TooDeep
            self._next = Level(self.registry, self._depth + 1)
        return self._next

    def pack(self, obj: Any) -> bytes:
        """`obj` as msgpack. Raises ``TypeError`` where the fast way ends."""
        data = _packb(obj, self.default, PACK_OPTIONS)
        if type(obj) not in _BARE and _hides_bytearray(obj, data):
            raise TypeError
        return data

    def glance(self, obj: Any) -> bytes:
        """`pack` without the look for bytearrays: one right in `obj` is told from bytes only inside an object."""
        return _packb(obj, self.default, PACK_OPTIONS)

    def default(self, obj: Any) -> Any:
        """The hook for ormsgpack. What it raises, ormsgpack turns into a ``TypeError`` that says nothing."""
        shape = SHAPES.get(type(obj))
        if shape is not None:
            fields = obj.__dict__
            if len(fields) == len(shape.names) and not obj.__pydantic_extra__:
                level = self._next or self.below()
                payload = [shape.module, shape.name, fields, "model_validate_json"]
                data = _packb(payload, level.default, PACK_OPTIONS)
                content = fields["content"]
                # The content comes first: its text cannot hide anything, and it is most of the bytes.
                start = len(content) if type(content) is str and next(iter(fields)) == "content" else 0
                if _maybe_bytes(data, start) and _has_bytearray(fields):
                    raise TypeError
                return _Ext(exts.PYDANTIC_V2, data)
        code, payload, raw, _ = reduce(obj, self.registry)
        if code is None:
            return payload
        return _Ext(code, payload if raw else (self._next or self.below()).pack(payload))


def _hides_bytearray(obj: Any, data: bytes) -> bool:
    """Whether a bytearray was packed as bytes somewhere in `obj`."""
    kind = type(obj)
    if kind is list:
        # A list of objects: looking at it is quicker than looking at their bytes.
        if obj and type(obj[0]) in SHAPES:
            return _has_bytearray(obj)
    elif kind is not dict:
        return kind is bytearray
    return _maybe_bytes(data, 0) and _has_bytearray(obj)


def _maybe_bytes(data: bytes, start: int) -> bool:
    find = data.find
    return find(b"\xc4", start) >= 0 or find(b"\xc5", start) >= 0 or find(b"\xc6", start) >= 0


def has_binary(obj: Any) -> bool:
    """Whether there are bytes, bytearrays or memoryviews in the lists and dicts of `obj`."""
    stack = [obj]
    for part in stack:
        kind = type(part)
        if kind is dict:
            stack.extend(part.values())
        elif kind is list:
            stack.extend(part)
        elif kind in _BINARY:
            return True
    return False


_BINARY: Final = frozenset({bytes, bytearray, memoryview})


def _has_bytearray(obj: Any) -> bool:
    stack = [obj]
    for part in stack:
        kind = type(part)
        if kind is dict:
            stack.extend(part.values())
        elif kind is list:
            stack.extend(part)
        elif kind is bytearray:
            return True
    return False


class Walk:
    """One exact walk over a value."""

    __slots__ = ("_active", "_hopeless", "_path")

    def __init__(self) -> None:
        self._path: list[tuple[str, Any]] = []
        self._active: set[int] = set()
        # The shape of the value itself is the trouble: no other way of writing a part of it helps.
        self._hopeless = False

    def pack(self, obj: Any, level: Level) -> bytes:
        """`obj` as msgpack. Raises `Unserializable` with the path to what cannot be stored."""
        try:
            return self._value(obj, level)
        except RecursionError as exc:
            raise self._too_deep(obj) from exc

    def _value(self, obj: Any, level: Level) -> bytes:
        kind = type(obj)
        if kind is str:
            return self._text(obj)
        if kind is int:
            if -(1 << 63) <= obj < 1 << 64:
                return _packb(obj)
            return extension(exts.BIG_INT, reduce(obj, level.registry).payload)
        if obj is None or kind is bool or kind is float or kind is bytes or kind is memoryview:
            return _packb(obj)
        if len(self._path) < _EAGER:
            try:
                return level.pack(obj)
            except (TypeError, ValueError, RecursionError):
                pass  # ormsgpack does not say why; the walk below finds out
        if len(self._path) > MAX_DEPTH:
            raise self._too_deep(obj)
        identity = id(obj)
        if identity in self._active:
            self._hopeless = True
            raise self._error(obj, "it contains itself", "store references (ids, keys) instead of the objects")
        self._active.add(identity)
        try:
            if kind is list:
                return self._array(obj, level)
            if kind is dict:
                return self._map(obj, level)
            return self._object(obj, level)
        finally:
            self._active.discard(identity)

    def _text(self, obj: str) -> bytes:
        try:
            return _packb(obj)
        except TypeError:
            return extension(exts.TEXT, obj.encode("utf-8", "surrogatepass"))

    def _array(self, obj: list[Any], level: Level) -> bytes:
        parts = [array_header(len(obj))]
        path = self._path
        for index, element in enumerate(obj):
            path.append(("i", index))
            parts.append(self._value(element, level))
            path.pop()
        return b"".join(parts)

    def _map(self, obj: dict[Any, Any], level: Level) -> bytes:
        keys = [_key(key) for key in obj]
        if None in keys:
            return self._object(obj, level)
        parts = [map_header(len(obj))]
        path = self._path
        for packed, (key, value) in zip(keys, obj.items(), strict=True):
            parts.append(packed or b"")
            path.append(("i", key))
            parts.append(self._value(value, level))
            path.pop()
        return b"".join(parts)

    def _object(self, obj: Any, level: Level) -> bytes:
        try:
            reduced = self._message(obj) or reduce(obj, level.registry)
        except Unserializable as exc:
            raise self._error(obj, exc.facts.get("reason", str(exc)), exc.facts.get("advice", "")) from exc
        except RecursionError:
            raise
        except Exception as exc:
            # The class's own code (model_dump, a registered dump, a property) failed.
            raise self._error(obj, f"taking it apart failed with {exc!r}", "") from exc
        code, payload, raw, fallback = reduced
        if code is None:
            return self._value(payload, level)
        if raw:
            return extension(code, payload)
        inner = self._below(obj, level)
        depth = len(self._path)
        try:
            return extension(code, self._payload(code, payload, inner))
        except Unserializable:
            if fallback is None or self._hopeless:
                raise
            del self._path[depth:]
            try:
                return extension(code, self._payload(code, fallback(), inner))
            except Exception:  # whatever the fallback says, the first refusal is what to report
                del self._path[depth:]
            raise

    @staticmethod
    def _message(obj: Any) -> Reduced | None:
        shape = SHAPES.get(type(obj))
        if shape is None or len(obj.__dict__) != len(shape.names) or obj.__pydantic_extra__:
            return None
        return Reduced(exts.PYDANTIC_V2, [shape.module, shape.name, obj.__dict__, "model_validate_json"])

    def _payload(self, code: int, payload: Any, level: Level) -> bytes:
        if type(payload) is not list:
            return self._value(payload, level)
        if code == exts.TUPLE:
            return self._array(payload, level)
        parts = [array_header(len(payload))]
        path = self._path
        if code in exts.PAIRED:
            scaffold = len(payload) % 2
            parts += map(_packb, payload[:scaffold])
            for key, value in zip(payload[scaffold::2], payload[scaffold + 1 :: 2], strict=True):
                path.append(("k", key))
                parts.append(self._value(key, level))
                path[-1] = ("i", key)
                parts.append(self._value(value, level))
                path.pop()
            return b"".join(parts)
        # What an extension holds is scaffolding and no part of the path, but the fields and elements in it are.
        for element in payload:
            if type(element) is dict and all(type(name) is str for name in element):
                parts.append(map_header(len(element)))
                for name, value in element.items():
                    parts.append(self._text(name))
                    path.append(("a", name))
                    parts.append(self._value(value, level))
                    path.pop()
            elif type(element) is list:
                parts.append(self._array(element, level))
            else:
                parts.append(self._value(element, level))
        return b"".join(parts)

    def _below(self, obj: Any, level: Level) -> Level:
        try:
            return level.below()
        except TooDeep as exc:
            raise self._too_deep(obj) from exc

    def _too_deep(self, obj: Any) -> Unserializable:
        self._hopeless = True
        return self._error(
            obj, f"it lies deeper than {MAX_DEPTH} levels, or {EXT_DEPTH} levels of objects", "flatten the structure"
        )

    def _error(self, obj: Any, reason: str, advice: str) -> Unserializable:
        path = "".join(map(_label, self._path[:64])) + ("..." if len(self._path) > 64 else "")
        where = f" at {path}" if path else ""
        return Unserializable(
            f"a value of type {dotted(type(obj))}{where} cannot be stored: {reason}"
            + (f"; {advice}." if advice else "."),
            path=path,
            type=dotted(type(obj)),
            reason=reason,
            advice=advice,
        )


def _label(step: tuple[str, Any]) -> str:
    style, key = step
    if style == "a":
        return f".{key}"
    text = repr(key) if isinstance(key, (str, int, float, bytes, bool)) else type(key).__name__
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return f"[{text}]" if style == "i" else f"<key {text}>"


def _key(key: Any) -> bytes | None:
    """A dict's key as msgpack, or None when the reader would not get the same one from a map."""
    kind = type(key)
    try:
        if kind is str or key is None or kind is bool or kind is float or kind is bytes:
            return _packb(key)
        if kind is int:
            return _packb(key)
        if kind is tuple:
            parts = [_key(part) for part in key]
            return None if None in parts else array_header(len(parts)) + b"".join(part or b"" for part in parts)
    except TypeError:
        return None
    return None
