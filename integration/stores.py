"""The stores that the tests of this folder are run over."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import subjects
from milepost.testing import servers, servers_redis

_URLS: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: "memory:",
    "files": lambda folder: f"file:{folder.as_posix()}/store",
    "postgres": lambda folder: servers.with_options(subjects.required(servers.postgres_url), schema=_name(folder)),
    "redis": lambda folder: servers.with_options(
        subjects.required(servers_redis.redis_url), prefix=_name(folder), durability="memory"
    ),
}

STORES = tuple(_URLS)


def url_of(store: str, folder: Path) -> str:
    """The URL of a store of this kind that is the test's own, and empty at first."""
    return _URLS[store](folder)


def _name(folder: Path) -> str:
    """A name for what a folder's tests store on a server."""
    return "at_" + sha256(str(folder).encode()).hexdigest()[:16]


def environment() -> dict[str, str]:
    """That of a child process which imports what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
