"""The clock by which this process tells how much of a lease is left."""

from __future__ import annotations

import time
from functools import partial

ticking = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
"""Seconds that nobody sets, those included in which the machine was suspended, on systems that count them: a store's clock
goes on in that time."""
