"""numpy arrays and scalars, as values of channels and inside others."""

from __future__ import annotations

from typing import Any

import milepost
import numpy as np
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from milepost.codec.values import Serializer
from milepost.errors import Unserializable
from milepost.flavour import run
from milepost.testing import Chain, Face

official = JsonPlusSerializer()
serde = Serializer()

RECORD = np.dtype([("name", "U4"), ("at", "M8[s]"), ("xy", "<f4", (2,))])

ARRAYS: dict[str, Any] = {
    "empty": np.empty((0, 3)),
    "none": np.array(5),
    "one": np.array([1.5]),
    "many": np.arange(24, dtype=np.int16).reshape(2, 3, 4),
    "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "steps": np.arange(20)[::3],
    "big endian": np.arange(3, dtype=">i4"),
    "booleans": np.array([True, False]),
    "complex": np.array([1 + 2j]),
    "texts": np.array(["a", "ünï"]),
    "bytes": np.array([b"a", b"bc"]),
    "times": np.array(["2026-01-01", "NaT"], dtype="M8[D]"),
    "nan": np.array([np.nan, -0.0]),
    "records": np.array([("a", "2026-01-01", (1, 2)), ("b", "NaT", (3, 4))], dtype=RECORD),
    "objects": np.array([[1, "a"], [None, (1, 2)]], dtype=object),
}
SCALARS = [np.int8(-3), np.float32(0.1), np.bool_(True), np.str_("x"), np.datetime64("2026-01-01"), np.complex64(1j)]
REFUSED = [
    np.ma.masked_array([1, 2], mask=[True, False]),
    np.array([(1, object())], dtype=[("a", "i4"), ("b", "O")]),
    np.array([object()], dtype=object),
]


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    if other.flags.forc:
        assert one.flags.f_contiguous == other.flags.f_contiguous
    assert one.tolist() == other.tolist() if other.dtype == object else one.tobytes() == other.tobytes()
    assert one.flags.writeable


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_an_array_is_the_same_in_every_place(array: Any) -> None:
    assert_equal(serde.decode(serde.encode(array)), array)
    assert_equal(serde.decode(serde.encode([array]))[0], array)
    assert_equal(serde.decode(serde.encode({"k": (array,)}))["k"][0], array)
    with milepost.connect("memory:") as saver:
        chain = Chain(Face(saver, "blocking"))
        run(chain.put({"x": array, "list": [array, array]}))
        run(chain.writes(("x", array)))
        run(chain.put({"x": array, "list": [array, array, array]}))
        found, before = run(chain.saver.list(chain.latest))
        assert_equal(found.checkpoint["channel_values"]["x"], array)
        for each in found.checkpoint["channel_values"]["list"]:
            assert_equal(each, array)
        assert_equal((before.pending_writes or [])[0][2], array)


@pytest.mark.parametrize("name", ["empty", "one", "many", "columns", "big endian", "booleans", "complex"])
def test_a_plain_array_has_the_official_bytes(name: str) -> None:
    kind, data = official.dumps_typed(ARRAYS[name])
    assert serde.dumps_typed(ARRAYS[name]) == (kind, data)
    assert_equal(serde.loads_typed((kind, data)), ARRAYS[name])


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda scalar: type(scalar).__name__)
def test_a_scalar_keeps_its_type(scalar: Any) -> None:
    found = serde.decode(serde.encode([scalar]))[0]
    assert type(found) is type(scalar)
    assert found == scalar


@pytest.mark.parametrize("array", REFUSED, ids=["masked", "record with an object", "object that cannot be stored"])
def test_what_cannot_be_stored_is_refused_by_name(array: Any) -> None:
    with pytest.raises(Unserializable), milepost.connect("memory:") as saver:
        run(Chain(Face(saver, "blocking")).put({"x": array}))
