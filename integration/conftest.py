"""What the tests of this folder are run over: stores, the two flavours of LangGraph's API, and durability modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import containers
import milepost
import pytest
from driving import DURABILITIES, FLAVOURS, Durability, Flavour
from milepost.saver import Saver
from one_flavour import spare
from reading import READERS, Reader
from stores import STORES, url_of

# Servers on which the suite shows what is particular to them. Both flavours are tried on `TestOtherRedis` and
# `TestOlderPostgres`, or where these are asked for by name.
_ONE_FLAVOUR = {
    ("test_pgbouncer.py", "TestPgBouncer"),
    ("test_redis_cluster.py", "TestCluster"),
    ("test_redis_servers.py", "TestOldestRedis"),
    ("test_tenants.py", "TestTenants"),
}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    spare(config, items, "integration", _ONE_FLAVOUR)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=60, help="how many times test_kill.py kills its workers")
    parser.addoption("--servers", choices=["wheels", "docker"], default="wheels", help="where servers come from")
    parser.addoption("--older-postgres", type=int, help="the release on which all behaviours are tried again")
    parser.addoption("--guard", default="none", help="the guard of the savers that all tests share")
    parser.addoption("--kill-seed", type=int, default=2026, help="where the random kills fall")
    parser.addoption(
        "--ledger-kills", type=int, default=12, help="how many workers test_ledger_kills.py kills at random"
    )
    parser.addoption("--ledger-matrix", choices=["few", "full"], default="few", help="which points of which cells")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many killed threads had each effect once, with the ledger and without."""
    found: dict[str, list[tuple[int, int]]] = {}
    for report in (*terminalreporter.stats.get("passed", ()), *terminalreporter.stats.get("failed", ())):
        for name, value in getattr(report, "user_properties", ()):
            if report.when == "call" and name.startswith("once "):
                found.setdefault(name, []).append(tuple(value))
    for name, values in sorted(found.items()):
        good, tried = (sum(part) for part in zip(*values, strict=True))
        terminalreporter.write_line(f"killed workers, each effect {name}: {good} of {tried} threads")


def pytest_configure(config: pytest.Config) -> None:
    # Once, in the process that starts the workers: they find the URLs in their environment.
    if config.getoption("servers") == "docker" and not hasattr(config, "workerinput"):
        config.add_cleanup(containers.start().close)


@pytest.fixture(params=STORES)
def saver_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    return url_of(request.param, tmp_path)


@pytest.fixture
def saver(request: pytest.FixtureRequest, saver_url: str) -> Iterator[Saver]:
    """A saver over an empty store."""
    with milepost.connect(saver_url, guard=request.config.getoption("--guard")) as opened:
        yield opened


@pytest.fixture(params=FLAVOURS, ids=lambda flavour: flavour.name)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """How a graph is driven: through its blocking or its async methods."""
    found: Flavour = request.param
    return found


@pytest.fixture(params=DURABILITIES)
def durability(request: pytest.FixtureRequest) -> Durability:
    """When LangGraph waits for the saver. Tests that need a checkpoint of each step leave out "exit"."""
    found: Durability = request.param
    return found


@pytest.fixture(params=READERS, ids=lambda reader: type(reader).__name__.lower())
def reader(request: pytest.FixtureRequest) -> Reader:
    """Who reads a stream, and where."""
    found: Reader = request.param
    return found
