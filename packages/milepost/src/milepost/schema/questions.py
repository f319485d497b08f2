"""The ids of questions. LangGraph makes them of the names of nodes and tasks: a renamed one asks under another id."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from milepost.schema.changes import Change, NotDeclared
from milepost.schema.image import INTERRUPT, Image, Write
from milepost.schema.schemas import Schemas, path_of
from milepost.schema.spaces import backwards
from milepost.schema.tasks import ANSWERS, Tasks, question_id

Below = Callable[[str], Awaitable[Image | None]]
"""The latest checkpoint of a subgraph's namespace, by the names of now."""


Ids = dict[str, str | None]
"""Every id that questions have, or had under former names -> the one of now; None where it is that of two of them."""


async def question_ids(
    schemas: Schemas, image: Image, below: Below, former: Sequence[str] = ()
) -> dict[tuple[str, int], Ids]:
    """For each write that asks, by task and index, the ids of its questions.

    `image` is the checkpoint by the names of now; `former` are namespaces that it may have had itself. Between writes, the
    same id may stand for different questions: where nodes exchanged their names, so did their questions.
    """
    asked: dict[tuple[str, int], Ids] = {}
    changes = (Change(), *backwards(schemas.of(image.ns)))
    for write in image.writes:
        if write.channel != INTERRUPT:
            continue
        own, spaces = _spaces(image, write, changes, former)
        if own is None:
            continue
        nested = False
        parts: list[Ids] = []
        for question in questions_of(write.value):
            found = _ids(question, own, spaces)
            nested = nested or not found
            parts.append(found)
        if nested:
            above = [*spaces, *map(path_of, spaces)]
            async for inner in _inner(own, below):
                parts += (await question_ids(schemas, inner, below, [one for one in above if one != inner.ns])).values()
        asked[write.task, write.idx] = merged(schemas, parts)
    every = merged(schemas, asked.values())
    for write in image.writes:
        if write.channel == INTERRUPT:
            ids = asked.setdefault((write.task, write.idx), {})
            for question in questions_of(write.value):
                _settle(ids, getattr(question, "id", ""), every, write)
    return asked


def _settle(ids: Ids, id: str, every: Ids, write: Write) -> None:
    """Make sure that `ids`, of `write`, say what `id` is now: what a task asks that it has called is another write's."""
    if id not in ids and id in every:
        ids[id] = every[id]
    if id in ids and ids[id] is None:
        raise NotDeclared(
            f"of the questions that task {write.task!r} waits for, two have or had the id {id!r}, for nodes have exchanged names "
            "or passed them on: finish the thread with the release that it waits in"
        )


def merged(schemas: Schemas, parts: Iterable[Ids]) -> Ids:
    """The ids of different questions together."""
    ids: Ids = {}
    for id, now in (pair for part in parts for pair in part.items()):
        if ids.setdefault(id, now) != now:
            # Who has an id now that another one's former name gives: then nothing was stored under that.
            ids[id] = id if id in (now, ids[id]) and not schemas.passes_names_on else None
    return ids


def asked_as(ids: Mapping[str, str | None], value: Any) -> Any:
    """A write to the channel of questions, with their ids of now."""
    if isinstance(value, list | tuple):
        return type(value)(asked_as(ids, one) for one in value)
    now = ids.get(getattr(value, "id", ""))
    if now is None or now == value.id:
        return value
    asked = copy.copy(value)
    asked.id = now
    return asked


def _spaces(
    image: Image, write: Write, changes: Sequence[Change], former: Sequence[str]
) -> tuple[str | None, Sequence[str]]:
    """The namespace of the task of `write`, if that is known, and those that it may have had before."""
    own = Tasks(image).space_of(write)
    spaces: dict[str, None] = {}
    for space in (image.ns, *former):
        tasks = Tasks(image, space)
        for change in changes:
            try:
                moved = tasks.moved(change, write)
            except NotDeclared:
                continue
            if moved is not None and moved.before:
                own = own or moved.before
                spaces[moved.after] = None
    return own, [space for space in spaces if space != own]


def _ids(question: Any, own: str, spaces: Sequence[str]) -> Ids:
    """None for a question that a subgraph has asked."""
    id = getattr(question, "id", None)
    for answered in range(ANSWERS):
        now = question_id(own, answered)
        before = [question_id(space, answered) for space in spaces]
        if id == now or id in before:
            ids: Ids = dict.fromkeys((now, *before), now)
            return ids
    return {}


def questions_of(value: Any) -> Sequence[Any]:
    """LangGraph's ``Interrupt``s in a write to the channel of questions."""
    return value if isinstance(value, list | tuple) else (value,)


async def _inner(own: str, below: Below) -> AsyncIterator[Image]:
    """The subgraphs in a task: one that remembers, or the calls that it has made, the second one with a number."""
    kept = await below(path_of(own))
    if kept is not None:
        yield kept
    for number in count():
        found = await below(f"{own}|{number}" if number else own)
        if found is None:
            return
        yield found
