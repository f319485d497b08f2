"""A node is dropped that others were waited for together with: what is behind them runs all the same."""

from __future__ import annotations

import operator
from typing import Annotated

import milepost
import pytest
from driving import Flavour, Graph, graph_of, thread
from langgraph.graph import START
from langgraph.types import interrupt
from milepost import schema as ms
from milepost.saver import Saver
from typing_extensions import TypedDict

ONE = thread("one")


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


_EDGES = {
    "beside": [(START, "a"), (START, "b")],
    "before": [(START, "b"), ("b", "x"), ("x", "a")],
    "after": [(START, "a"), (START, "x"), ("x", "b")],
    "twice": [(START, "b"), ("b", "x"), ("x", "a"), ("b", "c")],
}
"""When `b` has run, as seen from `a`, which asks. At last, `c` has also run by another edge since."""


def _graph(saver: Saver, when: str, form: str, *, deferred: bool) -> Graph:
    builder = graph_of(State)
    builder.add_node("b", lambda _: {"log": ["b"]})
    builder.add_node("x", lambda _: {"log": ["x"]})
    builder.add_node("c", lambda _: {"log": ["c"]}, defer=deferred)
    if form == "before":
        builder.add_node("a", lambda _: {"log": [interrupt("?")]})
    for start, end in _EDGES[when]:
        if form == "before" or "a" not in (start, end):
            builder.add_edge(start, end)
    builder.add_edge({"before": ["a", "b"], "list": ["b"], "edge": "b"}[form], "c")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("migrated", [False, True], ids=["read", "migrated"])
@pytest.mark.parametrize("deferred", [False, True], ids=["", "deferred"])
@pytest.mark.parametrize("form", ["list", "edge"])
@pytest.mark.parametrize("when", list(_EDGES))
async def test_the_last_one_of_a_join_is_an_edge(
    flavour: Flavour, when: str, form: str, deferred: bool, migrated: bool
) -> None:
    with milepost.connect("memory:", schema=milepost.Schema(State, version=1)) as first:
        await flavour.invoke(_graph(first, when, "before", deferred=deferred), {"log": []}, ONE)
        later = milepost.Schema(State, version=2, upgrades=[ms.Step(1, 2, ms.drop_node("a"))])
        saver = Saver(first.backend, schema=later)
        if migrated:
            assert [told.refused async for told in saver.amigrate(history=True)] == [()]
        graph = _graph(saver, when, form, deferred=deferred)
        done = await flavour.invoke(graph, None, ONE)
        ran = 2 if when == "twice" and not deferred else 1
        assert done["log"].count("c") == ran
        assert done["log"][-1] == "c"
        assert (await flavour.state(graph, ONE)).next == ()
        # And from turn to turn.
        again = await flavour.invoke(graph, {"log": ["again"]}, ONE)
        assert "c" in again["log"][again["log"].index("again") :]
