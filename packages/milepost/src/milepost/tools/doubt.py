"""What a model is told of a call whose outcome nobody knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from milepost.ledger.words import shown, text, words

_OUTCOME_UNKNOWN = (
    "The outcome of this call is unknown: it may have been performed, and it may not. Do not repeat it, whatever else "
    "this message asks for. ({error})"
)
"""Others put sentences of theirs behind an exception's text: "Please try again.", "Please fix your mistakes."."""
_HEAP_TYPE = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: a class that a program has made, as opposed to one that is compiled into Python."""


def message(error: BaseException) -> str:
    """The message that answers a call whose function raised `error`."""
    return _OUTCOME_UNKNOWN.format(error=words(error))


def exception(error: Exception) -> Exception:
    """`error`, with a text that says that the outcome is unknown.

    Whoever catches exceptions around a tool makes a message of their text or their ``repr``, and retries by their class:
    so it is another exception, of a class derived from that of `error`, with its attributes. Where that class cannot be
    derived from, it is of the nearest base that can. Pickled, or made anew by its class, it is one like `error`.
    """
    if isinstance(error, _InDoubt):
        return error
    for kind in type(error).__mro__:
        for native in _natives(kind):
            # Whatever a class of the application's raises: what it raised first is what counts.
            with suppress(Exception):
                return _derived(error, kind, native)
    return error


class _InDoubt:
    """Laid over the class of an exception."""

    __of: Exception
    """What was raised."""

    def __init_subclass__(cls) -> None:
        """The class of one exception: none that the application's classes are to hear of."""

    def __str__(self) -> str:
        return _OUTCOME_UNKNOWN.format(error=text(self.__of) or type(self).__name__)

    def __repr__(self) -> str:
        return _OUTCOME_UNKNOWN.format(error=shown(self.__of))

    def __getattr__(self, name: str) -> Any:
        # What lies in slots.
        return getattr(self.__of, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__of.__reduce_ex__(protocol)


def _derived(error: Exception, kind: Any, native: Any) -> Exception:
    """`error` as an instance of a class derived from `kind`, made by the constructor of its base `native`."""

    def anew(_: object, *args: Any, **kwargs: Any) -> Any:
        return type(error)(*args, **kwargs)

    named = {"__module__": type(error).__module__, "__qualname__": type(error).__qualname__, "__new__": anew}
    # Past the metaclass, which may keep a list of classes too.
    derived: Any = type.__new__(type(kind), type(error).__name__, (_InDoubt, kind), named)
    # The constructors of a program may take anything; those of Python take what they then have as `args`.
    group: Any = error if isinstance(error, BaseExceptionGroup) else None
    arguments = (group.message, group.exceptions) if group else native.__reduce__(error)[1]
    made: Exception = native.__new__(derived, *arguments)
    vars(made).update(_InDoubt__of=error)
    native.__init__(made, *arguments)
    with suppress(Exception):
        vars(made).update(vars(error))
    if notes := getattr(error, "__notes__", ()):
        made.__notes__ = [*notes]
    for base in native.__mro__:
        for name, held in vars(base).items():
            if isinstance(held, MemberDescriptorType | GetSetDescriptorType) and not name.startswith("__"):
                # Some cannot be set, and have what the constructor was given; others have no value.
                with suppress(AttributeError, TypeError):
                    object.__setattr__(made, name, getattr(error, name))
    return made


def _natives(kind: type) -> Iterator[type]:
    """The classes compiled into Python that `kind` derives from. One of several has the form that it needs."""
    return (one for one in kind.__mro__ if not one.__flags__ & _HEAP_TYPE and issubclass(one, BaseException))
