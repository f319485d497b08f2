"""Fences over random histories: whatever the store's clock does, they grow, and a former owner's write is never seen."""

from __future__ import annotations

import itertools
import secrets
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import milepost
import milepost_files
import pytest
import subjects
from hypothesis import given, settings
from hypothesis import strategies as st
from milepost.errors import LeaseLost
from milepost.fences import NOBODY, Lease, acquired, next_fence, released
from milepost.flavour import run
from milepost.memory import MemoryBackend
from milepost.store import CheckpointRow, Store, WriteRow
from milepost.testing import servers, servers_redis

Step = tuple[str, int, float]
"""What is done, by whom, and a number: a ttl, or by how much the clock moves."""

WORKERS = 3

_steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["acquire", "acquire", "steal", "renew", "release", "fail", "put", "put", "put_writes", "delete", "clock"]
        ),
        st.integers(0, WORKERS - 1),
        st.sampled_from([0.0, 1.0, 30.0, -1.0, -100.0, 100.0, 1e6, -1e6]),
    ),
    max_size=40,
)


class Clock:
    """The clock of a store, set by hand."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


Place = tuple[str, Callable[[], Store]]
"""A thread that was not there, and what opens its store anew."""
Places = Callable[[Clock], AbstractContextManager[Place]]


@contextmanager
def memory() -> Generator[Places]:
    @contextmanager
    def place(clock: Clock) -> Generator[Place]:
        yield "t", MemoryBackend(clock).blocking

    yield place


@contextmanager
def files() -> Generator[Places]:
    @contextmanager
    def place(clock: Clock) -> Generator[Place]:
        with tempfile.TemporaryDirectory(prefix="milepost-fences-") as folder:

            def reopened() -> Store:
                store = milepost_files.open_backend(Path(folder) / "store", durability="os", clock=clock).blocking()
                run(store.setup())
                return store

            yield "t", reopened

    yield place


@contextmanager
def on_a_server(url: str) -> Generator[Places]:
    """Nobody sets its clock: leases are over at once, or not at all."""
    numbers = itertools.count()
    with milepost.connect(url) as saver:
        saver.setup()

        @contextmanager
        def place(clock: Clock) -> Generator[Place]:
            del clock
            yield f"t{next(numbers)}", saver.backend.blocking

        yield place


def postgres() -> AbstractContextManager[Places]:
    url = subjects.required(servers.postgres_url)
    return on_a_server(servers.with_options(url, schema=f"fences_{secrets.token_hex(6)}"))


def redis() -> AbstractContextManager[Places]:
    url = subjects.required(servers_redis.redis_url)
    return on_a_server(servers.with_options(url, prefix=f"fences_{secrets.token_hex(6)}", durability="memory"))


class History:
    """What was done to one thread, and what must hold of it."""

    def __init__(self, place: Place, clock: Clock) -> None:
        self._thread, self._reopened = place
        self._store = self._reopened()
        self._clock = clock
        self._leases: dict[int, Lease] = {}
        """The last lease that each worker took, as far as he knows."""
        self._number = 0
        self._granted = [0]
        """Every fence that was given out, in turn."""
        self._visible: dict[str, int] = {}
        """Of each checkpoint that is there, the fence it was put under."""
        self._previous: str | None = None

    def do(self, step: Step) -> None:
        what, worker, number = step
        self._number += 1
        if what == "clock":
            self._clock.now = max(self._clock.now + number, 1.0)
        elif what in ("acquire", "steal"):
            self._acquire(worker, abs(number), steal=what == "steal")
        elif what == "delete":
            run(self._store.delete_thread(self._thread))
            self._visible.clear()
            self._previous = None
            self._store = self._reopened()
        elif worker in self._leases:
            self._as_owner(what, worker, abs(number))

    def _acquire(self, worker: int, ttl: float, *, steal: bool) -> None:
        owner = f"{worker}:{self._number}"
        over = self._granted[-1] if steal else None
        lease = run(self._store.acquire(self._thread, owner, ttl, over))
        if lease.owner != owner:
            assert not steal, "it names the lease there is"
            assert lease.fence == self._granted[-1]
            return
        assert lease.fence > self._granted[-1]
        assert run(self._store.acquire(self._thread, owner, ttl, over)).fence == lease.fence
        self._granted.append(lease.fence)
        self._leases[worker] = lease

    def _as_owner(self, what: str, worker: int, ttl: float) -> None:
        lease, store = self._leases[worker], self._store
        stale = lease.fence < self._granted[-1]
        calls: dict[str, Any] = {
            "renew": lambda: store.renew(self._thread, lease.owner, lease.fence, ttl),
            "put": lambda: store.put(self._thread, self._row(lease.fence), (), None, fence=lease.fence),
            "put_writes": lambda: store.put_writes(
                self._thread, "", f"ahead {self._number}", [WriteRow("a", 0, "", "x", b"")], None, fence=lease.fence
            ),
        }
        if what in ("release", "fail"):
            run(store.release(self._thread, lease.owner, "failed" if what == "fail" else None))
            del self._leases[worker]
        elif stale:
            with pytest.raises(LeaseLost):
                run(calls[what]())
        else:
            run(calls[what]())
            if what == "put":
                self._previous = self._row(lease.fence).id
                self._visible[self._previous] = lease.fence

    def _row(self, fence: int) -> CheckpointRow:
        return CheckpointRow("", f"{len(self._visible):06}-{fence}-{self._number}", self._previous, b"")

    def check(self) -> None:
        chart = run(self._store.chart(self._thread))
        rows = [] if chart is None else sorted(chart.rows, key=lambda row: row.key)
        assert [row.id for row in rows] == list(self._visible)
        fences = list(self._visible.values())
        assert fences == sorted(fences), "somebody wrote after his successor"


@pytest.mark.parametrize(
    ("store", "histories"),
    [(memory, 50), (files, 50), (postgres, 15), (redis, 15)],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_no_write_of_a_former_owner_is_ever_seen(store: Callable[[], Any], histories: int) -> None:
    with store() as places:

        @settings(deadline=None, max_examples=histories)
        @given(steps=_steps)
        def holds(steps: list[Step]) -> None:
            clock = Clock()
            with places(clock) as place:
                history = History(place, clock)
                for step in steps:
                    history.do(step)
                history.check()

        holds()


@given(st.lists(st.floats(1.0, 4e9), min_size=1, max_size=20))
def test_fences_grow_whatever_the_clock_says(times: list[float]) -> None:
    last = 0
    for now in times:
        fence = next_fence(last, now)
        assert last < fence < 1 << 53, "scripts of Redis hold it exactly"
        last = fence


def test_the_rule_at_its_edges() -> None:
    held = acquired(NOBODY, "one", 10.0, None, 100.0)
    assert held == Lease("one", 100_000_000, 100.0, 110.0)
    assert acquired(held, "two", 10.0, None, 109.9) is held
    assert acquired(held, "two", 10.0, held.fence - 1, 109.9) is held
    assert acquired(held, "two", 10.0, None, 110.0).owner == "two", "at the very end it is over"
    assert acquired(held, "two", 10.0, held.fence, 50.0).fence == held.fence + 1, "the clock went back"
    assert released(held, "two", None, 105.0) is held
    assert not released(held, "one", None, 105.0).alive(105.0)
