"""Every behaviour through PgBouncer in transaction mode, where no session is anybody's own."""

from __future__ import annotations

import atexit
import functools
from typing import Any, ClassVar

import milepost
import psycopg
import subjects
from milepost.testing import servers
from milepost.testing.suite import Everything


@functools.cache
def bouncer_url() -> str:
    """The URL of a pooler before the server of all tests."""
    bouncer = servers.PgBouncer(servers.postgres_url())
    atexit.register(bouncer.stop)
    return bouncer.url()


class Bounced(subjects.Postgres):
    """The Postgres store behind a pooler."""

    _schemas: ClassVar[servers.Names] = servers.Names("bounced")

    @staticmethod
    def server() -> str:
        return bouncer_url()


class TestPgBouncer(Everything):
    subject = Bounced


def test_the_sessions_are_shared_and_nothing_is_prepared() -> None:
    url = subjects.required(bouncer_url)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:  # else it counts its own
        shared: Any = connection.execute("SELECT pg_backend_pid()").fetchone()
        assert shared[0] != connection.info.backend_pid, "this is no pooler in transaction mode"
        with milepost.connect(servers.with_options(url, schema="bounced_unprepared")) as saver:
            saver.setup()
            assert saver.get_tuple({"configurable": {"thread_id": "t"}}) is None
            # Each of the few sessions there are.
            for _ in range(20):
                found = connection.execute(
                    "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%bounced_unprepared%'"
                ).fetchone()
                assert found == (0,)
                assert connection.execute("SHOW jit").fetchone() == ("on",)
        connection.execute("DROP SCHEMA bounced_unprepared CASCADE")
