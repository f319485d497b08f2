"""A process that writes to a file store, for tests that need more than one, or one that dies.

Every finished step is acknowledged through a connection. The process can be told to come to grief in a use of a system
call (`At`). The actions: "kill" (SIGKILL before the call), "killed" (after it), "stop" and "stopped" (SIGSTOP), "half"
(half of the bytes are written, then SIGKILL), or the name of an error that the call fails with.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from files.states import At, chain, name, opened, put, writes
from milepost.errors import Unavailable
from milepost.flavour import run
from milepost.store import Drop, Store
from milepost_files import handle

Say = Callable[[object], None]


def arm(at: At) -> None:
    call, number, action = at
    module: Any = fcntl if call == "flock" else os
    if call not in ("pwrite", "fdatasync", "fsync"):
        # In C, it would not be called from here.
        handle.lock, handle.confirm = handle.lock_in_steps, handle.confirm_in_steps
    real: Callable[..., Any] = getattr(module, call)
    count = 0

    def armed(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count != number:
            return real(*arguments, **options)
        if action == "half":
            real(arguments[0], arguments[1][: len(arguments[1]) // 2], *arguments[2:])
            os.kill(os.getpid(), signal.SIGKILL)
        if action in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if action == "kill" else signal.SIGSTOP)
        elif action.isupper():
            raise OSError(getattr(errno, action), os.strerror(getattr(errno, action)))
        answer = real(*arguments, **options)
        if action in ("killed", "stopped"):
            os.kill(os.getpid(), signal.SIGKILL if action == "killed" else signal.SIGSTOP)
        return answer

    setattr(module, call, armed)


def puts(say: Say, store: Store, thread: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        put(store, thread, number, None, writer=first + 1)
        say(name(number))


def grow(say: Say, store: Store, thread: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        put(store, thread, number, name(number - 1) if number else None)
        say(name(number))


def tasks(say: Say, store: Store, thread: str, task: str, count: int) -> None:
    for number in range(count):
        answer = run(store.put_writes(thread, "", name(number), writes(task, "one", "two"), None))
        assert answer.accepted == (True, True)
        say(f"{number}:{task}")


def many(say: Say, store: Store, prefix: str, threads: int, count: int) -> None:
    for number in range(threads):
        chain(store, f"{prefix}{number}", count)
        say(f"{prefix}{number}")


def drop_all_but_head(say: Say, store: Store, thread: str) -> None:
    chart = run(store.chart(thread))
    assert chart is not None
    *gone, head = sorted(row.id for row in chart.rows)
    drop = Drop(checkpoints=tuple(("", id) for id in gone), parents=(("", head, None),))
    assert run(store.drop(thread, drop, chart.token))
    say("dropped")


def delete(say: Say, store: Store, thread: str) -> None:
    run(store.delete_thread(thread))
    say("deleted")


def fill_up(say: Say, store: Store, thread: str, limit: int) -> None:
    """Put until a file may not grow any more, then with more room again."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    number = 0
    with contextlib.suppress(Unavailable):
        while True:
            put(store, thread, number, name(number - 1) if number else None)
            number += 1
    say(number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    put(store, thread, number, name(number - 1) if number else None)
    say(number)


def read_only(say: Say, store: Store, thread: str) -> None:
    """What a user can do who may only read: a new one, as the superuser may do everything."""
    loaded = run(store.get(thread, "", None))
    assert loaded is not None
    say(int(loaded.snapshots[0].row.id))
    steps: tuple[Callable[[], object], ...] = (
        lambda: put(store, thread, 2, name(1)),
        lambda: put(store, "another", 0, None),
        lambda: run(store.delete_thread(thread)),
    )
    for step in steps:
        with pytest.raises(Unavailable) as caught:
            step()
        assert caught.value.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        say(caught.type.__name__)


def forked(say: Say, store: Store, thread: str, count: int) -> None:
    """Two processes of one open store, made by fork."""
    puts(say, store, thread, 0, 1)
    child = os.fork()
    puts(say, store, thread, 1000 if child else 2000, count)
    if child:
        _, status = os.waitpid(child, 0)
        assert status == 0
    else:
        os._exit(0)


VERBS: dict[str, Callable[..., None]] = {
    verb.__name__: verb for verb in (puts, grow, tasks, many, drop_all_but_head, delete, fill_up, forked, read_only)
}


def main(connection: Connection, path: Path, timeout: float, at: At | None, verb: str, *arguments: Any) -> None:
    if verb == "read_only" and os.geteuid() == 0:
        os.seteuid(65534)
    backend, store = opened(path, lock_timeout=timeout)
    if at is not None:
        arm(at)
    VERBS[verb](lambda said: connection.send(str(said)), store, *arguments)
    backend.close()
