"""Finding and removing what interrupted copies, restorations, deletions and erasures have left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from milepost.errors import Unavailable
from milepost.maintenance import STEP, Amount
from milepost.observe import hushed, log, thread_hash
from milepost.places import ATTACHMENTS
from milepost.store import Drop, Outline, Store
from milepost.upkeep import Asker, Watching

PAGE = 64

LeftoverKind = Literal["thread", "row", "file", "copy", "archive"]


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that was left."""

    kind: LeftoverKind
    """As in `milepost.strays.StrayKind`; or "copy", a thread of which a copy or a restoration ended in the middle; or
    "archive", that of a thread whose erasure did."""
    thread: str
    """Whose it is or was; "" when that is not known any more."""
    name: str = ""
    """Of a file."""
    bytes: int = 0
    removed: bool = False
    error: str = ""
    """Why it stays, and what to do."""

    def facts(self) -> dict[str, Any]:
        """What an event tells."""
        return {"kind": self.kind, "removed": self.removed}


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep found, and removed."""

    dry_run: bool
    leftovers: tuple[Leftover, ...]

    @property
    def bytes(self) -> int:
        """How many were given back."""
        return sum(one.bytes for one in self.leftovers if one.removed)

    @property
    def left(self) -> tuple[Leftover, ...]:
        """What needs somebody to look after it."""
        return tuple(one for one in self.leftovers if one.error)


async def sweep(store: Store, asker: Asker, watch: Watching, *, dry_run: bool) -> Swept:
    """See `milepost.saver.Saver.sweep`."""
    sweeper = _Sweeper(store, asker, watch, dry_run=dry_run)
    await sweeper.strays(remove=False)
    if not dry_run:
        await sweeper.strays(remove=True)
    await sweeper.copies()
    await sweeper.archives()
    return Swept(dry_run, tuple(sweeper.found))


class _Sweeper:
    def __init__(self, store: Store, asker: Asker, watch: Watching, *, dry_run: bool) -> None:
        self.found: list[Leftover] = []
        self._store = store
        self._asker = asker
        self._watch = watch
        self._dry_run = dry_run

    async def strays(self, *, remove: bool) -> None:
        """What the store finds: threads first, and in a second round, which removes them, rows and files."""
        handled = {one.thread for one in self.found} - {""}
        after: tuple[str, ...] | None = None
        while True:
            page = await self._store.strays(after, PAGE, remove=remove)
            for stray in page.found:
                if stray.kind == "thread" and not remove:
                    await self._thread(stray.thread)
                # That of a thread which was told goes with it.
                if stray.kind != "thread" and (remove or self._dry_run) and stray.thread not in handled:
                    self._tell(Leftover(stray.kind, stray.thread, stray.name, stray.bytes, removed=remove))
            if (after := page.cursor) is None:
                return

    async def _thread(self, thread: str) -> None:
        """Remove what is alone, unless somebody is about to complete it: whoever is holds the thread's lease, and what he
        has loaded since it was looked at gives the thread another token."""
        outline = await self._store.outline(thread)
        if outline is None or outline.strays or any(mark.ns != ATTACHMENTS for mark in outline.marks):
            return
        if await self._store.holder(thread) is not None:
            return
        if not self._dry_run:
            token = outline.token
            for step in _steps(outline):
                if (left := await self._store.drop(thread, step, token)) is None:
                    return
                if not (token := left):
                    break
        self._tell(Leftover("thread", thread, bytes=Amount.of(outline).bytes, removed=not self._dry_run))

    async def copies(self) -> None:
        """Threads that were not filled to the end. They stay: somebody may have gone on with one."""
        after: tuple[str, ...] | None = None
        while True:
            page = await self._store.threads(after, PAGE)
            for row in page.rows:
                if row.lease.filling and not row.leased:
                    why = "a copy or a restoration ended in the middle: repeat it, or erase the thread"
                    self._tell(Leftover("copy", row.thread, bytes=row.bytes, error=why))
            if (after := page.cursor) is None:
                return

    async def archives(self) -> None:
        """Erasures that did not come to the archive. Where there is something of the thread, it may be somebody new."""
        for thread in tuple(await self._asker.ask("unfinished", "") or ()):
            if await self._store.outline(thread) is not None:
                why = "its erasure ended in the middle, and there is something of the thread: erase it again"
                self._tell(Leftover("archive", thread, error=why))
            elif self._dry_run:
                self._tell(Leftover("archive", thread))
            else:
                await self._erase(thread)

    async def _erase(self, thread: str) -> None:
        try:
            with self._asker.hooks.erasing(thread):
                await self._asker.erase(thread)
        except Unavailable:
            raise
        except Exception as exc:
            why = f"{type(exc).__name__}: {exc}"
            log.warning(
                "the archive of erased thread %s could not be removed: %s", thread_hash(thread), hushed(why, thread)
            )
            self._tell(Leftover("archive", thread, error=why))
        else:
            self._tell(Leftover("archive", thread, removed=True))

    def _tell(self, one: Leftover) -> None:
        self.found.append(one)
        with self._watch("sweep", one.thread) as event:
            if event is not None:
                event.bytes, event.facts = one.bytes, one.facts()


def _steps(outline: Outline) -> Iterator[Drop]:
    """Steps of a bounded size that remove all of a thread. With the last of its checkpoints its packs go."""
    places = [(mark.ns, mark.id) for mark in outline.marks]
    for at in range(0, len(places), STEP):
        yield Drop(tuple(places[at : at + STEP]))
    for at in range(0, len(outline.packs), STEP):
        yield Drop(packs=outline.packs[at : at + STEP])
