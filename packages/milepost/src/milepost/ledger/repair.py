"""Repair: give a thread the answers that are recorded, and that its messages lack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from langchain_core.messages import BaseMessage, ToolCall, ToolMessage
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6

from milepost.callstore import CallQuery
from milepost.errors import InvalidConfig
from milepost.ledger.commands import Command, InvalidUpdateError, StateUpdate
from milepost.ledger.core import Core
from milepost.ledger.hands import Hands
from milepost.ledger.record import CallRecord
from milepost.ledger.request import EPOCH
from milepost.ledger.unanswered import (
    Part,
    Question,
    Repair,
    Unanswered,
    answer,
    at_end,
    named,
    plain,
    questions_in,
    tool_messages,
    with_answers,
)
from milepost.ledger.upkeep import Upkeep, of_changes, space_of
from milepost.observe import log
from milepost.places import Place

_BRANCH: Final = "branch:to:"
"""Begins the channels by which LangGraph starts a node."""
_TASKS: Final = "__pregel_tasks"
"""The channel of what a `Send` starts."""
_NO_GRAPH: Final = (
    "its result is a Command that changes more than the messages, or says where the run goes on: repair with graph=…"
)
_GONE_ON: Final = (
    "its result can only be applied by the graph, and the thread has gone on since: go back to before that, or apply it by "
    "update_state"
)


@dataclass(frozen=True, slots=True)
class Driver:
    """The graph of a thread, in one flavour: what a `Command` means only it knows."""

    state: Callable[[Any], Any]
    """``get_state``."""
    update: Callable[[Any, Any], Any]
    """``bulk_update_state``."""
    node: str | None
    """The node that performs tools; None to find out."""


@dataclass(slots=True)
class _Head:
    """The latest checkpoint of a namespace."""

    place: Place
    found: CheckpointTuple
    channel: str
    messages: list[BaseMessage]
    delta: bool
    """The messages are stored as changes, which only the graph can put together."""
    questions: list[Question]

    @property
    def config(self) -> Any:
        return {"configurable": {"thread_id": self.place.thread, "checkpoint_ns": self.place.ns}}


class Repairs:
    """Repairs over a core."""

    def __init__(self, core: Core, upkeep: Upkeep) -> None:
        self._core = core
        self._upkeep = upkeep

    async def repair(self, hands: Hands, thread: str, channel: str, driver: Driver | None) -> Repair:
        """See `milepost.ledger.Ledger.repair`. To be called under the thread's lease."""
        records = await self._records(hands, thread)
        added: list[ToolMessage] = []
        left: list[Unanswered] = []
        seen = not any(record.thread and record.info.call is not None for record in records)
        for ns in sorted({"", *(space_of(record.info) for record in records if record.thread)}):
            head = await self._head(hands, Place(thread, ns, None), channel, driver, records)
            if head is None:
                continue
            seen |= head.delta or channel in head.found.checkpoint["channel_values"]
            if driver is not None and (head.delta or _needs_graph(head)):
                done = await self._through(hands, head, driver)
                if done:
                    added += done
                    head = await self._head(hands, head.place, channel, driver, records)
                    assert head is not None
            if head.delta:
                for question in head.questions:
                    if question.parts:
                        question.parts, question.reason = (), question.reason or _GONE_ON
            else:
                added += await self._directly(hands, head, driver)
            left += [question.left(ns) for question in head.questions if not question.parts]
        if not seen:
            raise InvalidConfig(
                f"no checkpoint of thread {thread!r} has the channel {channel!r}: name the list of messages",
                what="channel",
            )
        return Repair(thread, tuple(added), tuple(left))

    async def _records(self, hands: Hands, thread: str) -> list[CallRecord]:
        """The calls of a thread, and those of keys that are one in all threads: there is no index of these."""
        settings, book = self._core.settings, self._core.book
        rows = await self._upkeep.listed(hands, CallQuery(thread))
        if any(policy.scope == "global" for policy in (*settings.tools.values(), settings.default)):
            rows += await self._upkeep.listed(hands, CallQuery(""))
        return [book.open(row) for row in rows if not book.info(row).step]

    async def _head(
        self, hands: Hands, place: Place, channel: str, driver: Driver | None, records: Sequence[CallRecord]
    ) -> _Head | None:
        found = await self._core.saver.operations.get_tuple(hands.side, place)
        if found is None:
            return None
        metadata = cast("Mapping[str, Any]", found.metadata)
        delta = of_changes(found, channel)
        messages = found.checkpoint["channel_values"].get(channel, [])
        head = _Head(place, found, channel, [], delta, [])
        if delta:
            if driver is None:
                raise InvalidConfig(
                    f"the channel {channel!r} of thread {place.thread!r} is stored as changes, which only its graph can "
                    "put together: pass graph=…",
                    what="graph",
                )
            messages = (await hands.do(driver.state, head.config)).values.get(channel, [])
        if not isinstance(messages, list) or not all(isinstance(message, BaseMessage) for message in messages):
            raise InvalidConfig(
                f"the channel {channel!r} of thread {place.thread!r} is no list of messages: name the one that is",
                what="channel",
            )
        head.messages, head.questions = messages, questions_in(messages)
        for question in head.questions:
            tenant, epoch = self._core.settings.tenant, str(metadata.get(EPOCH) or "")
            answer(question, records, place.thread, tenant, epoch, self._own_key(question.call))
        return head

    def _own_key(self, call: ToolCall) -> str | None:
        """The key that the tool's class has for a call, by what the model said."""
        settings = self._core.settings
        make = settings.tools.get(call["name"], settings.default).key
        try:
            return None if make is None else make(call["args"])
        except Exception as exc:
            # It is made for arguments that are validated.
            log.debug("the key function of %r raised %r", call["name"], exc)
            return None

    # By a checkpoint of our own: also behind messages that others follow.

    async def _directly(self, hands: Hands, head: _Head, driver: Driver | None) -> list[ToolMessage]:
        """Put the answers that are tool messages and nothing else, each behind its call."""
        used: dict[str, int] = {}
        answers: list[tuple[int, Sequence[ToolMessage]]] = []
        for question in head.questions:
            messages: Sequence[ToolMessage] | None
            if question.parts and question.record is not None:
                name = f"{question.record.key}:{question.record.generation}"
                if (messages := plain(question.parts, head.channel)) is None:
                    question.parts = ()
                    question.reason = question.reason or (_NO_GRAPH if driver is None else _GONE_ON)
                    continue
            elif (pending := _pending(question, head)) is not None:
                name, messages = pending
            else:
                continue
            messages = named(messages, name, used)
            question.parts = tuple(messages)
            answers.append((question.position, messages))
        if answers:
            await self._put(hands, head, with_answers(head.messages, answers))
        return [message for _, messages in answers for message in messages]

    async def _put(self, hands: Hands, head: _Head, messages: list[BaseMessage]) -> None:
        operations, found, channel = self._core.saver.operations, head.found, head.channel
        parent = found.checkpoint["id"]
        versions = dict(found.checkpoint["channel_versions"])
        versions[channel] = self._core.saver.get_next_version(versions.get(channel), None)
        checkpoint: dict[str, Any] = {
            **found.checkpoint,
            "id": str(uuid6(clock_seq=-2)),
            "ts": datetime.now(UTC).isoformat(),
            "channel_values": {**found.checkpoint["channel_values"], channel: messages},
            "channel_versions": versions,
            "updated_channels": [channel],
        }
        metadata: dict[str, Any] = {
            "source": "update",
            "step": found.metadata.get("step", -1) + 1,
            "parents": found.metadata.get("parents", {}),
        }
        draft = operations.codec.draft(
            head.place.thread,
            head.place.ns,
            checkpoint["id"],
            parent,
            cast("Checkpoint", checkpoint),
            cast("CheckpointMetadata", metadata),
            {channel: versions[channel]},
        )
        await operations.put(hands.side, head.place._replace(id=parent), draft)

    # By the graph: with its reducers and edges, as if its node had returned the results.

    async def _through(self, hands: Hands, head: _Head, driver: Driver) -> list[ToolMessage]:
        """Update the state with the answers to the last calls, in one step with what finished tasks beside them have
        written. Does nothing, and says why of each, where not all of them have one."""
        last = [question for question in head.questions if at_end(question, head.messages)]
        if not any(question.parts for question in last):
            return []
        ended: dict[str, list[tuple[str, Any]]] = {}
        try:
            tasks = {task.id: task.name for task in (await hands.do(driver.state, head.config)).tasks}
            ended = {id: writes for id, writes in _ended(head).items() if id in tasks}
            updates, reason = self._updates(head, driver, last, tasks, ended)
            if not reason:
                await hands.do(driver.update, head.config, [updates])
        except (InvalidUpdateError, ValueError) as exc:
            # No such subgraph, or two values for a channel that takes one.
            reason = f"its result can only be applied by the graph, which refuses it: {exc}"
        if reason:
            for question in last:
                question.reason = question.reason or reason
            return []
        answers = [one for writes in ended.values() for one in _answers_in(writes, head.channel)]
        known = {one.tool_call_id for one in answers}
        parts = [part for question in last if question.call["id"] not in known for part in question.parts]
        answers += [one for part in parts for one in _messages_of(part, head.channel)]
        asked = {question.call["id"] for question in last}
        return [one for one in answers if one.tool_call_id in asked]

    def _updates(
        self,
        head: _Head,
        driver: Driver,
        last: Sequence[Question],
        tasks: Mapping[str, str],
        ended: Mapping[str, Sequence[tuple[str, Any]]],
    ) -> tuple[list[StateUpdate], str]:
        """What the graph is to be updated with; or why it cannot be."""
        known = {one.tool_call_id for writes in ended.values() for one in _answers_in(writes, head.channel)}
        open_ = [question for question in last if question.call["id"] not in known]
        if not all(question.parts for question in open_):
            return [], "other calls of its message are not settled: settle them first"
        if any(channel == _TASKS for writes in ended.values() for channel, _ in writes):
            return [], "a task beside it has ended with a Send: resume the run"
        updates = [StateUpdate(cast("Any", _as_command(writes)), tasks[id], id) for id, writes in ended.items()]
        if not open_:
            return updates, ""
        nodes = {name for id, name in tasks.items() if id not in ended}
        node = driver.node or (next(iter(nodes)) if len(nodes) == 1 else None)
        if node is None:
            return [], "which node performs it is not known: name it, as_node=…"
        parts = [part for question in open_ for part in question.parts]
        values: Any = [part if isinstance(part, Command) else {head.channel: [part]} for part in parts]
        if not any(isinstance(part, Command) for part in parts):
            values = {head.channel: parts}
        return [*updates, StateUpdate(values, node)], ""


def driver_of(core: Core, graph: object, node: str | None, *, blocking: bool) -> Driver | None:
    """`graph` for a repair. Raises `InvalidConfig` for what is no graph over the ledger's store."""
    if graph is None:
        if node is not None:
            raise InvalidConfig(
                "as_node is a node of a graph: pass graph=… too", what="as_node", value=repr(node)[:200]
            )
        return None
    names = ("get_state", "bulk_update_state") if blocking else ("aget_state", "abulk_update_state")
    methods = [getattr(graph, name, None) for name in names]
    own = getattr(getattr(getattr(graph, "checkpointer", None), "operations", None), "shared", None)
    if not all(map(callable, methods)) or own is None or own.backend is not core.saver.operations.shared.backend:
        raise InvalidConfig(
            f"graph is {graph!r:.200}: pass the compiled graph of the thread, whose checkpointer is the ledger's saver",
            what="graph",
        )
    state, update = cast("Sequence[Callable[..., Any]]", methods)
    return Driver(state, update, node)


def _needs_graph(head: _Head) -> bool:
    return any(question.parts and plain(question.parts, head.channel) is None for question in head.questions)


def _ended(head: _Head) -> dict[str, list[tuple[str, Any]]]:
    """What tasks have written that have ended since the checkpoint."""
    written: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in head.found.pending_writes or ():
        if channel == _TASKS or not channel.startswith("__"):
            written.setdefault(task, []).append((channel, value))
    return written


def _pending(question: Question, head: _Head) -> tuple[str, list[ToolMessage]] | None:
    """The answer that a task has written which has ended, and that no checkpoint has yet; and a name for it."""
    for task, writes in _ended(head).items():
        messages = [one for one in _answers_in(writes, head.channel) if one.tool_call_id == question.call["id"]]
        if question.repeats or not messages:
            continue
        if any(channel not in (head.channel, _TASKS) and not channel.startswith(_BRANCH) for channel, _ in writes):
            question.reason = "its task has ended, and has changed more than the messages: resume the run"
            return None
        return task, messages
    return None


def _answers_in(writes: Sequence[tuple[str, Any]], channel: str) -> list[ToolMessage]:
    return [one for name, value in writes if name == channel for one in tool_messages(value)]


def _messages_of(part: Part, channel: str) -> list[ToolMessage]:
    if isinstance(part, ToolMessage):
        return [part]
    return tool_messages(part.update.get(channel)) if isinstance(part.update, dict) else []


def _as_command(writes: Sequence[tuple[str, Any]]) -> Command[Any]:
    """What a task has written, for its node to return."""
    goto = [channel.removeprefix(_BRANCH) for channel, _ in writes if channel.startswith(_BRANCH)]
    return Command(update=[write for write in writes if not write[0].startswith(_BRANCH)], goto=goto)
