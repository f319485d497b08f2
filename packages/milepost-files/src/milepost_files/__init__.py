"""Milepost in plain files: a folder, one append-only log per thread, any number of processes."""

from __future__ import annotations

from milepost_files.saver import FilesBackend, open_backend

__all__ = ["FilesBackend", "open_backend"]
