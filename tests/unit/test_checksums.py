"""Checksums are those of zlib, whoever computes them."""

from __future__ import annotations

import zlib
from array import array

from hypothesis import given
from hypothesis import strategies as st
from milepost.checksums import crc32


@given(st.binary(max_size=5000), st.integers(0, 0xFFFFFFFF), st.integers(0, 16))
def test_they_are_those_of_zlib(data: bytes, start: int, skipped: int) -> None:
    part = data[skipped:]
    assert crc32(part) == zlib.crc32(part)
    assert crc32(part, start) == zlib.crc32(part, start)
    assert crc32(memoryview(data)[skipped:], start) == zlib.crc32(part, start)


@given(st.lists(st.integers(0, 0xFFFFFFFF)))
def test_arrays_count_as_their_bytes(numbers: list[int]) -> None:
    assert crc32(array("I", numbers)) == zlib.crc32(array("I", numbers).tobytes())
