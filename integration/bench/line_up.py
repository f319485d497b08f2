"""Who is compared."""

from __future__ import annotations

from .plain_redis import PLAIN, REDIS, STACK, VALKEY
from .postgres import OFFICIAL, POSTGRES
from .rivals import LMDB, MEMORY, OBJECTS, OURS, SQLITE

MILEPOSTS = (OURS, POSTGRES, REDIS)
ENDURING = (*MILEPOSTS, SQLITE, OFFICIAL, VALKEY, STACK, PLAIN, LMDB, MEMORY)
"""All that bear a long run."""
EVERYBODY = (*ENDURING, OBJECTS)
