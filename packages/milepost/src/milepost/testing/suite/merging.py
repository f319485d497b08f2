"""Small packs that are stored as one along with a put: nobody can tell, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from milepost.errors import Conflict, LeaseLost, ThreadDeleted, Unavailable
from milepost.store import Batch, CheckpointRow, Drop, Pack, Query, Span, Store, WriteRow
from milepost.testing.chain import Chain, at
from milepost.testing.faults import Moment, Plan
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.suite.bounded import grown, words
from milepost.testing.suite.leases import LONG, store_of

WRITER, OTHER = 7, 8


def _pack(first: int, count: int = 1, writer: int = WRITER) -> Pack:
    return Pack(writer, first, count, b"".join(b"%d " % number for number in range(first, first + count)))


def _row(id: str, *spans: Span, parent: str | None = None) -> CheckpointRow:
    return CheckpointRow("", id, parent, b"header", spans)


async def _stored(store: Store) -> int:
    """A thread with packs 1 to 12 and 14 to 16 of a writer, of which the last holds two items, and one of another writer.
    Returns its generation."""
    packs = [*map(_pack, (*range(1, 13), 14)), _pack(15, 2), _pack(3, writer=OTHER)]
    row = _row("1", Span(WRITER, 1, 12), Span(WRITER, 14, 3), Span(OTHER, 3, 1))
    return (await store.put("t", row, packs, None)).generation


async def _spans(store: Store) -> set[tuple[int, int, int]]:
    outline = await store.outline("t")
    return set() if outline is None else {(span.writer, span.first, span.count) for span in outline.packs}


LEFT = {
    (WRITER, 1, 1),
    (WRITER, 10, 1),
    (WRITER, 11, 1),
    (WRITER, 12, 1),
    (WRITER, 14, 1),
    (WRITER, 15, 2),
    (OTHER, 3, 1),
}
"""The packs that 2 to 9 leave beside them."""


class PutsThatMerge(Behaviours):
    """`Store.put` with `merged`."""

    async def test_it_takes_the_place_of_what_lies_in_it(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        generation = await _stored(store)
        before = await store.stats("t")
        outline = await store.outline("t")
        assert outline is not None
        row = _row("2", Span(WRITER, 1, 12), parent="1")
        answer = await store.put("t", row, (), generation, merged=_pack(2, 8))
        assert answer == (False, generation), "the generation stays: every address is what it was"
        assert await _spans(store) == {*LEFT, (WRITER, 2, 8)}
        assert (await store.stats("t")).packs == before.packs - 7
        assert await store.drop("t", Drop((("", "1"),)), outline.token) is None, "it is another state"
        async for saver in lab.views():
            store = await store_of(saver)
            for wanted, firsts in (
                ((2, 1), {2}),
                ((5, 1), {2}),
                ((9, 1), {2}),
                ((9, 2), {2, 10}),
                ((1, 12), {1, 2, 10, 11, 12}),
            ):
                found = await store.fetch("t", [Span(WRITER, *wanted)])
                assert {pack.first for pack in found} == firsts
                assert _pack(2, 8) in [Pack(*pack) for pack in found]
            loaded = await store.get("t", "", "1")
            assert loaded is not None
            assert {tuple(pack[:3]) for pack in loaded.packs["t"]} == {*LEFT, (WRITER, 2, 8)}

    async def test_what_reaches_beyond_it_stays(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        generation = await _stored(store)
        await store.put("t", _row("2"), (), generation, merged=_pack(14, 2))
        assert {(WRITER, 14, 2), (WRITER, 15, 2)} <= await _spans(store)
        assert (WRITER, 14, 1) not in await _spans(store)

    async def test_with_new_packs_beside_it(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        generation = await _stored(store)
        row = _row("2", Span(WRITER, 1, 12), Span(WRITER, 17, 1))
        await store.put("t", row, [_pack(17)], generation, merged=_pack(2, 8))
        assert await _spans(store) == {*LEFT, (WRITER, 2, 8), (WRITER, 17, 1)}

    async def test_a_larger_one_takes_the_place_of_smaller_ones(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        generation = await _stored(store)
        await store.put("t", _row("2"), (), generation, merged=_pack(2, 4))
        await store.put("t", _row("3"), (), generation, merged=_pack(1, 12))
        assert await _spans(store) == {(WRITER, 1, 12), (WRITER, 14, 1), (WRITER, 15, 2), (OTHER, 3, 1)}

    @pytest.mark.parametrize("heads", [None, ("1",)])
    async def test_a_put_that_is_refused_merges_nothing(self, lab: Lab, heads: tuple[str, ...] | None) -> None:
        store = await store_of(lab.saver)
        generation = await _stored(store)
        before = await _spans(store)
        merged = _pack(2, 8)
        stale = await store.put("t", _row("2"), (), generation ^ 1, heads=heads, merged=merged)
        assert stale == (True, generation)
        await store.put("t", _row("3"), (), None)
        with pytest.raises(Conflict):
            await store.put("t", _row("4"), (), generation, heads=("1",), merged=merged)
        fence = (await store.acquire("t", "one", LONG)).fence
        with pytest.raises(LeaseLost):
            await store.put("t", _row("2"), (), generation, fence=fence - 1, heads=heads and ("3",), merged=merged)
        assert await _spans(store) == before
        await store.delete_thread("t")
        with pytest.raises(ThreadDeleted):
            await store.put("t", _row("5", parent="1"), (), None, heads=heads and ())
        assert await _spans(store) == set()

    @pytest.mark.parametrize("moment", ["before", "after", "twice"])
    @pytest.mark.parametrize("heads", [None, ("1",)])
    async def test_the_reply_to_a_put_that_merges_is_lost(
        self, lab: Lab, moment: Moment, heads: tuple[str, ...] | None
    ) -> None:
        plan = Plan()
        store = await store_of(lab.faulty(plan))
        generation = await _stored(store)
        plan.arm(moment)
        try:
            await store.put("t", _row("2"), (), generation, heads=heads, merged=_pack(2, 8))
        except Unavailable:
            assert await store.put("t", _row("2"), (), generation, heads=heads, merged=_pack(2, 8)) == (
                False,
                generation,
            )
        else:
            assert moment == "twice"
        assert await _spans(store) == {*LEFT, (WRITER, 2, 8)}
        async for saver in lab.views():
            assert _pack(2, 8) in await (await store_of(saver)).fetch("t", [Span(WRITER, 6, 1)])

    @pytest.mark.parametrize("portion", [1, 7, 15])
    @pytest.mark.parametrize("merging", [False, True])
    async def test_a_copy_that_is_made_meanwhile_is_whole(self, lab: Lab, portion: int, merging: bool) -> None:
        store = await store_of(lab.saver)
        generation = await _stored(store)
        parts: list[Batch] = []
        try:
            after: tuple[str, ...] | None = None
            while (part := await store.export("t", after, portion)) is not None:
                parts.append(part)
                if len(parts) == 1:
                    row = _row("2", Span(WRITER, 1, 12), Span(WRITER, 17, 1), parent="1")
                    merged = _pack(2, 8) if merging else None
                    await store.put("t", row, [_pack(17)], generation, merged=merged)
                if (after := part.cursor) is None:
                    break
        except Conflict:
            return  # a store may refuse to tell of a thread that changes
        for part in parts:
            await store.load("copy", part)
        for id in {row.id for part in parts for row in part.rows}:
            loaded = await store.get("copy", "", id)
            assert loaded is not None
            for writer, first, count in loaded.snapshots[0].row.spans:
                for number in range(first, first + count):
                    found = await store.fetch("copy", [Span(writer, number, 1)])
                    assert any(pack.first <= number < pack.first + pack.count for pack in found), number

    @pytest.mark.parametrize("order", ["small first", "large first", "once more"])
    async def test_packs_inside_others_are_all_found(self, lab: Lab, order: str) -> None:
        """A copy of a thread, made again when the thread had merged its packs, has both."""
        store = await store_of(lab.saver)
        row = _row("1", Span(WRITER, 1, 12))
        small, large = Batch((row,), packs=tuple(map(_pack, range(1, 7)))), Batch(packs=(_pack(1, 9), _pack(10, 3)))
        given = {"small first": (small, large), "large first": (large, small), "once more": (small, large, small)}
        for batch in given[order]:
            await store.load("t", batch)
        async for saver in lab.views():
            store = await store_of(saver)
            for first in range(1, 13):
                for count in range(1, 14 - first):
                    await _holds(store, Span(WRITER, first, count))
            for loaded in (await store.get("t", "", "1"), await store.page(Query("t"), None, 9)):
                assert loaded is not None
                assert _numbers(loaded.packs["t"]) == set(range(1, 13))

    async def test_a_late_repetition_hides_nothing(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        generation = await _stored(store)
        late = _row("2", Span(WRITER, 1, 12))
        await store.put("t", late, (), generation, merged=_pack(1, 12))
        await store.put("t", late, [_pack(5)], generation)
        write = WriteRow("task", 0, "", "c", b"v", (Span(WRITER, 7, 1),), _pack(7))
        await store.put_writes("t", "", "2", [write], generation)
        async for saver in lab.views():
            store = await store_of(saver)
            for first in range(1, 13):
                await _holds(store, Span(WRITER, first, 13 - first))
            loaded = await store.lineage("t", "", "2", None, None, 5)
            assert loaded is not None

    async def test_what_is_in_no_pack_is_not_found(self, lab: Lab) -> None:
        store = await store_of(lab.saver)
        generation = await _stored(store)
        await store.put("t", _row("2", Span(WRITER, 11, 5)), (), generation)
        assert _numbers(await store.fetch("t", [Span(WRITER, 11, 5)])) == {11, 12, 14, 15, 16}
        assert list(await store.fetch("t", [Span(WRITER, 13, 1)])) == []
        loaded = await store.get("t", "", "2")
        assert loaded is not None
        assert _numbers(loaded.packs["t"]) == {11, 12, 14, 15, 16}


def _numbers(packs: Iterable[Pack]) -> set[int]:
    return {number for pack in packs for number in range(pack.first, pack.first + pack.count) if pack.writer == WRITER}


async def _holds(store: Store, span: Span) -> None:
    held = _numbers(await store.fetch("t", [span]))
    assert set(range(span.first, span.first + span.count)) <= held, span


class RunsThatMerge(Behaviours):
    """What a run leaves behind becomes fewer packs as it goes on."""

    @needs("merging")
    async def test_a_long_run_leaves_few_packs(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=130)
        stats = await lab.saver.stats("thread")
        assert stats.packs <= 3 + 40
        assert [event.outcome for event in lab.saver.events if event.op == "put"] == ["ok"] * 130
        async for saver in lab.views():
            for item in await saver.list(chain.latest):
                count = int(item.checkpoint["id"])
                values = item.checkpoint["channel_values"]
                assert [one.content for one in values["m"]] == [words(number) for number in range(count)]
                assert values["text"] == words(1 - count)

    @needs("merging")
    async def test_another_saver_goes_on_with_it(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=30)
        chain.saver = lab.open()
        await chain.values()  # some of the packs that are merged later
        chain.saver = lab.saver
        messages = list((await chain.values())["m"])
        for number in range(30, 90):
            messages.append(HumanMessage(words(number), id=str(number)))
            await chain.put({"m": list(messages)})
        other = chain.saver = lab.open()
        assert_same(messages, (await chain.values())["m"])
        other.events.clear()
        messages.append(HumanMessage("new"))
        await chain.put({"m": list(messages)})
        [put] = [event for event in other.events if event.op == "put"]
        assert (put.items_new, put.items_reused) == (1, 90)

    @needs("merging")
    async def test_writes_of_parallel_tasks(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"m": []})
        written = [HumanMessage(words(number), id=str(number)) for number in range(90)]
        for start in (0, 45):
            calls = [
                partial(chain.writes, ("m", [message]), task=f"task {number:02}")
                for number, message in enumerate(written[start : start + 45], start)
            ]
            await lab.together(*calls)
            # One that loses its place: its address is never stored.
            await chain.writes(("m", [HumanMessage("late")]), task="task 00")
        await chain.put({"m": written})
        assert (await lab.saver.stats("thread")).packs < 50
        async for saver in lab.views():
            assert_same({"m": written}, (await saver.got(chain.latest)).checkpoint["channel_values"])
            before = (await saver.got(chain.at("0001"))).pending_writes or ()
            assert_same(sorted((f"task {n:02}", "m", [one]) for n, one in enumerate(written)), sorted(before))

    @needs("merging")
    async def test_calls_of_a_subgraph(self, lab: Lab) -> None:
        """Each is a namespace of its own, and puts little."""
        for number in range(60):
            for call in (1, 2):
                chain = Chain(lab.saver, ns=f"node:{number:08}-{call}|inner:{number:08}-{call}")
                lines = [words(1000 * call + number), words(-1000 * call - number)]
                for count in (1, 2):
                    await chain.put({"m": [HumanMessage(line, id=line) for line in lines[:count]]})
        assert (await lab.saver.stats("thread")).packs < 60
        async for saver in lab.views():
            found = (await saver.got(at("thread", "node:00000007-2|inner:00000007-2"))).checkpoint["channel_values"][
                "m"
            ]
            assert [one.content for one in found] == [words(2007), words(-2007)]

    @needs("merging")
    async def test_a_thread_that_is_deleted_between(self, lab: Lab) -> None:
        await grown(lab.saver, steps=39)
        await (lab.open()).delete_thread("thread")
        chain = Chain(lab.saver)
        messages: list[Any] = []
        for number in range(50):
            messages.append(HumanMessage(words(500 + number)))
            await chain.put({"m": list(messages)}, id=f"1{number:04}")
        async for saver in lab.views():
            assert_same(messages, (await saver.got(chain.latest)).checkpoint["channel_values"]["m"])

    @needs("merging")
    async def test_what_maintenance_has_dropped_between(self, lab: Lab) -> None:
        chain = await grown(lab.saver, steps=39)
        other = lab.open()
        await other.prune(["thread"])
        messages = list((await chain.values())["m"])
        for number in range(39, 100):
            messages.append(HumanMessage(words(number)))
            await chain.put({"m": list(messages)})
            if number % 20 == 0:
                await other.prune(["thread"])
        async for saver in lab.views():
            for item in await saver.list(chain.latest):
                count = int(item.checkpoint["id"])
                assert_same(messages[:count], item.checkpoint["channel_values"]["m"])

    async def test_a_copy_that_is_made_again(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        values: dict[str, Any] = {}
        for number in range(1, 61):
            message = HumanMessage(words(number), id=str(number))
            values = {"m": [*values.get("m", []), message], "text": words(-number)}
            await chain.put(values)
            if number in (30, 39, 50, 60):
                await lab.saver.copy_thread("thread", "copy")
        async for saver in lab.views():
            for item in await saver.list(at("copy")):
                count = int(item.checkpoint["id"])
                assert_same({"m": values["m"][:count], "text": words(-count)}, item.checkpoint["channel_values"])
                assert_same(item.checkpoint, (await saver.got(at("copy", "", item.checkpoint["id"]))).checkpoint)

    @needs("merging")
    async def test_sealed_with_a_key(self, lab: Lab) -> None:
        keys = {"one": b"1" * 32}
        saver = lab.open(keys=keys)
        chain = await grown(saver, steps=50)
        # Of 50 for the messages and 50 for the text.
        assert (await saver.stats("thread")).packs <= 2 * 11
        found = await lab.open(keys=keys).got(chain.latest)
        assert [one.content for one in found.checkpoint["channel_values"]["m"]] == [words(n) for n in range(50)]
