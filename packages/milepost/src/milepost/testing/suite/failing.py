"""What is left when something fails: lost requests, lost replies, replies that come late, and damaged bytes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import CheckpointTuple

from milepost.errors import Corrupt, Unavailable
from milepost.testing.chain import Chain, at, checkpoint, inside
from milepost.testing.faults import Moment, Plan
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same, difference
from milepost.testing.suite.basis import Behaviours, needs

Verb = Callable[[Face, str], Awaitable[Any]]

_ITEMS = [HumanMessage(f"{number} " + "words " * 60, id=str(number)) for number in range(6)]

_CHANGES: dict[str, Verb] = {
    "put": lambda saver, thread: saver.put(at(thread, "", "0003"), checkpoint("0004", {"m": _ITEMS[1:], "n": 4})),
    "put again": lambda saver, thread: saver.put(at(thread, "", "0001"), checkpoint("0002", {"m": _ITEMS, "n": 0})),
    "first put": lambda saver, thread: saver.put(at(thread, "new"), checkpoint("0001", {"m": _ITEMS})),
    "put_writes": lambda saver, thread: saver.put_writes(
        at(thread, "", "0003"), [("n", 9), ("__error__", "new"), ("m", _ITEMS[5])], "t"
    ),
    "put_writes ahead": lambda saver, thread: saver.put_writes(at(thread, "", "0009"), [("m", _ITEMS[5])], "t"),
    "delete_thread": lambda saver, thread: saver.delete_thread(thread),
    "delete_for_runs": lambda saver, thread: saver.delete_for_runs([f"{thread} 2"]),
    "copy_thread": lambda saver, thread: saver.copy_thread(thread, f"{thread} copy"),
    "prune": lambda saver, thread: saver.prune([thread]),
    "prune by delete": lambda saver, thread: saver.prune([thread], "delete"),
}
_READS: dict[str, Verb] = {
    "get": lambda saver, thread: saver.get(at(thread)),
    "get by id": lambda saver, thread: saver.get(at(thread, "", "0002")),
    "get nothing": lambda saver, thread: saver.get(at(thread, "", "nothing")),
    "list": lambda saver, thread: saver.list(at(thread)),
    "history": lambda saver, thread: saver.history(at(thread), ["n", "m"]),
    "threads": lambda saver, _: saver.threads(),
    "stats": lambda saver, thread: saver.stats(thread),
}


async def _scene(saver: Face, thread: str) -> None:
    for number in (1, 2, 3):
        parent = f"{number - 1:04}" if number > 1 else None
        made = checkpoint(f"{number:04}", {"m": _ITEMS[:number], "n": number}, {"m": number, "n": number})
        await saver.put(at(thread, "", parent, run_id=f"{thread} {number}"), made, {"step": number})
        await saver.put_writes(
            at(thread, "", f"{number:04}"), [("m", _ITEMS[number]), ("__error__", "old")], "t", "path"
        )


async def _state(saver: Face, thread: str) -> Any:
    """Everything of the thread and of its copy, without their names."""
    state: list[Any] = []
    for name in (thread, f"{thread} copy"):
        found = await saver.list(at(name, None))
        for item in found:
            item.metadata.pop("run_id", None)
            for config in (item.config, item.parent_config):
                if config is not None:
                    del inside(config)["thread_id"]
        state.append([tuple(item) for item in found])
        state.append((await saver.stats(name))[:3])
    return state


class Faults(Behaviours):
    """Under a port that fails, each operation happens as a whole or not at all, and may be repeated."""

    @pytest.mark.parametrize("name", list(_CHANGES))
    async def test_a_change_that_fails_can_be_repeated(self, lab: Lab, name: str) -> None:
        change, witness = _CHANGES[name], lab.saver
        await _scene(witness, "healthy")
        before = await _state(witness, "healthy")
        plan = Plan()
        counting = lab.faulty(plan)
        await counting.setup()
        plan.disarm()
        await change(counting, "healthy")
        calls = plan.calls
        after = await _state(witness, "healthy")
        assert calls, "nothing was called"
        for moment in ("before", "after"):
            for number in range(calls):
                await self._fail(lab, change, moment, number, (before, after))

    async def _fail(self, lab: Lab, change: Verb, moment: Moment, number: int, wanted: tuple[Any, Any]) -> None:
        thread, plan, witness = f"{moment} {number}", Plan(), lab.saver
        saver = lab.faulty(plan)
        await _scene(saver, thread)
        plan.arm(moment, number)
        with pytest.raises(Unavailable):
            await change(saver, thread)
        plan.disarm()
        state = await _state(witness, thread)
        assert difference(wanted[0], state) is None or difference(wanted[1], state) is None, (
            f"a part was done when call {number} failed {moment} its reply: {difference(wanted[1], state)}"
        )
        await change(saver, thread)
        assert_same(wanted[1], await _state(witness, thread), f"repeated after call {number} failed {moment} its reply")
        assert_same(wanted[1], await _state(saver, thread))

    @pytest.mark.parametrize("name", list(_CHANGES))
    async def test_a_request_carried_out_twice(self, lab: Lab, name: str) -> None:
        change, witness = _CHANGES[name], lab.saver
        await _scene(witness, "healthy")
        plan = Plan()
        saver = lab.faulty(plan)
        await _scene(saver, "twice")
        plan.arm("twice", times=100)
        await change(saver, "twice")
        plan.disarm()
        await change(witness, "healthy")
        wanted = await _state(witness, "healthy")
        assert_same(wanted, await _state(witness, "twice"))
        # What the saver learned from the second answers is right as well.
        if name.startswith("put"):
            made = checkpoint("0010", {"m": _ITEMS, "n": 9, "text": "x" * 500})
            for thread, by in (("twice", saver), ("healthy", witness)):
                await by.put(at(thread, "", "0003"), made)
            assert_same(await _state(witness, "healthy"), await _state(witness, "twice"))

    @pytest.mark.parametrize("name", list(_READS))
    async def test_unavailable_is_not_absent(self, lab: Lab, name: str) -> None:
        read, plan = _READS[name], Plan()
        saver = lab.faulty(plan)
        await _scene(saver, "thread")
        plan.disarm()
        healthy = await read(saver, "thread")
        calls = plan.calls
        assert calls, "nothing was called"
        for number in range(calls):
            plan.arm("before", number)
            with pytest.raises(Unavailable):
                await read(saver, "thread")
        plan.disarm()
        assert_same(healthy, await read(saver, "thread"))

    async def test_a_later_page_that_fails(self, lab: Lab) -> None:
        plan = Plan()
        saver = lab.faulty(plan)
        for number in range(80):
            parent = f"{number - 1:04}" if number else None
            await saver.put(at("thread", "", parent), checkpoint(f"{number:04}", {"n": number}))
        for read in (_READS["list"], _READS["history"]):
            plan.arm("before", 1)
            with pytest.raises(Unavailable):
                await read(saver, "thread")
        plan.disarm()
        assert len(await saver.list(at("thread"))) == 80

    async def test_setup_that_fails_is_tried_again(self, lab: Lab) -> None:
        plan = Plan()
        saver = lab.faulty(plan)
        for moment in ("before", "after"):
            plan.arm(moment)
            with pytest.raises(Unavailable):
                await saver.put(at("thread"), checkpoint("1", {"x": 1}))
        plan.disarm()
        await saver.put(at("thread"), checkpoint("1", {"x": 1}))
        assert (await saver.got(at("thread"))).checkpoint["channel_values"] == {"x": 1}

    async def test_a_reply_that_is_late_blocks_nobody_else(self, lab: Lab) -> None:
        plan = Plan()
        saver = lab.faulty(plan)
        await _scene(saver, "thread")
        plan.arm("hang")

        async def put() -> None:
            await saver.put(at("thread", "", "0003"), checkpoint("0004", {"n": 4}))

        async def others() -> None:
            await lab.until(plan.hanging)
            # The same saver, another saver; the same thread, another thread.
            for by in (saver, lab.saver):
                assert (await by.got(at("thread"))).checkpoint["id"] in ("0003", "0004")
                await by.put(at("other"), checkpoint("0001", {"m": _ITEMS}))
                await by.put(at("thread", "ns"), checkpoint("0001", {"m": _ITEMS}))
            plan.release()

        await lab.together(put, others)
        assert (await lab.saver.got(at("thread"))).checkpoint["id"] == "0004"

    async def test_a_failed_put_teaches_nothing(self, lab: Lab) -> None:
        plan = Plan()
        saver = lab.faulty(plan)
        await saver.put(at("thread"), checkpoint("1", {"m": _ITEMS[:1]}))
        for moment in ("before", "after"):
            plan.arm(moment)
            with pytest.raises(Unavailable):
                await saver.put(at("thread", "", "1"), checkpoint("2", {"m": _ITEMS[:3]}, {"m": 2}))
            plan.arm(moment)
            with pytest.raises(Unavailable):
                await saver.put_writes(at("thread", "", "1"), [("m", _ITEMS[4])])
        # The items of those are not stored, as far as anybody knows: these must bring them along.
        await saver.put_writes(at("thread", "", "1"), [("m", _ITEMS[4])])
        await saver.put(at("thread", "", "1"), checkpoint("3", {"m": _ITEMS[:5]}, {"m": 3}))
        async for reader in lab.views():
            assert_same(_ITEMS[:5], (await reader.got(at("thread"))).checkpoint["channel_values"]["m"])


class Damage(Behaviours):
    """A damaged byte costs the checkpoint it belongs to, and is reported."""

    @needs("damage", "durable")
    async def test_a_flipped_byte_anywhere(self, lab: Lab) -> None:
        known = await self._known(lab)
        media = dict(lab.subject.media())
        for name, data in media.items():
            for number, place in enumerate(_places(len(data), 60)):
                broken = bytearray(data)
                broken[place] ^= 0x41
                lab.subject.overwrite(name, bytes(broken))
                saver = lab.open()
                found = await saver.got(at("thread"))
                id = found.checkpoint["id"]
                assert id in ("0003", "0004"), f"byte {place} of {name} cost more than the newest checkpoint"
                assert_same(known[id], found.checkpoint["channel_values"])
                if id == "0003":
                    assert [event for event in saver.events if event.outcome == "fallback"], (
                        f"byte {place} of {name}: no report"
                    )
                for one in await saver.list(at("thread")):
                    assert_same(known[one.checkpoint["id"]], one.checkpoint["channel_values"])
                if number % 8 == 0:
                    await self._goes_on(lab, saver, id)
                await lab.close()
                _restore(lab, media)

    @needs("damage", "durable")
    async def test_a_medium_that_is_cut_short(self, lab: Lab) -> None:
        known = await self._known(lab)
        media = dict(lab.subject.media())
        for name, data in media.items():
            for place in _places(len(data), 40):
                lab.subject.overwrite(name, data[:place])
                saver = lab.open()
                found = await saver.get(at("thread"))
                if found is not None:
                    assert_same(known[found.checkpoint["id"]], found.checkpoint["channel_values"])
                await self._goes_on(lab, saver, None if found is None else found.checkpoint["id"])
                await lab.close()
                _restore(lab, media)

    @needs("damage", "durable")
    async def test_a_damaged_checkpoint_asked_for_by_its_id(self, lab: Lab) -> None:
        known = await self._known(lab)
        corrupt = 0
        media = dict(lab.subject.media())
        for name, data in media.items():
            for place in _places(len(data), 40):
                broken = bytearray(data)
                broken[place] ^= 0x41
                lab.subject.overwrite(name, bytes(broken))
                saver = lab.open()
                for id, values in known.items():
                    found = await _get(saver, id)
                    if isinstance(found, Corrupt):
                        corrupt += 1
                        assert (found.thread, found.checkpoint) == ("thread", id)
                    elif found is not None:
                        assert_same(values, found.checkpoint["channel_values"])
                await lab.close()
                _restore(lab, media)
        assert corrupt, "no damage was ever reported as such"

    async def _known(self, lab: Lab) -> dict[str, dict[str, Any]]:
        """Four checkpoints that share nothing, so that no damage can hit two of them."""
        chain, known = Chain(lab.saver), {}
        for number in range(1, 5):
            words = " ".join(f"{number * place * 7919:x}" for place in range(60))
            known[f"{number:04}"] = {
                "text": words,
                "m": [HumanMessage(words + str(place), id=f"{place}") for place in range(3)],
            }
            await chain.put(known[f"{number:04}"])
        await lab.close()
        return known

    async def _goes_on(self, lab: Lab, saver: Face, head: str | None) -> None:
        await saver.put(at("thread", "", head), checkpoint("0009", {"after": ["damage"] * 100}))
        for reader in (saver, lab.open()):
            assert (await reader.got(at("thread"))).checkpoint["channel_values"] == {"after": ["damage"] * 100}


async def _get(saver: Face, id: str) -> CheckpointTuple | Corrupt | None:
    try:
        return await saver.get(at("thread", "", id))
    except Corrupt as exc:
        return exc


def _restore(lab: Lab, media: Mapping[str, bytes]) -> None:
    for name in lab.subject.media().keys() - media.keys():
        lab.subject.overwrite(name, None)
    for name, data in media.items():
        lab.subject.overwrite(name, data)


def _places(size: int, count: int) -> Iterator[int]:
    """About `count` places from 0 to `size` - 1, the ends among them."""
    step = max(size // count, 1)
    yield from range(0, size, step)
    if (size - 1) % step:
        yield size - 1
