"""Test kit for authors of backends and for people who wrap a saver. See `milepost.testing.suite` to begin."""

from __future__ import annotations

from milepost.testing.chain import Chain, at, checkpoint
from milepost.testing.lab import FLAVOURS, Face, Flavour, Lab, Memory, Subject, drive
from milepost.testing.same import assert_same, difference

__all__ = [
    "FLAVOURS",
    "Chain",
    "Face",
    "Flavour",
    "Lab",
    "Memory",
    "Subject",
    "assert_same",
    "at",
    "checkpoint",
    "difference",
    "drive",
]
