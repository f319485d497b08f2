"""Tables that a DBA has partitioned by thread, as the documentation says."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import milepost_postgres
import psycopg
import subjects
from milepost.testing import servers
from milepost.testing.suite import CallsOnce, Copies, Deletion, DeltaHistory, Leases, Listing, Once, Prune, Writes

TABLES = ("checkpoint", "write", "pack", "call")
PARTS = 4


def partitioned(script: str, schema: str) -> str:
    """The printed script with the tables of what threads hold in parts."""
    for table in TABLES:
        name = f'"{schema}"."{table}"'
        before, mark, rest = script.partition(f"CREATE TABLE {name} (")
        columns, end, after = rest.partition("\n);\n")
        assert mark
        assert end
        parts = "".join(
            f'CREATE TABLE "{schema}"."{table}_{number}" PARTITION OF {name}\n'
            f"    FOR VALUES WITH (MODULUS {PARTS}, REMAINDER {number});\n"
            for number in range(PARTS)
        )
        script = f"{before}{mark}{columns}\n) PARTITION BY HASH (thread);\n{parts}{after}"
    return script


class Partitioned(subjects.Postgres):
    """The Postgres store over partitions."""

    _schemas: ClassVar[servers.Names] = servers.Names("parted")

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        with psycopg.connect(self._base, autocommit=True) as connection:
            # As anybody may do: it is no error to run it twice.
            connection.execute(partitioned(milepost_postgres.print_sql(schema=self._schema), self._schema).encode())
            found = connection.execute(
                "SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhparent WHERE relnamespace = %s::regnamespace"
                " AND relkind = 'p'",
                [self._schema],
            ).fetchone()
            assert found == (PARTS * len(TABLES),)


class TestPartitioned(Writes, Listing, Deletion, Once, DeltaHistory, Prune, Copies, Leases, CallsOnce):
    subject = Partitioned
