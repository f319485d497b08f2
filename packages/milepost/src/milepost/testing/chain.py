"""Checkpoints as LangGraph makes them, without LangGraph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata

from milepost.testing.lab import Face


def at(thread: Any, ns: str | None = "", id: str | None = None, **more: Any) -> RunnableConfig:
    """The config of a checkpoint, or of a thread's latest one. With ``ns=None`` no namespace is named."""
    configurable: dict[str, Any] = {"thread_id": thread, **more}
    if ns is not None:
        configurable["checkpoint_ns"] = ns
    if id is not None:
        configurable["checkpoint_id"] = id
    return {"configurable": configurable}


def inside(config: RunnableConfig | None) -> dict[str, Any]:
    """What is configured: thread_id, checkpoint_ns and so on."""
    return (config or {}).get("configurable", {})


def id_of(config: RunnableConfig | None) -> str | None:
    """The checkpoint id that a config names."""
    return inside(config).get("checkpoint_id")


def checkpoint(
    id: str, values: Mapping[str, Any], versions: Mapping[str, Any] | None = None, **more: Any
) -> Checkpoint:
    """A checkpoint with these channel values; each has version 1 unless `versions` says otherwise."""
    made: dict[str, Any] = {
        "v": 4,
        "id": id,
        "ts": "2026-11-29T12:00:00+00:00",
        "channel_values": dict(values),
        "channel_versions": dict(versions) if versions is not None else dict.fromkeys(values, 1),
        "versions_seen": {"__input__": {}, "node": dict(versions or {})},
        "updated_channels": None,
        **more,
    }
    return cast("Checkpoint", made)


class Chain:
    """One namespace of a thread, written step after step as a run would."""

    def __init__(self, saver: Face, thread: str = "thread", ns: str = "") -> None:
        self.saver = saver
        self.thread = thread
        self.ns = ns
        self.head: str | None = None
        self._number = 0
        self._versions: dict[str | None, dict[str, Any]] = {None: {}}

    def at(self, id: str | None = None) -> RunnableConfig:
        """The config of checkpoint `id`; by default of the one put last."""
        return at(self.thread, self.ns, self.head if id is None else id)

    @property
    def latest(self) -> RunnableConfig:
        """The config of whatever is latest."""
        return at(self.thread, self.ns)

    async def put(
        self,
        values: Mapping[str, Any],
        *,
        id: str | None = None,
        parent: str | None = None,
        changed: Collection[str] | None = None,
        new_versions: ChannelVersions | None = None,
        metadata: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> RunnableConfig:
        """Put one checkpoint; it becomes the parent of the next one.

        Args:
            values: of all channels.
            id: by default the next of "0001", "0002", …
            parent: by default the checkpoint put last; "" is none.
            changed: the channels that get new versions; by default all of `values`.
            new_versions: what is passed as such, if not the versions of those.
            metadata: beside source, step and parents.
            config: more of the configurable.
        """
        self._number += 1
        name = id if id is not None else f"{self._number:04}"
        under = self.head if parent is None else parent or None
        versions = dict(self._versions.get(under, {}))
        new: ChannelVersions = {}
        for channel in values if changed is None else changed:
            versions[channel] = new[channel] = self.saver.saver.get_next_version(versions.get(channel), None)
        self._versions[name] = versions
        whole = cast("CheckpointMetadata", {"source": "loop", "step": self._number, "parents": {}, **(metadata or {})})
        given = at(self.thread, self.ns, under, **(config or {}))
        made = checkpoint(name, values, versions)
        stored = await self.saver.put(given, made, whole, new if new_versions is None else new_versions)
        assert inside(stored) == {"thread_id": self.thread, "checkpoint_ns": self.ns, "checkpoint_id": name}, (
            f"put returned {stored}"
        )
        self.head = name
        return stored

    async def writes(self, *writes: tuple[str, Any], task: str = "task", path: str = "", id: str | None = None) -> None:
        """Put pending writes at `id`, by default at the checkpoint put last."""
        await self.saver.put_writes(self.at(id), list(writes), task, path)

    async def values(self, id: str | None = None) -> dict[str, Any]:
        """The channel values of the latest checkpoint, or of `id`."""
        return (await self.saver.got(at(self.thread, self.ns, id))).checkpoint["channel_values"]

    async def ids(self) -> Sequence[str]:
        """The ids of this namespace, newest first."""
        return await self.saver.ids(self.latest)
