"""Which small packs are merged, and when."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from milepost.codec.envelope import wrap
from milepost.codec.loose import LARGE, MOST, RUN, Loose
from milepost.codec.pack import COMPRESS_OVER
from milepost.store import Pack


def pack(first: int, count: int = 1, size: int = 10) -> Pack:
    return Pack(7, first, count, wrap(bytes(size)))


def loose(packs: Iterable[Pack]) -> Loose:
    found = Loose()
    for one in packs:
        found.add(one)
    return found


def test_as_soon_as_there_are_enough_of_them() -> None:
    packs = loose(map(pack, range(1, RUN)))
    assert packs.due() == ()
    packs.add(pack(RUN))
    assert packs.due() == [pack(number) for number in range(1, RUN + 1)]
    assert packs.due() == packs.due(), "it is asked again where the first answer led to nothing"
    packs.done(packs.due())
    assert (packs.due(), packs.size) == ((), 0)


def test_in_any_order() -> None:
    numbers = list(range(1, RUN + 1))
    random.Random(3).shuffle(numbers)
    assert loose(map(pack, numbers)).due() == [pack(number) for number in range(1, RUN + 1)]


def test_packs_of_several_items() -> None:
    packs = [pack(1 + 3 * number, 3) for number in range(RUN)]
    assert loose(packs).due() == packs


def test_nothing_goes_over_a_gap() -> None:
    packs = loose(map(pack, (*range(1, 11), *range(12, RUN + 12))))
    assert packs.due() == [pack(number) for number in range(1, 11)]
    packs.done(packs.due())
    assert packs.due() == [pack(number) for number in range(12, RUN + 12)]


def test_what_fills_a_gap_in_time() -> None:
    packs = loose(map(pack, (*range(1, 11), *range(12, RUN))))
    assert packs.due() == ()
    packs.add(pack(11))
    packs.add(pack(RUN))
    assert packs.due() == [pack(number) for number in range(1, RUN + 1)]


def test_a_few_before_a_gap_stay_as_they_are() -> None:
    packs = loose(map(pack, (1, 2, 3, *range(5, RUN + 2))))
    assert packs.due() == (), "and the others are not enough yet"
    packs.add(pack(RUN + 2))
    packs.add(pack(RUN + 3))
    packs.add(pack(RUN + 4))
    assert packs.due() == [pack(number) for number in range(5, RUN + 5)]


def test_gaps_everywhere() -> None:
    packs = loose(pack(2 * number) for number in range(10 * RUN))
    assert packs.due() == ()
    assert packs.size < RUN * 20, "what will never be merged is not kept"


def test_no_more_than_can_be_merged_at_once() -> None:
    packs = loose(map(pack, range(1, 2 * MOST)))
    assert packs.due() == [pack(number) for number in range(1, MOST + 1)]


def test_as_soon_as_they_are_large_enough() -> None:
    size = 6000
    enough = LARGE // (size + 6)
    packs = loose(pack(number, size=size) for number in range(1, enough + 1))
    assert packs.due() == ()
    packs.add(pack(enough + 1, size=size))
    assert packs.due() == [pack(number, size=size) for number in range(1, enough + 1)]
    packs.done(packs.due())
    assert packs.due() == ()


@pytest.mark.parametrize("large", [1, 5])
def test_large_ones_are_left_alone(large: int) -> None:
    room = COMPRESS_OVER - 6
    packs = loose(pack(number, size=room + (number == large)) for number in range(1, RUN))
    assert packs.due()
    assert all(one.first != large for one in packs.due())


def test_what_is_small_by_compression_is_left_alone() -> None:
    packs = loose(Pack(7, number, 1, wrap(bytes(100_000), compress_over=0)) for number in range(1, 2 * RUN))
    assert (packs.due(), packs.size) == ((), 0)
