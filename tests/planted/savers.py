"""Savers with one mistake each, over healthy memory stores. They answer blocking calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from milepost.errors import InvalidConfig, Unavailable
from milepost.saver import Saver
from milepost.store import Backend
from milepost.testing import Memory
from milepost.testing.chain import inside


class SaverSubject(Memory):
    """The memory store behind a saver of the class `planted`."""

    planted: ClassVar[type[Saver]] = Saver

    def saver(self, backend: Backend, **options: Any) -> Saver:
        return self.planted(backend, **options)


def subject(saver: type[Saver]) -> type[SaverSubject]:
    return type(saver.__name__, (SaverSubject,), {"planted": saver})


class PendingUnsorted(Saver):
    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = super().get_tuple(config)
        if found is None or found.pending_writes is None:
            return found
        return found._replace(pending_writes=sorted(found.pending_writes, key=lambda write: write[0]))


class ValuesByLabel(Saver):
    """Values are kept by channel and version, as the official savers do."""

    values: dict[tuple[Any, ...], Any]

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        kept = vars(self).setdefault("values", {})
        thread = inside(config)["thread_id"]
        values = {
            channel: kept.setdefault((thread, channel, checkpoint["channel_versions"].get(channel)), value)
            for channel, value in checkpoint["channel_values"].items()
        }
        shared: Any = {**checkpoint, "channel_values": values}
        return super().put(config, shared, metadata, new_versions)


class NewVersionsAlone(Saver):
    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        values = {key: value for key, value in checkpoint["channel_values"].items() if key in new_versions}
        some: Any = {**checkpoint, "channel_values": values}
        return super().put(config, some, metadata, new_versions)


class LimitZeroIsAll(Saver):
    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        return super().list(config, filter=filter, before=before, limit=limit or None)


class DottedFilters(Saver):
    """A dot in a filter's key is taken for a path into nested metadata."""

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        for item in super().list(config, before=before):
            if all(_at(item.metadata, key) == value for key, value in (filter or {}).items()):
                yield item


def _at(value: Any, path: str) -> Any:
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


class HandedOutTwice(Saver):
    cache: dict[str, CheckpointTuple]

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = super().get_tuple(config)
        if found is None:
            return None
        name = f"{inside(found.config)} {len(found.pending_writes or ())}"
        return vars(self).setdefault("cache", {}).setdefault(name, found)  # type: ignore[no-any-return]  # vars() is Any


class UnavailableIsAbsent(Saver):
    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        try:
            return super().get_tuple(config)
        except Unavailable:
            return None


class RefusesInsideALoop(Saver):
    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return super().get_tuple(config)
        raise InvalidConfig("call the async methods from inside an event loop")


class PrunesOneStrategy(Saver):
    def prune(self, thread_ids: Any, *, strategy: str = "keep_latest") -> None:
        if strategy == "delete_all":
            raise InvalidConfig(f"unknown strategy {strategy}")
        super().prune(thread_ids, strategy=strategy)


class AListInPlace(Saver):
    """Writes are put one by one: a batch that is refused has been stored in part."""

    def put_writes(self, config: RunnableConfig, writes: Any, task_id: str, task_path: str = "") -> None:
        done: Any = []
        for write in writes:
            done.append(write)
            super().put_writes(config, list(done), task_id, task_path)


class LooksAtTheParentAlone(Saver):
    """What is put without its channel in `new_versions` is taken from the parent, whatever its version says."""

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        parent = inside(config).get("checkpoint_id") and super().get_tuple(config)
        values = dict(checkpoint["channel_values"])
        if parent:
            old = parent.checkpoint["channel_values"]
            values |= {key: old[key] for key in values if key not in new_versions and key in old}
        mixed: Any = {**checkpoint, "channel_values": values}
        return super().put(config, mixed, metadata, new_versions)
