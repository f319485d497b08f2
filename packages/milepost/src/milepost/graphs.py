"""Compiled graphs that take the lease of the thread they run on. LangGraph is not imported: what is given is extended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Generator, Iterator
from contextlib import nullcontext
from typing import Any, TypeVar, cast

from langchain_core.runnables.config import ensure_config, merge_configs

from milepost.apart import Apart, apart
from milepost.errors import InvalidConfig
from milepost.lease import ThreadLease, terms_of
from milepost.places import check_dict
from milepost.saver import Saver

GraphT = TypeVar("GraphT")

_CHECKPOINTER = "__pregel_checkpointer"
"""Where LangGraph hands a checkpointer on to a run, within the configurable."""

_RUNS = ("stream", "astream", "bulk_update_state", "abulk_update_state")
"""The methods of a compiled graph that all others which change a thread go through."""


def exclusive(
    graph: GraphT,
    saver: Saver,
    *,
    ttl: float = 30.0,
    wait: float | None = 0.0,
    steal: bool | str = False,
    owner: str | None = None,
) -> GraphT:
    """A copy of the compiled `graph` of which only one run at a time drives a thread.

    ``invoke``, ``stream``, ``update_state``, their async forms and what is built on them take ``saver.lease`` of the
    config's thread for as long as they run; the arguments are those of `milepost.saver.Saver.lease`. A run of a busy
    thread raises `milepost.errors.Busy` unless `wait` or `steal` say otherwise. Reading takes no lease, and neither do
    runs without a thread id. Inside a run the same thread may be driven again, by a subgraph or a tool.

    Raises `InvalidConfig` when `graph` is not a compiled graph, or has a checkpointer of another store than `saver`; and
    so does a run that has none.
    """
    check_graph(graph, saver, _RUNS)
    terms = {"ttl": ttl, "wait": wait, "steal": steal, "owner": owner}
    terms_of(*terms.values())
    kind = type(graph)
    if issubclass(kind, _Exclusive):
        kind = kind.__bases__[1]
    # The terms belong to the class: LangGraph makes copies of a graph from its instance attributes.
    extra = {"__module__": kind.__module__, "_milepost_saver": saver, "_milepost_terms": terms}
    driven = cast("type[GraphT]", type(kind.__name__, (_Exclusive, kind), extra))
    made = object.__new__(driven)
    vars(made).update(vars(graph))
    return made


def check_graph(graph: object, saver: object, methods: Collection[str]) -> object:
    """The checkpointer of a compiled graph that is to be run under leases of `saver`. Raises `InvalidConfig` when
    `graph` has not all of these methods, or a checkpointer of another store than `saver`."""
    if lacking := [name for name in methods if not callable(getattr(graph, name, None))]:
        raise InvalidConfig(
            f"{type(graph).__name__} has no {lacking[0]}: pass a compiled graph of LangGraph's", what="graph"
        )
    if not isinstance(saver, Saver):
        raise InvalidConfig(
            f"saver is of type {type(saver).__name__}: pass the saver that is the graph's checkpointer", what="saver"
        )
    own: object = getattr(graph, "checkpointer", None)
    if isinstance(own, Saver) and own.backend is not saver.backend:
        raise InvalidConfig(
            "the graph's checkpointer is another saver than the one whose leases it is to take: pass that one",
            what="saver",
        )
    return own


class _Exclusive:
    """What `exclusive` puts before the class of a graph."""

    __slots__ = ()

    _milepost_saver: Saver
    _milepost_terms: dict[str, Any]

    def stream(self, input: Any, config: Any = None, **options: Any) -> Iterator[Any]:
        parts = cast("Any", super()).stream(input, config, **options)
        yield from apart(_within(parts, self._milepost_lease(config)))

    async def astream(self, input: Any, config: Any = None, **options: Any) -> AsyncIterator[Any]:
        run = cast("Any", super()).astream(input, config, **options)
        async with Apart(run, self._milepost_lease(config) or nullcontext()) as parts:
            async for part in parts:
                yield part

    def bulk_update_state(self, config: Any, supersteps: Any) -> Any:
        update = cast("Any", super()).bulk_update_state
        lease = self._milepost_lease(config)
        if lease is None:
            return update(config, supersteps)
        with lease:
            return update(config, supersteps)

    async def abulk_update_state(self, config: Any, supersteps: Any) -> Any:
        update = cast("Any", super()).abulk_update_state
        lease = self._milepost_lease(config)
        if lease is None:
            return await update(config, supersteps)
        async with lease:
            return await update(config, supersteps)

    def _milepost_lease(self, config: Any) -> ThreadLease | None:
        if config is not None:
            check_dict(check_dict(config, "config").get("configurable") or {}, "the config's configurable")
        merged = ensure_config(merge_configs(getattr(self, "config", None), config))
        given = merged.get("configurable", {})
        if not (getattr(self, "checkpointer", None) or given.get(_CHECKPOINTER)):
            # Who makes the graph need not have it yet, and a subgraph gets that of the graph that calls it.
            raise InvalidConfig(
                "the graph has no checkpointer, so its runs have nothing to be kept apart in: compile it with the saver "
                "whose leases it takes",
                what="checkpointer",
            )
        thread = given.get("thread_id")
        return None if thread is None else self._milepost_saver.lease(thread, **self._milepost_terms)


def _within(parts: Generator[Any, None, None], lease: ThreadLease | None) -> Generator[Any, None, None]:
    with lease or nullcontext():
        yield from parts
