"""How an answer is read that comes in pieces."""

from __future__ import annotations

import select
import socket
from collections.abc import Generator
from typing import Any

import pytest
from milepost_postgres import link
from psycopg.waiting import Ready, Wait


@pytest.fixture
def sockets() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def _line(ours: socket.socket) -> link.Line:
    line = object.__new__(link.Line)
    line._poll = select.poll()
    line._poll.register(ours, select.POLLIN)
    return line


def _reads(pieces: int, taken: list[Ready]) -> Any:
    """Sends, then waits for so many pieces."""
    taken.append((yield Wait.RW))
    for _ in range(pieces):
        taken.append((yield Wait.R))  # noqa: PERF401  # of a generator
    return "all of it"


def _outside(talk: Generator[Wait, Ready, str]) -> tuple[list[Wait], str]:
    """What an event loop is asked to wait for, and the end."""
    waits: list[Wait] = []
    wanted = next(talk)
    while True:
        waits.append(wanted)
        try:
            wanted = talk.send(Ready.W if wanted == Wait.RW else Ready.R)
        except StopIteration as done:
            return waits, done.value


def test_what_is_there_is_read_at_once(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But others have their turn."""
    ours, theirs = sockets
    theirs.send(b"more")
    taken: list[Ready] = []
    monkeypatch.setattr(link, "PIECES", 4)
    waits, found = _outside(_line(ours).eager(_reads(10, taken)))
    assert found == "all of it"
    assert waits == [Wait.RW, Wait.R, Wait.R]
    assert taken == [Ready.W, *[Ready.R] * 10]


def test_what_is_not_there_is_waited_for(sockets: tuple[socket.socket, socket.socket]) -> None:
    taken: list[Ready] = []
    waits, _ = _outside(_line(sockets[0]).eager(_reads(3, taken)))
    assert waits == [Wait.RW, Wait.R, Wait.R, Wait.R]
    assert taken == [Ready.W, *[Ready.R] * 3]


def test_errors_and_the_end_pass(sockets: tuple[socket.socket, socket.socket]) -> None:
    def breaks() -> Any:
        yield Wait.R
        raise OSError("gone")

    talk = _line(sockets[0]).eager(breaks())
    next(talk)
    with pytest.raises(OSError, match="gone"):
        talk.send(Ready.R)
    closed: list[bool] = []

    def tidy() -> Any:
        try:
            yield Wait.R
        finally:
            closed.append(True)

    talk = _line(sockets[0]).eager(tidy())
    next(talk)
    talk.close()
    assert closed == [True]
