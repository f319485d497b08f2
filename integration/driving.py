"""LangGraph's graphs driven through their blocking or their async methods, by one text."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.graph import StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import StateSnapshot
from milepost.saver import Saver

Graph = CompiledStateGraph[Any, Any, Any, Any]
AnyGraph = Pregel[Any, Any, Any, Any]
Durability = Literal["sync", "async", "exit"]

DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")
STEPWISE = ("sync", "async")
"""The modes that store a checkpoint for each step."""


class Builder(Protocol):
    """A StateGraph without its own types, which know no lambdas."""

    def add_node(self, node: Any, action: Any = None, **options: Any) -> Any: ...
    def add_edge(self, start: Any, end: str) -> Any: ...
    def add_conditional_edges(self, source: str, path: Any, path_map: Any = None) -> Any: ...
    def compile(self, checkpointer: Any = None, **options: Any) -> Graph: ...


def graph_of(state: Any, **schemas: Any) -> Builder:
    """The builder of a graph with this state."""
    return cast("Builder", StateGraph(state, **schemas))


def thread(id: str, **more: Any) -> RunnableConfig:
    """The config of a thread."""
    return {"configurable": {"thread_id": id, **more}}


def place(config: RunnableConfig) -> Mapping[str, Any]:
    """What a config points at."""
    return config.get("configurable", {})


class Flavour(Protocol):
    """The methods of a graph and of a saver that both flavours have."""

    name: str

    async def invoke(self, graph: AnyGraph, input: Any, config: RunnableConfig, **options: Any) -> Any: ...
    async def stream(self, graph: AnyGraph, input: Any, config: RunnableConfig, **options: Any) -> list[Any]: ...
    async def state(self, graph: AnyGraph, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot: ...
    async def history(self, graph: AnyGraph, config: RunnableConfig, **options: Any) -> list[StateSnapshot]: ...
    async def update(
        self, graph: AnyGraph, config: RunnableConfig, values: Any, as_node: str | None = None
    ) -> RunnableConfig: ...
    async def bulk_update(
        self, graph: AnyGraph, config: RunnableConfig, supersteps: Sequence[Sequence[Any]]
    ) -> RunnableConfig: ...
    async def tuples(self, saver: Saver, config: RunnableConfig | None, **options: Any) -> list[CheckpointTuple]: ...
    async def prune(self, saver: Saver, threads: Sequence[str]) -> None: ...
    async def copy_thread(self, saver: Saver, source: str, target: str) -> None: ...


class Blocking:
    """In a worker thread, where no event loop runs."""

    name = "blocking"

    async def invoke(self, graph: AnyGraph, input: Any, config: RunnableConfig, **options: Any) -> Any:
        return await asyncio.to_thread(lambda: graph.invoke(input, config, **options))

    async def stream(self, graph: AnyGraph, input: Any, config: RunnableConfig, **options: Any) -> list[Any]:
        return await asyncio.to_thread(lambda: list(graph.stream(input, config, **options)))

    async def state(self, graph: AnyGraph, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        return await asyncio.to_thread(graph.get_state, config, subgraphs=subgraphs)

    async def history(self, graph: AnyGraph, config: RunnableConfig, **options: Any) -> list[StateSnapshot]:
        return await asyncio.to_thread(lambda: list(graph.get_state_history(config, **options)))

    async def update(
        self, graph: AnyGraph, config: RunnableConfig, values: Any, as_node: str | None = None
    ) -> RunnableConfig:
        return await asyncio.to_thread(graph.update_state, config, values, as_node)

    async def bulk_update(
        self, graph: AnyGraph, config: RunnableConfig, supersteps: Sequence[Sequence[Any]]
    ) -> RunnableConfig:
        return await asyncio.to_thread(graph.bulk_update_state, config, supersteps)

    async def tuples(self, saver: Saver, config: RunnableConfig | None, **options: Any) -> list[CheckpointTuple]:
        return await asyncio.to_thread(lambda: list(saver.list(config, **options)))

    async def prune(self, saver: Saver, threads: Sequence[str]) -> None:
        await asyncio.to_thread(saver.prune, threads)

    async def copy_thread(self, saver: Saver, source: str, target: str) -> None:
        await asyncio.to_thread(saver.copy_thread, source, target)


class Async:
    """In the event loop of the test."""

    name = "async"

    async def invoke(self, graph: AnyGraph, input: Any, config: RunnableConfig, **options: Any) -> Any:
        return await graph.ainvoke(input, config, **options)

    async def stream(self, graph: AnyGraph, input: Any, config: RunnableConfig, **options: Any) -> list[Any]:
        return [part async for part in graph.astream(input, config, **options)]

    async def state(self, graph: AnyGraph, config: RunnableConfig, *, subgraphs: bool = False) -> StateSnapshot:
        return await graph.aget_state(config, subgraphs=subgraphs)

    async def history(self, graph: AnyGraph, config: RunnableConfig, **options: Any) -> list[StateSnapshot]:
        return [snapshot async for snapshot in graph.aget_state_history(config, **options)]

    async def update(
        self, graph: AnyGraph, config: RunnableConfig, values: Any, as_node: str | None = None
    ) -> RunnableConfig:
        return await graph.aupdate_state(config, values, as_node)

    async def bulk_update(
        self, graph: AnyGraph, config: RunnableConfig, supersteps: Sequence[Sequence[Any]]
    ) -> RunnableConfig:
        return await graph.abulk_update_state(config, supersteps)

    async def tuples(self, saver: Saver, config: RunnableConfig | None, **options: Any) -> list[CheckpointTuple]:
        return [found async for found in saver.alist(config, **options)]

    async def prune(self, saver: Saver, threads: Sequence[str]) -> None:
        await saver.aprune(threads)

    async def copy_thread(self, saver: Saver, source: str, target: str) -> None:
        await saver.acopy_thread(source, target)


FLAVOURS: tuple[Flavour, ...] = (Blocking(), Async())
