"""The snapshot of an index beside its log: a cache that saves reading the whole log, and when to write it anew."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from typing import Final

from milepost.codec.envelope import unwrap, wrap
from milepost.errors import MilepostError

from milepost_files.index import Index

_FRAMES: Final = 256
_BYTES: Final = 8 << 20
_LAST: Final = 32
_COMPRESS_OVER: Final = 1024

_log = logging.getLogger("milepost.files")


class Snapshot:
    """The snapshot of one log. What it says is used only where it fits the log, which the reader of it finds out."""

    def __init__(self, stem: str) -> None:
        self._stem = stem
        self._path = stem + ".idx"
        self._covered = (0, 0)
        """How many frames and bytes of the log it covers."""
        self._trusted = True

    def read(self) -> Index | None:
        """What the snapshot says; None when there is none to trust."""
        if not self._trusted:
            return None
        try:
            with open(self._path, "rb") as file:
                return Index.thaw(unwrap(file.read()))
        except (OSError, MilepostError):
            return None

    def covers(self, index: Index) -> None:
        """Remember that the snapshot says what `index` does."""
        self._covered = (index.frames, index.end)

    def distrust(self) -> None:
        """Use no snapshot before it was written anew."""
        self._trusted = False

    def forget(self) -> None:
        """Write a new one soon: the log may be another."""
        self._covered = (0, 0)

    def due(self, index: Index, *, last: bool) -> bool:
        """Whether enough was added since, or, if it is the `last` occasion, a little. A damaged log gets none: the whole
        of it has to be looked at again."""
        frames, end = self._covered
        if index.damage:
            return False
        if last and index.frames - frames >= _LAST:
            return True
        return index.frames - frames >= max(_FRAMES, frames // 4) or index.end - end >= max(_BYTES, end // 4)

    def freeze(self, index: Index) -> bytes:
        """The bytes to `write` for `index`."""
        # Ids that differ in a few characters are most of it: compressed, it is a quarter of the size.
        data = wrap(index.freeze(), compress_over=_COMPRESS_OVER)
        self.covers(index)
        self._trusted = True
        return data

    def write(self, data: bytes) -> None:
        """Replace the snapshot. If that fails, opening the log takes longer, nothing else."""
        temporary = f"{self._path}-{secrets.token_hex(8)}"
        try:
            with open(temporary, "xb") as file:
                file.write(data)
            os.rename(temporary, self._path)
        except FileNotFoundError:
            return  # the store has been removed meanwhile
        except OSError as exc:
            _log.warning("cannot write the index %s (%s); opening this thread will take longer", self._path, exc)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
