"""Ids are arbitrary text, a deleted thread stays deleted, configs are hostile, and bad input is refused before it acts."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.base import ChannelVersions, CheckpointMetadata

from milepost.errors import InvalidConfig, MilepostError, ThreadDeleted, TooLarge, Unavailable
from milepost.places import COUNTERS
from milepost.store import MAX_ID
from milepost.testing.chain import Chain, at, checkpoint, id_of
from milepost.testing.lab import Face, Lab
from milepost.testing.suite.basis import Behaviours

HOSTILE = (
    "a", "A", "a*", "a?", "a:b", "a|b", "[a]", "a/../b", "../../a", "/etc/a", "C:\\a", "a%2Fb", "a%", "a_", "{a}", "a\nb",
    "a\tb", " a", "a ", ".", "..", "~", "-rf", "nul", "a'b", 'a"b', "a;b", "a\\", "$a", "`a`", "\x01", "\x7f", "ä", "a\u0308",
    "\U0001f600", "ß", "ss", "SS", "\u202e", "a" * 256, "é" * 300, "x" * MAX_ID, "\U0001f600" * MAX_ID,
)  # fmt: skip
"""Ids that some store, file system or query language takes for something else. All different."""


def untyped(value: Any) -> Any:
    """What callers without a type checker pass."""
    return value


class Identity(Behaviours):
    """Every id is its own."""

    async def test_threads_do_not_meet(self, lab: Lab) -> None:
        for number, thread in enumerate(HOSTILE):
            await Chain(lab.saver, thread).put({"x": [number] * 100})
            await lab.saver.put_writes(at(thread, "", "0001"), [("x", number)])
        async for saver in lab.views():
            for number, thread in enumerate(HOSTILE):
                found = await saver.got(at(thread))
                assert found.checkpoint["channel_values"] == {"x": [number] * 100}, thread
                assert found.config == at(thread, "", "0001")
                assert found.pending_writes == [("task", "x", number)]
                assert len(await saver.list(at(thread, None))) == 1
            assert {row.thread for row in await saver.threads()} == set(HOSTILE)
            assert len(await saver.list(None)) == len(HOSTILE)

    async def test_deleting_a_thread_deletes_that_one(self, lab: Lab) -> None:
        for thread in HOSTILE:
            await Chain(lab.saver, thread).put({"x": thread})
        left = list(HOSTILE)
        for thread in ("a*", "a_", "[a]", ".", "a/../b", "a%", "é" * 300, "\U0001f600" * MAX_ID):
            await lab.saver.delete_thread(thread)
            left.remove(thread)
            assert await lab.saver.get(at(thread)) is None
        async for saver in lab.views():
            assert sorted(row.thread for row in await saver.threads()) == sorted(left)
            for thread in left:
                assert (await saver.got(at(thread))).checkpoint["channel_values"] == {"x": thread}

    async def test_namespaces_do_not_meet(self, lab: Lab) -> None:
        for number, ns in enumerate(("", *HOSTILE)):
            await Chain(lab.saver, "t", ns).put({"x": number})
            await lab.saver.put_writes(at("t", ns, "0001"), [("x", number)])
        async for saver in lab.views():
            for number, ns in enumerate(("", *HOSTILE)):
                found = await saver.got(at("t", ns))
                assert found.checkpoint["channel_values"] == {"x": number}, ns
                assert found.config == at("t", ns, "0001")
                assert found.pending_writes == [("task", "x", number)]
                assert len(await saver.list(at("t", ns))) == 1

    async def test_checkpoints_tasks_and_paths_do_not_meet(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for number, id in enumerate(HOSTILE):
            await chain.put({"x": number}, id=id, parent="")
            await lab.saver.put_writes(chain.at("a"), [("x", number)], id, id)
        async for saver in lab.views():
            for number, id in enumerate(HOSTILE):
                assert (await saver.got(chain.at(id))).checkpoint["channel_values"] == {"x": number}, id
            assert await saver.ids(chain.latest) == sorted(HOSTILE, reverse=True)
            writes = (await saver.got(chain.at("a"))).pending_writes
            assert writes is not None
            assert [task for task, _, _ in writes] == sorted(HOSTILE)

    @pytest.mark.parametrize("pair", [("a:b", "c", "a", "b:c"), ("a|b", "c", "a", "b|c"), ("a/b", "c", "a", "b/c")])
    async def test_where_an_id_ends(self, lab: Lab, pair: tuple[str, str, str, str]) -> None:
        one, other = Chain(lab.saver, pair[0], pair[1]), Chain(lab.saver, pair[2], pair[3])
        await one.put({"x": 1})
        await other.put({"x": 2})
        await lab.saver.delete_thread(pair[2])
        assert await one.values() == {"x": 1}
        assert await lab.saver.get(other.latest) is None

    async def test_a_number_and_its_text_are_one_thread(self, lab: Lab) -> None:
        await lab.saver.put(at(1), checkpoint("a", {"x": 1}))
        assert (await lab.saver.got(at("1"))).config == at("1", "", "a")
        await lab.saver.put(at("1", "", "a"), checkpoint("b", {"x": 2}))
        assert await lab.saver.ids(at(1)) == ["b", "a"]
        uuid = UUID(int=1)
        await lab.saver.put(at(uuid), checkpoint("a", {"x": 1}))
        assert await lab.saver.get(at(str(uuid))) is not None
        await lab.saver.delete_thread(untyped(1))
        assert await lab.saver.get(at("1")) is None

    @pytest.mark.parametrize("where", ["thread", "ns", "checkpoint", "parent", "task", "path"])
    async def test_ids_that_are_refused(self, lab: Lab, where: str) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        before = await lab.saver.stats()
        for bad, error in (("a\x00b", InvalidConfig), ("\ud800", InvalidConfig), ("x" * (MAX_ID + 1), TooLarge)):
            with pytest.raises(error):
                await _use(lab.saver, where, bad)
        if where != "path":
            for bad_type in (b"a", 1.5, ["a"], True):
                with pytest.raises(InvalidConfig):
                    await _use(lab.saver, where, bad_type)
        assert await lab.saver.stats() == before, "something was written"


async def _use(saver: Face, where: str, id: Any) -> None:
    thread = id if where == "thread" else "thread"
    ns = id if where == "ns" else ""
    parent = id if where == "parent" else "0001"
    if where in ("task", "path"):
        await saver.put_writes(
            at(thread, "", "0001"), [("x", 1)], id if where == "task" else "t", id if where == "path" else ""
        )
    else:
        await saver.put(at(thread, ns, parent), checkpoint(id if where == "checkpoint" else "0002", {}))


class Deletion(Behaviours):
    """A deleted thread stays deleted."""

    async def test_everything_goes(self, lab: Lab) -> None:
        root, sub, other = Chain(lab.saver), Chain(lab.saver, ns="sub"), Chain(lab.saver, "other")
        for chain in (root, sub, other):
            await chain.put({"x": ["x" * 1000]})
            await chain.writes(("x", 1))
        await lab.saver.put_writes(at("thread", "", "ahead"), [("x", 1)])
        await lab.saver.delete_thread("thread")
        async for saver in lab.views():
            assert await saver.list(at("thread", None)) == []
            assert await saver.get(sub.latest) is None
            assert (await saver.stats("thread"))[:4] == (0, 0, 0, 0)
            assert [row.thread for row in await saver.threads()] == ["other"]
            assert (await saver.stats()).checkpoints == 1

    async def test_late_puts_and_writes_are_refused(self, lab: Lab) -> None:
        root, sub = Chain(lab.saver), Chain(lab.saver, ns="sub")
        await root.put({"x": 1})
        await root.put({"x": 2})
        await sub.put({"x": 1}, id="inner")
        await lab.saver.delete_thread("thread")
        async for saver in lab.views():
            for late in (root.at("0002"), root.at("0001"), sub.at("inner")):
                with pytest.raises(ThreadDeleted) as caught:
                    await saver.put(late, checkpoint("0009", {"x": 3}))
                assert caught.value.thread == "thread"
                assert caught.value.checkpoint == id_of(late)
                with pytest.raises(ThreadDeleted):
                    await saver.put_writes(late, [("x", 3)])
            assert await saver.list(at("thread", None)) == []
            assert await saver.threads() == ()

    async def test_a_subgraph_of_a_deleted_run_is_refused(self, lab: Lab) -> None:
        root = Chain(lab.saver)
        await root.put({"x": 1})
        await lab.saver.delete_thread("thread")
        with pytest.raises(ThreadDeleted):
            await lab.saver.put(at("thread", "sub"), checkpoint("inner", {"x": 1}), {"parents": {"": "0001"}})

    async def test_what_a_run_of_a_deleted_thread_has_under_way_goes(self, lab: Lab) -> None:
        """LangGraph puts the writes of a step before its checkpoint is there, whose put is refused a moment later."""
        chain = Chain(lab.saver)
        await chain.put({"x": 1})
        await lab.saver.delete_thread("thread")
        await lab.saver.put(at("thread"), checkpoint("new", {"x": ["of a new run"] * 100}))
        await lab.saver.put_writes(at("thread", "", "ahead"), [("x", ["secret"] * 100)])
        await lab.saver.put_writes(at("thread", "", "another"), [("x", 1)])
        with pytest.raises(ThreadDeleted):
            await lab.saver.put(at("thread", "", "0001"), checkpoint("ahead", {"x": 2}))
        for late in (
            lambda: lab.saver.put_writes(at("thread", "", "ahead"), [("x", ["secret"] * 100)], "later"),
            lambda: lab.saver.put(at("thread", "", "ahead"), checkpoint("after", {"x": 3})),
            lambda: lab.saver.put(at("thread", "sub"), checkpoint("inner", {"x": 1}), {"parents": {"": "ahead"}}),
            lambda: lab.saver.put_writes(at("thread", "", "after"), [("x", 4)]),
        ):
            with pytest.raises(ThreadDeleted):
                await late()
        async for saver in lab.views():
            assert await saver.ids(at("thread", None)) == ["new"]
            assert (await saver.stats("thread"))[1:4] == (1, 1, 1)
            assert (await saver.got(at("thread"))).checkpoint["channel_values"] == {"x": ["of a new run"] * 100}

    async def test_a_new_run_starts_afresh(self, lab: Lab) -> None:
        old = Chain(lab.saver)
        await old.put({"x": ["old"] * 100})
        await lab.saver.delete_thread("thread")
        new = Chain(await lab.reopen())
        await new.put({"x": ["old"] * 100}, id="1001")
        await new.writes(("x", 1))
        await new.put({"x": ["old"] * 100, "y": 1}, id="1002")
        assert (await new.values())["x"] == ["old"] * 100
        with pytest.raises(ThreadDeleted):
            await lab.saver.put(old.at("0001"), checkpoint("0009", {}))
        assert await new.ids() == ["1002", "1001"]

    async def test_what_was_deleted_is_not_put_again(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": 1}, id="a")
        await chain.put({"x": 2}, id="b")
        await Chain(lab.saver, ns="sub").put({"x": 3}, id="c")
        again = checkpoint("a", {"x": 1})
        await lab.saver.put(at("thread"), again)
        await lab.saver.delete_thread("thread")
        async for saver in lab.views():
            for id in ("a", "b", "c"):
                with pytest.raises(ThreadDeleted, match=f"its checkpoint '{id}' with it: "):
                    await saver.put(at("thread"), checkpoint(id, {"x": 1}))
            assert await saver.threads() == ()
        # Only what is remembered: a new run on a machine whose clock is behind is no late write.
        await lab.saver.put(at("thread"), checkpoint("A", {"x": 1}))
        with pytest.raises(ThreadDeleted):
            await lab.saver.put(at("thread", "", "A"), again)

    async def test_deleted_twice(self, lab: Lab) -> None:
        first = Chain(lab.saver)
        await first.put({"x": 1}, id="a")
        await lab.saver.delete_thread("thread")
        second = Chain(lab.saver)
        await second.put({"x": 1}, id="b")
        await lab.saver.delete_thread("thread")
        await lab.saver.delete_thread("thread")
        for late in ("a", "b"):
            with pytest.raises(ThreadDeleted):
                await lab.saver.put(at("thread", "", late), checkpoint("c", {}))

    async def test_a_long_thread_leaves_a_short_tombstone(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for _ in range(300):
            await chain.put({})
        await lab.saver.delete_thread("thread")
        for late in ("0001", "0044", "0045", "0150", "0300"):
            with pytest.raises(ThreadDeleted):
                await lab.saver.put_writes(chain.at(late), [("x", 1)])

    async def test_delete_by_prune_is_a_deletion(self, lab: Lab) -> None:
        for strategy in ("delete", "delete_all"):
            chain = Chain(lab.saver, strategy)
            await chain.put({"x": 1})
            await lab.saver.prune([strategy], strategy)
            assert await lab.saver.get(chain.latest) is None
            with pytest.raises(ThreadDeleted):
                await chain.put({"x": 2})

    async def test_another_saver_sees_the_deletion(self, lab: Lab) -> None:
        one, two = Chain(lab.saver), Chain(lab.open())
        await one.put({"x": ["long"] * 100})
        await two.saver.got(two.latest)
        await lab.saver.delete_thread("thread")
        assert await two.saver.get(two.latest) is None
        two.head = "0001"
        with pytest.raises(ThreadDeleted):
            await two.saver.put(two.at(), checkpoint("0002", {"x": ["long"] * 100}))
        await two.saver.put(at("thread"), checkpoint("0003", {"x": ["long"] * 100}))
        assert await one.values() == {"x": ["long"] * 100}


class Configs(Behaviours):
    """What LangGraph passes as config and metadata, and what must not be kept of it."""

    async def test_metadata_takes_the_scalars_of_the_config(self, lab: Lab) -> None:
        config: Any = {
            "configurable": {
                "thread_id": "t", "checkpoint_ns": "", "checkpoint_id": None, "user_id": "u\x00u", "number": 7, "ratio": 0.5,
                "flag": True, "an object": object(), "a list": [1], "__pregel_send": print, "__secret": "x", "langgraph_step": 3,
                "checkpoint_map": {"": "x"}, "source": "config",
            },
            "metadata": {"run_id": "r1", "step": 99, "thread_id": "other", "langgraph_node": "n", "user_id": "of metadata"},
            "callbacks": object(),
        }  # fmt: skip
        metadata: Any = {
            "source": "loop",
            "step": 3,
            "parents": {"": "x"},
            "counters_since_delta_snapshot": {"c": [1, 2]},
        }
        await lab.saver.put(config, checkpoint("a", {"x": 1}), metadata)
        found = await lab.saver.got(at("t"))
        expected = {**metadata, "user_id": "of metadata", "number": 7, "ratio": 0.5, "flag": True, "run_id": "r1"}
        assert dict(found.metadata) == expected
        assert found.parent_config is None

    async def test_credentials_stay_out_of_metadata(self, lab: Lab) -> None:
        secret = "sk-very-secret"  # noqa: S105  # it is looked for below
        names = (
            "openai_api_key", "OPENAI_API_KEY", "apiKey", "api-key", "password", "db_password", "access_token", "token", "secret",
            "client_secret", "Authorization", "private_key", "aws_secret_access_key", "cookie", "credentials", "bearer_token",
        )  # fmt: skip
        config: Any = at("t", user_id="u", keyboard="k", tokens_used="3", **dict.fromkeys(names, secret))
        config["metadata"] = {"api_key": secret, "run_id": "r"}
        await lab.saver.put(config, checkpoint("a", {}))
        found = dict((await lab.saver.got(at("t"))).metadata)
        assert found == {"user_id": "u", "keyboard": "k", "tokens_used": "3", "run_id": "r"}

    async def test_the_config_is_left_alone(self, lab: Lab) -> None:
        lock = threading.Lock()
        config: Any = at("t", "", None, __pregel_send=lock, checkpoint_id=None)
        copy = {"configurable": dict(config["configurable"])}
        made, metadata = checkpoint("a", {"x": 1}), CheckpointMetadata(step=1)
        versions: ChannelVersions = {"x": 1}
        await lab.saver.put(config, made, metadata, versions)
        await lab.saver.get(config)
        await lab.saver.list(config)
        assert config == copy
        assert (made, metadata, versions) == (checkpoint("a", {"x": 1}), {"step": 1}, {"x": 1})


_NO_THREAD: list[Any] = [
    None,
    {},
    {"configurable": None},
    {"configurable": {}},
    {"configurable": {"thread_id": None}},
    at(""),
]


def _malformed(saver: Face, chain: Chain) -> Iterator[Callable[[], Awaitable[Any]]]:
    """Calls with arguments that are not of the kind that is asked for."""
    new, made = at("new"), checkpoint("a", {"x": 1})
    for bad in map(untyped, (1, "x", [], ["x"], b"x", {1})):
        yield partial(saver.put, new, bad, None, {})
        yield partial(saver.put, new, made, bad or untyped((1,)), {})
        yield partial(saver.put, new, made, None, bad)
        yield partial(saver.put, new, {**made, "channel_values": bad}, None, {})
        yield partial(saver.put, new, {**made, "channel_versions": bad}, None, {})
        yield partial(saver.list, chain.latest, filter=bad)
    for name in ("id", "channel_values", "channel_versions"):
        yield partial(saver.put, new, untyped({key: value for key, value in made.items() if key != name}), None, {})
    for metadata in map(
        untyped, ({1: "x"}, {"parents": 1}, {"parents": {"": []}}, {COUNTERS: 1}, {COUNTERS: {"x": 1}})
    ):
        yield partial(saver.put, new, made, metadata)
    for config in map(
        untyped, ({"metadata": {1: "x"}}, {"metadata": 1}, {"configurable": {"thread_id": "new", 1: "x"}})
    ):
        yield partial(saver.put, untyped({**new, **config}), made)
    for bad in map(untyped, (None, 1, "x", "xy", {"xy": 1}, [None], ["xy"], [("x",)], [(1, 2)])):
        yield partial(saver.put_writes, chain.latest, bad)
    for bad in map(untyped, (None, 1, "x", [None], [[]], [1])):
        yield partial(saver.history, chain.latest, bad)
    yield partial(saver.list, chain.latest, filter=untyped({1: 2}))
    for bad in map(untyped, (None, 1, [])):
        yield partial(saver.restore, bad)
    for bad in map(untyped, (1, "x")):
        yield partial(saver.maintain, progress=bad)
        yield partial(saver.maintain, clock=bad)


class BadInput(Behaviours):
    """A typed error before anything is written, and nothing lost."""

    @pytest.mark.parametrize("config", _NO_THREAD)
    async def test_no_thread_id(self, lab: Lab, config: Any) -> None:
        saver = lab.saver
        with pytest.raises(InvalidConfig):
            await saver.put(config, checkpoint("a", {}))
        with pytest.raises(InvalidConfig):
            await saver.put_writes(config, [("x", 1)])
        with pytest.raises(InvalidConfig):
            await saver.get(config)
        with pytest.raises(InvalidConfig):
            await saver.history(config, ["x"])
        if config is not None:
            with pytest.raises(InvalidConfig):
                await saver.list(config)
        assert (await saver.stats())[:4] == (0, 0, 0, 0)

    async def test_what_is_no_listener_and_no_version(self, lab: Lab) -> None:
        with pytest.raises(InvalidConfig):
            lab.saver.saver.observe(untyped(1))
        for version in ([], b"x", {}, object()):
            with pytest.raises(InvalidConfig):
                lab.saver.saver.get_next_version(version, None)

    async def test_a_closed_saver_maintains_nothing(self, lab: Lab) -> None:
        saver = lab.open()
        await saver.close()
        with pytest.raises(Unavailable):
            saver.saver.maintaining()

    async def test_the_rest_of_the_table(self, lab: Lab) -> None:
        saver = lab.saver
        chain = Chain(saver)
        await chain.put({"x": 1}, metadata={"run_id": "thread"})
        await chain.writes(("x", 2))
        before = await saver.stats()
        calls: list[Any] = [
            lambda: saver.prune("thread"),
            lambda: saver.prune(untyped(b"thread")),
            lambda: saver.prune(untyped(None)),
            lambda: saver.prune(untyped([None])),
            lambda: saver.prune(["thread"], "keep_newest"),
            lambda: saver.prune(["thread"], ""),
            lambda: saver.prune([], "keep_newest"),
            lambda: saver.delete_for_runs("thread"),
            lambda: saver.delete_thread(""),
            lambda: saver.delete_thread(untyped(None)),
            lambda: saver.delete_thread("thread", force=untyped("no")),
            lambda: saver.copy_thread("thread", "thread"),
            lambda: saver.copy_thread("thread", ""),
            lambda: saver.copy_thread("", "thread"),
            lambda: saver.copy_thread("thread", "a\x00"),
            lambda: saver.list(chain.latest, filter="x"),
            lambda: saver.list(chain.latest, before="0001"),
            lambda: saver.put_writes(at("thread"), [("x", 1)]),
            lambda: saver.put(at("thread"), checkpoint("", {})),
            lambda: saver.put(at("thread"), checkpoint(untyped(None), {})),
            lambda: saver.stats("a\x00"),
            *_malformed(saver, chain),
        ]  # fmt: skip
        for number, call in enumerate(calls):
            with pytest.raises(MilepostError) as caught:
                await call()
            assert isinstance(caught.value, InvalidConfig), f"call {number} raised {caught.value!r}"
        assert await saver.stats() == before
        found = await saver.got(chain.latest)
        assert found.checkpoint["channel_values"] == {"x": 1}
        assert found.pending_writes == [("task", "x", 2)]
