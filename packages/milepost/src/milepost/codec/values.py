"""The serializer of values: LangGraph's, plus what that one loses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any, Final, cast

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from milepost.codec import exts
from milepost.codec.exts import REGISTRY, Placeholder, Registered, Registry, array_header, register
from milepost.codec.revive import Policy, Renames, Revival, Unknown
from milepost.codec.walk import Level, Walk
from milepost.errors import Corrupt, InvalidConfig, Unserializable

__all__ = ["Placeholder", "Registered", "Serializer", "register"]


_PAIR: Final = b"\x92"
_NIL: Final = b"\xc0"


class Serializer(JsonPlusSerializer):
    """LangGraph's msgpack serializer, exact.

    It reads every byte string that `JsonPlusSerializer` wrote, writes the same bytes for what that one rebuilds
    exactly, and keeps what it loses: big integers, lone surrogates, tuples, odd dict keys, zones and folds, nested
    enums, and so on. Classes are imported by name under LangGraph's rules (``allowed_msgpack_modules``,
    ``LANGGRAPH_STRICT_MSGPACK``); nothing is pickled unless ``pickle_fallback`` is set.

    `types` are stored through functions of the application, see `Registered`; `register` does it for all serializers.
    `unknown` says what becomes of a stored object that cannot be rebuilt: ``"error"`` raises `Unserializable`,
    ``"placeholder"`` gives a `Placeholder`, ``"payload"`` gives its data, as LangGraph does. `official` are the keyword
    arguments of `JsonPlusSerializer`.

    Raises `InvalidConfig` for an unusable `types` or `unknown`.
    """

    family: Final = "milepost"
    """Serializers of one family read each other's bytes."""

    def __init__(self, *, types: Iterable[Registered[Any]] = (), unknown: Unknown = "error", **official: Any) -> None:
        super().__init__(**official)
        if unknown not in ("error", "placeholder", "payload"):
            raise InvalidConfig(
                f"unknown={unknown!r} is none of 'error', 'placeholder' and 'payload'.",
                what="unknown",
                value=repr(unknown)[:200],
            )
        registry = Registry(REGISTRY)
        for entry in types:
            registry.add(entry)
        self._level = Level(registry)
        self._unknown: Unknown = unknown
        self._policy = self._make_policy()

    def _make_policy(self, renamed: Renames | None = None, *, exact: bool = False) -> Policy:
        return Policy(
            self._allowed_msgpack_modules,
            self._unknown,
            self._level.registry,
            pickles=bool(self.pickle_fallback),
            renamed=renamed,
            exact=exact,
        )

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> Serializer:
        """A serializer that also allows these classes, or itself when it does already."""
        clone = cast("Serializer", super().with_msgpack_allowlist(extra_allowlist))
        if clone is not self:
            # A copy of self, which nobody else has seen.
            clone._policy = clone._make_policy(self._policy.renamed, exact=self._policy.exact)  # noqa: SLF001
        return clone

    @property
    def custom(self) -> bool:
        """Whether an ext hook of the user's does the decoding."""
        return self._custom_unpack_ext_hook

    def renaming(self, classes: Renames) -> Serializer:
        """A serializer that reads objects of some classes as those of others: old name -> class, or its name.

        The old class is not looked for, and the new one is allowed by being named here.
        """
        clone = copy.copy(self)
        clone._policy = clone._make_policy(classes, exact=self._policy.exact)  # noqa: SLF001  # (as above)
        return clone

    def exact(self) -> Serializer:
        """A serializer for what is to be stored again: it never gives the data of an object in its place, also where
        LangGraph does, but raises `Unserializable`, or gives a `Placeholder`."""
        clone = copy.copy(self)
        clone._policy = clone._make_policy(self._policy.renamed, exact=True)  # noqa: SLF001  # (as above)
        return clone

    def encode(self, obj: Any) -> bytes:
        """Exactly one msgpack object.

        That of a list is an array header followed by the encoded elements. Raises `Unserializable` with the path to
        what cannot be stored.
        """
        try:
            return self._pack(obj)
        except Unserializable as exc:
            return exts.extension(exts.PICKLE, self._pickle(obj, exc))

    def glance(self, obj: Any) -> bytes:
        """As `encode`, but quicker: a bytearray may look like bytes, and what needs more than one pass raises
        ``TypeError``. For comparing, not for storing."""
        return self._level.glance(obj)

    def _pack(self, obj: Any) -> bytes:
        try:
            return self._level.pack(obj)
        except (TypeError, RecursionError):
            pass  # the fast way gives no reason: the walk finds another way, or says why there is none
        return Walk().pack(obj, self._level)

    def _pickle(self, obj: Any, reason: Unserializable) -> bytes:
        if not self.pickle_fallback:
            raise reason
        try:
            return pickle.dumps(obj)
        except Exception as exc:
            # That it cannot be pickled either is the lesser news.
            raise reason from exc

    def decode(self, data: bytes | memoryview) -> Any:
        """The value that `encode`, or LangGraph's serializer under the type ``msgpack``, made `data` from.

        Raises `Corrupt` when `data` is no such value, and `Unserializable` when the value cannot be rebuilt here.
        """
        revival = Revival(self._policy)
        hook = self._unpack_ext_hook if self._custom_unpack_ext_hook else revival.ext_hook
        # ormsgpack stops after the first object. In an array of two, whatever follows it is not the nil that must.
        framed = b"".join((_PAIR, data, _NIL))
        try:
            value, end = ormsgpack.unpackb(framed, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
        except (ValueError, TypeError, RecursionError) as exc:
            # Of a value that is cut off, an extension may have swallowed the nil and stumbled over it.
            if revival.error is not None and _is_whole(data):
                raise revival.error from revival.error.__cause__
            raise Corrupt(f"a stored value is not whole msgpack: {exc}", damage="value") from exc
        if end is not None:
            raise Corrupt("a stored value has something behind its end", damage="value")
        return value

    def decode_each(self, items: list[bytes], texts: dict[int, str] | None = None) -> list[Any] | None:
        """The values of `items`, of which each is one, if they are messages; else, for `decode` as one list, None. The very
        same items, decoded again with the same dict of `texts`, share long texts. Raises as `decode` does."""
        other = self._custom_unpack_ext_hook or type(self).decode is not Serializer.decode
        found = None if other else Revival.read(self._policy, items, texts)
        if found is None:
            return None
        values, others = found
        if others:
            rest = [items[place] for place in others]
            for place, value in zip(others, self.decode(b"".join((array_header(len(rest)), *rest))), strict=True):
                values[place] = value
        return values

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """LangGraph's protocol. Raises `Unserializable`."""
        if obj is None:
            return "null", b""
        if isinstance(obj, bytes):
            return "bytes", obj
        if isinstance(obj, bytearray):
            return "bytearray", bytes(obj)
        try:
            return "msgpack", self._pack(obj)
        except Unserializable as exc:
            return "pickle", self._pickle(obj, exc)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """LangGraph's protocol. Raises `Corrupt` and `Unserializable`."""
        kind, payload = data
        if kind == "msgpack":
            return self.decode(payload)
        if kind in ("null", "bytes", "bytearray", "json") or (kind == "pickle" and self.pickle_fallback):
            try:
                return super().loads_typed(data)
            except ValueError as exc:
                raise Corrupt(f"a stored value of type {kind!r} cannot be read: {exc}", damage="value") from exc
        advice = (
            "Read it with pickle_fallback=True, if you trust whoever can write to the store"
            if kind == "pickle"
            else "Is a key missing, or was it written with another serializer?"
        )
        raise Unserializable(f"a stored value has the type {kind!r}, which is not read. {advice}.", path="", type=kind)


def _is_whole(data: bytes | memoryview) -> bool:
    try:
        ormsgpack.unpackb(data, ext_hook=lambda _code, _data: None, option=ormsgpack.OPT_NON_STR_KEYS)
    except ValueError:
        return False
    return True
