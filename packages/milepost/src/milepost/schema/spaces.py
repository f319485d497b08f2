"""Where the checkpoints of a subgraph lie whose node, or what triggers it, has another name now.

LangGraph keeps them in a namespace made of the node's name and its task's id, which is a hash of names. Under the new
names it asks for a namespace that does not exist; what it would have been called before is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from milepost.schema.carry import carry_writes
from milepost.schema.changes import Change, NotDeclared, rename_node
from milepost.schema.image import Image, Write
from milepost.schema.schema import Schema
from milepost.schema.tasks import Tasks, pulled


class _All(Change):
    """Changes of nodes' names, one after the other."""

    def __init__(self, changes: Sequence[Change]) -> None:
        self._changes = changes
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


def backwards(schema: Schema | None) -> tuple[Change, ...]:
    """What leads from the nodes' names of now to each set of names that they had before; first to the latest."""
    renames = schema.node_renames if schema else ()
    back = [rename_node(new, old) for old, new in reversed(renames)]
    return tuple(_All(back[: count + 1]) for count in range(len(back)))


def former_spaces(schema: Schema | None, image: Image, ns: str, former: Sequence[str]) -> Iterator[str]:
    """Namespaces that the subgraph's namespace `ns` may have had before.

    `image` is the checkpoint that made the call, by the names of now, with its own namespace; `former` are namespaces
    that this may have had itself.
    """
    name, _, task = ns.rpartition("|")[2].partition(":")
    tasks = Tasks(image)
    paths = [pulled(name), *tasks.sent_to(name)]
    for change in (_NONE, *backwards(schema)):
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


def respaced(image: Image, ns: str) -> Image:
    """A checkpoint of a subgraph, as of namespace `ns`: its tasks and their questions are named after that."""
    writes = carry_writes(_NONE, Tasks(image, ns), image.writes, "")
    parents = image.metadata.get("parents")
    metadata = dict(image.metadata)
    if isinstance(parents, dict):
        above, now = image.ns.split("|"), ns.split("|")
        renamed = {"|".join(above[:end]): "|".join(now[:end]) for end in range(1, len(above) + 1)}
        metadata["parents"] = {renamed.get(space, space): id for space, id in parents.items()}
    return Image(image.thread, ns, image.id, image.checkpoint, metadata, writes)
