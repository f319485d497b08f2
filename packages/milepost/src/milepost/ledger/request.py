"""What the ledger is asked, and what it answers: the types between it and an adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from milepost.ledger.policy import ToolPolicy, Verdict
from milepost.places import check_thread

EPOCH = "milepost_epoch"
"""Key under ``configurable``. Calls of another epoch are other calls: to perform on purpose what is recorded."""

OnOrphan = Literal["auto", "pause", "run"]
"""What is done when an equal call is recorded whose message is gone: "auto" adopts it where the class of the tool
allows a retry, and pauses otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """One tool call that is about to be performed."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """As they will be performed, without injected ones. JSON, but for what a fingerprint function leaves out."""
    filled: frozenset[str] = frozenset()
    """Names of `arguments` that were not given: the tool's defaults. A record from before the tool had them is of the
    same call."""
    former: Mapping[str, Any] | None = None
    """`arguments` as an earlier release would have shown them, where that differs: for its records."""
    thread: str
    """Text, once it is made: `1` and `"1"` are the same. Empty outside of threads."""
    message: str | None = None
    """``AIMessage.id``."""
    call: str | None = None
    """``tool_call["id"]``."""
    position: int = 0
    """Number of the message in the state, from 0. Used when `message` is None."""
    repeats: bool = False
    """The message has this call id more than once."""
    human: str = ""
    """Id, or a digest, of the last human message: an orphan is only adopted by a call that answers the same one.
    Empty: no orphan is looked for."""
    branch: frozenset[tuple[str, str]] = frozenset()
    """(message id, call id) of the calls in the state at hand."""
    alike: tuple[tuple[str, str], ...] = ()
    """Those of `branch` that are likely to be equal to this call. Only saves time: with them a claim is one round trip
    also where an equal call is recorded, without them it is two."""
    failed: tuple[tuple[str, str], ...] = ()
    """Calls of other messages at hand that are likely to be equal to this one, and were answered with an error. Where
    nobody knows what became of such a call, this is the same one: the model was told to try again."""
    checkpoints: tuple[tuple[str, str], ...] = ()
    """(namespace, checkpoint id) that the task started from: its own, then those of the graphs around it. Empty: there
    is nothing to wait for."""
    durable: bool = True
    """False when the run stores nothing before it ends (durability "exit")."""
    epoch: str = ""
    """From the config, by the user: another epoch is another call."""
    key: str | None = None
    """A key of the user's; else that of the policy."""
    scope: Literal["thread", "global"] = "thread"
    """Of `key`."""
    policy: ToolPolicy | None = None
    """Instead of what the ledger's table says of the tool."""
    answer: Verdict | None = None
    """The run was resumed with this verdict under the id of the call's pause. It settles one question."""
    answer_to: str = ""
    """The id of the pause that `answer` was given to: it is none to another. Empty: it is for the first one."""
    answered_by: str = ""
    """Who gave `answer`."""
    plain: str = ""
    """A digest of what the run was resumed with without saying which question that answers; "" without such an answer."""
    orphans: OnOrphan | None = None
    """Instead of the ledger's own setting."""

    def __post_init__(self) -> None:
        """Raises `InvalidConfig` for a thread that cannot be."""
        if self.thread != "":
            object.__setattr__(self, "thread", check_thread(self.thread))


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The tool returned `result`."""

    result: Any


@dataclass(frozen=True, slots=True)
class Failed:
    """The effect did not take place; the call may be performed again."""

    error: str


@dataclass(frozen=True, slots=True)
class Suspended:
    """The tool interrupted, and runs again from its top when it is resumed."""


@dataclass(frozen=True, slots=True)
class InDoubt:
    """Whether the effect took place is not known."""

    reason: str
    ended: bool = False
    """The execution has ended, with all that it began: nothing of it acts any more. Else what became of the call is
    decided only when nothing can."""


Outcome: TypeAlias = Succeeded | Failed | Suspended | InDoubt
