"""Speed and bytes, side by side with what a user would pick instead: ``python -m integration.bench``.

`rivals` opens savers, `workloads` drives them, `measure` takes the figures, `report` holds them against the goals. A
further backend or rival is one entry in `rivals.RIVALS`, a further workload one in `workloads.WORKLOADS`.
"""

from __future__ import annotations
