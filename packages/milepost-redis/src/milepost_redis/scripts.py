"""The Lua scripts, read once. A script may name fragments (files that begin with an underscore) that go before it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Final

_USES: Final = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_FUNCTION: Final = re.compile(r"^local function (\w+)\(.*?^end\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Script:
    """A script as the server gets it, and the digest that the server knows it by."""

    name: str
    text: bytes
    sha: bytes


@cache
def scripts() -> Mapping[str, Script]:
    """All scripts by name."""
    sources = {
        entry.name.removesuffix(".lua"): entry.read_text("utf-8")
        for entry in files("milepost_redis").joinpath("lua").iterdir()
        if entry.name.endswith(".lua")
    }
    return MappingProxyType({name: _script(name, sources) for name in sources if not name.startswith("_")})


def _script(name: str, sources: Mapping[str, str]) -> Script:
    used = _USES.search(sources[name])
    fragments = used[1].split() if used else []
    text = _bare(sources[name])
    # From the last fragment to the first: each may use those before it.
    for fragment in reversed(fragments):
        text = f"{_needed(_bare(sources[fragment]), text)}\n{text}"
    return Script(name, text.encode(), hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode())


def _needed(fragment: str, rest: str) -> str:
    """A fragment without the functions that neither it nor `rest` uses: each would be made anew in every call."""
    while True:
        functions = list(_FUNCTION.finditer(fragment))
        idle = [one for one in functions if not re.search(rf"\b{one[1]}\b", fragment[one.end() :] + rest)]
        if not idle:
            return fragment
        for one in reversed(idle):
            fragment = fragment[: one.start()] + fragment[one.end() :]


def _bare(source: str) -> str:
    """Without the lines that are comments: they would be sent, and kept by the server."""
    return "\n".join(line for line in source.splitlines() if line.strip() and not line.lstrip().startswith("--"))
