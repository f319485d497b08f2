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
_WORD: Final = re.compile(r"\w+")
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
    used = set(_WORD.findall(rest))
    kept: list[str] = []
    end = len(fragment)
    # From the last function to the first: each is used by what comes after it, or not at all.
    for function in reversed(list(_FUNCTION.finditer(fragment))):
        kept.append(fragment[function.end() : end])
        used.update(_WORD.findall(kept[-1]))
        end = function.start()
        if function[1] in used:
            kept.append(function[0])
            used.update(_WORD.findall(function[0]))
    return fragment[:end] + "".join(reversed(kept))


def _bare(source: str) -> str:
    """Without the lines that are comments: they would be sent, and kept by the server."""
    return "\n".join(line for line in source.splitlines() if line.strip() and not line.lstrip().startswith("--"))
