"""LangGraph's conformance suite, which knows the async methods only: on them, and on the blocking ones behind them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import milepost
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.report import ProgressCallbacks
from milepost.saver import Saver
from stores import STORES, url_of


class BlockingMethods(BaseCheckpointSaver[str]):
    """A saver whose async methods call the blocking ones of another."""

    def __init__(self, saver: Saver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._saver.get_tuple(config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        for found in self._saver.list(config, filter=filter, before=before, limit=limit):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._saver.put(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._saver.put_writes(config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        self._saver.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._saver.delete_for_runs(run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._saver.copy_thread(source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._saver.prune(thread_ids, strategy=strategy)

    def get_next_version(self, current: str | None, channel: None) -> str:
        version: str = self._saver.get_next_version(current, channel)
        return version


@pytest.mark.parametrize("capability", list(Capability), ids=lambda capability: capability.value)
@pytest.mark.parametrize("methods", ["async", "blocking"])
@pytest.mark.parametrize("store", STORES)
async def test_capability(store: str, methods: str, capability: Capability, tmp_path: Path) -> None:
    async def fresh() -> AsyncGenerator[BaseCheckpointSaver[str], None]:
        async with milepost.connect(url_of(store, tmp_path)) as saver:
            yield saver if methods == "async" else BlockingMethods(saver)

    failures: list[str] = []
    passed: list[str] = []

    def note(_: str, test: str, ok: bool, error: str | None) -> None:
        passed.append(test) if ok else failures.append(f"{test}: {error}")

    registered = RegisteredCheckpointer(f"{store}, {methods}", fresh)
    await validate(registered, capabilities={capability.value}, progress=ProgressCallbacks(on_test_result=note))
    assert failures == []
    assert passed
