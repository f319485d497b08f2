"""Which items are numbered one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.codec.coding import OwnCoding
from milepost.codec.items import Block, Item, Many
from milepost.codec.lanes import Fresh, Lanes, of_list
from milepost.codec.values import Serializer

CODING = OwnCoding(Serializer())
PATH = "~__pregel_pull, node"


def item(number: int) -> Item:
    return Item(b"%d" % number, CODING)


def many(items: Sequence[Item]) -> Many:
    return Many([Block(list(items[:100])), Block(list(items[100:]))], len(items))


def test_each_lane_has_numbers_in_a_row_and_a_writer_of_its_own() -> None:
    lanes = Lanes()
    one, two = lanes.allocate(("", "a"), 2), lanes.allocate(("", "b"), 1)
    assert (one[1], two[1]) == (1, 1)
    assert one[0] != two[0]
    assert lanes.allocate(("", "a"), 1) == (one[0], 3)
    assert lanes.allocate(("", "b"), 1) == (two[0], 2)


def test_calls_of_a_subgraph_share_its_lanes() -> None:
    for ns in ("", "node", "node|inner"):
        assert of_list(ns, "m") == (ns, "m")
    assert of_list("node:1f-2|inner:3", "m") == of_list("node:9|inner:8a", "m") == ("node|inner", "m")
    assert Lanes().of_write("node:1", "m", PATH) == ("node", "m")


def test_only_the_last_numbers_can_be_given_back() -> None:
    lanes = Lanes()
    writer, _ = lanes.allocate((), 2)
    first = Fresh((), [item(1), item(2)], writer, 1)
    last = Fresh((), [item(3)], *lanes.allocate((), 1))
    lanes.give_back(first)
    assert lanes.allocate((), 1) == (writer, 4)
    lanes.give_back(last)
    assert lanes.allocate((), 1) == (writer, 5)
    lanes.give_back(Fresh((), [item(5)], writer, 5))
    assert lanes.allocate((), 1) == (writer, 5)


def test_a_forgotten_lane_never_gets_its_numbers_again() -> None:
    lanes = Lanes()
    writer, _ = lanes.allocate(("", "a"), 1)
    for number in range(300):
        lanes.allocate(("", str(number)), 1)
    again = lanes.allocate(("", "a"), 1)
    assert again[0] != writer
    assert again[1] == 1


def test_writes_share_the_lane_of_the_list_that_takes_them() -> None:
    lanes, items = Lanes(), [item(number) for number in range(300)]
    for number in range(1, 300):
        assert lanes.of_write("", "m", PATH) == ("", "m")
        lanes.wrote("", "m", str(number), PATH, items[number])
        # The next step may have written before the list is put.
        if number > 1:
            lanes.took("", "m", str(number - 1), many(items[:number]))


def test_writes_that_it_does_not_take_have_their_own_until_it_does() -> None:
    lanes, items = Lanes(), [item(number) for number in range(100)]
    mine: list[bool] = []
    for number, one in enumerate(items):
        taken = number >= 50
        mine.append(lanes.of_write("", "m", PATH) != ("", "m"))
        lanes.wrote("", "m", str(number), PATH, one)
        lanes.took("", "m", str(number), many(items[: number + 1] if taken else items[:number]))
        assert lanes.of_write("", "m", "another") == ("", "m")
        assert lanes.of_write("sub", "m", PATH) == ("sub", "m")
    assert mine[2:50] == [True] * 48
    assert mine[60:] == [False] * 40


def test_an_occasional_one_does_not_count() -> None:
    lanes, items = Lanes(), [item(number) for number in range(100)]
    for number, one in enumerate(items):
        assert lanes.of_write("", "m", PATH) == ("", "m")
        lanes.wrote("", "m", str(number), PATH, one)
        lanes.took("", "m", str(number), many(items[:number] if number % 10 == 9 else items[: number + 1]))
