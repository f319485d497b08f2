"""What a store holds that belongs to no thread: what crashed copies and deletions leave, and what deletions leave on purpose
when it counts no more."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

StrayKind = Literal["thread", "row", "file"]
"""What is left.

- "thread": packs, or attachments of compaction, of a thread without any other checkpoint and without pending writes.
- "row", "file": what a server, or a folder, holds of a thread of which nothing counts any more: neither what is stored, nor
  a tombstone, a lease, or a record of a call. Or a file that an interrupted writer was about to put somewhere.
"""


class Stray(NamedTuple):
    """Something that is left."""

    kind: StrayKind
    thread: str
    """Whose it was; "" when that is not known any more."""
    name: str
    """Of a file; "" for the others."""
    bytes: int


class StrayPage(NamedTuple):
    """Some of what is left, and where the next page begins, or None."""

    found: tuple[Stray, ...]
    cursor: tuple[str, ...] | None


class Strays(Protocol):
    """What a `milepost.store.Store` answers of what is left in it."""

    async def strays(
        self, after: tuple[str, ...] | None, limit: int, prefix: str = "", *, remove: bool = False
    ) -> StrayPage:
        """What is left, among the next `limit` things of a store that may be of a thread, in an order of the store's own.
        With a `prefix`, only of threads whose id begins with it, as in `milepost.store.Query`.

        With `remove`, what is no "thread" is gone when it is told: decided together with its removal, so that whoever
        comes to use it meanwhile keeps it, or makes it anew. Of a "thread" it is the caller's to see whether somebody is
        about to complete it: `drop` removes it.
        """
        ...
