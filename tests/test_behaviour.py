"""Every behaviour on every store, in either flavour. A new store is two lines here."""

from __future__ import annotations

import subjects
from milepost.testing.suite import Everything


class TestMemory(Everything):
    subject = subjects.Memory


class TestFiles(Everything):
    subject = subjects.Files


class TestPostgres(Everything):
    subject = subjects.Postgres


class TestRedis(Everything):
    subject = subjects.Redis
