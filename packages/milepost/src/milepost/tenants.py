"""Tenants: one store, seen through the names of one tenant's threads.

Under a tenant every thread has, in the store, a name that begins with the tenant's: so no id, filter, listing or copy of
one tenant leads to a thread of another. The one place that knows of it is here; a saver without a tenant sees the store
as it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar, cast

from milepost.callstore import CallAnswer, CallChange, CallPage, CallQuery, CallRow, CallStore, Joined, Joins
from milepost.errors import InvalidConfig, MilepostError
from milepost.fences import Lease
from milepost.places import MARK, check_id
from milepost.store import (
    Backend,
    Batch,
    Chart,
    CheckpointRow,
    Drop,
    Loaded,
    Outline,
    Pack,
    Put,
    Query,
    Span,
    Stats,
    Store,
    ThreadPage,
    WriteRow,
    Wrote,
)
from milepost.strays import StrayPage

T = TypeVar("T")

_LONGEST: Final = 256
_PAGE: Final = 256


def check_tenant(value: object) -> str:
    """A tenant's name. Raises `InvalidConfig` for what is none."""
    text = check_id(value, "tenant") if isinstance(value, str) else ""
    if not text or MARK in text or len(text) > _LONGEST:
        raise InvalidConfig(
            f"tenant is {value!r}: it must be a text of 1 to {_LONGEST} characters without {MARK!r}",
            what="tenant",
            value=repr(value)[:200],
        )
    return text


def full_name(tenant: str, thread: str) -> str:
    """The name that a tenant's thread has in the store."""
    return f"{MARK}{tenant}{MARK}{thread}"


def bare_name(name: str) -> str:
    """The name that the thread `name` of the store has for its tenant; of a thread without one the same."""
    return name.split(MARK, 2)[2] if name.startswith(MARK) and name.count(MARK) > 1 else name


class Fenced(Protocol):
    """What a backend that declares the capability "tenants" also has."""

    def within(self, tenant: str) -> Backend:
        """The same store, asked in the tenant's name: its server, too, keeps what is asked to the tenant's threads."""
        ...


class TenantBackend:
    """`backend`, as one tenant sees it. `milepost.store.Backend`."""

    def __init__(self, backend: Backend, tenant: str) -> None:
        self.tenant = check_tenant(tenant)
        fences = "tenants" in backend.capabilities
        self.backend = cast("Fenced", backend).within(tenant) if fences else backend
        self.name = backend.name
        self.capabilities = backend.capabilities

    def blocking(self) -> Store:
        return TenantStore(self.backend.blocking(), self.tenant)

    def asynchronous(self) -> Store:
        return TenantStore(self.backend.asynchronous(), self.tenant)

    def joining(self, connection: object) -> CallStore:
        """See `milepost.callstore.Joins`."""
        inner = cast("Joins", self.backend).joining(connection)
        return TenantStore(cast("Store", inner), self.tenant)

    def joined(self, connection: object) -> bool:
        """See `milepost.callstore.Joins`."""
        return cast("Joins", self.backend).joined(connection)

    def close(self) -> None:
        self.backend.close()

    async def aclose(self) -> None:
        await self.backend.aclose()


class TenantStore:
    """`milepost.store.Store` and `milepost.callstore.CallStore` over those of a tenant's threads."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._calls = cast("CallStore", store)
        self._prefix = full_name(tenant, "")
        self._shown = repr(self._prefix)[1:-1]

    def _own(self, thread: str) -> bool:
        return thread.startswith(self._prefix)

    def _bare(self, thread: str) -> str:
        return thread[len(self._prefix) :]

    def _said(self, text: str) -> str:
        """What a store says, in the tenant's words."""
        return text.replace(self._shown, "").replace(self._prefix, "")

    async def _asked(self, call: Awaitable[T]) -> T:
        """The answer of the store, or its error, in the tenant's words."""
        try:
            return await call
        except MilepostError as exc:
            facts = {key: self._said(fact) if isinstance(fact, str) else fact for key, fact in exc.facts.items()}
            raise type(exc)(self._said(exc.message), **facts) from exc

    def _loaded(self, loaded: Loaded) -> Loaded:
        """Those of the tenant's threads. What a listing over all threads says of damage may be another tenant's."""
        return replace(
            loaded,
            snapshots=tuple(
                one._replace(thread=self._bare(one.thread)) for one in loaded.snapshots if self._own(one.thread)
            ),
            packs={self._bare(thread): packs for thread, packs in loaded.packs.items() if self._own(thread)},
            damage=tuple(map(self._said, loaded.damage)),
        )

    async def setup(self) -> None:
        await self._store.setup()

    async def put(
        self,
        thread: str,
        row: CheckpointRow,
        packs: Sequence[Pack],
        generation: int | None,
        *,
        fence: int | None = None,
        heads: Sequence[str] | None = None,
        merged: Pack | None = None,
    ) -> Put:
        name = self._prefix + thread
        return await self._asked(self._store.put(name, row, packs, generation, fence=fence, heads=heads, merged=merged))

    async def put_writes(
        self,
        thread: str,
        ns: str,
        checkpoint: str,
        rows: Sequence[WriteRow],
        generation: int | None,
        *,
        fence: int | None = None,
    ) -> Wrote:
        name = self._prefix + thread
        return await self._asked(self._store.put_writes(name, ns, checkpoint, rows, generation, fence=fence))

    async def get(self, thread: str, ns: str, id: str | None) -> Loaded | None:
        loaded = await self._asked(self._store.get(self._prefix + thread, ns, id))
        return None if loaded is None else self._loaded(loaded)

    async def page(self, query: Query, after: tuple[str, ...] | None, limit: int, *, items: bool = True) -> Loaded:
        if query.thread is not None:
            named = replace(query, thread=self._prefix + query.thread)
            return self._loaded(await self._asked(self._store.page(named, after, limit, items=items)))
        own = replace(query, prefix=self._prefix + query.prefix)
        loaded = self._loaded(await self._asked(self._store.page(own, after, limit, items=items)))
        return replace(loaded, damage=())

    async def lineage(
        self,
        thread: str,
        ns: str,
        id: str | None,
        channels: Sequence[str] | None,
        after: tuple[str, ...] | None,
        limit: int,
    ) -> Loaded | None:
        loaded = await self._asked(self._store.lineage(self._prefix + thread, ns, id, channels, after, limit))
        return None if loaded is None else self._loaded(loaded)

    async def fetch(self, thread: str, spans: Sequence[Span]) -> Sequence[Pack]:
        return await self._asked(self._store.fetch(self._prefix + thread, spans))

    async def threads(self, after: tuple[str, ...] | None, limit: int, prefix: str = "") -> ThreadPage:
        page = await self._asked(self._store.threads(after, limit, self._prefix + prefix))
        rows = tuple(row._replace(thread=self._bare(row.thread)) for row in page.rows if self._own(row.thread))
        return ThreadPage(rows, page.cursor)

    async def strays(
        self, after: tuple[str, ...] | None, limit: int, prefix: str = "", *, remove: bool = False
    ) -> StrayPage:
        page = await self._asked(self._store.strays(after, limit, self._prefix + prefix, remove=remove))
        found = (one._replace(thread=self._bare(one.thread)) for one in page.found if self._own(one.thread))
        return StrayPage(tuple(found), page.cursor)

    async def chart(self, thread: str) -> Chart | None:
        return await self._asked(self._store.chart(self._prefix + thread))

    async def outline(self, thread: str) -> Outline | None:
        return await self._asked(self._store.outline(self._prefix + thread))

    async def rows(self, thread: str, places: Sequence[tuple[str, str]]) -> Batch:
        return await self._asked(self._store.rows(self._prefix + thread, places))

    async def drop(self, thread: str, drop: Drop, token: str) -> str | None:
        return await self._asked(self._store.drop(self._prefix + thread, drop, token))

    async def rewrite(self, thread: str, batch: Batch, token: str) -> str | None:
        return await self._asked(self._store.rewrite(self._prefix + thread, self._named(batch), token))

    async def delete_thread(self, thread: str, *, force: bool = False) -> None:
        await self._asked(self._store.delete_thread(self._prefix + thread, force=force))

    async def export(self, thread: str, after: tuple[str, ...] | None, limit: int) -> Batch | None:
        batch = await self._asked(self._store.export(self._prefix + thread, after, limit))
        return None if batch is None else replace(batch, calls=tuple(map(self._record, batch.calls)))

    async def load(self, thread: str, batch: Batch) -> None:
        await self._asked(self._store.load(self._prefix + thread, self._named(batch)))

    async def acquire(self, thread: str, owner: str, ttl: float, over: int | None = None) -> Lease:
        return await self._asked(self._store.acquire(self._prefix + thread, owner, ttl, over))

    async def renew(self, thread: str, owner: str, fence: int, ttl: float) -> Lease:
        return await self._asked(self._store.renew(self._prefix + thread, owner, fence, ttl))

    async def release(self, thread: str, owner: str, error: str | None = None) -> None:
        await self._asked(self._store.release(self._prefix + thread, owner, error))

    async def holder(self, thread: str) -> Lease | None:
        return await self._asked(self._store.holder(self._prefix + thread))

    async def stats(self, thread: str | None) -> Stats:
        if thread is not None:
            return await self._asked(self._store.stats(self._prefix + thread))
        total = Stats(0, 0, 0, 0, 0)
        after: tuple[str, ...] | None = None
        while True:
            page = await self.threads(after, _PAGE)
            for row in page.rows:
                found = await self.stats(row.thread)
                total = Stats(*(sum(pair) for pair in zip(total, found, strict=True)))
            if (after := page.cursor) is None:
                return total

    async def close(self) -> None:
        await self._store.close()

    # The ledger. Under a tenant, the records of global keys are those of a thread without a name.

    async def claim(
        self,
        thread: str,
        change: CallChange,
        *,
        beside: Collection[str] = (),
        after: Sequence[str] = (),
        fence: int | None = None,
    ) -> CallAnswer:
        name = self._prefix + thread
        answer = await self._asked(self._calls.claim(name, change, beside=beside, after=after, fence=fence))
        return self._answer(answer)

    async def settle(self, thread: str, change: CallChange, *, fence: int | None = None) -> CallAnswer:
        return self._answer(await self._asked(self._calls.settle(self._prefix + thread, change, fence=fence)))

    async def calls(self, query: CallQuery, after: tuple[str, ...] | None, limit: int) -> CallPage:
        if query.thread is None:
            named = replace(query, prefix=self._prefix + query.prefix)
        else:
            named = replace(query, thread=self._prefix + query.thread)
        page = await self._asked(self._calls.calls(named, after, limit))
        return page._replace(rows=tuple(self._record(row) for row in page.rows if self._own(row.thread)))

    async def transaction(self) -> int:
        """See `milepost.callstore.Joined`."""
        return await self._asked(cast("Joined", self._store).transaction())

    async def committed(self, transaction: int) -> bool:
        """See `milepost.callstore.Joined`."""
        return await self._asked(cast("Joined", self._store).committed(transaction))

    async def forget(self, thread: str, listed: Collection[tuple[str, int]]) -> None:
        await self._asked(self._calls.forget(self._prefix + thread, listed))

    def _answer(self, answer: CallAnswer) -> CallAnswer:
        row = None if answer.row is None else self._record(answer.row)
        return answer._replace(row=row, kin=tuple(map(self._record, answer.kin)))

    def _record(self, row: CallRow) -> CallRow:
        return replace(row, thread=self._bare(row.thread))

    def _named(self, batch: Batch) -> Batch:
        """A batch with the records of calls under the names that they have in the store."""
        calls = tuple(replace(row, thread=self._prefix + row.thread) for row in batch.calls)
        return replace(batch, calls=calls)
