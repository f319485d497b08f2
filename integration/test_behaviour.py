"""Every behaviour on the stores without a server, in both flavours: `tests` tries each in one of them."""

from __future__ import annotations

import subjects
from milepost.testing.suite import Everything


class TestMemory(Everything):
    subject = subjects.Memory


class TestFiles(Everything):
    subject = subjects.Files
