"""State schemas: TypedDict, dataclass, Pydantic; and nodes that change what they were handed."""

from __future__ import annotations

import operator
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from driving import Durability, Flavour, graph_of, thread
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, add_messages
from langgraph.types import Command, interrupt
from milepost.saver import Saver
from pydantic import BaseModel
from typing_extensions import TypedDict

ONE = thread("one")


class Mood(Enum):
    CALM = "calm"
    CROSS = "cross"


@dataclass(frozen=True)
class Point:
    x: int
    y: int


class Order(BaseModel):
    number: int
    price: Decimal
    places: list[Point]
    mood: Mood = Mood.CALM


class Typed(TypedDict):
    order: Order
    trail: Annotated[list[Any], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]


@dataclass
class Data:
    order: Order
    trail: Annotated[list[Any], operator.add] = field(default_factory=list)
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


class Model(BaseModel):
    order: Order
    trail: Annotated[list[Any], operator.add] = []
    messages: Annotated[list[AnyMessage], add_messages] = []


def _field(state: Any, name: str) -> Any:
    return state[name] if isinstance(state, dict) else getattr(state, name)


@pytest.mark.parametrize("schema", [Typed, Data, Model], ids=["TypedDict", "dataclass", "Pydantic"])
async def test_a_state_survives_an_interrupt(
    saver: Saver, flavour: Flavour, durability: Durability, schema: type
) -> None:
    received: list[type] = []

    def change(state: Any) -> dict[str, Any]:
        received.append(type(state))
        order: Order = _field(state, "order")
        answer = interrupt(order)
        return {
            "order": order.model_copy(update={"price": order.price * 2, "mood": answer}),
            "trail": [Point(3, 4), (1, 2)],
            "messages": [AIMessage("done", id="m2")],
        }

    builder = graph_of(schema)
    builder.add_node("first", lambda _: {"trail": [Point(1, 2)], "messages": [HumanMessage("go", id="m1")]})
    builder.add_node("change", change)
    builder.add_edge(START, "first")
    builder.add_edge("first", "change")
    graph = builder.compile(checkpointer=saver)
    order = Order(number=2**70, price=Decimal("1.10"), places=[Point(0, 0)])
    asked = await flavour.invoke(graph, {"order": order, "trail": [], "messages": []}, ONE, durability=durability)
    assert asked["__interrupt__"][0].value == order
    done = await flavour.invoke(graph, Command(resume=Mood.CROSS), ONE, durability=durability)
    assert done["order"] == Order(number=2**70, price=Decimal("2.20"), places=[Point(0, 0)], mood=Mood.CROSS)
    assert done["trail"] == [Point(1, 2), Point(3, 4), (1, 2)]
    assert [message.content for message in done["messages"]] == ["go", "done"]
    assert set(received) == {dict if schema is Typed else schema}
    assert (await flavour.state(graph, ONE)).values == done


async def test_values_that_other_savers_lose(saver: Saver, flavour: Flavour, durability: Durability) -> None:
    new_york = datetime(2026, 3, 7, 9, tzinfo=ZoneInfo("America/New_York"))
    values: dict[str, Any] = {
        "big": 2**200,
        "third": Fraction(1, 3),
        "window": deque([1, 2], maxlen=2),
        "counts": Counter("aab"),
        "spring": new_york,
        "when": datetime(2026, 1, 1, tzinfo=UTC),
        "id": UUID(int=7),
        "pair": (1, (2, 3)),
        "lone": "a\ud800b",
        "nul": "x\x00y",
        "lookalike": {"lc": 1, "type": "constructor", "id": ["langchain", "x"], "kwargs": {}},
    }

    class Anything(TypedDict):
        values: dict[str, Any]
        bare: float

    builder = graph_of(Anything)
    builder.add_node("ask", lambda state: {"values": {**state["values"], "answer": interrupt("?")}})
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    await flavour.invoke(graph, {"values": values, "bare": float("-inf")}, ONE, durability=durability)
    done = await flavour.invoke(graph, Command(resume=(1,)), ONE, durability=durability)
    assert done == {"values": {**values, "answer": (1,)}, "bare": float("-inf")}
    assert {key: type(value) for key, value in done["values"].items()} == {
        **{key: type(value) for key, value in values.items()},
        "answer": tuple,
    }
    assert done["values"]["window"].maxlen == 2
    assert done["values"]["spring"].tzinfo == new_york.tzinfo


async def test_messages_that_a_node_changes_in_place_are_stored_as_they_are(
    saver: Saver, flavour: Flavour, durability: Durability
) -> None:
    def mutate(state: Typed) -> dict[str, Any]:
        turn = len(state["trail"])
        old = state["messages"][turn]
        old.content = f"rewritten {turn}"
        old.additional_kwargs.setdefault("notes", []).append(turn)
        if turn:
            state["messages"][0].additional_kwargs["notes"].append("again")
        return {"trail": [turn], "messages": state["messages"]}

    snapshots: list[list[Any]] = []
    for checkpointer in (saver, InMemorySaver()):
        builder = graph_of(Typed)
        builder.add_node("mutate", mutate)
        builder.add_edge(START, "mutate")
        graph = builder.compile(checkpointer=checkpointer)
        for turn in range(6):
            said = [HumanMessage(f"said {turn}", id=f"m{turn}")]
            await flavour.invoke(graph, {"messages": said}, ONE, durability=durability)
        values = (await flavour.state(graph, ONE)).values
        snapshots.append([(one.content, one.additional_kwargs) for one in values["messages"]])
    assert snapshots[0] == snapshots[1]
    assert snapshots[0][0] == ("rewritten 0", {"notes": [0, *["again"] * 5]})
    assert snapshots[0][5] == ("rewritten 5", {"notes": [5]})
