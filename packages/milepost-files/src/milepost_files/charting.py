"""Reads of a whole thread, or of chosen checkpoints: `chart`, `outline`, `rows`."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.store import Batch, Chart, Mark, Outline, Span

from milepost_files import frames
from milepost_files.changes import token
from milepost_files.index import Index, PackPlace, Row
from milepost_files.log import Log
from milepost_files.reading import Cited, Found, Reader, cite, reading

_Charted = tuple[str, list[Found], list[tuple[str, str, list[Cited]]], list[PackPlace]]
"""The token, checkpoints, writes and packs."""
_Outlined = tuple[str, list[tuple[str, Row]], dict[tuple[str, str], tuple[int, int]], list[PackPlace]]
"""The token, checkpoints with their namespaces, number and bytes of the writes of each, and packs."""


def _span(pack: PackPlace) -> Span:
    return Span(*pack[2:])


def chart(log: Log) -> Chart | None:
    """The verb `chart`."""

    def plan(index: Index) -> _Charted | None:
        if index.empty:
            return None
        rows = [
            Found(ns, namespace.rows[id], []) for ns, namespace in index.namespaces.items() for _, id in namespace.order
        ]
        writes = [
            (ns, id, cite(writes))
            for ns, namespace in index.namespaces.items()
            for id, writes in namespace.writes.items()
        ]
        return token(index), rows, writes, list(index.every_pack())

    def read(reader: Reader, planned: _Charted | None) -> Chart | None:
        if planned is None:
            return None
        mark, rows, writes, packs = planned
        return Chart(
            token=mark,
            generation=reader.generation,
            rows=tuple(reader.checkpoints(rows)),
            writes={(ns, id): tuple(reader.writes(writes)) for ns, id, writes in writes},
            packs=tuple(map(_span, packs)),
            sizes=tuple(length for _, length, *_ in packs),
        )

    return reading(log, plan, read)


def outline(log: Log) -> Outline | None:
    """The verb `outline`."""

    def plan(index: Index) -> _Outlined | None:
        if index.bare:
            return None
        rows = [(ns, row) for ns, namespace in index.namespaces.items() for row in namespace.rows.values()]
        written = {
            (ns, id): (len(writes), sum(write.length for write in writes.values()))
            for ns, namespace in index.namespaces.items()
            for id, writes in namespace.writes.items()
        }
        return token(index), rows, written, list(index.every_pack())

    def read(reader: Reader, planned: _Outlined | None) -> Outline | None:
        if planned is None:
            return None
        state, rows, written, packs = planned
        blobs = reader.blobs([row for _, row in rows])
        marks = tuple(
            Mark(
                *(ns, row.id, row.parent, row.key, row.at),
                *frames.outlined(blob),
                *written.pop((ns, row.id), (0, 0)),
            )
            for (ns, row), blob in zip(rows, blobs, strict=True)
        )
        return Outline(
            token=state,
            generation=reader.generation,
            marks=marks,
            strays=written,
            packs=tuple(map(_span, packs)),
            sizes=tuple(length for _, length, *_ in packs),
        )

    return reading(log, plan, read)


def rows(log: Log, places: Sequence[tuple[str, str]]) -> Batch:
    """The verb `rows`."""

    def plan(index: Index) -> tuple[list[Found], list[tuple[str, str, list[Cited]]]]:
        found = [Found(ns, row, []) for ns, id in places if (row := index.row(ns, id)) is not None]
        return found, [(ns, id, cite(index.writes(ns, id))) for ns, id in places]

    def read(reader: Reader, planned: tuple[list[Found], list[tuple[str, str, list[Cited]]]]) -> Batch:
        found, cited = planned
        written = reader.writes([write for *_, writes in cited for write in writes])
        places = [(ns, id) for ns, id, writes in cited for _ in writes]
        return Batch(
            rows=tuple(reader.checkpoints(found)),
            writes=tuple((*place, row) for place, row in zip(places, written, strict=True)),
        )

    return reading(log, plan, read) or Batch()
