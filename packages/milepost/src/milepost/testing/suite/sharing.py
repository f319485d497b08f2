"""Several savers on one store, clones, serializers and keys, listeners, threads, event loops and processes."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import itertools
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from milepost.codec.values import Serializer
from milepost.errors import Corrupt, InvalidConfig, MilepostError, Unavailable
from milepost.observe import thread_hash
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours, needs

SECRET = "the-secret-of-this-thread"  # noqa: S105  # it is looked for in what is stored


def _messages(count: int) -> list[AnyMessage]:
    return [HumanMessage(f"{SECRET} {number} " + "words " * 30, id=str(number)) for number in range(count)]


class Turning(CipherProtocol):
    """A cipher good enough for tests: what it makes differs each time, and shows nothing of the text."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonces = itertools.count()

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        nonce = next(self._nonces).to_bytes(8, "big")
        return "turning", nonce + self._turned(nonce, plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "turning"
        return self._turned(ciphertext[:8], ciphertext[8:])

    def _turned(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_128(self._key + nonce).digest(len(data))
        return bytes(one ^ other for one, other in zip(data, stream, strict=True))


class Custom:
    """A serializer that nobody knows: JSON for plain data."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "custom", json.dumps(obj).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0] == "custom", f"{data[0]!r} was not written by this serializer"
        return json.loads(data[1])


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

    async def test_an_allowlist(self, lab: Lab) -> None:
        saver = lab.open(serde=Serializer(allowed_msgpack_modules=None))
        clone = saver.clone(saver.saver.with_allowlist([("milepost.testing.suite.values", "Person")]))  # type: ignore[arg-type]  # a Saver: made by copy.copy
        chain = Chain(clone)
        for number in range(3):
            await chain.put({"m": _messages(number)})
        assert len(await saver.list(at("thread"))) == 3

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

    @needs("durable")
    async def test_it_is_there_after_a_restart(self, lab: Lab) -> None:
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


class Serializers(Behaviours):
    """A serializer of the user's, and keys."""

    @pytest.mark.parametrize("kind", ["official", "encrypted", "custom", "keys"])
    async def test_a_run(self, lab: Lab, kind: str) -> None:
        options = _options(kind)
        saver = lab.open(**options)
        texts: list[Any] = _messages(60) if kind != "custom" else [one.content for one in _messages(60)]
        chain = Chain(saver)
        for number in range(0, 60, 6):
            await chain.put(
                {"m": texts[:number], "n": number, "d": {str(n): texts[n] for n in range(number)}},
                metadata={"user": SECRET},
            )
            await chain.writes(("m", texts[number]), ("__error__", "e"))
        for reader in (saver, lab.open(**options)):
            found = await reader.list(chain.latest)
            for item, number in zip(reversed(found), range(0, 60, 6), strict=True):
                values = item.checkpoint["channel_values"]
                assert_same(texts[:number], values["m"])
                assert_same({str(n): texts[n] for n in range(number)}, values["d"])
                assert_same([("task", "__error__", "e"), ("task", "m", texts[number])], item.pending_writes)
            assert await reader.ids(chain.latest, filter={"user": SECRET, "step": 3}) == ["0003"]
        await saver.copy_thread("thread", "copy")
        await saver.prune(["thread"])
        await saver.delete_for_runs(["nobody"])
        values = (await saver.got(at("copy"))).checkpoint["channel_values"]
        assert_same(texts[:54], values["m"])
        assert_same(texts[:54], (await chain.values())["m"])
        await chain.put({"m": texts, "n": 60})
        assert_same(texts, (await chain.values())["m"])

    @pytest.mark.parametrize("kind", ["official", "encrypted", "keys"])
    async def test_values_are_stored_once_all_the_same(self, lab: Lab, kind: str) -> None:
        saver = lab.open(**_options(kind))
        chain = Chain(saver)
        messages = _messages(100)
        await chain.put({"m": messages})
        saver.events.clear()
        await chain.put({"m": [*copy.deepcopy(messages), HumanMessage("more")]})
        [event] = saver.events
        assert event.items_new <= 1
        assert event.bytes < 5_000

    @pytest.mark.parametrize("kind", ["encrypted", "keys"])
    @needs("durable", "damage")
    async def test_nothing_secret_lies_in_the_clear(self, lab: Lab, kind: str) -> None:
        chain = Chain(lab.open(**_options(kind)))
        await chain.put({"m": _messages(10), "text": SECRET, "small": SECRET[:12]}, metadata={"about": SECRET})
        await chain.writes(("m", SECRET), ("__error__", SECRET))
        await chain.put({"m": _messages(300), "text": SECRET, "d": {SECRET: SECRET}}, metadata={"about": SECRET})
        await lab.close()
        media = lab.subject.media()
        assert media
        for name, data in media.items():
            assert SECRET[:12].encode() not in data, f"{name} shows what is encrypted"

    async def test_a_wrong_key(self, lab: Lab) -> None:
        chain = Chain(lab.open(keys={"k1": b"1" * 32}))
        await chain.put({"x": "x" * 100})
        with pytest.raises(InvalidConfig, match="k1"):
            await lab.open(keys={"k2": b"2" * 32}).get(chain.latest)
        with pytest.raises(InvalidConfig):
            await lab.open().get(chain.latest)
        with pytest.raises(Corrupt):
            await lab.open(keys={"k1": b"2" * 32}).get(chain.latest)
        assert await chain.values() == {"x": "x" * 100}

    async def test_keys_are_rotated(self, lab: Lab) -> None:
        one, two = b"1" * 32, b"2" * 16
        old = Chain(lab.open(keys={"k1": one}))
        await old.put({"m": _messages(20), "x": "x" * 500})
        both = lab.open(keys={"k2": two, "k1": one})
        chain = Chain(both)
        chain.head = "0001"
        values = await chain.values()
        await chain.put({"m": [*values["m"], HumanMessage("new")], "x": "y" * 500}, id="0002")
        await chain.put({"alone": "z" * 500}, id="0003", parent="")
        assert_same([*_messages(20), HumanMessage("new")], (await chain.values("0002"))["m"])
        only_new = lab.open(keys={"k2": two})
        assert (await only_new.got(at("thread", "", "0003"))).checkpoint["channel_values"] == {"alone": "z" * 500}
        with pytest.raises(InvalidConfig, match="k1"):
            await only_new.get(at("thread", "", "0001"))

    async def test_unusable_keys(self, lab: Lab) -> None:
        for keys in ({"k": b"short"}, {"": b"1" * 32}, {"k" * 300: b"1" * 32}):
            with pytest.raises(InvalidConfig):
                lab.open(keys=keys)

    async def test_a_serializer_assigned_later(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": [1, "a"] * 100})
        lab.saver.saver.serde = JsonPlusSerializer()
        await chain.put({"x": [1, "a"] * 100, "y": (1, 2)})
        assert await chain.values("0001") == {"x": [1, "a"] * 100}
        lab.saver.saver.serde = EncryptedSerializer(Turning(b"a key"))
        await chain.put({"x": [1, "a"] * 100})
        await chain.writes(("x", {"a": 1}))
        for id in ("0001", "0002", "0003"):
            assert (await chain.values(id))["x"] == [1, "a"] * 100
        assert (await lab.saver.got(chain.latest)).pending_writes == [("task", "x", {"a": 1})]

    async def test_a_strict_serializer_refuses_unknown_classes(self, lab: Lab) -> None:
        strict = lab.open(serde=Serializer(allowed_msgpack_modules=None))
        chain = Chain(strict)
        await chain.put({"m": _messages(3), "n": 1})
        assert_same(_messages(3), (await chain.values())["m"])


def _options(kind: str) -> dict[str, Any]:
    options: dict[str, dict[str, Any]] = {
        "official": {"serde": JsonPlusSerializer()},
        "encrypted": {"serde": EncryptedSerializer(Turning(b"a key"))},
        "custom": {"serde": Custom()},
        "keys": {"keys": {"k1": b"0123456789abcdef0123456789abcdef"}},
    }
    return options[kind]


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

        if lab.flavour == "async":
            await inside()
        else:
            await _in_a_thread(inside)

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

        if lab.flavour == "async":
            await inside()
        else:
            await _in_a_thread(inside)

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
            await _in_a_thread(lambda thread=thread: work(thread))
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

        if lab.flavour == "async":
            await inside()
        else:
            await _in_a_thread(inside)


async def _in_a_thread(text: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, text()).result()
