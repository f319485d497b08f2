"""Namespaces of subgraphs that a migration moves while they are read, and writes of nodes that are no more."""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict, cast

import milepost
import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it
from milepost import schema as ms
from milepost.errors import SchemaMismatch
from milepost.maintenance import drop_checkpoints
from milepost.places import COUNTERS, WAS
from milepost.saver import Saver
from milepost.testing.chain import at, checkpoint
from milepost.testing.suite.free import Lines

METADATA: dict[str, Any] = {"source": "loop", "step": 1}


class State(TypedDict, total=False):
    n: int
    d: list[str]


def _schema(version: int, *upgrades: ms.Step, **options: Any) -> milepost.Schema:
    return milepost.Schema(State, version=version, name="s", upgrades=[*upgrades], **options)


def _same(channel: str, value: Any) -> list[tuple[str, Any]]:
    return [(channel, value)]


LOWER = ms.map_state(
    lambda state: {**state, "d": [line.lower() for line in state.get("d", [])]}, writes=_same, deltas={"d": Lines()}
)
OLD = {"": _schema(1), "m": _schema(1)}
NEW = {"": _schema(2, ms.Step(1, 2, ms.rename_node("m", "z"))), "z": _schema(2, ms.Step(1, 2, LOWER))}


def _put(saver: Saver, ns: str, id: str, values: dict[str, Any], *, parent: str | None = None, since: int) -> None:
    """A checkpoint, so many steps `since` a snapshot of the delta channel d."""
    versions: dict[str, str | int | float] = dict.fromkeys((*values, "d"), f"{int(id):032}.0")
    metadata = {**METADATA, "parents": {"": "0001"} if ns else {}, COUNTERS: {"d": [since, since]}}
    saver.put(at("t", ns, parent), checkpoint(id, values, versions), cast("Any", metadata), versions)


def _old() -> Saver:
    saver = milepost.connect("memory:", schema=OLD)
    _put(saver, "", "0001", {"n": 1}, since=0)
    _put(saver, "m", "0002", {"n": 1, "d": _DeltaSnapshot(["S"])}, since=0)
    saver.put_writes(at("t", "m", "0002"), [("d", "L")], "task")
    _put(saver, "m", "0003", {"n": 2}, parent="0002", since=1)
    return saver


def _migrates(patch: pytest.MonkeyPatch, saver: Saver, verb: str, *, after: bool) -> None:
    """Have the thread migrated when `verb` of the store is asked for namespace "m" for the first time."""
    cls, backend, done = type(saver.blocking_side().store), saver.backend, list[bool]()
    ask = getattr(cls, verb)

    def migrate() -> None:
        done.append(True)
        assert [told.refused for told in Saver(backend, schema=NEW).migrate(history=True)] == [()]

    async def asked(self: Any, *given: Any, **options: Any) -> Any:
        due = not done and "m" in (given[:2] if verb == "get" else [getattr(one, "ns", "") for one in given[:2]])
        if due and not after:
            migrate()
        answer = await ask(self, *given, **options)
        if due and after:
            migrate()
        return answer

    patch.setattr(cls, verb, asked)


def test_a_put_into_what_has_moved_is_refused_whatever_was_written_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With durability "async", tasks write to a checkpoint whose put is still under way."""
    old = _old()
    assert [told.refused for told in Saver(old.backend, schema=NEW).migrate(history=True)] == [()]
    cls = type(old.blocking_side().store)
    put, written = cls.put, list[bool]()

    async def puts(self: Any, thread: str, row: Any, *given: Any, **options: Any) -> Any:
        answer = await put(self, thread, row, *given, **options)
        if row.ns == "m" and not written:
            written.append(True)
            old.put_writes(at("t", "m", "0004"), [("d", "L")], "task")
        return answer

    monkeypatch.setattr(cls, "put", puts)
    with pytest.raises(SchemaMismatch, match=r"has moved"):
        _put(old, "m", "0004", {"n": 3}, parent="0003", since=2)
    assert written
    new = Saver(old.backend, schema=NEW)
    assert [told.refused for told in new.migrate(history=True)] == [()]
    assert [one.checkpoint["id"] for one in new.list(at("t", "z"))] == ["0003", "0002"]


def test_a_namespace_that_moves_before_it_is_read_is_not_taken_for_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Saver(_old().backend, schema=NEW)
    # What its name was is found out first.
    find = new.operations.space

    async def found(*given: Any, **options: Any) -> str:
        space = await find(*given, **options)
        if space == "m":
            _migrates(monkeypatch, new, "get", after=False)
        return space

    monkeypatch.setattr(new.operations, "space", found)
    read = new.get_tuple(at("t", "z"))
    assert read is not None
    assert read.checkpoint["channel_values"] == {"n": 2, "d": ["s", "l"]}


def test_what_moves_along_after_it_was_put_was_not_put_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    old = _old()
    assert old.get_tuple(at("t", "m")) is not None
    # Something else goes meanwhile, so that it is asked whether the namespace has moved.
    other = Saver(old.backend, schema=OLD)
    _put(other, "k", "0004", {"n": 1}, since=0)
    asyncio.run(drop_checkpoints(other.blocking_side().store, other.operations.codec, "t", {("k", "0004")}))
    _migrates(monkeypatch, old, "put", after=True)
    _put(old, "m", "0005", {"n": 3}, parent="0003", since=2)
    read = Saver(old.backend, schema=NEW).get_tuple(at("t", "z"))
    assert read is not None
    assert read.checkpoint["id"] == "0005"
    assert old.get_tuple(at("t", "k")) is None


def test_what_moves_while_it_is_listed_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Saver(_old().backend, schema=NEW)
    _migrates(monkeypatch, new, "page", after=True)
    values = [one.checkpoint["channel_values"] for one in new.list(at("t", "z"))]
    assert values == [{"n": 2, "d": ["s", "l"]}, {"n": 1, "d": ["s"]}]


def test_what_a_dropped_node_wrote_goes_through_each_change_once() -> None:
    """Also where a release of another version wrote to the same step."""
    wrapped = ms.map_channel("d", lambda lines: [f"<{line}>" for line in lines], update=lambda line: f"<{line}>")
    first = milepost.connect("memory:", schema=_schema(1))
    second = Saver(first.backend, schema=_schema(2, ms.Step(1, 2), readable_from=1))
    third = Saver(first.backend, schema=_schema(3, ms.Step(1, 2), ms.Step(2, 3, ms.drop_node("a"), wrapped)))
    _put(second, "", "0001", {"n": 1, "d": _DeltaSnapshot(["s"])}, since=0)
    second.put_writes(at("t", "", "0001"), [("d", "one")], "task a", "~__pregel_pull, a")
    first.put_writes(at("t", "", "0001"), [("n", 5)], "task b", "~__pregel_pull, b")
    _put(second, "", "0002", {"n": 2}, parent="0001", since=1)
    for migrate in (False, True):
        if migrate:
            assert [told.refused for told in third.migrate(history=True)] == [()]
        history = third.get_delta_channel_history(config=at("t", "", "0002"), channels=["d"])["d"]
        assert [value for _, _, value in history["writes"]] == ["<one>"]


@pytest.mark.parametrize("finalised", [False, True])
def test_only_an_older_release_is_refused_a_memory_that_has_moved(finalised: bool) -> None:
    """A newer one may give the name to another node, also when it does not declare the upgrade any more."""
    old = _old()
    assert [told.refused for told in Saver(old.backend, schema=NEW).migrate(history=True)] == [()]
    if finalised:
        assert [told.refused for told in Saver(old.backend, schema=NEW).migrate(mode="finalise")] == [()]
    newer: list[Any] = [{"": _schema(2), "z": _schema(2)}, {"": _schema(3, ms.Step(2, 3))}, NEW, None]
    for schema in newer:
        assert Saver(old.backend, schema=schema).get_tuple(at("t", "m")) is None
    if not finalised:
        with pytest.raises(SchemaMismatch, match="has moved"):
            Saver(old.backend, schema=OLD).get_tuple(at("t", "m"))


def test_what_looks_like_a_note_of_a_migration_is_none() -> None:
    versions: dict[str, str | int | float] = {"n": "1"}
    for metadata in ({WAS: 5}, {WAS: ["1"]}, {WAS: None}):
        old = milepost.connect("memory:", schema=OLD)
        old.put(at("t", ""), checkpoint("0001", {"n": 1}, versions), cast("Any", {**METADATA, **metadata}), versions)
        old.put(at("t", "m"), checkpoint("0002", {"n": 1}, versions), cast("Any", METADATA), versions)
        new = Saver(old.backend, schema=NEW)
        assert [told.refused for told in new.migrate(history=True)] == [()]
        read = new.get_tuple(at("t", ""))
        assert read is not None
        assert WAS not in read.metadata


def test_calls_are_by_the_first_version_that_steps_lead_from() -> None:
    schema = _schema(3, ms.Step(2, 3, ms.rename_node("x", "y")))
    assert schema.renames_of_calls([1, 2], 3) == (("x", "y"),)
    assert schema.renames_of_calls([1], 3) == ()
    assert schema.renames_of_calls([], 2) == (("x", "y"),)
