"""A ledger in a forked process: what its parent was about to do is not the child's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from milepost.ledger import CallInProgress, LedgerError, Run
from milepost.testing import Lab
from milepost.testing.faults import Plan
from milepost.testing.workers import Worker, wants
from subjects import Files


def _in_child(body: Callable[[], bool]) -> int:
    """0 if `body` says so in a forked process."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if body() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def test_a_claim_whose_reply_was_lost_is_the_parents(tmp_path: Path) -> None:
    lab = Lab(Files(tmp_path), "blocking")
    plan = Plan()
    worker = Worker(lab, lab.faulty(plan))
    await worker.do(wants(call="first"))
    plan.arm("after")
    with pytest.raises(LedgerError):
        worker.ledger.enter(wants())
    plan.disarm()

    def refused() -> bool:
        try:
            worker.ledger.enter(wants())
        except CallInProgress:
            return worker.ledger.core.owner.endswith(f":{os.getpid()}")
        return False

    # Another thread of the parent may be holding them.
    with worker.ledger.core._lock, worker.ledger.core.boundary._lock:
        assert _in_child(refused) == 0
    assert isinstance(worker.ledger.enter(wants()), Run)
    await lab.close()
