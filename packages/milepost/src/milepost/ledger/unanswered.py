"""Calls in a list of messages that no tool message answers, and what the records say to them. Pure computing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

from milepost.codec.calls import call_key
from milepost.ledger.commands import END, Command
from milepost.ledger.record import CallRecord
from milepost.ledger.results import answer_of, replayed

Part: TypeAlias = "ToolMessage | Command[Any]"

NOT_RECORDED: Final = (
    "nothing is recorded of it: it was not begun, its tool is readonly, or its key is recorded for other arguments"
)
_OPEN: Final = {
    "started": "it is being performed, or its worker is gone: settle it with Ledger.resolve",
    "in_doubt": "nobody knows whether it took place: settle it with Ledger.resolve",
    "suspended": "it has asked a question, and waits for the answer: resume the run",
    "compensating": "it is being undone: repeat the rollback",
    "compensation_failed": "it could not be undone: repeat the rollback, or settle it with Ledger.resolve",
}


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A call that a repair could not answer."""

    namespace: str
    """Of the graph whose messages ask for it; "" is the outermost."""
    message: str | None
    call: str | None
    tool: str
    reason: str
    record: CallRecord | None = None
    """What is recorded of it, where that is one record."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What a repair has done."""

    thread: str
    added: tuple[ToolMessage, ...] = ()
    """The tool messages that the thread has got."""
    left: tuple[Unanswered, ...] = ()
    """The calls that are still not answered, and why."""


@dataclass(slots=True)
class Question:
    """A call that is not answered."""

    position: int
    """Of the message that asks for it."""
    message: AIMessage
    call: ToolCall
    repeats: bool
    """The message uses the call's id for others too."""
    mixed: bool
    """Others of the same id are answered: whether this one is cannot be told."""
    record: CallRecord | None = None
    parts: tuple[Part, ...] = ()
    """The answer."""
    reason: str = ""
    """Why there is none."""

    def left(self, namespace: str) -> Unanswered:
        return Unanswered(
            namespace, self.message.id, self.call["id"], self.call["name"], self.reason or NOT_RECORDED, self.record
        )


def questions_in(messages: Sequence[BaseMessage]) -> list[Question]:
    """The calls that no tool message answers. An id that is used again later has an answer for each use."""
    asking = [
        (position, message)
        for position, message in enumerate(messages)
        if isinstance(message, AIMessage) and message.tool_calls
    ]
    found: list[Question] = []
    for number, (position, message) in enumerate(asking):
        ids = [call["id"] for call in message.tool_calls]
        for call in message.tool_calls:
            again = (
                at for at, later in asking[number + 1 :] if any(one["id"] == call["id"] for one in later.tool_calls)
            )
            answers = sum(
                isinstance(one, ToolMessage) and one.tool_call_id == call["id"]
                for one in messages[position : next(again, len(messages))]
            )
            times = ids.count(call["id"])
            if answers < times:
                found.append(Question(position, message, call, times > 1, answers > 0))
    return found


def answer(
    question: Question, records: Sequence[CallRecord], thread: str, tenant: str, epoch: str, own: str | None
) -> None:
    """Give the question the answer that is recorded, or the reason why there is none.

    `epoch` is that of the run which led to the messages, `own` the key of the user's that the call's tool has for its
    arguments.
    """
    if question.mixed:
        question.reason = (
            "its message uses its id several times, and some of these calls are answered: which is not known"
        )
        return
    found = [record for record in records if record.info.tenant == tenant and _asks(question, record, thread)]
    # The ids under a key of the user's are those of who asked first.
    found = found or [record for record in records if record.info.tenant == tenant and _is(question.call, record, own)]
    if question.repeats:
        found = [record for record in found if _says(question, record)]
    if len(found) > 1:
        found = [record for record in found if record.info.epoch == epoch] or found
    if len(found) > 1:
        question.reason = f"{len(found)} records are of it, of several epochs or keys: which one led here is not known"
        return
    if not found:
        if question.repeats:
            question.reason = f"its message uses its id several times; with these arguments, {NOT_RECORDED}"
        return
    record = question.record = found[0]
    if record.state in _OPEN:
        question.reason = _OPEN[record.state]
        return
    question.parts = tuple(_told(record, question.call["id"]))
    if not any(_answers(part, question.call["id"]) for part in question.parts):
        question.parts, question.reason = (
            (),
            "its result hands over to the graph around its own, and does not answer it",
        )


def _asks(question: Question, record: CallRecord, thread: str) -> bool:
    """Whether the record is of the question, in any wording."""
    info, message, call = record.info, question.message.id, question.call["id"]
    if message is None:
        if (info.message, info.position, info.call) == (None, question.position, call):
            return True
    elif (message, call or "") in info.asked_by:
        return True
    # Records of earlier releases do not tell their former wordings, but are found by them.
    asked = replace(info, message=message, call=call, position=question.position, apart="")
    return info.own is None and bool(record.aliases) and call_key(thread, asked) in (record.key, *record.aliases)


def _is(call: ToolCall, record: CallRecord, own: str | None) -> bool:
    """Whether the record is of this key, and of these arguments to the letter: which are defaults is not known here."""
    return (
        own is not None and record.info.own == own and (record.tool, record.arguments) == (call["name"], call["args"])
    )


def _says(question: Question, record: CallRecord) -> bool:
    """Whether the record can be of this call alone, of those that share its id: it may have defaults besides."""
    arguments = record.arguments

    def fits(call: ToolCall) -> bool:
        return (
            record.tool == call["name"]
            and isinstance(arguments, Mapping)
            and all(name in arguments and arguments[name] == value for name, value in call["args"].items())
        )

    call = question.call
    if not fits(call) or arguments == call["args"]:
        return fits(call)
    others = (one for one in question.message.tool_calls if one["id"] == call["id"] and one["args"] != call["args"])
    return not any(fits(other) for other in others)


def _told(record: CallRecord, call: str | None) -> Sequence[Part]:
    then = record.info.call
    if record.state == "succeeded":
        result = answer_of(record.result, record.tool, then)
    else:
        said = (
            "This call was performed, and has been undone since."
            if record.state == "compensated"
            else f"This call did not take effect: {record.reason}"
        )
        result = ToolMessage(said, name=record.tool, tool_call_id=then or "", status="error")
    result = replayed(result, record.key, then, call)
    return result if isinstance(result, list) else [result]


def named(messages: Sequence[ToolMessage], name: str, used: dict[str, int]) -> list[ToolMessage]:
    """The messages with ids, the same in each repair. `used` counts those that begin with `name`."""
    found: list[ToolMessage] = []
    for message in messages:
        if message.id is None:
            number = used[name] = used.get(name, -1) + 1
            found.append(message.model_copy(update={"id": f"{name}:{number}" if number else name}))
        else:
            found.append(message)
    return found


def plain(parts: Sequence[Part], channel: str) -> list[ToolMessage] | None:
    """The tool messages that `parts` come to; None where they change more than the messages, or where the run goes."""
    found: list[ToolMessage] = []
    for part in parts:
        if isinstance(part, ToolMessage):
            found.append(part)
            continue
        update: dict[Any, Any] = (
            part.update if isinstance(part.update, dict) else {} if part.update is None else {None: part.update}
        )
        messages = update.get(channel, [])
        if (
            part.graph is not None
            or part.resume is not None
            or part.goto not in ((), [], END)
            or update.keys() - {channel}
        ):
            return None
        if not isinstance(messages, list) or not all(isinstance(one, ToolMessage) for one in messages):
            return None
        found += messages
    return found


def _answers(part: Part, call: str | None) -> bool:
    if isinstance(part, ToolMessage):
        return part.tool_call_id == call
    if part.graph is not None:
        return False
    if not isinstance(part.update, dict | list):
        # A state of another kind: what its graph makes of it only that knows.
        return part.update is not None
    values = part.update.values() if isinstance(part.update, dict) else [part.update, *_values(part.update)]
    return any(one.tool_call_id == call for value in values for one in tool_messages(value))


def _values(pairs: Sequence[Any]) -> list[Any]:
    """Those of an update that is a list of pairs."""
    return [pair[1] for pair in pairs if isinstance(pair, tuple) and len(pair) == 2]


def tool_messages(value: Any) -> list[ToolMessage]:
    """Those in the value of a channel."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, ToolMessage)]


def with_answers(messages: Sequence[BaseMessage], answers: Sequence[tuple[int, Sequence[ToolMessage]]]) -> list[Any]:
    """`messages` with the answers to the questions, each behind the message at its position."""
    whole: list[BaseMessage] = []
    for position, message in enumerate(messages):
        whole.append(message)
        for at, given in answers:
            if at == position:
                whole += given
    return whole


def at_end(question: Question, messages: Sequence[BaseMessage]) -> bool:
    """Whether nothing but answers follows the message that asks."""
    return all(isinstance(message, ToolMessage) for message in messages[question.position + 1 :])
