"""The ledger around the calls of a ToolNode."""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool
from langgraph import errors
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp, GraphInterrupt, ParentCommand
from langgraph.prebuilt.tool_node import ToolCallRequest

from milepost.callstore import CallQuery
from milepost.errors import InvalidConfig
from milepost.flavour import run
from milepost.ledger import (
    Call,
    CallPaused,
    CallRequest,
    CallStopped,
    LedgerError,
    Replay,
    ToolPolicy,
    Verdict,
    applied,
    current_call,
    not_applied,
    unknown,
)
from milepost.ledger import Ledger as PlainLedger
from milepost.ledger.basis import OverSaver
from milepost.ledger.hands import Hands
from milepost.ledger.policy import Declared
from milepost.ledger.results import answer_of, replayed, stored
from milepost.ledger.words import text
from milepost.observe import log
from milepost.tools import doubt
from milepost.tools.arguments import arguments_of
from milepost.tools.conversation import Conversation, Conversations
from milepost.tools.pregel import Task, answers_here, innermost_first, started_here, task_of, withhold_plain_answer
from milepost.tools.watching import Watch

if TYPE_CHECKING:
    from milepost.tools.middleware import LedgerMiddleware

_is_invalid_resume: Callable[[BaseException], bool] = getattr(errors, "is_invalid_resume", lambda _: False)
"""Whether the answer to an interrupt does not fit its schema. An older LangGraph does not look."""

_DRAINED: tuple[type[BaseException], ...] = tuple(filter(None, (getattr(errors, "GraphDrained", None),)))
"""A graph that the tool runs was told to end, and did so between two steps. An older LangGraph has no such thing."""
_ANSWERS = JsonPlusSerializer()
_SEATS = 1024
"""Tasks of which is remembered which calls they perform."""

_PLAIN_AT_PAUSE = (
    "the run was resumed with a plain answer and still waits for a verdict: it is not taken for one, nor for the answer to "
    "what the tool asks later. Answer under the id of the pause, Command(resume={%r: …}), or with Ledger.resolve. (tool %r)"
)


class SharedTask(CallStopped):
    """Two calls are in one task, and one has asked a question by an interrupt: LangGraph tells answers apart only by
    their order. Give each call a task of its own: `fan_out`. Facts: ``other`` (the id of the call that has asked).
    """


class Misplaced(CallStopped):
    """Another middleware lies between the ledger and the tool: what it repeats or changes the ledger would not know of.

    Facts: ``tool``.
    """


class SharedTaskWarning(RuntimeWarning):
    """Several recorded calls are in one task: when one of them fails or interrupts, all are asked for again."""


class _Passed(CallStopped):
    """Carries an exception of LangGraph's own through the ledger, for which the call is suspended."""


class ArgumentsRefused(Exception):
    """The tool's schema refused the arguments, or its run was cancelled: its body was not entered."""


class StillRunning(Exception):
    """A tool's class has given an answer without waiting for the tool's function."""


class Ledger(PlainLedger):
    """A `milepost.ledger.Ledger` with adapters for LangGraph's ToolNode and LangChain's agents.

    ``ToolNode(tools, wrap_tool_call=ledger.wrap_tool_call, awrap_tool_call=ledger.awrap_tool_call)`` or
    ``create_agent(model, tools, middleware=[..., ledger.middleware()])``. The arguments are those of the base class;
    `messages_key` names the state's list of messages.
    """

    def __init__(
        self,
        saver: OverSaver,
        tools: Mapping[str, Declared] | None = None,
        *,
        messages_key: str = "messages",
        **options: Any,
    ) -> None:
        super().__init__(saver, tools, **options)
        self._messages_key = messages_key
        self._conversations = Conversations()
        self._seats = _Seats()
        self._warned: set[str] = set()
        self._policies: dict[str, tuple[ToolPolicy, ToolPolicy]] = {}
        self.core.answer_here = _answer_here
        self.core.started_here = started_here
        self.core.boundary.accompany(self._conversations, self._seats)

    def middleware(self) -> LedgerMiddleware:
        """For ``create_agent``: name it last, so that retries and reviews are around it and it is around the tool."""
        from milepost.tools.middleware import LedgerMiddleware  # noqa: PLC0415  # needs LangChain

        return LedgerMiddleware(self)

    def wrap_tool_call(self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> Any:
        """Perform a call unless it is recorded, and record it: ``ToolNode(wrap_tool_call=…)``.

        Returns what the tool returned, now or the first time; tool messages from the record say so in
        ``response_metadata["milepost"]``. Raises subclasses of `CallStopped`, which no ToolNode makes a message of.
        """
        return run(self._answer(self.core.blocking(), request, execute, blocking=True))

    async def awrap_tool_call(
        self, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """`wrap_tool_call`, async: ``ToolNode(awrap_tool_call=…)``."""
        return await self._answer(self.core.asynchronous(), request, execute, blocking=False)

    async def _answer(
        self, hands: Hands, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any], *, blocking: bool
    ) -> Any:
        call = request.tool_call
        policy = self.policy(call["name"])
        if not policy.effectful:
            return await hands.do(execute, request)
        conversation = self._conversations.of(request.state, self._messages_key)
        asked, already = conversation.asked(call["id"]), conversation.answer(call["id"])
        # Where a message uses an id twice, it is not known which of its calls was answered.
        if already is not None and asked is not None and asked.times == 1:
            return already
        if request.tool is None:
            found = await self._without_its_tool(hands, request, policy, conversation)
            return await hands.do(execute, request) if found is None else _from_record(found, call)
        with _stopping(call["name"]):
            task = task_of(request.runtime)
            wanted = self._wanted(call, request.tool, policy, task, conversation)
        attempt = _Attempt(hands, request, execute)
        if self._shares(task, call, conversation):
            with _stopping(call["name"]):
                siblings = self._siblings(call, request, task, conversation)
            attempt.guard = lambda: self._keep_answers_apart(hands, wanted, task, siblings)
        body: Callable[[], Any] = (lambda: run(attempt.body())) if blocking else attempt.body
        try:
            done = await self.core.perform(hands, wanted, body)
        except BaseException as exc:
            _warn_of_plain(exc, wanted)
            return attempt.ended(exc)
        if isinstance(done, Replay):
            return _from_record(done, call)
        if attempt.parent is not None:
            raise attempt.parent
        return attempt.answer

    async def _without_its_tool(
        self, hands: Hands, request: ToolCallRequest, policy: ToolPolicy, conversation: Conversation
    ) -> Replay | None:
        """What is recorded of a call of a tool that the process does not have: renamed, removed, or made up by the model."""
        with _stopping(request.tool_call["name"]):
            try:
                wanted = self._wanted(request.tool_call, None, policy, task_of(request.runtime), conversation)
                self.core.plan(wanted)
            except InvalidConfig:
                if policy.key is not None:
                    raise  # Which call it is, its arguments as the model gave them do not say.
                return None  # No such call was ever recorded.
        try:
            return await self.core.recorded(hands, wanted)
        except CallPaused as exc:
            _warn_of_plain(exc, wanted)
            raise

    # What is asked of the ledger.

    def _wanted(
        self, call: ToolCall, tool: BaseTool | None, policy: ToolPolicy, task: Task, conversation: Conversation
    ) -> CallRequest:
        asked = conversation.asked(call["id"])
        if asked is None and policy.key is None:
            raise InvalidConfig(
                f"no message of the state asks for this call of {call['name']!r}, so that it has no identity: name the "
                "list of messages (messages_key=…), or declare key=… for the tool",
                what="messages_key",
                value=repr(self._messages_key),
            )
        if asked is not None and asked.id is None and policy.key is None:
            self._warn_once(
                "ids",
                "an AI message without an id asks for tool calls: they are told apart by its place in the list of "
                "messages, which changes when messages are removed. Use add_messages as the reducer, or give ids.",
                RuntimeWarning,
            )
        arguments = arguments_of(tool, call["args"])
        return CallRequest(
            tool=call["name"],
            arguments=arguments.shown,
            filled=arguments.filled,
            former=arguments.former,
            thread=task.thread,
            message=None if asked is None else asked.id,
            call=call["id"],
            position=0 if asked is None else asked.position,
            repeats=asked is not None and asked.times > 1,
            human="" if asked is None else asked.human,
            branch=conversation.branch,
            alike=() if asked is None else conversation.alike(call, asked),
            failed=() if asked is None else conversation.failed(call, asked),
            checkpoints=innermost_first(task.started_from),
            durable=task.durability != "exit",
            epoch=task.epoch,
            policy=self._refusing(call["name"], policy),
            plain="" if task.plain is None else _digest_of(task.plain),
        )

    def _refusing(self, tool: str, policy: ToolPolicy) -> ToolPolicy:
        """The class of a tool that, besides, has not been performed when it refused its arguments."""
        known = self._policies.get(tool)
        if known is None or known[0] is not policy:
            refusing = replace(policy, not_applied=(*policy.not_applied, ArgumentsRefused))
            known = self._policies[tool] = policy, refusing
        return known[1]

    # Tasks that calls share.

    def _shares(self, task: Task, call: ToolCall, conversation: Conversation) -> bool:
        """Whether another recorded call is in this task. Warns the first time."""
        asked = conversation.asked(call["id"])
        if asked is None or asked.calls < 2:
            return False
        others = self._seats.others(task, call["id"])
        if not (task.pulled or others):
            return False
        recorded = sum(
            self.policy(one["name"]).effectful and conversation.answer(one["id"]) is None
            for one in conversation.beside(asked)
        )
        if recorded < 2:
            return False
        self._warn_once(
            "tasks",
            f"{recorded} recorded calls are in one task: when one of them fails or interrupts, LangGraph asks for all of "
            "them again. Give each a task of its own, with the edge milepost.tools.fan_out.",
            SharedTaskWarning,
        )
        return True

    def _siblings(
        self, call: ToolCall, request: ToolCallRequest, task: Task, conversation: Conversation
    ) -> dict[str, str | None]:
        """Record key -> call id, of the other recorded calls of the message."""
        asked = conversation.asked(call["id"])
        assert asked is not None
        tools = {tool.name: tool for tool in request.runtime.tools}
        found: dict[str, str | None] = {}
        for other in conversation.beside(asked):
            policy = self.policy(other["name"])
            if other["id"] != call["id"] and policy.effectful:
                wanted = self._wanted(other, tools.get(other["name"]), policy, task, conversation)
                found[self.core.plan(wanted).key] = other["id"]
        return found

    async def _keep_answers_apart(
        self, hands: Hands, wanted: CallRequest, task: Task, siblings: Mapping[str, str | None]
    ) -> None:
        """Raise `SharedTask` if the call could take the answer to another one's question for its own."""
        plan = self.core.plan(wanted)
        store = await self.core.store(hands)
        page = await store.calls(CallQuery(thread=plan.home, keys=(plan.key, *siblings)), None, 256)
        asked = {
            row.key for row in page.rows if any(one.state == "suspended" for one in self.core.book.open(row).trail)
        }
        other = next((siblings[key] for key in siblings if key in asked), None)
        if other is not None and (task.answered or plan.key in asked):
            raise SharedTask(
                f"{wanted.tool!r} was not performed: another call of its task has asked a question by an interrupt, and "
                "LangGraph would give this one the answer if it asks too. Give each call a task of its own, with the "
                "edge milepost.tools.fan_out; this one may be answered with update_state.",
                thread=wanted.thread,
                key=plan.key,
                tool=wanted.tool,
                other=other,
            )

    def _warn_once(self, what: str, message: str, category: type[Warning]) -> None:
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(message, category, stacklevel=2)


class _Seats:
    """Which calls a task performs, of the tasks of late."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """After a fork."""
        self._lock = threading.Lock()
        self._calls: OrderedDict[tuple[str, str], set[str | None]] = OrderedDict()

    def others(self, task: Task, call_id: str | None) -> bool:
        """Note that the task performs this call; whether it performs others too."""
        with self._lock:
            calls = self._calls.setdefault((task.thread, task.task), set())
            calls.add(call_id)
            if len(self._calls) > _SEATS:
                self._calls.popitem(last=False)
            return len(calls) > 1


class _Attempt:
    """One run of a tool: its function for the ledger, and what is to be said of its exceptions afterwards."""

    def __init__(self, hands: Hands, request: ToolCallRequest, execute: Callable[[ToolCallRequest], Any]) -> None:
        self._hands = hands
        self._request = request
        self._execute = execute
        self._watch = Watch()
        self._original: BaseException | None = None
        self._call: Call | None = None
        self.answer: Any = None
        """What the ToolNode has made of the tool's result, or of an exception."""
        self.guard: Callable[[], Awaitable[None]] | None = None
        self.parent: ParentCommand | None = None
        """The tool hands over to a node of the graph around its own."""

    async def body(self) -> Any:
        """Run the tool. Raises what happened in it, also where its caller would make a message of that."""
        self._call = current_call()
        if self.guard is not None:
            await self.guard()
        if self._call.passed:
            withhold_plain_answer(self._request.runtime)
        tool = self._request.tool
        assert tool is not None
        try:
            self.answer = await self._hands.do(self._execute, self._request.override(tool=self._watch.over(tool)))
        except ParentCommand as exc:
            self.parent = exc
            return stored(exc.args[0], self._request.tool_call["id"])
        except (GraphInterrupt, CallStopped):
            raise
        except BaseException as exc:
            self._original = exc
            self._call.abandoned = self._watch.close()
            if isinstance(exc, _DRAINED) or _is_invalid_resume(exc):
                raise _Passed(text(exc)) from exc
            if not self._watch.entered:
                raise ArgumentsRefused(text(exc)) from exc
            raise
        if self._watch.close():
            self._call.abandoned = True
            raise StillRunning("an answer was made of it while its function is still running in a thread")
        if self._watch.entered and self._watch.error is None:
            return stored(self.answer, self._request.tool_call["id"])
        if not self._watch.entered:
            raise ArgumentsRefused("the tool was not entered")
        assert self._watch.error is not None
        raise self._watch.error

    def ended(self, error: BaseException) -> Any:
        """The answer to the call after `error`, or the exception that the ToolNode is to get."""
        if isinstance(error, _Passed | ArgumentsRefused) and self._original is not None:
            raise self._original
        in_doubt = self._call is not None and self._call.in_doubt
        if self.answer is None or (isinstance(error, CallStopped) and error is not self._watch.error):
            if in_doubt and isinstance(error, Exception) and not isinstance(error, GraphBubbleUp):
                raise doubt.exception(error) from error
            raise error
        abandoned = self._call is not None and self._call.abandoned
        if self._watch.entered and self._watch.error is None and not abandoned:
            # The tool has returned: what went wrong since is not for the model to mend.
            raise error
        # Only the record says that nothing was done: what the tool raised, and what was asked since, may have failed alike.
        return self._told(error) if in_doubt else self.answer

    def _told(self, error: BaseException) -> ToolMessage:
        call = self._request.tool_call
        return ToolMessage(
            doubt.message(error),
            name=call["name"],
            tool_call_id=call["id"],
            status="error",
        )


def _answer_here(id: str, choices: Sequence[str]) -> tuple[Verdict, str] | None:
    """The verdict that the run at hand was resumed with under the id of a pause."""
    answer = answers_here().get(id)
    return None if answer is None else verdict_of(answer, choices)


def verdict_of(answer: Any, choices: Sequence[str] = ("applied", "not_applied", "adopt", "run")) -> tuple[Verdict, str]:
    """The verdict that a resume map gives, and by whom. `choices` are those of the pause, as text.

    A `Verdict`, one of the choices of the pause as text, or for callers that speak JSON
    ``{"verdict": "applied", "result": …, "note": …, "by": …}``. Raises `InvalidConfig` for anything else.
    """
    if isinstance(answer, Verdict):
        return answer, ""
    given: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {"verdict": answer}
    note, by = str(given.get("note", "")), str(given.get("by", ""))
    verdict = given.get("verdict")
    if verdict in ("adopt", "run") and verdict not in choices:
        raise InvalidConfig(
            f"the answer {verdict!r} is none of {', '.join(map(repr, choices))}, which the call was asked about",
            what="answer",
            value=repr(answer)[:200],
        )
    match verdict:
        case "applied" | "adopt":
            return applied(given.get("result"), note=note), by
        case "not_applied" | "run":
            return not_applied(note=note), by
        case "unknown":
            return unknown(note=note), by
        case _:
            raise InvalidConfig(
                f"the answer {answer!r} is no verdict on a call: answer 'applied', 'not_applied' or 'unknown', or a "
                "dict with that under 'verdict' and the result under 'result'",
                what="answer",
                value=repr(answer)[:200],
            )


def _digest_of(answer: Any) -> str:
    """Equal for equal answers."""
    kind, data = _ANSWERS.dumps_typed(answer)
    return hashlib.sha256(kind.encode() + data).hexdigest()[:16]


def _from_record(done: Replay, call: ToolCall) -> Any:
    """The recorded answer, for the call at hand."""
    then = done.record.info.call
    return replayed(answer_of(done.result, call["name"], then), done.record.key, then, call["id"])


def _warn_of_plain(error: BaseException, wanted: CallRequest) -> None:
    if isinstance(error, CallPaused) and wanted.plain:
        log.warning(_PLAIN_AT_PAUSE, error.facts["id"], wanted.tool)


@contextmanager
def _stopping(tool: str) -> Generator[None]:
    """Have errors that are no fault of the model's stop the run."""
    try:
        yield
    except InvalidConfig as exc:
        raise LedgerError(f"{tool!r} was not performed: {exc.message}", **{**exc.facts, "tool": tool}) from exc
