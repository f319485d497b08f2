"""Tool classes: what may be done about a call of a tool whose outcome is unknown, declared per tool."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast

from milepost.errors import InvalidConfig

Kind = Literal["readonly", "idempotent", "keyed", "transactional", "unsafe"]
Duration: TypeAlias = float | int | str | timedelta
"""Seconds, or text such as ``"90s"``, ``"5m"``, ``"24h"``, ``"7d"``, or a timedelta."""

Arguments: TypeAlias = Mapping[str, Any]
Compensate: TypeAlias = Callable[..., Any]
"""Undoes one call: ``(call, result)``, where `call` is a `CallRecord`. May be async. Must tolerate that there is
nothing to undo, and may be repeated: hand ``current_call().key`` to the API."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)\s*")


def seconds(value: object, what: str) -> float:
    """A `Duration` in seconds. Raises `InvalidConfig` for what is none, or is not positive."""
    found: float | None = None
    if isinstance(value, timedelta):
        found = value.total_seconds()
    elif isinstance(value, str):
        match = _DURATION.fullmatch(value)
        found = None if match is None else float(match[1]) * _UNITS[match[2]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            found = float(value)
    if found is None or not 0 <= found < float("inf"):
        raise InvalidConfig(
            f"{what} is {value!r}: it must be a number of seconds, a timedelta, or text such as '90s' or '24h'",
            what=what,
            value=repr(value)[:200],
        )
    return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a call whose outcome was unknown. Made by `applied`, `not_applied` and `unknown`."""

    kind: Literal["applied", "not_applied", "unknown"]
    result: Any = None
    note: str = ""


def applied(result: Any = None, *, note: str = "") -> Verdict:
    """The effect took place; `result` is what the tool would have returned."""
    return Verdict("applied", result, note)


def not_applied(*, note: str = "") -> Verdict:
    """The effect definitely did not take place and will not: the call may be performed again."""
    return Verdict("not_applied", note=note)


def unknown(*, note: str = "") -> Verdict:
    """Nobody can tell yet: a person must."""
    return Verdict("unknown", note=note)


Reconcile: TypeAlias = Callable[..., Any]
"""Finds out what became of a call: ``(call) -> Verdict``, where `call` is a `CallRecord`. Reads only. May be async."""


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """How calls of one tool are recorded, and what may be done when the outcome of one is unknown.

    Made by `readonly`, `idempotent`, `keyed`, `transactional` and `unsafe`, which take the fields below by name.
    """

    kind: Kind
    window: float | None = None
    """Seconds for which the API remembers a key, from its first use; None: for ever."""
    key: Callable[[Arguments], str] | None = None
    """Names the logical call by its arguments, in the place of message and call ids."""
    scope: Literal["thread", "global"] = "thread"
    """Whether `key` names one call of a thread, or one of all threads."""
    fingerprint: Callable[[Arguments], Any] | None = None
    """From the arguments to the part of them that two calls must share to be the same."""
    reconcile: Reconcile | None = None
    compensate: Compensate | None = None
    max_duration: float = 15.0
    """Seconds from its last `check` after which a call can no longer act on the world."""
    not_applied: tuple[type[BaseException], ...] = field(default=())
    """Exceptions that mean: the effect did not take place."""

    def __post_init__(self) -> None:
        for what in ("key", "fingerprint", "reconcile", "compensate"):
            value = getattr(self, what)
            if value is not None and not callable(value):
                raise InvalidConfig(f"{what} is {value!r}: it must be a function", what=what, value=repr(value)[:200])
        kinds: object = self.not_applied
        if not isinstance(kinds, tuple) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in cast("tuple[object, ...]", kinds)
        ):
            raise InvalidConfig(
                f"not_applied is {kinds!r}: it must be a tuple of exception types, such as (ConnectionRefusedError,)",
                what="not_applied",
                value=repr(kinds)[:200],
            )

    @property
    def effectful(self) -> bool:
        return self.kind != "readonly"

    @property
    def retries(self) -> bool:
        """Whether the same downstream key may be sent again without knowing what became of it."""
        return self.kind in ("idempotent", "keyed")


def _policy(kind: Kind, options: dict[str, Any]) -> ToolPolicy:
    if "max_duration" in options:
        options["max_duration"] = seconds(options["max_duration"], "max_duration")
    if options.get("window") is not None:
        options["window"] = seconds(options["window"], "window")
    if options.get("scope", "thread") not in ("thread", "global"):
        raise InvalidConfig(f"scope is {options['scope']!r}: 'thread' or 'global'", what="scope")
    if options.get("scope") == "global" and options.get("key") is None:
        raise InvalidConfig("a global scope needs a key function: key=lambda args: …", what="scope")
    return ToolPolicy(kind, **options)


def readonly(**options: Any) -> ToolPolicy:
    """The tool changes nothing: its calls are not recorded, and are repeated freely."""
    return _policy("readonly", options)


def idempotent(**options: Any) -> ToolPolicy:
    """Performing the call twice is as good as once, for ever: it may be retried with the same key."""
    return _policy("idempotent", options)


def keyed(*, window: Duration, **options: Any) -> ToolPolicy:
    """The API takes our key and performs a key once, for `window` after it first saw it."""
    policy = _policy("keyed", {"window": seconds(window, "window"), **options})
    if policy.window is not None and policy.window <= policy.max_duration:
        raise InvalidConfig(
            f"window is {policy.window:g} s and max_duration {policy.max_duration:g} s: no call could ever be retried "
            "within its window. Name how long the API remembers a key, and how long a call takes at most",
            what="window",
            value=repr(window)[:200],
        )
    return policy


def transactional(**options: Any) -> ToolPolicy:
    """The effect is made in the database transaction that also records it."""
    return _policy("transactional", options)


def unsafe(**options: Any) -> ToolPolicy:
    """Nothing is known: an unknown outcome needs `reconcile`, or a person. What undeclared tools are."""
    return _policy("unsafe", options)


class Given:
    """The classes that functions were given where they are performed: the last one of each function, by its name."""

    def __init__(self) -> None:
        self._of: dict[str, dict[object, ToolPolicy]] = {}

    def note(self, tool: str, function: Callable[..., Any], policy: ToolPolicy) -> None:
        """`function`, which is recorded as `tool`, is performed under `policy`."""
        while isinstance(function, functools.partial):
            function = function.func
        # A function within another one is made anew each time, from the same code.
        self._of.setdefault(tool, {})[getattr(function, "__code__", type(function))] = policy

    def of(self, tool: str, *, compensable: bool) -> ToolPolicy | None:
        """The class of a call; None where there is none, or where it may be that of another function of this name."""
        given = list(self._of.get(tool, {}).values())
        alike = [policy for policy in given if (policy.compensate is not None) == compensable] or given
        return alike[0] if len(alike) == 1 else None


Declared: TypeAlias = ToolPolicy | Callable[[], ToolPolicy]
"""A policy, or one of the functions above without its parentheses."""


def declared(tool: str, value: Declared) -> ToolPolicy:
    """The policy that a table of tools gives `tool`. Raises `InvalidConfig` for what is none."""
    if isinstance(value, ToolPolicy):
        return value
    if callable(value):
        try:
            made: object = value()
        except TypeError as exc:
            raise InvalidConfig(f"the class of tool {tool!r} is not usable: {exc}", what="tools", value=tool) from exc
        if isinstance(made, ToolPolicy):
            return made
    raise InvalidConfig(
        f"the class of tool {tool!r} is {value!r}: it must be one of milepost.tools' readonly, idempotent, keyed(…), "
        "transactional or unsafe, and no text",
        what="tools",
        value=tool,
    )
