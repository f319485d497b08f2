"""Objects that may not be built here: they are read as data, as with LangGraph, and their data never takes their place."""

from __future__ import annotations

import enum
from typing import Any, TypedDict

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from milepost import schema as ms
from milepost.codec.values import Serializer
from milepost.errors import Unserializable
from milepost.saver import Saver
from milepost.schema import Schema, Step
from milepost.testing.chain import Chain
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours
from milepost.testing.suite.migration import migrated
from milepost.testing.suite.serializers import Turning
from milepost.testing.suite.values import Person


class Kind(enum.Enum):
    """An enum of the application's."""

    A = "a"


class State(TypedDict, total=False):
    """All of it."""

    who: Person
    kinds: list[Kind]
    n: int
    new: int


ALLOWED = [(Person.__module__, "Person"), (Kind.__module__, "Kind")]
VALUES = {"who": Person(name="ann", age=3), "kinds": [Kind.A] * 20, "n": 1}
DATA = {"who": {"name": "ann", "age": 3}, "kinds": ["a"] * 20, "n": 1}
FIRST = Schema(State, version=1, name="s")
SAME = ms.map_state(dict, writes=lambda channel, value: [(channel, value)])
KINDS = ["milepost", "official", "encrypted"]


def second(*changes: ms.Change) -> Schema:
    """The next release."""
    return Schema(State, version=2, name="s", upgrades=[Step(1, 2, *changes)])


def serde(kind: str) -> Any:
    """A serializer that builds nothing of the application's."""
    if kind == "milepost":
        return Serializer(allowed_msgpack_modules=None)
    official = JsonPlusSerializer(allowed_msgpack_modules=None)
    return official if kind == "official" else EncryptedSerializer(Turning(b"a key"), official)


def allowing(saver: Face) -> Face:
    """A clone of `saver` that builds everything, as the one of a graph does."""
    clone = saver.saver.with_allowlist(ALLOWED)
    assert isinstance(clone, Saver)
    return saver.clone(clone)


async def scene(lab: Lab, kind: str) -> Chain:
    """A checkpoint with objects, and pending writes of them."""
    chain = Chain(lab.open(schema=FIRST, serde=serde(kind)))
    await chain.put(VALUES)
    await chain.writes(("who", VALUES["who"]), ("n", 2))
    await chain.writes(("__resume__", [VALUES["who"]]), task="other")
    return chain


class Objects(Behaviours):
    """What is rewritten, or put after what was read, has the objects that were there."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_what_no_change_speaks_of_is_not_decoded(self, lab: Lab, kind: str) -> None:
        chain = await scene(lab, kind)
        changed = second(ms.add_channel("new", 5), ms.map_channel("n", lambda n: n + 1))
        saver = lab.open(schema=changed, serde=serde(kind))
        assert (await saver.got(chain.latest)).checkpoint["channel_values"] == {**DATA, "n": 2, "new": 5}
        (told,) = await migrated(saver)
        assert (told.changed, told.refused) == (1, ())
        await migrated(saver, mode="finalise")
        found = await allowing(lab.open(schema=changed, serde=serde(kind))).got(chain.latest)
        assert_same({**VALUES, "n": 2, "new": 5}, found.checkpoint["channel_values"])
        written = [("other", "__resume__", [VALUES["who"]]), ("task", "who", VALUES["who"]), ("task", "n", 3)]
        assert_same(written, found.pending_writes)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("change", [ms.map_channel("who", lambda who: who), SAME])
    async def test_what_a_change_speaks_of_is_refused(self, lab: Lab, kind: str, change: ms.Change) -> None:
        chain = await scene(lab, kind)
        saver = lab.open(schema=second(change), serde=serde(kind))
        for mode in ("dry-run", "rewrite"):
            (told,) = await migrated(saver, mode=mode)
            assert told.changed == 0
            (why,) = told.refused
            assert "Person" in why, why
            assert "with_allowlist" in why, why
        assert_same(VALUES, (await allowing(chain.saver).got(chain.latest)).checkpoint["channel_values"])
        (told,) = await migrated(allowing(saver))
        assert (told.changed, told.refused) == (1, ())
        assert_same(VALUES, (await allowing(saver).got(chain.latest)).checkpoint["channel_values"])

    @pytest.mark.parametrize("unknown", ["payload", "placeholder"])
    async def test_a_serializer_that_gives_something_else(self, lab: Lab, unknown: Any) -> None:
        chain = await scene(lab, "milepost")
        only = Serializer(allowed_msgpack_modules=None, unknown=unknown)
        saver = lab.open(schema=second(ms.map_channel("who", lambda who: who)), serde=only)
        (told,) = await migrated(saver)
        assert told.changed == (unknown == "placeholder")
        found = await allowing(lab.open(schema=second(), serde=serde("milepost"))).got(chain.latest)
        assert_same(VALUES, found.checkpoint["channel_values"])

    async def test_a_put_after_an_upgrade(self, lab: Lab) -> None:
        chain = await scene(lab, "milepost")
        saver = lab.open(schema=second(ms.rename_channel("n", "m"), ms.add_channel("new", 5)), serde=serde("milepost"))
        found = await saver.got(chain.latest)
        made: Any = {**found.checkpoint, "id": "0002"}
        await saver.put(found.config, made, found.metadata, {})
        values = (await allowing(saver).got(chain.latest)).checkpoint["channel_values"]
        assert_same({"who": VALUES["who"], "kinds": VALUES["kinds"], "m": 1, "new": 5}, values)

    async def test_what_is_compacted_or_pinned(self, lab: Lab) -> None:
        chain = Chain(lab.open(serde=serde("milepost")))
        await chain.put(VALUES)
        report = await chain.saver.maintain(compact=lambda state, _: {"kinds": state["kinds"][:3]}, quiet=0)
        (told,) = report.threads
        assert told.outcome == "failed"
        assert "Kind" in (told.error or "")
        report = await chain.saver.maintain(compact=lambda _state, _: {"n": 2}, quiet=0)
        assert [one.compacted for one in report.threads] == [("n",)]
        saver = allowing(chain.saver)
        assert_same({**VALUES, "n": 2}, (await saver.got(chain.latest)).checkpoint["channel_values"])
        other = Chain(chain.saver, "other")
        await other.put(VALUES, metadata={"by": Kind.A})
        with pytest.raises(Unserializable, match="Kind"):
            await other.saver.pin(other.latest)
        report = await other.saver.maintain(compact=lambda _state, _: {"n": 3}, threads=["other"], quiet=0)
        assert [one.outcome for one in report.threads] == ["failed"]
        await saver.pin(other.latest)
        assert (await saver.got(other.latest)).metadata.get("by") is Kind.A
