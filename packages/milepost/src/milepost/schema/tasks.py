"""How LangGraph names the tasks of a superstep, and what they are called when nodes or channels have other names.

A task's id is a hash of the checkpoint, its namespace, the step, the node's name and what triggered it; the ids of its
questions are hashes of that. A pending write is matched to a task by the id alone, so a write of a renamed node must
get the id that LangGraph will compute for the new name. What a write belongs to is told from its path, and proven by
computing the id that it has: where that fails, the rule is another one than here, and nothing is guessed.
"""

from __future__ import annotations

import binascii
import copy
import re
from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from typing import Any, Final, NamedTuple

from milepost.schema.changes import Change, NotDeclared
from milepost.schema.image import BRANCH, TASKS, Image, Write, is_send, starts_of

_PULL, _PUSH = "__pregel_pull", "__pregel_push"
_PULLED: Final = f"~{_PULL}, "
_PUSHED, _OF_SEND = f"~{_PUSH}, ", ", 0000000000"
_SENT: Final = re.compile(rf"{_PUSHED}([0-9]{{10}}){_OF_SEND}")
_CALLED: Final = re.compile(rf"~{_PUSH}, (~.*), ([0-9]{{10}}), 0000000001", re.DOTALL)
_AT_EXIT: Final = re.compile(r"([0-9]{8}|f{8})-([0-9a-f]{4})-([0-9a-f]{4})-[0-9a-f]{4}-[0-9a-f]{12}")
_HANDLER: Final = "node_error_handler"
_HANDLED: Final = f", {_HANDLER}, 0000000000"
"""Ends the path of the task that handles the error of another one, whose path is before it."""
_OWN_HANDLER: Final = "__error_handler__"
"""Begins the name of a node's own handler, before the node's. The other one is that of the whole graph."""
_EVERY_HANDLER: Final = "__default_error_handler__"
_JOINS: Final = 6
"""Most joins into one node of which every combination is tried."""
_STEPS: Final = 10_000
"""Most steps of one run whose writes are stored with one checkpoint. The more, the likelier an id is taken for such a one."""
_CALLS: Final = 256
"""Most calls of one task among which one is looked for."""
ANSWERS: Final = 64
"""Most answers that a task may have had before its last question."""


class Moved(NamedTuple):
    """A task under its name of now."""

    task: str
    path: str
    before: str
    """The namespace of the task then, which its questions are named after."""
    after: str


class Tasks:
    """The tasks that may have written to one checkpoint, by its names of before a change.

    `after` is the checkpoint's namespace after the change, where that is another one too.
    """

    def __init__(self, image: Image, after: str | None = None) -> None:
        self._where = f"checkpoint {image.id!r} of thread {image.thread!r}"
        self._parent = f"{image.ns}|" if image.ns else ""
        self._after = self._parent if after is None else f"{after}|" if after else ""
        self._step = image.metadata.get("step")
        self._channels = tuple(image.versions)
        self._seen = {node: tuple(sorted(seen)) for node, seen in image.seen.items() if isinstance(seen, dict)}
        sends = image.values.get(TASKS)
        self._sends: Sequence[Any] = sends if isinstance(sends, list | tuple) else ()
        try:
            self._id: bytes | None = binascii.unhexlify(image.id.replace("-", ""))
        except (ValueError, binascii.Error):
            self._id = None

    def moved(self, change: Change, write: Write) -> Moved | None:
        """The task of `write` after `change`; None when there is none any more. Raises `NotDeclared`."""
        if write.path.endswith(_HANDLED):
            return self._handled(change, write)
        if write.path.startswith(_PULLED):
            return self._pulled(change, write, write.path[len(_PULLED) :])
        if sent := _SENT.fullmatch(write.path):
            return self._sent(change, write, int(sent[1]))
        moves = change.nodes or self._after != self._parent
        if moves and (called := _CALLED.fullmatch(write.path)):
            return self._called(change, write, called[1], int(called[2]))
        return _same(write)

    def _pulled(self, change: Change, write: Write, name: str) -> Moved | None:
        new = change.node(name)
        if new is None or change.restarts(name):
            return _same(write) if self._at_exit(write) else None
        sets = tuple(self._triggers(name))
        stays = new == name and self._after == self._parent
        if stays and all(change.channel(trigger) == trigger for triggers in sets for trigger in triggers):
            return _same(write)
        for triggers in sets:
            if self._task(name, _PULL, *triggers) == write.task:
                now = sorted({one for trigger in triggers if (one := change.channel(trigger)) is not None})
                task = self._task(new, _PULL, *now, parent=self._after)
                return self._moved(name, write.task, new, task, _PULLED + new)
        # Of another namespace's names, it may be one of the new names already.
        joined = self._after == self._parent and any(change.channel(join) != join for join in self._joins(name))
        return self._unproven(write, name) if new != name or joined else _same(write)

    def _sent(self, change: Change, write: Write, at: int) -> Moved | None:
        send: Any = self._sends[at] if at < len(self._sends) else None
        if not is_send(send):
            return _same(write)
        name: str = send.node
        new = change.node(name)
        if new is None or change.restarts(name):
            return None
        if new == name and self._after == self._parent:
            return _same(write)
        if self._task(name, _PUSH, str(at)) != write.task:
            return self._unproven(write, name) if new != name else _same(write)
        return self._moved(name, write.task, new, self._task(new, _PUSH, str(at), parent=self._after), write.path)

    def _handled(self, change: Change, write: Write) -> Moved | None:
        """A task that handles the error of another one. Its id depends on that one's."""
        path = write.path[: -len(_HANDLED)]
        name = self._node(path)
        for task, made in self.made(name or ""):
            within = f"{self.space(name or '', task)}|"
            for handler in (f"{_OWN_HANDLER}{name}", _EVERY_HANDLER) if made == path else ():
                if self._task(handler, _PUSH, _HANDLER, task, parent=within) != write.task:
                    continue
                failed = self.moved(change, Write(task, 0, path, "", None))
                if failed is None or not failed.before:
                    return None if failed is None else _same(write)
                new = handler if handler == _EVERY_HANDLER else f"{_OWN_HANDLER}{change.node(name or '')}"
                now = self._task(new, _PUSH, _HANDLER, failed.task, parent=f"{failed.after}|")
                return Moved(
                    now, failed.path + _HANDLED, f"{within}{handler}:{write.task}", f"{failed.after}|{new}:{now}"
                )
        return self._unproven(write, name or path) if change.nodes or self._after != self._parent else _same(write)

    def _called(self, change: Change, write: Write, parent: str, at: int) -> Moved | None:
        """A call of the functional API. Its id depends on that of the task which made the call."""
        caller = parent[len(_PULLED) :] if parent.startswith(_PULLED) else None
        if caller is None:
            return self._unproven(write, parent)
        if change.node(caller) is None or change.restarts(caller):
            return None
        for triggers in self._triggers(caller):
            called_by = self._task(caller, _PULL, *triggers)
            within = f"{self.space(caller, called_by)}|"
            for name in (*change.nodes, *change.calls):
                if self._task(name, _PUSH, parent, str(at), parent=within) != write.task:
                    continue
                new = change.node(name)
                made = self.moved(change, Write(called_by, 0, parent, "", None))
                if new is None or made is None or change.restarts(name):
                    return None
                after = f"{made.after}|" if made.before else within
                task = self._task(new, _PUSH, made.path, str(at), parent=after)
                path = f"{_PUSHED}{made.path}, {at:010d}, 0000000001"
                return Moved(task, path, f"{within}{name}:{write.task}", f"{after}{new}:{task}")
        if change.node(caller) != caller or self._after != self._parent:
            return self._unproven(write, caller, "name the tasks that it calls: rename_node(…, calls=[…]), or ")
        return _same(write)

    def _triggers(self, name: str) -> Iterator[tuple[str, ...]]:
        """What may have triggered a node, likeliest first: LangGraph hashes all that can, sorted."""
        if name in self._seen:
            yield self._seen[name]
        joins = self._joins(name)[:_JOINS]
        branch = BRANCH + name
        for some in chain.from_iterable(combinations(joins, size) for size in range(len(joins) + 1)):
            yield tuple(sorted((branch, *some)))
            if some:
                yield tuple(sorted(some))
        yield ("__start__",)
        for channel in self._channels:
            yield (channel,)

    def _joins(self, name: str) -> list[str]:
        return [one for one in self._channels if (join := starts_of(one)) is not None and join[1] == name]

    def _task(self, name: str, *parts: str, parent: str | None = None) -> str:
        from xxhash import xxh3_128_hexdigest  # noqa: PLC0415 - comes with LangGraph, as what was written did

        if self._id is None or not isinstance(self._step, int):
            return ""
        space = (self._parent if parent is None else parent) + name
        text = "".join((space, str(self._step + 1), name, *parts))
        digits = xxh3_128_hexdigest(self._id + text.encode("utf-8", "surrogatepass"))
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def _moved(self, name: str, task: str, new: str, now: str, path: str) -> Moved:
        return Moved(now, path, f"{self._parent}{name}:{task}", f"{self._after}{new}:{now}")

    def _at_exit(self, write: Write) -> bool:
        """Whether a write is one to a delta channel that LangGraph stored at the end of a run with durability "exit", under an
        id that tells the step (``exit_delta_task_id`` and ``exit_delta_late_task_id`` of its ``pregel/_checkpoint.py``): no
        task ever has that."""
        found = _AT_EXIT.fullmatch(write.task)
        if found is None or not isinstance(self._step, int):
            return False
        step = int(found[2] + found[3], 16) if found[1] == "ffffffff" else int(found[1])
        return 0 <= step - self._step <= _STEPS

    def _unproven(self, write: Write, name: str, advice: str = "") -> Moved:
        if self._at_exit(write):
            return _same(write)
        raise NotDeclared(
            f"{self._where} has a pending write of task {write.task!r}, of node {name!r} or what it called, and its id "
            f"is not the one that this release of Milepost computes for it: {advice}finish the thread with the release that it "
            "waits in, or drop the node with drop_node(…, to=…)"
        )

    def made(self, name: str) -> Iterator[tuple[str, str]]:
        """Every task that the checkpoint may have made for a node: its id, and its path."""
        for triggers in self._triggers(name):
            yield self._task(name, _PULL, *triggers), _PULLED + name
        for path in self.sent_to(name):
            at = int(path[len(_PUSHED) : -len(_OF_SEND)])
            yield self._task(name, _PUSH, str(at)), path

    def called(self, caller: str, name: str) -> Iterator[tuple[str, str]]:
        """Every call of the functional API that the task of namespace `caller` may have made: its id, and its path."""
        path = pulled(caller.rpartition("|")[2].partition(":")[0])
        for at in range(_CALLS):
            task = self._task(name, _PUSH, path, str(at), parent=f"{caller}|")
            yield task, f"{_PUSHED}{path}, {at:010d}, 0000000001"

    def space(self, name: str, task: str) -> str:
        """The namespace of a task: what its questions, and the checkpoints of a subgraph in it, are named after."""
        return f"{self._parent}{name}:{task}"

    def space_of(self, write: Write) -> str | None:
        """The namespace of the task of `write`, if its path tells the node."""
        name = self._node(write.path)
        return None if name is None else self.space(name, write.task)

    def triggered(self, write: Write) -> str | None:
        """The node of the task of `write`, if it was triggered: a node has at most one such task."""
        return self._node(write.path) if write.path.startswith(_PULLED) else None

    def _node(self, path: str) -> str | None:
        """The node of a task that was triggered or sent."""
        if path.endswith(_HANDLED):
            return None
        if path.startswith(_PULLED):
            return path[len(_PULLED) :]
        sent = _SENT.fullmatch(path)
        send: Any = self._sends[at] if sent and (at := int(sent[1])) < len(self._sends) else None
        return send.node if is_send(send) else None

    def sent_to(self, name: str) -> Iterator[str]:
        """The paths of the tasks that were sent to a node."""
        for at, send in enumerate(self._sends):
            if is_send(send) and send.node == name:
                yield f"{_PUSHED}{at:010d}{_OF_SEND}"


def pulled(name: str) -> str:
    """The path of the task of a node that was triggered."""
    return _PULLED + name


def renamed_questions(value: Any, spaces: Sequence[tuple[str, str]]) -> Any:
    """LangGraph's ``Interrupt``s of a task, by the namespaces of tasks then and now. One that a subgraph asked keeps its
    id: the subgraph's own checkpoint, which has the question too, is not looked at here."""
    if isinstance(value, list | tuple):
        return type(value)(_renamed_question(one, spaces) for one in value)
    return _renamed_question(value, spaces)


def _renamed_question(question: Any, spaces: Sequence[tuple[str, str]]) -> Any:
    for before, after in spaces:
        for answered in range(ANSWERS):
            if getattr(question, "id", None) == question_id(before, answered):
                renamed = copy.copy(question)
                renamed.id = question_id(after, answered)
                return renamed
    return question


def question_id(space: str, answered: int) -> str:
    """LangGraph's id of the question that a task asks after so many answers; `space` is the task's namespace."""
    from xxhash import xxh3_128_hexdigest  # noqa: PLC0415 - (as above)

    return xxh3_128_hexdigest((f"{space}|{answered}" if answered else space).encode("utf-8", "surrogatepass"))


def _same(write: Write) -> Moved:
    return Moved(write.task, write.path, "", "")
