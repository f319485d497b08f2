"""From LangGraph's configs to places in a store: who is asked for, checked before anything is read or written."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS, CheckpointMetadata

from milepost.errors import InvalidConfig, TooLarge
from milepost.store import MAX_ID

_CREDENTIAL = re.compile(
    r"(?i)(^|[_\-. ])(api[_\-]?key|apikey|secrets?|passwords?|passwd|pwd|credentials?|authorization|bearer|cookies?|"
    r"access[_\-]?token|auth[_\-]?token|refresh[_\-]?token|id[_\-]?token|token|private[_\-]?key|access[_\-]?key|"
    r"secret[_\-]?key|client[_\-]?secret|connection[_\-]?string|dsn)$"
)

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

MARK: Final = "\x1d"
"""Stands before and after the name of a tenant, which has none, in the names that a tenant's threads have in a store."""

COUNTERS = "counters_since_delta_snapshot"
"""The metadata by which LangGraph counts since each delta channel's last snapshot: it names the delta channels."""

COMPACTED = "compacted"
"""The metadata by which compaction says which channels it made smaller."""

PINNED = "pinned"
"""The metadata that keeps a checkpoint, whatever its age."""

FORKS = ("fork", "update")
"""Values of the metadata "source": what LangGraph put for a fork or an update of the state, and not for a step."""

NAMED: Final = "__milepost_named__"
"""The metadata of a subgraph's checkpoint, where nodes were renamed: the version of the caller's schema by which it was
stored, and the namespace that this meant, which may be another one than it lies in. No reader is given it."""

WAS: Final = "__milepost_was__"
"""The metadata of a checkpoint that a migration rewrote, where nodes were renamed: the versions of its schema that it was of
before, the oldest first. Runs of these may make calls from it yet, under the names of then. No reader is given it."""

_HIDDEN: Final = {NAMED, WAS}
_PAIRS: Final = frozenset({tuple, list})

ATTACHMENTS = "__milepost_attachments__"
"""The namespace of what compaction moved out of a thread's state. No graph has it, and no listing shows it."""

BEFORE = "~milepost:before:"
"""Begins the namespaces of what a migration rewrote, and the channels of its pending writes: it waits for nobody."""

_FORMERLY = "~milepost:formerly:"
"""In such a namespace, stands before the name that the namespace had, where a migration gave it another one."""

_ESCAPE = "\x02"
"""Begins a channel name that a store sees in hex."""


def kept_space(ns: str, origin: str) -> str:
    """The namespace of what a migration keeps of checkpoints that were in `origin` and are in `ns`."""
    return BEFORE + ns + ("" if ns == origin else _FORMERLY + origin)


def spaces_of(kept: str) -> tuple[str, str]:
    """The inverse of `kept_space`: where the checkpoints are now, and where they were."""
    ns, moved, origin = kept.removeprefix(BEFORE).partition(_FORMERLY)
    return ns, origin if moved else ns


def shown(metadata: dict[str, Any]) -> dict[str, Any]:
    """What a reader is given of a checkpoint's metadata."""
    if _HIDDEN.isdisjoint(metadata):
        return metadata
    return {key: value for key, value in metadata.items() if key not in _HIDDEN}


def versions_before(metadata: Mapping[str, Any]) -> Sequence[int]:
    """What `WAS` says; nothing where it is not what a migration writes."""
    found: Any = metadata.get(WAS)
    return found if type(found) is list and {int}.issuperset(map(type, found)) else ()


class Place(NamedTuple):
    """A checkpoint that a config names; ``id=None`` is the latest."""

    thread: str
    ns: str
    id: str | None

    def config(self, id: str | None) -> RunnableConfig:
        """The config of a checkpoint of the same thread and namespace."""
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.ns, "checkpoint_id": id}}


def check_id(value: object, what: str) -> str:
    """An id as text: ``1`` and ``"1"`` are the same. Raises `InvalidConfig`, or `TooLarge` over `MAX_ID` characters."""
    if type(value) is str and len(value) <= MAX_ID and value.isascii() and "\0" not in value:
        return value
    if not isinstance(value, (str, int, UUID)) or isinstance(value, bool):
        raise InvalidConfig(
            f"{what} is {_shown(value)}, of type {type(value).__name__}: it must be a string (or an int or UUID)",
            what=what,
            value=_shown(value),
        )
    text = str(value)
    if len(text) > MAX_ID:
        raise TooLarge(
            f"{what} has {len(text)} characters; at most {MAX_ID} are stored. Use a shorter id, or a hash of it.",
            what=what,
            size=len(text),
            limit=MAX_ID,
        )
    if "\0" in text or not (text.isascii() or _encodable(text)):
        problem = "a NUL character" if "\0" in text else "a lone surrogate"
        raise InvalidConfig(f"{what} {_shown(text)} has {problem}, which no id may have", what=what, value=_shown(text))
    return text


def check_thread(value: object, what: str = "thread_id") -> str:
    """A thread id; it must not be empty."""
    text = check_id(value, what)
    if not text:
        raise InvalidConfig(f"{what} is empty: give each thread an id of its own", what=what, value="''")
    return text


def check_channel(value: object) -> str:
    """A channel's name. Any text is one, also text that no id could be: stores see it through `store_name`."""
    if type(value) is str:
        return value
    if not isinstance(value, str):
        raise InvalidConfig(
            f"a write names the channel {_shown(value)}, of type {type(value).__name__}: it must be a string",
            what="channel",
            value=_shown(value),
        )
    return str(value)


def store_name(channel: str) -> str:
    """`channel` as text without NUL and without lone surrogates. Nearly always the name itself."""
    if channel.isprintable() and channel.isascii():
        return channel
    if "\0" in channel or channel.startswith(_ESCAPE) or not _encodable(channel):
        return _ESCAPE + channel.encode("utf-8", "surrogatepass").hex()
    return channel


def channel_name(stored: str) -> str:
    """The inverse of `store_name`."""
    if stored.startswith(_ESCAPE):
        return bytes.fromhex(stored[len(_ESCAPE) :]).decode("utf-8", "surrogatepass")
    return stored


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_list(value: object, what: str) -> list[str]:
    """Several ids. A single string is refused: it would be taken for a list of its characters."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence | set | frozenset):
        raise InvalidConfig(
            f"{what} is {_shown(value)}: it must be a list of ids, such as [{_shown(value)}]",
            what=what,
            value=_shown(value),
        )
    return [check_thread(item, f"{what}[{at}]") for at, item in enumerate(cast("Sequence[object]", value))]


def check_channels(value: object) -> list[str]:
    """Names of channels. A single string is refused, as by `check_list`."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InvalidConfig(
            f"channels is {_shown(value)}: it must be a list of names of channels", what="channels", value=_shown(value)
        )
    return [check_channel(name) for name in cast("Iterable[object]", value)]


def check_writes(value: object) -> list[tuple[str, Any]]:
    """Pairs of a channel's name and a value."""
    try:
        writes = list(cast("Iterable[Any]", value))
        # A text of two characters is no pair.
        if _PAIRS.issuperset(map(type, writes)) or not any(isinstance(write, (str, bytes)) for write in writes):
            return [(channel if type(channel) is str else check_channel(channel), given) for channel, given in writes]
    except (TypeError, ValueError):
        pass
    raise InvalidConfig(
        f"writes is {_shown(value)}: it must be a list of pairs (channel, value)", what="writes", value=_shown(value)
    )


def check_dict(value: object, what: str) -> Mapping[Any, Any]:
    """A dict. `what` says which."""
    if type(value) is dict or isinstance(value, Mapping):
        return value
    raise InvalidConfig(
        f"{what} is {_shown(value)}, of type {type(value).__name__}: it must be a dict", what=what, value=_shown(value)
    )


def check_names(value: object, what: str) -> Mapping[str, Any]:
    """A dict whose keys are strings."""
    found = check_dict(value, what)
    for key in found:
        if not isinstance(key, str):
            raise InvalidConfig(
                f"{what} has the key {_shown(key)}, of type {type(key).__name__}: its keys must be strings",
                what=what,
                value=_shown(key),
            )
    return found


def check_checkpoint(checkpoint: object) -> str:
    """The id of what LangGraph calls a checkpoint, if it has what every checkpoint has."""
    found = check_dict(checkpoint, "checkpoint")
    check_dict(found.get("channel_values"), "the checkpoint's channel_values")
    check_dict(found.get("channel_versions"), "the checkpoint's channel_versions")
    id = check_id(found.get("id"), "checkpoint id")
    if not id:
        raise InvalidConfig("the checkpoint's id is empty", what="checkpoint id", value="''")
    return id


def check_callable(value: object, what: str) -> Callable[..., Any]:
    """What can be called."""
    if not callable(value):
        raise InvalidConfig(
            f"{what} is {_shown(value)}: it must be a function, or another object that can be called",
            what=what,
            value=_shown(value),
        )
    return value


def check_path(value: object, what: str) -> str:
    """A path in the file system."""
    try:
        return os.fsdecode(cast("str", value))
    except TypeError:
        raise InvalidConfig(f"{what} is {_shown(value)}: it must be a path", what=what, value=_shown(value)) from None


def check_file(value: object, what: str) -> str:
    """The path of a file, which need not be there."""
    path = check_path(value, what)
    try:
        if not path or os.path.isdir(path):  # noqa: PTH112  # (as below)
            raise IsADirectoryError(f"{path!r} is no file")
        os.stat(path)  # noqa: PTH116  # the name may be none that a Path takes
    except FileNotFoundError:
        pass  # whoever opens it says so
    except (OSError, ValueError) as exc:
        raise InvalidConfig(f"{what} is {_shown(value)}: {exc}", what=what, value=_shown(value)) from None
    return path


def check_limit(value: object) -> int | None:
    """How many to list: None is all, 0 nothing. Raises `InvalidConfig` for anything else but a positive int."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidConfig(
            f"limit is {_shown(value)}: it must be a number of checkpoints, 0 or more, or None for all of them",
            what="limit",
            value=_shown(value),
        )
    return value


def configurable(config: object) -> Mapping[str, Any]:
    """``config["configurable"]``. Raises `InvalidConfig` when there is none."""
    # By type first: to ask whether something is a Mapping takes longer than all else here.
    given: Any = config
    inner: Any = given.get("configurable") if type(given) is dict or isinstance(given, Mapping) else None
    if type(inner) is not dict and not isinstance(inner, Mapping):
        raise InvalidConfig(
            'the config has no "configurable": pass {"configurable": {"thread_id": "…"}}',
            what="config",
            value=_shown(config),
        )
    found: Mapping[str, Any] = inner
    return found


def place_of(config: object) -> Place:
    """The checkpoint that `config` names. An absent or empty ``checkpoint_id`` is the latest, an absent
    ``checkpoint_ns`` the root namespace."""
    inner = configurable(config)
    if inner.get("thread_id") is None:
        raise InvalidConfig(
            'the config has no thread_id: pass {"configurable": {"thread_id": "…"}}, with an id for each conversation',
            what="thread_id",
            value="None",
        )
    ns, id = inner.get("checkpoint_ns"), inner.get("checkpoint_id")
    return Place(
        check_thread(inner["thread_id"]),
        "" if ns is None or ns == "" else check_id(ns, "checkpoint_ns"),
        None if id is None or id == "" else check_id(id, "checkpoint_id"),
    )


@lru_cache(maxsize=1024)
def looks_like_credential(name: str) -> bool:
    """Whether a configurable value of this name should not be written into metadata."""
    return _CREDENTIAL.search(_CAMEL.sub("_", name)) is not None


def full_metadata(config: RunnableConfig, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """`metadata` with the scalars of the config (run_id, keys of the user's, …) merged in.

    The rules are those of LangGraph's ``get_checkpoint_metadata``, whose tests pin them: NULs vanish from texts at the
    top level (not from keys, and not from what is nested), and counters of delta channels are lists. One is added:
    what looks like a credential stays out. Raises `InvalidConfig` for what is no metadata.
    """
    try:
        merged = _merged(config, metadata)
        "".join(merged)  # raises where a key is no string
        parents: Mapping[str, str | None] = merged.get("parents") or {}
        for id in parents.values():
            if id is not None:
                check_id(id, "the metadata's parents")
    except (AttributeError, TypeError, ValueError):
        check_names(metadata, "metadata")
        check_names(config.get("metadata") or {}, "the config's metadata")
        check_names(config.get("configurable"), "the config's configurable")
        check_dict(metadata.get("parents") or {}, "the metadata's parents")
        for channel, pair in check_dict(metadata.get(COUNTERS) or {}, f"the metadata's {COUNTERS}").items():
            if not isinstance(pair, Iterable):
                raise InvalidConfig(
                    f"the metadata's {COUNTERS} of {_shown(channel)} is {_shown(pair)}: it must be a pair of numbers",
                    what=COUNTERS,
                    value=_shown(pair),
                ) from None
        raise
    return merged


def _merged(config: RunnableConfig, metadata: CheckpointMetadata) -> CheckpointMetadata:
    merged: dict[str, Any] = {
        key: value.replace("\0", "") if isinstance(value, str) else value for key, value in metadata.items()
    }
    if counters := merged.get(COUNTERS):
        merged[COUNTERS] = {channel: list(pair) for channel, pair in counters.items()}
    for source in (config.get("metadata"), config.get("configurable")):
        for key, value in (source or {}).items():
            if key in merged or key in EXCLUDED_METADATA_KEYS or key.startswith("__"):
                continue
            if isinstance(value, (str, int, float)) and not looks_like_credential(key):
                merged[key] = value.replace("\0", "") if isinstance(value, str) else value
    return cast("CheckpointMetadata", merged)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
