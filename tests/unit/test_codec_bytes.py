"""The byte layers of the codec: envelopes, packs, headers, layouts."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_c import needs_c
from milepost.codec.envelope import FORMAT, Vault, checksum, unwrap, wrap
from milepost.codec.exts import array_header
from milepost.codec.header import front, numbered, open_header, seal_header, shallow
from milepost.codec.layout import INLINE, KEYED, MANY, ONE, TYPED, from_wire, spans_of, to_wire
from milepost.codec.pack import open_pack, repack, seal_pack
from milepost.codec.values import Serializer
from milepost.errors import Corrupt, FormatTooNew, InvalidConfig
from milepost.store import Pack, Span, Tombstone, merge_spans, sort_key

serde = Serializer()
KEY = {"k1": b"0" * 32}


@pytest.mark.parametrize("vault", [None, Vault(KEY)], ids=["plain", "sealed"])
@pytest.mark.parametrize("payload", [b"", b"x", b"abc" * 10_000], ids=["empty", "small", "large"])
def test_an_envelope_gives_back_what_it_holds(vault: Vault | None, payload: bytes) -> None:
    data = wrap(payload, compress_over=1000, vault=vault, about=b"here")
    assert unwrap(data, vault=vault, about=b"here") == payload
    assert len(data) < 1000


@pytest.mark.parametrize("vault", [None, Vault(KEY)], ids=["plain", "sealed"])
def test_every_flipped_bit_and_every_cut_of_an_envelope_is_noticed(vault: Vault | None) -> None:
    data = wrap(b"the payload, long enough to matter", vault=vault, about=b"here")
    for at in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(Corrupt):
            unwrap(bytes(damaged), vault=vault, about=b"here")
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            unwrap(data[:end], vault=vault, about=b"here")


def test_a_newer_format_is_refused() -> None:
    data = struct.pack("<BBI", FORMAT + 1, 0, checksum(b"x", 0, FORMAT + 1)) + b"x"
    with pytest.raises(FormatTooNew) as caught:
        unwrap(data)
    assert (caught.value.found, caught.value.supported) == (FORMAT + 1, FORMAT)


def test_sealed_bytes_need_their_key_and_their_place() -> None:
    vault = Vault(KEY)
    data = wrap(b"secret text", vault=vault, about=b"here")
    assert b"secret" not in data
    with pytest.raises(InvalidConfig, match="sealed"):
        unwrap(data)
    with pytest.raises(InvalidConfig, match="k1"):
        unwrap(data, vault=Vault({"other": b"1" * 32}), about=b"here")
    with pytest.raises(Corrupt):
        unwrap(data, vault=vault, about=b"there")
    rotated = Vault({"k2": b"2" * 16, **KEY})
    assert unwrap(data, vault=rotated, about=b"here") == b"secret text"
    assert b"k2" in wrap(b"x", vault=rotated)


def test_what_is_sealed_is_bound_to_a_tenant() -> None:
    one, two, whole = Vault(KEY, tenant="one"), Vault(KEY, tenant="two"), Vault(KEY)
    about, named = b"header\0t\0\0id", b"header\0\x1done\x1dt\0\0id"
    sealed = one.seal(b"secret", about)
    assert one.open(sealed, about) == whole.open(sealed, named) == b"secret"
    assert one.open(whole.seal(b"secret", named), about) == b"secret"
    for vault, place in ((two, about), (whole, about), (whole, named.replace(b"one", b"two"))):
        with pytest.raises(Corrupt):
            vault.open(sealed, place)
    # What was sealed before tenants counted.
    assert two.open(whole.seal(b"old", about), about) == b"old"


@pytest.mark.parametrize("keys", [{}, {"k": b"short"}, {"": b"0" * 32}, {"x" * 256: b"0" * 32}])
def test_unusable_keys_are_refused(keys: dict[str, bytes]) -> None:
    with pytest.raises(InvalidConfig):
        Vault(keys)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20), st.data())
def test_a_pack_gives_back_its_items_whole_and_in_part(items: list[bytes], data: st.DataObject) -> None:
    pack = seal_pack("t", 7, 100, items, [zlib.crc32(item) for item in items], None)
    opened = open_pack("t", pack, None)
    assert opened.items(0, len(items)) == items
    start = data.draw(st.integers(0, len(items) - 1))
    stop = data.draw(st.integers(start + 1, len(items)))
    parts = repack("t", pack, [Span(7, 100 + start, stop - start), Span(8, 0, 1000)], None)
    assert [(part.first, part.count) for part in parts] == [(100 + start, stop - start)]
    assert open_pack("t", parts[0], None).items(0, stop - start) == items[start:stop]


def test_a_pack_that_claims_another_count_is_corrupt() -> None:
    pack = seal_pack("t", 1, 1, [b"a", b"b"], [1, 2], None)
    with pytest.raises(Corrupt):
        open_pack("t", Pack(1, 1, 3, pack.data), None)


LAYOUTS: list[Any] = [
    (INLINE, b"\xc0"),
    (ONE + TYPED, 1 << 62, 5, 99),
    (MANY, 1000, ((1 << 62, 5, 998), (3, 1, 2)), 12345),
    (KEYED, (INLINE, b"\x90"), (MANY, 1, ((3, 9, 1),), 1)),
]


def test_layouts_survive_the_wire_and_name_their_spans() -> None:
    writers: dict[int, int] = {}
    wires = [to_wire(layout, writers) for layout in LAYOUTS]
    assert [from_wire(wire, list(writers)) for wire in wires] == LAYOUTS
    spans = merge_spans(span for layout in LAYOUTS for span in spans_of(layout))
    assert spans == (Span(3, 1, 2), Span(3, 9, 1), Span(1 << 62, 5, 998))


@pytest.mark.parametrize("wire", [[], [9], [2, 1, [0, 1], 2], [1, 7, 1, 1], "x", [3, [0, b""], [5]]])
def test_a_layout_that_makes_no_sense_is_corrupt(wire: Any) -> None:
    with pytest.raises(Corrupt):
        from_wire(wire, [1])


labels = st.one_of(
    st.integers(0, 1 << 70),
    st.floats(0, 1e6),
    st.text(max_size=5),
    st.builds(lambda n, f: f"{n:032}.{f:016}", st.integers(0, 1 << 80), st.floats(0, 1)),
    st.just(f"{5:032}.00000000000000.5"),
    st.just("0" * 32 + ".nan"),
    st.just("\u0660" * 32 + ".0000000000000001"),
)
names = st.text(max_size=4)


@given(
    st.dictionaries(names, labels, max_size=4),
    st.dictionaries(names, st.dictionaries(names, labels, max_size=3), max_size=3),
    st.dictionaries(names, st.text(max_size=3), max_size=3),
)
def test_a_header_gives_back_versions_of_every_kind(
    versions: dict[str, Any], seen: dict[str, Any], metadata: dict[str, Any]
) -> None:
    checkpoint: Any = {
        "v": 4,
        "id": "c",
        "ts": "now",
        "channel_values": {"a": 1, "b": 2},
        "channel_versions": versions,
        "versions_seen": seen,
        "updated_channels": None,
        "extra\ud800": {"kept": (1, 2)},
    }
    data = seal_header(front("c", ["a", "b"], checkpoint, metadata, serde), LAYOUTS[:2], "t", "", "c", None)  # type: ignore[arg-type]
    header = open_header(data, "t", "", "c", own=serde, serde=serde, vault=None)
    del checkpoint["channel_values"]
    assert header.checkpoint == checkpoint
    for name, label in versions.items():
        assert type(header.checkpoint["channel_versions"][name]) is type(label)
    assert header.metadata == metadata
    assert header.layouts == {"a": LAYOUTS[0], "b": LAYOUTS[1]}


class Name(str):
    """A name of a node as an enumeration has it."""

    __slots__ = ()


odd = st.one_of(labels, st.booleans(), st.none(), st.just(Name("x")), st.just(b"1"), st.lists(labels, max_size=1))
tables = st.one_of(
    st.dictionaries(st.one_of(names, st.integers(0, 2)), odd, max_size=3),
    st.dictionaries(names, labels, max_size=4),
    st.none(),
    st.lists(labels, max_size=1),
)


@needs_c
@given(st.lists(names, unique=True, max_size=3), tables, st.one_of(st.dictionaries(names, tables, max_size=3), tables))
def test_tables_made_in_c_are_those_made_in_python(known: list[str], versions: Any, seen: Any) -> None:
    from milepost_speedups import numbered as compiled

    ours = {name: at for at, name in enumerate(known)}
    theirs = dict(ours)
    found = compiled(theirs, versions, seen)
    assert repr(found) == repr(numbered(ours, versions, seen))
    assert [*theirs.items()] == [*ours.items()]


@needs_c
def test_tables_made_in_c_leave_other_kinds_of_names_to_python() -> None:
    from milepost_speedups import numbered as compiled

    known: dict[str, int] = {}
    assert compiled(known, {"a": "1"}, {Name("n"): {"a": "1"}}) is None
    assert compiled(known, {"a": "1", Name("n"): "1"}, {}) is None
    assert known == {}
    wrong: list[tuple[Any, ...]] = [(), (known, {}), ([], {}, {})]
    for arguments in wrong:
        with pytest.raises(TypeError):
            compiled(*arguments)
    assert numbered(known, {"a": "1"}, {Name("n"): {"a": "1"}}) == (["1"], [0, 0], {"n": [0, 0]})


@needs_c
def test_tables_made_in_c_leak_nothing() -> None:
    from milepost_speedups import numbered as compiled

    label, number, name = str(b"label", "ascii"), 2.5, str(b"name", "ascii")
    before = sys.getrefcount(label), sys.getrefcount(number), sys.getrefcount(name)
    for _ in range(100):
        assert compiled({}, {name: label, "b": number, "c": 1}, {"n": {name: number, "b": label}}) is not None
    assert (sys.getrefcount(label), sys.getrefcount(number), sys.getrefcount(name)) == before


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=8,
)
wires = st.lists(st.tuples(st.just(INLINE), st.binary()) | st.lists(st.integers(0, 2**62), max_size=5), max_size=3)


def payload_of(front: list[Any], back: list[Any]) -> bytes:
    return array_header(2) + serde.encode(front) + ormsgpack.packb(back)


def payloads(front: list[Any], back: list[Any], lies: list[Any]) -> Iterator[bytes]:
    """What a header may be, those with an extension in them, and some of what damage makes of it."""
    whole = payload_of(front, [back, lies])
    yield whole
    yield payload_of([*front, (1, "a tuple")], [back, lies])
    yield serde.encode([front, [back, [*lies, (1, 2)]]])
    yield whole[:-1]
    yield whole + b"\0"
    for at in range(min(len(whole), 40)):
        yield bytes((*whole[:at], whole[at] ^ 1 << at % 8, *whole[at + 1 :]))


@needs_c
@given(st.lists(plain, max_size=3), st.lists(st.text(), max_size=4), st.lists(st.integers(0, 2**62), max_size=2), wires)
def test_what_is_read_of_a_header_in_c_is_what_python_reads(
    more: list[Any], named: list[str], back: list[Any], lies: list[Any]
) -> None:
    from milepost_speedups import lying

    for payload in payloads([0, named, *more], back, lies):
        found = lying(payload)
        if found is None:
            continue
        # What is skipped is not looked at: that it was damaged, the checksum tells.
        with suppress(ValueError):
            (_, expected, *_), (writers, layouts) = shallow(payload)
            assert repr(found) == repr((expected[: len(layouts)], writers, layouts))
    assert lying(payload_of([0, named, *more, (1, "a tuple")], [back, lies[: len(named)]])) is not None


@needs_c
def test_what_is_read_of_a_header_in_c_leaks_nothing() -> None:
    from milepost_speedups import lying

    payload = payload_of([0, ["a name that is long enough to be made anew"], {"a": 1}], [[1], [[0, b"value" * 99]]])
    odd = [payload[:-1], payload[:20], payload_of([0, []], [[1], [[0, b"value"]]])]
    lying(payload)
    before = sys.getallocatedblocks()
    for _ in range(1000):
        assert lying(payload) is not None
        assert all(lying(other) is None for other in odd)
    assert sys.getallocatedblocks() - before < 500
    with pytest.raises(TypeError):
        lying("text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_labels_of_langgraph_are_kept_short() -> None:
    label = f"{12:032}.{0.8444218515250481:016}"
    checkpoint: Any = {
        "v": 4,
        "id": "c",
        "ts": "now",
        "channel_values": {},
        "channel_versions": {f"channel{n}": label for n in range(20)},
        "versions_seen": {"node": {f"channel{n}": label for n in range(20)}},
    }
    assert len(front("c", [], checkpoint, {}, serde)) < 400


ids = st.text("abcd", min_size=1, max_size=3)


@given(st.lists(ids, min_size=2, max_size=12))
def test_a_child_always_sorts_after_its_parent(chain: list[str]) -> None:
    key = None
    for id in chain:
        child = sort_key(id, key)
        assert key is None or child > key
        key = child


def test_a_lagging_clock_does_not_make_keys_grow() -> None:
    key = sort_key("9000", None)
    for number in range(1000, 2000):
        key = sort_key(str(number), key)
    assert len(key) < 20
    assert sort_key("9001", key) == "9001"


@given(st.lists(st.integers(0, 2000).map("{:04}".format), max_size=600), st.integers(0, 2000).map("{:04}".format))
def test_a_tombstone_refuses_what_was_there_and_what_is_older(ids: list[str], other: str) -> None:
    tombstone = Tombstone.of(ids, 0.0)
    assert all(tombstone.refuses(id, stored=False) for id in ids)
    assert not any(tombstone.refuses(id, stored=True) for id in ids)
    if other not in ids and (not ids or other > min(ids)) and len(set(ids)) <= 256:
        assert not tombstone.refuses(other, stored=False)
