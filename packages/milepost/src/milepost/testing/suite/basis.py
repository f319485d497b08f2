"""How a behaviour becomes tests, under pytest and nothing else."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest

from milepost.testing.lab import FLAVOURS, Flavour, Lab, Subject, drive

Text = Callable[..., Coroutine[Any, Any, None]]


def needs(*capabilities: str) -> Callable[[Text], Text]:
    """The behaviour is only asked of stores that declare these capabilities."""

    def mark(text: Text) -> Text:
        vars(text)["needs"] = frozenset(capabilities)
        return text

    return mark


class Behaviours:
    """Base of the suite's classes. To get the tests of one, or of `Everything`, subclass it and set `subject`.

    Every ``async def test_…(self, lab, …)`` becomes a test that runs in both flavours, without a plugin. Behaviours
    that need a capability which the subject does not declare are left out. Raises ``TypeError`` for two bases that have
    different tests of one name, of which only one would run.
    """

    subject: ClassVar[type[Subject]]
    pytestmark: ClassVar[list[Any]] = [pytest.mark.parametrize("flavour", FLAVOURS)]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, text in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(text):
                setattr(cls, name, _test(text))
        for name, _ in tests_of(cls):
            found = {id(test): base for base in cls.__bases__ if (test := getattr(base, name, None)) is not None}
            if len(found) > 1 and name not in vars(cls):
                raise TypeError(f"{' and '.join(base.__name__ for base in found.values())} both have a {name}")
        subject = getattr(cls, "subject", None)
        if subject is not None:
            for name, test in tests_of(cls):
                if not getattr(test, "needs", frozenset()) <= subject.capabilities:
                    setattr(cls, name, None)


def tests_of(cls: type[Behaviours]) -> Iterator[tuple[str, Any]]:
    """The names of a class's tests, and the functions."""
    for name in dir(cls):
        if name.startswith("test_") and (test := getattr(cls, name)) is not None:
            yield name, test


def cases_of(cls: type[Behaviours]) -> Iterator[tuple[str, Callable[[Path, Flavour], None]]]:
    """Every single case of a class, to be run without pytest: its name, and a function of directory and flavour."""
    for name, test in tests_of(cls):
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        choices: list[dict[str, Any]] = [{}]
        for mark in marks:
            names, values = mark.args[:2]
            alone = isinstance(names, str)
            given = [
                value.values if isinstance(value, pytest.ParameterSet) else [value] if alone else value
                for value in values
            ]
            names = [names] if alone else names
            choices = [{**chosen, **dict(zip(names, each, strict=True))} for chosen in choices for each in given]
        for number, chosen in enumerate(choices):
            label = f"{name}[{number}]" if chosen else name
            yield label, functools.partial(_run, cls, test, chosen)


def _run(cls: type[Behaviours], test: Any, chosen: dict[str, Any], directory: Path, flavour: Flavour) -> None:
    test(cls(), tmp_path=directory, flavour=flavour, **chosen)


def _test(text: Text) -> Callable[..., None]:
    @functools.wraps(text)
    def test(self: Behaviours, tmp_path: Path, flavour: Flavour, **chosen: Any) -> None:
        def behaviour(lab: Lab) -> Coroutine[Any, Any, None]:
            return text(self, lab, **chosen)

        drive(behaviour, self.subject(tmp_path), flavour)

    # What pytest is to see is the wrapper's own signature, with the parameters of the text after those.
    del cast("Any", test).__wrapped__
    of_text = list(inspect.signature(text).parameters.values())
    fixed = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("tmp_path", "flavour")]
    cast("Any", test).__signature__ = inspect.Signature([of_text[0], *fixed, *of_text[2:]])
    return test
