"""The schemas of a graph and of its subgraphs, by namespace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from milepost.errors import InvalidConfig
from milepost.schema.image import TASKS, is_send
from milepost.schema.schema import Schema


class Schemas:
    """The schema of each namespace. The namespaces of a subgraph's calls are that of its node: without task ids."""

    def __init__(self, given: Schema | Mapping[str, Schema]) -> None:
        by_ns: Any = {"": given} if isinstance(given, Schema) else given
        if not isinstance(by_ns, Mapping) or not all(
            isinstance(ns, str) and isinstance(schema, Schema) for ns, schema in by_ns.items()
        ):
            raise InvalidConfig(
                f'schema is {given!r}: it must be a Schema, or a dict from namespaces ("" is the root, otherwise names '
                "of nodes, with | between) to Schemas",
                what="schema",
                value=repr(given)[:200],
            )
        for ns in cast("Mapping[str, Schema]", by_ns):
            if ns and (path_of(ns) != ns or not all(ns.split("|"))):
                raise InvalidConfig(
                    f"schema is for namespace {ns!r}, which is none: it must be names of nodes with | between, without "
                    "ids of tasks or numbers of calls",
                    what="schema",
                    value=repr(ns)[:200],
                )
        self.by_ns: Final[dict[str, Schema]] = dict(cast("Mapping[str, Schema]", by_ns))
        self.nested: Final = any(self.by_ns)
        self.renames_classes: Final = any(schema.renames_classes for schema in self.by_ns.values())
        self.passes_names_on: Final = any(schema.passes_names_on for schema in self.by_ns.values())
        self.renames_nodes: Final = any(schema.node_chains for schema in self.by_ns.values())
        self.lists_nodes: Final = any(schema.nodes is not None for schema in self.by_ns.values())
        self.frees: Final = any(schema.frees for schema in self.by_ns.values())

    def of(self, ns: str) -> Schema | None:
        """The schema of a namespace, or None."""
        return self.by_ns.get(ns) if not ns else self.by_ns.get(path_of(ns))

    def below(self, ns: str, node: str) -> Schema | None:
        """The schema of the subgraph in a node, or None."""
        return self.of(f"{ns}|{node}" if ns else node) if self.nested else None

    def stamp(self, ns: str, values: Mapping[str, Any]) -> bytes | None:
        """What a checkpoint of a namespace, with these values, is stamped with."""
        schema = self.of(ns)
        return None if schema is None else schema.stamps(self._sent(ns, values.get(TASKS)))[0]

    def write_stamp(self, ns: str, writes: Iterable[tuple[str, Any]]) -> bytes | None:
        """What pending writes of one task, channels with values, are stamped with."""
        schema = self.of(ns)
        sent = [value for channel, value in writes if channel == TASKS]
        return None if schema is None else schema.stamps(self._sent(ns, sent))[1]

    def _sent(self, ns: str, sends: Any) -> dict[str, bytes]:
        nodes = {one.node for one in sends if is_send(one)} if self.nested and isinstance(sends, list | tuple) else ()
        found = ((node, self.below(ns, node)) for node in sorted(nodes))
        return {node: schema.write_stamp for node, schema in found if schema is not None}


def may_lie_elsewhere(schemas: Schemas, ns: str) -> bool:
    """Whether a namespace may have had another name before."""
    parts = ns.split("|")
    above = (schemas.of("|".join(parts[:end])) for end in range(len(parts)))
    return bool(ns) and any(schema is not None and schema.node_chains for schema in above)


def path_of(ns: str) -> str:
    """A namespace without task ids and numbers of calls, as LangGraph does it."""
    return "|".join(part.partition(":")[0] for part in ns.split("|") if not part.isdigit())


def call_of(ns: str) -> tuple[str, str]:
    """The namespace in which the call was made that a subgraph's namespace is of, and the node that made it."""
    parent, _, last = ns.rpartition("|")
    if last.isdigit():
        parent, _, last = parent.rpartition("|")
    return parent, last.partition(":")[0]
