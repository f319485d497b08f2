"""Messages that the part in C reads from msgpack by itself are those that ormsgpack and the hook make of the same bytes."""

from __future__ import annotations

import gc
import random
import struct
import tracemalloc
from typing import Any

import ormsgpack
import pytest
from exactly import same
from in_c import needs_c
from langchain_core.messages import AIMessageChunk, AnyMessage, HumanMessage, ToolMessage
from milepost.codec import messages
from milepost.codec.exts import PYDANTIC_V2, array_header
from milepost.codec.messages import SHAPES
from milepost.codec.revive import Policy, Revival
from milepost.codec.values import Serializer
from milepost.errors import Corrupt, MilepostError
from unit.test_revive_compiled import CALL, USUAL, variants

pytestmark = needs_c

serde = Serializer()


def read(item: bytes, texts: dict[int, str] | None = None) -> Any:
    """The message that an item is, or None where it is left to ormsgpack."""
    made = messages.compiled()
    assert made is not None
    found = made.read([item], texts)
    return None if found is None else found[0][0]


def decoded(item: bytes) -> Any:
    try:
        return serde.decode(item)
    except MilepostError as exc:
        return type(exc)


def extension(payload: bytes) -> bytes:
    return b"\xc8" + struct.pack(">HB", len(payload), PYDANTIC_V2) + payload


def payload_of(message: AnyMessage, fields: Any = None) -> bytes:
    shape = SHAPES[type(message)]
    parts = [shape.module, shape.name, dict(message.__dict__) if fields is None else fields, "model_validate_json"]
    return ormsgpack.packb(parts, option=ormsgpack.OPT_NON_STR_KEYS)


def other_keys(value: Any) -> bool:
    """Whether there is a dict in it with keys that are no text."""
    if isinstance(value, dict):
        return any(not isinstance(key, str) for key in value) or any(map(other_keys, value.values()))
    return isinstance(value, list) and any(map(other_keys, value))


def with_artifact(value: bytes) -> bytes:
    """A tool's message whose artifact is this msgpack."""
    mark = "the artifact comes here"
    payload = payload_of(ToolMessage("t", tool_call_id="1", artifact=mark))
    return extension(payload.replace(ormsgpack.packb(mark), value))


@pytest.mark.parametrize("message", USUAL, ids=lambda message: f"{message.type} {message.content!s:.5}")
def test_every_variant_is_read_alike_or_left(message: AnyMessage) -> None:
    shape = SHAPES[type(message)]
    for given in variants(message):
        payload = payload_of(message, given)
        item, fields = extension(payload), ormsgpack.unpackb(payload, option=ormsgpack.OPT_NON_STR_KEYS)[2]
        found = read(item)
        if found is None:
            assert shape.build(fields) is None or other_keys(fields), fields
        else:
            assert same(found, decoded(item)), fields
            assert found.__dict__ is not read(item).__dict__


VALUES = [
    *(struct.pack("B", number) for number in (*range(0x80), *range(0xE0, 0x100))),
    b"\xc0", b"\xc2", b"\xc3",
    *(b"\xcc" + bytes([number]) for number in (0, 127, 128, 255)),
    *(b"\xcd" + struct.pack(">H", number) for number in (0, 1 << 15, (1 << 16) - 1)),
    *(b"\xce" + struct.pack(">I", number) for number in (0, 1 << 31, (1 << 32) - 1)),
    *(b"\xcf" + struct.pack(">Q", number) for number in (0, 1 << 63, (1 << 64) - 1)),
    *(b"\xd0" + struct.pack(">b", number) for number in (-128, -1, 0, 127)),
    *(b"\xd1" + struct.pack(">h", number) for number in (-(1 << 15), -1, 0, (1 << 15) - 1)),
    *(b"\xd2" + struct.pack(">i", number) for number in (-(1 << 31), -1, 0, (1 << 31) - 1)),
    *(b"\xd3" + struct.pack(">q", number) for number in (-(1 << 63), -1, 0, (1 << 63) - 1)),
    *(b"\xca" + struct.pack(">f", number) for number in (0.0, -0.0, 1.5, float("inf"), float("nan"), 1e-45)),
    *(b"\xcb" + struct.pack(">d", number) for number in (0.0, -0.0, 0.1, float("-inf"), float("nan"), 5e-324)),
    b"\xa0", b"\xa3abc", b"\xd9\x03abc", b"\xda\x00\x03abc", b"\xdb\x00\x00\x00\x03abc",
    "\xdb".encode("latin-1") + struct.pack(">I", 9) + "ä€𝄞".encode(),
    b"\xc4\x02\x00\xff", b"\xc5\x00\x02\x00\xff", b"\xc6\x00\x00\x00\x02\x00\xff",
    b"\x90", b"\x92\x01\xc0", b"\xdc\x00\x02\x01\xc0", b"\xdd\x00\x00\x00\x02\x01\xc0",
    b"\x80", b"\x81\xa1a\x01", b"\xde\x00\x01\xa1a\x01", b"\xdf\x00\x00\x00\x01\xa1a\x01",
    b"\x82\xa1a\x01\xa1a\x02", b"\x82\xa1a\x01\xd9\x01a\x02",  # the last one counts
    *(b"\x91" * depth + b"\xc0" for depth in range(1, 32)),
    *(b"\x81\xa1a" * depth + b"\xc0" for depth in range(1, 32)),
    b"\x81\xd9\x40" + b"k" * 64 + b"\x01", b"\x81\xa5\xc3\xa4\xe2\x82\xac\x01",
]  # fmt: skip
LEFT = [
    b"", b"\xc1", b"\xd4\x05\x00", b"\xc7\x00\x05", b"\xc9\x00\x00\x00\x00\x05",
    b"\x81\x01\x02", b"\x81\xc0\x02", b"\x81\xc4\x01a\x02",  # keys that are no text
    b"\xa2\xff\xfe", b"\xa3\xed\xa0\x80", b"\x81\xa2\xff\xfe\x01",  # no text
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff",
    b"\x91" * 40 + b"\xc0", b"\x81\xa1a" * 40 + b"\xc0",
]  # fmt: skip


def test_every_kind_of_value() -> None:
    for value in VALUES:
        item = with_artifact(value)
        found = read(item)
        assert found is not None, value
        assert same(found, serde.decode(item)), value


def test_what_is_left_to_ormsgpack() -> None:
    for value in LEFT:
        assert read(with_artifact(value)) is None, value


@pytest.mark.parametrize("message", USUAL, ids=lambda message: f"{message.type} {message.content!s:.5}")
def test_items_that_are_cut_short_or_go_on(message: AnyMessage) -> None:
    item = serde.encode(message)
    assert same(read(item), serde.decode(item))
    for size in range(len(item)):
        assert read(item[:size]) is None
    for more in (b"\xc0", item, b"\x00"):
        assert read(item + more) is None


def test_bytes_that_were_changed() -> None:
    chance = random.Random(5)
    whole = [serde.encode(message) for message in USUAL]
    for _ in range(20_000):
        item = bytearray(chance.choice(whole))
        for _ in range(chance.randint(1, 3)):
            item[chance.randrange(len(item))] = chance.randrange(256)
        found = read(bytes(item))
        if found is not None:
            assert same(found, decoded(bytes(item))), bytes(item)


def test_among_others() -> None:
    values: list[Any] = [USUAL[0], "text", USUAL[3], {1: 2}, AIMessageChunk(content="c"), None, USUAL[5], [USUAL[1]]]
    assert same(serde.decode_each(list(map(serde.encode, values))), serde.decode(serde.encode(values)))
    assert serde.decode_each([serde.encode(1), serde.encode(USUAL[0])]) is None, "no transcript"
    assert serde.decode_each([]) == []
    with pytest.raises(Corrupt):
        serde.decode_each([serde.encode(USUAL[0]), b"\xc1"])
    with pytest.raises(Corrupt):
        serde.decode_each([serde.encode(USUAL[0]), serde.encode(1) + serde.encode(2)])


def test_whoever_reads_otherwise() -> None:
    items = [serde.encode(USUAL[0])]
    assert serde.renaming({}).decode_each(items) is not None
    renamed = Policy(None, "error", serde._policy.registry, pickles=False, renamed={("a", "b"): ("c", "d")})
    assert Revival.read(renamed, items, None) is None
    assert Serializer(__unpack_ext_hook__=lambda *_: None).decode_each(items) is None


def test_long_texts_are_shared_and_nothing_else_is() -> None:
    long, short = "long " * 100, "short"
    items = [serde.encode(HumanMessage(text, additional_kwargs={"a": []})) for text in (long, short)]
    texts: dict[int, str] = {}
    one, other = (serde.decode_each(items, texts) for _ in range(2))
    assert one is not None
    assert other is not None
    assert same(one, other)
    assert one[0].content is other[0].content
    assert one[0] is not other[0]
    assert one[0].__dict__ is not other[0].__dict__
    assert one[0].additional_kwargs is not other[0].additional_kwargs
    assert one[0].additional_kwargs["a"] is not other[0].additional_kwargs["a"]
    assert one[0].model_fields_set is not other[0].model_fields_set
    assert list(texts.values()) == [long]
    parts = [serde.encode(HumanMessage([{"type": "text", "text": long}]))]
    one, other = (serde.decode_each(parts, texts) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one[0].content is not other[0].content


def test_a_text_is_shared_only_where_it_is_one() -> None:
    """Of an item that is no message after all, nothing is taken for another's text."""
    text = "x" * 100
    texts: dict[int, str] = {}
    broken = serde.encode(HumanMessage(text))[:-1] + b"\xc1"
    assert read(broken, texts) is None
    whole = serde.encode(HumanMessage("y" * 100))
    found = serde.decode_each([whole], texts)
    assert found is not None
    assert found[0].content == "y" * 100


def test_nothing_leaks() -> None:
    items = [serde.encode(message) for message in USUAL]
    broken = [item[:cut] for item in items for cut in range(0, len(item), 7)]
    broken += [with_artifact(value) for value in (*VALUES, *LEFT)]
    made = messages.compiled()
    assert made is not None
    known = items[0]

    def once() -> None:
        for item in broken:
            made.read([known, item], {})

    once()
    gc.collect()
    tracemalloc.start()
    try:
        once()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20):
            once()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()


def test_a_list_is_what_its_items_are() -> None:
    chance = random.Random(9)
    whole = [chance.choice(USUAL) for _ in range(300)]
    items = list(map(serde.encode, whole))
    assert same(serde.decode_each(items), serde.decode(b"".join((array_header(300), *items))))


@pytest.mark.parametrize("arguments", [((), None), ([], 1), ([],), ("x", None)])
def test_arguments_that_make_no_sense(arguments: Any) -> None:
    made = messages.compiled()
    assert made is not None
    with pytest.raises(TypeError):
        made.read(*arguments)
    assert made.read([1], None) is None  # type: ignore[list-item]
    assert made.read([CALL], None) is None  # type: ignore[list-item]
