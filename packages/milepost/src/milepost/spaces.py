"""Which namespace of a store LangGraph means, where nodes were renamed: see `milepost.schema.spaces`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from milepost.schema import Schemas
from milepost.schema.image import Image
from milepost.schema.schema import may_lie_elsewhere
from milepost.schema.spaces import backwards, former_spaces
from milepost.store import Store

Read = Callable[[str], Awaitable[Image | None]]
"""The checkpoint of a namespace that made a call, by the names of now."""

_KNOWN: Final = 1 << 14


class Spaces:
    """What was found out. LangGraph reads a namespace before it writes there, so that writing only has to look here."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._known: dict[tuple[str, str], str] = {}

    def known(self, thread: str, ns: str) -> str:
        """Where `ns` is kept, as far as is known: there, or under a former name."""
        return self._known.get((thread, ns), ns)

    def settle(self, thread: str, ns: str, space: str) -> str:
        """Remember where `ns` is kept."""
        if len(self._known) >= _KNOWN:
            self._known.clear()
        self._known[thread, ns] = space
        return space

    def forget(self, thread: str) -> None:
        """The thread is gone."""
        for place in [place for place in tuple(self._known) if place[0] == thread]:
            self._known.pop(place, None)

    async def find(self, store: Store, thread: str, ns: str, read: Read) -> str:
        """Where `ns` is kept. Looks into the store, unless that is known."""
        if (thread, ns) in self._known or not may_lie_elsewhere(self._schemas, ns):
            return self.known(thread, ns)
        if await store.get(thread, ns, None) is None:
            for space in await self._former(ns, read):
                if await store.get(thread, space, None) is not None:
                    return self.settle(thread, ns, space)
        return self.settle(thread, ns, ns)

    async def _former(self, ns: str, read: Read) -> list[str]:
        """The names that a namespace may have had, likeliest first."""
        if not may_lie_elsewhere(self._schemas, ns):
            return []
        parent, _, last = ns.rpartition("|")
        above = await self._former(parent, read)
        if last.isdigit():
            return [f"{space}|{last}" for space in above]
        schema = self._schemas.of(parent)
        if ":" not in last:
            names = [last, *(name for change in backwards(schema) if (name := change.node(last)) is not None)]
            every = [f"{space}|{name}" if space else name for space in (parent, *above) for name in names]
            return [space for space in dict.fromkeys(every) if space != ns]
        image = await read(parent)
        return [] if image is None else list(former_spaces(schema, image, ns, above))
