"""What errors of the driver and of the server become, in one table: by the kind of the exception, else by the code in the
server's message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from milepost.errors import Corrupt, FormatTooNew, InvalidConfig, MilepostError, Unavailable
from milepost.fences import thread_deleted
from redis import exceptions


class Trouble(NamedTuple):
    """How one kind of failure is met."""

    error: type[MilepostError]
    advice: str
    again: bool = False
    """Whether the same request may succeed on another connection. Every request may be repeated."""


_LOST: Final = Trouble(Unavailable, "the connection failed: try again when the server is up", again=True)
_FORBIDDEN: Final = Trouble(
    Unavailable, "the user may not do this: allow it the store's keys and the commands that the documentation lists"
)
_BY_CODE: Final = {
    "LOADING": Trouble(Unavailable, "the server is reading its data: try again when it is done", again=True),
    "READONLY": Trouble(
        Unavailable, "the server is a replica: connect to the primary, or through sentinels", again=True
    ),
    "OOM": Trouble(Unavailable, "the server's memory is full: raise maxmemory or delete threads; nothing was stored"),
    "MISCONF": Trouble(Unavailable, "the server cannot write to its disk and takes no writes: see its log"),
    "NOREPLICAS": Trouble(Unavailable, "too few replicas are connected (min-replicas-to-write): try again"),
    "CLUSTERDOWN": Trouble(Unavailable, "a part of the cluster is down: try again when it is up", again=True),
    "TRYAGAIN": Trouble(Unavailable, "the thread's slot is being moved: try again", again=True),
    "MASTERDOWN": Trouble(Unavailable, "the replica has lost its primary: try again", again=True),
    "MOVED": Trouble(InvalidConfig, "the server is one of a cluster: open it as redis+cluster://"),
    "CROSSSLOT": Trouble(InvalidConfig, "the server is one of a cluster: open it as redis+cluster://"),
    "BUSY": Trouble(Unavailable, "a script keeps the server busy: see who runs it (SCRIPT KILL ends it)"),
    "NOAUTH": Trouble(Unavailable, "the server wants a password: put it into the URL, redis://:password@host"),
    "WRONGPASS": Trouble(Unavailable, "the server refused user or password: correct the URL"),
    "NOPERM": _FORBIDDEN,
    "ACL": _FORBIDDEN,
    "WRONGTYPE": Trouble(Corrupt, "somebody else's data lies at a key of this store: choose another prefix"),
}
_BY_KIND: Final[tuple[tuple[type[Exception], Trouble], ...]] = (
    (exceptions.AuthenticationError, _BY_CODE["WRONGPASS"]),
    (exceptions.NoPermissionError, _BY_CODE["NOPERM"]),
    (exceptions.BusyLoadingError, _BY_CODE["LOADING"]),
    (exceptions.ReadOnlyError, _BY_CODE["READONLY"]),
    (exceptions.OutOfMemoryError, _BY_CODE["OOM"]),
    (exceptions.MasterDownError, _BY_CODE["MASTERDOWN"]),
    (exceptions.ClusterDownError, _BY_CODE["CLUSTERDOWN"]),
    (exceptions.TryAgainError, _BY_CODE["TRYAGAIN"]),
    (exceptions.MovedError, _BY_CODE["MOVED"]),
    (exceptions.ClusterCrossSlotError, _BY_CODE["CROSSSLOT"]),
    (exceptions.MaxConnectionsError, Trouble(Unavailable, "all connections of the pool are at work: make it larger")),
    (
        exceptions.TimeoutError,
        Trouble(Unavailable, "no answer in time: it may have been carried out, and may be repeated"),
    ),
    (TimeoutError, Trouble(Unavailable, "no answer in time: it may have been carried out, and may be repeated")),
    (exceptions.ConnectionError, _LOST),
    (exceptions.ClusterError, _BY_CODE["CLUSTERDOWN"]),
    (exceptions.RedisClusterException, _BY_CODE["CLUSTERDOWN"]),
    (OSError, _LOST),
)
_NO_DATABASE: Final = Trouble(
    InvalidConfig, "the server has no database of that number: correct the option db, or the path of the URL"
)
_OTHER: Final = Trouble(Unavailable, "see to the cause, then try again")
# Of an error inside a script, older servers tell the code in the middle of a message of their own: behind a minus where
# the server gave it, 6.2 also without.
_CODE: Final = re.compile(r"(?:^|[ :]-|:[0-9]+: )([A-Z]{2,})(?: |$)")

FAILURES: Final = (exceptions.RedisError, exceptions.RedisClusterException, OSError)
"""What the driver raises."""


def trouble(exc: BaseException) -> Trouble:
    """How to meet an error of the driver."""
    if "DB index is out of range" in str(exc):  # said without a code; the async driver takes it for a lost connection
        return _NO_DATABASE
    for kind, met in _BY_KIND:
        if isinstance(exc, kind):
            return met
    for code in _CODE.findall(str(exc)):
        if code in _BY_CODE:
            return _BY_CODE[code]
    return _OTHER


def translate(exc: BaseException, op: str) -> MilepostError:
    """What callers of the store see for an error of the driver."""
    met = trouble(exc)
    reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
    return met.error(f"Redis could not {op}: {reason}: {met.advice}", backend="redis", op=op)


def closed() -> Unavailable:
    """For a store that was closed."""
    return Unavailable("this Redis store was closed; open it again to go on", backend="redis", op="use")


def crowded(size: int, seconds: float) -> Unavailable:
    """For a pool whose connections are all at work."""
    return Unavailable(
        f"all {size} connections to Redis were busy for {seconds:g} s: raise the option pool, or try again",
        backend="redis",
        op="connect",
    )


def undurable(op: str, wanted: str, got: int) -> Unavailable:
    """For a write that the server carried out, but that is not where the option `durability` wants it."""
    return Unavailable(
        f"Redis could not {op}: it is carried out, but durability={wanted} was not reached in time ({got} answered): "
        "try again; see to the server's appendonly setting and its replicas",
        backend="redis",
        op=op,
    )


def lost(thread: str) -> Corrupt:
    """For a thread of which the server has a part only."""
    return Corrupt(
        f"thread {thread!r} has lost one of its keys: the server evicted it, or somebody deleted it. Restore the "
        "thread, or delete it to start afresh; and set maxmemory-policy to noeviction",
        thread=thread,
        ns=None,
        checkpoint=None,
        damage=("a key of the thread is missing",),
    )


def newer(thread: str) -> FormatTooNew:
    """For a thread of a later format."""
    return FormatTooNew(
        f"thread {thread!r} was written by a newer release of Milepost: upgrade it to read the thread",
        found=None,
        supported=1,
    )


def restless(thread: str, times: int) -> Unavailable:
    """For a thread that is changed again and again while it is read."""
    return Unavailable(
        f"thread {thread!r} was changed {times} times while it was read: try again when it is quiet",
        backend="redis",
        op="read",
    )


def status_of(thread: str, reply: Sequence[Any], what: str = "") -> bytes:
    """What a script answered; `what` it was to write. Raises what stands for an error, such as `ThreadDeleted`."""
    status: bytes = reply[0]
    if status == b"dead":
        raise thread_deleted(thread, what, reply[1].decode())
    if status == b"lost":
        raise lost(thread)
    if status == b"new":
        raise newer(thread)
    return status
