"""The tables: the steps that make them, which of them are missing, and the script that carries these out.

A change of the tables comes as a step "pre", after which the previous release still works, and if need be a step
"post", after which it does not. A release carries out what it finds missing, but leaves the newest "post" to the release
after it: by then nobody runs the one before any more. A step "rls" is for stores that are asked to have row-level security.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from milepost.errors import FormatTooNew, InvalidConfig, Unavailable
from psycopg import sql

from milepost_postgres.queries import Queries, read
from milepost_postgres.request import Step
from milepost_postgres.wire import text

OLDEST: Final = 140000
"""Server versions from 14 on."""
_FILE: Final = re.compile(r"(\d{4})_(pre|post|rls)_(\w+)\.sql")


class Migration(NamedTuple):
    """One file of ``sql/migrations``."""

    number: int
    phase: str
    name: str
    text: str

    @property
    def label(self) -> str:
        return f"{self.number:04}_{self.phase}_{self.name}"


@cache
def migrations(*, rls: bool = False) -> tuple[Migration, ...]:
    """All steps of this release, in the order in which they are carried out; with `rls`, those for row-level security
    too."""
    found: list[Migration] = []
    for file in files("milepost_postgres").joinpath("sql", "migrations").iterdir():
        matched = _FILE.fullmatch(file.name)
        if matched and (rls or matched[2] != "rls"):
            found.append(Migration(int(matched[1]), matched[2], matched[3], read(f"migrations/{file.name}")))
    # Of one change, "pre" comes before what else there is, and that before the next change.
    return tuple(sorted(found, key=lambda step: (step.number, step.phase != "pre")))


def _due(steps: Sequence[Migration]) -> list[Migration]:
    newest = max(step.number for step in steps)
    return [step for step in steps if step.phase != "post" or step.number < newest]


class Schema:
    """The tables that `queries` are for."""

    def __init__(
        self, queries: Queries, *, migrate: bool = True, rls: bool = False, steps: Sequence[Migration] | None = None
    ) -> None:
        self.queries = queries
        self.rls = rls
        """Whether the server is to keep tenants apart, by row-level security."""
        self._migrate = migrate
        self._steps = tuple(migrations(rls=rls) if steps is None else steps)

    @property
    def probe(self) -> Step:
        """Whether anything is there, and then what `check` is to be given."""
        return self.queries["probe"].step({"table": text(self.queries.names.table("step"))})

    @property
    def applied(self) -> Step:
        """What was carried out."""
        return self.queries["applied"].step({})

    def check(self, version: int, server: str, client: str) -> None:
        """Raise `InvalidConfig` for a server or database that cannot hold a store."""
        if version < OLDEST:
            raise InvalidConfig(
                f"the server is PostgreSQL {version // 10000}; Milepost needs {OLDEST // 10000} or newer",
                what="server_version",
                value=str(version),
            )
        for name, encoding in (("server_encoding", server), ("client_encoding", client)):
            if encoding not in ("UTF8", "UNICODE"):
                raise InvalidConfig(
                    f"{name} is {encoding}; Milepost stores ids as text and needs UTF8: create the database with "
                    "ENCODING 'UTF8', and connect with client_encoding=UTF8",
                    what=name,
                    value=encoding,
                )

    def missing(self, applied: Sequence[Sequence[Any]]) -> Step | None:
        """What is to be carried out, or None.

        Raises `FormatTooNew` for tables of a newer release, and `Unavailable` when something is missing and is not
        to be made.
        """
        done = {(number, phase) for number, phase in applied}
        newest = max(step.number for step in self._steps)
        if newer := sorted(number for number, phase in done if number > newest and phase == "post"):
            raise FormatTooNew(
                f"the tables in {self._where} are of a newer release (step {newer[-1]}, this one knows {newest}): "
                "upgrade milepost-postgres",
                found=newer[-1],
                supported=newest,
            )
        due = [step for step in _due(self._steps) if (step.number, step.phase) not in done]
        if not due:
            return None
        if not self._migrate:
            raise Unavailable(
                f"the tables in {self._where} lack {', '.join(step.label for step in due)}, and migrate=false: have "
                f"somebody who may run what milepost_postgres.print_sql({'rls=True' if self.rls else ''}) prints",
                backend="postgres",
                op="set up",
            )
        return Step(self.script(due).encode())

    @property
    def _where(self) -> str:
        return self.queries.names.table("")

    def script(self, steps: Sequence[Migration] | None = None) -> str:
        """One statement that carries out those of the steps that are missing, one process at a time."""
        names, part = self.queries.names, self.queries.part
        due = _due(self._steps) if steps is None else steps
        parts = [
            part(
                "script_step",
                number=str(step.number),
                phase=sql.quote(step.phase),
                name=sql.quote(step.name),
                text=step.text.strip(),
            )
            for step in due
        ]
        return part(
            "script",
            lock=sql.quote(f"milepost {names.table('step')}"),
            schema_name=sql.quote(names.quoted_schema),
            schema=names.quoted_schema,
            steps="\n".join(parts),
        )
