"""What a saver remembers of a thread."""

from __future__ import annotations

from milepost.codec.memo import ThreadMemo


def test_namespaces_do_not_push_out_each_other() -> None:
    """What is not remembered of the parent is taken from the graph, which may have changed it since."""
    memo = ThreadMemo()
    memo.keep_values("", "root", {"barrier": (1, (0, b"x"))})
    for number in range(200):
        for step in range(20):
            memo.keep_values(f"sub:{number}", f"{step}", {})
    assert memo.values("", "root") == {"barrier": (1, (0, b"x"))}
    assert memo.values("sub:199", "19") == {}
    assert memo.values("sub:199", "0") is None
    for number in range(300):
        memo.keep_values(f"more:{number}", "0", {})
    assert memo.values("", "root") is None
    memo.at(1)
    assert memo.values("more:299", "0") is None
