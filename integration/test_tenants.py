"""Everything that a saver does, it does for a tenant: beside another one, who has threads of the same names."""

from __future__ import annotations

from typing import Any

from milepost.saver import Saver
from milepost.store import Backend
from milepost.testing import Memory
from milepost.testing.suite import Everything


class Tenanted(Memory):
    """The memory store, as a tenant sees it."""

    def saver(self, backend: Backend, **options: Any) -> Saver:
        return Saver(backend, **{"tenant": "acme", **options})


class TestTenants(Everything):
    subject = Tenanted
    test_nothing_changes_without_a_tenant = None
    test_erasing_a_tenant = None
