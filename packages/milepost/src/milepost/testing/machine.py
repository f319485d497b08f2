"""A hypothesis state machine: any sequence of operations leaves a saver as the model says.

TestMine = machine(Mine).TestCase
"""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import CheckpointTuple

from milepost.errors import Conflict, ThreadDeleted
from milepost.flavour import run
from milepost.testing.chain import at, checkpoint, id_of, inside
from milepost.testing.lab import Face, Flavour, Lab, Subject
from milepost.testing.model import Model, ModelRow, Place, Refused
from milepost.testing.same import assert_same, assert_same_items

T = TypeVar("T")

THREADS = ("a", "a:b", "A*")
NAMESPACES = ("", "sub")
RUNS = ("r1", "r2", "r3")
CHANNELS = ("list", "map", "text", "number", "messages")

Mutation = Callable[[dict[str, Any], int], str]
"""Changes a state in place, in a way that depends on a number; returns the channel that changed."""


def _message(number: int) -> Any:
    text = f"{number} " + "words " * (number % 40)
    kind = number % 3
    if kind == 0:
        return HumanMessage(text, id=str(number), additional_kwargs={"deep": [{"n": number}]})
    if kind == 1:
        call = {"name": "search", "args": {"q": [number]}, "id": str(number), "type": "tool_call"}
        return AIMessage(text, id=str(number), tool_calls=[call])
    return ToolMessage(text, id=str(number), tool_call_id=str(number - 1))


def _append(state: dict[str, Any], number: int) -> str:
    state["messages"] += [_message(number + extra) for extra in range(1 + number % 3 * 60)]
    return "messages"


def _edit_content(state: dict[str, Any], number: int) -> str:
    if messages := state["messages"]:
        messages[number % len(messages)].content = f"edited {number}"
    return "messages"


def _edit_below(state: dict[str, Any], number: int) -> str:
    if messages := state["messages"]:
        messages[number % len(messages)].additional_kwargs.setdefault("deep", []).append((1, True, 1.0)[number % 3])
    return "messages"


def _trim(state: dict[str, Any], number: int) -> str:
    del state["messages"][: number % 5]
    return "messages"


def _rearrange(state: dict[str, Any], number: int) -> str:
    messages = state["messages"]
    place = number % (len(messages) + 1)
    state["messages"] = [*messages[place:], *messages[:place], *messages[place : place + 1]]
    return "messages"


def _insert(state: dict[str, Any], number: int) -> str:
    state["messages"].insert(number % (len(state["messages"]) + 1), _message(number))
    return "messages"


def _list_item(state: dict[str, Any], number: int) -> str:
    values = state["list"]
    values.append((number, float(number), str(number), bool(number % 2), None, [number], {"n": number})[number % 7])
    values[number % len(values)] = values[-1]
    return "list"


def _numbers(state: dict[str, Any], number: int) -> str:
    state["list"] = [*range(number % 200)]
    return "list"


def _map_item(state: dict[str, Any], number: int) -> str:
    state["map"].setdefault(f"k{number % 30}", []).append(number)
    return "map"


def _map_more(state: dict[str, Any], number: int) -> str:
    state["map"] |= {f"k{key}": ["x" * (key % 50)] for key in range(number % 60)}
    return "map"


def _map_less(state: dict[str, Any], number: int) -> str:
    state["map"].pop(f"k{number % 30}", None)
    return "map"


def _text(state: dict[str, Any], number: int) -> str:
    state["text"] = "text " * (number % 500)
    return "text"


def _number(state: dict[str, Any], number: int) -> str:
    state["number"] = (number, -number, 1, True, 1.0, None)[number % 6]
    return "number"


MUTATIONS: tuple[Mutation, ...] = (
    _append, _edit_content, _edit_below, _trim, _rearrange, _insert, _list_item, _numbers, _map_item, _map_more, _map_less,
    _text, _number,
)  # fmt: skip

# Mostly one place: what goes wrong, goes wrong where operations meet.
_threads = st.sampled_from(("a", "a", "a", *THREADS))
_namespaces = st.sampled_from(("", "", *NAMESPACES))
_ids = st.integers(0, 20).map(lambda number: f"{number:02}")
_tasks = st.sampled_from(("t1", "t1", "t2"))
_small = st.integers(0, 1000)
_changes = st.lists(st.tuples(st.sampled_from(MUTATIONS), _small), max_size=4)
_channels = st.lists(
    st.sampled_from(["list", "messages", "x", "__error__", "__interrupt__", "__resume__"]), min_size=1, max_size=3
)


def _fresh() -> dict[str, Any]:
    return {
        "messages": [_message(number) for number in range(12)],
        "list": [0, "a", None],
        "map": {f"k{number}": [number] for number in range(12)},
        "text": "text " * 50,
        "number": 0,
    }


class SaverMachine(RuleBasedStateMachine):
    """See the module. Set `subject` and `flavour`, or use `machine`."""

    subject: ClassVar[type[Subject]]
    flavour: ClassVar[Flavour] = "blocking"

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(prefix="milepost-machine-")
        self._loop = asyncio.new_event_loop() if self.flavour == "async" else None
        self._lab = Lab(self.subject(Path(self._directory.name)), self.flavour)
        self._savers: list[Face] = [self._lab.open()]
        self._model = Model()
        self._live: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
        """(thread, ns) -> the checkpoint put last, and the very objects that were passed."""
        self._touched: set[str] = set()
        self._late: set[tuple[Face, str, str | None]] = set()
        """(saver, thread, id) of checkpoints whose put that saver has been refused, and has not done since."""

    def teardown(self) -> None:
        try:
            self._do(self._compare(self._savers[0], THREADS))
            fresh = self._do(self._lab.reopen())
            self._do(self._compare(fresh, THREADS))
        finally:
            self._do(self._lab.close())
            if self._loop is not None:
                self._loop.run_until_complete(self._loop.shutdown_asyncgens())
                self._loop.close()
            self._directory.cleanup()

    @rule(saver=_small, thread=_threads, ns=_namespaces, changes=_changes, everything=st.booleans(), run=_small)
    def go_on(
        self, saver: int, thread: str, ns: str, changes: list[tuple[Mutation, int]], everything: bool, run: int
    ) -> None:
        """The next superstep: the very objects of the step before, some of them changed in place."""
        rows = self._model.thread(thread).rows
        last, live = self._live.get((thread, ns), ("", {}))
        id = f"{max((int(id) for space, id in rows if space == ns), default=-1) + 1:02}"
        if (ns, last) in rows:
            self._put(saver, thread, (ns, id), last, live, changes, everything, run)
        else:
            self._put(saver, thread, (ns, id), None, _fresh(), changes, True, run)

    @rule(saver=_small, thread=_threads, ns=_namespaces, id=_ids, changes=_changes, parent=_small, run=_small)
    def put(
        self, saver: int, thread: str, ns: str, id: str, changes: list[tuple[Mutation, int]], parent: int, run: int
    ) -> None:
        """A fork, a start, a child of a parent that is not (any more) there, or a checkpoint put again."""
        known = self._model.thread(thread)
        places = [place for place in known.order(ns) if place[1] != id]
        old = known.rows.get((ns, id))
        if old is not None:
            self._put(saver, thread, (ns, id), old.parent, copy.deepcopy(old.values), changes, True, run)
        elif places and parent % 8 < 5:
            place = places[parent % len(places)]
            found = self._do(self._face(saver).got(at(thread, *place)))
            values = found.checkpoint["channel_values"]
            self._put(saver, thread, (ns, id), place[1], values, changes, parent % 2 == 0, run)
        else:
            gone = [None, "unknown", *sorted(known.dead)]
            self._put(saver, thread, (ns, id), gone[parent % len(gone)], _fresh(), changes, True, run)

    def _put(
        self,
        saver: int,
        thread: str,
        place: Place,
        parent: str | None,
        state: dict[str, Any],
        changes: list[tuple[Mutation, int]],
        everything: bool,
        run: int,
    ) -> None:
        ns, id = place
        known = self._model.thread(thread)
        above = known.rows.get((ns, parent or ""))
        versions: dict[str, Any] = dict(above.versions) if above else dict.fromkeys(CHANNELS, 0)
        changed = {mutate(state, number) for mutate, number in changes}
        if everything:
            changed |= set(CHANNELS)
        new = {channel: versions.get(channel, 0) + 1 for channel in changed}
        versions |= new
        metadata = {"source": "loop", "step": len(known.rows), "parents": {}, "run_id": RUNS[run % len(RUNS)]}

        def apply() -> None:
            self._model.put(thread, place, parent, state, versions, metadata)

        made = checkpoint(id, state, versions)
        face = self._face(saver)
        call = face.put(at(thread, ns, parent), made, cast("Any", metadata), new)
        if self._both(thread, apply, call, face, parent):
            self._live[thread, ns] = (id, state)
            self._late.discard((face, thread, id))
        else:
            self._late.add((face, thread, id))

    @rule(saver=_small, thread=_threads, ns=_namespaces, task=_tasks, channels=_channels, number=_small)
    def writes_of_the_step(self, saver: int, thread: str, ns: str, task: str, channels: list[str], number: int) -> None:
        """Writes at the checkpoint put last."""
        last, live = self._live.get((thread, ns), ("00", _fresh()))
        self._put_writes(saver, thread, (ns, last), task, channels, number, live["messages"])

    @rule(saver=_small, thread=_threads, ns=_namespaces, id=_ids, task=_tasks, channels=_channels, number=_small)
    def writes_anywhere(
        self, saver: int, thread: str, ns: str, id: str, task: str, channels: list[str], number: int
    ) -> None:
        """Writes at a checkpoint that may be there, or not yet, or no more."""
        self._put_writes(saver, thread, (ns, id), task, channels, number, [])

    def _put_writes(
        self, saver: int, thread: str, place: Place, task: str, channels: list[str], number: int, live: list[Any]
    ) -> None:
        writes = [
            (channel, [_message(number), *live[-1:]] if channel == "messages" else {"n": [number, index]})
            for index, channel in enumerate(channels)
        ]
        path = ("", "~a", "b")[number % 3]

        def apply() -> None:
            self._model.put_writes(thread, place, writes, task, path)

        face = self._face(saver)
        self._both(thread, apply, face.put_writes(at(thread, *place), writes, task, path), face, place[1])

    @rule(saver=_small, thread=_threads, onto=st.sampled_from(THREADS), what=st.integers(0, 11), run=_small)
    def upkeep(self, saver: int, thread: str, onto: str, what: int, run: int) -> None:
        """Pruning most often: what deletes everything leaves little to go wrong."""
        face, model = self._face(saver), self._model
        if what < 5:
            self._both(thread, lambda: model.prune(thread), face.prune([thread]))
        elif what < 7:
            self._touched |= set(THREADS)
            run_id = RUNS[run % len(RUNS)]
            self._both(thread, lambda: model.delete_run(run_id), face.delete_for_runs([run_id]))
        elif what < 10 and onto != thread:
            if self._both(onto, lambda: model.copy(thread, onto), face.copy_thread(thread, onto)):
                # Its checkpoints are others now: a run of before does not go on from them.
                self._live = {place: live for place, live in self._live.items() if place[0] != onto}
        elif what == 10:
            self._both(thread, lambda: model.delete_thread(thread), face.delete_thread(thread))
        elif what == 11:
            strategy = ("delete", "delete_all")[run % 2]
            self._both(thread, lambda: model.delete_thread(thread), face.prune([thread], strategy))

    @rule(fresh=st.booleans())
    def another_saver(self, fresh: bool) -> None:
        """A second saver beside the first, or, where the store is durable, everything closed and opened again."""
        if fresh:
            self._savers = [self._do(self._lab.reopen())]
        elif len(self._savers) < 3:
            self._savers.append(self._lab.open())

    @rule(saver=_small, thread=_threads, ns=_namespaces, number=_small)
    def read(self, saver: int, thread: str, ns: str, number: int) -> None:
        """The latest, one by its id, a listing with every argument, and a delta channel's history."""
        self._do(self._read(self._face(saver), thread, ns, number))

    async def _read(self, face: Face, thread: str, ns: str, number: int) -> None:
        known = self._model.thread(thread)
        order = known.order(ns)
        found = await face.get(at(thread, ns))
        assert (found and found.checkpoint["id"]) == (order[0][1] if order else None)
        if order:
            place = order[number % len(order)]
            self._same(thread, place, known.rows[place], await face.got(at(thread, *place)))
            run_id = RUNS[number % 3]
            wanted = [one[1] for one in order if known.rows[one].metadata["run_id"] == run_id]
            wanted = [id for id in wanted if known.rows[ns, id].key < known.rows[place].key][:3]
            options: dict[str, Any] = {"filter": {"run_id": run_id}, "before": at(thread, *place), "limit": 3}
            assert await face.ids(at(thread, ns), **options) == wanted
        history = await face.history(at(thread, ns), ["x", "list"])
        for channel in ("x", "list"):
            assert_same(self._model.history(thread, ns, channel), dict(history[channel]), f"history of {channel}")

    @invariant()
    def equals_the_model(self) -> None:
        """What was touched is as it should be: the newest checkpoints now, all of them at the end."""
        touched, self._touched = self._touched, set()
        self._do(self._compare(self._savers[-1], sorted(touched), limit=4))

    async def _compare(self, face: Face, threads: Iterable[str], limit: int | None = None) -> None:
        for thread in threads:
            known = self._model.thread(thread)
            found = await face.list(at(thread, None), limit=limit)
            places = [(inside(item.config)["checkpoint_ns"], item.checkpoint["id"]) for item in found]
            assert places == known.order()[:limit], f"thread {thread!r}: {places} instead of {known.order()}"
            for place, item in zip(places, found, strict=True):
                self._same(thread, place, known.rows[place], item)
            stats = await face.stats(thread)
            writes = sum(len(rows) for rows in known.writes.values())
            assert (stats.checkpoints, stats.writes) == (len(known.rows), writes)

    def _same(self, thread: str, place: Place, row: ModelRow, item: CheckpointTuple) -> None:
        where = f"{thread!r} {place}"
        assert_same(row.values, item.checkpoint["channel_values"], f"{where} values")
        assert_same(row.versions, item.checkpoint["channel_versions"], f"{where} versions")
        assert_same_items(row.metadata, cast("Any", item.metadata), f"{where} metadata")
        assert_same(self._model.thread(thread).pending(place), item.pending_writes, f"{where} writes")
        parent = id_of(item.parent_config)
        assert parent == row.parent, f"{where}: the parent is {parent!r} instead of {row.parent!r}"

    def _face(self, number: int) -> Face:
        return self._savers[number % len(self._savers)]

    def _both(
        self,
        thread: str,
        apply: Callable[[], None],
        call: Coroutine[Any, Any, Any],
        face: Face | None = None,
        rests: str | None = None,
    ) -> bool:
        """Do it to the saver and to the model; both must do it, or both refuse it.

        What `rests` on a checkpoint whose own put `face` was refused may be refused by that saver, which remembers it.
        """
        self._touched.add(thread)
        try:
            self._do(call)
        except (ThreadDeleted, Conflict) as exc:
            if face is not None and (face, thread, rests) in self._late:
                return False
            try:
                apply()
            except Refused:
                return False
            raise AssertionError(f"refused without a reason: {exc}") from exc
        apply()
        return True

    def _do(self, call: Coroutine[Any, Any, T]) -> T:
        # Not asyncio.Runner: each of its runs in the main thread takes the repr of the result before.
        return run(call) if self._loop is None else self._loop.run_until_complete(call)


def machine(subject: type[Subject], flavour: Flavour = "blocking") -> type[SaverMachine]:
    """The state machine over `subject`; its `TestCase` is for pytest and unittest."""
    return type(f"{subject.__name__}Machine", (SaverMachine,), {"subject": subject, "flavour": flavour})
