"""The behaviour of a saver, as tests: subclass `Everything` and set `subject` to get the whole contract."""

from __future__ import annotations

from milepost.testing.suite.basis import Behaviours, cases_of, needs
from milepost.testing.suite.values import Refused, Values

__all__ = ["Behaviours", "Everything", "Refused", "Values", "cases_of", "needs"]


class Everything(Values, Refused):
    """Every behaviour there is."""
