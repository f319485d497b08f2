"""How long a call waits for another worker's."""

from __future__ import annotations

import milepost
import pytest
from milepost.ledger import CallInProgress, CallRequest, Ledger, Run
from milepost.ledger.hands import AsyncHands, BlockingHands


def test_only_the_time_limits_how_long_is_waited() -> None:
    slept: list[float] = []

    class Hands(BlockingHands):
        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    with milepost.connect("memory:") as saver:
        ledger = Ledger(saver, lease="1h", wait_timeout="60s", hands=(Hands, AsyncHands))
        request = CallRequest(tool="pay", thread="t", message="m", call="c")
        assert isinstance(ledger.enter(request), Run)
        with pytest.raises(CallInProgress):
            ledger.enter(request)
    assert sum(slept) == pytest.approx(60)
