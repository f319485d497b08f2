"""Schemas: what one release stored and another one reads."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it
from langgraph.types import Send
from typing_extensions import TypedDict

from milepost import schema as ms
from milepost.errors import InvalidConfig, SchemaMismatch, Unserializable
from milepost.places import COUNTERS
from milepost.schema import Schema, Step
from milepost.testing.chain import Chain, at, checkpoint, inside
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours


class One(TypedDict, total=False):
    """The state of the first release."""

    a: int
    b: list[str]
    gone: str


class Two(TypedDict, total=False):
    """The state of a later one."""

    c: int
    b: list[str]
    new: str


class Drifted(TypedDict, total=False):
    """The first state, changed without a new version."""

    a: str
    b: list[str]
    more: int


@dataclasses.dataclass
class Moved:
    """A class where it is now."""

    name: str


@contextmanager
def class_for_now(name: str) -> Generator[type]:
    """A class whose module is gone afterwards."""
    made = dataclasses.make_dataclass(name, ["name"])
    made.__module__ = "milepost_gone"
    module = ModuleType("milepost_gone")
    vars(module)[name] = made
    sys.modules["milepost_gone"] = module
    try:
        yield made
    finally:
        del sys.modules["milepost_gone"]


def _for(node: str, channel: str, value: Any) -> tuple[str, Any]:
    """A value of a channel, where both are about that node."""
    sends = value if isinstance(value, list) else [value] if isinstance(value, Send) else ()
    named = [Send(one.node.format(node), one.arg) for one in sends]
    return channel.format(node), named if isinstance(value, list) else named[0] if named else value


def _upper(lines: list[str]) -> list[str]:
    return [line.upper() for line in lines]


STEP = Step(
    1,
    2,
    ms.rename_channel("a", "c"),
    ms.drop_channel("gone"),
    ms.add_channel("new", "default"),
    ms.map_channel("b", _upper),
    ms.rename_class("milepost_gone:Was", Moved),
)
FIRST = Schema(One, version=1, name="s")
OTHERS = ("new", "other", "n+m")
SECOND = Schema(Two, version=2, name="s", upgrades=[STEP])


class Releases(Behaviours):
    """What one release stored, as another one reads it."""

    async def test_the_version_that_wrote_it_reads_it_as_it_is(self, lab: Lab) -> None:
        saver = lab.open(schema=FIRST)
        chain = Chain(saver)
        await chain.put({"a": 1, "b": ["x"]})
        await chain.writes(("a", 2), ("__error__", "e"))
        for reader in (saver, lab.open(schema=FIRST), lab.open()):
            found = await reader.got(chain.latest)
            assert found.checkpoint["channel_values"] == {"a": 1, "b": ["x"]}
            assert found.pending_writes == [("task", "__error__", "e"), ("task", "a", 2)]
            assert [event.outcome for event in reader.events if event.op == "schema"] == []

    @pytest.mark.parametrize("kind", ["newer", "unknown", "unstamped", "no step"])
    async def test_what_nobody_declared_is_refused(self, lab: Lab, kind: str) -> None:
        writer, reader, found, expected = {
            "newer": (SECOND, FIRST, 2, 1),
            "unknown": (Schema(One, version=1, name="other"), FIRST, 1, 1),
            "unstamped": (None, FIRST, None, 1),
            "no step": (FIRST, Schema(Two, version=3, name="s", upgrades=[Step(2, 3, ms.drop_channel("x"))]), 1, 3),
        }[kind]
        chain = Chain(lab.open(schema=writer))
        await chain.put({"b": ["x"]})
        await chain.put({"b": ["x"]}, changed=())
        await chain.writes(("b", ["y"]))
        before = await chain.saver.stats()
        refused = lab.open(schema=reader)
        for ask in (
            lambda: refused.got(chain.latest),
            lambda: refused.got(chain.at("0001")),
            lambda: refused.list(chain.latest),
            lambda: refused.history(chain.latest, ["b"]),
        ):
            with pytest.raises(SchemaMismatch) as caught:
                await ask()
            assert caught.value.thread == "thread"
            assert caught.value.checkpoint in ("0001", "0002")
            assert (caught.value.found, caught.value.expected) == (found, expected)
            assert "thread" in caught.value.message
        assert await chain.saver.stats() == before
        assert (await chain.values()) == {"b": ["x"]}

    async def test_an_upgrade_covers_all_that_is_kept_under_a_name(self, lab: Lab) -> None:
        old = lab.open(schema=FIRST)
        start = {"a": 5, "gone": "g", "other": 1}
        await old.put(
            at("t"),
            checkpoint(
                "01",
                {"a": 1, "b": ["x"], "gone": "g", "__start__": start},
                {"a": 3, "b": 2, "gone": 3, "__start__": 1},
                versions_seen={"n": {"a": 2, "gone": 1}, "__interrupt__": {"gone": 1, "b": 2}},
                updated_channels=["a", "gone"],
            ),
            {"source": "loop", "step": 1, "parents": {}, "counters_since_delta_snapshot": {"gone": (1, 1)}},
        )
        await old.put_writes(at("t", id="01"), [("a", 7), ("b", ["y"]), ("gone", "g")], "1")
        await old.put_writes(at("t", id="01"), [("gone", "g")], "2")
        reader = lab.open(schema=SECOND)
        found = await reader.got(at("t"))
        inner = found.checkpoint
        assert inner["channel_values"] == {
            "c": 1,
            "b": ["X"],
            "new": "default",
            "__start__": {"c": 5, "other": 1},
        }
        assert inner["channel_versions"] == {"c": 3, "b": 2, "new": 3, "__start__": 1}
        assert inner["versions_seen"] == {"n": {"c": 2}, "__interrupt__": {"b": 2, "new": 3}}
        assert inner["updated_channels"] == ["c"]
        assert found.metadata.get("counters_since_delta_snapshot") == {}
        # A task whose only output is dropped has finished all the same.
        assert found.pending_writes == [
            ("1", "c", 7),
            ("1", "b", ["Y"]),
            ("1", "__no_writes__", None),
            ("2", "__no_writes__", None),
        ]
        assert [one.checkpoint for one in await reader.list(at("t"))] == [inner]

    async def test_reading_stores_nothing(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"a": 1, "b": ["x"]})
        before = await chain.saver.stats()
        reader = lab.open(schema=SECOND)
        await reader.got(chain.latest)
        await reader.list(chain.latest)
        assert await chain.saver.stats() == before
        assert await lab.open(schema=FIRST).got(chain.latest) == await chain.saver.got(chain.latest)

    async def test_what_is_put_after_an_upgrade_is_of_the_new_version(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"a": 1, "b": [f"line {number} " + "words " * 40 for number in range(40)]})
        new = lab.open(schema=SECOND)
        found = await new.got(chain.latest)
        # LangGraph names no new version for what an upgrade has changed.
        inner: Any = {**found.checkpoint, "id": "0002"}
        await new.put(found.config, inner, found.metadata, {})
        inner = {**inner, "id": "0003"}
        await new.put(at("thread", id="0002"), inner, found.metadata, {})
        for id in ("0002", "0003"):
            again = await lab.open(schema=Schema(Two, version=2, name="s")).got(at("thread", id=id))
            assert_same(again.checkpoint["channel_values"], found.checkpoint["channel_values"])
        with pytest.raises(SchemaMismatch):
            await lab.open(schema=FIRST).got(at("thread"))

    async def test_two_releases_write_to_one_checkpoint(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"a": 1})
        await chain.writes(("a", 2), ("__error__", "old"), task="1")
        new = lab.open(schema=SECOND)
        await new.got(chain.latest)
        await new.put_writes(chain.at(), [("c", 3), ("__error__", "new")], "2")
        found = await new.got(chain.latest)
        assert found.pending_writes == [
            ("1", "__error__", "old"),
            ("1", "c", 2),
            ("2", "__error__", "new"),
            ("2", "c", 3),
        ]
        with pytest.raises(SchemaMismatch):
            await lab.open(schema=FIRST).got(chain.latest)

    async def test_the_history_of_a_delta_channel_is_upgraded(self, lab: Lab) -> None:
        old = Schema(One, version=1, name="s")
        renamed = Schema(
            Two,
            version=3,
            name="s",
            upgrades=[
                Step(1, 2, ms.map_channel("b", _upper)),
                Step(2, 3, ms.rename_channel("b", "d")),
            ],
        )
        chain = Chain(lab.open(schema=old))
        await chain.put({"b": _DeltaSnapshot(["seed"]), "a": 1})
        await chain.writes(("b", ["one"]), task="1")
        await chain.put({"a": 2}, changed=("a", "b"))
        await chain.writes(("b", ["two"]), ("a", 5), task="2")
        await chain.put({"a": 3}, changed=("a", "b"))
        new = lab.open(schema=renamed)
        await new.got(chain.latest)
        await new.put_writes(chain.at(), [("d", ["three"])], "3")
        head = checkpoint("0004", {"a": 4}, {"a": 9, "d": 9})
        await new.put(chain.at(), head, {"source": "loop", "step": 4, "parents": {}})
        (channel,) = (await new.history(at("thread"), ["d"])).values()
        assert channel["writes"] == [("1", "d", ["ONE"]), ("2", "d", ["TWO"]), ("3", "d", ["three"])]
        assert channel.get("seed") == _DeltaSnapshot(["SEED"])
        assert await new.history(at("thread"), ["b"]) == {"b": {"writes": []}}

    async def test_namespaces_have_schemas_of_their_own(self, lab: Lab) -> None:
        both = {"": FIRST, "child": Schema(One, version=1, name="child")}
        old = lab.open(schema=both)
        for ns in ("", "child:1|2", "stranger:1"):
            await old.put(at("t", ns), checkpoint("01", {"a": 1}), {"step": 1})
        new = lab.open(schema={"": SECOND, "child": both["child"]})
        assert (await new.got(at("t"))).checkpoint["channel_values"] == {"c": 1, "new": "default"}
        for ns in ("child:1|2", "stranger:1"):
            assert (await new.got(at("t", ns))).checkpoint["channel_values"] == {"a": 1}
        with pytest.raises(SchemaMismatch) as caught:
            await lab.open(schema={"child": Schema(One, version=2, name="child")}).list(at("t", None))
        assert caught.value.ns == "child:1|2"

    async def test_a_shape_that_changed_without_a_version_is_told(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"a": 1, "gone": "g"})
        reader = lab.open(schema=Schema(Drifted, version=1, name="s"))
        for _ in range(2):
            assert (await reader.got(chain.latest)).checkpoint["channel_values"] == {"a": 1, "gone": "g"}
        drifts = [event.error for event in reader.events if event.outcome == "drift"]
        assert len(drifts) == 1, f"told {len(drifts)} times"
        assert "appeared: 'more'; vanished: 'gone'; changed: 'a'" in drifts[0]
        with pytest.raises(SchemaMismatch, match="appeared: 'more'; vanished: 'gone'; changed: 'a'"):
            await lab.open(schema=Schema(Drifted, version=1, name="s", drift="refuse")).got(chain.latest)

    @pytest.mark.parametrize("loaded", [True, False])
    async def test_channels_that_a_graph_does_not_know_are_told_before_they_go(self, lab: Lab, loaded: bool) -> None:
        writer = lab.open()
        chain = Chain(writer)
        await chain.put({"a": 1, "b": 2, "d": _DeltaSnapshot([1])})
        saver = writer
        if loaded:
            saver = lab.open()
            await saver.got(chain.latest)
        versions = (await writer.got(chain.latest)).checkpoint["channel_versions"]
        emptied = {**versions, "b": "9"}
        writer.events.clear()
        await saver.put(chain.at(), checkpoint("0002", {}, emptied), {"step": 2}, {"b": "9"})
        drifts = [event.error for event in saver.events if event.outcome == "drift"]
        # "b" became empty; "d" is a delta channel, whose value LangGraph does not repeat.
        assert len(drifts) == 1, f"told {len(drifts)} times"
        assert "values for 'a', which" in drifts[0]
        assert (await saver.got(at("thread", id="0001"))).checkpoint["channel_values"]["a"] == 1

    async def test_what_a_graph_does_not_take_up_is_told(self, lab: Lab) -> None:
        chain = Chain(lab.open())
        snapshot = {"d": _DeltaSnapshot([1]), "e": _DeltaSnapshot([2]), "__start__": {"entered": 1, "known": 2}}
        deltas = {name: [1, 1] for name in "fgh"}
        await chain.put(snapshot, changed=[*snapshot, "f", "g"], metadata={COUNTERS: deltas})
        await chain.writes(("gone", 1), ("__no_writes__", None), ("branch:to:x", None), ("known", 3))
        versions = (await chain.saver.got(chain.latest)).checkpoint["channel_versions"]
        # "e" was stored as a whole again, "f" is counted, "h" was never written to.
        head = checkpoint(
            "0002", {"e": _DeltaSnapshot([2]), "known": 3}, {**versions, "known": "9"}, updated_channels=["d", "e"]
        )
        for source in ("loop", "fork"):
            saver = lab.open()
            await saver.got(chain.at("0001"))
            facts: Any = {"source": source, "step": 2, "parents": {}, COUNTERS: {"f": [2, 2]}}
            await saver.put(chain.at("0001"), head, facts, {"known": "9", "e": "9", "__start__": "9"})
            drifts = [event.error or "" for event in saver.events if event.outcome == "drift"]
            assert len(drifts) == (source == "loop")
            if drifts:
                assert "writes to 'entered', 'gone', which" in drifts[0]
                assert "the delta channels 'g', which" in drifts[0]
        # A copy leaves what the original did; what was told once is not told again.
        for parent, id, told in (("0002", "0003", 1), ("0003", "0004", 0)):
            saver.events.clear()
            await saver.put(chain.at(parent), checkpoint(id, {}, {"known": "9"}), {"source": "loop", "step": 3}, {})
            await saver.got(chain.at(id))
            assert len([event for event in saver.events if event.outcome == "drift"]) == told

    async def test_a_thread_that_is_refused_holds_up_no_other(self, lab: Lab) -> None:
        await Chain(lab.open(schema=FIRST), "old").put({"b": ["x"]})
        await Chain(lab.open(schema=SECOND), "new").put({"b": ["y"]})
        saver = lab.open(schema=FIRST)
        assert [inside(one.config)["thread_id"] for one in await saver.list(None)] == ["old"]
        assert [inside(one.config)["thread_id"] for one in await saver.list(None, limit=1)] == ["old"]
        (told,) = {event.error or "" for event in saver.events if event.outcome == "fallback"}
        assert "version 2 of schema 's'" in told
        # Who names it is to know.
        for config in (at("new"), at("new", None)):
            with pytest.raises(SchemaMismatch):
                await saver.list(config)

    @pytest.mark.parametrize("where", ["value", "list", "write"])
    async def test_a_class_that_moved(self, lab: Lab, where: str) -> None:
        with class_for_now("Was") as was:
            chain = Chain(lab.open(schema=FIRST))
            made = was("n")
            await chain.put({"a": [made] if where == "list" else made if where == "value" else 1})
            if where == "write":
                await chain.writes(("a", made))
        for without in (lab.open(), lab.open(schema=FIRST)):
            with pytest.raises(Unserializable, match=r"milepost_gone\.Was"):
                await without.got(chain.latest)
        found = await lab.open(schema=SECOND).got(chain.latest)
        expected = {"value": Moved("n"), "list": [Moved("n")], "write": 1}[where]
        assert_same(found.checkpoint["channel_values"]["c"], expected)
        if where == "write":
            assert found.pending_writes is not None
            assert_same(found.pending_writes[0][2], Moved("n"))

    async def test_a_class_that_is_gone_in_a_channel_that_is_dropped(self, lab: Lab) -> None:
        with class_for_now("Lost") as was:
            chain = Chain(lab.open(schema=FIRST))
            await chain.put({"gone": was("n"), "a": 1})
            await chain.writes(("gone", was("n")))
        found = await lab.open(schema=SECOND).got(chain.latest)
        assert found.checkpoint["channel_values"] == {"c": 1, "new": "default"}
        assert found.pending_writes == [("task", "__no_writes__", None)]

    async def test_a_release_that_is_rolled_back(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=SECOND))
        await chain.put({"c": 1, "new": "n"})
        back = Step(2, 1, ms.rename_channel("c", "a"), ms.drop_channel("new"))
        found = await lab.open(schema=Schema(One, version=1, name="s", downgrades=[back])).got(chain.latest)
        assert found.checkpoint["channel_values"] == {"a": 1}

    async def test_an_additive_change_is_read_by_the_release_before(self, lab: Lab) -> None:
        additive = Schema(
            Two, version=2, name="s", readable_from=1, upgrades=[Step(1, 2, ms.add_channel("new", "default"))]
        )
        chain = Chain(lab.open(schema=additive))
        await chain.put({"b": ["x"], "new": "n"})
        await chain.writes(("b", ["y"]))
        before: Face = lab.open(schema=FIRST)
        found = await before.got(chain.latest)
        assert found.checkpoint["channel_values"] == {"b": ["x"], "new": "n"}
        inner = {**found.checkpoint, "id": "0002", "channel_values": {"b": ["x"]}}
        await before.put(found.config, inner, found.metadata, {})  # type: ignore[arg-type]  # a dict like that
        again = await lab.open(schema=additive).got(at("thread"))
        assert again.checkpoint["channel_values"] == {"b": ["x"], "new": "default"}

    async def test_a_free_function_says_what_becomes_of_writes(self, lab: Lab) -> None:
        def turned(state: dict[str, Any]) -> dict[str, Any]:
            return {"c": -state["a"]}

        def schema(**writes: Any) -> Schema:
            return Schema(Two, version=2, name="s", upgrades=[Step(1, 2, ms.map_state(turned, **writes))])

        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"a": 1, "branch:to:x": None})
        assert (await lab.open(schema=schema()).got(chain.latest)).checkpoint["channel_values"] == {
            "branch:to:x": None,
            "c": -1,
        }
        await chain.writes(("a", 2), ("branch:to:y", None))
        with pytest.raises(SchemaMismatch, match="writes="):
            await lab.open(schema=schema()).got(chain.latest)
        found = await lab.open(schema=schema(writes=lambda _, value: [("c", -value)])).got(chain.latest)
        assert found.pending_writes == [("task", "c", -2), ("task", "branch:to:y", None)]

    @pytest.mark.parametrize(
        ("value", "write", "path"),
        [
            (("branch:to:{}", None), None, ""),
            (("__pregel_tasks", [Send("new", {}), Send("{}", {})]), None, ""),
            (("join:other+{}:new", {"other"}), None, ""),
            (("join:other+n+m:{}", ({"n+m"}, False)), None, ""),
            (None, ("branch:to:{}", None), ""),
            (None, ("__pregel_tasks", Send("{}", {})), ""),
            (None, ("join:{}+other:new", "other"), ""),
            (None, ("__interrupt__", []), "~__pregel_pull, {}"),
        ],
    )
    async def test_what_waits_for_a_node_that_the_graph_does_not_have(
        self, lab: Lab, value: tuple[str, Any] | None, write: tuple[str, Any] | None, path: str
    ) -> None:
        def listed(version: int, *changes: ms.Change) -> Schema:
            upgrades = [Step(1, 2, *changes)] if version == 2 else []
            return Schema(One, version=version, name="s", upgrades=upgrades, nodes=OTHERS)

        for thread, node in (("known", "new"), ("unknown", "old")):
            chain = Chain(lab.open(schema=FIRST), thread)
            await chain.put(dict([_for(node, *value)]) if value else {"a": 1})
            if write:
                await chain.writes(_for(node, *write), path=path.format(node))
        for schema in (listed(1), listed(2, ms.add_channel("a", 1)), listed(2, ms.rename_node("before", "other"))):
            reader = lab.open(schema=schema)
            await reader.got(at("known"))
            for refused in (reader.got(at("unknown")), reader.list(at("unknown"))):
                with pytest.raises(SchemaMismatch, match="waits for node 'old', which is not among") as caught:
                    await refused
                assert (caught.value.thread, caught.value.checkpoint) == ("unknown", "0001")
                assert (caught.value.found, caught.value.expected) == (1, schema.version)
        # As long as nobody lists the nodes, or where it was said what became of this one, it goes on.
        for schema in (FIRST, listed(2, ms.drop_node("old")), listed(2, ms.drop_node("old", to="new"))):
            await lab.open(schema=schema).got(at("unknown"))

    async def test_nobody_waits_for_what_a_join_has_not_heard_of(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"join:old+other:new": set(), "join:other+old:new": (set(), False), "a": 1})
        reader = lab.open(schema=Schema(One, version=1, name="s", nodes=OTHERS))
        assert (await reader.got(chain.latest)).checkpoint["channel_values"]["a"] == 1

    async def test_each_namespace_has_nodes_of_its_own(self, lab: Lab) -> None:
        old = lab.open(schema={"": FIRST, "child": FIRST})
        await old.put(at("t"), checkpoint("01", {"branch:to:child": None}), {"step": 1})
        await old.put(at("t", "child:1"), checkpoint("01", {"branch:to:ask": None}), {"step": 1})
        root = Schema(One, version=1, name="s", nodes=["child"])
        for nodes, known in ((["ask"], True), (["child"], False)):
            reader = lab.open(schema={"": root, "child": Schema(One, version=1, name="s", nodes=nodes)})
            await reader.got(at("t"))
            if known:
                await reader.got(at("t", "child:1"))
                continue
            with pytest.raises(SchemaMismatch, match="namespace 'child:1' waits for node 'ask'"):
                await reader.got(at("t", "child:1"))

    async def test_a_dropped_node_is_not_taken_for_a_later_one_of_its_name(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"__pregel_tasks": [Send("old", {}), Send("new", {})]})
        for nodes in (None, ["new"], ["new", "old"]):
            schema = Schema(One, version=2, name="s", upgrades=[Step(1, 2, ms.drop_node("old"))], nodes=nodes)
            (sends,) = (await lab.open(schema=schema).got(chain.latest)).checkpoint["channel_values"].values()
            assert [send.node for send in sends] == ["__end__", "new"]

    async def test_a_name_that_is_taken_is_not_overwritten(self, lab: Lab) -> None:
        chain = Chain(lab.open(schema=FIRST))
        await chain.put({"a": 1, "c": 2})
        with pytest.raises(SchemaMismatch, match="has something for channel 'c' already"):
            await lab.open(schema=SECOND).got(chain.latest)

    async def test_a_serializer_that_cannot_rename_classes_is_refused(self, lab: Lab) -> None:
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # noqa: PLC0415

        saver = lab.open(schema=SECOND, serde=JsonPlusSerializer())
        with pytest.raises(InvalidConfig, match="rename classes"):
            await saver.got(at("t"))
        plain = lab.open(schema=FIRST, serde=JsonPlusSerializer())
        chain = Chain(plain)
        await chain.put({"a": 1})
        assert await chain.values() == {"a": 1}
        with pytest.raises(SchemaMismatch):
            await lab.open(schema=Schema(One, version=1, name="other"), serde=JsonPlusSerializer()).got(chain.latest)
