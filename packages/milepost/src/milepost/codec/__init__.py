"""Values to bytes and back: items stored once, addressed, compressed, verified. See `milepost.codec.codec`."""

from __future__ import annotations

from milepost.codec.codec import Codec
from milepost.codec.envelope import FORMAT, Vault
from milepost.codec.header import Header
from milepost.codec.memo import Memory

__all__ = ["FORMAT", "Codec", "Header", "Memory", "Vault"]
