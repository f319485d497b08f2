"""Where the checkpoints of a subgraph lie whose node, or what triggers it, has another name now.

LangGraph keeps them in a namespace made of the node's name and its task's id, which is a hash of names. Under the new
names it asks for a namespace that does not exist; what it would have been called before is computed here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from milepost.schema.carry import carry_writes
from milepost.schema.changes import Change, NotDeclared, rename_node
from milepost.schema.image import Image, Write
from milepost.schema.schema import Schema, Where
from milepost.schema.schemas import Schemas, may_lie_elsewhere
from milepost.schema.tasks import Tasks, pulled

Read = Callable[[str], Awaitable[Image | None]]
"""The checkpoint of a namespace that made a call, by the names of now."""


class _All(Change):
    """Changes of nodes' names, one after the other."""

    def __init__(self, changes: Sequence[Change], calls: Sequence[str]) -> None:
        self._changes = changes
        self.calls = tuple(calls)
        self.nodes = tuple(node for change in changes for node in change.nodes)

    def node(self, name: str) -> str | None:
        found: str | None = name
        for change in self._changes:
            found = None if found is None else change.node(found)
        return found

    def channel(self, name: str) -> str | None:
        found: str | None = name
        for change in self._changes:
            found = None if found is None else change.channel(found)
        return found


_NONE = Change()


def backwards(schema: Schema | None, since: Iterable[int] | None = None) -> tuple[Change, ...]:
    """What leads from the nodes' names of now to each set of names that they had since any of the versions `since`, or ever;
    first to the latest."""
    return tuple(_back(schema, renames) for renames in _renamings(schema, since))


def _renamings(schema: Schema | None, since: Iterable[int] | None = None) -> list[Sequence[tuple[str, str]]]:
    """What became of the names of nodes since each of the versions that there were since any of `since`, or ever."""
    if schema is None:
        return []
    chains = schema.node_chains if since is None else map(schema.renames_since, since)
    return [chain[at:] for chain in dict.fromkeys(chains) for at in range(len(chain) - 1, -1, -1)]


def _back(schema: Schema | None, renames: Sequence[tuple[str, str]]) -> Change:
    return _All([rename_node(new, old) for old, new in reversed(renames)], schema.calls if schema else ())


def former_spaces(
    schema: Schema | None, image: Image, ns: str, former: Sequence[str], since: Iterable[int] | None = None
) -> Iterator[str]:
    """Namespaces that the subgraph's namespace `ns` may have had since any of the versions `since`, or ever.

    `image` is the checkpoint that made the call, by the names of now, with its own namespace; `former` are namespaces
    that this may have had itself.
    """
    parent, _, last = ns.rpartition("|")
    name, _, task = last.partition(":")
    tasks = Tasks(image)
    paths = [pulled(name), *tasks.sent_to(name)]
    if parent != image.ns:
        paths = [path for made, path in tasks.called(parent, name) if made == task]
    for change in (_NONE, *backwards(schema, since)):
        for space in (image.ns, *former):
            if change is _NONE and space == image.ns:
                continue
            for path in paths:
                try:
                    moved = Tasks(image, space).moved(change, Write(task, 0, path, "", None))
                except NotDeclared:
                    continue
                if moved is not None and moved.before == ns and moved.after != ns:
                    yield moved.after
                    break


class Names(NamedTuple):
    """What a namespace is called by other releases than this one, likeliest first."""

    former: Sequence[str] = ()
    """Where its checkpoints may lie."""
    every: Sequence[str] = ()
    """Those too of releases that may only have written to what was there already, also of newer ones."""

    def by_age(self, ns: str) -> Sequence[str]:
        """Every name of the namespace, which is `ns` now: the oldest first."""
        return (*reversed(self.every), ns) if self.every else ()


async def names_of(schemas: Schemas, ns: str, read: Read) -> Names:
    """The names of `ns`, which it has now."""
    if not may_lie_elsewhere(schemas, ns):
        return Names()
    parent, _, last = ns.rpartition("|")
    above = await names_of(schemas, parent, read)
    if last.isdigit():
        return Names(*([f"{space}|{last}" for space in spaces] for spaces in above))
    schema = schemas.of(parent)
    if ":" not in last:
        names = [last, *(name for change in backwards(schema) if (name := change.node(last)) is not None)]
        return Names(*(_within((parent, *spaces), names, ns) for spaces in above))
    image = await read(parent)
    if image is None and parent:
        # A task of the functional API has called it, within another task, which has no checkpoints of its own.
        parent = parent.rpartition("|")[0]
        image, schema, above = await read(parent), schemas.of(parent), await names_of(schemas, parent, read)
    if image is None:
        return Names()
    former = tuple(former_spaces(schema, image, ns, above.former, image.versions_of_calls))
    return Names(former, tuple(former_spaces(schema, image, ns, above.every)))


def _within(above: Iterable[str], names: Sequence[str], ns: str) -> Sequence[str]:
    every = [f"{space}|{name}" if space else name for space in above for name in names]
    return [space for space in dict.fromkeys(every) if space != ns]


def present_name(renames: Sequence[tuple[str, str]], name: str) -> str:
    """What a node is called after `renames`, pairs of (old, new)."""
    for old, new in renames:
        name = new if name == old else name
    return name


def present_space(schema: Schema | None, image: Image, space: str, above: str, caller: str | None = None) -> str | None:
    """What the namespace `space` of a subgraph is called now; None if nothing proves that `image` made that call.

    `image` is the checkpoint that made the call, by the names of now, with its own namespace of now; `above` is the
    namespace it had when it did. Where a task of the functional API called it within another task, `caller` is the namespace
    of that one now.
    """
    name = space.rpartition("|")[2].partition(":")[0]
    tasks, then = Tasks(image), Tasks(image, above)
    changes = (_NONE, *backwards(schema, image.versions_of_calls))
    # By names alone, a call of a node that is no more looks like one of a node of this name: so that comes last.
    renamings = _renamings(schema, image.versions_of_calls)
    meant = [(_back(schema, some), present_name(some, name)) for some in reversed(renamings)]
    meant = [(change, now) for change, now in meant if now != name] + [(change, name) for change in changes]
    for change, now in meant:
        if change.node(now) != name:
            continue
        for task, path in tasks.made(now) if caller is None else tasks.called(caller, now):
            try:
                moved = then.moved(change, Write(task, 0, path, "", None))
            except NotDeclared:
                continue
            own = tasks.space(now, task) if caller is None else f"{caller}|{now}:{task}"
            if moved is not None and (moved.after or own) == space:
                return moved.before or own
    return None


def respaced(image: Image, ns: str) -> Image:
    """A checkpoint of a subgraph, as of namespace `ns`: its tasks and their questions are named after that. Raises
    `NotDeclared`."""
    writes = carry_writes(_NONE, Tasks(image, ns), image.writes, str(Where(image.thread, image.ns, image.id)))
    metadata = dict(image.metadata)
    parents = metadata.get("parents")
    if isinstance(parents, dict):
        metadata["parents"] = {upper(ns, depth(space)): id for space, id in parents.items()}
    return replace(image, ns=ns, metadata=metadata, writes=writes)


def depth(ns: str) -> int:
    """How many names a namespace is made of. Those of a subgraph's callers differ in that, whatever they are called."""
    return ns.count("|") + 1 if ns else 0


def upper(ns: str, depth: int) -> str:
    """The namespace of that depth that `ns` is in."""
    return "|".join(ns.split("|")[:depth])
