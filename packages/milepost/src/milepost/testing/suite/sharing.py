"""Several savers on one store, clones, serializers and keys, listeners, threads, event loops and processes."""

from __future__ import annotations

import asyncio
import copy
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AnyMessage, HumanMessage

from milepost.codec.values import Serializer
from milepost.errors import MilepostError, Unavailable
from milepost.observe import thread_hash
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.faults import Plan
from milepost.testing.lab import Face, Lab, in_a_thread
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours, needs


def _messages(count: int) -> list[AnyMessage]:
    return [HumanMessage(f"{number} " + "words " * 30, id=str(number)) for number in range(count)]


class Sharing(Behaviours):
    """Any number of savers and clones work on one store."""

    async def test_two_savers_see_each_other(self, lab: Lab) -> None:
        one, two = lab.saver, lab.open()
        await Chain(one).put({"x": 1})
        assert (await two.got(at("thread"))).checkpoint["channel_values"] == {"x": 1}
        await two.put(at("thread", "", "0001"), checkpoint("0002", {"x": 2}))
        await one.put_writes(at("thread", "", "0002"), [("x", 3)])
        found = await two.got(at("thread"))
        assert found.checkpoint["id"] == "0002"
        assert found.pending_writes == [("task", "x", 3)]
        assert await one.ids(at("thread")) == ["0002", "0001"]

    async def test_a_clone_shares_everything_but_the_serializer(self, lab: Lab) -> None:
        messages = _messages(50)
        chain = Chain(lab.saver)
        await chain.put({"m": messages})
        clone = lab.saver.clone(copy.copy(lab.saver.saver))
        clone.saver.serde = Serializer()
        assert lab.saver.saver.serde is not clone.saver.serde
        chain.saver = clone
        lab.saver.events.clear()
        await chain.put({"m": [*messages, HumanMessage("more")]})
        [event] = [event for event in lab.saver.events if event.op == "put"]
        assert event.items_new == 1, "a clone does not know what the original stored"
        del clone, chain
        assert len(await lab.saver.list(at("thread"))) == 2, "dropping a clone closed the store"

    async def test_many_clones_at_once(self, lab: Lab) -> None:
        async def run(number: int) -> None:
            clone = lab.saver.clone(copy.copy(lab.saver.saver))
            chain = Chain(clone, f"t{number % 4}", f"ns{number}")
            for step in range(5):
                await chain.put({"m": _messages(step), "n": number})
                await chain.writes(("n", step))
            assert (await chain.values())["n"] == number

        calls = [lambda number=number: run(number) for number in range(16)]
        await lab.together(*calls)
        assert (await lab.saver.stats())[:3] == (4, 80, 80)

    async def test_closed_is_unavailable(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        saver = lab.saver
        await saver.close()
        await saver.close()
        for call in (
            saver.get(chain.latest),
            saver.list(None),
            saver.put_writes(chain.at(), [("x", 1)]),
            saver.stats(),
        ):
            with pytest.raises(Unavailable):
                await call
        with pytest.raises(Unavailable):
            await chain.put({"x": 2})

    async def test_setup_is_safe_to_repeat(self, lab: Lab) -> None:
        savers = [lab.open() for _ in range(6)]
        await lab.together(*[saver.setup for saver in savers])
        await Chain(savers[0]).put({"x": 1})
        for saver in savers:
            await saver.setup()
        told_not_to = lab.open(setup=False)
        assert (await told_not_to.got(at("thread"))).checkpoint["channel_values"] == {"x": 1}
        await told_not_to.put(at("thread", "", "0001"), checkpoint("0002", {"x": 2}))
        assert await savers[0].ids(at("thread")) == ["0002", "0001"]

    @needs("durable")
    async def test_all_of_it_is_there_after_a_restart(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"m": _messages(100)})
        await chain.writes(("m", _messages(2)))
        before = await lab.saver.list(None)
        saver = await lab.reopen()
        assert_same(before, await saver.list(None))

    @needs("shared")
    async def test_processes_write_to_one_store(self, lab: Lab) -> None:
        await Chain(lab.saver, "common").put({"x": 0})
        await lab.close()
        command = [sys.executable, "-c", _EIGHT_WORKERS, lab.subject.url(), lab.flavour]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)  # noqa: ASYNC221, S603  # processes are the point, and they run our own text
        assert done.returncode == 0, done.stderr[-2000:]
        async for saver in lab.views():
            for number in range(8):
                found = await saver.list(at(f"own {number}"))
                assert [item.checkpoint["channel_values"]["n"] for item in found] == [*range(9, -1, -1)]
            writes = (await saver.got(at("common", "", "0001"))).pending_writes
            assert writes is not None
            assert len(writes) == 80
            assert len(await saver.list(at("common"))) == 81


_EIGHT_WORKERS = """
import asyncio, os, sys, traceback
import milepost
from milepost.flavour import run
from milepost.testing import Chain, Face, at, checkpoint

async def work(number, url, flavour):
    saver = Face(milepost.connect(url), flavour)
    own = Chain(saver, f"own {number}")
    for step in range(10):
        await own.put({"n": step, "m": ["words " * 50 + str(place) for place in range(step)]})
        await saver.put_writes(at("common", "", "0001"), [("x", step)], f"{number}-{step}")
        await saver.put(at("common", "", "0001"), checkpoint(f"1{step}-{number}", {"x": [step] * 100}))
    await saver.close()

def child(number, url, flavour):
    try:
        (run if flavour == "blocking" else asyncio.run)(work(number, url, flavour))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

children = []
for number in range(8):
    pid = os.fork()
    if not pid:
        os._exit(child(number, *sys.argv[1:]))
    children.append(pid)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
"""


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


class Observed(Behaviours):
    """Events tell what happened, and never disturb it."""

    async def test_one_event_for_each_operation(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        await chain.writes(("x", 1))
        await lab.saver.get(chain.latest)
        await lab.saver.list(chain.latest)
        await lab.saver.history(chain.latest, ["x"])
        await lab.saver.stats()
        await lab.saver.threads()
        await lab.saver.delete_thread("thread")
        ops = [event.op for event in lab.saver.events]
        assert ops == ["put", "put_writes", "get", "list", "history", "stats", "threads", "delete_thread"]
        for event in lab.saver.events:
            assert event.outcome == "ok"
            assert event.seconds >= 0
            assert event.backend == lab.saver.saver.backend.name
            assert event.thread in ("", thread_hash("thread"))
            assert event.thread != "thread"

    async def test_an_error_is_told(self, lab: Lab) -> None:
        await lab.saver.setup()
        await lab.saver.delete_thread("thread")
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        await lab.saver.delete_thread("thread")
        lab.saver.events.clear()
        with pytest.raises(MilepostError):
            await chain.put({"x": 2})
        [event] = lab.saver.events
        assert (event.op, event.outcome, event.error) == ("put", "error", "ThreadDeleted")

    async def test_a_listener_that_raises_disturbs_nothing(self, lab: Lab) -> None:
        def broken(_: object) -> None:
            raise AssertionError("the listener is broken")

        handler = Records()
        logging.getLogger("milepost").addHandler(handler)
        try:
            stop = lab.saver.saver.observe(broken)
            chain = Chain(lab.saver)
            await chain.put({"x": 1})
            assert await chain.values() == {"x": 1}
            assert [record.levelname for record in handler.records] == ["ERROR", "ERROR"]
            stop()
            stop()
            await chain.put({"x": 2})
        finally:
            logging.getLogger("milepost").removeHandler(handler)
        assert len(handler.records) == 2
        assert [event.op for event in lab.saver.events] == ["put", "get", "put"]


class Concurrency(Behaviours):
    """From any thread and any number of event loops; a blocking call never hangs."""

    async def test_many_threads_write_at_once(self, lab: Lab) -> None:
        async def run(number: int) -> None:
            chain = Chain(lab.saver, f"t{number % 3}", f"ns{number}")
            messages = _messages(12)
            for step in range(12):
                await chain.put({"m": messages[:step], "n": step})
                await chain.writes(("n", step), task=f"task {step}")
            assert_same(messages[:11], (await chain.values())["m"])

        calls = [lambda number=number: run(number) for number in range(12)]
        await lab.together(*calls)
        async for saver in lab.views():
            assert (await saver.stats())[:3] == (3, 144, 144)

    async def test_many_writers_of_one_namespace(self, lab: Lab) -> None:
        base = Chain(lab.saver)
        await base.put({"m": _messages(3)})

        async def run(number: int) -> None:
            made = checkpoint(f"1{number:03}", {"m": [*_messages(3), HumanMessage(str(number) * 300)]})
            await lab.saver.put(base.at("0001"), made)
            await lab.saver.put_writes(at("thread", "", f"1{number:03}"), [("m", number)])

        calls = [lambda number=number: run(number) for number in range(20)]
        await lab.together(*calls)
        found = await lab.saver.list(base.latest)
        assert [item.checkpoint["id"] for item in found] == [*[f"1{number:03}" for number in range(19, -1, -1)], "0001"]
        for item in found[:-1]:
            number = int(item.checkpoint["id"][1:])
            assert_same(HumanMessage(str(number) * 300), item.checkpoint["channel_values"]["m"][-1])
            assert item.pending_writes == [("task", "m", number)]

    async def test_a_blocking_call_inside_a_running_loop(self, lab: Lab) -> None:
        saver = lab.saver.saver

        async def inside() -> None:
            chain = Chain(Face(saver, "blocking"))
            await chain.put({"x": 1})
            await chain.writes(("x", 2))
            assert await chain.values() == {"x": 1}
            chain.saver = Face(saver, "async")
            await chain.put({"x": 2})
            assert len(list(saver.list(chain.latest))) == 2

        await lab.inside_a_loop(inside)

    async def test_blocking_calls_from_threads_of_an_async_run(self, lab: Lab) -> None:
        saver = lab.saver.saver

        async def inside() -> None:
            chain = Chain(Face(saver, "async"))
            await chain.put({"x": 0})

            def tool(number: int) -> None:
                saver.put(at("thread", f"sub:{number}"), checkpoint("0001", {"x": number}), {}, {"x": 1})
                saver.put_writes(chain.at("0001"), [("x", number)], f"t{number}")
                assert saver.get_tuple(at("thread", f"sub:{number}")) is not None

            await asyncio.gather(*(asyncio.to_thread(tool, number) for number in range(8)), chain.put({"x": 1}))
            assert len((await chain.saver.got(chain.at("0001"))).pending_writes or ()) == 8

        await lab.inside_a_loop(inside)

    async def test_one_loop_after_another_and_two_at_once(self, lab: Lab) -> None:
        saver = lab.saver.saver  # built here: in one flavour outside of any loop, in the other inside another one

        async def work(thread: str) -> None:
            chain = Chain(Face(saver, "async"), thread)
            for number in range(5):
                await chain.put({"n": number})
                await chain.writes(("n", number))
                await asyncio.sleep(0)
            assert (await chain.values())["n"] == 4

        for thread in ("first", "second"):
            await in_a_thread(partial(work, thread))
        both = threading.Barrier(2)

        async def at_once(thread: str) -> None:
            both.wait()
            await work(thread)

        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(asyncio.run, at_once(thread)) for thread in ("third", "fourth")]:
                future.result()
        rows = await lab.saver.threads()
        assert sorted(row.thread for row in rows) == ["first", "fourth", "second", "third"]

    async def test_a_cancelled_put_is_all_or_nothing(self, lab: Lab) -> None:
        saver = lab.saver.saver
        messages = _messages(4)

        async def inside() -> None:
            face = Face(saver, "async")
            for steps in range(12):
                thread = f"t{steps}"
                await face.put(at(thread), checkpoint("1", {"m": messages[:1]}))
                made = checkpoint("2", {"m": messages})
                calls: Sequence[Any] = (
                    face.put(at(thread, "", "1"), made),
                    face.put_writes(at(thread, "", "1"), [("m", messages), ("n", 1)]),
                )
                tasks = [asyncio.ensure_future(call) for call in calls]
                for _ in range(steps):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                ids = await face.ids(at(thread))
                writes = (await face.got(at(thread, "", "1"))).pending_writes
                assert ids in (["2", "1"], ["1"])
                assert writes is not None
                assert len(writes) in (0, 2)
                if not isinstance(done[0], BaseException):
                    assert ids == ["2", "1"], "a put that returned is not there"
                if not isinstance(done[1], BaseException):
                    assert len(writes) == 2, "writes that were accepted are not there"
                # Nothing appears later, and the next call works.
                await asyncio.sleep(0.01)
                assert await face.ids(at(thread)) == ids
                assert (await face.got(at(thread, "", "1"))).pending_writes == writes
                await face.put_writes(at(thread, "", "1"), [("m", messages), ("n", 1)])
                await face.put(at(thread, "", "1"), made)
                assert_same(messages, (await face.got(at(thread))).checkpoint["channel_values"]["m"])

        await lab.inside_a_loop(inside)

    async def test_a_put_that_is_cancelled_while_it_waits(self, lab: Lab) -> None:
        plan = Plan()
        saver = lab.faulty(plan).saver

        async def inside() -> None:
            chain = Chain(Face(saver, "async"))
            await chain.put({"x": 1})
            plan.arm("hang")
            writes = asyncio.ensure_future(chain.writes(("x", 2)))
            await asyncio.wrap_future(plan.hanging)
            made = checkpoint("0002", {"x": 2})
            cancelled, patient = [asyncio.ensure_future(chain.saver.put(chain.at("0001"), made)) for _ in range(2)]
            await asyncio.sleep(0.01)
            cancelled.cancel()
            await asyncio.sleep(0.01)
            plan.release()
            await writes
            await patient
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert await chain.ids() == ["0002", "0001"]

        await lab.inside_a_loop(inside)
        found = await lab.saver.got(at("thread", "", "0001"))
        assert found.pending_writes == [("task", "x", 2)]
