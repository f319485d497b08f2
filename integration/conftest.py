"""What the tests of this folder are run over: stores, the two flavours of LangGraph's API, and durability modes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import containers
import milepost
import pytest
from driving import DURABILITIES, FLAVOURS, Durability, Flavour
from milepost.saver import Saver
from stores import STORES, url_of


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=60, help="how many times test_kill.py kills its workers")
    parser.addoption("--servers", choices=["wheels", "docker"], default="wheels", help="where servers come from")
    parser.addoption("--kill-seed", type=int, default=2026, help="where the random kills fall")


def pytest_configure(config: pytest.Config) -> None:
    # Once, in the process that starts the workers: they find the URLs in their environment.
    if config.getoption("servers") == "docker" and not hasattr(config, "workerinput"):
        config.add_cleanup(containers.start().close)


@pytest.fixture(params=STORES)
def saver_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    return url_of(request.param, tmp_path)


@pytest.fixture
def saver(saver_url: str) -> Iterator[Saver]:
    """A saver over an empty store."""
    with milepost.connect(saver_url) as opened:
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
