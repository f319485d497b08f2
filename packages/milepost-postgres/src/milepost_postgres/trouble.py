"""What errors of the driver become, in one table: by SQLSTATE, else by its class, else by the kind of the exception."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import psycopg
from milepost.errors import FormatTooNew, InvalidConfig, MilepostError, TooLarge, Unavailable


class Trouble(NamedTuple):
    """How one kind of failure is met."""

    error: type[MilepostError]
    advice: str
    again: bool = False
    """Whether the same request may succeed at once, on another connection."""


_BY_STATE: Final = {
    "42P01": Trouble(Unavailable, "the tables are not there: call setup(), or correct the options schema and prefix"),
    "3F000": Trouble(Unavailable, "the schema is not there: call setup(), or correct the option schema"),
    "42703": Trouble(FormatTooNew, "the tables are of another release of Milepost: upgrade it, or call setup()"),
    "42501": Trouble(Unavailable, "the role may not do this: grant it USAGE on the schema and access to its tables"),
    "25006": Trouble(Unavailable, "the server is a standby or read-only: connect to the primary", again=True),
    "22021": Trouble(InvalidConfig, "an id or channel has a character that the database's encoding has not: use UTF8"),
    "22P05": Trouble(InvalidConfig, "an id or channel has a character that the database's encoding has not: use UTF8"),
    "54000": Trouble(TooLarge, "a value is larger than PostgreSQL can store: 1 GB"),
    "40001": Trouble(Unavailable, "the transaction collided with others: try again", again=True),
    "40P01": Trouble(Unavailable, "the transaction collided with others: try again", again=True),
    "55P03": Trouble(Unavailable, "another transaction holds the thread: try again when it is over"),
    "57014": Trouble(Unavailable, "the server ended the statement: raise statement_timeout, or try again"),
    "53100": Trouble(Unavailable, "the server's disk is full: make room, then try again"),
    "53200": Trouble(Unavailable, "the server is out of memory: try again when it has less to do"),
    "53300": Trouble(Unavailable, "the server has too many connections: lower the option pool, or use a pooler"),
    "26000": Trouble(
        Unavailable, "the server lost a prepared statement: set prepare=never behind a pooler", again=True
    ),
    "42P05": Trouble(
        Unavailable, "the server lost a prepared statement: set prepare=never behind a pooler", again=True
    ),
    # Two that set up at once wait for each other; who comes second may yet look at what its session saw before.
    "23505": Trouble(Unavailable, "another process made the same at the same time: try again", again=True),
    "42P06": Trouble(Unavailable, "another process made the same at the same time: try again", again=True),
    "42P07": Trouble(Unavailable, "another process made the same at the same time: try again", again=True),
    "0A000": Trouble(Unavailable, "the tables changed under the connection: try again", again=True),
}
_BY_CLASS: Final = {
    "08": Trouble(Unavailable, "the connection failed: try again when the server is up", again=True),
    "28": Trouble(Unavailable, "the server refused the user: correct user and password"),
    "3D": Trouble(Unavailable, "the database is not there: create it, or correct its name"),
    "53": Trouble(Unavailable, "the server is short of something: try again when it has less to do"),
    "57": Trouble(Unavailable, "the server is shutting down or starting: try again when it is up", again=True),
    "58": Trouble(Unavailable, "the server failed: see its log"),
    "XX": Trouble(Unavailable, "the server found its data damaged: see its log"),
}
_LOST: Final = Trouble(Unavailable, "the connection was lost: try again when the server is up", again=True)
_POOL: Final = Trouble(Unavailable, "the application's pool has no connection to give: enlarge it, or open it")
_UNUSABLE: Final = Trouble(InvalidConfig, "correct the option in the URL, or where it is passed")
# What libpq says before it connects. It has no code for it, and may say it in another language.
_INVALID: Final = re.compile(r'invalid \w+ value: "|invalid integer value "|invalid port number: "')
_OTHER: Final = Trouble(Unavailable, "see to the cause, then try again")


def trouble(exc: psycopg.Error) -> Trouble:
    """How to meet an error of the driver."""
    state = exc.sqlstate
    # Its errors are known by where they come from: the package need not be there.
    if type(exc).__module__.partition(".")[0] == "psycopg_pool":
        return _POOL
    if state is None and _INVALID.search(str(exc)):
        return _UNUSABLE
    if state is None:
        return _LOST if isinstance(exc, (psycopg.OperationalError, psycopg.InterfaceError)) else _OTHER
    return _BY_STATE.get(state) or _BY_CLASS.get(state[:2], _OTHER)


def translate(exc: psycopg.Error, op: str) -> MilepostError:
    """What callers of the store see for an error of the driver."""
    met = trouble(exc)
    reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
    return met.error(
        f"Postgres could not {op}: {reason}: {met.advice}", backend="postgres", op=op, sqlstate=exc.sqlstate
    )


def closed() -> Unavailable:
    """For a store that was closed."""
    return Unavailable("this Postgres store was closed; open it again to go on", backend="postgres", op="use")


def crowded(size: int, seconds: float) -> Unavailable:
    """For a pool whose connections are all at work."""
    return Unavailable(
        f"all {size} connections to Postgres were busy for {seconds:g} s: raise the option pool, or try again",
        backend="postgres",
        op="connect",
    )
