"""What a migration does about a store that does not keep what it was given."""

from __future__ import annotations

from typing import Any

import pytest
from milepost.errors import Corrupt
from milepost.saver import Saver
from milepost.testing.chain import at, checkpoint
from milepost.testing.suite.releases import FIRST, SECOND
from planted import stores


def test_what_is_not_read_back_as_it_was_rewritten_is_put_back(tmp_path: Any) -> None:
    backend = stores.subject(stores.RewriteLosesAWrite)(tmp_path).backend()
    old = Saver(backend, schema=FIRST)
    old.put(at("t"), checkpoint("0001", {"a": 1}), {"step": 1}, {"a": 1})
    old.put_writes(at("t", id="0001"), [("a", 2), ("b", ["x"])], "task")
    before = old.get_tuple(at("t"))
    with pytest.raises(Corrupt, match="was put back") as caught:
        list(Saver(backend, schema=SECOND).migrate())
    assert caught.value.thread == "t"
    assert "pending write" in caught.value.damage
    # The store loses a write of what is put back too: that is this fault's, and the rest is as it was.
    after = old.get_tuple(at("t"))
    assert before is not None
    assert after is not None
    assert after.checkpoint == before.checkpoint
    assert old.stats("t").checkpoints == 1
