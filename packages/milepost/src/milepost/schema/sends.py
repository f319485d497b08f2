"""The arguments of pending Sends to subgraphs. Such a one is the subgraph's input: what becomes of it is said by the schema
of the subgraph, and never by that of the graph which holds it.

A stamp says which version of the subgraph's schema it was made under. While the graph that holds it is upgraded, it is
sealed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from milepost.schema.carry import carry_argument, concerns
from milepost.schema.changes import NotDeclared
from milepost.schema.image import TASKS, Image, is_send
from milepost.schema.schema import Schema, Step, Where
from milepost.schema.schemas import Schemas


class Sealed:
    """An argument that no change speaks of."""

    __slots__ = ("arg", "stamp")

    def __init__(self, arg: Any, stamp: bytes | None) -> None:
        self.arg = arg
        self.stamp = stamp


def steps_below(
    schemas: Schemas, ns: str, steps: Iterable[Step], below: Mapping[str, bytes], place: Where
) -> list[Step]:
    """What leads from the versions of the subgraphs in `below` to those of now. `steps` are those of the graph `ns`, which
    holds the Sends. Raises `SchemaMismatch`."""
    found: list[Step] = []
    for node, stamp in below.items():
        child = _child(schemas, ns, steps, node)
        found += () if child is None else child.judge(stamp, place).steps
    return found


def sealed(schemas: Schemas, ns: str, value: Any, steps: Iterable[Step], below: Mapping[str, bytes]) -> Any:
    """A Send, or the list of a checkpoint's, with arguments sealed that are for subgraphs. `below` is what the stamp says
    of them."""
    if isinstance(value, list):
        return [sealed(schemas, ns, one, steps, below) for one in value]
    if not is_send(value) or (value.node not in below and _child(schemas, ns, steps, value.node) is None):
        return value
    return _with(value, Sealed(value.arg, below.get(value.node)))


def unseal(schemas: Schemas, ns: str, image: Image, *, stamped: bool) -> bool:
    """Bring what is sealed in `image`, which is of namespace `ns` now, to the versions of now, and tell whether that
    changed the checkpoint's own. `stamped` says whether stamps would tell of Sends. Raises `SchemaMismatch`."""
    place = Where(image.thread, image.ns, image.id)
    sent = image.values.get(TASKS)
    changed = False
    if isinstance(sent, list):
        opened = [_opened(schemas, ns, one, place, stamped) for one in sent]
        changed = any(is_send(one) and one.arg is not _arg(before) for one, before in zip(opened, sent, strict=True))
        image.values[TASKS] = opened
    for write in image.writes:
        if write.channel == TASKS:
            write.value = _opened(schemas, ns, write.value, place, stamped)
    return changed


def _arg(send: Any) -> Any:
    return send.arg.arg if isinstance(send.arg, Sealed) else send.arg


def _opened(schemas: Schemas, ns: str, send: Any, place: Where, stamped: bool) -> Any:
    if not is_send(send) or not isinstance(send.arg, Sealed):
        return send
    child = schemas.below(ns, send.node)
    return _with(send, send.arg.arg if child is None else _upgraded(child, send, place, stamped))


def _upgraded(child: Schema, send: Any, place: Where, stamped: bool) -> Any:
    arg, stamp = send.arg.arg, send.arg.stamp
    what = f"has a Send to node {send.node!r}, a subgraph,"
    if stamp is None and not (stamped and child.unstamped is not None):
        _check_version(child, arg, what, place)
        return arg
    verdict = child.judge(stamp, place)
    try:
        for change in (change for step in verdict.steps for change in step.changes):
            arg = carry_argument(change, arg, send.node, str(place))
    except NotDeclared as exc:
        raise child.refusal(place, verdict.version, f"{what} which cannot be upgraded", str(exc)) from exc
    return arg


def _check_version(child: Schema, arg: Any, what: str, place: Where) -> None:
    """Raise `SchemaMismatch` if it matters which version an argument is of."""
    for step in (*child.upgrades, *child.downgrades):
        for change in step.changes:
            if spoken_of := concerns(change, arg):
                raise child.refusal(
                    place,
                    None,
                    f"{what} and nothing tells which version its argument is of",
                    f"an upgrade speaks of its {', '.join(map(repr, spoken_of))}. Finish the thread with the release that it "
                    "waits in; where both the subgraph and the graph that sends to it have schemas, that is stored",
                )


def _child(schemas: Schemas, ns: str, steps: Iterable[Step], node: str) -> Schema | None:
    """The schema of the subgraph in what is `node` before `steps`."""
    name: str | None = node
    for change in (change for step in steps for change in step.changes):
        name = None if name is None else change.node(name)
    return None if name is None else schemas.below(ns, name)


def _with(send: Any, arg: Any) -> Any:
    changed = copy.copy(send)
    changed.arg = arg
    return changed
