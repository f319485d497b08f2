"""Compactors: small functions that make the state of a thread's latest checkpoint smaller.

A compactor is called with the state and a `Context`, and returns the channels that it changed, or None. It must not
change the state in place, must give the same for the same state, and must have nothing to do with what it returned
before: run twice, the second run finds nothing to change.
"""

from __future__ import annotations

import hashlib
import inspect
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import count_tokens_approximately

from milepost.errors import InvalidConfig
from milepost.places import check_channel, check_channels
from milepost.units import Size, count, size

Changes = Mapping[str, Any] | None
Attach = Callable[[str | bytes], str]

SUMMARY = "milepost_summary"
"""The name of a message that `summarize` made."""
_SCHEME = "sha256:"


@dataclass(slots=True)
class Context:
    """What a compactor is told beside the state."""

    thread: str
    checkpoint: str
    metadata: Mapping[str, Any]
    attachments: dict[str, str | bytes] = field(default_factory=dict)
    """What is attached, by address."""

    def attach(self, content: str | bytes) -> str:
        """Have `content` stored beside the thread, together with the new checkpoint. Returns its address, by which
        `milepost.saver.Saver.attachment` finds it."""
        address = address_of(content)
        self.attachments[address] = content
        return address


class Compactor(Protocol):
    """See the module. One that is `costly` is not called for a dry run."""

    def __call__(self, state: Mapping[str, Any], context: Context, /) -> Changes | Awaitable[Changes]: ...


def address_of(content: str | bytes) -> str:
    """The address of an attachment: a hash of its content."""
    kind, data = (b"s", content.encode("utf-8", "surrogatepass")) if isinstance(content, str) else (b"b", content)
    return _SCHEME + hashlib.sha256(kind + data).hexdigest()


def is_address(value: object) -> bool:
    """Whether `value` may be the address of an attachment."""
    return isinstance(value, str) and value.startswith(_SCHEME)


@dataclass(frozen=True, slots=True)
class _Limit:
    """How much of a list of messages stays."""

    last: int | None
    tokens: int | None
    bytes: int | None
    counter: Callable[[list[BaseMessage]], int]

    def holds(self, messages: Sequence[BaseMessage]) -> bool:
        if self.last is not None and len(messages) > self.last:
            return False
        if self.tokens is not None and self.counter(list(messages)) > self.tokens:
            return False
        return self.bytes is None or sum(map(_weight, messages)) <= self.bytes


def _limit(last: object, tokens: object, bytes: object, counter: object) -> _Limit:
    if last is None and tokens is None and bytes is None:
        raise InvalidConfig("no limit is given: pass last=, tokens= or bytes=", what="last", value="None")
    if counter is not None and not callable(counter):
        raise InvalidConfig(f"counter is {counter!r}: it must be a function of messages", what="counter")
    return _Limit(
        None if last is None else count(last, "last", 1),
        None if tokens is None else count(tokens, "tokens", 1),
        None if bytes is None else size(bytes, "bytes"),
        cast("Callable[[list[BaseMessage]], int]", counter or count_tokens_approximately),
    )


def _weight(message: BaseMessage) -> int:
    return len(message.model_dump_json().encode())


def _units(messages: Sequence[BaseMessage]) -> list[tuple[list[BaseMessage], bool]]:
    """Messages that stay and go together, and whether they must stay: a call with its results, whatever lies between."""
    results = _results(messages)
    units: list[tuple[list[BaseMessage], bool]] = []
    at = 0
    while at < len(messages):
        end, start, must_stay = at + 1, at, False
        while at < end:
            message = messages[at]
            places = (
                [results.get((at, call["id"]), -1) for call in message.tool_calls]
                if isinstance(message, AIMessage)
                else []
            )
            end = max(end, *(place + 1 for place in places), at + 1)
            # A call that has no result yet.
            must_stay = must_stay or isinstance(message, SystemMessage) or any(place < at for place in places)
            at += 1
        units.append((list(messages[start:end]), must_stay))
    return units


def _results(messages: Sequence[BaseMessage]) -> dict[tuple[int, str | None], int]:
    """Where the last result of a call is, by the place of its message and its id. A provider may use an id again: a result
    is that of the latest call before it."""
    called: dict[str | None, int] = {}
    results: dict[tuple[int, str | None], int] = {}
    for at, message in enumerate(messages):
        if isinstance(message, AIMessage):
            called.update((call["id"], at) for call in message.tool_calls)
        elif isinstance(message, ToolMessage) and message.tool_call_id in called:
            results[called[message.tool_call_id], message.tool_call_id] = at
    return results


def _newest(units: Sequence[tuple[Sequence[BaseMessage], bool]]) -> set[int]:
    """The newest of `units`, and the one with the newest message of a human: what the model is to answer."""
    spoken = [
        (at, isinstance(one, HumanMessage))
        for at, (unit, _) in enumerate(units)
        for one in unit
        if not isinstance(one, SystemMessage) and one.name != SUMMARY
    ]
    asked = [said for said in spoken if said[1]]
    return {at for at, _ in (*spoken[-1:], *asked[-1:])}


def _split(
    messages: Sequence[BaseMessage], limit: _Limit, room: int = 0
) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """(the oldest messages that have to go, those that stay), leaving `room` messages free."""
    units = _units(messages)
    newest = _newest(units)
    loose = [number for number, (_, must_stay) in enumerate(units) if not must_stay and number not in newest]
    filler: list[BaseMessage] = [HumanMessage("") for _ in range(room)]

    def without(how_many: int) -> list[BaseMessage]:
        gone = set(loose[:how_many])
        return [one for at, (unit, _) in enumerate(units) if at not in gone for one in unit]

    needed = bisect_left(range(len(loose)), True, key=lambda number: limit.holds([*filler, *without(number)]))
    gone = set(loose[:needed])
    return [one for at in sorted(gone) for one in units[at][0]], without(needed)


def parted(before: object, after: object) -> str:
    """What a list of messages must not become: why a model would not take `after` any more, or ""."""
    if not isinstance(before, list) or not before or not all(isinstance(one, BaseMessage) for one in before):
        return ""
    if not isinstance(after, list) or not all(isinstance(one, BaseMessage) for one in after):
        return "it is not a list of messages any more"
    (calls, results), (old_calls, old_results) = _calls(after), _calls(before)
    if alone := results - calls - (old_results - old_calls):
        return f"it has results without their tool calls: {sorted(alone)}"
    if alone := calls - results - (old_calls - old_results):
        return f"it has tool calls without their results: {sorted(alone)}"
    return ""


def _calls(messages: Iterable[BaseMessage]) -> tuple[set[str], set[str]]:
    """The ids of tool calls, and of those that have results."""
    found = list(messages)
    calls = {str(call["id"]) for one in found if isinstance(one, AIMessage) for call in one.tool_calls}
    return calls, {one.tool_call_id for one in found if isinstance(one, ToolMessage)}


def _messages(state: Mapping[str, Any], channel: str) -> list[BaseMessage] | None:
    found = state.get(channel)
    if not isinstance(found, list) or not all(isinstance(one, BaseMessage) for one in found):
        return None
    return found


@dataclass(frozen=True, slots=True)
class _Trim:
    channel: str
    limit: _Limit
    costly = False

    def __call__(self, state: Mapping[str, Any], context: Context) -> Changes:
        messages = _messages(state, self.channel)
        if messages is None or self.limit.holds(messages):
            return None
        gone, kept = _split(messages, self.limit)
        return {self.channel: kept} if gone else None


def trim_messages(
    *,
    last: int | None = None,
    tokens: int | None = None,
    bytes: Size | None = None,
    channel: str = "messages",
    counter: Callable[[list[BaseMessage]], int] | None = None,
) -> Compactor:
    """Drops the oldest messages until the rest is within the limits.

    System messages stay, and so do the newest message of a human and the newest message of all. An AI message and the
    results of its tool calls stay or go together, and one with a call that has no result yet stays. So the rest may be
    over a limit: a single large result is what `offload_large` is for.

    Args:
        last: how many messages stay at most.
        tokens: how many tokens they have at most, by `counter`.
        bytes: how many bytes they have at most, as JSON.
        channel: where the messages are.
        counter: counts the tokens of messages; by default LangChain's approximation.
    """
    return _Trim(check_channel(channel), _limit(last, tokens, bytes, counter))


@dataclass(frozen=True, slots=True)
class _Summarize:
    write: Callable[[list[AnyMessage]], Any]
    channel: str
    limit: _Limit
    costly = True

    async def _changed(self, gone: list[BaseMessage], kept: list[BaseMessage]) -> Changes:
        found: Any = self.write(gone)  # type: ignore[arg-type]
        if inspect.isawaitable(found):
            found = await found
        text = found.strip() if isinstance(found, str) else None
        if isinstance(found, str):
            whole = f"Summary of the conversation so far:\n\n{found}"
            found = HumanMessage(whole, name=SUMMARY, id=f"{SUMMARY}:{gone[-1].id or len(gone)}")
        if not isinstance(found, BaseMessage):
            raise InvalidConfig(
                f"the summary is {type(found).__name__}: the function must return a text or a message", what="fn"
            )
        if text == "" or not found.content:
            raise InvalidConfig("the summary is empty: what it takes the place of would be lost", what="fn")
        # In the place of what went, behind the system messages in front.
        front = next((at for at, one in enumerate(kept) if not isinstance(one, SystemMessage)), len(kept))
        return {self.channel: [*kept[:front], found, *kept[front:]]}

    def __call__(self, state: Mapping[str, Any], context: Context) -> Changes | Awaitable[Changes]:
        messages = _messages(state, self.channel)
        if messages is None or self.limit.holds(messages):
            return None
        gone, kept = _split(messages, self.limit, room=1)
        # To replace a summary alone by a summary of it would go on for ever.
        if not [one for one in gone if one.name != SUMMARY]:
            return None
        return self._changed(gone, kept)


def summarize(
    fn: Callable[[list[AnyMessage]], Any],
    *,
    last: int | None = None,
    tokens: int | None = None,
    bytes: Size | None = None,
    channel: str = "messages",
    counter: Callable[[list[BaseMessage]], int] | None = None,
) -> Compactor:
    """Replaces the oldest messages by a summary once they are over the limits: those that `trim_messages` would drop.

    `fn` gets them (an earlier summary among them) and returns a text, which becomes a human message behind the system
    messages, or a message. It may be a coroutine function where maintenance is async. It is not called for a dry run.
    """
    if not callable(fn):
        raise InvalidConfig(f"fn is {fn!r}: it must be a function from messages to a text", what="fn")
    return _Summarize(fn, check_channel(channel), _limit(last, tokens, bytes, counter))


@dataclass(frozen=True, slots=True)
class _Offload:
    over: int
    preview: int
    channels: Collection[str] | None
    costly = False

    def __call__(self, state: Mapping[str, Any], context: Context) -> Changes:
        changed: dict[str, Any] = {}
        for channel, value in state.items():
            if (self.channels is None or channel in self.channels) and isinstance(value, list):
                smaller = [self._smaller(one, context) for one in value]
                if any(new is not old for new, old in zip(smaller, value, strict=True)):
                    changed[channel] = smaller
        return changed or None

    def _smaller(self, message: object, context: Context) -> object:
        if not isinstance(message, ToolMessage):
            return message
        content: object = message.content
        if isinstance(content, str):
            smaller: object = self._text(content, context)
        else:
            smaller = [self._block(block, context) for block in message.content]
            if all(new is old for new, old in zip(smaller, message.content, strict=True)):
                smaller = content
        return message if smaller is content else message.model_copy(update={"content": smaller})

    def _block(self, block: object, context: Context) -> object:
        """A block of a message's content; only the texts of blocks are moved."""
        if isinstance(block, str):
            return self._text(block, context)
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(old := block.get("text"), str):
            new = self._text(old, context)
            return block if new is old else {**block, "text": new}
        return block

    def _text(self, text: str, context: Context) -> str:
        """`text` itself, or what stays of it."""
        length = len(text.encode("utf-8", "surrogatepass"))
        if length <= self.over:
            return text
        note = f"[{length} bytes, stored as attachment {context.attach(text)}]"
        start = text[: self.preview]
        return f"{start}\n…\n{note}" if start else note


def offload_large(over: Size = "64kB", *, preview: int = 500, channels: Iterable[str] | None = None) -> Compactor:
    """Moves the text of large tool results out of the state, to attachments stored once per thread: a content that is a
    text, and of content blocks each text by itself.

    What stays is its first `preview` characters and the attachment's address, ``sha256:…``, by which
    `milepost.saver.Saver.attachment` finds it: give the model a tool that calls it.

    Args:
        over: texts of more bytes than this are moved. It must leave room for the preview and the address.
        preview: how many characters stay.
        channels: the lists in which results are looked for; all with None.
    """
    limit, start = size(over, "over"), count(preview, "preview")
    if limit < 4 * start + 200:
        raise InvalidConfig(
            f"over is {over!r}: it must leave room for {start} characters of preview and the address, so be at least "
            f"{4 * start + 200} bytes",
            what="over",
            value=repr(over),
        )
    return _Offload(limit, start, None if channels is None else frozenset(check_channels(channels)))
