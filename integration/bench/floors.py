"""What no saver can be faster than, at the moment: machines change their pace from one minute to the next."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Collection, Mapping

import psycopg
from milepost.codec.values import Serializer

from . import plain_redis, postgres
from .rivals import Store

FLOOR = "the machine itself"
"""The name under which `floors` stand among the figures."""
SYNC = "append 4 KB, fdatasync"
COMMIT = "INSERT of 2 KB, commit"
SELECT = "SELECT 1"
PING = "PING"
DUMP, LOAD = "encode a message", "decode a message"
_TIMES = 50


def floors(stores: Collection[Store]) -> Mapping[str, list[float]]:
    """Seconds by name: one sync of the disk, one round trip to each server, encoding and decoding one message."""
    found = _values()
    if "files" in stores:
        found[SYNC] = _disk()
    if "postgres" in stores:
        found.update(_postgres())
    if "redis" in stores:
        with plain_redis.server().client() as client:
            found[PING] = _timed(client.ping)
    return found


def _timed(action: Callable[[], object], times: int = _TIMES) -> list[float]:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return found


def _disk() -> list[float]:
    with tempfile.TemporaryFile(prefix="milepost-bench-") as file:

        def append() -> None:
            os.write(file.fileno(), bytes(4096))
            os.fdatasync(file.fileno())

        return _timed(append)


def _postgres() -> dict[str, list[float]]:
    with psycopg.connect(postgres.server().url(), autocommit=True, prepare_threshold=0) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS floor (data bytea)")
        data = os.urandom(2048)
        try:
            return {
                SELECT: _timed(lambda: connection.execute("SELECT 1").fetchone()),
                COMMIT: _timed(lambda: connection.execute("INSERT INTO floor VALUES (%b)", (data,))),
            }
        finally:
            connection.execute("DROP TABLE floor")


def _values() -> dict[str, list[float]]:
    # Imported here: the agents of workloads are measured, and so import what measures.
    from .agents import message

    serializer = Serializer()
    messages = [message(number) for number in range(100)]
    typed = serializer.dumps_typed(messages)
    return {
        DUMP: [seconds / 100 for seconds in _timed(lambda: serializer.dumps_typed(messages), 10)],
        LOAD: [seconds / 100 for seconds in _timed(lambda: serializer.loads_typed(typed), 10)],
    }
