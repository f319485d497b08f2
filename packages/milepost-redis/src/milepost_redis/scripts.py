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
    text = "\n".join(_bare(sources[part]) for part in (*fragments, name)).encode()
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


def _bare(source: str) -> str:
    """Without the lines that are comments: they would be sent, and kept by the server."""
    return "\n".join(line for line in source.splitlines() if line.strip() and not line.lstrip().startswith("--"))
