"""A change, carried through everything that a checkpoint and its pending writes keep."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from milepost.places import COUNTERS
from milepost.schema.changes import Change, NotDeclared
from milepost.schema.image import (
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
from milepost.schema.tasks import Tasks, renamed_questions


def carry(change: Change, image: Image, writes: Sequence[Write]) -> list[Write]:
    """Apply `change` to the checkpoint, and to `writes`, which are returned. Raises `NotDeclared`."""
    tasks = Tasks(image)
    _values(change, image)
    _versions(change, image)
    counters = image.metadata.get(COUNTERS)
    if isinstance(counters, dict):
        image.metadata[COUNTERS] = _keys(change, counters)
    change.amend(image)
    return carry_writes(change, tasks, writes, _where(image))


def carry_writes(change: Change, tasks: Tasks, writes: Sequence[Write], where: str) -> list[Write]:
    """Apply `change` to pending writes alone."""
    carried: list[Write] = []
    found = [(write, moved) for write in writes if (moved := tasks.moved(change, write)) is not None]
    spaces = list(dict.fromkeys((moved.before, moved.after) for _, moved in found if moved.before))
    for write, moved in found:
        updates = list(carry_update(change, write.channel, write.value, where))
        if write.channel not in CONTROL and not updates:
            # LangGraph takes a task without any output for one that has to run.
            updates = [(NO_WRITES, None)]
        for channel, value in updates:
            if channel == INTERRUPT and spaces:
                value = renamed_questions(value, spaces)  # noqa: PLW2901
            carried.append(replace(write, task=moved.task, path=moved.path, channel=channel, value=value))
    return carried


def carry_update(change: Change, channel: str, value: Any, where: str) -> Iterable[tuple[str, Any]]:
    """What one write becomes: to which channels, with which values."""
    if channel == TASKS:
        if not is_send(value):
            return ((channel, value),)
        node = change.node(value.node)
        return () if node is None else ((channel, _send(change, value, node)),)
    if channel == SOURCE:
        return ((channel, change.node(value)),) if isinstance(value, str) else ((channel, value),)
    if channel in CONTROL or channel == NO_WRITES:
        return ((channel, value),)
    if channel.startswith(JOIN) and starts_of(channel) is not None:
        name, node = change.channel(channel), change.node(value) if isinstance(value, str) else value
        return () if name is None or node is None else ((name, node),)
    return change.updates(channel, value, where)


def _where(image: Image) -> str:
    return f"checkpoint {image.id!r} of thread {image.thread!r}"


def _values(change: Change, image: Image) -> None:
    carried: dict[str, Any] = {}
    for channel, value in image.values.items():
        name = change.channel(channel)
        if name is None:
            continue
        new = _value(change, channel, value)
        if name in carried:
            if not name.startswith(("branch:", JOIN)):
                raise NotDeclared(
                    f"{_where(image)} has a value for channel {name!r} already, which {channel!r} was to be renamed to "
                    "(or the other way round): drop or map one of them first"
                )
            if isinstance(new, set) and isinstance(carried[name], set):
                new = new | carried[name]
        carried[name] = new
    image.checkpoint["channel_values"] = carried


def _value(change: Change, channel: str, value: Any) -> Any:
    if channel == START:
        return _inputs(change, value)
    if channel == TASKS and isinstance(value, list):
        # A send to a node that is no more stays at its place: LangGraph passes it over, and the others are known by
        # their number.
        return [_send(change, one, change.node(one.node) or one.node) if is_send(one) else one for one in value]
    if channel.startswith(JOIN) and starts_of(channel) is not None:
        return _members(change, value)
    if type(value).__name__ == "_DeltaSnapshot":
        return type(value)(change.value(channel, value.value))
    return change.value(channel, value)


def _inputs(change: Change, value: Any) -> Any:
    """An update of the state by key."""
    if type(value) is not dict:
        return value
    carried: dict[Any, Any] = {}
    for key, one in value.items():
        name = change.channel(key) if isinstance(key, str) else key
        if name is not None:
            carried[name] = change.update(key, one)
    return carried


def _send(change: Change, send: Any, node: str) -> Any:
    renamed = copy.copy(send)
    renamed.node = node
    renamed.arg = _inputs(change, send.arg)
    return renamed


def _members(change: Change, value: Any) -> Any:
    """The nodes that a join has heard of; in LangGraph's deferred joins with whether it is finished."""
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], bool):
        pair = [_members(change, value[0]), value[1]]
        return tuple(pair) if isinstance(value, tuple) else pair
    if isinstance(value, set | frozenset | list):
        members = (change.node(one) if isinstance(one, str) else one for one in value)
        return type(value)(one for one in members if one is not None)
    return value


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
