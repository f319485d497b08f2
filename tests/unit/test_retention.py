"""Retention over random threads, against rules said in another, slower way: what stays reads, resumes and forks as before."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from milepost.errors import InvalidConfig
from milepost.flavour import run
from milepost.memory import MemoryBackend
from milepost.retention import Retention
from milepost.saver import Saver
from milepost.store import Mark
from milepost.testing.chain import Chain, at, id_of
from milepost.testing.lab import Face
from milepost.testing.same import assert_same
from milepost.testing.suite.delta import rebuilt
from milepost.units import seconds, size

HOUR = 3600.0
SHARED = "shared"


@dataclass
class Past:
    """A thread as it was written, by namespace and id."""

    parents: dict[tuple[str, str], str | None] = field(default_factory=dict)
    at: dict[tuple[str, str], float] = field(default_factory=dict)
    pinned: set[tuple[str, str]] = field(default_factory=set)
    written: set[tuple[str, str]] = field(default_factory=set)
    snapshots: set[tuple[str, str]] = field(default_factory=set)
    roots: dict[tuple[str, str], str] = field(default_factory=dict)
    forked: set[tuple[str, str]] = field(default_factory=set)

    def line(self, place: tuple[str, str]) -> list[tuple[str, str]]:
        """The checkpoint and its ancestors, nearest first."""
        found = [place]
        while (parent := self.parents[found[-1]]) is not None:
            found.append((place[0], parent))
        return found

    def newest(self, ns: str) -> list[tuple[str, str]]:
        return sorted((place for place in self.parents if place[0] == ns), reverse=True)


class Clock:
    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


async def written(saver: Face, clock: Clock, dice: random.Random) -> Past:
    """A thread with forks, a growing list, a delta channel, interrupts, pins, calls of subgraphs, and one that remembers."""
    past = Past()
    number = 0
    messages: dict[str | None, list[str]] = {None: []}

    async def put(ns: str, parent: str | None, values: dict[str, Any], **metadata: Any) -> str:
        nonlocal number
        number += 1
        clock.now += dice.choice([1, 60, HOUR / 3, HOUR, 7 * HOUR])
        id = f"{number:04}"
        snapshot = dice.random() < 0.3
        if snapshot:
            values = {**values, "d": _DeltaSnapshot([f"snapshot {id}"])}
        pinned = dice.random() < 0.05
        await Chain(saver, ns=ns).put(
            values,
            id=id,
            parent=parent or "",
            changed=(*values, "d"),
            metadata={"counters_since_delta_snapshot": {"d": [1, 1]}, "pinned": pinned, **metadata},
        )
        place = (ns, id)
        past.parents[place], past.at[place] = parent, clock.now
        past.pinned |= {place} if pinned else set()
        past.snapshots |= {place} if snapshot else set()
        return id

    async def write(ns: str, id: str, channel: str) -> None:
        await saver.put_writes(at("thread", ns, id), [(channel, f"{channel} at {id}")], task=f"t{dice.random()}")
        past.written.add((ns, id))

    head: str | None = None
    for _ in range(dice.randint(3, 14)):
        roots = past.newest("")
        source = "loop"
        if roots and dice.random() < 0.25:
            head, source = dice.choice(roots)[1], dice.choice(["fork", "update"])
        if head is not None:
            if dice.random() < 0.7:
                await write("", head, "d")
            for call in range(dice.choice([0, 0, 1, 2])):
                ns, above = f"node:{head}-{call}", None
                for _ in range(dice.randint(1, 3)):
                    above = await put(ns, above, {"y": call}, parents={"": head})
                    past.roots[ns, above] = head
                    if dice.random() < 0.3:
                        await write(ns, above, "__interrupt__")
            if dice.random() < 0.4:
                latest = past.newest(SHARED)
                above = await put(SHARED, latest[0][1] if latest else None, {"z": head}, parents={"": head})
                if dice.random() < 0.2:
                    await write(SHARED, above, "__interrupt__")
        known = messages[head]
        above, head = head, f"{number + 1:04}"
        messages[head] = [*known, f"message {head} " * 20]
        await put("", above, {"m": messages[head]}, parents={}, source=source)
        past.forked |= {("", head)} if source != "loop" else set()
        if dice.random() < 0.2:
            await write("", head, "__interrupt__")
    return past


def speaking(policies: Sequence[Retention], ns: str) -> Retention:
    """The policy for a namespace; one that keeps everything where there is none."""
    return next((one for one in policies if one.namespaces is None or fnmatchcase(ns, one.namespaces)), Retention())


def expected(past: Past, policies: Sequence[Retention], now: float) -> set[tuple[str, str]]:
    """What has to stay: every rule by itself, again and again until none of them adds anything."""
    children = {(ns, parent) for (ns, _), parent in past.parents.items()}

    def chosen(alive: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        policy = speaking(policies, alive[0][0])
        if policy.keep_last is None and policy.keep_for is None and not policy.thin:
            yield from alive
        yield from alive[: policy.keep_last or 0]
        if policy.keep_for is not None:
            yield from (place for place in alive if past.at[place] >= now - seconds(policy.keep_for, ""))
        for age, interval in policy.thin:
            buckets: dict[int, tuple[str, str]] = {}
            oldest = min(
                (seconds(more, "") for more, _ in policy.thin if seconds(more, "") > seconds(age, "")), default=None
            )
            for place in reversed(alive):
                if past.at[place] < now - seconds(age, "") and (oldest is None or past.at[place] >= now - oldest):
                    buckets[int(past.at[place] // seconds(interval, ""))] = place
            yield from buckets.values()
        yield from alive[:1]
        if policy.keep_waiting:
            yield from (place for place in alive if place in past.written and place not in children)

    kept = {place for place in past.pinned if speaking(policies, place[0]).keep_pinned}
    kept |= {("", past.roots[place]) for place in kept if place in past.roots}

    def grow() -> set[tuple[str, str]]:
        more = set(kept)
        spaces = {ns for ns, _ in past.parents}
        for ns in spaces:
            mine = [place for place in kept if place[0] == ns]
            for place in mine:
                for above in past.line(place):
                    more.add(above)
                    if above in past.snapshots:
                        break
            if speaking(policies, ns).keep_forks:
                for one in mine:
                    for other in mine:
                        theirs = past.line(other)
                        common = next((above for above in past.line(one) if above in theirs), None)
                        more |= {common} if common is not None else set()
        return more

    def settle() -> None:
        nonlocal kept
        while (more := grow()) != kept:
            kept = more

    kept |= set(chosen(past.newest("")))
    settle()
    if past.newest(SHARED):
        while bounds := {("", past.parents[place] or "") for place in kept & past.forked} - kept - {("", "")}:
            kept |= bounds
            settle()
    for ns in sorted({ns for ns, _ in past.parents if ns}):
        alive = [
            place
            for place in past.newest(ns)
            if place not in past.roots or ("", past.roots[place]) in kept or ns == SHARED
        ]
        kept |= set(chosen(alive)) if alive else set()
        if ns == SHARED:
            for space, root in tuple(kept):
                before = [place for place in past.newest(SHARED) if place[1] < root]
                kept |= {before[0]} if before and not space else set()
    settle()
    return kept


def test_each_pair_thins_what_is_older_than_its_age_and_not_than_the_next() -> None:
    hour, day, now = 3600.0, 86400.0, 300 * 86400.0
    # Six an hour: three days' worth that are over 90 days old, and one day's that are over 7.
    times = [
        start + tenth * 600
        for start, days in ((now - 100 * day, 3), (now - 20 * day, 1))
        for tenth in range(days * 144)
    ]
    rows = [Mark("", f"{number:06}", None, f"{number:06}", at, 1, False) for number, at in enumerate(times)][::-1]
    kept = list(Retention(thin=[("90d", "1d"), ("7d", "1h")]).chosen(rows, now))
    assert [row.at for row in kept if row.at > now - 90 * day] == [
        now - 19 * day - 600 - hour * back for back in range(24)
    ]
    assert [row.at for row in kept if row.at < now - 90 * day] == [
        now - 97 * day - 600 - day * back for back in range(3)
    ]
    assert list(Retention(thin=[("7d", "1h"), ("90d", "1d")]).chosen(kept, now)) == kept


one_policy = st.builds(
    Retention,
    keep_last=st.one_of(st.none(), st.integers(0, 4)),
    keep_for=st.sampled_from([None, "1h", "12h"]),
    thin=st.sampled_from([(), [("2h", "3h")], [("1h", "2h"), ("10h", "1d")]]),
    keep_waiting=st.booleans(),
    keep_forks=st.booleans(),
    keep_pinned=st.booleans(),
    namespaces=st.sampled_from([None, None, "", SHARED, "node*"]),
)
some_policies = st.lists(one_policy, min_size=1, max_size=2)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), policies=some_policies, merge=st.booleans())
def test_what_stays_is_as_before(seed: int, policies: list[Retention], merge: bool) -> None:
    run(_as_before(random.Random(seed), policies, merge))


async def _replayed(reader: Face, past: Past, root: str) -> Sequence[str]:
    """What LangGraph reads of the subgraph that remembers, when it replays this root."""
    parent = past.parents["", root]
    bound = parent if ("", root) in past.forked and parent else root
    return await reader.ids(at("thread", SHARED), before=at("thread", "", bound), limit=1)


async def _as_before(dice: random.Random, policies: list[Retention], merge: bool) -> None:
    clock = Clock()
    backend = MemoryBackend(clock)
    saver = Face(Saver(backend), "blocking")
    past = await written(saver, clock, dice)
    everything = {place: await saver.got(at("thread", *place)) for place in past.parents}
    deltas = {place: await rebuilt(saver, at("thread", *place)) for place in past.parents}
    roots = [id for ns, id in past.parents if not ns]
    before = {root: await _replayed(saver, past, root) for root in roots}
    kept = expected(past, policies, clock.now)

    plan = saver.saver.maintain(policies, merge=merge, dry_run=True, clock=clock)
    done = saver.saver.maintain(policies, merge=merge, clock=clock)
    assert plan.threads == done.threads
    for reader in (saver, Face(Saver(backend), "blocking")):
        found = {(_ns(item), item.checkpoint["id"]): item for item in await reader.list(at("thread", None))}
        assert found.keys() == kept
        for place, item in found.items():
            assert_same(everything[place]._replace(parent_config=None), item._replace(parent_config=None), f"{place}")
            nearest = next((above for above in past.line(place)[1:] if above in kept), ("", None))
            assert id_of(item.parent_config) == nearest[1]
            assert_same(deltas[place], await rebuilt(reader, at("thread", *place)), f"{place}")
            if not place[0]:
                assert await _replayed(reader, past, place[1]) == before[place[1]]
    assert saver.saver.maintain(policies, merge=merge, clock=clock).threads == ()
    # Every one of them is something to go on from.
    for ns, id in sorted(kept):
        chain = Chain(saver, ns=ns)
        values = everything[ns, id].checkpoint["channel_values"]
        await chain.put({**values, "new": id}, id=f"9{id}", parent=id)
        assert_same({**values, "new": id}, await chain.values(f"9{id}"))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_prune_keeps_what_pinned_ones_are_replayed_with(seed: int) -> None:
    run(_pruned(random.Random(seed)))


async def _pruned(dice: random.Random) -> None:
    saver = Face(Saver(MemoryBackend(clock := Clock())), "blocking")
    past = await written(saver, clock, dice)
    roots = [id for ns, id in past.pinned if not ns] + [past.roots[place] for place in past.pinned & past.roots.keys()]
    before = {root: await _replayed(saver, past, root) for root in roots}
    deltas = {place: await rebuilt(saver, at("thread", *place)) for place in past.pinned}
    await saver.prune(["thread"])
    assert {root: await _replayed(saver, past, root) for root in roots} == before
    for place in past.pinned:
        assert_same(deltas[place], await rebuilt(saver, at("thread", *place)))


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    before=st.builds(Retention, keep_waiting=st.booleans(), namespaces=st.sampled_from([SHARED, "node*"])),
    policy=st.builds(
        Retention,
        keep_waiting=st.booleans(),
        keep_pinned=st.booleans(),
        namespaces=st.sampled_from([None, ""]),
        idle_thread=st.sampled_from([None, "180d", "180d"]),
    ),
)
def test_what_waits_or_is_pinned_holds_an_idle_thread(seed: int, before: Retention, policy: Retention) -> None:
    run(_idle(random.Random(seed), [before, policy]))


async def _idle(dice: random.Random, policies: list[Retention]) -> None:
    saver = Face(Saver(MemoryBackend(clock := Clock())), "blocking")
    past = await written(saver, clock, dice)
    report = saver.saver.maintain(policies, clock=lambda: clock.now + 200 * 24 * HOUR)
    deleted = any(one.deleted for one in report.threads)
    children = {(ns, parent) for (ns, _), parent in past.parents.items()}
    waiting = {at for at in past.written - children if speaking(policies, at[0]).keep_waiting}
    pinned = {at for at in past.pinned if speaking(policies, at[0]).keep_pinned}
    if speaking(policies, "").idle_thread is None or pinned or waiting - past.roots.keys():
        assert not deleted
    elif not waiting:
        assert deleted


def _ns(item: Any) -> str:
    return str(item.config["configurable"]["checkpoint_ns"])


@pytest.mark.parametrize(
    ("written_as", "found"),
    [("90s", 90), ("5m", 300), ("1.5h", 5400), ("30d", 2592000), ("2w", 1209600), (7, 7), (0.5, 0.5)],
)
def test_durations(written_as: Any, found: float) -> None:
    assert seconds(written_as, "x") == found


@pytest.mark.parametrize(
    ("written_as", "found"), [("64kB", 64000), ("1MiB", 1 << 20), ("1 MB", 10**6), (5, 5), ("7", 7)]
)
def test_sizes(written_as: Any, found: int) -> None:
    assert size(written_as, "x") == found


@pytest.mark.parametrize("value", ["", "1", "1y", "-1d", "1 d d", 0, -1, True, None, float("inf"), b"1d"])
def test_no_durations(value: Any) -> None:
    with pytest.raises(InvalidConfig):
        seconds(value, "x")


@pytest.mark.parametrize("value", ["", "kB", "-1", "1d", 0, -1, True, None, 1.5])
def test_no_sizes(value: Any) -> None:
    with pytest.raises(InvalidConfig):
        size(value, "x")
