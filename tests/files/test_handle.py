"""The steps of a writer around its write: in Python, and in C where that was compiled."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from in_c import missing, needs_c
from milepost_files import handle
from milepost_files.handle import Handle, Look

Lock = Callable[[int, int, int], Look | None]
Confirm = Callable[[int, bytes, int, int, bytes], bool]
Steps = tuple[Lock, Confirm]

STEPS: dict[str, Steps] = {"python": (handle.lock_in_steps, handle.confirm_in_steps)}
if not missing():
    from milepost_speedups import _system

    STEPS["c"] = (_system.lock, _system.confirm)


@pytest.fixture(params=["python", pytest.param("c", marks=needs_c)])
def steps(request: pytest.FixtureRequest) -> Steps:
    return STEPS[request.param]


@pytest.fixture
def held(tmp_path: Path) -> Handle:
    (tmp_path / "t.log").write_bytes(b"0123456789")
    return Handle(os.open(tmp_path / "t.log", os.O_RDWR), writable=True)


def locked(path: Path) -> bool:
    other = Handle(os.open(path, os.O_RDWR), writable=True)
    free = handle.lock_in_steps(other.fd, 0, 0) is not None
    return not free


@needs_c
def test_the_part_in_c_is_what_is_used() -> None:
    assert (handle.lock, handle.confirm) == STEPS["c"]


@pytest.mark.parametrize(("end", "tail"), [(0, b"0123"), (8, b"89"), (10, b""), (11, b"")])
def test_who_locks_a_file_is_told_what_follows(
    tmp_path: Path, held: Handle, steps: Steps, end: int, tail: bytes
) -> None:
    assert steps[0](held.fd, end, 4) == (end, 10, tail)
    assert locked(tmp_path / "t.log")
    assert steps[0](held.fd, end, 0) == (end, 10, b"")
    held.unlock()
    assert not locked(tmp_path / "t.log")


def test_who_finds_a_file_locked_is_told_so(tmp_path: Path, held: Handle, steps: Steps) -> None:
    other = Handle(os.open(tmp_path / "t.log", os.O_RDWR), writable=True)
    assert other.try_lock()
    assert steps[0](held.fd, 0, 4) is None
    other.unlock()
    assert steps[0](held.fd, 0, 4) is not None


def test_a_file_that_cannot_be_looked_at_is_not_left_locked(tmp_path: Path, steps: Steps) -> None:
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        steps[0](1 << 20, 0, 4)
    (tmp_path / "t.log").write_bytes(b"0123456789")
    write_only = Handle(os.open(tmp_path / "t.log", os.O_WRONLY), writable=True)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        steps[0](write_only.fd, 0, 4)
    assert not locked(tmp_path / "t.log")


def confirmed(steps: Steps, tmp_path: Path, held: Handle, *, unlock: bool = False) -> bool:
    path, fence = (os.fsencode(tmp_path / name) for name in ("t.log", "t.take"))
    return steps[1](held.fd if unlock else -1, path, *held.identity, fence)


def test_a_file_is_confirmed_while_its_path_names_it(tmp_path: Path, held: Handle, steps: Steps) -> None:
    assert confirmed(steps, tmp_path, held)
    (tmp_path / "t.take").touch()
    assert not confirmed(steps, tmp_path, held)
    (tmp_path / "t.take").unlink()
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "t.log")
    assert not confirmed(steps, tmp_path, held)
    (tmp_path / "t.log").unlink()
    assert not confirmed(steps, tmp_path, held)


def test_only_what_is_confirmed_is_unlocked(tmp_path: Path, held: Handle, steps: Steps) -> None:
    assert held.try_lock()
    assert confirmed(steps, tmp_path, held)
    assert locked(tmp_path / "t.log")
    (tmp_path / "t.take").touch()
    assert not confirmed(steps, tmp_path, held, unlock=True)
    assert locked(tmp_path / "t.log")
    (tmp_path / "t.take").unlink()
    assert confirmed(steps, tmp_path, held, unlock=True)
    assert not locked(tmp_path / "t.log")


def test_a_path_that_cannot_be_looked_at_says_so(tmp_path: Path, held: Handle, steps: Steps) -> None:
    path = os.fsencode(tmp_path / "t.log" / "t.log")
    with pytest.raises(NotADirectoryError) as caught:
        steps[1](-1, path, *held.identity, b"")
    assert caught.value.filename == os.fsdecode(path)
