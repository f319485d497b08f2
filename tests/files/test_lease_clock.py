"""Who sets the clock of the machine neither ends nor prolongs a lease of a store of files."""

from __future__ import annotations

from pathlib import Path

import pytest
from files.states import chain
from milepost.fences import Lease
from milepost.flavour import run
from milepost.store import Store
from milepost_files import FilesBackend
from milepost_files.log import Settings
from milepost_files.root import Root
from milepost_files.uptime import Uptime, uptime

DAY = 86400.0


class Machine:
    """A machine with a clock that can be set, and restarted."""

    def __init__(self, path: Path) -> None:
        self.clock = 1_800_000_000.0
        self.running: Uptime | None = Uptime("first run", 100.0)
        self._path = path

    def store(self) -> Store:
        """The store as a process sees it that has just been started."""
        settings = Settings(clock=lambda: self.clock, uptime=lambda: self.running, sync=False)
        store = FilesBackend(Root(str(self._path), settings, 8)).blocking()
        run(store.setup())
        return store

    def wait(self, seconds: float) -> None:
        self.clock += seconds
        if self.running is not None:
            self.running = self.running._replace(seconds=self.running.seconds + seconds)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def take(store: Store, owner: str) -> Lease:
    return run(store.acquire("t", owner, 30.0))


@pytest.mark.parametrize("step", [-DAY, DAY])
def test_a_step_of_the_clock(machine: Machine, step: float) -> None:
    one, other = machine.store(), machine.store()
    taken = take(one, "one")
    machine.clock += step
    assert take(other, "other").owner == "one"
    held = run(other.holder("t"))
    assert held is not None
    assert held.expires == pytest.approx(machine.clock + 30)
    machine.wait(20)
    assert run(one.renew("t", "one", taken.fence, 30.0)).owner == "one"
    machine.clock -= step
    machine.wait(29)
    assert take(machine.store(), "other").owner == "one"
    machine.wait(2)
    assert run(other.holder("t")) is None
    after = take(other, "other")
    assert (after.owner, after.tries) == ("other", 1)
    assert after.fence > taken.fence


def test_what_rewrites_the_log_keeps_it(machine: Machine) -> None:
    one = machine.store()
    chain(one, "t", 3)
    take(one, "one")
    run(one.delete_thread("t"))
    machine.clock += DAY
    assert take(machine.store(), "other").owner == "one"
    machine.wait(31)
    assert take(machine.store(), "other").owner == "other"


@pytest.mark.parametrize("then", [Uptime("second run", 5.0), None])
def test_after_a_restart_the_clock_decides(machine: Machine, then: Uptime | None) -> None:
    take(machine.store(), "one")
    machine.running = then
    machine.wait(29)
    assert take(machine.store(), "other").owner == "one"
    machine.wait(2)
    assert take(machine.store(), "other").owner == "other"


def test_this_machine_tells_or_does_not() -> None:
    first, second = uptime(), uptime()
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert first.run == second.run
        assert first.seconds <= second.seconds
