"""What turns one value into bytes: Milepost's own serializer piece by piece, or a serializer that the user passed in.

Plain bytes are what digests are made of; `finish` makes of them what is stored. They differ only for LangGraph's
`EncryptedSerializer`, whose nonces would make equal items differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import ormsgpack
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from milepost.codec.values import Serializer
from milepost.errors import Corrupt, MilepostError, Unserializable


class Coding(Protocol):
    """How one saver turns values into bytes."""

    typed: bool
    """Items are (type, bytes) pairs of a foreign serializer, not fragments that can be joined."""
    splits: bool
    """Lists and dicts may be cut into their elements. Not so for a serializer we know nothing about: it is used as it
    is, for whole values."""

    bare: bool
    """A scalar's bytes are what msgpack makes of it, and are stored as they are."""

    family: object
    """Equal for codings whose plain bytes mean the same."""
    secret: bool
    """Plain bytes must not be told from what is stored."""

    eyes: Serializer
    """Milepost's own, whatever is stored: values to which it gives the same bytes are the same."""

    def encode(self, value: Any, /) -> bytes: ...

    def finish(self, plain: bytes) -> bytes: ...

    def plain(self, data: bytes) -> bytes:
        """The inverse of `finish`."""
        ...

    def decode(self, data: bytes, /) -> Any: ...

    def decode_each(self, items: list[bytes], texts: dict[int, str] | None, /) -> list[Any] | None:
        """The values of items that have one each; None where that is no quicker than to decode them joined. The same items
        may share texts that are kept in `texts`."""
        ...

    def exact(self) -> Coding:
        """The same, raising `Unserializable` where decoding gives something else than what was encoded."""
        ...


class OwnCoding:
    """Fragments of msgpack: the fragments of a list's elements, joined behind an array header, are the list."""

    typed = False
    splits = True
    secret = False

    def __init__(self, serde: Serializer) -> None:
        self.family: object = serde.family
        self.eyes = serde
        self.bare = type(serde).encode is Serializer.encode and "encode" not in vars(serde)
        self.encode: Callable[[Any], bytes] = serde.encode
        self.decode: Callable[[bytes], Any] = serde.decode
        self.decode_each: Callable[[list[bytes], dict[int, str] | None], list[Any] | None] = serde.decode_each

    def exact(self) -> OwnCoding:
        return OwnCoding(self.eyes.exact())

    def finish(self, plain: bytes) -> bytes:
        return plain

    def plain(self, data: bytes) -> bytes:
        return data


class TypedCoding:
    """The (type, bytes) pairs of any serializer."""

    typed = True
    bare = False

    def __init__(self, serde: SerializerProtocol, eyes: Serializer, probe: Serializer | None = None) -> None:
        self.eyes = eyes
        self._serde = serde
        self._probe = probe
        """Decodes first what LangGraph's serializer is to decode, and raises where that one would give less."""
        self._cipher = serde.cipher if type(serde) is EncryptedSerializer else None
        self.secret = self._cipher is not None
        self._dumps = serde.serde.dumps_typed if type(serde) is EncryptedSerializer else serde.dumps_typed
        self.splits = type(serde) in (EncryptedSerializer, JsonPlusSerializer)
        self.family: object = (type(serde), id(self._cipher) if self._cipher else 0 if self.splits else id(serde))

    def encode(self, value: Any) -> bytes:
        try:
            pair = self._dumps(value)
        except MilepostError:
            raise
        except TypeError as exc:
            raise Unserializable(
                f"{type(self._serde).__name__} cannot store a value of type {_dotted(value)}: {exc}",
                path="",
                type=_dotted(value),
            ) from exc
        return ormsgpack.packb(list(pair))

    def finish(self, plain: bytes) -> bytes:
        if self._cipher is None:
            return plain
        kind, data = ormsgpack.unpackb(plain)
        name, sealed = self._cipher.encrypt(data)
        return ormsgpack.packb([f"{kind}+{name}", sealed])

    def plain(self, data: bytes) -> bytes:
        if self._cipher is None:
            return data
        kind, sealed = ormsgpack.unpackb(data)
        plain_kind, _, name = kind.partition("+")
        return ormsgpack.packb([plain_kind, self._cipher.decrypt(name, sealed)])

    def decode(self, data: bytes) -> Any:
        try:
            kind, payload = cast("list[Any]", ormsgpack.unpackb(data))
        except (ValueError, TypeError) as exc:
            raise Corrupt("a stored value is not a (type, bytes) pair", damage="item") from exc
        if self._probe is not None:
            plain_kind, plain = ormsgpack.unpackb(self.plain(data))
            if plain_kind == "msgpack":
                self._probe.decode(plain)
        return self._serde.loads_typed((kind, payload))

    def decode_each(self, items: list[bytes], texts: dict[int, str] | None) -> list[Any] | None:
        return None

    def exact(self) -> TypedCoding:
        inner: object = self._serde.serde if type(self._serde) is EncryptedSerializer else self._serde
        if isinstance(inner, Serializer):
            return TypedCoding(self._serde, self.eyes, inner.exact())
        if type(inner) is not JsonPlusSerializer or inner._custom_unpack_ext_hook:  # noqa: SLF001  # no public name
            return self
        allowed: Any = inner._allowed_msgpack_modules  # noqa: SLF001  # (as above)
        return TypedCoding(self._serde, self.eyes, Serializer(allowed_msgpack_modules=allowed).exact())


def own_serializer(serde: SerializerProtocol) -> Serializer:
    """What reads values that Milepost's serializer wrote when the saver's serializer is (now) another one."""
    return serde if isinstance(serde, Serializer) else Serializer()


def coding_for(serde: SerializerProtocol, own: Serializer) -> Coding:
    """How a saver with this serializer encodes; `own` is Milepost's."""
    return OwnCoding(serde) if isinstance(serde, Serializer) else TypedCoding(serde, own)


def _dotted(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
