"""Exceptions that say that an outcome is unknown."""

from __future__ import annotations

import errno
import json
import pickle
from collections.abc import Callable
from email.message import Message
from typing import Any, ClassVar, Self, cast
from urllib.error import HTTPError

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


class Coded(Exception):
    """One that keeps its classes by their codes."""

    by_code: ClassVar[dict[int, type[Coded]]] = {}
    code: int

    def __init_subclass__(cls) -> None:
        Coded.by_code[cls.code] = cls


class Busy(Coded):
    """One of them."""

    code = 503


class Listed(type):
    """A metaclass with a list."""

    every: ClassVar[list[type]] = []

    def __new__(cls, *given: Any) -> Any:
        """Listed."""
        found = super().__new__(cls, *given)
        Listed.every.append(found)
        return found


class OfList(Exception, metaclass=Listed):
    """One of such a class."""


class Several(ExceptionGroup[Exception]):
    """As in Python's documentation."""

    code: int

    def __new__(cls, errors: list[Exception], code: int) -> Self:  # pyright: ignore[reportInconsistentConstructor]
        """With a code."""
        made = super().__new__(cls, f"exit code: {code}", errors)
        made.code = code
        return made


class Both(KeyError, TimeoutError):
    """Of two forms."""


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
        cast("Any", Several)([ValueError("one")], 3),
        Both("both"),
        Busy("busy"),
        OfList("listed"),
        ImportError("no module", name="module", path="path"),
        _raised(lambda: getattr(object(), "nothing")),  # noqa: B009
        HTTPError("http://localhost", 503, "busy", Message(), None),
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
    for name in ("filename", "errno", "code", "kept", "exceptions", "pos", "start", "name", "path", "obj", "message"):
        assert getattr(said, name, None) == getattr(error, name, None)
    assert said.__reduce_ex__(4)[0] is error.__reduce_ex__(4)[0]
    assert doubt.exception(said) is said
    assert "unknown" not in str(error), "the exception itself may be raised again elsewhere"


def test_an_exception_without_a_text_is_named() -> None:
    assert "(TimeoutError)" in str(doubt.exception(TimeoutError()))


def test_its_class_makes_others_without_these_words() -> None:
    said = doubt.exception(TimeoutError("no answer"))
    again = type(said)("while paying")
    assert (type(again), str(again)) == (TimeoutError, "while paying")
    assert type(pickle.loads(pickle.dumps(said))) is TimeoutError
    doubt.exception(Busy("busy"))
    assert Coded.by_code == {503: Busy}
    doubt.exception(OfList("listed"))
    assert Listed.every == [OfList]


def test_notes_are_its_own() -> None:
    error = TimeoutError("no answer")
    error.add_note("one")
    said = doubt.exception(error)
    said.add_note("two")
    assert (error.__notes__, said.__notes__) == (["one"], ["one", "two"])


def test_what_cannot_be_derived_from_is_of_its_base() -> None:
    error = _raised(lambda: TypeAdapter(int).validate_python("x"))
    said = doubt.exception(error)
    assert isinstance(said, ValueError)
    assert type(said).__name__ == type(error).__name__
    assert str(error) in str(said)
    assert "Do not repeat it" in str(said)
