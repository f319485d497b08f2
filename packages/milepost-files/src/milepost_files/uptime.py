"""The machine's own time, which nobody sets: how long it has been running."""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from milepost.ticking import ticking


class Uptime(NamedTuple):
    """A moment in the life of a machine, to be compared with others of the same `run` alone."""

    run: str
    """Names this start of the machine, and whose clock it is where containers have clocks of their own."""
    seconds: float
    """Since the machine was started, those included in which it was suspended."""


def uptime() -> Uptime | None:
    """Now; None on a system that does not tell."""
    run = _run()
    return None if run is None else Uptime(run, ticking())


@functools.cache
def _run() -> str | None:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"
    except OSError:
        return None
