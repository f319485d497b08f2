"""The behaviour of a saver, as tests: subclass `Everything` and set `subject` to get the whole contract.

    class TestMine(Everything):
        subject = Mine

where ``Mine`` is a `milepost.testing.Subject`. It needs pytest and no plugin; with
``pytest.register_assert_rewrite("milepost.testing")`` in a conftest.py, a failure shows its values.
"""

from __future__ import annotations

from milepost.testing.suite.archives import Archives, Background, Guarded
from milepost.testing.suite.basis import Behaviours, cases_of, needs
from milepost.testing.suite.bounded import Hooked, Merging, Policies
from milepost.testing.suite.delta import DeltaHistory, DeltaUpkeep
from milepost.testing.suite.driving import Driving, Statuses
from milepost.testing.suite.failing import Damage, Faults
from milepost.testing.suite.free import FreeFunctions
from milepost.testing.suite.guard import HeadGuard
from milepost.testing.suite.histories import Histories
from milepost.testing.suite.identity import BadInput, Configs, Deletion, Identity
from milepost.testing.suite.leases import Leases
from milepost.testing.suite.ledger import CallsInDoubt, CallsOnce
from milepost.testing.suite.ledger_contended import CallsContended, CallsFaults
from milepost.testing.suite.ledger_threads import CallsBarrier, CallsKeys, CallsOfThreads, CallsOrphans
from milepost.testing.suite.leftovers import Erasures, Leftovers, Sweeps
from milepost.testing.suite.merging import PutsThatMerge, RunsThatMerge
from milepost.testing.suite.migration import Migration
from milepost.testing.suite.moving import Moves
from milepost.testing.suite.objects import Objects
from milepost.testing.suite.outlines import Outlines, Pins
from milepost.testing.suite.reading import Latest, Listing
from milepost.testing.suite.releases import Releases
from milepost.testing.suite.repairs import Repairs
from milepost.testing.suite.rollback import Rollbacks
from milepost.testing.suite.rollback_branches import RollbacksOverBranches
from milepost.testing.suite.sends import Sends
from milepost.testing.suite.serializers import Serializers
from milepost.testing.suite.sharing import Concurrency, Observed, Sharing
from milepost.testing.suite.smaller import Compacts
from milepost.testing.suite.storage import Forks, InPlace, Once
from milepost.testing.suite.tenants import Tenants
from milepost.testing.suite.upkeep import Copies, Generations, Overview, Prune, Runs
from milepost.testing.suite.values import Refused, Values
from milepost.testing.suite.writes import Writes

__all__ = [
    "Archives",
    "Background",
    "BadInput",
    "Behaviours",
    "CallsBarrier",
    "CallsContended",
    "CallsFaults",
    "CallsInDoubt",
    "CallsKeys",
    "CallsOfThreads",
    "CallsOnce",
    "CallsOrphans",
    "Compacts",
    "Concurrency",
    "Configs",
    "Copies",
    "Damage",
    "Deletion",
    "DeltaHistory",
    "DeltaUpkeep",
    "Driving",
    "Erasures",
    "Everything",
    "Faults",
    "Forks",
    "FreeFunctions",
    "Generations",
    "Guarded",
    "HeadGuard",
    "Histories",
    "Hooked",
    "Identity",
    "InPlace",
    "Latest",
    "Leases",
    "Leftovers",
    "Listing",
    "Merging",
    "Migration",
    "Moves",
    "Objects",
    "Observed",
    "Once",
    "Outlines",
    "Overview",
    "Pins",
    "Policies",
    "Prune",
    "PutsThatMerge",
    "Refused",
    "Releases",
    "Repairs",
    "Rollbacks",
    "RollbacksOverBranches",
    "Runs",
    "RunsThatMerge",
    "Sends",
    "Serializers",
    "Sharing",
    "Statuses",
    "Sweeps",
    "Tenants",
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
    Leases,
    Driving,
    HeadGuard,
    Statuses,
    Tenants,
    Configs,
    BadInput,
    Once,
    InPlace,
    Forks,
    DeltaHistory,
    DeltaUpkeep,
    Prune,
    Generations,
    Outlines,
    Pins,
    Policies,
    Merging,
    PutsThatMerge,
    RunsThatMerge,
    Hooked,
    Guarded,
    Archives,
    Leftovers,
    Sweeps,
    Erasures,
    Background,
    Compacts,
    Runs,
    Copies,
    Overview,
    Sharing,
    Observed,
    Serializers,
    Releases,
    Migration,
    Objects,
    Histories,
    FreeFunctions,
    Moves,
    Sends,
    Concurrency,
    Faults,
    Damage,
    CallsOnce,
    CallsInDoubt,
    CallsContended,
    CallsFaults,
    CallsOrphans,
    CallsKeys,
    CallsOfThreads,
    CallsBarrier,
    Rollbacks,
    RollbacksOverBranches,
    Repairs,
):
    """Every behaviour there is."""
