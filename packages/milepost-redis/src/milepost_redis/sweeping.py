"""What is left of threads: what to look at, and what it says. For the verb `strays`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from milepost.places import ATTACHMENTS
from milepost.strays import Stray

from milepost_redis import wire
from milepost_redis.request import Command
from milepost_redis.wire import NUL, Tag

_LOOKS: Final = 4
_SPACE: Final = b"n" + ATTACHMENTS.encode() + NUL


def looks(tags: Sequence[Tag]) -> list[Command]:
    """Asks for the head line of each thread, its first and its last checkpoint by namespace, and whether it is there."""
    return [
        Command(words)
        for tag in tags
        for words in (
            (b"HGET", tag.data, b"m"),
            (b"ZRANGEBYLEX", tag.order, b"[n", b"(o", b"LIMIT", b"0", b"1"),
            (b"ZREVRANGEBYLEX", tag.order, b"(o", b"[n", b"LIMIT", b"0", b"1"),
            (b"EXISTS", tag.data, tag.order),
        )
    ]


def strays(names: Sequence[str], replies: Sequence[Any]) -> list[Stray]:
    """What `looks` found of the threads of these names. A "row" is a name that is listed, and of no thread any more."""
    found = (_stray(name, *replies[at * _LOOKS : (at + 1) * _LOOKS]) for at, name in enumerate(names))
    return [one for one in found if one is not None]


def _stray(name: str, line: bytes | None, first: Sequence[bytes], last: Sequence[bytes], there: int) -> Stray | None:
    if line is None:
        return None if there else Stray("row", name, "", 0)
    head = wire.head(line)
    if head.writes or not all(member.startswith(_SPACE) for member in (*first, *last)):
        return None
    return Stray("thread", name, "", int(head.bytes))
