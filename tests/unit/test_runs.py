"""Which run of this process a write belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables.config import set_config_context
from milepost.errors import ThreadDeleted
from milepost.places import Place
from milepost.runs import Run, Runs

ROOT = Place("thread", "", None)


class Runtime:
    """What LangGraph hands on; made anew for each task and each subgraph, around one `control`."""

    def __init__(self, control: object = None) -> None:
        self.control = control


def config(runtime: object, **more: Any) -> dict[str, Any]:
    return {"thread_id": "thread", "__pregel_runtime": runtime, **more}


def task(runtime: object) -> Callable[[Runs, str], Run | None]:
    """`Runs.here`, called in a task of the run of `runtime`."""

    def here(runs: Runs, thread: str) -> Run | None:
        with set_config_context({"configurable": config(runtime)}) as context:
            return context.run(runs.here, thread)

    return here


def test_a_run_is_known_by_what_it_hands_on() -> None:
    runs, control = Runs(), object()
    run = runs.reads(ROOT, config(Runtime(control)))
    assert run is not None
    assert runs.of(ROOT, config(Runtime(control))) is run
    assert runs.of(Place("thread", "sub:1", None), config(Runtime(control))) is run
    assert task(Runtime(control))(runs, "thread") is run
    for place, runtime in [
        (Place("other", "", None), Runtime(control)),
        (ROOT, Runtime(object())),
        (Place("thread", "sub:1", None), Runtime(object())),
    ]:
        assert runs.of(place, config(runtime)) is None
    assert task(Runtime(control))(runs, "other") is None
    assert task(Runtime(object()))(runs, "thread") is None
    assert task(Runtime(control))(Runs(), "thread") is None


def test_without_a_control_it_is_the_object_itself() -> None:
    runs = Runs()
    for runtime in (Runtime(), object()):
        run = runs.reads(ROOT, config(runtime))
        assert run is not None
        assert runs.of(ROOT, config(runtime)) is run
    assert runs.of(ROOT, config(Runtime())) is None


def test_threads_that_are_given_one_control_have_a_run_each() -> None:
    runs, control = Runs(), object()
    one, two = (
        runs.reads(Place(name, "", None), {**config(Runtime(control)), "thread_id": name}) for name in ("one", "two")
    )
    assert one is not two
    assert runs.of(Place("one", "", None), config(Runtime(control))) is one
    assert runs.of(Place("two", "", None), config(Runtime(control))) is two


def test_what_a_task_or_a_person_reads_begins_no_run() -> None:
    runs = Runs()
    for place, inner in [
        (ROOT, config(object(), __pregel_task_id="task")),
        (Place("thread", "sub:1", None), config(object())),
        (ROOT, {"thread_id": "thread"}),
    ]:
        assert runs.reads(place, inner) is None


def test_a_run_that_begins_is_not_the_one_of_before() -> None:
    runs, runtime = Runs(), Runtime(object())
    before = runs.reads(ROOT, config(runtime))
    assert before is not None
    before.cut = "0001"
    with pytest.raises(ThreadDeleted):
        before.refuse("a call")
    # The next run may have been given the same control.
    run = runs.reads(ROOT, config(runtime))
    assert run is not None
    run.refuse("a call")
    assert runs.of(ROOT, config(runtime)) is run


def test_what_lies_ahead_of_checkpoints_that_are_not_there() -> None:
    run = Run("thread", object())
    run.has("1")
    run.wrote(("", "1"), ["1"])
    assert run.ahead() == []
    run.wrote(("", "2"), ["2"])
    run.wrote(("sub:1", "s"), ["1", "2"])
    run.wrote(("sub:1|deeper", "d"), ["2", "s"])
    assert run.ahead() == [("", "2"), ("sub:1", "s"), ("sub:1|deeper", "d")]
    run.has("2")
    assert run.ahead() == [("sub:1|deeper", "d")]
    run.has("s")
    assert run.ahead() == []


def test_what_is_no_part_of_a_run_has_none() -> None:
    runs = Runs()
    assert runs.reads(ROOT, config(object())) is not None
    assert runs.here("thread") is None
    assert runs.of(ROOT, {"thread_id": "thread"}) is None
    assert runs.of(Place("thread", "sub:1", None), {"thread_id": "thread"}) is None


def test_few_runs_and_ids_are_remembered() -> None:
    runs, runtimes = Runs(), [object() for _ in range(1025)]
    for runtime in runtimes:
        runs.reads(ROOT, config(runtime))
    assert runs.of(ROOT, config(runtimes[0])) is None
    assert runs.of(ROOT, config(runtimes[1])) is not None
    run = Run("thread", object())
    for number in range(100):
        run.has(str(number))
    run.wrote(("", "99"), ["99"])
    assert run.ahead() == []
    # What others rest on stays known.
    run.wrote(("sub:1", "s"), ["50", "99"])
    for number in range(100, 163):
        run.has(str(number))
    run.wrote(("sub:2", "s"), ["99"])
    assert run.ahead() == []
    # What was forgotten counts as not there: of a thread that is deleted, more is removed and never less.
    run.wrote(("", "0"), ["0"])
    assert run.ahead() == [("", "0")]
