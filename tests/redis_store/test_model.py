"""The Redis store against the memory store: the same operations get the same answers, and Lua decides as Python does."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
import redis
from files.test_model import Clock, World
from hypothesis import given, settings
from hypothesis import strategies as st
from milepost.memory import MemoryBackend
from milepost.store import Batch, Chart, Loaded, Store, sort_key
from milepost_redis.scripts import scripts
from redis_store.kit import Place, session


class Still:
    """A store in which it is always the same time: that of a server cannot be set."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        async def call(*arguments: Any) -> Any:
            answer = await getattr(self._store, verb)(*arguments)
            if isinstance(answer, Loaded):
                snapshots = tuple(one._replace(row=one.row._replace(at=0.0)) for one in answer.snapshots)
                return replace(answer, snapshots=snapshots)
            if isinstance(answer, (Batch, Chart)):
                return replace(answer, rows=tuple(row._replace(at=0.0) for row in answer.rows))
            return answer

        return call


def _still(store: Store) -> Any:
    return Still(store)


class RedisWorld(World):
    """As the file store's."""

    def __init__(self, place: Place, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.place = place
        self.model = _still(MemoryBackend(self.clock).blocking())
        self.generations = {}
        self.items = 0
        self.open()

    def open(self) -> None:
        self.opened = self.place.backend()
        self.subject = _still(self.opened.blocking())

    def reopen(self) -> None:
        self.opened.close()
        self.open()


@pytest.mark.parametrize("seed", range(4))
def test_the_same_operations_get_the_same_answers(place: Place, seed: int) -> None:
    world = RedisWorld(place, seed)
    for number in range(160):
        world.step()
        if number % 12 == 11:
            world.compare()
    world.reopen()
    world.compare()
    world.opened.close()


IDS = st.text(st.sampled_from("\x01\x02ab~\x7f\x80é\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"), max_size=6)


def _rule(call: str) -> str:
    """A script that answers with what one function of the fragments says."""
    put = scripts()["put"].text.decode()
    fragments = put[: put.index("local ttl, generation")]
    return fragments + "\nreturn " + call


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(id=IDS.filter(bool), above=st.none() | IDS)
def test_sort_keys_are_those_of_python(id: str, above: str | None) -> None:
    with session("rules").client() as client:
        script = _rule("sort_key(ARGV[1], ARGV[2] == '-' and nil or string.sub(ARGV[2], 2))")
        given = "-" if above is None else f"={above}"
        found = client.eval(script, 2, "{rules}", "{rules}:order", id, given)
    assert found.decode() == sort_key(id, above)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(one=IDS, other=IDS)
def test_texts_are_compared_by_code_point(one: str, other: str) -> None:
    with session("rules").client() as client:
        found = client.eval(_rule("less(ARGV[1], ARGV[2]) and 1 or 0"), 2, "{rules}", "{rules}:order", one, other)
    assert bool(found) == (one < other)


def test_every_script_loads_under_its_digest(client: redis.Redis) -> None:
    assert len(scripts()) > 10
    for script in scripts().values():
        assert client.script_load(script.text.decode()) == script.sha.decode()
        used = [re.findall(rf"\b{function}\b", script.text.decode()) for function in functions(script.text.decode())]
        assert all(len(uses) > 1 for uses in used), "a function that is not used costs time in every call"


def functions(text: str) -> list[str]:
    return re.findall(r"^local function (\w+)", text, re.MULTILINE)
