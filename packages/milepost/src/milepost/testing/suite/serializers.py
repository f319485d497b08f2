"""Serializers that the user passes in, and keys: what is stored differs, what comes back does not."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import pickle
from typing import Any

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from milepost.codec.values import Serializer
from milepost.errors import Corrupt, InvalidConfig
from milepost.saver import Saver
from milepost.testing.chain import Chain, at
from milepost.testing.lab import Lab
from milepost.testing.same import assert_same
from milepost.testing.suite.basis import Behaviours, needs
from milepost.testing.suite.values import Person

SECRET = "the-secret-of-this-thread"  # noqa: S105  # it is looked for in what is stored


def _messages(count: int) -> list[AnyMessage]:
    return [HumanMessage(f"{SECRET} {number} " + "words " * 30, id=str(number)) for number in range(count)]


class Turning(CipherProtocol):
    """A cipher good enough for tests: what it makes differs each time, and shows nothing of the text."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._nonces = itertools.count()

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        nonce = next(self._nonces).to_bytes(8, "big")
        return "turning", nonce + self._turned(nonce, plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "turning"
        return self._turned(ciphertext[:8], ciphertext[8:])

    def _turned(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_128(self._key + nonce).digest(len(data))
        return bytes(one ^ other for one, other in zip(data, stream, strict=True))


class Custom:
    """A serializer that nobody knows: JSON for plain data."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        return "custom", json.dumps(obj).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0] == "custom", f"{data[0]!r} was not written by this serializer"
        return json.loads(data[1])


class Serializers(Behaviours):
    """A serializer of the user's, and keys."""

    @pytest.mark.parametrize("kind", ["official", "encrypted", "custom", "keys"])
    async def test_a_run(self, lab: Lab, kind: str) -> None:
        options = _options(kind)
        saver = lab.open(**options)
        texts: list[Any] = _messages(60) if kind != "custom" else [one.content for one in _messages(60)]
        chain = Chain(saver)
        for number in range(0, 60, 6):
            await chain.put(
                {"m": texts[:number], "n": number, "d": {str(n): texts[n] for n in range(number)}},
                metadata={"user": SECRET},
            )
            await chain.writes(("m", texts[number]), ("__error__", "e"))
        for reader in (saver, lab.open(**options)):
            found = await reader.list(chain.latest)
            for item, number in zip(reversed(found), range(0, 60, 6), strict=True):
                values = item.checkpoint["channel_values"]
                assert_same(texts[:number], values["m"])
                assert_same({str(n): texts[n] for n in range(number)}, values["d"])
                assert_same([("task", "__error__", "e"), ("task", "m", texts[number])], item.pending_writes)
            assert await reader.ids(chain.latest, filter={"user": SECRET, "step": 3}) == ["0003"]
        await saver.copy_thread("thread", "copy")
        await saver.prune(["thread"])
        await saver.delete_for_runs(["nobody"])
        values = (await saver.got(at("copy"))).checkpoint["channel_values"]
        assert_same(texts[:54], values["m"])
        assert_same(texts[:54], (await chain.values())["m"])
        await chain.put({"m": texts, "n": 60})
        assert_same(texts, (await chain.values())["m"])

    @pytest.mark.parametrize("kind", ["official", "encrypted", "keys"])
    async def test_values_are_stored_once_all_the_same(self, lab: Lab, kind: str) -> None:
        saver = lab.open(**_options(kind))
        chain = Chain(saver)
        messages = _messages(100)
        await chain.put({"m": messages})
        saver.events.clear()
        await chain.put({"m": [*copy.deepcopy(messages), HumanMessage("more")]})
        [event] = saver.events
        assert event.items_new <= 1
        assert event.bytes < 5_000

    @pytest.mark.parametrize("kind", ["encrypted", "keys"])
    @needs("durable", "damage")
    async def test_nothing_secret_lies_in_the_clear(self, lab: Lab, kind: str) -> None:
        chain = Chain(lab.open(**_options(kind)))
        await chain.put({"m": _messages(10), "text": SECRET, "small": SECRET[:12]}, metadata={"about": SECRET})
        await chain.writes(("m", SECRET), ("__error__", SECRET))
        await chain.put({"m": _messages(300), "text": SECRET, "d": {SECRET: SECRET}}, metadata={"about": SECRET})
        await lab.close()
        media = lab.subject.media()
        assert media
        for name, data in media.items():
            assert SECRET[:12].encode() not in data, f"{name} shows what is encrypted"

    async def test_a_wrong_key(self, lab: Lab) -> None:
        chain = Chain(lab.open(keys={"k1": b"1" * 32}))
        await chain.put({"x": "x" * 100})
        with pytest.raises(InvalidConfig, match="k1"):
            await lab.open(keys={"k2": b"2" * 32}).get(chain.latest)
        with pytest.raises(InvalidConfig):
            await lab.open().get(chain.latest)
        with pytest.raises(Corrupt):
            await lab.open(keys={"k1": b"2" * 32}).get(chain.latest)
        assert await chain.values() == {"x": "x" * 100}

    async def test_keys_are_rotated(self, lab: Lab) -> None:
        one, two = b"1" * 32, b"2" * 16
        old = Chain(lab.open(keys={"k1": one}))
        await old.put({"m": _messages(20), "x": "x" * 500})
        both = lab.open(keys={"k2": two, "k1": one})
        chain = Chain(both)
        chain.head = "0001"
        values = await chain.values()
        await chain.put({"m": [*values["m"], HumanMessage("new")], "x": "y" * 500}, id="0002")
        await chain.put({"alone": "z" * 500}, id="0003", parent="")
        assert_same([*_messages(20), HumanMessage("new")], (await chain.values("0002"))["m"])
        only_new = lab.open(keys={"k2": two})
        assert (await only_new.got(at("thread", "", "0003"))).checkpoint["channel_values"] == {"alone": "z" * 500}
        with pytest.raises(InvalidConfig, match="k1"):
            await only_new.get(at("thread", "", "0001"))

    async def test_unusable_keys(self, lab: Lab) -> None:
        for keys in ({"k": b"short"}, {"": b"1" * 32}, {"k" * 300: b"1" * 32}):
            with pytest.raises(InvalidConfig):
                lab.open(keys=keys)

    async def test_a_saver_is_copied_in_its_process_alone(self, lab: Lab) -> None:
        saver = lab.open().saver
        for away in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="by its URL"):
                away(saver)
        clone = copy.copy(saver)
        assert clone.backend is saver.backend
        assert saver.backend.name in repr(saver)
        saver.close()
        assert "closed" in repr(clone)

    async def test_a_serializer_assigned_later(self, lab: Lab) -> None:
        chain = Chain(lab.saver)
        await chain.put({"x": [1, "a"] * 100})
        lab.saver.saver.serde = JsonPlusSerializer()
        await chain.put({"x": [1, "a"] * 100, "y": (1, 2)})
        assert await chain.values("0001") == {"x": [1, "a"] * 100}
        lab.saver.saver.serde = EncryptedSerializer(Turning(b"a key"))
        await chain.put({"x": [1, "a"] * 100})
        await chain.writes(("x", {"a": 1}))
        for id in ("0001", "0002", "0003"):
            assert (await chain.values(id))["x"] == [1, "a"] * 100
        assert (await lab.saver.got(chain.latest)).pending_writes == [("task", "x", {"a": 1})]

    async def test_an_allowlist(self, lab: Lab) -> None:
        state = {"one": Person(name="ann"), "list": [Person(name="bob", age=7)] * 2, "m": _messages(3)}
        strict = lab.open(serde=Serializer(allowed_msgpack_modules=None))
        chain = Chain(strict)
        await chain.put(state)
        await chain.writes(("one", state["one"]))
        blocked = await strict.got(chain.latest)
        assert blocked.checkpoint["channel_values"]["one"] == {"name": "ann", "age": None}
        assert_same(_messages(3), blocked.checkpoint["channel_values"]["m"])
        clone = strict.saver.with_allowlist([(Person.__module__, "Person")])
        assert isinstance(clone, Saver)
        for _ in range(2):  # LangGraph makes a clone for each call
            found = await strict.clone(clone).got(chain.latest)
            assert_same(state, found.checkpoint["channel_values"])
            assert_same([("task", "one", state["one"])], found.pending_writes)
        still = await strict.got(chain.latest)
        assert type(still.checkpoint["channel_values"]["one"]) is dict, "the clone's allowlist became the original's"


def _options(kind: str) -> dict[str, Any]:
    options: dict[str, dict[str, Any]] = {
        "official": {"serde": JsonPlusSerializer()},
        "encrypted": {"serde": EncryptedSerializer(Turning(b"a key"))},
        "custom": {"serde": Custom()},
        "keys": {"keys": {"k1": b"0123456789abcdef0123456789abcdef"}},
    }
    return options[kind]
