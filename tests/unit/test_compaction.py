"""The compactors that come along: what they may drop of a conversation, and what never."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from milepost.compaction import Context, address_of, is_address, offload_large, summarize, trim_messages
from milepost.errors import InvalidConfig

CONTEXT = Context("thread", "1", {})


_SPOKEN = (HumanMessage, AIMessage, ToolMessage)


def conversation(seed: int, length: int) -> list[AnyMessage]:
    """Messages of all kinds: calls in parallel, results in any order, calls without a result, results without a call."""
    dice = random.Random(seed)
    found: list[AnyMessage] = []
    waiting: list[str] = []
    for number in range(length):
        kind = dice.random()
        if kind < 0.1:
            found.append(SystemMessage(f"system {number}", id=str(number)))
        elif kind < 0.35:
            ids = [f"c{number}-{at}" for at in range(dice.randint(1, 3))]
            waiting += ids
            calls = [{"name": "tool", "args": {"n": number}, "id": id, "type": "tool_call"} for id in ids]
            found.append(AIMessage("", tool_calls=calls, id=str(number)))
        elif kind < 0.7 and waiting:
            call = waiting.pop(dice.randrange(len(waiting)))
            found.append(ToolMessage(f"result {number} " * dice.randint(1, 9), tool_call_id=call, id=str(number)))
        elif kind < 0.75:
            found.append(ToolMessage("of no call", tool_call_id=f"none {number}", id=str(number)))
        else:
            found.append(HumanMessage(f"human {number} " * dice.randint(1, 9), id=str(number)))
    return found


def calls_of(messages: list[AnyMessage]) -> dict[str | None, AnyMessage]:
    return {call["id"]: one for one in messages if isinstance(one, AIMessage) for call in one.tool_calls}


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    length=st.integers(0, 40),
    limit=st.sampled_from([{"last": 1}, {"last": 7}, {"tokens": 60}, {"bytes": 1000}, {"last": 9, "tokens": 80}]),
)
def test_what_trimming_leaves(seed: int, length: int, limit: dict[str, Any]) -> None:
    messages = conversation(seed, length)
    state = {"messages": messages, "other": 1}
    trim = trim_messages(**limit)
    changed: Any = trim(state, CONTEXT)
    if changed is None:
        return
    kept = changed["messages"]
    assert changed.keys() == {"messages"}
    assert state["messages"] == messages == conversation(seed, length), "the state was changed in place"
    assert kept == [one for one in messages if one in kept], "the order is another one"
    gone = [one for one in messages if one not in kept]
    assert not [one for one in gone if isinstance(one, SystemMessage)]
    calls, answers = calls_of(messages), {one.tool_call_id for one in messages if isinstance(one, ToolMessage)}
    for id, message in calls.items():
        assert id in answers or message in kept, "a call without a result went"
    for one in messages:
        if isinstance(one, ToolMessage) and one.tool_call_id in calls:
            assert (one in kept) == (calls[one.tool_call_id] in kept), "a call and its result were parted"
    assert trim({**state, **changed}, CONTEXT) is None, "twice is not once"
    for newest in ([one for one in messages if isinstance(one, kind)][-1:] for kind in (HumanMessage, _SPOKEN)):
        assert not [one for one in newest if one not in kept], "what is to be answered went"


def test_a_call_whose_id_is_used_again_has_no_result_by_that() -> None:
    def call(id: str) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": "tool", "args": {}, "id": "x", "type": "tool_call"}], id=id)

    asked, unanswered, answered = HumanMessage("go", id="1"), call("2"), call("4")
    later, result, end = (
        HumanMessage("again", id="3"),
        ToolMessage("done", tool_call_id="x", id="5"),
        HumanMessage("end", id="6"),
    )
    changed: Any = trim_messages(last=2)({"messages": [asked, unanswered, later, answered, result, end]}, CONTEXT)
    assert changed == {"messages": [unanswered, end]}


def test_as_much_stays_as_may() -> None:
    messages = [HumanMessage(f"{number}", id=str(number)) for number in range(10)]
    for last in range(1, 12):
        changed: Any = trim_messages(last=last)({"messages": messages}, CONTEXT)
        assert (messages if changed is None else changed["messages"]) == messages[-last:]
    changed = trim_messages(tokens=50, counter=lambda some: 10 * len(some))({"messages": messages}, CONTEXT)
    assert changed == {"messages": messages[-5:]}


@pytest.mark.parametrize("limit", [{"last": 3}, {"tokens": 10}, {"bytes": 10}])
async def test_the_newest_stays_though_it_is_over_the_limit(limit: dict[str, Any]) -> None:
    calls = [{"name": "look_up", "args": {}, "id": f"c{number}", "type": "tool_call"} for number in range(9)]
    newest = [AIMessage("", tool_calls=calls), *(ToolMessage("x" * 99, tool_call_id=f"c{n}") for n in range(9))]
    asked = [SystemMessage("be brief"), HumanMessage("do nine things")]
    state = {"messages": [*asked, *newest]}
    assert trim_messages(**limit)(state, CONTEXT) is None
    assert summarize(lambda _: "short", **limit)(state, CONTEXT) is None
    older = [HumanMessage("before"), AIMessage("then")]
    state = {"messages": [asked[0], *older, asked[1], AIMessage("wait"), *newest]}
    assert trim_messages(**limit)(state, CONTEXT) == {"messages": [*asked, *newest]}
    told: list[Any] = []

    def write(gone: list[AnyMessage]) -> str:
        told.append(gone)
        return "short"

    changed: Any = await summarize(write, **limit)(state, CONTEXT)  # type: ignore[misc]
    assert told == [[*older, state["messages"][4]]]
    assert [one for one in changed["messages"] if one.name is None] == [*asked, *newest]
    assert summarize(lambda _: "shorter", **limit)(changed, CONTEXT) is None


async def test_a_summary_takes_the_place_of_what_went() -> None:
    messages = conversation(7, 40)

    async def write(gone: list[AnyMessage]) -> str:
        return f"{len(gone)} messages"

    compact = summarize(write, last=12)
    changed: Any = await compact({"messages": messages}, CONTEXT)  # type: ignore[misc]
    kept = [one for one in changed["messages"] if one.name != "milepost_summary"]
    (summary,) = (one for one in changed["messages"] if one.name == "milepost_summary")
    assert summary.content.endswith(f"{len(messages) - len(kept)} messages")
    assert kept == [one for one in messages if one in kept]
    assert compact(changed, CONTEXT) is None or len(changed["messages"]) > 12


def test_other_channels_are_left_alone() -> None:
    states: tuple[Any, ...] = ({}, {"messages": "text"}, {"messages": [1, 2]}, {"messages": []})
    for state in states:
        assert trim_messages(last=1)(state, CONTEXT) is None
        assert summarize(lambda _: "", last=1)(state, CONTEXT) is None
        assert offload_large()(state, CONTEXT) is None


def test_only_large_results_are_moved_out() -> None:
    context = Context("thread", "1", {})
    large, edge = "ü" * 5000, "x" * 4000
    messages = [
        ToolMessage(large, tool_call_id="1", id="1", artifact={"kept": True}),
        ToolMessage(edge, tool_call_id="2", id="2"),
        HumanMessage(large, id="3"),
    ]
    changed: Any = offload_large(over=4000, preview=3)({"messages": messages, "other": list(messages)}, context)
    assert changed.keys() == {"messages", "other"}
    assert list(context.attachments.items()) == [(address_of(large), large)]
    first = changed["messages"][0]
    assert first.content.startswith("üüü\n…\n[10000 bytes")
    assert (first.id, first.tool_call_id, first.artifact) == ("1", "1", {"kept": True})
    assert changed["messages"][1:] == messages[1:]
    assert messages[0].content == large, "the state was changed in place"
    assert offload_large(over=4000, preview=3)(changed, context) is None
    narrow: Any = offload_large(over=4000, channels=["other"])({"messages": messages, "other": messages}, context)
    assert narrow.keys() == {"other"}


def test_addresses() -> None:
    assert address_of("a") == address_of("a") != address_of(b"a")
    assert is_address(address_of("\ud800"))
    assert not is_address("text")
    assert not is_address(None)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (trim_messages, "last"),
        (lambda: trim_messages(last=0), "last"),
        (lambda: trim_messages(tokens=-1), "tokens"),
        (lambda: trim_messages(bytes="x"), "bytes"),
        (lambda: trim_messages(last=1, counter="c"), "counter"),  # type: ignore[arg-type]
        (lambda: summarize("fn", last=1), "fn"),  # type: ignore[arg-type]
        (lambda: offload_large(over=0), "over"),
        (lambda: offload_large(over=1000, preview=500), "over"),
        (lambda: offload_large(preview=-1), "preview"),
        (lambda: offload_large(channels="messages"), "channels"),
        (lambda: offload_large(channels=5), "channels"),  # type: ignore[arg-type]
        (lambda: offload_large(channels=[5]), "channel"),  # type: ignore[list-item]
        (lambda: trim_messages(last=1, channel=5), "channel"),  # type: ignore[arg-type]
        (lambda: summarize(str, last=1, channel=5), "channel"),  # type: ignore[arg-type]
    ],
)
def test_limits_that_cannot_be_right(make: Any, what: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        make()
    assert caught.value.what == what


def test_texts_in_blocks_are_moved() -> None:
    image = {"type": "image_url", "image_url": {"url": "x" * 9000}}
    blocks: list[Any] = [
        "a" * 5000,
        {"type": "text", "text": "b" * 5000, "id": "1"},
        {"type": "text", "text": "c"},
        image,
    ]
    context = Context("thread", "1", {})
    offload = offload_large(over=4000, preview=3)
    changed: Any = offload({"messages": [ToolMessage(blocks, tool_call_id="1")]}, context)
    ((first, second, *rest),) = (message.content for message in changed["messages"])
    assert sorted(context.attachments.values()) == ["a" * 5000, "b" * 5000]
    assert first.endswith(f"{address_of('a' * 5000)}]")
    assert second == {"type": "text", "text": second["text"], "id": "1"}
    assert second["text"].endswith(f"{address_of('b' * 5000)}]")
    assert rest == blocks[2:]
    assert offload(changed, context) is None
