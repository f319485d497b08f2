"""What all tests share."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

pytest.register_assert_rewrite("milepost.testing")

_SERVERS = ("TestPostgres", "TestRedis")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A run of the whole folder tries each behaviour on a server in one of the flavours, the same one each time.

    The other one is tried by ``integration``, on an older server. Who asks for some tests gets those.
    """
    if config.option.keyword or [Path(each).name for each in config.args] != ["tests"]:
        return
    spared = [item for item in items if _elsewhere(item)]
    if spared:
        config.hook.pytest_deselected(items=spared)
        kept = set(items) - set(spared)
        items[:] = [item for item in items if item in kept]


def _elsewhere(item: pytest.Item) -> bool:
    file, _, name = item.nodeid.partition("::")
    if not (isinstance(item, pytest.Function) and file.endswith("test_behaviour.py") and name.startswith(_SERVERS)):
        return False
    flavour = str(item.callspec.params["flavour"])
    behaviour = name.replace(flavour, "")
    return flavour != ("blocking", "async")[zlib.crc32(behaviour.encode()) % 2]
