"""Everything that a saver does, it does for a tenant: also where the server keeps tenants apart."""

from __future__ import annotations

import atexit
import functools
import secrets
from pathlib import Path
from typing import Any, ClassVar, Final

import milepost
import milepost_postgres
import psycopg
import subjects
from milepost.saver import Saver
from milepost.store import Backend, Store
from milepost.testing import Memory, servers
from milepost.testing.faults import Plan
from milepost.testing.suite import (
    Archives,
    CallsInDoubt,
    CallsOfThreads,
    CallsOnce,
    Compacts,
    Copies,
    Deletion,
    DeltaHistory,
    Everything,
    Faults,
    Forks,
    Generations,
    HeadGuard,
    Latest,
    Leases,
    Listing,
    Overview,
    Prune,
    Tenants,
    Writes,
)

ROLE: Final = f"role_{secrets.token_hex(4)}"


class Tenanted(Memory):
    """The memory store, as a tenant sees it."""

    def saver(self, backend: Backend, **options: Any) -> Saver:
        given: dict[str, Any] = {"tenant": "acme", **options}
        return Saver(backend, **given)


class TestTenants(Everything):
    subject = Tenanted


@functools.cache
def pooler() -> str:
    """The URL of a pooler in transaction mode, all of whose sessions are those of one role that owns nothing."""
    url = servers.postgres_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {ROLE} LOGIN".encode())
    bouncer = servers.PgBouncer(url, sessions=2, user=ROLE)
    atexit.register(bouncer.stop)
    return bouncer.url()


class Secured(subjects.Postgres):
    """The Postgres store under row-level security. Its tables are made by their owner, who is nobody that is tested."""

    capabilities: ClassVar[frozenset[str]] = subjects.Postgres.capabilities | {"tenants"}
    _schemas: ClassVar[servers.Names] = servers.Names("secured")
    _made: ClassVar[set[str]] = set()

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._pooler = subjects.required(pooler)
        if self._schema in self._made:
            return
        self._made.add(self._schema)
        with milepost.connect(servers.with_options(self._base, schema=self._schema, rls=1)) as owner:
            owner.setup()
        with psycopg.connect(self._base, autocommit=True) as connection:
            connection.execute(f"GRANT USAGE ON SCHEMA {self._schema} TO {ROLE}".encode())
            granted = f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {self._schema} TO {ROLE}"
            connection.execute(granted.encode())

    def backend(self) -> Backend:
        return milepost_postgres.open_backend(self._pooler, schema=self._schema, pool=4, rls=True)

    def saver(self, backend: Backend, **options: Any) -> Saver:
        given: dict[str, Any] = {"tenant": "acme", **options}
        return Saver(backend, **given)

    def over(self, backend: Backend, plan: Plan) -> Store:
        assert isinstance(backend, milepost_postgres.PostgresBackend)
        return super().over(backend.within("acme"), plan)

    def url(self) -> str:
        return servers.with_options(self._pooler, schema=self._schema, pool=4, rls=1, tenant="acme")


class TestSecured(
    Writes,
    Latest,
    Listing,
    Deletion,
    Leases,
    HeadGuard,
    Tenants,
    Forks,
    DeltaHistory,
    Prune,
    Generations,
    Archives,
    Compacts,
    Copies,
    Overview,
    Faults,
    CallsOnce,
    CallsInDoubt,
    CallsOfThreads,
):
    """The behaviours that between them need every statement there is."""

    subject = Secured


# These are about savers without a tenant, of which there are none here.
for name in (
    "test_nothing_changes_without_a_tenant",
    "test_erasing_a_tenant",
    "test_listings_do_not_look_at_other_tenants",
    "test_what_is_sealed_is_the_tenants",
    # A saver of all tenants sees more: archives of several of them, and packs without a thread.
    "test_tenants_in_one_folder",
    "test_in_the_folder_of_several_tenants",
    "test_packs_alone_are_no_thread",
):
    for tests in (TestTenants, TestSecured):
        setattr(tests, name, None)
