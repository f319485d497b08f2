"""Exceptions that say that an outcome is unknown."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Callable

import pytest
from milepost.tools import doubt
from pydantic import TypeAdapter


class Refused(Exception):
    """One with a constructor that takes no `args`, and a slot."""

    __slots__ = ("code",)

    def __init__(self, *, code: int) -> None:
        super().__init__("refused")
        self.code = code
        self.kept = [code]

    def __str__(self) -> str:
        return f"refused with {self.code}"


class Sealed(TimeoutError):
    """One that nothing can be derived from."""

    def __init_subclass__(cls) -> None:
        raise TypeError("sealed")


def _raised(function: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # any
        function()
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("no answer"),
        OSError(errno.ENOSPC, "full", "file"),
        KeyError("key"),
        Refused(code=3),
        ExceptionGroup("several", [ValueError("one")]),
        _raised(lambda: json.loads("{")),
        _raised(b"\xff".decode),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_is_the_exception_with_other_words(error: Exception) -> None:
    said = doubt.exception(error)
    assert isinstance(said, type(error))
    assert type(said).__name__ == type(error).__name__
    assert said.args == error.args
    for text, own in ((str(said), str(error)), (repr(said), repr(error))):
        assert "The outcome of this call is unknown" in text
        assert "Do not repeat it" in text
        assert own in text
    for name in ("filename", "errno", "code", "kept", "exceptions", "pos", "start"):
        assert getattr(said, name, None) == getattr(error, name, None)
    again = pickle.loads(pickle.dumps(said)) if not isinstance(error, Refused) else error
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert doubt.exception(said) is said
    assert "unknown" not in str(error), "the exception itself may be raised again elsewhere"


def test_an_exception_without_a_text_is_named() -> None:
    assert "(TimeoutError)" in str(doubt.exception(TimeoutError()))


def test_what_cannot_be_derived_from_is_of_its_base() -> None:
    for error, base in (
        (Sealed("no answer"), TimeoutError),
        (_raised(lambda: TypeAdapter(int).validate_python("x")), ValueError),
    ):
        said = doubt.exception(error)
        assert isinstance(said, base)
        assert type(said).__name__ == type(error).__name__
        assert str(error) in str(said)
        assert "Do not repeat it" in str(said)
