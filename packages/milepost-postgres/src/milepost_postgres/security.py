"""Row-level security: tenants kept apart by the server, whatever statement comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from milepost.errors import InvalidConfig
from milepost.observe import log

from milepost_postgres.queries import TABLES, Names, Queries
from milepost_postgres.request import Step
from milepost_postgres.wire import text, texts

PHASE: Final = "rls"
"""What the steps are called that make the policies."""


def naming(queries: Queries, tenant: str) -> Step:
    """What comes first in each transaction of a tenant. It holds until the transaction ends, so it works behind poolers
    that share sessions, and costs no round trip of its own."""
    return queries["as_tenant"].step({"tenant": text(tenant)})


def secured(applied: Sequence[Sequence[Any]]) -> bool:
    """Whether policies were made, by the steps that were carried out."""
    return any(phase == PHASE for _, phase in applied)


def looking(queries: Queries) -> Step:
    """What `check` is to be given."""
    tables = [queries.names.table(name) for name in TABLES]
    return queries["security"].step({"tables": texts(tables), "thread": text(queries.names.table("thread"))})


def check(names: Names, found: Sequence[Any], tenant: str | None, *, asked: bool) -> None:
    """Raise `InvalidConfig` when policies keep this store from what it is to see, or do not keep others from it.

    Rows that a policy hides are as good as absent: so that has to be found out before anything is read.
    """
    lacking, active, bound = found
    if asked and lacking:
        raise InvalidConfig(
            f"row-level security was turned off for {', '.join(lacking)} in schema {names.schema!r}: turn it on with "
            f"ALTER TABLE {names.table(lacking[0])} ENABLE ROW LEVEL SECURITY and so on, or connect without rls",
            what="rls",
        )
    if not active:
        if asked and tenant is not None:
            log.warning(
                "row-level security does not hold for the role of tenant %r: it owns the tables, or is exempt. "
                "Connect as a role that is neither.",
                tenant,
            )
        return
    if not asked:
        raise InvalidConfig(
            f"the tables in schema {names.schema!r} have row-level security, and this role sees one tenant's rows at "
            "most: connect with rls=true and the tenant, or, to look after the whole store, as the owner of the tables",
            what="rls",
        )
    if bound is not None and tenant not in (None, bound):
        raise InvalidConfig(
            f"this role is bound to tenant {bound!r}, and sees nothing of {tenant!r}: connect as another role, or have "
            f"the owner change {names.table('tenant_role')}",
            what="tenant",
            value=repr(tenant),
        )
    if bound is None and tenant is None:
        raise InvalidConfig(
            "without a tenant this role sees no rows, by row-level security: connect with tenant=…, or, to look after "
            "the whole store, as the owner of the tables",
            what="tenant",
        )
