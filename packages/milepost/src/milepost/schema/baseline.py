"""The state and nodes of a release on record, so that the next one cannot change them without saying so."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from milepost.errors import InvalidConfig
from milepost.schema.changes import Change
from milepost.schema.schema import Schema, Step, Verdict, classes_of
from milepost.schema.schemas import Schemas
from milepost.schema.shape import Shape, spellings
from milepost.schema.waiting import nodes_of

_FORMAT: Final = 2
"""Format 1 has the types as `Shape.former` puts them in words."""
_END: Final = frozenset({"__start__", "__end__"})
_GONE: Final = "it is gone: threads that wait in it cannot go on"
_SAY: Final = ". Say what became of node {!r}, with rename_node or drop_node in the schema of the namespace it was in"


@dataclass(frozen=True, slots=True)
class Record:
    """One namespace of a release: what a baseline keeps of it."""

    name: str
    version: int | None
    """None where nobody declared a schema."""
    channels: Mapping[str, str]
    """Channel -> type and reducer, in words."""
    nodes: tuple[str, ...] | None = None
    """None where there is no graph and no schema that lists them."""
    former: Mapping[str, str] = field(default_factory=dict)
    """The channels as format 1 puts them in words. A baseline has none."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with one namespace, and the draft of what would be right."""

    ns: str
    problems: tuple[str, ...]
    draft: str = ""

    def __str__(self) -> str:
        where = f"namespace {self.ns!r}" if self.ns else "the root namespace"
        return "\n".join([f"{where}:", *(f"  - {problem}" for problem in self.problems)])


@dataclass(frozen=True, slots=True)
class Release:
    """All namespaces of a release."""

    records: Mapping[str, Record]
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    """Those that were declared. A baseline has none."""
    format: int = _FORMAT

    @classmethod
    def of(
        cls, schemas: Schemas | None, shapes: Mapping[str, tuple[str, Shape, Iterable[str]]] | None = None
    ) -> Release:
        """From the declared schemas, and what is known of the graph: namespace -> name of the state, shape, nodes."""
        declared = schemas.by_ns if schemas else {}
        found = {
            ns: Record(
                schema.name,
                schema.version,
                schema.shape.channels,
                None if schema.nodes is None else tuple(sorted(schema.nodes)),
                schema.shape.former,
            )
            for ns, schema in declared.items()
        }
        for ns, (name, shape, nodes) in (shapes or {}).items():
            schema = declared.get(ns)
            found[ns] = Record(
                schema.name if schema else name,
                schema.version if schema else None,
                shape.channels,
                tuple(sorted(set(nodes) - _END)),
                shape.former,
            )
        return cls(found, declared)

    def dump(self) -> str:
        """JSON, to be kept beside the code."""
        records = {
            ns: {
                "name": one.name,
                "version": one.version,
                "channels": dict(sorted(one.channels.items())),
                **({} if one.nodes is None else {"nodes": list(one.nodes)}),
            }
            for ns, one in sorted(self.records.items())
        }
        return json.dumps({"format": _FORMAT, "namespaces": records}, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, text: str) -> Release:
        """The inverse of `dump`. Raises `InvalidConfig`."""
        try:
            found = cast("dict[str, Any]", json.loads(text))
            if found["format"] > _FORMAT:
                raise InvalidConfig(
                    f"the baseline has format {found['format']}; this release reads up to {_FORMAT}. Upgrade milepost.",
                    what="baseline",
                )
            return cls(
                {
                    ns: Record(
                        one["name"],
                        one["version"],
                        dict(one["channels"]),
                        tuple(one["nodes"]) if "nodes" in one else None,
                    )
                    for ns, one in found["namespaces"].items()
                },
                format=found["format"],
            )
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            if isinstance(exc, InvalidConfig):
                raise
            damage = f"it is no JSON ({exc})" if isinstance(exc, ValueError) else "parts of it are missing or misplaced"
            raise InvalidConfig(
                f"the baseline is none that milepost wrote: {damage}. Take it from the release's history, or remove it and "
                "write the record again",
                what="baseline",
            ) from exc


def compare(before: Release, after: Release) -> list[Finding]:
    """What changed from one release to the next without being declared."""
    findings: list[Finding] = []
    for was, old in before.records.items():
        ns = _present(before, after, was)
        if ns is None:
            continue
        new = after.records.get(ns)
        if new is None:
            findings.append(Finding(was, (_GONE + (_SAY.format(ns.rpartition("|")[2]) if ns else ""),)))
            continue
        if before.format < _FORMAT:
            new = replace(new, channels=new.former)
        schema = after.schemas.get(ns)
        problems = _problems(old, new, schema)
        if problems:
            findings.append(Finding(ns, tuple(problems), _draft(old, new)))
    return findings


def _present(before: Release, after: Release, ns: str) -> str | None:
    """What a namespace is called now, which is made of names of nodes; None where nothing waits in it any more, for one of
    them was dropped."""
    then = now = ""
    for node in ns.split("|") if ns else ():
        name, kept = _followed(node, _steps(before.records.get(then), after.schemas.get(now)))
        then, now = f"{then}|{node}".lstrip("|"), f"{now}|{name}".lstrip("|")
        # A subgraph of the same name takes up what is stored under it.
        if not kept and now not in after.records:
            return None
    return now


def _followed(node: str, steps: Iterable[Step]) -> tuple[str, bool]:
    """What a node is called after `steps`, and whether what waits in it does so afterwards; if not, its last name."""
    for change in (change for step in steps for change in step.changes):
        now = change.node(node)
        if now is None or change.restarts(node):
            return node, False
        node = now
    return node, True


def _steps(old: Record | None, schema: Schema | None) -> Sequence[Step]:
    """What leads from the version on record to that of `schema`; nothing where that is not known."""
    source = None if old is None or schema is None else _source(old, schema)
    return () if source is None or schema is None else schema.path(source) or ()


def _source(old: Record, schema: Schema | None) -> int | None:
    """The version that what a record is of is read as."""
    return old.version if old.version is not None or schema is None else schema.unstamped


def _problems(old: Record, new: Record, schema: Schema | None) -> list[str]:
    problems: list[str] = []
    if schema is not None and (uncovered := sorted(new.channels.keys() - schema.shape.channels.keys())):
        problems.append(
            f"the graph has the channels {_listed(uncovered)}, which the schema does not: give it all states in a tuple"
        )
    if schema is not None and schema.nodes is not None and new.nodes is not None:
        problems += [
            f"{what} {_listed(names)}: they must be the same"
            for what, names in (
                ("the graph has nodes that the schema does not list:", nodes_of(new.nodes) - schema.nodes),
                ("the schema lists nodes that the graph does not have:", schema.nodes - nodes_of(new.nodes)),
            )
            if names
        ]
    if old.name != new.name and (schema is None or old.name not in schema.names):
        problems.append(f"schema {old.name!r} is now called {new.name!r}: declare formerly=[{old.name!r}]")
    changes = _changes(old, new)
    if new.version is None:
        return [*problems, *changes, *(["declare a milepost.Schema, with a version"] if changes else [])]
    if old.version is not None and new.version < old.version:
        return [*problems, f"the version went down from {old.version} to {new.version}"]
    if not changes:
        return problems
    source = _source(old, schema)
    if source is None:
        return [*problems, *changes, "say with unstamped= which version checkpoints from before schemas are of"]
    if new.version == source:
        return [*problems, *changes, f"the version is still {source}: it must go up"]
    steps = schema.path(source) if schema else None
    if steps is None or schema is None:
        return [*problems, *changes, f"no upgrades lead from version {source} to {new.version}"]
    every = [change for step in steps for change in step.changes]
    # A free function says what becomes of the state, and nothing about nodes.
    channels = [] if any(change.whole for change in every) else _undeclared(old, new, Verdict(source, steps), schema)
    return [*problems, *channels, *_astray(old, new, every)]


def _changes(old: Record, new: Record) -> list[str]:
    changes = [f"channel {name!r} vanished" for name in sorted(old.channels.keys() - new.channels.keys())]
    changes += [f"channel {name!r} appeared" for name in sorted(new.channels.keys() - old.channels.keys())]
    changes += [f"channel {name!r} was {old.channels[name]} and is {new.channels[name]}" for name in _retyped(old, new)]
    if old.nodes is not None and new.nodes is not None:
        # A new node disturbs nobody who waits.
        changes += [f"node {name!r} vanished" for name in sorted(set(old.nodes) - set(new.nodes))]
    return changes


def _undeclared(old: Record, new: Record, verdict: Verdict, schema: Schema) -> list[str]:
    """What happened to channels that the changes of the steps do not account for."""
    changes = [change for step in verdict.steps for change in step.changes]
    problems: list[str] = []
    named: dict[str, str] = {}
    for name in old.channels:
        now: str | None = name
        for change in changes:
            now = None if now is None else change.channel(now)
        if now is not None and now not in new.channels:
            problems.append(f"channel {name!r} vanished, and no upgrade renames or drops it")
        elif now is not None:
            named[now] = name
    added = {name for change in changes for name in change.adds}
    problems += [
        f"channel {name!r} appeared, and no upgrade adds it or renames another to it"
        for name in sorted(new.channels.keys() - named.keys() - added)
    ]
    for now, name in named.items():
        words = old.channels[name]
        same = words == new.channels[now] or _same_but_for_classes(words, now, new, verdict, schema)
        if not same and not _mapped(changes, name):
            problems.append(
                f"channel {now!r} was {words} and is {new.channels[now]}, and no upgrade maps it or renames the classes "
                "that differ: where nothing is to be done, map it with map_channel and a function that returns its argument"
            )
    return problems


def _astray(old: Record, new: Record, changes: Iterable[Change]) -> list[str]:
    """Nodes that are no more, and of which no change says where what waits in them goes on."""
    if old.nodes is None or new.nodes is None:
        return []
    problems: list[str] = []
    for name in sorted(old.nodes):
        node: str | None = name
        for change in changes:
            node = None if node is None else change.node(node)
        if node is not None and node not in new.nodes:
            problems.append(
                f"node {name!r} vanished, and no upgrade renames or drops it"
                if node == name
                else f"node {name!r} is said to go on as {node!r}, and the graph has no such node"
            )
    return problems


def _mapped(changes: Sequence[Change], name: str) -> bool:
    """Whether any change maps the values of the channel that was called `name` at first."""
    for change in changes:
        if name in change.maps:
            return True
        name = change.channel(name) or name
    return False


def _same_but_for_classes(words: str, channel: str, new: Record, verdict: Verdict, schema: Schema) -> bool:
    """Whether `channel` has the type that `words` tell of but for classes that other ones have taken the place of."""
    called: dict[tuple[str, str], str] = {}
    for was, now in classes_of(verdict).items():
        for name in spellings(was):
            bare = _without_fields(words, name)
            if bare is not None:
                words = bare
                called[(now.__module__, now.__qualname__) if isinstance(now, type) else now] = name
    if not called:
        return False
    shape = Shape.join([Shape.of(state, called) for state in schema.states])
    return words == (shape.former if new.channels is new.former else shape.channels).get(channel)


def _without_fields(words: str, name: str) -> str | None:
    """`words`, where they name the class `name` without its fields; None where they do not name it."""
    found = re.search(rf"(?<![\w.:'\"]){re.escape(name)}(?![\w.<'\"])", words)
    if found is None:
        return None
    depth, end = 0, found.end()
    while words[end : end + 1] == "(" or depth:
        depth += {"(": 1, ")": -1, "": -depth}.get(words[end : end + 1], 0)
        end += 1
    rest = words[end:]
    return words[: found.end()] + (_without_fields(rest, name) or rest)


def _draft(old: Record, new: Record) -> str:
    """Python text of the upgrade that the difference looks like."""
    vanished = sorted(old.channels.keys() - new.channels.keys())
    appeared = sorted(new.channels.keys() - old.channels.keys())
    lines: list[str] = []
    for name in list(vanished):
        twins = [other for other in appeared if new.channels[other] == old.channels[name]]
        if len(twins) == 1 and sum(old.channels[one] == old.channels[name] for one in vanished) == 1:
            lines.append(f"rename_channel({name!r}, {twins[0]!r}),  # both are {old.channels[name]}: the same key?")
            vanished.remove(name)
            appeared.remove(twins[0])
    lines += [f"drop_channel({name!r}),  # was {old.channels[name]}" for name in vanished]
    for name in appeared:
        twins = [other for other in vanished if old.channels[other] == new.channels[name]]
        renamed = f" Or is it {' or '.join(map(repr, twins))}, renamed?" if twins else ""
        lines.append(
            f"add_channel({name!r}, ...),  # {new.channels[name]}: which value has it where there is none?{renamed}"
        )
    for name in _retyped(old, new):
        was, now = old.channels[name], new.channels[name]
        moved = _moved_classes(was, now)
        lines += [line for line in moved if line not in lines]
        lines += [] if moved else [f"map_channel({name!r}, ...),  # was {was}, is {now}"]
    lines += _node_lines(old.nodes or (), new.nodes or ()) if old.nodes is not None and new.nodes is not None else []
    if not lines:
        return ""
    source = old.version or 1
    target = max(new.version or 0, source + 1)
    body = "\n".join(f"        {line}" for line in lines)
    return f"upgrades=[\n    Step(\n        {source},\n        {target},\n{body}\n    ),\n]\n"


def _moved_classes(was: str, now: str) -> list[str]:
    """Classes that are named in one type and, in another module, in the other one."""
    before, after = (set(re.findall(r"(?<! by )(?<![\w.])([\w.]+):([\w.]+)", words)) for words in (was, now))
    moved = [(one, other) for one in before - after for other in after - before if one[1] == other[1]]
    return [f"rename_class('{':'.join(one)}', '{':'.join(other)}'),  # the same class?" for one, other in sorted(moved)]


def _node_lines(old: Collection[str], new: Collection[str]) -> list[str]:
    vanished, appeared = sorted(set(old) - set(new)), sorted(set(new) - set(old))
    if len(vanished) == len(appeared) == 1:
        return [f"rename_node({vanished[0]!r}, {appeared[0]!r}),  # the same node?"]
    return [f"drop_node({name!r}, to=...),  # where does what waits in it go on?" for name in vanished]


def _retyped(old: Record, new: Record) -> list[str]:
    return sorted(
        name for name in old.channels.keys() & new.channels.keys() if old.channels[name] != new.channels[name]
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names)))
