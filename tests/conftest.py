"""What all tests share."""

from __future__ import annotations

import pytest
from one_flavour import spare

pytest.register_assert_rewrite("milepost.testing")

# `integration` tries them in both flavours, on another release of the server.
_SERVERS = {("test_behaviour.py", "TestPostgres"), ("test_behaviour.py", "TestRedis")}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    spare(config, items, "tests", _SERVERS)
