"""Which tests need the package milepost-speedups, and whether they can run here."""

from __future__ import annotations

import importlib.util
import os

import pytest


def missing() -> str:
    """Why the part in C cannot be tested here; empty when it can, or has to be able to."""
    if importlib.util.find_spec("milepost_speedups") is None:
        return "milepost-speedups is not installed"
    try:
        importlib.import_module("milepost_speedups")
    except ImportError as exc:
        return "" if os.environ.get("CI") else f"milepost-speedups was not compiled here: {exc}"
    return ""


needs_c = pytest.mark.skipif(bool(missing()), reason=missing())
