"""What is sent to subgraphs: it is of their schema, of the version that it was sent under."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from langgraph.types import Send

from milepost import schema as ms
from milepost.errors import SchemaMismatch
from milepost.schema import Schema, Step
from milepost.testing.chain import Chain, at
from milepost.testing.lab import Face, Lab
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.migration import migrated
from milepost.testing.suite.releases import Moved, One, Two, class_for_now

Releases = Mapping[str, Schema] | Schema

_CHILD = [
    Step(1, 2, ms.rename_channel("a", "c"), ms.map_channel("b", lambda lines: [*lines, "mapped"])),
    Step(2, 3, ms.rename_class("milepost_gone:Sent", Moved)),
]
_ROOT = [
    Step(1, 2, ms.drop_channel("a"), ms.map_channel("b", lambda _: ["the root's"]), ms.rename_node("kid", "child"))
]


def _child(version: int) -> Schema:
    return Schema(One if version == 1 else Two, version=version, name="child", upgrades=_CHILD[: version - 1])


def _root(version: int) -> Schema:
    return Schema(One, version=version, name="root", upgrades=_ROOT[: version - 1])


async def _scene(lab: Lab, schema: Releases, node: str, arg: Any) -> Chain:
    """A checkpoint that has sent something to a subgraph and to a node, and a task of it that has done so since."""
    chain = Chain(lab.open(schema=schema), "t")
    await chain.put({"a": 7, "__pregel_tasks": [Send(node, arg), Send("plain", arg)]})
    await chain.writes(("__pregel_tasks", Send(node, arg)), ("__pregel_tasks", Send("plain", arg)), task="1")
    return chain


async def _sent(saver: Face) -> list[tuple[str, Any]]:
    """All that is sent, to which nodes: by the checkpoint, and by the task."""
    found = await saver.got(at("t"))
    sends = [*found.checkpoint["channel_values"]["__pregel_tasks"]]
    sends += (value for _, channel, value in found.pending_writes or () if channel == "__pregel_tasks")
    return [(send.node, send.arg) for send in sends]


class Sends(Behaviours):
    """Arguments of Sends."""

    @pytest.mark.parametrize("root", [1, 2])
    @pytest.mark.parametrize("child", [1, 2])
    async def test_what_is_sent_to_a_subgraph_is_of_its_schema(self, lab: Lab, root: int, child: int) -> None:
        node = "kid" if root == 2 else "child"
        chain = await _scene(lab, {"": _root(1), node: _child(1)}, node, {"a": 1, "b": ["x"]})
        release = {"": _root(root), "child": _child(child)}
        arg = {"a": 1, "b": ["x"]} if child == 1 else {"c": 1, "b": ["x", "mapped"]}
        plain = {"a": 1, "b": ["x"]} if root == 1 else {"b": ["the root's"]}
        expected = [("child", arg), ("plain", plain)] * 2
        reader = lab.open(schema=release)
        assert await _sent(reader) == expected
        assert [one.config for one in await reader.list(at("t"))] == [chain.at()]
        (told,) = await migrated(reader)
        assert (told.changed, told.refused) == (int(root == 2 or child == 2), ())
        alone = {"": Schema(One, version=root, name="root"), "child": Schema(Two, version=child, name="child")}
        # It has become of the versions of now: nothing is done to it once more.
        for schema in (release, alone):
            assert await _sent(lab.open(schema=schema)) == expected
        assert [one.changed for one in await migrated(lab.open(schema=release))] == [0]
        assert [one.refused for one in await migrated(lab.open(schema=release), mode="undo")] == [()]
        assert await _sent(lab.open(schema=release)) == expected

    async def test_what_a_later_release_sends_is_its_own(self, lab: Lab) -> None:
        release = {"": _root(1), "child": _child(2)}
        await _scene(lab, release, "child", {"c": 1, "b": ["x"]})
        assert (await _sent(lab.open(schema=release)))[0] == ("child", {"c": 1, "b": ["x"]})
        with pytest.raises(SchemaMismatch, match="version 2 of schema 'child'") as refused:
            await _sent(lab.open(schema={"": _root(1), "child": _child(1)}))
        assert {key: refused.value.facts[key] for key in ("thread", "checkpoint", "schema", "found", "expected")} == {
            "thread": "t",
            "checkpoint": "0001",
            "schema": "child",
            "found": 2,
            "expected": 1,
        }

    @pytest.mark.parametrize("stamped", [False, True], ids=["nobody", "the root"])
    async def test_what_nobody_tells_the_version_of(self, lab: Lab, stamped: bool) -> None:
        """It is refused if that matters."""
        before: Any = {"": _root(1)} if stamped else {}
        later = {**before, "child": _child(2)}
        await _scene(lab, before, "child", {"a": 1})
        reader = lab.open(schema=later)
        with pytest.raises(SchemaMismatch, match=r"nothing tells which version .* an upgrade speaks of its 'a'"):
            await reader.got(at("t"))
        if stamped:
            declared = Schema(Two, version=2, name="child", upgrades=_CHILD[:1], unstamped=1)
            assert (await _sent(lab.open(schema={**before, "child": declared})))[0] == ("child", {"c": 1})
        await Chain(lab.open(schema=before), "t").put({"__pregel_tasks": [Send("child", {"z": 1})]}, id="0002")
        found = await reader.got(at("t"))
        assert found.checkpoint["channel_values"]["__pregel_tasks"] == [Send("child", {"z": 1})]

    async def test_classes_of_what_is_sent(self, lab: Lab) -> None:
        with class_for_now("Sent") as made:
            await _scene(lab, {"": _root(1), "child": _child(1)}, "child", {"z": made("x")})
        assert (await _sent(lab.open(schema={"": _root(1), "child": _child(3)})))[0] == ("child", {"z": Moved("x")})
