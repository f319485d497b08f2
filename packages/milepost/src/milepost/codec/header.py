"""Headers: everything about a checkpoint but its values, and where those lie.

The payload is a msgpack array of two: the front, encoded when the put was asked for, and the back ``[writers,
layouts]``, which needs the addresses. A front is one of

    [0, names, versions, channel_versions, versions_seen, checkpoint, metadata]     by Milepost's serializer
    [1, names, (type, bytes) of the checkpoint, (type, bytes) of the metadata]      by a serializer of the user's

where checkpoint is ``[v, ts, updated_channels, rest]`` and metadata ``[source, step, parents, rest]``, each of these
nil when it is not what LangGraph makes, and then, if there is one, in the dict `rest`. Where the saver has a schema, its
stamp follows as one more element, of bytes that mean nothing here.

`names` is a table of channel names and `versions` one of version labels, since both recur; LangGraph's 50 character
labels are kept as a number and a fraction where that gives back the very same text.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ormsgpack
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata
from langgraph.checkpoint.serde.base import SerializerProtocol

from milepost.codec.envelope import Vault, unwrap, wrap
from milepost.codec.exts import TUPLE, array_header
from milepost.codec.kinds import RAW
from milepost.codec.layout import INLINES, Layout, from_wire, to_wire
from milepost.codec.pack import COMPRESS_OVER
from milepost.codec.values import Serializer
from milepost.errors import Corrupt, Unserializable

_compiled: Callable[[dict[str, int], object, object], tuple[list[Any], list[int], dict[str, list[int]]] | None] | None
_lying: Callable[[bytes], tuple[Sequence[str], Sequence[int], Sequence[Any]] | None] | None
try:
    from milepost_speedups import lying as _lying
    from milepost_speedups import numbered as _compiled
except ImportError:
    _compiled = _lying = None

_OWN, _FOREIGN = 0, 1
_TEXT = frozenset({str})
_LABELS = frozenset({str, int, float})
_MADE = (("v", int), ("ts", str))
_TOLD = (("source", str), ("step", int), ("parents", dict))
"""How what LangGraph makes of a checkpoint and of its metadata begins."""


@dataclass(slots=True)
class Header:
    """A decoded header. `checkpoint` has every key but ``channel_values``."""

    checkpoint: dict[str, Any]
    metadata: dict[str, Any]
    layouts: dict[str, Layout]
    stamp: bytes | None = None
    """Of the schema it was stored under."""


def _about(thread: str, ns: str, id: str) -> bytes:
    return b"header\0" + f"{thread}\0{ns}\0{id}".encode("utf-8", "surrogatepass")


def front(
    id: str,
    channels: Sequence[str],
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    serde: SerializerProtocol,
    stamp: bytes | None = None,
) -> bytes:
    """Encode what is known when a put is asked for: `channels` are those with a value. Raises `Unserializable`."""
    body: dict[str, Any] = dict(checkpoint)
    body.pop("channel_values", None)
    names = list(channels)
    if not isinstance(serde, Serializer):
        pairs = [list(serde.dumps_typed(body)), list(serde.dumps_typed(dict(metadata)))]
        return ormsgpack.packb([_FOREIGN, names, *pairs, *(() if stamp is None else (stamp,))])
    if body["id"] == id:
        del body["id"]  # the row has it
    numbers = dict(zip(names, range(len(names)), strict=True))
    tables = _tables(numbers, body)
    updated = body.get("updated_channels")
    touched: list[int] | None = None
    if type(updated) is list and _TEXT.issuperset(map(type, updated)) and numbers.keys() >= set(updated):
        touched = [numbers[name] for name in updated]
        del body["updated_channels"]
    facts: dict[str, Any] = dict(metadata)
    return serde.encode(
        [
            _OWN,
            list(numbers),
            *tables,
            [*_taken(body, _MADE), touched, body],
            [*_taken(facts, _TOLD), facts],
            *(() if stamp is None else (stamp,)),
        ]
    )


def _taken(source: dict[str, Any], kinds: Sequence[tuple[str, type]]) -> list[Any]:
    """The values of these keys, taken out of `source`; nil for one that is not as LangGraph makes it."""
    taken: list[Any] = []
    for key, kind in kinds:
        # Only the first key, so that what is put back in front leaves the order as it was.
        first = next(iter(source), None)
        taken.append(source.pop(key) if first == key and type(source[key]) is kind else None)
    return taken


def _tables(numbers: dict[str, int], body: dict[str, Any]) -> tuple[Any, Any, Any]:
    """(versions, channel_versions, versions_seen) in numbers, or nils if they are not what LangGraph makes.

    `numbers` tells the place of each name, and grows by those that have no value.
    """
    versions: Any = body.get("channel_versions")
    seen: Any = body.get("versions_seen")
    found = (_compiled(numbers, versions, seen) if _compiled else None) or numbered(numbers, versions, seen)
    if found is None:
        return None, None, None
    del body["channel_versions"], body["versions_seen"]
    labels, current, read = found
    return [_shortened(label) if type(label) is str else label for label in labels], current, read


def numbered(
    names: dict[str, int], versions: Any, seen: Any
) -> tuple[list[Any], list[int], dict[str, list[int]]] | None:
    """The distinct labels, and channel_versions and versions_seen with numbers in the place of names and labels; None if
    they are not what LangGraph makes. `names` grows. In C, where that is there and all nodes are plain strings."""
    if not _labels(versions) or type(seen) is not dict or not all(map(_labels, seen.values())):
        return None
    # By type too: 1, 1.0 and True are equal, and a thread's versions must keep their type.
    places: dict[tuple[type, Any], int] = {}
    current = _numbered(versions, names, places)
    read = {node: _numbered(labels, names, places) for node, labels in seen.items()}
    return [label for _, label in places], current, read


def _numbered(labels: dict[str, Any], names: dict[str, int], versions: dict[tuple[type, Any], int]) -> list[int]:
    flat: list[int] = []
    for name, label in labels.items():
        flat.append(names.setdefault(name, len(names)))
        flat.append(versions.setdefault((type(label), label), len(versions)))
    return flat


def _labels(value: Any) -> bool:
    return type(value) is dict and _TEXT.issuperset(map(type, value)) and _LABELS.issuperset(map(type, value.values()))


@lru_cache(maxsize=4096)
def _shortened(label: str) -> list[Any] | str:
    if len(label) > 33 and label[32] == "." and label[:32].isascii() and label[:32].isdigit():
        number = int(label[:32])
        try:
            fraction = float(label[33:])
        except ValueError:
            return label
        if number < 1 << 63 and _long(number, fraction) == label:
            return [number, fraction]
    return label


def _long(number: int, fraction: float) -> str:
    return f"{number:032}.{fraction:016}"


def seal_header(front: bytes, layouts: Sequence[Layout], thread: str, ns: str, id: str, vault: Vault | None) -> bytes:
    """The whole header. `layouts` are those of the front's first names, in order."""
    writers: dict[int, int] = {}
    wires = [layout if layout[0] in INLINES else to_wire(layout, writers) for layout in layouts]
    payload = array_header(2) + front + ormsgpack.packb([list(writers), wires])
    return wrap(payload, compress_over=COMPRESS_OVER, vault=vault, about=_about(thread, ns, id) if vault else b"")


def open_header(
    data: bytes, thread: str, ns: str, id: str, *, own: Serializer, serde: SerializerProtocol, vault: Vault | None
) -> Header:
    """Verify and decode a header. Raises `Corrupt`, `FormatTooNew`, and `Unserializable` for its metadata."""
    payload = unwrap(data, vault=vault, about=_about(thread, ns, id) if vault else b"")
    decoded = own.decode(payload)
    try:
        (kind, names, *parts), (writers, wires) = decoded
        layouts = {name: from_wire(wire, writers) for name, wire in zip(names, wires, strict=False)}
        if kind == _FOREIGN:
            body, metadata, *stamp = parts
            checkpoint, facts = serde.loads_typed(tuple(body)), serde.loads_typed(tuple(metadata))
            return Header(checkpoint, facts, layouts, stamp[0] if stamp else None)
        versions, current, read, (v, ts, touched, rest), (source, step, parents, facts), *stamp = parts
        if versions is not None:
            labels = [_long(*label) if type(label) is list else label for label in versions]
            rest["channel_versions"] = _named(current, names, labels)
            rest["versions_seen"] = {node: _named(flat, names, labels) for node, flat in read.items()}
        updated = None if touched is None else [names[at] for at in touched]
        rest = _in_front(rest, v=v, ts=ts, id=rest.get("id", id), updated_channels=updated)
        facts = _in_front(facts, source=source, step=step, parents=parents)
    except Unserializable:
        raise
    except (ValueError, TypeError, IndexError) as exc:
        raise Corrupt(f"the header of checkpoint {id!r} does not make sense: {exc}", damage="header") from exc
    return Header(rest, facts, layouts, stamp[0] if stamp else None)


def open_layouts(
    data: bytes, thread: str, ns: str, id: str, wanted: Container[str], *, vault: Vault | None
) -> dict[str, Layout]:
    """Where the values of the channels `wanted` lie, without building what else a header says. Raises `Corrupt`."""
    payload = unwrap(data, vault=vault, about=_about(thread, ns, id) if vault else b"")
    try:
        found = _lying(payload) if _lying else None
        if found is None:
            (_, names, *_), (writers, wires) = shallow(payload)
        else:
            names, writers, wires = found
        return {name: from_wire(wire, writers) for name, wire in zip(names, wires, strict=False) if name in wanted}
    except (ValueError, TypeError, IndexError) as exc:
        raise Corrupt(f"the header of checkpoint {id!r} does not make sense: {exc}", damage="header") from exc


def shallow(payload: bytes) -> Any:
    """A payload with nils where it has objects: names are texts, and layouts are plain or tuples."""
    return ormsgpack.unpackb(payload, ext_hook=_plain, option=ormsgpack.OPT_NON_STR_KEYS)


def _plain(code: int, data: bytes) -> Any:
    if code == TUPLE:
        return tuple(shallow(data))
    return RAW[code](data) if code in RAW else None


def with_fact(
    data: bytes,
    thread: str,
    ns: str,
    id: str,
    fact: tuple[str, Any],
    *,
    own: Serializer,
    serde: SerializerProtocol,
    vault: Vault | None,
) -> bytes:
    """The header with one entry of its metadata set, or with None taken away. Raises as `open_header` does."""
    name, value = fact
    about = _about(thread, ns, id) if vault else b""
    try:
        body, back = own.decode(unwrap(data, vault=vault, about=about))
        at = 3 if body[0] == _FOREIGN else 6
        facts = serde.loads_typed(tuple(body[at])) if body[0] == _FOREIGN else body[at][3]
        facts = {key: kept for key, kept in facts.items() if key != name} | ({} if value is None else {name: value})
        body[at] = list(serde.dumps_typed(facts)) if body[0] == _FOREIGN else [*body[at][:3], facts]
    except Unserializable:
        raise
    except (ValueError, TypeError, IndexError) as exc:
        raise Corrupt(f"the header of checkpoint {id!r} does not make sense: {exc}", damage="header") from exc
    encoded = ormsgpack.packb(body) if body[0] == _FOREIGN else own.encode(body)
    payload = array_header(2) + encoded + ormsgpack.packb(back)
    return wrap(payload, compress_over=COMPRESS_OVER, vault=vault, about=about)


def _in_front(rest: dict[str, Any], **taken: Any) -> dict[str, Any]:
    return {**{key: value for key, value in taken.items() if value is not None}, **rest}


def reseal_header(
    data: bytes, source: str, target: str, ns: str, id: str, vault: Vault, target_ns: str | None = None
) -> bytes:
    """A header of thread `source`, bound to thread `target`, and to another namespace if that is given."""
    payload = unwrap(data, vault=vault, about=_about(source, ns, id))
    about = _about(target, ns if target_ns is None else target_ns, id)
    return wrap(payload, compress_over=COMPRESS_OVER, vault=vault, about=about)


def _named(flat: Sequence[int], names: Sequence[str], labels: Sequence[Any]) -> dict[str, Any]:
    return {names[flat[at]]: labels[flat[at + 1]] for at in range(0, len(flat), 2)}
