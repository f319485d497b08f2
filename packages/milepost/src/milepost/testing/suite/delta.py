"""Delta channels: a checkpoint without their value is rebuilt from its ancestors' writes, also after maintenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory, writes_sort_key
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it

from milepost.archive import frames
from milepost.errors import Conflict, Corrupt
from milepost.retention import Retention
from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours


class DeltaRun:
    """A run whose channel "d" is a delta channel: a list that grows by what its tasks write."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.live: list[Any] = []
        """What a run that never stopped would have in its hands."""
        self.at: dict[str, list[Any]] = {}
        """The same, as of each checkpoint."""
        self._since = 0

    async def start(self) -> None:
        """Put the first checkpoint."""
        await self._put(snapshot=False, metadata={})

    async def step(
        self, *tasks: tuple[str, str, Sequence[Any]], snapshot: bool = False, parent: str | None = None, **metadata: Any
    ) -> str:
        """One superstep: `tasks` are (task path, task id, what it writes). Returns the new checkpoint's id."""
        if parent is not None:
            self.chain.head, self.live = parent, list(self.at[parent])
        for path, task, values in tasks:
            await self.chain.writes(*[("d", value) for value in values], ("other", task), task=task, path=path)
        for _, _, values in sorted(tasks, key=lambda one: writes_sort_key(one[0], one[1], 0)):
            self.live += values
        return await self._put(snapshot=snapshot, metadata=metadata)

    async def _put(self, *, snapshot: bool, metadata: Mapping[str, Any]) -> str:
        self._since = 0 if snapshot else self._since + 1
        values: dict[str, Any] = {"n": len(self.at)}
        if snapshot:
            values["d"] = _DeltaSnapshot(list(self.live))
        counters = {"counters_since_delta_snapshot": {"d": [self._since, self._since]}}
        await self.chain.put(values, changed=("n", "d"), metadata={**counters, **metadata})
        assert self.chain.head is not None
        self.at[self.chain.head] = list(self.live)
        return self.chain.head


async def rebuilt(saver: Face, config: RunnableConfig) -> list[Any]:
    """The value of "d" as LangGraph would rebuild it."""
    found = (await saver.got(config)).checkpoint["channel_values"]
    if "d" in found:
        return list(found["d"].value)
    history = (await saver.history(config, ["d"]))["d"]
    seed: Any = history.get("seed", [])
    base = seed.value if type(seed) is _DeltaSnapshot else seed
    return [*base, *(value for _, _, value in history["writes"])]


async def walked(saver: Face, config: RunnableConfig, channels: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
    """The history by LangGraph's own walk over `get_tuple`."""
    if saver.flavour == "blocking":
        return BaseCheckpointSaver.get_delta_channel_history(saver.saver, config=config, channels=channels)
    return await BaseCheckpointSaver.aget_delta_channel_history(saver.saver, config=config, channels=channels)


async def _parallel(lab: Lab, steps: int, thread: str = "thread", ns: str = "") -> DeltaRun:
    run = DeltaRun(Chain(lab.saver, thread, ns))
    await run.start()
    for number in range(steps):
        await run.step(
            ("~__pregel_pull, b", f"t1-{number}", [f"{number} b1", {"n": number}]),
            ("~__pregel_pull, a", f"t9-{number}", [f"{number} a"]),
            ("~__pregel_pull, b", f"t0-{number}", [f"{number} b0"]),
            ("", f"zz-{number}", [(number, "tuple"), "x" * 200]),
            snapshot=number % 7 == 6,
            run_id=f"run {number // 4}",
        )
    return run


async def _harm(lab: Lab, thread: str, id: str) -> None:
    """Have the store hold a header of this checkpoint that does not verify."""
    store = lab.store_of(lab.saver)
    (row,) = (await store.rows(thread, [("", id)])).rows
    harmed = bytearray(row.header)
    harmed[len(harmed) // 2] ^= 0x40
    await store.put(thread, row._replace(header=bytes(harmed)), (), None)


class DeltaHistory(Behaviours):
    """`get_delta_channel_history` is LangGraph's walk, in pages."""

    async def test_parallel_writers_are_replayed_in_their_order(self, lab: Lab) -> None:
        run = await _parallel(lab, 20)
        async for saver in lab.views():
            for id, live in run.at.items():
                assert_same(live, await rebuilt(saver, run.chain.at(id)), f"at {id}")
            assert_same(run.live, await rebuilt(saver, run.chain.latest))

    async def test_it_equals_the_walk_of_the_base_class(self, lab: Lab) -> None:
        run = await _parallel(lab, 16)
        channels = ["d", "other", "n", "absent"]
        for config in (
            run.chain.latest,
            run.chain.at("0001"),
            run.chain.at("0009"),
            run.chain.at("nothing"),
            at("nobody"),
        ):
            mine, theirs = await lab.saver.history(config, channels), await walked(lab.saver, config, channels)
            assert list(mine) == channels
            for channel in channels:
                assert_same(dict(theirs[channel]), dict(mine[channel]), channel)
        assert await lab.saver.history(run.chain.latest, []) == {}

    async def test_more_ancestors_than_a_page(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"seed": ["s"]})
        for number in range(150):
            await chain.writes(("d", number), ("e", -number))
            await chain.put({"n": number}, changed=("n", "d"))
        found = await lab.saver.history(chain.latest, ["d", "e", "seed"])
        assert [value for _, _, value in found["d"]["writes"]] == [*range(150)]
        assert [value for _, _, value in found["e"]["writes"]] == [-number for number in range(150)]
        assert "seed" not in found["d"]
        assert dict(found["seed"]) == {"writes": [], "seed": ["s"]}

    async def test_the_targets_writes_are_out_and_the_seeds_are_in(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"d": _DeltaSnapshot(["seed"])})
        await chain.writes(("d", "of the seed"))
        await chain.put({}, changed=("d",))
        await chain.writes(("d", "between"))
        await chain.put({}, changed=("d",))
        await chain.writes(("d", "of the target"))
        found = (await lab.saver.history(chain.latest, ["d"]))["d"]
        assert [value for _, _, value in found["writes"]] == ["of the seed", "between"]
        assert cast("Any", found)["seed"].value == ["seed"]
        seed = (await lab.saver.history(chain.at("0001"), ["d"]))["d"]
        assert dict(seed) == {"writes": []}

    async def test_seeds_of_every_kind(self, lab: Lab) -> None:
        for number, seed in enumerate((None, True, 0, "", [], ["plain"] * 200, {"a": 1}, _DeltaSnapshot(None))):
            chain = Chain(lab.saver, f"t{number}")
            await chain.put({"d": ["before"]})
            await chain.put({"d": seed})
            await chain.writes(("d", 1))
            await chain.put({}, changed=("d",))
            found = (await lab.saver.history(chain.latest, ["d"]))["d"]
            assert "seed" in found, f"{seed!r} was taken for no seed"
            assert_same(seed, found["seed"])
            assert [value for _, _, value in found["writes"]] == [1]

    async def test_a_fork_sees_its_own_past(self, lab: Lab) -> None:
        run = DeltaRun(Chain(lab.saver))
        await run.start()
        base = await run.step(("", "a", ["base"]))
        # All children of a checkpoint see its writes: those of the branches lie on the branches.
        await run.step()
        await run.step(("", "b", ["left"]))
        left, head = list(run.live), run.chain.head
        await run.step(parent=base)
        await run.step(("", "d", ["right"]))
        assert_same(["base", "right"], await rebuilt(lab.saver, run.chain.latest))
        assert_same(left, await rebuilt(lab.saver, run.chain.at(head)))
        await run.step(parent=base, snapshot=True)
        assert_same(["base"], await rebuilt(lab.saver, run.chain.latest))

    async def test_ids_that_do_not_ascend(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for id in ("5", "4", "9", "1", "3"):
            await chain.put({}, id=id, changed=("d",))
            await chain.writes(("d", id))
        found = (await lab.saver.history(chain.latest, ["d"]))["d"]
        assert [value for _, _, value in found["writes"]] == ["5", "4", "9", "1"]
        found = (await lab.saver.history(chain.at("9"), ["d"]))["d"]
        assert [value for _, _, value in found["writes"]] == ["5", "4"]

    async def test_a_cycle_of_parents_ends(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for id in ("1", "2", "3"):
            await chain.put({}, id=id, changed=("d",))
            await chain.writes(("d", id))
        await chain.put({}, id="1", parent="3", changed=("d",))
        found = (await lab.saver.history(chain.at("3"), ["d"]))["d"]
        assert [value for _, _, value in found["writes"]][-2:] == ["1", "2"]
        await lab.saver.put(at("loop", "", "1"), checkpoint("1", {}))
        assert await lab.saver.history(at("loop", "", "1"), ["d"]) is not None
        assert (await lab.saver.got(at("loop"))).checkpoint["id"] == "1"

    async def test_a_parent_that_is_not_there_ends_the_walk(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await lab.saver.put(chain.at("missing"), checkpoint("2", {}, {"d": 1}))
        await lab.saver.put_writes(chain.at("missing"), [("d", "ahead")])
        await lab.saver.put_writes(chain.at("2"), [("d", "two")])
        await lab.saver.put(chain.at("2"), checkpoint("3", {}, {"d": 2}))
        found = (await lab.saver.history(chain.latest, ["d"]))["d"]
        assert [value for _, _, value in found["writes"]] == ["two"]

    async def test_damage_above_says_from_where_to_go_on(self, lab: Lab) -> None:
        """What lies between a checkpoint and its seed is damaged: nothing is silently left out, and the thread does not end."""
        for thread, damaged, snapshot in (("some", 7, 4), ("beyond", 3, 4), ("all", 0, -1)):
            run = DeltaRun(Chain(lab.saver, thread))
            await run.start()
            for number in range(1, 10):
                await run.step(("a", f"t{number}", [number]), snapshot=number == snapshot)
            ids = list(run.at)
            await _harm(lab, thread, ids[damaged])
            saver = lab.open()
            if damaged < snapshot:
                assert_same(run.live, await rebuilt(saver, run.chain.latest))
                continue
            with pytest.raises(Corrupt) as caught:
                await rebuilt(saver, run.chain.latest)
            if damaged == 0:
                assert caught.value.whole is None
                assert "no checkpoint before it can be rebuilt either" in str(caught.value)
                continue
            assert caught.value.whole == ids[damaged - 1]
            assert "pass it as checkpoint_id to go on from there" in str(caught.value)
            assert_same(run.at[ids[damaged - 1]], await rebuilt(saver, run.chain.at(ids[damaged - 1])))
            await run.step(("a", "next", ["next"]), parent=ids[damaged - 1])
            for reader in (saver, lab.open()):
                # What the lost step had written is there, and counts for whoever goes on from where it did.
                assert_same([*run.at[ids[damaged - 1]], "next", damaged], await rebuilt(reader, run.chain.latest))

    async def test_synthetic_tasks_sort_by_their_path(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({}, changed=("d",))
        for step in (10, 2, 1):
            for task in ("ffffffff-0001", "00000001-0001"):
                await chain.writes(("d", (step, task)), task=f"{task}-{step}", path=f"~~{step:010d}~__pregel_pull, n")
        await chain.put({}, changed=("d",))
        found = (await lab.saver.history(chain.latest, ["d"]))["d"]
        expected = [(step, task) for step in (1, 2, 10) for task in ("00000001-0001", "ffffffff-0001")]
        assert [value for _, _, value in found["writes"]] == expected


class DeltaUpkeep(Behaviours):
    """Maintenance keeps what a kept checkpoint's delta channels are rebuilt from."""

    async def test_a_run_that_was_overtaken_does_not_go_on_from_what_has_gone(self, lab: Lab) -> None:
        """Its delta channels would be empty. A run that was not overtaken goes on, and so does one whose parent stays."""
        for thread, saver in (("one", lab.saver), ("two", lab.open())):
            run = DeltaRun(Chain(saver, thread))
            await run.start()
            await run.step(("a", "t0", [0]))
            old = await run.step(("a", "t1", [1]))
            latest = await run.step(("a", "another", ["other"]), snapshot=True)
            live = list(run.live)
            await lab.saver.prune([thread])
            for writes in (True, False):
                with pytest.raises(Conflict, match=old):
                    await run.step(*[("a", "mine", ["mine"])] * writes, parent=old)
            assert await saver.ids(run.chain.latest) == [latest]
            assert_same(live, await rebuilt(saver, run.chain.latest))
            await run.step(("a", "next", ["next"]), parent=latest)
            assert_same([*live, "next"], await rebuilt(saver, run.chain.latest))

    async def test_prune(self, lab: Lab) -> None:
        for steps in (3, 7, 10, 16):
            run = await _parallel(lab, steps, f"t{steps}")
            count = len(run.at)
            await lab.saver.prune([f"t{steps}"])
            assert_same(run.live, await rebuilt(lab.saver, run.chain.latest), f"after {steps} steps")
            left = await run.chain.ids()
            assert left[0] == f"{count:04}"
            assert len(left) <= 8, f"{len(left)} of {count} checkpoints are left, with a snapshot every 7 steps"
            # And the run goes on.
            await run.step(("", "more", ["more"]))
            assert_same(run.live, await rebuilt(lab.saver, run.chain.latest))
        async for saver in lab.views():
            assert_same(run.live, await rebuilt(saver, run.chain.latest))

    async def test_prune_again_and_again(self, lab: Lab) -> None:
        run = await _parallel(lab, 2)
        for number in range(30):
            await run.step(("", f"x{number}", [number]), snapshot=number % 5 == 4)
            await lab.saver.prune(["thread"])
            assert_same(run.live, await rebuilt(lab.saver, run.chain.latest))
        assert (await lab.saver.stats("thread")).checkpoints <= 6

    async def test_prune_of_forks_and_namespaces(self, lab: Lab) -> None:
        run = await _parallel(lab, 5)
        sub = await _parallel(lab, 5, ns="sub")
        await run.step(parent="0003")
        before = await rebuilt(lab.saver, run.chain.latest)
        await lab.saver.prune(["thread"])
        assert_same(sub.live, await rebuilt(lab.saver, sub.chain.latest))
        assert_same(before, await rebuilt(lab.saver, run.chain.latest))

    async def test_what_was_archived_is_rebuilt_from_what_stays(self, lab: Lab) -> None:
        """The ancestors of what goes are in the archive as well, each once as long as it does not change."""
        run = await _parallel(lab, 12)
        await lab.saver.pin(at("thread", "", "0006"))
        folder = lab.archive()
        for number in range(20):
            await run.step(("", f"x{number}", [number]), snapshot=number % 6 == 5)
            await lab.saver.maintain(Retention(keep_last=2), hooks=folder)
            assert_same(run.live, await rebuilt(lab.saver, run.chain.latest))
        path = folder.path_of("thread")
        rows = [(row.id, row.parent) for frame in frames(path) for row in frame.batch.rows]
        assert len(rows) == len(set(rows))
        writes = [write for frame in frames(path) for write in frame.batch.writes]
        assert len(writes) == len(set(writes))
        restored = await lab.saver.restore(path, "as it was")
        gone = run.at.keys() - set(await run.chain.ids())
        async for saver in lab.views():
            found = await saver.ids(at("as it was"))
            assert len(found) == restored.checkpoints
            assert gone < set(found)
            for id in found:
                assert_same(run.at[id], await rebuilt(saver, at("as it was", "", id)), f"at {id}")

    async def test_copy(self, lab: Lab) -> None:
        run = await _parallel(lab, 10)
        await lab.saver.copy_thread("thread", "copy")
        await lab.saver.delete_thread("thread")
        async for saver in lab.views():
            for id, live in run.at.items():
                assert_same(live, await rebuilt(saver, at("copy", "", id)), f"at {id}")

    async def test_copy_of_a_pruned_thread(self, lab: Lab) -> None:
        run = await _parallel(lab, 10)
        await lab.saver.prune(["thread"])
        await lab.saver.copy_thread("thread", "copy")
        assert_same(run.live, await rebuilt(lab.saver, at("copy")))

    async def test_delete_for_runs(self, lab: Lab) -> None:
        run = await _parallel(lab, 14)
        kept = {id: live for id, live in run.at.items() if int(id) > 9}
        await lab.saver.delete_for_runs(["run 0", "run 1"])
        async for saver in lab.views():
            for id, live in kept.items():
                assert_same(live, await rebuilt(saver, run.chain.at(id)), f"at {id}")

    async def test_delete_the_newest_run(self, lab: Lab) -> None:
        run = await _parallel(lab, 12)
        await lab.saver.delete_for_runs(["run 2"])
        head = (await run.chain.ids())[0]
        assert head == "0009"
        assert_same(run.at[head], await rebuilt(lab.saver, run.chain.latest))
