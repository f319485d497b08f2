"""The stores that the tests of this folder are run over."""

from __future__ import annotations

from pathlib import Path

STORES = ("memory", "files")
"""One line for each further backend here, and one in `url_of`."""


def url_of(store: str, folder: Path) -> str:
    """The URL of a store of this kind that is the test's own, and empty at first."""
    return {
        "memory": "memory:",
        "files": f"file:{folder.as_posix()}/store",
    }[store]
