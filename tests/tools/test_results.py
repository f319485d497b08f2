from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import END
from langgraph.types import Command, Send
from milepost.ledger.results import answer_of, replayed, stored
from milepost.tools.routing import fan_out


def _message(id: str, **more: Any) -> ToolMessage:
    return ToolMessage("done", tool_call_id=id, **more)


def test_a_replayed_message_answers_the_call_at_hand_and_says_that_it_is_one() -> None:
    original = _message("old", artifact={"a": 1}, status="error", response_metadata={"x": 1})
    answer = replayed(stored(original, "old"), "k", None, "new")
    assert (answer.tool_call_id, answer.artifact, answer.status) == ("new", {"a": 1}, "error")
    assert answer.response_metadata == {"x": 1, "milepost": {"replay": True, "key": "k"}}
    assert (original.tool_call_id, original.response_metadata) == ("old", {"x": 1})


def test_messages_deep_in_commands_are_found_and_others_left() -> None:
    command: Command[str] = Command(
        update={"messages": [_message("old"), _message("other"), HumanMessage("hi")], "n": 3},
        goto=[Send("agent", {"messages": (_message("old"),)})],
        graph=Command.PARENT,
    )
    (answer, plain) = replayed(stored([command, _message("old")], "old"), "k", "old", "new")
    assert isinstance(answer, Command)
    assert isinstance(answer.update, dict)
    assert [getattr(one, "tool_call_id", None) for one in answer.update["messages"]] == ["new", "other", None]
    assert answer.update["n"] == 3
    assert answer.graph == Command.PARENT
    assert isinstance(answer.goto, list)
    (send,) = answer.goto
    assert isinstance(send, Send)
    assert send.arg["messages"][0].tool_call_id == "new"
    assert isinstance(plain, ToolMessage)
    assert plain.tool_call_id == "new"


class Place(NamedTuple):
    x: Any
    y: int


class Trail(list[Any]):
    """A list that is not made of an iterable."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__([a, b])


def test_values_without_an_answer_keep_their_identity_and_others_their_class() -> None:
    kept: dict[str, Any] = {"place": Place(1, 2), "trail": Trail(1, 2), "many": OrderedDict(a=[1]), "set": {1}}
    command: Command[str] = Command(
        update={**kept, "found": Place(_message("old"), 3), "by": OrderedDict(a=_message("old"))}
    )
    update = stored(command, "old").update
    assert isinstance(update, dict)
    assert all(update[name] is value for name, value in kept.items())
    assert (type(update["found"]), update["found"].x.tool_call_id, update["found"].y) == (Place, "", 3)
    assert (type(update["by"]), update["by"]["a"].tool_call_id) == (OrderedDict, "")
    untouched: Command[str] = Command(goto=[Send("a", kept)])
    assert stored(untouched, "old") is untouched


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("charged", "charged"),
        ({"id": 7, "name": "é"}, '{"id": 7, "name": "é"}'),
        (None, "This call was performed. What it returned is not known."),
        ([], "[]"),
    ],
)
def test_a_verdict_of_any_type_is_told_as_a_message(result: Any, text: str) -> None:
    answer = answer_of(result, "pay", "1")
    assert (answer.content, answer.name, answer.tool_call_id) == (text, "pay", "1")


def test_a_verdict_that_is_an_answer_stays_as_it_is() -> None:
    for result in (_message("1"), Command(goto="a"), [_message("1"), Command(goto="a")]):
        assert answer_of(result, "pay", "1") is result
    (answer,) = replayed([_message("then")], "k", "then", "now")
    assert answer.tool_call_id == "now"


CALLS: list[Any] = [{"name": "pay", "args": {}, "id": id, "type": "tool_call"} for id in ("1", "2")]


@pytest.mark.parametrize(
    ("messages", "ids"),
    [
        ([HumanMessage("hi"), AIMessage("", tool_calls=CALLS)], ["1", "2"]),
        ([AIMessage("", tool_calls=CALLS), _message("2")], ["1"]),
        ([AIMessage("", tool_calls=CALLS), _message("2"), _message("1")], []),
        ([AIMessage("", tool_calls=[CALLS[0], CALLS[0]]), _message("1")], ["1", "1"]),
        ([AIMessage("", tool_calls=CALLS), HumanMessage("hi"), AIMessage("hello")], []),
        ([HumanMessage("hi")], []),
    ],
)
def test_a_fan_out_has_a_task_for_each_call_without_an_answer(messages: list[Any], ids: list[str]) -> None:
    for state in (messages, {"messages": messages}):
        tasks = fan_out("pay them")(state)
        if not ids:
            assert tasks == END
            continue
        assert isinstance(tasks, list)
        assert [(task.node, [call["id"] for call in task.arg]) for task in tasks] == [("pay them", [id]) for id in ids]
