"""Opening a Postgres store."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

import psycopg
from milepost.connect import Option, Scheme
from milepost.engines import AsyncPort, BlockingPort, Engines
from milepost.errors import InvalidConfig
from milepost.saver import Saver
from milepost.schema import Schema as StateSchema
from milepost.store import Port, Store
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo, TransactionStatus

from milepost_postgres.borrowed import AsyncOwned, Owned, borrow, borrow_async
from milepost_postgres.driver import AsyncEngine, Engine
from milepost_postgres.pool import AsyncPool, AsyncSource, Pool, Settings, Source
from milepost_postgres.queries import Names, Queries
from milepost_postgres.request import Step
from milepost_postgres.schema import Schema
from milepost_postgres.security import naming
from milepost_postgres.store import PostgresStore, own
from milepost_postgres.trouble import closed

_DEFAULTS: Final = {
    "fallback_application_name": "milepost",
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    # A peer that is gone without a word is noticed within a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
_IDENTIFIER: Final = re.compile(r"[^\0$%{}]+")


class PostgresBackend:
    """A store in tables of a database. `milepost.store.Backend`; made by `open_backend`, or over what an application
    owns by `PostgresSaver.from_pool`."""

    name = "postgres"
    capabilities: frozenset[str] = frozenset({"durable", "shared", "merging", "ledger", "transactions"})

    def __init__(
        self,
        schema: Schema,
        source: Callable[[], Source],
        async_source: Callable[[], AsyncSource],
        *,
        guest: Callable[[], bool] = own,
        tenant: str | None = None,
    ) -> None:
        self.schema = schema
        self.capabilities = self.capabilities | ({"tenants"} if schema.rls else set())
        self._tenant = tenant
        self._source = source
        self._async_source = async_source
        self._guest = guest
        self._engines = Engines(
            lambda: Engine(source(), schema, self._first),
            lambda: AsyncEngine(async_source(), schema, self._first),
            closed,
        )

    def blocking_port(self) -> BlockingPort:
        """What the blocking store awaits. Takes `Request`."""
        return BlockingPort(self._engines.blocking, closed)

    def async_port(self) -> AsyncPort:
        """What the async store awaits. Takes `Request`."""
        return AsyncPort(self._engines.running, closed)

    def blocking(self) -> Store:
        port = self.blocking_port()
        return self._store(port, port.close, guest=self._guest)

    def asynchronous(self) -> Store:
        port = self.async_port()
        return self._store(port, port.close, guest=self._guest)

    def over(self, port: Port) -> Store:
        """The same store behind another port, which gets the requests: for fault injection."""
        return self._store(port, self.close, guest=self._guest)

    def _store(self, port: Port, close: Callable[[], None], *, guest: Callable[[], bool]) -> PostgresStore:
        return PostgresStore(self.schema, port, close, guest=guest, tenant=self._tenant)

    def within(self, tenant: str) -> PostgresBackend:
        """See `milepost.tenants.Fenced`: every transaction names the tenant, for the policies of the tables."""
        return PostgresBackend(self.schema, self._source, self._async_source, guest=self._guest, tenant=tenant)

    @property
    def _first(self) -> tuple[Step, ...]:
        return () if self._tenant is None else (naming(self.schema.queries, self._tenant),)

    def joining(self, connection: object) -> PostgresStore:
        """The store within the transaction of a connection of the application's: see `milepost.callstore.Joins`."""
        if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
            raise InvalidConfig(
                f"{connection!r} is no connection of psycopg: pass the one whose transaction has the effect",
                what="connection",
                value=repr(connection)[:200],
            )
        if connection.pgconn.transaction_status != TransactionStatus.INTRANS:
            raise InvalidConfig(
                "the connection is in no transaction: settle the call after its effect, before the transaction ends",
                what="connection",
            )
        port: BlockingPort | AsyncPort
        if isinstance(connection, psycopg.Connection):
            port = BlockingPort(lambda: Engine(borrow(connection), self.schema, self._first), closed)
        else:
            port = AsyncPort(lambda: AsyncEngine(borrow_async(connection), self.schema, self._first), closed)
        return self._store(port, port.close, guest=lambda: True)

    def joined(self, connection: object) -> bool:
        """Whether that transaction has not ended yet."""
        assert isinstance(connection, psycopg.Connection | psycopg.AsyncConnection)
        return connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def close(self) -> None:
        self._engines.close()

    async def aclose(self) -> None:
        await self._engines.aclose()


class PostgresSaver(Saver):
    """A `milepost.saver.Saver` over a database, with ways to open it that no URL can name."""

    @classmethod
    def from_pool(
        cls,
        source: Owned | None = None,
        async_source: AsyncOwned | None = None,
        *,
        schema: str = "milepost",
        prefix: str = "",
        migrate: bool = True,
        rls: bool = False,
        state_schema: StateSchema | Mapping[str, StateSchema] | None = None,
        **options: Any,
    ) -> PostgresSaver:
        """A saver that works on connections of the application's, and never closes them.

        Args:
            source: a ``psycopg_pool.ConnectionPool`` or a ``psycopg.Connection``, for the blocking methods.
            async_source: an ``AsyncConnectionPool`` or an ``AsyncConnection``, for the async ones.
            schema, prefix, migrate, rls: as for `open_backend`.
            state_schema: the `milepost.Schema` of the graph's state, or a dict from namespaces to such.
            options: the others of `Saver`.

        On a connection that does not commit by itself, or that is in a transaction, everything the saver does is part
        of that transaction and is committed or rolled back with it. That is meant for single operations, such as
        deleting a conversation and its thread together: such a saver stores every value anew, since it cannot know
        whether the one before was committed.

        A method of the flavour that no source was given for raises `InvalidConfig`.
        """
        if source is None and async_source is None:
            raise InvalidConfig("from_pool needs a pool or a connection", what="source", value="None")
        made = PostgresBackend(
            _schema(schema, prefix, migrate=migrate, rls=rls),
            lambda: borrow(source),
            lambda: borrow_async(async_source),
            guest=partial(_joining, source, async_source),
        )
        return cls(made, schema=state_schema, **options)


def _joining(*sources: object) -> bool:
    """Whether one of these is a connection whose transaction is the application's to commit: asked after each call, since a
    connection that commits by itself may be in a transaction now and then."""
    connections = [one for one in sources if isinstance(one, psycopg.Connection | psycopg.AsyncConnection)]
    return any(not one.autocommit or one.pgconn.transaction_status != TransactionStatus.IDLE for one in connections)


def open_backend(
    conninfo: str,
    *,
    schema: str = "milepost",
    prefix: str = "",
    pool: int = 10,
    pool_timeout: float = 30.0,
    prepare: Literal["auto", "always", "never"] = "auto",
    migrate: bool = True,
    rls: bool = False,
    **parameters: Any,
) -> PostgresBackend:
    """Open the store in the database that `conninfo` names (a URL or ``key=value …``, as libpq takes them).

    - `schema`: where the tables are; made by ``setup`` if it is not there.
    - `prefix`: put before the name of each table, to share a schema with other tables.
    - `pool`: how many connections there are at most, for the blocking methods and for each event loop.
    - `pool_timeout`: seconds to wait for a connection when all of them are at work.
    - `prepare`: whether statements are prepared. With "auto" they are, unless a pooler shares the server's sessions.
    - `migrate`: whether ``setup`` may create and change tables; if not, it verifies that they are as they should be.
    - `rls`: whether the server is to keep tenants apart too: ``setup`` then makes policies of row-level security, or
      verifies that they are there, and every transaction of a saver with a tenant says which one it is.
    - `parameters`: further parameters of libpq, such as ``sslmode``.

    Raises `InvalidConfig` for an option that is not usable. Whether the server can be reached shows at the first use.
    """
    if prepare not in ("auto", "always", "never"):
        raise _unusable("prepare", prepare, "'auto', 'always' or 'never'")
    if isinstance(pool, bool) or pool < 1:
        raise _unusable("pool", pool, "a whole number, at least 1")
    try:
        given = conninfo_to_dict(conninfo, **parameters)
        merged = make_conninfo(conninfo, **parameters, **{k: v for k, v in _DEFAULTS.items() if k not in given})
    except psycopg.Error as exc:
        raise InvalidConfig(f"not a usable connection string: {str(exc).strip()}", what="url") from exc
    settings = Settings(merged, pool, prepare, pool_timeout)
    return PostgresBackend(
        _schema(schema, prefix, migrate=migrate, rls=rls), lambda: Pool(settings), lambda: AsyncPool(settings)
    )


def print_sql(schema: str = "milepost", prefix: str = "", *, rls: bool = False) -> str:
    """The SQL that makes the tables, or brings them up to this release, for somebody else to run; with `rls`, the policies
    too. Safe to repeat."""
    return _schema(schema, prefix, migrate=True, rls=rls).script()


def _schema(schema: str, prefix: str, *, migrate: bool, rls: bool) -> Schema:
    for what, name, longest in (("schema", schema, 63), ("prefix", prefix, 40)):
        if (what == "schema" or name) and (not _IDENTIFIER.fullmatch(name) or len(name.encode()) > longest):
            raise _unusable(what, name, f"a name of at most {longest} bytes, without $ % {{ }}")
    return Schema(Queries(Names(schema, prefix), rls=rls), migrate=migrate, rls=rls)


def _open(url: str, options: Mapping[str, Any]) -> PostgresBackend:
    return open_backend("postgresql:" + (url.partition(":")[2] or "//"), **options)


def _libpq_options() -> dict[str, Option]:
    found = (option.keyword.decode() for option in Conninfo.get_defaults())
    return {name: Option(str, "as libpq has it") for name in found}


SCHEME: Final = Scheme(
    _open,
    "postgresql://user@host/database",
    {
        **_libpq_options(),
        "schema": Option(str, "where the tables are"),
        "prefix": Option(str, "put before the names of the tables"),
        "pool": Option(int, "connections at most, for the blocking methods and for each event loop", at_least=1),
        "pool_timeout": Option(float, "seconds to wait for a connection when all are busy", at_least=0),
        "prepare": Option(str, "whether statements are prepared", choices=("auto", "always", "never")),
        "migrate": Option(bool, "whether setup may create and change tables"),
        "rls": Option(bool, "whether the server is to keep tenants apart, by row-level security"),
    },
)


def _unusable(what: str, value: object, wanted: str) -> InvalidConfig:
    return InvalidConfig(
        f"option {what} of the Postgres store must be {wanted}, not {value!r}", what=what, value=repr(value)[:200]
    )
