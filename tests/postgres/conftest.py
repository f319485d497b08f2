"""What the tests of the Postgres store share: an empty schema for each, and a look at it from outside."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import subjects
from milepost.testing import servers
from postgres.kit import Place


@pytest.fixture
def place() -> Iterator[Place]:
    """Where a store can be that is the test's own; nothing is there yet."""
    made = Place(subjects.required(servers.postgres_url), f"test_{secrets.token_hex(6)}")
    yield made
    with psycopg.connect(made.base, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {made.schema} CASCADE".encode())


@pytest.fixture
def sql(place: Place) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection of the test's own to the same database."""
    with psycopg.connect(place.base, autocommit=True) as connection:
        yield connection
