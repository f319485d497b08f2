"""The savers that are compared, each opened with the same durability: an answer waits for the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import milepost
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

AnySaver = BaseCheckpointSaver[Any]
Store = Literal["files", "postgres", "redis", "memory"]
STORES: tuple[Store, ...] = ("files", "postgres", "redis")


@dataclass(frozen=True)
class Rival:
    """One saver, in both flavours, over a folder that is its own."""

    name: str
    blocking: Callable[[Path], AbstractContextManager[AnySaver]]
    asynchronous: Callable[[Path], AbstractAsyncContextManager[AnySaver]]
    store: Store = "files"
    """What it keeps its data in: it is compared with others of the same."""
    ours: bool = False
    """Whether a wrong answer, or none, is an error: of the others it is noted."""
    durable: bool = True
    """Whether another process finds what was stored."""
    hurried: Rival | None = None
    """The same store, opened so that it does not wait for the disk: to fill it before something is timed."""
    needs: tuple[str, ...] = ()
    """The modules without which it is left out."""
    remark: str = ""
    """What readers of its figures have to know."""

    def missing(self) -> str | None:
        """Why it cannot be run here, or None."""
        absent = [name for name in self.needs if not find_spec(name)]
        return f"not installed: {', '.join(absent)} (dependency group `bench`)" if absent else None

    def bytes(self, folder: Path) -> int:
        """What lies on the disk once the saver is closed."""
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

    def log_bytes(self, folder: Path) -> int | None:
        """What the server has written ahead so far, if it keeps such a log."""
        return None

    def server_time(self, folder: Path) -> float:
        """The processor time of its server so far, in seconds."""
        return 0.0

    def settle(self, folder: Path) -> None:
        """Let a store that was filled in a hurry come to rest."""


def _milepost(options: str = "") -> tuple[Callable[[Path], Any], Callable[[Path], Any]]:
    def opened(folder: Path) -> Any:
        return milepost.connect(f"file:{folder.as_posix()}/store{options}")

    return opened, opened


# Imported where they are opened: tests use this module, and need none of the peers.
@contextmanager
def _sqlite(folder: Path) -> Generator[AnySaver]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(folder / "checkpoints.sqlite")) as saver:
        saver.setup()
        _waits_for_the_disk(*saver.conn.execute("PRAGMA journal_mode"), *saver.conn.execute("PRAGMA synchronous"))
        yield saver


@asynccontextmanager
async def _sqlite_async(folder: Path) -> AsyncGenerator[AnySaver]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.sqlite")) as saver:
        await saver.setup()
        answers: list[Any] = []
        for pragma in ("journal_mode", "synchronous"):
            async with saver.conn.execute(f"PRAGMA {pragma}") as cursor:
                answers.extend(await cursor.fetchall())
        _waits_for_the_disk(*answers)
        yield saver


def _waits_for_the_disk(*answers: tuple[Any, ...] | sqlite3.Row) -> None:
    """The figures would not be comparable otherwise."""
    assert [tuple(answer) for answer in answers] == [("wal",), (2,)], answers


@contextmanager
def _lmdb_environment(folder: Path) -> Generator[Any]:
    lmdb: Any = import_module("lmdb")
    environment = lmdb.open(str(folder / "lmdb"), map_size=8 << 30, max_dbs=2)
    yield environment
    environment.close()


@contextmanager
def _lmdb(folder: Path) -> Generator[AnySaver]:
    peer: Any = import_module("langgraph_checkpoint_lmdb.lmdb")
    with _lmdb_environment(folder) as environment:
        yield peer.LMDBSaver(environment)


@asynccontextmanager
async def _lmdb_async(folder: Path) -> AsyncGenerator[AnySaver]:
    peer: Any = import_module("langgraph_checkpoint_lmdb.lmdb")
    with _lmdb_environment(folder) as environment:
        saver = peer.AsyncLMDBSaver(environment)
        yield saver
        saver.executor.shutdown()


def _objects(folder: Path) -> AnySaver:
    peer: Any = import_module("langgraph_checkpoint_objectstorage")
    saver: AnySaver = peer.ObjectStorageSaver.from_conn_string(f"file://{folder.as_posix()}/objects")
    return saver


@contextmanager
def _objects_blocking(folder: Path) -> Generator[AnySaver]:
    yield _objects(folder)


@asynccontextmanager
async def _objects_async(folder: Path) -> AsyncGenerator[AnySaver]:
    yield _objects(folder)


@contextmanager
def _memory(_: Path) -> Generator[AnySaver]:
    yield InMemorySaver()


@asynccontextmanager
async def _memory_async(_: Path) -> AsyncGenerator[AnySaver]:
    yield InMemorySaver()


OURS = Rival("milepost files", *_milepost(), ours=True, hurried=Rival("", *_milepost("?durability=os")))
PREALLOCATED = Rival("milepost files, preallocated", *_milepost("?preallocate=true"), ours=True)
SQLITE = Rival("SqliteSaver", _sqlite, _sqlite_async)
LMDB = Rival("LMDBSaver", _lmdb, _lmdb_async, needs=("lmdb", "langgraph_checkpoint_lmdb"))
OBJECTS = Rival(
    "ObjectStorageSaver",
    _objects_blocking,
    _objects_async,
    needs=("langgraph_checkpoint_objectstorage",),
    remark="does not wait for the disk",
)
MEMORY = Rival(
    "InMemorySaver",
    _memory,
    _memory_async,
    "memory",
    durable=False,
    remark="keeps nothing: what a saver in Python costs",
)
