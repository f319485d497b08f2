"""Every behaviour on every store, in both flavours. A new store is two lines here."""

from __future__ import annotations

from milepost.testing import Memory
from milepost.testing.suite import Everything


class TestMemory(Everything):
    subject = Memory
