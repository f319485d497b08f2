"""What ``module:name`` on the command line stands for: a schema, a saver, or a graph."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from milepost.saver import Saver
from milepost.schema import Release, Schema, Schemas, Shape

from milepost_inspector.errors import UsageError

Shapes = dict[str, tuple[str, Shape, Iterable[str]]]
"""Namespace -> name of the state, its shape, the nodes."""


def find(text: str) -> Any:
    """The object that ``module:name`` names; what a function of that name returns. Raises `UsageError`."""
    found = named(text)
    made = callable(found) and not isinstance(found, type) and not hasattr(found, "get_graph")
    if not made:
        return found
    try:
        return found()
    except Exception as error:
        raise UsageError(f"calling {text!r} without arguments raised {_told(error)}") from error


def named(text: str) -> Any:
    """The object that ``module:name`` names, looked for from the working folder. Raises `UsageError`."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise UsageError(f"{text!r} names nothing: write module:name, such as app.graph:graph")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        raise UsageError(f"{module!r} cannot be imported: {_told(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"there is no {name!r} in {module!r}")
        found = getattr(found, part)
    return found


def _told(error: Exception) -> str:
    """An error of the application's code, with where it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    where = (
        "" if isinstance(error, SyntaxError | ImportError) else f" ({frames[-1].filename}, line {frames[-1].lineno})"
    )
    return f"{type(error).__name__}: {error}{where}"


def saver_or_schemas(text: str) -> Saver | Schema | Mapping[str, Schema]:
    """What ``--schema`` names. Raises `UsageError`."""
    found = find(text)
    if hasattr(found, "get_graph") and isinstance(found.checkpointer, Saver):
        found = found.checkpointer
    if isinstance(found, Saver | Schema):
        return found
    if isinstance(found, Mapping):
        return cast("Mapping[str, Schema]", found)
    raise UsageError(
        f"{text!r} is {type(found).__name__}: it must be a Schema, a dict of them, a Saver, or a graph with one"
    )


def release(target: str, schema: str | None) -> Release:
    """The release that the code here is: what `target` names, and the schemas of `schema`. Raises `UsageError`."""
    found = find(target)
    shapes = _shapes(found) if hasattr(found, "get_graph") else None
    given: Any = saver_or_schemas(schema) if schema is not None else found
    if hasattr(given, "get_graph"):
        given = given.checkpointer
    if isinstance(given, Saver):
        return Release.of(given.schemas, shapes)
    if isinstance(given, Schema | Mapping):
        return Release.of(Schemas(cast("Any", given)), shapes)
    if shapes is None:
        raise UsageError(f"{target!r} is {type(found).__name__}: it must be a compiled graph, a Schema, or a Saver")
    return Release.of(None, shapes)


def _shapes(graph: Any) -> Shapes:
    shapes: Shapes = {}
    for ns, one in (("", graph), *graph.get_subgraphs(recurse=True)):
        builder = getattr(one, "builder", None)
        states = list(getattr(builder, "schemas", ()))
        if builder is None or not states:
            continue  # a graph without a state of named keys, as of the functional API
        shape = Shape.join(Shape.of(state) for state in states if hasattr(state, "__annotations__"))
        shapes[ns] = (builder.state_schema.__name__, shape, one.nodes)
    return shapes
