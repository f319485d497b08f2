"""What the command line itself raises."""

from __future__ import annotations


class UsageError(Exception):
    """What was asked for cannot be done; the message says why and what to do instead."""
