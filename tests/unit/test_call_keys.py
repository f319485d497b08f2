"""Keys and fingerprints of calls. Those of one scheme never change: a record that is not found is performed again."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from milepost.codec.calls import (
    LONGEST_HANDLE,
    CallInfo,
    call_key,
    digest,
    downstream,
    fingerprint,
    handle_of_own,
    match_of,
)
from milepost.errors import InvalidConfig
from milepost.ledger import keyed, readonly, unsafe
from milepost.ledger.policy import declared, seconds

INFO = CallInfo("charge", {"amount": 5}, "", "unsafe", "", message="m1", call="c1")

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_keys_stay_as_they_are() -> None:
    assert call_key("thread", INFO) == "sQ0eSI6mFo5MqqPR9LF6niGM0aLOQm8kL29EOV4V0kQ"
    step = replace(INFO, step="fee", step_of=1)
    assert call_key("thread", step) == digest("step", "1", call_key("thread", INFO), 1, "fee")
    assert call_key("thread", replace(INFO, own="order-1")) == "order-1"
    shown = fingerprint("charge", {"b": [1, 2.5, None, True], "a": "é\ud800"})
    assert shown == "e4a32fb950821ba0db8e19fc2f85b124b354fa7815692388d9645c48141a9ec8"


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "t"},
        {"own": "k"},
        {"message": "m2"},
        {"message": None},
        {"call": "c2"},
        {"call": None},
        {"apart": "x"},
        {"epoch": "1"},
    ],
)
def test_what_is_in_a_key(change: dict[str, Any]) -> None:
    assert call_key("thread", replace(INFO, **change)) != call_key("thread", INFO)


def test_what_is_in_a_key_of_ones_own() -> None:
    own = replace(INFO, own="order-1")
    infos = [own, replace(own, tenant="t"), replace(own, epoch="t"), replace(own, tenant="t", epoch="t")]
    assert len({call_key("thread", info) for info in infos}) == len(infos)
    for scope in ("thread", "global"):
        assert len({handle_of_own("thread", info, scope) for info in infos}) == len(infos)
    assert call_key("thread", replace(own, message="m2", call=None)) == "order-1"


def test_what_is_not_in_a_key() -> None:
    for change in ({"checkpoints": (("", "1"),)}, {"human": "h"}, {"arguments": None}, {"kind": "keyed"}):
        assert call_key("thread", replace(INFO, **change)) == call_key("thread", INFO)


@given(st.lists(st.text() | st.integers() | st.none(), max_size=4), st.lists(st.text() | st.integers(), max_size=4))
def test_where_a_part_ends(some: list[Any], others: list[Any]) -> None:
    assert (digest(*some) == digest(*others)) == ([(type(p), p) for p in some] == [(type(p), p) for p in others])


@given(st.text(min_size=1, max_size=200), st.integers(0, 10**9), st.text(max_size=80))
def test_a_downstream_key_fits_a_header(handle: str, generation: int, step: str) -> None:
    key = downstream(handle_of_own("t", replace(INFO, own=handle), "global"), generation, step)
    assert key.isascii()
    assert len(key) <= LONGEST_HANDLE
    assert key != downstream(handle_of_own("t", replace(INFO, own=handle), "global"), generation + 1, step)


@settings(max_examples=40)
@given(values)
def test_equal_arguments_have_one_fingerprint(value: Any) -> None:
    loaded = json.loads(json.dumps(copy.deepcopy(value)))
    assert fingerprint("t", {"x": value}) == fingerprint("t", {"x": loaded})
    assert fingerprint("t", {"x": value}) != fingerprint("u", {"x": value})
    if isinstance(value, dict):
        assert fingerprint("t", value) == fingerprint("t", dict(reversed(value.items())))


@given(values, values)
def test_other_arguments_have_another(some: Any, other: Any) -> None:
    same = json.dumps(some, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (fingerprint("t", some) == fingerprint("t", other)) == same


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"x": [0, float("nan")]}, "arguments['x'][1]"),
        ({"x": {1: 2}}, "arguments['x']"),
        ({"x": (1, {"y": object()})}, "arguments['x'][1]['y']"),
        ({"x": b"1"}, "arguments['x']"),
        ({"x": float("inf")}, "arguments['x']"),
    ],
)
def test_what_is_no_json(value: Any, path: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        fingerprint("t", value)
    assert refused.value.what == path


def test_what_may_be_the_same_call() -> None:
    info = replace(INFO, human="h", fingerprint="f")
    assert match_of(info) == match_of(replace(info, message="m2", call="c2"))
    assert "" == match_of(INFO) == match_of(replace(info, own="k")) == match_of(replace(info, step="s"))
    changes: list[dict[str, Any]] = [
        {"human": "i"},
        {"fingerprint": "g"},
        {"tool": "u"},
        {"tenant": "t"},
        {"epoch": "2"},
    ]
    for change in changes:
        assert match_of(replace(info, **change)) not in ("", match_of(info))


@pytest.mark.parametrize(
    ("given", "found"), [("90s", 90), ("1.5m", 90), ("24h", 86400), ("7d", 604800), ("250ms", 0.25), (3, 3), (0, 0)]
)
def test_durations(given: Any, found: float) -> None:
    assert seconds(given, "lease") == found


@pytest.mark.parametrize("given", ["", "5", "-1s", "1 week", -1, float("nan"), float("inf"), True, None])
def test_what_is_no_duration(given: Any) -> None:
    with pytest.raises(InvalidConfig):
        seconds(given, "lease")


def test_classes_of_tools() -> None:
    assert declared("t", readonly) == readonly()
    assert keyed(window="1h").window == 3600
    for wrong in (keyed, "keyed", lambda: 1):
        with pytest.raises(InvalidConfig):
            declared("t", wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="key function"):
        unsafe(scope="global")
