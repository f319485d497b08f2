"""A change, carried through everything that a checkpoint and its pending writes keep."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, cast

from langgraph.checkpoint.serde.types import _DeltaSnapshot

from milepost.places import COUNTERS
from milepost.schema.changes import PLUMBING, Change, NotDeclared
from milepost.schema.image import (
    BRANCH,
    CONTROL,
    INTERRUPT,
    JOIN,
    NO_WRITES,
    SOURCE,
    START,
    TASKS,
    Image,
    Write,
    is_send,
    starts_of,
)
from milepost.schema.tasks import Moved, Tasks, renamed_questions

_NONE: Final = Change()

_NOWHERE: Final = "__end__"


def carry(change: Change, image: Image, writes: Sequence[Write], *, state: bool = True) -> list[Write]:
    """Apply `change` to the checkpoint, and to `writes`, which are returned. Without `state`, a free function is not called,
    and of the state nothing is left. Raises `NotDeclared`."""
    tasks = Tasks(image)
    _keep_channels_apart(change, image, writes)
    _keep_nodes_apart(change, image, writes, tasks)
    complete = _values(change, image)
    _versions(change, image)
    _trigger(change, image, complete)
    counters = image.metadata.get(COUNTERS)
    if isinstance(counters, dict):
        image.metadata[COUNTERS] = _keys(change, counters)
    if state or not change.whole:
        change.amend(image)
    else:
        kept = {name: value for name, value in image.values.items() if name.startswith(PLUMBING)}
        image.checkpoint["channel_values"] = kept
        image.metadata.pop(COUNTERS, None)
    return carry_writes(change, tasks, writes, _where(image), image.gone)


def carry_writes(
    change: Change, tasks: Tasks, writes: Sequence[Write], where: str, gone: list[Write] | None = None
) -> list[Write]:
    """Apply `change` to pending writes alone, and to those in `gone`, which become more by those whose task is no more.
    Raises `NotDeclared`."""
    carried: list[Write] = []
    every = [(write, tasks.moved(change, write)) for write in writes]
    found = [(write, moved) for write, moved in every if moved is not None]
    if gone is not None:
        left = [write for write, moved in every if moved is None and write.idx >= 0]
        gone[:] = [one for write in (*gone, *left) for one in _left(change, write, where)]
    made: dict[str, str] = {}
    for write, moved in found:
        if made.setdefault(moved.task, write.task) != write.task:
            raise NotDeclared(
                f"{where} has pending writes of tasks {made[moved.task]!r} and {write.task!r}, which an upgrade makes one: "
                "finish the thread with the release that it waits in"
            )
    spaces = list(dict.fromkeys((moved.before, moved.after) for _, moved in found if moved.before))
    for write, moved in found:
        updates = list(carry_update(change, write.channel, write.value, where))
        if write.channel not in CONTROL and not updates:
            # LangGraph takes a task without any output for one that has to run.
            updates = [(NO_WRITES, None)]
        for channel, value in updates:
            carried.append(_moved(write, moved, channel, value, spaces))
    return carried


def _left(change: Change, write: Write, where: str) -> list[Write]:
    """What becomes of a write whose task is no more. Nothing, where the change says nothing about it."""
    try:
        updates = carry_update(change, write.channel, write.value, where)
        return [replace(write, channel=channel, value=value) for channel, value in updates]
    except NotDeclared:
        return []


def _moved(write: Write, moved: Moved, channel: str, value: Any, spaces: Sequence[tuple[str, str]]) -> Write:
    """`write` as one of the task `moved`. `spaces` are namespaces of tasks then and now, which questions are named after."""
    if channel == INTERRUPT and spaces:
        value = renamed_questions(value, spaces)
    return replace(write, task=moved.task, path=moved.path, channel=channel, value=value)


def gathered(image: Image, writes: Sequence[Write], names: Sequence[str]) -> list[Write]:
    """`writes` of the tasks of a subgraph, all by the name that its namespace is stored under.

    Releases that call its node differently write to the same checkpoint: one has asked, and the next one was answered.
    For each, the task has another id. `names` are what they call the namespace, the oldest first.
    """
    ways = [(at, Tasks(replace(image, ns=name), image.ns)) for at, name in enumerate(names, 1) if name != image.ns]
    return [_gathered(ways, write) for write in writes]


def _gathered(ways: Iterable[tuple[int, Tasks]], write: Write) -> Write:
    for at, tasks in ways:
        try:
            moved = tasks.moved(_NONE, write)
        except NotDeclared:
            continue
        if moved is not None and moved.before:
            spaces = [(moved.before, moved.after)]
            return replace(_moved(write, moved, write.channel, write.value, spaces), origin=at)
    return write


def carry_update(change: Change, channel: str, value: Any, where: str) -> Iterable[tuple[str, Any]]:
    """What one write becomes: to which channels, with which values."""
    if channel == TASKS:
        if not is_send(value):
            return ((channel, value),)
        node = change.node(value.node)
        return () if node is None else ((channel, _send(change, value, node, where)),)
    if channel == SOURCE:
        return ((channel, change.node(value)),) if isinstance(value, str) else ((channel, value),)
    if channel in CONTROL or channel == NO_WRITES:
        return ((channel, value),)
    if channel.startswith(JOIN) and (join := starts_of(channel)) is not None:
        name, node = change.channel(channel), _member(change, value, join[0])
        return () if name is None or node is None else ((name, None if name.startswith(BRANCH) else node),)
    return change.updates(channel, value, where)


def _where(image: Image) -> str:
    return f"checkpoint {image.id!r} of thread {image.thread!r}"


def _keep_channels_apart(change: Change, image: Image, writes: Iterable[Write]) -> None:
    """Raise `NotDeclared` if two channels that hold something would be one: which of them counts, nothing says."""
    counters = image.metadata.get(COUNTERS)
    entered = image.values.get(START)
    held = (
        *image.values,
        *(counters if isinstance(counters, dict) else ()),
        *(entered if isinstance(entered, Mapping) else ()),
        *(write.channel for write in writes if write.channel not in CONTROL),
    )
    _apart(change, (name for name in held if isinstance(name, str)), _where(image))


def _apart(change: Change, names: Iterable[str], where: str) -> dict[str, str]:
    """The names of now of channels, by those of before."""
    before: dict[str, str] = {}
    for name in dict.fromkeys(names):
        # A branch or a join of two nodes that become one is triggered by either.
        now = None if name.startswith((BRANCH, JOIN)) else change.channel(name)
        if now is not None and before.setdefault(now, name) != name:
            raise NotDeclared(
                f"{where} has something for channel {now!r} already, which {before[now] if name == now else name!r} was "
                "to be renamed to: drop or map one of them first"
            )
    return {name: now for now, name in before.items()}


def _keep_nodes_apart(change: Change, image: Image, writes: Sequence[Write], tasks: Tasks) -> None:
    """Raise `NotDeclared` if two tasks would be one of which either has done something: it would be lost, or done twice.

    Where neither has, one task does for both, as where two edges lead to one node.
    """
    wrote = {node for write in writes if (node := tasks.triggered(write)) is not None}
    waits = {name[len(BRANCH) :] for name in image.values if name.startswith(BRANCH)}
    waits |= {join[1] for name, heard in image.values.items() if (join := starts_of(name)) and _full(join[0], heard)}
    for node in change.nodes:
        now = change.node(node)
        both = {node, now}
        if now not in (None, node) and both <= wrote | waits and both & wrote:
            raise NotDeclared(
                f"{_where(image)} has a task of node {node!r} and one of node {now!r}, which an upgrade makes one, and "
                "they have written or asked something: finish the thread with the release that it waits in"
            )


def _full(starts: Sequence[str], heard: Any) -> bool:
    """Whether a join has heard of all nodes that it waits for."""
    members = heard[0] if isinstance(heard, list | tuple) and len(heard) == 2 else heard
    return isinstance(members, set | frozenset | list) and "+".join(sorted(starts)) == "+".join(sorted(members))


def _values(change: Change, image: Image) -> list[str]:
    """Returns the joins that have heard of all that they wait for, because the others are no more."""
    carried: dict[str, Any] = {}
    complete: list[str] = []
    where = _where(image)
    for channel, value in image.values.items():
        name = change.channel(channel)
        if name is None:
            continue
        new = _value(change, channel, value, where)
        if channel.startswith(JOIN) and name.startswith(BRANCH):
            if _heard(new):
                carried.setdefault(name, _edge(new))
                complete.append(channel)
            continue
        if isinstance(new, set) and isinstance(carried.get(name), set):
            new = new | carried[name]
        carried[name] = new
    image.checkpoint["channel_values"] = carried
    if not any(_runs(name, value) for name, value in carried.items()):
        # LangGraph lets deferred nodes run at the end of a step, and there is none any more.
        edges = {name for name in map(change.channel, complete) if name is not None and _deferred(carried[name])}
        carried.update((name, type(carried[name])((None, True))) for name in edges)
    return complete


def _value(change: Change, channel: str, value: Any, where: str) -> Any:
    if channel == START:
        return _inputs(change, _entered(change, value, where), f"the input of {where}")
    if channel == TASKS and isinstance(value, list):
        # The others are known by their number, so one to a node that is no more stays at its place. LangGraph passes it
        # over there, also when there is a new node with the name of the old one.
        return [_send(change, one, change.node(one.node) or _NOWHERE, where) if is_send(one) else one for one in value]
    if channel.startswith(JOIN) and (join := starts_of(channel)) is not None:
        return _members(change, value, join[0])
    if isinstance(value, _DeltaSnapshot):
        return _DeltaSnapshot(change.value(channel, value.value))
    return change.value(channel, value)


def _inputs(change: Change, value: Any, where: str) -> Any:
    """An update of the state by key."""
    if not isinstance(value, dict):
        return value
    _apart(change, (key for key in value if isinstance(key, str)), where)
    carried: dict[Any, Any] = copy.copy(value)  # of its own class, such as OrderedDict
    carried.clear()
    for key, one in value.items():
        for name, new in change.updates(key, one, where) if isinstance(key, str) else ((key, one),):
            if name in carried:
                raise NotDeclared(
                    f"{where} becomes two values for {name!r} by an upgrade: which one counts, nothing says"
                )
            carried[name] = new
    return carried


def _entered(change: Change, value: Any, where: str) -> Any:
    """The input of a run. LangGraph takes an object for the dict of its fields, so that is what it becomes where the
    change speaks of one of them."""
    _check_class(change, value, f"{where} has an input")
    if not any(_concerns(change, name) for name in _fields(value)):
        return value
    given = getattr(value, "model_fields_set", None)
    if given is None:
        return {name: getattr(value, name) for name in _fields(value)}
    # Of a Pydantic model LangGraph leaves out what is None by default and was not given.
    known = type(value).model_fields
    found = ((name, getattr(value, name)) for name in known)
    return {name: one for name, one in found if one is not None or known[name].default is not None or name in given}


def _send(change: Change, send: Any, node: str, where: str) -> Any:
    renamed = copy.copy(send)
    renamed.node = node
    renamed.arg = carry_argument(change, send.arg, send.node, where)
    return renamed


def carry_argument(change: Change, arg: Any, node: str, where: str) -> Any:
    """Apply `change` to the argument of a Send to `node`. Raises `NotDeclared`."""
    _check_class(change, arg, f"{where} has a Send")
    concerned = None if isinstance(arg, dict) else concerns(change, arg)
    if concerned:
        raise NotDeclared(
            f"{where} has a Send to node {node!r} whose argument is a {type(arg).__qualname__}, and an upgrade "
            f"changes its {', '.join(map(repr, concerned))}: only the keys of a dict are carried over. Finish the thread "
            "with the release that it waits in"
        )
    return _inputs(change, arg, f"the argument of a Send of {where}")


def concerns(change: Change, update: Any) -> Sequence[str]:
    """The keys of an update of the state that `change` speaks of."""
    keys: Iterable[Any] = update if isinstance(update, dict) else _fields(update)
    return [key for key in keys if isinstance(key, str) and _concerns(change, key)]


def _fields(value: Any) -> Sequence[str]:
    """The names of what an object of a state's class holds; none for anything else."""
    if is_dataclass(value):
        return [field.name for field in fields(value)]
    named: Any = getattr(type(value), "model_fields", None) or getattr(type(value), "_fields", ())
    return tuple(named)


def _check_class(change: Change, value: Any, what: str) -> None:
    """Raise `NotDeclared` for an object that was built with the fields of now: a Pydantic model passes over the others."""
    known = _fields(value)
    for old in change.renamed_from:
        if old not in known and (new := change.channel(old)) in known:
            raise NotDeclared(
                f"{what} that is a {type(value).__qualname__}, whose class has a field {new!r} now and none for what was "
                f"stored as {old!r}: finish the thread with the release that it waits in, or keep the class as it was"
            )


def _concerns(change: Change, name: str) -> bool:
    return change.whole or change.channel(name) != name or name in change.maps


def _members(change: Change, value: Any, starts: Sequence[str]) -> Any:
    """The nodes that a join has heard of; in LangGraph's deferred joins with whether it is finished."""
    if _deferred(value):
        pair = [_members(change, value[0], starts), value[1]]
        return tuple(pair) if isinstance(value, tuple) else pair
    if isinstance(value, set | frozenset | list):
        members = (_member(change, one, starts) for one in value)
        return type(value)(one for one in members if one is not None)
    return value


def _member(change: Change, node: Any, starts: Sequence[str]) -> Any:
    """One of them; None for a node that another one takes the place of which the join waits for by itself."""
    now = change.node(node) if isinstance(node, str) else node
    return None if now != node and now in starts else now


def _deferred(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], bool)


def _heard(value: Any) -> bool:
    """Whether a join has heard of any node."""
    return bool(value[0] if _deferred(value) else value)


def _runs(channel: str, value: Any) -> bool:
    """Whether a node runs because of what a channel holds."""
    if _deferred(value) and not value[1]:
        return False
    join = starts_of(channel)
    return (
        channel.startswith(BRANCH)
        or (channel in (START, TASKS) and bool(value))
        or bool(join and _full(join[0], value))
    )


def _edge(value: Any) -> Any:
    """What the channel of an edge holds where a join of one node has heard of that."""
    return type(value)((None, value[1])) if _deferred(value) else None


def _trigger(change: Change, image: Image, joins: Iterable[str]) -> None:
    """Have nodes run that waited at one of `joins` for what is no more. They may have run since by another edge."""
    for join in joins:
        channel, node = change.channel(join), change.node(join.rpartition(":")[2])
        seen = image.seen.get(node or "")
        if isinstance(seen, dict):
            seen.pop(channel, None)
        updated = image.checkpoint.get("updated_channels")
        if isinstance(updated, list) and channel not in updated:
            updated.append(channel)


def _versions(change: Change, image: Image) -> None:
    image.checkpoint["channel_versions"] = _keys(change, image.versions)
    seen: dict[str, Any] = {}
    for node, versions in image.seen.items():
        reserved = node.startswith("__")
        name = node if reserved else change.node(node)
        if name is None or change.restarts(node):
            continue
        carried = _keys(change, versions) if isinstance(versions, dict) else versions
        seen[name] = _newest(seen[name], carried) if isinstance(seen.get(name), dict) else carried
    image.checkpoint["versions_seen"] = seen
    updated = image.checkpoint.get("updated_channels")
    if isinstance(updated, list):
        names = (change.channel(name) for name in cast("list[str]", updated))
        image.checkpoint["updated_channels"] = list(dict.fromkeys(name for name in names if name is not None))


def _keys(change: Change, versions: dict[str, Any]) -> dict[str, Any]:
    carried: dict[str, Any] = {}
    for channel, version in versions.items():
        name = change.channel(channel)
        if name is not None:
            carried = _newest(carried, {name: version})
    return carried


def _newest(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both; the newer version where a name is in both."""
    for name, version in other.items():
        one[name] = version if name not in one else max(one[name], version)
    return one
