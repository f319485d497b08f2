"""The ledger over a saver: every method blocking, and async with an ``a`` in front, from one text."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from types import MethodType
from typing import Any, Literal, ParamSpec, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from milepost.callstore import UNSETTLED
from milepost.errors import InvalidConfig
from milepost.flavour import run
from milepost.ledger.basis import OverSaver, Settings
from milepost.ledger.boundary import Boundary, OnUnsettled
from milepost.ledger.call import Call, Done, Replay, Run
from milepost.ledger.core import Core
from milepost.ledger.forgetting import Forgetting
from milepost.ledger.hands import check_function
from milepost.ledger.policy import Declared, Duration, ToolPolicy, Verdict, declared, seconds, unsafe
from milepost.ledger.record import CallRecord
from milepost.ledger.repair import Repairs, driver_of
from milepost.ledger.request import EPOCH, CallRequest, OnOrphan, Outcome
from milepost.ledger.rollback import Rollback, Rollbacks
from milepost.ledger.unanswered import Repair
from milepost.ledger.upkeep import Upkeep
from milepost.places import check_id, check_thread, configurable

P = ParamSpec("P")
R = TypeVar("R")

Scope = Literal["thread", "global"]


class Ledger:
    """A record of tool calls, in the store of `saver`, that keeps them from being performed twice.

    Args:
        saver: a `milepost.Saver`; the ledger uses its store, serializer and keys.
        tools: tool name -> its class: `readonly`, `idempotent`, `keyed`, `transactional` or `unsafe`.
        default: the class of tools that are not named.
        lease: how long a worker may take before the effect begins, if it does not `check` again.
        wait_timeout: how long to wait for another worker's call, or for the time after which none can act any more.
        barrier_timeout: how long to wait until the checkpoint that a task started from is durable.
        skew: how far apart clocks, and the ends of effects, may be; added before an outcome is decided.
        tenant: part of every key, also of keys of the user's. Operators' methods list the records of all tenants.
        owner: who this worker is, in records and audit trails.
        on_orphan: what to do about an equal call whose message is gone, see `CallRequest.orphans`.
        on_unsettled: what to do when a checkpoint is put over a call of this ledger that is not settled.

    Durations are seconds, timedeltas, or text such as ``"90s"``. Raises `InvalidConfig` for arguments that cannot be
    right, and for a saver whose store keeps no ledger.
    """

    _messages_key = "messages"
    """The channel with the state's list of messages."""

    def __init__(
        self,
        saver: OverSaver,
        tools: Mapping[str, Declared] | None = None,
        *,
        default: Declared = unsafe,
        lease: Duration = 15.0,
        wait_timeout: Duration = 60.0,
        barrier_timeout: Duration = 30.0,
        skew: Duration = 2.0,
        tenant: str = "",
        owner: str | None = None,
        on_orphan: OnOrphan = "auto",
        on_unsettled: OnUnsettled = "warn",
        **internals: Any,
    ) -> None:
        if not hasattr(saver, "operations"):
            raise InvalidConfig(f"saver is {saver!r:.200}: it must be a milepost.Saver", what="saver")
        given: object = tools
        if given is not None and not isinstance(given, Mapping):
            raise InvalidConfig(f"tools is {given!r:.200}: it must map names of tools to their classes", what="tools")
        shared = saver.operations.shared
        if "ledger" not in shared.backend.capabilities:
            raise InvalidConfig(f"the store {shared.backend.name!r} keeps no ledger", what="saver")
        _check_choice("on_orphan", on_orphan, ("auto", "pause", "run"))
        _check_choice("on_unsettled", on_unsettled, ("warn", "refuse", "ignore"))
        self.settings = Settings(
            tools={name: declared(name, value) for name, value in (tools or {}).items()},
            default=declared("default", default),
            lease=seconds(lease, "lease"),
            wait_timeout=seconds(wait_timeout, "wait_timeout"),
            barrier_timeout=seconds(barrier_timeout, "barrier_timeout"),
            skew=seconds(skew, "skew"),
            tenant=check_id(tenant, "tenant"),
            owner=None if owner is None else check_id(owner, "owner"),
            on_orphan=on_orphan,
            on_unsettled=on_unsettled,
            **internals,
        )
        boundary = shared.boundary
        if not isinstance(boundary, Boundary):
            boundary = shared.boundary = Boundary()
        self.core = Core(saver, self.settings, boundary)
        self._upkeep = Upkeep(self.core)
        self._rollbacks = Rollbacks(self.core, self._upkeep)
        self._repairs = Repairs(self.core, self._upkeep)
        self._forgetting = Forgetting(self.core)

    def policy(self, tool: str) -> ToolPolicy:
        """The class of a tool."""
        return self.settings.tools.get(tool, self.settings.default)

    # For adapters.

    def enter(self, request: CallRequest) -> Run | Replay:
        """A call is about to be performed: may it, or what did it return?

        `Run` says that it may, once, and is to be settled; `Replay` has its result. Everything else is raised:
        subclasses of `CallStopped`, which pass through a ToolNode and stop the run.
        """
        return run(self.core.enter(self.core.blocking(), request))

    async def aenter(self, request: CallRequest) -> Run | Replay:
        """`enter`, async."""
        return await self.core.enter(self.core.asynchronous(), request)

    def settle(self, call: Call, outcome: Outcome) -> Replay | None:
        """Store what became of a call that `enter` let run, durably.

        Returns another worker's result where that one has taken the call over and finished it meanwhile. Raises
        `CallSuperseded` where it has not finished it, and `CallUnrecorded` where the outcome could not be stored.
        """
        return run(self.core.settle(self.core.blocking(), call, outcome))

    async def asettle(self, call: Call, outcome: Outcome) -> Replay | None:
        """`settle`, async."""
        return await self.core.settle(self.core.asynchronous(), call, outcome)

    def classify(self, call: Call, error: BaseException) -> Outcome:
        """What an exception of a tool says about its effect."""
        return self.core.classify(call, error)

    def perform(self, request: CallRequest, function: Callable[[], Any]) -> Done | Replay:
        """`enter`, then `function` with `current_call` set, then `settle`.

        An exception of `function` is raised again; but where it leaves the outcome unknown, and the class of the tool
        allows no retry, `reconcile` is asked first, and `CallInDoubt` raised if that does not help.
        """
        return run(self.core.perform(self.core.blocking(), request, function))

    async def aperform(self, request: CallRequest, function: Callable[[], Any]) -> Done | Replay:
        """`perform`, async; `function` may be."""
        return await self.core.perform(self.core.asynchronous(), request, function)

    # For any code.

    def once(
        self,
        key: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        thread_id: str | None = None,
        scope: Scope = "thread",
        policy: Declared | None = None,
        **kwargs: Any,
    ) -> Any:
        """``function(*args, **kwargs)``, performed once per `key`; later calls return what it returned.

        `key` is of the thread `thread_id` (by default the one of the run that this is called in), or with scope
        "global" of the whole store. `args` and `kwargs` are its fingerprint, and must be JSON unless the policy says
        otherwise; by default the policy is that of a tool of the function's name. A `policy` with `compensate` is
        remembered by this ledger for its rollbacks; that another process can undo the call, name the function in `tools`.
        """
        request = self._request(key, function, args, kwargs, thread_id, scope, policy, blocking=True)
        return run(self.core.perform(self.core.blocking(), request, lambda: function(*args, **kwargs))).result

    async def aonce(
        self,
        key: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        thread_id: str | None = None,
        scope: Scope = "thread",
        policy: Declared | None = None,
        **kwargs: Any,
    ) -> Any:
        """`once`, async; `function` may be."""
        request = self._request(key, function, args, kwargs, thread_id, scope, policy, blocking=False)
        return (await self.core.perform(self.core.asynchronous(), request, lambda: function(*args, **kwargs))).result

    def effect(
        self,
        *,
        key: Callable[..., str],
        scope: Scope = "thread",
        policy: Declared | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: the function is performed once per key, which `key` makes of the same arguments.

        Of a method, `key` gets the object as well, and the fingerprint leaves it out: what tells the calls of two objects
        apart belongs in the key. A `policy` with `compensate` is known to the rollbacks of this ledger from the decoration
        on.
        """
        given = None if policy is None else declared("policy", policy)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            if given is not None:
                self._rollbacks.given.note(_name_of(function), function, given)
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def aonce(*args: P.args, **kwargs: P.kwargs) -> Any:
                    bound = functools.partial(function, *args, **kwargs)
                    made = key(*args, **kwargs)
                    of, shown = _of_its_object(aonce, function, args)
                    request = self._request(made, of, shown, kwargs, None, scope, given, blocking=False)
                    return (await self.core.perform(self.core.asynchronous(), request, bound)).result

                return cast("Callable[P, R]", aonce)

            @functools.wraps(function)
            def once(*args: P.args, **kwargs: P.kwargs) -> R:
                bound = functools.partial(function, *args, **kwargs)
                made = key(*args, **kwargs)
                of, shown = _of_its_object(once, function, args)
                request = self._request(made, of, shown, kwargs, None, scope, given, blocking=True)
                return cast("R", run(self.core.perform(self.core.blocking(), request, bound)).result)

            return once

        return decorate

    def _request(
        self,
        key: str,
        function: Callable[..., Any],
        args: Collection[Any],
        kwargs: Mapping[str, Any],
        thread_id: str | None,
        scope: Scope,
        policy: Declared | None,
        *,
        blocking: bool,
    ) -> CallRequest:
        check_function(function, blocking=blocking)
        args, kwargs = _spelled(function, args, kwargs)
        tool = _name_of(function)
        given = None if policy is None else declared("policy", policy)
        if given is not None:
            self._rollbacks.given.note(tool, function, given)
        here = _configurable_here()
        run_of: object = here.get("thread_id")
        given_or_here: object = run_of if thread_id is None else thread_id
        thread = None if given_or_here is None else check_thread(given_or_here)
        if thread is None and scope == "thread":
            raise InvalidConfig(
                f"the call {key!r} is made outside of a run: name its thread, thread_id=…, or use scope='global'",
                what="thread_id",
            )
        _check_choice("scope", scope, ("thread", "global"))
        return CallRequest(
            tool=tool,
            arguments={"args": list(args), "kwargs": dict(kwargs)},
            thread=thread or "",
            checkpoints=self.core.started_here() if scope == "thread" and thread == str(run_of) else (),
            key=key,
            scope=scope,
            policy=given,
            epoch=str(here.get(EPOCH) or ""),
        )

    # For operators.

    def calls(self, thread_id: str) -> list[CallRecord]:
        """Every call that is recorded of a thread, in the order of their start; "" lists keys of global scope."""
        return run(self._upkeep.calls(self.core.blocking(), _thread_or_global(thread_id)))

    async def acalls(self, thread_id: str) -> list[CallRecord]:
        """`calls`, async."""
        return await self._upkeep.calls(self.core.asynchronous(), _thread_or_global(thread_id))

    def pending(self, thread_id: str | None = None) -> list[CallRecord]:
        """The calls, of a thread or of all, of which nobody knows yet whether they changed the world."""
        thread = None if thread_id is None else _thread_or_global(thread_id)
        return run(self._upkeep.calls(self.core.blocking(), thread, UNSETTLED))

    async def apending(self, thread_id: str | None = None) -> list[CallRecord]:
        """`pending`, async."""
        thread = None if thread_id is None else _thread_or_global(thread_id)
        return await self._upkeep.calls(self.core.asynchronous(), thread, UNSETTLED)

    def orphans(self, thread_id: str, branch: Collection[tuple[str, str]] | None = None) -> list[CallRecord]:
        """The recorded calls of a thread that are in no message at hand.

        `branch` is the (message id, call id) of every call in the messages; by default those in the state's list of
        messages, of the latest checkpoint and of those of the subgraphs and agents that it was led to by.
        """
        return run(self._upkeep.orphans(self.core.blocking(), check_thread(thread_id), branch, self._messages_key))

    async def aorphans(self, thread_id: str, branch: Collection[tuple[str, str]] | None = None) -> list[CallRecord]:
        """`orphans`, async."""
        return await self._upkeep.orphans(self.core.asynchronous(), check_thread(thread_id), branch, self._messages_key)

    def forget(self, thread_id: str, *, older_than: Duration, dry_run: bool = False) -> list[CallRecord]:
        """Remove the records of a thread that nothing can ask for any more; returns them. For threads that live long.

        They are those of settled calls that have not changed for `older_than`, nor are within the time for which their API
        remembers a key, whose message is in no checkpoint that is kept, and that were begun before all of these. Records
        under keys of the user's stay: any code may ask for those. With `dry_run`, only tells. Raises `Conflict`, and
        removes nothing, when a checkpoint cannot be read.
        """
        thread, age = check_thread(thread_id), seconds(older_than, "older_than")
        return run(self._forgetting.forget(self.core.blocking(), thread, age, dry_run=dry_run))

    async def aforget(self, thread_id: str, *, older_than: Duration, dry_run: bool = False) -> list[CallRecord]:
        """`forget`, async."""
        thread, age = check_thread(thread_id), seconds(older_than, "older_than")
        return await self._forgetting.forget(self.core.asynchronous(), thread, age, dry_run=dry_run)

    def repair(
        self,
        thread_id: str,
        *,
        graph: Any = None,
        as_node: str | None = None,
        channel: str | None = None,
        wait: float | None = 0.0,
    ) -> Repair:
        """Answer, in the latest checkpoint, the calls of its messages that no tool message answers and of which the ledger
        knows what became of them: a provider rejects a conversation that lacks answers. Returns what was added, and which
        calls are left, and why.

        For a thread that goes on with new input; one that is resumed asks the ledger itself. A call that succeeded is
        answered with its result; one that failed, or was undone, with a message that says so. The latest checkpoints of
        agents and subgraphs with recorded calls are repaired as well. `channel` is the list of messages.

        A result that is a `Command` with more than messages needs the thread's `graph`: its state is updated as if its
        node had returned the results of the last calls, if all of them are settled. `as_node` names this node where more
        than one is next, or none. Without a graph, and of a thread that has gone on since, such calls are left.

        Takes the thread's lease, waiting `wait` seconds for it. Raises `InvalidConfig` for a channel that is no list of
        messages.
        """
        thread = check_thread(thread_id)
        driver = driver_of(self.core, graph, as_node, blocking=True)
        with self.core.saver.lease(thread, wait=wait):
            return run(self._repairs.repair(self.core.blocking(), thread, channel or self._messages_key, driver))

    async def arepair(
        self,
        thread_id: str,
        *,
        graph: Any = None,
        as_node: str | None = None,
        channel: str | None = None,
        wait: float | None = 0.0,
    ) -> Repair:
        """`repair`, async."""
        thread = check_thread(thread_id)
        driver = driver_of(self.core, graph, as_node, blocking=False)
        async with self.core.saver.lease(thread, wait=wait):
            return await self._repairs.repair(self.core.asynchronous(), thread, channel or self._messages_key, driver)

    def rollback(
        self,
        thread_id: str,
        *,
        to: str | RunnableConfig,
        dry_run: bool = False,
        accept_irreversible: Collection[str] = (),
        by: str = "rollback",
        wait: float | None = 0.0,
        steal: bool | str = False,
    ) -> Rollback:
        """Undo the effects of the calls that were begun from the checkpoint `to` or later, the last one first, and have
        the thread go on from there.

        `to` is a checkpoint id of the root namespace, or a config that has one. With `dry_run`, only tells what would be
        done. Takes the thread's lease, with `wait` and `steal` as in `Saver.lease`; finds out what became of calls in
        doubt; calls ``compensate(record, result)`` of each call's tool, recorded, so that a crash repeats it with the same
        `current_call().key`; and when all are undone, puts a copy of the checkpoint on top of it. It can be repeated, and
        resumed after a crash. Calls of steps within a call are their tool's to undo. Calls of global scope that the thread
        began count as irreversible: other threads may rest on them. (Those of `once` outside of tools are not known to
        be the thread's.)

        Raises `InvalidConfig` for an unknown checkpoint, and, before anything is done, for calls whose class could undo
        them where this ledger has not been told how (name them in `tools`), or by functions that are async where this is not;
        `Irreversible`, before anything is done, for calls of tools
        without `compensate` that `accept_irreversible` does not name; `CompensationFailed` when one raised, and
        `Busy` or `Conflict` when somebody else is at it.
        """
        thread, checkpoint = check_thread(thread_id), _checkpoint_of(to)
        hands = self.core.blocking()
        if dry_run:
            return run(self._rollbacks.plan(hands, thread, checkpoint))[0]
        with self.core.saver.lease(thread, wait=wait, steal=steal):
            return run(self._rollbacks.run(hands, thread, checkpoint, accept_irreversible=accept_irreversible, by=by))

    async def arollback(
        self,
        thread_id: str,
        *,
        to: str | RunnableConfig,
        dry_run: bool = False,
        accept_irreversible: Collection[str] = (),
        by: str = "rollback",
        wait: float | None = 0.0,
        steal: bool | str = False,
    ) -> Rollback:
        """`rollback`, async; compensations may be."""
        thread, checkpoint = check_thread(thread_id), _checkpoint_of(to)
        hands = self.core.asynchronous()
        if dry_run:
            return (await self._rollbacks.plan(hands, thread, checkpoint))[0]
        async with self.core.saver.lease(thread, wait=wait, steal=steal):
            return await self._rollbacks.run(hands, thread, checkpoint, accept_irreversible=accept_irreversible, by=by)

    def resolve(
        self, key: str | CallRecord, verdict: Verdict, *, by: str, note: str = "", thread_id: str | None = None
    ) -> CallRecord:
        """Say what became of a call that is in doubt: ``applied(result)`` or ``not_applied()``.

        `key` is a `CallRecord`, or its `CallRecord.key`. Of a record, the verdict is about the attempt that it shows: if the
        call was performed again since, this raises `Conflict`. Of a key, it is about whichever is the last one. Without
        `thread_id` a key is looked for among keys of global scope, then among the unsettled calls of all threads, and only
        then among all calls of all threads, which takes its time. Raises `InvalidConfig` when there is no such call, or
        one in several threads, and `Conflict` when there is nothing to decide: it is settled, its owner's lease has not
        ended, or, for `not_applied`, a worker that crashed might still act on it after `wait_timeout`.
        """
        thread = None if thread_id is None else _thread_or_global(thread_id)
        return run(self._upkeep.resolve(self.core.blocking(), key, verdict, by=by, note=note, thread=thread))

    async def aresolve(
        self, key: str | CallRecord, verdict: Verdict, *, by: str, note: str = "", thread_id: str | None = None
    ) -> CallRecord:
        """`resolve`, async."""
        thread, hands = None if thread_id is None else _thread_or_global(thread_id), self.core.asynchronous()
        return await self._upkeep.resolve(hands, key, verdict, by=by, note=note, thread=thread)


def _check_choice(what: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidConfig(f"{what} is {value!r}: one of {', '.join(choices)}", what=what, value=repr(value)[:200])


def _checkpoint_of(to: object) -> str:
    """The checkpoint id that `to` is, or names."""
    id = to if isinstance(to, str) else configurable(to).get("checkpoint_id")
    text = check_id(id, "to")
    if not text:
        raise InvalidConfig("to is empty: name a checkpoint", what="to", value="''")
    return text


def _name_of(function: Callable[..., Any]) -> str:
    """What the calls of a function are recorded as."""
    return getattr(function, "__name__", type(function).__name__)


def _of_its_object(
    decorated: Callable[..., Any], function: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What is called, and its arguments: where `decorated` is a method, without the object or class that it is called on."""
    owner = args[0] if args and isinstance(args[0], type) else type(args[0]) if args else object
    for one in owner.__mro__:
        found = vars(one).get(decorated.__name__)
        if found is decorated or (isinstance(found, classmethod) and found.__func__ is decorated):
            return MethodType(function, args[0]), args[1:]
    return function, args


def _thread_or_global(thread_id: str) -> str:
    return thread_id if thread_id == "" else check_thread(thread_id)


def _spelled(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]
) -> tuple[Collection[Any], Mapping[str, Any]]:
    """The arguments in one spelling: by place where they may be, and without those that say the default."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return args, kwargs
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as exc:
        raise InvalidConfig(f"{function!r} cannot be called with these arguments: {exc}", what="args") from exc
    plain = (str, int, float, bool, type(None))
    for name, value in tuple(bound.arguments.items()):
        default = signature.parameters[name].default
        if type(value) is type(default) and isinstance(value, plain) and value == default:
            del bound.arguments[name]
    return bound.args, bound.kwargs


def _configurable_here() -> Mapping[str, Any]:
    """What is configured of the run that this is called in."""
    config = var_child_runnable_config.get()
    return (config or {}).get("configurable") or {}
