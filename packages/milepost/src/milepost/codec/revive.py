"""From msgpack extensions back to objects.

Classes are found by module and qualified name, never by evaluating anything, and only after LangGraph's allowlist has
agreed. Bytes that LangGraph's serializer wrote behave as with LangGraph's serializer; bytes of ours come back exactly,
or raise.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import ormsgpack
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.event_hooks import emit_serde_event
from pydantic import BaseModel

from milepost.codec import exts
from milepost.codec.exts import Placeholder, Registry
from milepost.codec.kinds import PACKED, RAW
from milepost.codec.messages import BY_NAME, compiled
from milepost.errors import Corrupt, MilepostError, Unserializable

# Where users and their logging configuration expect these warnings.
log: Final = logging.getLogger("langgraph.checkpoint.serde.jsonplus")

Unknown = Literal["error", "placeholder", "payload"]
Allowed = set[tuple[str, ...]] | bool | None
Renames = Mapping[tuple[str, str], type | tuple[str, str]]
"""(module, qualified name) -> the class, or its name, that is built instead."""

_unpackb = ormsgpack.unpackb
_KEYS: Final = ormsgpack.OPT_NON_STR_KEYS
_MAX_WARNED: Final = 1000
_warned: set[tuple[str, ...]] = set()

_set = object.__setattr__
_compiled: Final = compiled()


def _warn_once(key: tuple[str, ...], message: str, *args: object) -> None:
    if key not in _warned and len(_warned) < _MAX_WARNED:
        _warned.add(key)
        log.warning(message, *args)


class Gone(Exception):
    """A class is not where it was. `module` tells whether its whole module is missing."""

    def __init__(self, reason: str, *, module: bool) -> None:
        super().__init__(reason)
        self.module = module


class Policy:
    """What a reader may build, and what it does about what it cannot. Immutable, so shared by copies and threads.

    With `exact`, data never stands for an object: what is read is to be stored again.
    """

    __slots__ = ("allowed", "exact", "pickles", "registry", "renamed", "unknown")

    def __init__(
        self,
        allowed: Allowed,
        unknown: Unknown,
        registry: Registry,
        *,
        pickles: bool,
        renamed: Renames | None = None,
        exact: bool = False,
    ) -> None:
        self.exact = exact
        self.renamed = renamed
        self.allowed = allowed
        self.unknown = unknown
        self.registry = registry
        self.pickles = pickles

    def allows(self, module: str, name: str, qualname: str) -> bool:
        """LangGraph's allowlist rule, with its events and warnings. A nested class may be listed under either name."""
        if (module, qualname) in SAFE_MSGPACK_TYPES:
            return True
        if self.allowed is True:
            emit_serde_event({"kind": "msgpack_unregistered_allowed", "module": module, "name": qualname})
            _warn_once(
                ("unregistered", module, qualname),
                "Deserializing unregistered type %s.%s from checkpoint. This will be blocked in a future version. "
                "Set LANGGRAPH_STRICT_MSGPACK=true to block now, or add to allowed_msgpack_modules to allow "
                "explicitly: [(%r, %r)]",
                module, qualname, module, qualname,
            )  # fmt: skip
            return True
        if self.allowed and not {(module, name), (module, qualname)}.isdisjoint(self.allowed):
            return True
        emit_serde_event({"kind": "msgpack_blocked", "module": module, "name": qualname})
        _warn_once(
            ("blocked", module, qualname),
            "Blocked deserialization of %s.%s - not in allowed_msgpack_modules. Add to allowed_msgpack_modules to "
            "allow: [(%r, %r)]",
            module, qualname, module, qualname,
        )  # fmt: skip
        return False


class Forbidden(Gone):
    """LangGraph's allow-list does not name a class, so it is not to be built."""

    def __init__(self, module: str, qualname: str) -> None:
        super().__init__("LangGraph's allow-list does not name it", module=False)
        self.advice = (
            f"Use saver.with_allowlist([({module!r}, {qualname!r})]), or the checkpointer of a compiled graph whose state "
            "names the class"
        )


def find(module: str, qualname: str) -> Any:
    """The class (or `re.compile`) of this name. Raises `Gone`."""
    found: Any = sys.modules.get(module)
    if found is None:
        try:
            found = importlib.import_module(module)
        except Exception as exc:
            raise Gone(f"its module cannot be imported ({exc!r})", module=True) from exc
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as exc:
            raise Gone(f"there is no {qualname} in {module} any more", module=False) from exc
    if not isinstance(found, type) and (module, qualname) != ("re", "compile"):
        raise Gone(f"{qualname} in {module} is not a class", module=False)
    return found


class Revival:
    """One decoding. ormsgpack drops the exception of a hook, so the first one is kept here."""

    __slots__ = ("_policy", "degraded", "error")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.degraded = 0
        """How many objects came back as their data, because something forbids to build them."""
        self.error: MilepostError | None = None

    @property
    def ext_hook(self) -> Callable[[int, bytes], Any]:
        """The ``ext_hook`` for ormsgpack: `hook`, or the same in C, which asks the methods below. Not kept: each value that
        is decoded would leave a cycle to the collector."""
        return self.hook if _compiled is None or self._policy.renamed else _compiled.hook(self)

    def hook(self, code: int, data: bytes) -> Any:
        """The object of one extension. Raises what `fail` took note of."""
        try:
            if code <= exts.PYDANTIC_V2:
                degraded = self.degraded
                # Once, and here: nested extensions cost one frame of the stack each.
                parts = _unpackb(data, ext_hook=self.ext_hook, option=_KEYS)
                if code == exts.PYDANTIC_V2 and type(parts) is list and len(parts) == 4 and not self._policy.renamed:
                    shape = BY_NAME.get(parts[1])
                    if shape is not None and shape.module == parts[0]:
                        message = shape.build(parts[2])
                        if message is not None:
                            return message
                return self._class(code, data, parts, checked=self.degraded == degraded)
            build = PACKED.get(code)
            if build is not None:
                return build(_unpackb(data, ext_hook=self.ext_hook, option=_KEYS))
            return self._kind(code, data)
        except Exception as exc:
            self.fail(exc)
            raise

    def finish(self, code: int, data: bytes, parts: Any, degraded: int) -> Any:
        """What `hook` does about an object of which the part in C has decoded the parts, and could not build it."""
        try:
            return self._class(code, data, parts, checked=self.degraded == degraded)
        except Exception as exc:
            self.fail(exc)
            raise

    def fail(self, exc: BaseException) -> None:
        """Take note of the first exception, and of what led to it."""
        if self.error is not None:
            return
        if isinstance(exc, MilepostError):
            self.error = exc
            return
        self.error = Corrupt(f"an extension of a stored value does not make sense: {exc!r}", damage="value")
        self.error.__cause__ = exc

    @staticmethod
    def read(policy: Policy, items: list[bytes], texts: dict[int, str] | None) -> tuple[list[Any], list[int]] | None:
        """The messages that `items` are, and the places of those that are something else; None where they are to be
        decoded by `hook`. Items that are read again with the same `texts`, which must live as long, share their texts."""
        return None if _compiled is None or policy.renamed else _compiled.read(items, texts)

    def unpack(self, data: bytes | memoryview) -> Any:
        """Decode one whole value."""
        return _unpackb(data, ext_hook=self.ext_hook, option=_KEYS)

    def _kind(self, code: int, data: bytes) -> Any:
        if code in RAW:
            return RAW[code](data)
        if code == exts.REGISTERED:
            return self._registered(data)
        if code == exts.PICKLE:
            return self._pickle(data)
        raise Corrupt(
            f"a stored value has an extension of the unknown kind {code}. Was it written by a newer release? Upgrade "
            "Milepost to read it.",
            damage=f"extension {code}",
        )

    def _class(self, code: int, data: bytes, parts: Any, *, checked: bool) -> Any:
        least = 4 if code == exts.METHOD else 3
        if type(parts) is not list or len(parts) < least or type(parts[0]) is not str or type(parts[1]) is not str:
            raise Corrupt("a stored object does not name its class", damage="value")
        if code == exts.METHOD:
            return self._method(parts, data)
        module, name, payload = parts[:3]
        tail = parts[4 if code == exts.PYDANTIC_V2 else 3 :]
        qualname = tail[0] if tail else name
        if type(qualname) is not str:
            raise Corrupt("a stored object does not name its class", damage="value")
        renamed = self._policy.renamed.get((module, qualname)) if self._policy.renamed else None
        if renamed is None and not self._policy.allows(module, name, qualname):
            if self._policy.exact:
                return self._lost(code, data, module, qualname, payload, Forbidden(module, qualname))
            self.degraded += 1
            return payload
        try:
            cls = find(*(renamed or (module, qualname))) if not isinstance(renamed, type) else renamed
        except Gone as exc:
            if not tail and not exc.module and not self._policy.exact:
                # LangGraph's serializer writes instances of classes inside functions and classes so.
                return self._payload(module, qualname, payload, exc)
            return self._lost(code, data, module, qualname, payload, exc)
        try:
            if tail:
                return _rebuild(code, cls, payload, tail, checked=checked)
            return _construct(code, cls.__module__ if renamed else module, cls, payload)
        except Exception as exc:
            return self._lost(code, data, module, qualname, payload, exc)

    def _method(self, parts: list[Any], data: bytes) -> Any:
        module, name, arg, method = parts[:4]
        if (module, name, method) not in SAFE_MSGPACK_METHODS:
            emit_serde_event({"kind": "msgpack_method_blocked", "module": module, "name": name, "method": str(method)})
            _warn_once(
                ("method", module, name, str(method)),
                "Blocked deserialization of method call %s.%s.%s - not in allowed methods set.",
                module, name, method,
            )  # fmt: skip
            if self._policy.exact:
                return self._lost(exts.METHOD, data, module, name, arg, Forbidden(module, f"{name}.{method}"))
            self.degraded += 1
            return arg
        try:
            return getattr(find(module, name), method)(arg)
        except Exception as exc:
            return self._lost(exts.METHOD, data, module, name, arg, exc)

    def _lost(self, code: int, data: bytes, module: str, qualname: str, payload: Any, exc: Exception) -> Any:
        dotted = f"{module}.{qualname}"
        reason = str(exc) if isinstance(exc, Gone) else f"it refused what is stored ({exc!r})"
        if self._policy.unknown == "placeholder":
            return Placeholder(dotted, reason, code, bytes(data))
        if self._policy.unknown == "payload" and not self._policy.exact:
            return self._payload(module, qualname, payload, exc)
        advice = (
            exc.advice
            if isinstance(exc, Forbidden)
            else "Make the class available again under that name and with those fields"
        )
        raise Unserializable(
            f"a stored object of class {dotted} cannot be rebuilt: {reason}. {advice}, or read with "
            'Serializer(unknown="placeholder").',
            path="",
            type=dotted,
            reason=reason,
        ) from exc

    def _payload(self, module: str, qualname: str, payload: Any, exc: Exception) -> Any:
        self.degraded += 1
        _warn_once(
            ("unreconstructable", module, qualname),
            "Could not reconstruct %s.%s from checkpoint (%s); returning its serialized data instead.",
            module, qualname, exc if isinstance(exc, Gone) else type(exc).__name__,
        )  # fmt: skip
        return payload

    def _registered(self, data: bytes) -> Any:
        name, dumped = self.unpack(data)
        entry = self._policy.registry.of_name(name)
        if entry is None:
            return self._lost(
                exts.REGISTERED, data, "registered type", name, dumped, Gone("it is not registered here", module=True)
            )
        try:
            return entry.load(dumped)
        except Exception as exc:
            return self._lost(exts.REGISTERED, data, "registered type", name, dumped, exc)

    def _pickle(self, data: bytes) -> Any:
        if not self._policy.pickles:
            raise Unserializable(
                "a stored value is a pickle, and pickles are read only with pickle_fallback=True. Set it if you trust "
                "whoever can write to the store.",
                path="",
                type="pickle",
            )
        return pickle.loads(data)  # noqa: S301  # the user asked for it


def _hashable(value: Any) -> Any:
    # Elements of a set were never lists: LangGraph's serializer writes tuples so.
    return tuple(map(_hashable, value)) if type(value) is list else value


def _construct(code: int, module: str, cls: Any, payload: Any) -> Any:
    """What LangGraph's serializer makes of its own bytes."""
    if code == exts.SINGLE_ARG:
        if cls is set or cls is frozenset:
            return cls(map(_hashable, payload))
        return cls(payload)
    if code == exts.POS_ARGS:
        if len(payload) == 3 and (module, cls.__name__) == ("langgraph.types", "Send"):
            return cls(payload[0], payload[1], timeout=payload[2])
        return cls(*payload)
    if code == exts.KW_ARGS:
        return cls(**payload)
    try:
        return cls(**payload)
    except Exception:
        build = cls.model_construct if code == exts.PYDANTIC_V2 else cls.construct
        return build(**payload)


def _rebuild(code: int, cls: Any, payload: Any, tail: list[Any], *, checked: bool) -> Any:
    """What Milepost's own bytes say. `checked` is False when something inside was not allowed to become an object."""
    if code == exts.SINGLE_ARG:
        if len(tail) > 1:
            member = cls.__members__.get(tail[1])
            return cls(payload) if member is None else member
        return cls(payload)
    if code == exts.POS_ARGS:
        return cls(*payload)
    if code == exts.KW_ARGS:
        if hasattr(cls, "_fields"):
            return cls._make(payload.values()) if tuple(payload) == cls._fields else cls(**payload)
        return _dataclass(cls, payload, tail[1]) if dataclasses.is_dataclass(cls) else cls(**payload)
    if code == exts.PYDANTIC_V1 or not issubclass(cls, BaseModel):
        return _construct(code, cls.__module__, cls, payload)
    given, private = tail[1:3]
    if given is None:
        return _construct(code, cls.__module__, cls, payload)
    return _model(cls, payload, given, private, checked=checked)


def _dataclass(cls: Any, payload: dict[str, Any], others: dict[str, Any] | None) -> Any:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    same = payload.keys() <= fields.keys() and all(
        name in payload or not (field.init or _has_default(field)) for name, field in fields.items()
    )
    if same and others is not None:
        obj = cls.__new__(cls)
    else:
        # Attributes that were not stored, or other fields than then: the class's own constructor knows about those.
        obj = cls(**{name: value for name, value in payload.items() if name not in fields or fields[name].init})
    for name, value in (*payload.items(), *(others or {}).items()):
        _set(obj, name, value)
    return obj


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _model(
    cls: type[BaseModel], payload: dict[str, Any], given: list[str], private: dict[str, Any] | None, *, checked: bool
) -> BaseModel:
    fields = cls.model_fields
    extra = {name: value for name, value in payload.items() if name not in fields}
    keeps = cls.model_config.get("extra") == "allow"
    if not checked or not fields.keys() <= payload.keys() or (extra and not keeps):
        # The class has changed, or a nested object came back as data: validation decides, as in the official way.
        try:
            return cls(**payload)
        except ValueError:
            return cls.model_validate(payload, by_alias=True, by_name=True)
    state = {name: value for name, value in payload.items() if name in fields}
    obj = cls.__new__(cls)
    _set(obj, "__pydantic_extra__", extra if keeps else None)
    _set(obj, "__pydantic_fields_set__", set(given))
    _set(obj, "__pydantic_private__", private)
    _set(obj, "__dict__", state)
    if private is None and cls.__private_attributes__:
        obj.model_post_init(None)
        _set(obj, "__dict__", state)
        _set(obj, "__pydantic_fields_set__", set(given))
    return obj
