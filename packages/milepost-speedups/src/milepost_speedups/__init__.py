"""What Milepost does faster in C. Importing this raises ``ImportError`` where it could not be compiled."""

from __future__ import annotations

from milepost_speedups._revive import Messages
from milepost_speedups._system import confirm, lock
from milepost_speedups._tables import numbered
from milepost_speedups._trace import Trace, trace

__all__ = ["Messages", "Trace", "confirm", "lock", "numbered", "trace"]
