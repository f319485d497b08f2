"""From a URL, an environment variable or a table to a saver."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast
from urllib.parse import parse_qsl, quote

from milepost.errors import InvalidConfig
from milepost.memory import MemoryBackend
from milepost.saver import GUARDS, Saver
from milepost.store import Backend

ENVIRONMENT = "MILEPOST_URL"
GROUP = "milepost.backends"

# Schemes of this family whose package may not be installed, and what installs it.
_EXTRAS = {
    "file": "files",
    "postgres": "postgres",
    "postgresql": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "redis+cluster": "redis",
    "redis+sentinel": "redis",
    "unix": "redis",
    "valkey": "redis",
}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a backend, as it may stand in a URL's query or be passed by name."""

    kind: type[bool | int | float | str]
    help: str
    choices: tuple[str, ...] = ()
    at_least: float | None = None
    """Least value of a number."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A URL scheme of a backend: what the entry points of group "milepost.backends" refer to."""

    open: Callable[[str, Mapping[str, Any]], Backend]
    """From the URL without its query, as given, and the checked options."""
    example: str
    options: Mapping[str, Option] = field(default_factory=dict)


_SAVER_OPTIONS = {
    "setup": Option(bool, "create or upgrade the store on first use"),
    "guard": Option(str, "what a run's puts are checked against", choices=GUARDS),
    "tenant": Option(str, "see only the threads of this tenant"),
    "memory": Option(int, "bytes of encoded state kept to find out what is stored already", at_least=0),
}


def _open_memory(url: str, options: Mapping[str, Any]) -> Backend:
    del options
    if url.partition(":")[2].strip("/"):
        raise InvalidConfig(f"{url!r}: a memory store has no name; write memory:", what="url", value=repr(url))
    return MemoryBackend()


MEMORY = Scheme(_open_memory, "memory:")


def connect(url: str | Mapping[str, Any] | None = None, /, **options: Any) -> Saver:
    """Open the store that `url` names and return its saver, to be used with ``with`` or closed by ``close``.

    Args:
        url: such as ``file:./state?durability=os`` or ``memory:``; or a table (of a TOML file, say) with a key "url"
            and options beside it; or None for what the environment variable ``MILEPOST_URL`` says.
        options: the options of the scheme, which may stand in the URL's query instead, and those of `Saver`:
            ``serde``, ``keys``, ``schema``, ``memory``, ``setup``, ``guard``, ``tenant``. A ``schema`` that is text is
            not the state's but one of tables, where the backend has such an option.

    Nothing is created or connected to before the first use, but for what the backend needs to check its arguments.

    Raises `InvalidConfig` for a missing URL, an unknown scheme, one whose package is not installed, and unknown,
    repeated or ill-typed options; the message lists what there is.
    """
    if isinstance(url, Mapping):
        table = dict(url)
        url = cast("str | None", table.pop("url", None))
        if both := sorted(table.keys() & options.keys()):
            raise InvalidConfig(f"given in the table and by name: {', '.join(both)}", what=both[0])
        options = {**table, **options}
    if url is None:
        url = os.environ.get(ENVIRONMENT)
    given_url: object = url
    if isinstance(given_url, os.PathLike):
        path = os.fsdecode(cast("os.PathLike[str]", given_url))
        raise InvalidConfig(
            f"{given_url!r} is a path and no URL: write 'file:{quote(path)}' for a folder of files",
            what="url",
            value=repr(given_url)[:200],
        )
    if not isinstance(url, str) or not url:
        raise InvalidConfig(
            f"no URL: pass one, such as {_examples()}, or set {ENVIRONMENT}", what="url", value=repr(url)
        )
    name = url.partition(":")[0].lower() if ":" in url else ""
    scheme = _scheme(name, url)
    base, _, query = url.partition("?")
    passed = {key: options.pop(key) for key in ("serde", "keys", "schema") if key in options}
    if isinstance(passed.get("schema"), str):  # a schema of tables, which a backend may know as an option
        options["schema"] = passed.pop("schema")
    known = {**scheme.options, **_SAVER_OPTIONS}
    given = _from_query(query, known, url)
    for key, value in options.items():
        if key in given:
            raise InvalidConfig(f"option {key!r} is in the URL and given by name: leave one out", what=key)
        given[key] = _typed(key, value, known, url)
    saver_options = {key: given.pop(key) for key in _SAVER_OPTIONS if key in given}
    saver = Saver(scheme.open(base, given), **passed, **saver_options)
    saver.place = _public(base)
    return saver


def _public(base: str) -> str:
    """A URL without its query and without who logs in."""
    scheme, mark, rest = base.partition("://")
    return base if scheme == "file" else scheme + mark + rest.rpartition("@")[2]


_found: dict[str, Scheme] = {}
"""Schemes of packages, by name: what was installed stays so while the process runs."""


def _schemes() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _examples() -> str:
    examples = [cast("Scheme", point.load()).example for point in _schemes().values()]
    return ", ".join(sorted(set(examples))) or "none: no backend is installed"


def _scheme(name: str, url: str) -> Scheme:
    if name == "memory":
        return MEMORY
    # Looking through everything that is installed takes longer than to open most stores.
    found = _found.get(name)
    if found is None and (point := _schemes().get(name)) is not None:
        found = _found[name] = cast("Scheme", point.load())
    if found is not None:
        return found
    if name in _EXTRAS:
        raise InvalidConfig(
            f"{name}: needs a package that is not installed: pip install 'milepost[{_EXTRAS[name]}]'",
            what="url",
            value=repr(name),
        )
    shown = f"unknown scheme {name!r}" if name else f"{url!r} has no scheme"
    raise InvalidConfig(
        f"{shown}; there are {', '.join(sorted({'memory', *_schemes()}))}. Examples: {_examples()}",
        what="url",
        value=repr(name),
    )


def _from_query(query: str, known: Mapping[str, Option], url: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as exc:
        raise InvalidConfig(f"the query of {url!r} is not name=value&…", what="url") from exc
    given: dict[str, Any] = {}
    for key, text in pairs:
        if key in given:
            raise InvalidConfig(f"option {key!r} stands twice in {url!r}", what=key)
        given[key] = _typed(key, _parsed(text, known[key]) if key in known else text, known, url)
    return given


def _parsed(text: str, option: Option) -> object:
    if option.kind is bool:
        return True if text.lower() in _TRUE else False if text.lower() in _FALSE else text
    if option.kind in (int, float):
        try:
            return option.kind(text)
        except ValueError:
            return text
    return text


def _typed(key: str, value: object, known: Mapping[str, Option], url: str) -> object:
    option = known.get(key)
    if option is None:
        listed = ", ".join(f"{name} ({known[name].kind.__name__})" for name in sorted(known))
        raise InvalidConfig(f"unknown option {key!r} for {url!r}; there are {listed}", what=key, value=repr(value))
    right = isinstance(value, option.kind) and (option.kind is bool or not isinstance(value, bool))
    if option.kind is float and isinstance(value, int) and not isinstance(value, bool):
        value, right = float(value), True
    if right and option.choices and value not in option.choices:
        right = False
    if right and option.at_least is not None and cast("float", value) < option.at_least:
        right = False
    if not right:
        wanted = (
            " or ".join(map(repr, option.choices))
            or {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[option.kind]
        )
        if option.at_least is not None:
            wanted += f", at least {option.at_least:g}"
        raise InvalidConfig(
            f"option {key!r} is {value!r}; it must be {wanted} ({option.help})", what=key, value=repr(value)
        )
    return value
