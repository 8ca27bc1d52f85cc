"""Packs: valid safetensors files, aligned, with one spelling, and suspicious of every header."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from perdure.errors import BlobMissing, CallError, FormatRefused
from perdure.store.pack import (
    ALIGN_BYTES,
    CODES,
    PackIndex,
    PackItem,
    PackPlan,
    parse_header,
    plan_pack,
)

TILE = 4096
KEYS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(
    lambda key: not key.startswith("__")
)
SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
ITEMS = st.lists(st.tuples(KEYS, st.sampled_from([*CODES, "float4_e2m1fn_x2", "frame"]), SHAPES), max_size=8).map(
    lambda rows: [make_item(*row) for row in {row[0]: row for row in rows}.values()]
)


def make_item(key: str, dtype: str, shape: tuple[int, ...]) -> PackItem:
    return PackItem(key, dtype, shape, int(np.prod(shape, dtype=int)) * CODES.get(dtype, ("", 3))[1])


def build(items: list[PackItem], seed: int = 0) -> tuple[PackPlan, bytes]:
    """A pack of random bytes, built the way that a writer in shared memory does: data first, header last."""
    plan = plan_pack(items, tile_bytes=TILE)
    file = bytearray(np.random.default_rng(seed).integers(0, 256, plan.total_nbytes, dtype=np.uint8).tobytes())
    for pad in plan.pads:
        file[pad.start : pad.start + pad.nbytes] = bytes(pad.nbytes)
    digests = bytearray()
    for entry in plan.entries:
        data = file[entry.start : entry.start + entry.nbytes]
        for i in range(0, entry.nbytes, TILE):
            digests += xxhash.xxh3_128_digest(data[i : i + TILE])
    file[: plan.header_nbytes] = plan.render_header(bytes(digests))
    return plan, bytes(file)


def parse(file: bytes) -> PackIndex:
    return parse_header(lambda start, nbytes: file[start : start + nbytes], len(file), file="x.safetensors")


@settings(max_examples=100, deadline=None)
@given(ITEMS)
def test_a_reader_finds_what_the_writer_planned(items: list[PackItem]) -> None:
    plan, file = build(items)
    index = parse(file)
    assert index.entries == plan.entries
    assert (index.header_nbytes, index.total_nbytes) == (plan.header_nbytes, plan.total_nbytes)
    assert index.header_digest == xxhash.xxh3_128_hexdigest(file[: plan.header_nbytes])
    for item, entry in zip(items, index.entries, strict=True):
        assert index.entry(item.key) is entry
        assert entry.start % ALIGN_BYTES == 0
        for tile in index.tile_range(entry, 0, entry.nbytes):
            start, stop = index.tile_span(entry, tile)
            assert xxhash.xxh3_128_digest(file[start:stop]) == index.digest(tile)


@settings(max_examples=60, deadline=None)
@given(items=ITEMS)
def test_the_safetensors_library_reads_every_tensor(
    tmp_path_factory: pytest.TempPathFactory, items: list[PackItem]
) -> None:
    plan, file = build(items)
    path = tmp_path_factory.mktemp("pack") / "x.safetensors"
    path.write_bytes(file)
    with safe_open(path, framework="np") as opened:
        keys = set(opened.keys())
        assert keys - {key for key in keys if key.startswith("__pad.")} == {item.key for item in items}
        for entry in plan.entries:
            assert tuple(opened.get_slice(entry.key).get_shape()) == entry.shape
            assert opened.get_slice(entry.key).get_dtype() == CODES[entry.dtype][0]
            if not entry.dtype.startswith(("float8", "bfloat16")):  # numpy has no such dtypes
                found = opened.get_tensor(entry.key)
                assert found.tobytes() == file[entry.start : entry.start + entry.nbytes]


@given(st.integers(0, 5 * TILE), st.data())
def test_a_byte_range_is_covered_by_its_tiles_and_no_more(nbytes: int, data: st.DataObject) -> None:
    index = parse(build([make_item("a", "uint8", (5,)), make_item("b", "uint8", (nbytes,))])[1])
    entry = index.entry("b")
    lo = data.draw(st.integers(0, nbytes))
    hi = data.draw(st.integers(lo, nbytes))
    spans = [index.tile_span(entry, tile) for tile in index.tile_range(entry, lo, hi)]
    assert bool(spans) == (lo < hi)
    if spans:
        assert spans[0][0] <= entry.start + lo < spans[0][1]
        assert spans[-1][0] < entry.start + hi <= spans[-1][1]
        assert all(one[1] == other[0] for one, other in itertools.pairwise(spans))


def test_chunks_are_the_file() -> None:
    items = [make_item("a", "float32", (5,)), make_item("b", "int8", (0,)), make_item("c", "int16", (7, 3))]
    plan, file = build(items)
    data = [file[entry.start : entry.start + entry.nbytes] for entry in plan.entries]
    assert b"".join(plan.chunks(file[: plan.header_nbytes], data)) == file
    with pytest.raises(CallError):
        list(plan.chunks(file[: plan.header_nbytes], [b"short", *data[1:]]))


def test_what_safetensors_lacks_is_stored_as_bytes() -> None:
    plan = plan_pack([PackItem("w", "float4_e2m1fn_x2", (2, 8), 16), PackItem("f", "frame", (9, 9), 33)])
    assert [(entry.dtype, entry.shape) for entry in plan.entries] == [("uint8", (16,)), ("uint8", (33,))]


@pytest.mark.parametrize(
    "items",
    [
        [PackItem("", "uint8", (1,), 1)],
        [PackItem("k" * 4097, "uint8", (1,), 1)],
        [PackItem("__metadata__", "uint8", (1,), 1)],
        [PackItem("__pad.0", "uint8", (1,), 1)],
        [PackItem("a\nb", "uint8", (1,), 1)],
        [PackItem("a\ud800", "uint8", (1,), 1)],
        [PackItem("a", "uint8", (1,), 1), PackItem("a", "uint8", (1,), 1)],
        [PackItem("a", "float32", (2,), 4)],
        [PackItem("a", "float32", (-1, -4), 16)],
        [PackItem("a", "frame", (), -1)],
    ],
)
def test_items_that_make_no_pack_are_refused(items: list[PackItem]) -> None:
    with pytest.raises(CallError):
        plan_pack(items)


def test_digests_of_another_count_are_refused() -> None:
    plan = plan_pack([make_item("a", "uint8", (5,))])
    with pytest.raises(CallError, match="1 tiles"):
        plan.render_header(b"")


def test_a_missing_key_names_file_and_tensor() -> None:
    with pytest.raises(BlobMissing) as caught:
        parse(build([make_item("a", "uint8", (5,))])[1]).entry("b")
    assert (caught.value.file, caught.value.tensor) == ("x.safetensors", "b")


def test_a_pack_of_many_tensors_has_a_header_in_time_and_room() -> None:
    items = [PackItem(f"layers.{i}.w", "bfloat16", (1 << 20,), 2 << 20) for i in range(20_000)]
    plan = plan_pack(items)
    header = plan.render_header(bytes(16 * plan.n_tiles))
    index = parse_header(lambda start, nbytes: header[start : start + nbytes], plan.total_nbytes)
    assert index.entries == plan.entries


# Hostile headers: each is made from a good pack of "a" (20 bytes), a pad of 44, and "b" (4 bytes).

Header = dict[str, Any]


def edit(change: Callable[[Header], object]) -> Callable[[bytes], bytes]:
    def apply(file: bytes) -> bytes:
        header = json.loads(file[8:4096])
        change(header)
        return respell(json.dumps(header, separators=(",", ":")).encode(), file[4096:])

    return apply


def replace(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def apply(file: bytes) -> bytes:
        text = file[8:4096].rstrip(b" ")
        assert old in text
        return respell(text.replace(old, new, 1), file[4096:])

    return apply


def respell(text: bytes, data: bytes) -> bytes:
    room = -(-(len(text) + 8) // 4096) * 4096
    return (room - 8).to_bytes(8, "little") + text.ljust(room - 8) + data


def length(nbytes: int) -> Callable[[bytes], bytes]:
    return lambda file: nbytes.to_bytes(8, "little") + file[8:]


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda file: b"",
    "seven bytes": lambda file: file[:7],
    "cut in the header": lambda file: file[:4000],
    "cut in the data": lambda file: file[:-1],
    "data after the end": lambda file: file + b"x",
    "header length 0": length(0),
    "header length of 2^64-1": length(2**64 - 1),
    "header length over the cap": length(100_000_001 + 4096),
    "header longer than the file": length(8192 - 8),
    "header length not aligned": length(4096 - 9),
    "no JSON": lambda file: file[:8] + b"x" * 4088 + file[4096:],
    "not UTF-8": replace(b'"b"', b'"\xff"'),
    "lone surrogate": replace(b'"b"', b'"\\ud800"'),
    "brackets without end": lambda file: respell(b'{"a":' + b"[" * 1_000_000, file[4096:]),
    "a list": lambda file: respell(b"[]", file[4096:]),
    "no metadata": edit(lambda h: h.pop("__metadata__")),
    "metadata of another library": edit(lambda h: h.update(__metadata__={"format": "pt"})),
    "metadata that is no text": edit(lambda h: h["__metadata__"].update(tile_bytes=4096)),
    "more metadata": edit(lambda h: h["__metadata__"].update(more="x")),
    "a version that is no number": edit(lambda h: h["__metadata__"].update(perdure="0x")),
    "tiles of 0 bytes": edit(lambda h: h["__metadata__"].update(tile_bytes="0")),
    "tiles of 1 byte": edit(lambda h: h["__metadata__"].update(tile_bytes="1")),
    "tiles of 10^18 bytes": edit(lambda h: h["__metadata__"].update(tile_bytes="1" + "0" * 18)),
    "digests missing": edit(lambda h: h["__metadata__"].update(digests="")),
    "digests that are no hex": edit(lambda h: h["__metadata__"].update(digests="g" * 64)),
    "digests in capitals": edit(lambda h: h["__metadata__"].update(digests="A" * 64)),
    "unknown dtype": edit(lambda h: h["a"].update(dtype="F128")),
    "pickled dtype": edit(lambda h: h["a"].update(dtype="OBJECT")),
    "unknown field": edit(lambda h: h["a"].update(stride=[1])),
    "missing field": edit(lambda h: h["a"].pop("shape")),
    "negative size": edit(lambda h: h["a"].update(shape=[-5])),
    "size as text": edit(lambda h: h["a"].update(shape=["5"])),
    "size as float": replace(b'"shape":[5]', b'"shape":[5.0]'),
    "size NaN": replace(b'"shape":[5]', b'"shape":[NaN]'),
    "size of a million digits": replace(b'"shape":[5]', b'"shape":[' + b"9" * 1_000_000 + b"]"),
    "shape whose product overflows": edit(lambda h: h["a"].update(shape=[2**61] * 64)),
    "shape of 65 sizes": edit(lambda h: h["a"].update(shape=[5] + [1] * 64)),
    "offsets swapped": edit(lambda h: h["a"].update(data_offsets=[20, 0])),
    "offsets beyond 2^62": edit(lambda h: h["a"].update(data_offsets=[0, 2**63])),
    "three offsets": edit(lambda h: h["a"].update(data_offsets=[0, 20, 20])),
    "overlap": edit(lambda h: h["b"].update(data_offsets=[0, 4])),
    "gap": edit(lambda h: h.pop("__pad.0")),
    "a pad out of turn": replace(b"__pad.0", b"__pad.1"),
    "a pad as float": edit(lambda h: h["__pad.0"].update(dtype="F32", shape=[11])),
    "not aligned": edit(
        lambda h: (h["__pad.0"].update(shape=[40], data_offsets=[20, 60]), h["b"].update(data_offsets=[60, 64]))
    ),
    "duplicate key": replace(b'"b":', b'"a":{"dtype":"F32","shape":[5],"data_offsets":[0,20]},"b":'),
    "duplicate key with the same range": replace(
        b'"a":', b'"a":{"dtype":"I32","shape":[5],"data_offsets":[0,20]},"a":'
    ),
    "duplicate metadata": replace(b'{"__meta', b'{"__metadata__":{},"__meta'),
    "empty key": replace(b'"b":', b'"":'),
    "reserved key": replace(b'"b":', b'"__b":'),
    "control character in a key": replace(b'"b":', b'"\\u0000":'),
    "key escaped in another way": replace(b'"b":', b'"\\u0062":'),
    "spaces": replace(b'"b":', b'"b": '),
    "fields in another order": replace(b'"dtype":"F32","shape":[5]', b'"shape":[5],"dtype":"F32"'),
    "tensors in another order": edit(lambda h: h.update(a=h.pop("a"))),
    "padded with zeros": lambda file: file[:4095] + b"\0" + file[4096:],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_by_name(case: str) -> None:
    _, file = build([make_item("a", "float32", (5,)), make_item("b", "bfloat16", (2,))])
    parse(file)
    with pytest.raises(FormatRefused) as caught:
        parse(HOSTILE[case](file))
    assert caught.value.file == "x.safetensors"
    assert len(str(caught.value)) < 1000


def test_a_pack_of_a_later_format_names_both() -> None:
    _, file = build([make_item("a", "uint8", (5,))])
    with pytest.raises(FormatRefused, match="written by format 3; this release reads 1") as caught:
        parse(edit(lambda h: h["__metadata__"].update(perdure="3", news=""))(file))
    assert (caught.value.found, caught.value.reads) == ("3", 1)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_changed_byte_in_a_header_is_refused_or_changes_digests_or_names_only(data: st.DataObject) -> None:
    plan, file = build([make_item("a", "float32", (5,)), make_item("b", "bfloat16", (2,))])
    at = data.draw(st.integers(0, plan.header_nbytes - 1))
    changed = bytearray(file)
    changed[at] ^= data.draw(st.integers(1, 255))
    try:
        index = parse(bytes(changed))
    except FormatRefused:
        return
    assert [(e.start, e.nbytes) for e in index.entries] == [(e.start, e.nbytes) for e in plan.entries]
    assert index.header_digest != parse(file).header_digest
