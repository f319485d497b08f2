"""Everything Milepost raises on purpose.

Each error says what happened, to which thread or channel, and what to do next; the facts are also attributes, for
programs. None of them subclasses LangGraph's ``GraphBubbleUp``: one raised from ``put_writes`` would be swallowed.
"""

from __future__ import annotations

from typing import Any, Final


class MilepostError(Exception):
    """Base of all errors raised by Milepost. Keyword arguments become attributes."""

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        # `facts` is looked up through __dict__: unpickling and copy ask for attributes before __init__ ran.
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.facts))


def _rebuild(cls: type[MilepostError], message: str, facts: dict[str, Any]) -> MilepostError:
    return cls(message, **facts)


class InvalidConfig(MilepostError, ValueError):
    """An argument, a config, an id, a URL or an option is not usable. Nothing was read or written.

    Facts: ``what`` (the argument or option), ``value`` (its ``repr``, cut to 200 characters).
    """


class Unavailable(MilepostError):
    """The store cannot be reached, or cannot do its work now (a full disk, no permission). Nothing was decided: retry.

    Facts: ``backend``, ``op``, and ``errno`` where the system gave one.
    """


class Conflict(MilepostError):
    """The thread changed under an operation that needed it to stand still. Nothing was written.

    Facts: ``thread``, and ``expected`` and ``found`` where they are known: of a guarded put the id of its parent (None when
    it has none, as the first of a run that did not find the thread) and that of the thread's latest checkpoint.
    """


class LeaseLost(MilepostError):
    """A write carried the fence of a lease that another owner has taken since. Nothing was written.

    Facts: ``thread``, ``fence`` (of the lease that is lost), ``found`` (the fence that the thread has now, None where it
    is not known).
    """


class Busy(MilepostError):
    """Somebody else holds the lease of the thread. Nothing was changed.

    Facts: ``thread``, ``owner``, ``since`` and ``expires`` (seconds since the epoch by the store's clock).
    """


class ThreadDeleted(MilepostError):
    """A late write descends from a checkpoint that ``delete_thread`` removed. Nothing was written.

    Facts: ``thread``, ``checkpoint``.
    """


class UnsettledCalls(MilepostError):
    """The ledger has calls of the thread of which nobody knows whether they changed the world. Nothing was deleted.

    Facts: ``thread``, ``count``.
    """


class Corrupt(MilepostError):
    """What is stored does not verify: damaged bytes, or parts that are missing.

    Facts: ``thread``, ``ns``, ``checkpoint``, ``damage`` (what is wrong, in words). Where what delta channels are rebuilt
    from is damaged, ``whole`` too: the newest checkpoint before that can be read and rebuilt, or None.
    """


class FormatTooNew(MilepostError):
    """The bytes, or the store, were written by a newer release. Upgrade Milepost to read them.

    Facts: ``found``, ``supported``.
    """


class SchemaMismatch(MilepostError):
    """A checkpoint's state schema is newer than, or unknown to, the running code, or cannot be upgraded. Nothing was
    changed.

    Facts: ``thread``, ``ns``, ``checkpoint``, ``schema`` (name of the running code's), ``found`` (version in the store;
    None without a stamp) and ``expected``.
    """


class Unserializable(MilepostError, TypeError):
    """A value cannot be stored, or cannot be rebuilt from what is stored.

    Facts: ``path`` (from the value's root, such as ``['a'][3].b``), ``type`` (dotted class), and, once the saver has
    seen the error, ``thread`` and ``channel``.
    """


class TooLarge(MilepostError, ValueError):
    """A value or an id is over a documented limit. Facts: ``size``, ``limit``."""


OF_WHAT_IS_STORED: Final = (Corrupt, FormatTooNew, InvalidConfig, SchemaMismatch, TooLarge, Unserializable)
"""Those about the data of one checkpoint, which whoever tries again meets again, and others do not."""
