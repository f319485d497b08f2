"""Behaviours that are tried in one of the flavours, where trying them in both would take too long."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from pathlib import Path

import pytest

_FLAVOURS = ("blocking", "async")


def spare(config: pytest.Config, items: list[pytest.Item], folder: str, classes: Collection[tuple[str, str]]) -> None:
    """Leave out one flavour of each behaviour of these (file, class), the same one each time.

    Only from a run of the whole `folder`: who asks for some tests gets those.
    """
    if config.option.keyword or [Path(each).name for each in config.args] != [folder]:
        return
    spared = [item for item in items if _spared(item, classes)]
    if spared:
        config.hook.pytest_deselected(items=spared)
        kept = set(items) - set(spared)
        items[:] = [item for item in items if item in kept]


def _spared(item: pytest.Item, classes: Collection[tuple[str, str]]) -> bool:
    if not isinstance(item, pytest.Function) or item.cls is None:
        return False
    if (item.path.name, item.cls.__name__) not in classes or "flavour" not in item.callspec.params:
        return False
    flavour = str(item.callspec.params["flavour"])
    behaviour = item.name.replace(flavour, "")
    return flavour != _FLAVOURS[zlib.crc32(behaviour.encode()) % 2]
