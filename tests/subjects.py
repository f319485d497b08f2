"""The stores that the behaviour suite is run on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import milepost_files
from milepost.store import Backend
from milepost.testing import Memory, Subject

__all__ = ["Files", "Memory"]


class Files(Subject):
    """The file store. The disk is not waited for: crashes of the machine are another test's matter."""

    capabilities: ClassVar[frozenset[str]] = frozenset({"durable", "shared", "damage"})

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._folder = directory / "store"

    def backend(self) -> Backend:
        return milepost_files.open_backend(self._folder, durability="os")

    def url(self) -> str:
        return f"file:{self._folder}?durability=os"

    def media(self) -> Mapping[str, bytes]:
        files = [path for path in self._folder.rglob("*") if path.is_file() and path.parent != self._folder]
        return {str(path.relative_to(self._folder)): path.read_bytes() for path in files}

    def overwrite(self, name: str, data: bytes | None) -> None:
        if data is None:
            (self._folder / name).unlink()
        else:
            (self._folder / name).write_bytes(data)
