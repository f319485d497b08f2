"""What Milepost does faster in C. Importing this raises ``ImportError`` where it could not be compiled.

`milepost_speedups._system` is apart: what it asks is not the same on every system.
"""

from __future__ import annotations

from milepost_speedups._revive import Messages
from milepost_speedups._tables import lying, numbered
from milepost_speedups._trace import Trace, trace

__all__ = ["Messages", "Trace", "lying", "numbered", "trace"]
