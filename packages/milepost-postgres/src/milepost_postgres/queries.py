"""The statements of the store: the texts of ``sql``, with tables and parts put in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from psycopg import sql

from milepost_postgres.request import Query

TABLES = ("thread", "checkpoint", "write", "pack", "call", "step", "tenant_role")
_INDEXES = (
    "thread_deleted",
    "thread_tenant",
    "checkpoint_latest",
    "checkpoint_order",
    "checkpoint_start",
    "write_waiting",
    "call_order",
    "call_match",
    "call_alias",
    "call_unsettled",
)

_SECURED = {"ns_start": "c.ns_start", "key_start": "c.key_start"}
"""Parts that are other ones for tables with policies."""

_FILES = ("queries.sql", "listing.sql", "calls.sql", "leases.sql", "upkeep.sql", "strays.sql", "setup.sql")

_SECTION = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_PARAMETER = re.compile(r"%\((\w+)\)s")
_BRACES = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Names:
    """Where the tables are: every name in a statement is qualified, so the search path does not matter."""

    schema: str
    prefix: str = ""

    def table(self, name: str) -> str:
        """A table as it stands in a statement."""
        return sql.Identifier(self.schema, self.prefix + name).as_string(None)

    @property
    def quoted_schema(self) -> str:
        """The schema as it stands in a statement."""
        return sql.Identifier(self.schema).as_string(None)

    def places(self) -> dict[str, str]:
        """What stands for ``{thread}`` and its like. An index is named without the schema: it lies in its table's."""
        indexes = {name: sql.Identifier(self.prefix + name).as_string(None) for name in _INDEXES}
        return {name: self.table(name) for name in TABLES} | indexes


def read(name: str) -> str:
    """The text of a file of the folder ``sql``."""
    return files("milepost_postgres").joinpath("sql", *name.split("/")).read_text("utf-8")


@cache
def _sections() -> tuple[Mapping[str, str], Mapping[str, str]]:
    parts: dict[str, str] = {}
    named: dict[str, str] = {}
    _, *found = _SECTION.split("".join(map(read, _FILES)))
    for kind, name, text in zip(found[::3], found[1::3], found[2::3], strict=True):
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
        (parts if kind == "part" else named)[name] = "\n".join(lines).strip()
    return parts, named


def fill(text: str, places: Mapping[str, str]) -> str:
    """`text` with what its braces name, and what is in braces there. Raises `KeyError` for an unknown name."""
    while "{" in text:
        text = _BRACES.sub(lambda match: places[match[1]], text)
    return text


def _numbered(text: str) -> Query:
    names: dict[str, int] = {}
    numbered = _PARAMETER.sub(lambda match: f"${names.setdefault(match[1], len(names) + 1)}", text)
    return Query(numbered.encode(), tuple(names))


class Queries:
    """Every statement for tables at `names`, ready for its parameters: ``queries["put"].step(…)``. With `rls`, for
    tables that have policies."""

    def __init__(self, names: Names, *, rls: bool = False) -> None:
        parts, named = _sections()
        self.names = names
        self._places = {**parts, **names.places(), **(_SECURED if rls else {})}
        self._named = {name: _numbered(fill(text, self._places)) for name, text in named.items()}
        self._pages: dict[tuple[str, tuple[str, ...]], Query] = {}

    def __getitem__(self, name: str) -> Query:
        return self._named[name]

    def part(self, name: str, /, **more: str) -> str:
        """A part by itself; `more` are further things that it has in braces."""
        return fill(f"{{{name}}}", {**self._places, **more})

    def page(self, conditions: tuple[str, ...], among: str = "listed_of_all") -> Query:
        """The listing of checkpoints that meet some of the parts that are conditions; `among` is the part that says which
        threads' they are."""
        found = self._pages.get((among, conditions))
        if found is None:
            where = " AND ".join(f"{{{name}}}" for name in conditions) or "true"
            text = self.part("page", listed=f"{{{among}}}", conditions=where)
            found = self._pages[among, conditions] = _numbered(text)
        return found
