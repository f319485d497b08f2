"""Where the checkpoints of a subgraph lie whose node, or what triggers it, has another name now.

LangGraph keeps them in a namespace made of the node's name and its task's id, which is a hash of names. Under the new
names it asks for a namespace that does not exist; what it would have been called before is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from milepost.schema.carry import carry_writes
from milepost.schema.changes import Change, NotDeclared, rename_node
from milepost.schema.image import Image, Write
from milepost.schema.schema import Schema
from milepost.schema.tasks import Tasks, pulled


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


def backwards(schema: Schema | None, since: int | None = None) -> tuple[Change, ...]:
    """What leads from the nodes' names of now to each set of names that they had before, not before version `since`;
    first to the latest."""
    return tuple(_back(schema, renames) for renames in _renamings(schema, since))


def _renamings(schema: Schema | None, since: int | None = None) -> list[Sequence[tuple[str, str]]]:
    """What became of the names of nodes since each of the versions before, but for those before `since`."""
    if schema is None:
        return []
    chains = schema.node_chains if since is None else (schema.renames_since(since),)
    return [chain[at:] for chain in chains for at in range(len(chain) - 1, -1, -1)]


def _back(schema: Schema | None, renames: Sequence[tuple[str, str]]) -> Change:
    return _All([rename_node(new, old) for old, new in reversed(renames)], schema.calls if schema else ())


def former_spaces(schema: Schema | None, image: Image, ns: str, former: Sequence[str]) -> Iterator[str]:
    """Namespaces that the subgraph's namespace `ns` may have had before.

    `image` is the checkpoint that made the call, by the names of now, with its own namespace; `former` are namespaces
    that this may have had itself.
    """
    parent, _, last = ns.rpartition("|")
    name, _, task = last.partition(":")
    tasks = Tasks(image)
    paths = [pulled(name), *tasks.sent_to(name)]
    if parent != image.ns:
        paths = [path for made, path in tasks.called(parent, name) if made == task]
    for change in (_NONE, *backwards(schema, image.version)):
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
    changes = (_NONE, *backwards(schema, image.version))
    # By names alone, a call of a node that is no more looks like one of a node of this name: so that comes last.
    meant = [(_back(schema, some), present_name(some, name)) for some in reversed(_renamings(schema, image.version))]
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
    """A checkpoint of a subgraph, as of namespace `ns`: its tasks and their questions are named after that."""
    writes = carry_writes(_NONE, Tasks(image, ns), image.writes, "")
    parents = image.metadata.get("parents")
    metadata = dict(image.metadata)
    if isinstance(parents, dict):
        above, now = image.ns.split("|"), ns.split("|")
        renamed = {"|".join(above[:end]): "|".join(now[:end]) for end in range(1, len(above) + 1)}
        metadata["parents"] = {renamed.get(space, space): id for space, id in parents.items()}
    return replace(image, ns=ns, metadata=metadata, writes=writes)
