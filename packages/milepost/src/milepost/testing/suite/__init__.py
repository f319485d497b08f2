"""The behaviour of a saver, as tests: subclass `Everything` and set `subject` to get the whole contract."""

from __future__ import annotations

from milepost.testing.suite.basis import Behaviours, cases_of, needs
from milepost.testing.suite.identity import BadInput, Configs, Deletion, Identity
from milepost.testing.suite.reading import Latest, Listing
from milepost.testing.suite.values import Refused, Values
from milepost.testing.suite.writes import Writes

__all__ = [
    "BadInput",
    "Behaviours",
    "Configs",
    "Deletion",
    "Everything",
    "Identity",
    "Latest",
    "Listing",
    "Refused",
    "Values",
    "Writes",
    "cases_of",
    "needs",
]


class Everything(
    Values,
    Refused,
    Writes,
    Latest,
    Listing,
    Identity,
    Deletion,
    Configs,
    BadInput,
):
    """Every behaviour there is."""
