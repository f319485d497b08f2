"""How random sequences of operations are tried: the same ones each time, so that a failure is a change's and not chance's."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

STEADY = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
