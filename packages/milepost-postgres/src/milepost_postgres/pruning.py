"""What plans a prune and carries it out, as requests and answers: the verbs `outline` and `drop`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap
from typing import Any

from milepost.collector import unhurried
from milepost.store import Drop, Mark, Outline, Span

from milepost_postgres import wire
from milepost_postgres.queries import Queries
from milepost_postgres.request import Parameters, Request

Answers = Sequence[Sequence[tuple[Any, ...]]]


def outlining(queries: Queries, thread: str) -> Request:
    """Asks for an outline. The state comes first: what is written after that is in the outline, and not in the token."""
    given: Parameters = {"thread": wire.digest(thread)}
    names = ("outline_head", "outline", "outline_packs")
    return Request("outline a thread", tuple(queries[name].step(given) for name in names))


def outlined(answers: Answers) -> Outline | None:
    """What `outlining` was answered."""
    head, found, packs = answers
    if not head or not (found or packs):
        return None
    ((generation, token),) = head
    with unhurried(len(found)):
        marks = tuple(
            Mark(ns, id, parent, key or id, at, size, pinned, writes or 0, written or 0)
            for ns, id, parent, key, at, size, pinned, writes, written in found
            if at is not None
        )
    return Outline(
        token=token,
        generation=generation,
        marks=marks,
        strays={(ns, id): (writes, written) for ns, id, _, _, at, _, _, writes, written in found if at is None},
        packs=tuple(Span(*span) for *span, _ in packs),
        sizes=tuple(size for *_, size in packs),
    )


def dropping(queries: Queries, thread: str, drop: Drop, token: str, fresh: bytes) -> Request:
    """Asks for a step, which leaves the thread at the generation `fresh`."""
    names: Parameters = {"thread": wire.digest(thread), "fresh": fresh}
    spans = drop.packs
    delete: Parameters = {
        **names,
        "places": wire.byteas(starmap(wire.place, drop.checkpoints)),
        "children": wire.byteas(wire.place(ns, id) for ns, id, _ in drop.parents),
        "parents": wire.texts(parent for _, _, parent in drop.parents),
        "writers": wire.int8s(span.writer for span in spans),
        "firsts": wire.int8s(span.first for span in spans),
        "counts": wire.int8s(span.count for span in spans),
    }
    steps = (
        queries["lock"].step({"thread": names["thread"]}),
        queries["drop_begin"].step({**names, "token": wire.text(token)}),
        queries["drop"].step(delete),
        queries["drop_repacked"].step({**names, **wire.packs(drop.repacked)}),
        queries["drop_end"].step(names),
    )
    return Request("drop checkpoints", steps)


def dropped(answers: Answers, token: str, fresh: bytes) -> str | None:
    """What `dropping` was answered: the token of what is left. "" for a repetition, after which others may have put."""
    locked, begun, gone, *_ = answers
    if not begun:
        return None
    generation = int.from_bytes(fresh)
    if locked[0][1] == generation:
        return ""
    numbers = map(int, token.split(":")[1:])
    left = (number - int(some) for number, some in zip(numbers, gone[0], strict=True))
    return ":".join(map(str, (generation, *left)))
