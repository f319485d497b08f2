"""The `milepost` command."""

from __future__ import annotations
