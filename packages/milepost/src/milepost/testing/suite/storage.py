"""What is stored, and how often: every value once, whatever changes around it, and never one value for another."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    AnyMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.types import _DeltaSnapshot  # LangGraph has no public name for it

from milepost.store import Span
from milepost.testing.chain import Chain, at, checkpoint, id_of
from milepost.testing.lab import Face, Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours

TEXT = "Lorem ipsum dolor sit amet, consetetur sadipscing elitr. "


def message(number: int, size: int = 2048) -> AnyMessage:
    """A message of about `size` bytes that no other number has, and that does not compress by much."""
    words = " ".join(f"{(number * 7919 + place) * 2654435761 % 4294967291:x}" for place in range(size // 9))
    kind = (HumanMessage, AIMessage)[number % 2]
    return kind(words, id=str(number))


def sent(saver: Face) -> int:
    """Bytes that the puts of `saver` sent since its events were last cleared."""
    total = sum(event.bytes for event in saver.events if event.op == "put")
    saver.events.clear()
    return total


async def _spans(lab: Lab) -> Sequence[Span]:
    """Where the values of the thread's latest checkpoint lie."""
    loaded = await lab.store_of(lab.saver).get("thread", "", None)
    assert loaded is not None
    return loaded.snapshots[0].row.spans


class Once(Behaviours):
    """A value is stored once per thread."""

    async def test_an_unchanged_channel_beside_a_counter(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        large = TEXT * (1_000_000 // len(TEXT))
        await chain.put({"large": large, "n": 0})
        sent(lab.saver)
        for number in range(1, 50):
            await chain.put({"large": large, "n": number}, changed=("n",))
        assert sent(lab.saver) < 50_000
        assert (await lab.saver.stats("thread")).bytes < 1_100_000
        assert_same({"large": large, "n": 49}, await chain.values())
        assert_same({"large": large, "n": 0}, await chain.values("0001"))

    async def test_a_changed_label_alone_stores_nothing_again(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        state = {
            "text": TEXT * 1000,
            "messages": [message(n) for n in range(20)],
            "map": {str(n): TEXT for n in range(100)},
        }
        await chain.put(state)
        sent(lab.saver)
        for _ in range(10):
            await chain.put(copy.deepcopy(state))
        assert sent(lab.saver) < 20_000
        assert_same(state, await chain.values())

    async def test_a_list_that_grows_is_linear(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        messages: list[AnyMessage] = []
        sizes: dict[int, int] = {}
        for number in range(1000):
            messages.append(message(number))
            await chain.put({"messages": list(messages), "n": number})
            if number + 1 in (100, 1000):
                sizes[number + 1] = (await lab.saver.stats()).bytes
        own = sum(len(one.content) + 100 for one in messages)
        assert sizes[1000] <= 11 * sizes[100], sizes
        assert sizes[1000] <= 1.5 * own, f"{sizes[1000]} bytes for {own} bytes of messages"
        async for saver in lab.views():
            for id, count in (("0500", 500), ("1000", 1000)):
                assert_same(messages[:count], (await saver.got(chain.at(id))).checkpoint["channel_values"]["messages"])

    async def test_a_conversation_beside_another_value_lies_in_few_pieces(self, lab: Lab) -> None:
        """What a header says about a list does not grow with it. Of an input, the write is stored before LangGraph gives it an
        id; a node's answer has one."""
        chain, messages = Chain(lab.saver), list[AnyMessage]()
        for turn in range(80):
            human = turn % 2 == 0
            said = message(turn, 200)
            said.id = None if human else said.id
            path = f"~__pregel_pull, {'__start__' if human else 'model'}"
            await chain.put({"m": list(messages), "text": TEXT * (20 + turn)})
            await chain.writes(("m", [said]), task=f"task {turn}", path=path)
            said.id = str(turn)
            messages.append(said)
        await chain.put({"m": list(messages), "text": "end"})
        assert len(await _spans(lab)) <= 4
        async for saver in lab.views():
            assert_same(messages, (await saver.got(chain.latest)).checkpoint["channel_values"]["m"])
            for item in await saver.list(chain.latest):
                known = messages[: int(item.checkpoint["id"]) - 1]
                assert_same(known, item.checkpoint["channel_values"]["m"])

    async def test_what_nodes_beside_each_other_write_lies_in_few_pieces(self, lab: Lab) -> None:
        chain, lists = Chain(lab.saver), dict[str, list[AnyMessage]]({"a": [], "b": []})
        for turn in range(30):
            await chain.put({name: list(known) for name, known in lists.items()})
            for number, (name, known) in enumerate(lists.items()):
                known.append(message(2 * turn + number, 200))
                await chain.writes((name, known[-1:]), task=f"{name} {turn}", path=f"~__pregel_pull, {name}")
        await chain.put(lists)
        assert len(await _spans(lab)) == 2
        async for saver in lab.views():
            assert_same(lists, (await saver.got(chain.latest)).checkpoint["channel_values"])

    @pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129, 300])
    async def test_a_list_of_any_length(self, lab: Lab, size: int) -> None:
        for name, make in _ELEMENTS.items():
            chain = Chain(lab.saver, name)
            values = [make(number) for number in range(size)]
            for length in (size, size + 1, size + 1, size - 1, 0, size):
                await chain.put({"x": [*values, make(size)][:length]})
            expected = [[*values, make(size)][:length] for length in (size, size + 1, size + 1, size - 1, 0, size)]
            found = await (await lab.reopen()).list(chain.latest)
            assert_same(expected, [item.checkpoint["channel_values"]["x"] for item in reversed(found)], name)
            chain.saver = lab.saver

    async def test_trims_edits_and_reorders_find_their_items_again(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        items = [message(number) for number in range(200)]
        await chain.put({"m": items})
        sent(lab.saver)
        changes: list[list[AnyMessage]] = [
            items[50:],
            items[:120],
            items[:60] + items[90:],
            items[::-1],
            [*items[100:], *items[:100]],
            [items[3]] * 10 + items,
            [SystemMessage("new head"), *items],
            [*items[:100], HumanMessage("an edit in the middle"), *items[101:]],
            items,
        ]
        for changed in changes:
            await chain.put({"m": list(changed)})
        assert sent(lab.saver) < 60_000, "items that are stored were sent again"
        found = await lab.saver.list(chain.latest, limit=len(changes))
        assert_same(changes, [item.checkpoint["channel_values"]["m"] for item in reversed(found)])

    async def test_duplicates_of_one_element(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        one = message(1)
        await chain.put(
            {"m": [one] * 300, "n": [copy.deepcopy(one) for _ in range(5)], "d": {str(n): one for n in range(200)}}
        )
        assert sent(lab.saver) < 30_000
        await chain.put({"m": [one, message(2)] * 200})
        async for saver in lab.views():
            assert_same([one, message(2)] * 200, (await saver.got(chain.latest)).checkpoint["channel_values"]["m"])

    async def test_a_dict_that_grows(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        files: dict[str, Any] = {}
        for number in range(60):
            files[f"file {number}"] = {"text": message(number).content, "lines": number}
            await chain.put({"files": dict(files)})
        assert sent(lab.saver) < 60 * 2500 * 2
        del files["file 7"]
        files["file 9"] = {"text": "other", "lines": 1}
        files["file 0"] = files.pop("file 0")
        await chain.put({"files": files})
        assert sent(lab.saver) < 6_000
        async for saver in lab.views():
            assert_same(files, (await saver.got(chain.latest)).checkpoint["channel_values"]["files"])

    async def test_a_saver_that_loaded_a_thread_does_not_send_it_again(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        state = {"m": [message(number) for number in range(100)], "text": TEXT * 1000}
        await chain.put(state)
        other = lab.open()
        loaded = (await other.got(chain.latest)).checkpoint["channel_values"]
        chain.saver = other
        await chain.put({"m": [*loaded["m"], message(100)], "text": loaded["text"]}, changed=("m",))
        assert sent(other) < 10_000
        await chain.put({"m": [*loaded["m"], message(100)], "text": loaded["text"]})
        assert sent(other) < 10_000
        assert_same({**state, "m": [*state["m"], message(100)]}, await Chain(lab.saver).values())

    async def test_a_saver_without_memory_is_right_all_the_same(self, lab: Lab) -> None:
        saver = lab.open(memory=0)
        chains = [Chain(saver, thread) for thread in "abc"]
        messages = [message(number, 300) for number in range(30)]
        for number in range(30):
            for chain in chains:
                await chain.put({"m": messages[:number], "same": "x" * 500}, changed=("m",) if number else None)
                await chain.writes(("m", messages[number]))
        for chain in chains:
            found = await lab.saver.list(chain.latest)
            for number, item in enumerate(reversed(found)):
                assert_same({"m": messages[:number], "same": "x" * 500}, item.checkpoint["channel_values"])
                assert_same([("task", "m", messages[number])], item.pending_writes)

    async def test_events_count_what_is_new(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        items = [message(number) for number in range(10)]
        await chain.put({"m": items})
        await chain.put({"m": [*items, message(10)]})
        first, second = (event for event in lab.saver.events if event.op == "put")
        assert (first.items_new, first.items_reused) == (10, 0)
        assert (second.items_new, second.items_reused) == (1, 10)
        assert first.bytes > 5_000 > second.bytes > 1_000


_ELEMENTS: dict[str, Callable[[int], Any]] = {
    "numbers": lambda number: number,
    "texts": lambda number: f"{number} " + TEXT,
    "mixed": lambda number: (number, str(number), number / 2, None, bool(number % 2), [number], {"n": number})[
        number % 7
    ],
    "messages": lambda number: message(number, 64),
    "dicts": lambda number: {"n": number, "text": TEXT},
}

Edit = Callable[[AIMessage], None]


def _set(name: str, value: Any) -> Edit:
    return lambda one: setattr(one, name, value)


def _args(one: AIMessage) -> Any:
    return one.tool_calls[0]["args"]


EDITS: dict[str, Edit] = {
    "content": _set("content", "other text"),
    "content of equal value": lambda one: setattr(one, "content", "".join(list("the text"))),
    "content, from text to blocks": _set("content", [{"type": "text", "text": "the text"}]),
    "id": _set("id", "other"),
    "name": _set("name", "ann"),
    "a key of additional_kwargs": lambda one: one.additional_kwargs.update(new=1),
    "a value of additional_kwargs": lambda one: one.additional_kwargs.update(number=2),
    "1 to True": lambda one: one.additional_kwargs.update(number=True),
    "1 to 1.0": lambda one: one.additional_kwargs.update(number=1.0),
    "0.0 to -0.0": lambda one: one.additional_kwargs.update(zero=-0.0),
    "list to tuple": lambda one: one.additional_kwargs.update(deep=tuple(one.additional_kwargs["deep"])),
    "deep inside additional_kwargs": lambda one: one.additional_kwargs["deep"][0]["a"].append(3),
    "additional_kwargs replaced by an equal one": lambda one: setattr(
        one, "additional_kwargs", copy.deepcopy(one.additional_kwargs)
    ),
    "the order of additional_kwargs": lambda one: one.additional_kwargs.update(
        number=one.additional_kwargs.pop("number")
    ),
    "a nested list in tool_calls": lambda one: _args(one)["q"].append("b"),
    "an element of tool_calls' args": lambda one: _args(one)["q"].__setitem__(0, 1),
    "1 to True in tool_calls' args": lambda one: _args(one)["q"].__setitem__(1, True),
    "a tool call more": lambda one: one.tool_calls.append({"name": "f", "args": {}, "id": "2", "type": "tool_call"}),
    "response_metadata": lambda one: one.response_metadata["usage"].update(tokens=2),
    "a field of its own": lambda one: setattr(one, "custom", [1]),
    "inside usage_metadata": lambda one: cast("Any", one.usage_metadata).update(total_tokens=7),
    "usage_metadata": _set("usage_metadata", {"input_tokens": 2, "output_tokens": 1, "total_tokens": 3}),
}


def _fresh() -> AIMessage:
    return AIMessage(
        "the text",
        id="1",
        additional_kwargs={"number": 1, "zero": 0.0, "deep": [{"a": [1, 2]}], "last": None},
        tool_calls=[{"name": "search", "args": {"q": ["a", 1], "limit": 3}, "id": "1", "type": "tool_call"}],
        response_metadata={"usage": {"tokens": 1}},
        usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
    )


class InPlace(Behaviours):
    """A value that the application changed in place between two puts is stored as it is now."""

    @pytest.mark.parametrize("edit", [pytest.param(edit, id=name) for name, edit in EDITS.items()])
    async def test_a_message_edited_between_puts(self, lab: Lab, edit: Edit) -> None:
        chain = Chain(lab.saver)
        edited = _fresh()
        messages = [message(0, 64), edited, ToolMessage("3", tool_call_id="1", id="2")]
        state = {"m": messages, "one": edited, "map": {"k": edited}, "wrapped": [[edited]]}
        await chain.put(state)
        await chain.put(state)
        edit(edited)
        wanted = copy.deepcopy(state)
        await chain.put(state)
        async for saver in lab.views():
            assert_same(wanted, (await saver.got(chain.latest)).checkpoint["channel_values"], "after the edit")
            before = (await saver.got(chain.at("0002"))).checkpoint["channel_values"]
            assert_same(_fresh(), before["m"][1], "before the edit")
            assert_same(_fresh(), before["one"], "before the edit")

    async def test_every_level_of_other_messages(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        blocks = HumanMessage([{"type": "text", "text": "a", "deep": {"x": [1]}}, "b"], id="1", custom={"own": [1]})
        tool = ToolMessage("3", tool_call_id="1", id="2", artifact={"raw": [1, (2, [3])]}, status="success")
        unguarded = AIMessageChunk(content="c", id="3", additional_kwargs={"n": [1]})
        state = {"m": [blocks, tool, unguarded, *(message(number, 64) for number in range(10))]}
        edits: list[Callable[[], Any]] = [
            lambda: cast("Any", blocks.content)[0].update(text="other"),
            lambda: cast("Any", blocks.content)[0]["deep"]["x"].append(2),
            lambda: cast("Any", blocks.content).append("c"),
            lambda: cast("Any", blocks).custom["own"].append(2),
            lambda: setattr(blocks, "another", 1),
            lambda: tool.artifact["raw"][1][1].append(4),
            lambda: setattr(tool, "status", "error"),
            lambda: unguarded.additional_kwargs["n"].append(True),
        ]
        for edit in edits:
            await chain.put(state)
            edit()
            await chain.put(state)
            assert_same(copy.deepcopy(state), await chain.values())

    async def test_a_channel_that_changes_its_kind(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        items = [message(number, 64) for number in range(20)]
        kinds: list[Any] = [
            items, tuple(items), {one.id: one for one in items}, items, None, deque(items), _DeltaSnapshot(items), items,
            [items], {"m": items}, items[0], items[:1], [], items, "text", [1, 2], items,
        ]  # fmt: skip
        for value in kinds:
            await chain.put({"x": value})
        async for saver in lab.views():
            found = await saver.list(chain.latest)
            for value, item in zip(reversed(kinds), found, strict=True):
                assert_same(value, item.checkpoint["channel_values"]["x"])

    async def test_a_message_among_many(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        messages = [message(number, 64) for number in range(300)]
        await chain.put({"m": messages})
        for place in (0, 127, 128, 255, 256, 299):
            messages[place].additional_kwargs["edited"] = [place]
            await chain.put({"m": messages})
            assert_same(messages, (await chain.values())["m"], f"message {place}")
            messages[place].content = f"edited {place}"
            await chain.put({"m": [*messages, message(place, 64)]})
            assert_same([*messages, message(place, 64)], (await chain.values())["m"], f"message {place}")

    async def test_elements_replaced_by_equal_ones_of_another_type(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        for values in ([1] * 200, [True] * 200, [1.0] * 200, [1, True, 1.0, "1"] * 50, [0.0, -0.0, 0, False] * 50):
            state = {"list": values, "map": {str(place): value for place, value in enumerate(values)}, "one": values[0]}
            await chain.put(state)
            assert_same(state, await chain.values())

    async def test_plain_containers_changed_in_place(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        state: dict[str, Any] = {
            "list": [{"n": number, "deep": [number]} for number in range(150)],
            "map": {str(number): [number] for number in range(150)},
            "numbers": list(range(150)),
            "small": {"a": [1]},
        }
        await chain.put(state)
        edits: list[Callable[[], Any]] = [
            lambda: state["list"][140]["deep"].append(1),
            lambda: state["list"][3].update(n=True),
            lambda: state["map"]["7"].append(1),
            lambda: state["map"].pop("8"),
            lambda: state["map"].update({"8": [8]}),
            lambda: state["numbers"].__setitem__(1, True),
            state["numbers"].reverse,
            lambda: state["small"]["a"].append(2),
            state["list"].clear,
        ]
        for edit in edits:
            edit()
            wanted = copy.deepcopy(state)
            await chain.put(state)
            assert_same(wanted, await chain.values())

    async def test_a_message_whose_class_changed(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"m": [HumanMessage("x", id="1"), HumanMessage("y", id="2")]})
        for changed in (
            [AIMessage("x", id="1"), HumanMessage("y", id="2")],
            [RemoveMessage(id="1"), SystemMessage("y", id="2")],
        ):
            await chain.put({"m": changed})
            assert_same(changed, (await chain.values())["m"])


class Forks(Behaviours):
    """Each checkpoint has its own values, whatever their version labels say."""

    async def test_equal_labels_and_other_values(self, lab: Lab) -> None:
        saver = lab.saver
        await saver.put(at("t"), checkpoint("1", {"x": ["base"], "y": 0}, {"x": 1, "y": 1}))
        await saver.put(
            at("t", "", "1"), checkpoint("2", {"x": ["left"] * 99, "y": 1}, {"x": 2, "y": 2}), None, {"x": 2, "y": 2}
        )
        await saver.put(
            at("t", "", "1"), checkpoint("3", {"x": ["right"] * 99, "y": 2}, {"x": 2, "y": 2}), None, {"x": 2, "y": 2}
        )
        await saver.put(
            at("t", "", "2"), checkpoint("4", {"x": ["left"] * 99, "y": 9}, {"x": 2, "y": 3}), None, {"y": 3}
        )
        async for reader in lab.views():
            for id, x, y in (
                ("1", ["base"], 0),
                ("2", ["left"] * 99, 1),
                ("3", ["right"] * 99, 2),
                ("4", ["left"] * 99, 9),
            ):
                assert (await reader.got(at("t", "", id))).checkpoint["channel_values"] == {"x": x, "y": y}

    async def test_channels_that_new_versions_does_not_name(self, lab: Lab) -> None:
        saver = lab.saver
        state = {"a": 1, "b": ["b"] * 100, "c": {"k": "c" * 1000}}
        versions = {"a": 1, "b": 1, "c": 1}
        await saver.put(at("t"), checkpoint("1", state, versions), None, {"a": 1})
        await saver.put(at("u"), checkpoint("1", state, versions), None, {})
        # As update_state makes a copy: no new versions, and every value there.
        await saver.put(at("t", "", "1"), checkpoint("2", state, versions), None, {})
        async for reader in lab.views():
            for place in (at("t", "", "1"), at("u"), at("t")):
                assert (await reader.got(place)).checkpoint["channel_values"] == state

    async def test_a_label_that_moved_without_being_named(self, lab: Lab) -> None:
        saver = lab.saver
        await saver.put(at("t"), checkpoint("1", {"x": ["old"] * 99}, {"x": 1}))
        await saver.put(at("t", "", "1"), checkpoint("2", {"x": ["new"] * 99}, {"x": 2}), None, {})
        await saver.put(at("t", "", "2"), checkpoint("3", {"x": ["text"] * 99}, {"x": "2"}), None, {})
        for id, x in (("1", "old"), ("2", "new"), ("3", "text")):
            assert (await saver.got(at("t", "", id))).checkpoint["channel_values"] == {"x": [x] * 99}

    async def test_a_channel_that_became_empty(self, lab: Lab) -> None:
        saver = lab.saver
        await saver.put(at("t"), checkpoint("1", {"x": ["x"] * 99, "y": 1}, {"x": 1, "y": 1}))
        await saver.put(at("t", "", "1"), checkpoint("2", {"y": 1}, {"x": 2, "y": 1}), None, {"x": 2})
        await saver.put(at("t", "", "2"), checkpoint("3", {"x": None, "y": 1}, {"x": 3, "y": 1}), None, {"x": 3})
        async for reader in lab.views():
            second = (await reader.got(at("t", "", "2"))).checkpoint
            assert second["channel_values"] == {"y": 1}
            assert second["channel_versions"] == {"x": 2, "y": 1}
            assert (await reader.got(at("t"))).checkpoint["channel_values"] == {"x": None, "y": 1}

    async def test_going_on_from_an_old_checkpoint(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        base = [message(number, 200) for number in range(5)]
        await chain.put({"m": base})
        await chain.put({"m": [*base, message(10, 200)]})
        await chain.put({"m": [*base, message(20, 200)]}, parent="0001")
        await chain.put({"m": [*base, message(10, 200), message(11, 200)]}, parent="0002")
        await chain.put({"m": [*base, message(20, 200), message(21, 200)]}, parent="0003", changed=("m",))
        found = {item.checkpoint["id"]: item for item in await (await lab.reopen()).list(chain.latest)}
        numbers = {"0001": [], "0002": [10], "0003": [20], "0004": [10, 11], "0005": [20, 21]}
        parents = {"0001": None, "0002": "0001", "0003": "0001", "0004": "0002", "0005": "0003"}
        for id, added in numbers.items():
            wanted = [*base, *(message(number, 200) for number in added)]
            assert_same(wanted, found[id].checkpoint["channel_values"]["m"], id)
            assert id_of(found[id].parent_config) == parents[id]

    async def test_a_checkpoint_put_again_is_replaced(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": ["old"] * 100}, metadata={"kind": "old"})
        await chain.put({"x": ["child"] * 100})
        await chain.put({"x": ["new"] * 100, "y": 1}, id="0001", parent="", metadata={"kind": "new"})
        async for saver in lab.views():
            found = await saver.got(chain.at("0001"))
            assert found.checkpoint["channel_values"] == {"x": ["new"] * 100, "y": 1}
            assert dict(found.metadata)["kind"] == "new"
            assert await saver.ids(chain.latest, filter={"kind": "old"}) == []
            assert (await saver.got(chain.latest)).checkpoint["channel_values"] == {"x": ["child"] * 100}
            assert (await saver.stats("thread")).checkpoints == 2

    async def test_the_same_put_twice_is_one_put(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        made = checkpoint("0001", {"x": ["x"] * 500})
        for _ in range(3):
            await lab.saver.put(at("thread"), made, {"step": 1})
        assert await chain.ids() == ["0001"]
        assert await chain.values() == {"x": ["x"] * 500}

    @pytest.mark.parametrize("label", [None, 1, 1.5, f"{3:032}.{0.25:016}", f"{99:032}.{0.9:016}", "7", "9.5"])
    async def test_the_next_version_is_greater_and_of_its_type(self, lab: Lab, label: Any) -> None:
        saver = lab.saver.saver
        # Of siblings that were given the same label, each goes on with its own; numbers cannot do that.
        siblings = {saver.get_next_version(label, None) for _ in range(20)}
        assert len(siblings) == (1 if isinstance(label, (int, float)) else 20)
        for version in siblings:
            assert isinstance(version, str if label is None else type(label))
            for _ in range(20):
                after: Any = saver.get_next_version(version, None)
                assert after > version
                version = after  # noqa: PLW2901  # each is the next one's predecessor
            assert label is None or version > label, f"{version!r} does not sort after {label!r}"

    async def test_snapshots_of_delta_channels(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        items = [message(number) for number in range(50)]
        inner: list[Any] = [
            items,
            {"a": items[0]},
            [],
            {},
            None,
            1,
            "text",
            [1, 2, 3],
            tuple(items[:2]),
            _DeltaSnapshot([1]),
        ]
        for value in inner:
            await chain.put({"d": _DeltaSnapshot(value)})
        sent(lab.saver)
        await chain.put({"d": _DeltaSnapshot([*items, message(50)])})
        assert sent(lab.saver) < 10_000, "a snapshot shares no items with the one before"
        found = await (await lab.reopen()).list(chain.latest)
        for value, item in zip(inner, found[:0:-1], strict=True):
            snapshot = item.checkpoint["channel_values"]["d"]
            assert type(snapshot) is _DeltaSnapshot
            assert_same(value, snapshot.value)
