"""Records that nothing can ask for any more: which they are, and how they go."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from milepost.callstore import CALL_PAGE, UNSETTLED, CallQuery
from milepost.codec.values import Placeholder
from milepost.errors import Conflict
from milepost.ledger.core import Core
from milepost.ledger.hands import Hands
from milepost.ledger.record import CallRecord
from milepost.places import ATTACHMENTS, BEFORE, configurable
from milepost.store import Query

_BATCH = 500
"""Records that go in one step."""


class Forgetting:
    """Removal of records, over a core."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def forget(self, hands: Hands, thread: str, age: float, *, dry_run: bool) -> list[CallRecord]:
        """See `milepost.ledger.Ledger.forget`."""
        asked, since = await self._kept(hands, thread)
        store, book = await self._core.store(hands), self._core.book
        gone: list[tuple[int, CallRecord]] = []
        """(revision, record) of each."""
        after: tuple[str, ...] | None = None
        while True:
            page = await store.calls(CallQuery(thread), after, CALL_PAGE)
            for row in page.rows:
                if row.state in UNSETTLED or row.started >= since or page.now - row.updated < age:
                    continue
                info = book.info(row)
                if info.own is not None or info.message is None or not asked.isdisjoint(info.asked_by):
                    continue
                if info.window is not None and page.now - row.started < info.window:
                    continue
                record = book.open(row)
                if record.began < since:
                    gone.append((row.revision, record))
            if (after := page.cursor) is None:
                break
        for at in range(0, 0 if dry_run else len(gone), _BATCH):
            await store.forget(thread, [(record.key, revision) for revision, record in gone[at : at + _BATCH]])
        return [record for _, record in gone]

    async def _kept(self, hands: Hands, thread: str) -> tuple[set[tuple[str, str]], float]:
        """What the checkpoints of a thread, and their pending writes, ask for: (message id, call id); and when the oldest of
        them was put."""
        operations = self._core.saver.operations
        outline = await (await operations.open(hands.side)).outline(thread)
        every = () if outline is None else outline.marks
        marks = [mark for mark in every if mark.ns != ATTACHMENTS and not mark.ns.startswith(BEFORE)]
        unread = {(mark.ns, mark.id) for mark in marks}
        asked: set[tuple[str, str]] = set()
        after: tuple[str, ...] | None = None
        while True:
            found, after = await operations.page(hands.side, Query(thread=thread), None, after, None)
            for one in found:
                unread.discard((configurable(one.config)["checkpoint_ns"], one.checkpoint["id"]))
                asked.update(asked_in([one.checkpoint["channel_values"], one.pending_writes], thread))
            if after is None:
                break
        if unread:
            raise Conflict(
                f"{len(unread)} checkpoints of thread {thread!r} were not read, so that it is not known which calls they "
                "ask for: no record was removed. Verify the thread, or try again.",
                thread=thread,
            )
        return asked, min((mark.at for mark in marks), default=float("inf"))


def asked_in(values: Any, thread: str) -> Iterator[tuple[str, str]]:
    """(message id, call id) of the calls of every AI message in `values`, however deep. Raises `Conflict` for values that
    cannot be looked into."""
    seen: dict[int, object] = {}
    """By id, and kept alive: no other object gets the id of one."""
    ahead = [values]
    while ahead:
        value = ahead.pop()
        if isinstance(value, AIMessage):
            yield from ((value.id or "", call["id"] or "") for call in value.tool_calls)
        elif isinstance(value, str | bytes | int | float | BaseMessage | type | None) or id(value) in seen:
            continue
        elif isinstance(value, Placeholder):
            raise Conflict(
                f"a value of class {value.type} in thread {thread!r} could not be rebuilt, so that it is not known which "
                "calls it asks for: no record was removed. Open the saver where the class can be imported.",
                thread=thread,
            )
        else:
            seen[id(value)] = value
            if isinstance(value, Mapping):
                ahead += value.values()
            elif isinstance(value, list | tuple | set | frozenset | deque):
                ahead += value
            elif getattr(getattr(value, "dtype", None), "hasobject", False):
                ahead.append(value.tolist())  # an array of numpy's, which may not be installed
            else:
                ahead += [getattr(value, name) for name in _fields(value)]


def _fields(value: object) -> list[str]:
    """The names of an object's attributes: of a state that is no dict, a `Send`, or a command."""
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    return [name for name in (*getattr(value, "__dict__", ()), *slots) if hasattr(value, name)]


def _slots(kind: type) -> tuple[str, ...]:
    names = kind.__dict__.get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)
