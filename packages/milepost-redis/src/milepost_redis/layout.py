"""Where the keys of a store are, and how long they live."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from milepost_redis.wire import Tag


@dataclass(frozen=True, slots=True)
class Layout:
    """What the options of a store say about its keys."""

    prefix: str = "milepost"
    ttl: bytes = b""
    """Milliseconds after its last use when a thread expires, or nothing."""
    refreshes: bool = False
    """Whether reading a thread counts as use."""
    exempts: bool = False
    """Whether a thread that waits for somebody does not expire."""
    spread: bool = False
    """Whether the index of threads may lie on another node than a thread."""
    volatile: bool = False
    """Whether it is meant that nothing is kept on a disk."""
    looked: list[str] = field(default_factory=list, compare=False)
    """The versions of the server that were seen."""

    def tag(self, thread: str) -> Tag:
        return _tag(self.prefix, thread)


_tag = lru_cache(maxsize=256)(Tag)
"""A thread that is at work is asked for again and again."""
