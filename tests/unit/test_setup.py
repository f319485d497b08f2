"""When a saver sets its store up."""

from __future__ import annotations

from typing import Any

import pytest
from milepost.errors import Unavailable
from milepost.memory import MemoryBackend
from milepost.saver import Saver
from milepost.testing import at


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_setup_that_failed_changes_nothing(monkeypatch: pytest.MonkeyPatch, by_itself: bool) -> None:
    saver = Saver(MemoryBackend(), setup=by_itself)
    done: list[int] = []

    async def setup() -> None:
        done.append(len(done))
        if len(done) == 1:
            raise Unavailable("not now", backend="memory", op="set up")

    store: Any = saver.blocking_side().store
    monkeypatch.setattr(store, "setup", setup)
    with pytest.raises(Unavailable):
        saver.setup()
    saver.get_tuple(at("t"))
    saver.get_tuple(at("t"))
    assert len(done) == 1 + by_itself
    saver.setup()
    assert len(done) == 2 + by_itself
