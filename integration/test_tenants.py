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
        given: dict[str, Any] = {"tenant": "acme", **options}
        return Saver(backend, **given)


class TestTenants(Everything):
    subject = Tenanted


# These are about savers without a tenant, of which there are none here.
for name in ("test_nothing_changes_without_a_tenant", "test_erasing_a_tenant"):
    setattr(TestTenants, name, None)
