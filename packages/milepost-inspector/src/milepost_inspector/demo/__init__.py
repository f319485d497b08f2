"""The main job, on real input: an agent settles refunds, is killed over and over, and misses none.

`conductor` starts and kills the worker processes, `worker` runs the agent of `agent` over the records of `records`,
`world` is the process outside that performs each effect, `audit` compares what it logged with what was due, and
`report` prints what happened.
"""

from __future__ import annotations
