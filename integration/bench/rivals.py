"""The savers that are compared, each opened with the same durability: an answer waits for the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import milepost
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

AnySaver = BaseCheckpointSaver[Any]


@dataclass(frozen=True)
class Rival:
    """One saver, in both flavours, over a folder that is its own."""

    name: str
    blocking: Callable[[Path], AbstractContextManager[AnySaver]]
    asynchronous: Callable[[Path], AbstractAsyncContextManager[AnySaver]]
    durable: bool = True
    """Whether another process finds what was stored."""

    def bytes(self, folder: Path) -> int:
        """What lies on the disk once the saver is closed."""
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _milepost(options: str = "") -> tuple[Callable[[Path], Any], Callable[[Path], Any]]:
    def opened(folder: Path) -> Any:
        return milepost.connect(f"file:{folder.as_posix()}/store{options}")

    return opened, opened


@contextmanager
def _sqlite(folder: Path) -> Generator[AnySaver]:
    # Imported here: tests use this module, and need none of the peers.
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
def _memory(_: Path) -> Generator[AnySaver]:
    yield InMemorySaver()


@asynccontextmanager
async def _memory_async(_: Path) -> AsyncGenerator[AnySaver]:
    yield InMemorySaver()


OURS = Rival("milepost files", *_milepost())
PREALLOCATED = Rival("milepost files, preallocated", *_milepost("?preallocate=true"))
SQLITE = Rival("SqliteSaver", _sqlite, _sqlite_async)
MEMORY = Rival("InMemorySaver", _memory, _memory_async, durable=False)

RIVALS = (OURS, PREALLOCATED, SQLITE, MEMORY)
