"""Safetensors of others: what `safetensors` writes is read alike, what we write it reads, and nothing else passes."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load, save

from perdure.errors import CallError, FormatRefused
from perdure.store.pack_header import CODES
from perdure.store.safetensors import Entry, Header, StoredAs, code_of, read_header, write_header

_NUMPY = ["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64"]
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(lambda k: k != "__metadata__")
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
ARRAYS = st.dictionaries(KEYS, st.tuples(st.sampled_from(_NUMPY), SHAPES), max_size=6)


def read(file: bytes) -> Header:
    return read_header(lambda start, nbytes: file[start : start + nbytes], len(file), file="x.safetensors")


def filled(forms: dict[str, tuple[str, tuple[int, ...]]], seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    chance = np.random.default_rng(seed)
    return {key: np.asarray(chance.random(shape) * 100).astype(dtype) for key, (dtype, shape) in forms.items()}


@given(ARRAYS)
@settings(max_examples=100, deadline=None)
def test_what_safetensors_writes_is_read_alike(forms: dict[str, Any]) -> None:
    arrays = filled(forms)
    file = save(arrays, metadata={"format": "np"})
    header = read(file)
    assert {e.key: (e.dtype, e.shape) for e in header.entries} == forms
    assert all(file[e.start : e.start + e.nbytes] == arrays[e.key].tobytes() for e in header.entries)
    assert dict(header.metadata) == {"format": "np"}


@given(ARRAYS)
@settings(max_examples=100, deadline=None)
def test_what_we_write_safetensors_reads(forms: dict[str, Any]) -> None:
    arrays = filled(forms)
    stored = [StoredAs(key, str(each.dtype), each.shape, each.nbytes) for key, each in arrays.items()]
    start, ordered = write_header(stored, {"format": "pt"})
    file = start + b"".join(arrays[each.key].tobytes() for each in ordered)
    found = load(file)
    assert found.keys() == arrays.keys()
    assert all((found[key] == arrays[key]).all() and found[key].dtype == arrays[key].dtype for key in arrays)
    assert read(file).header_nbytes == len(start)
    assert len(start) % 64 == 0


def test_each_tensor_is_aligned_to_its_own_width() -> None:
    stored = [StoredAs(f"t{i}", dtype, (3,), 3 * CODES[dtype][1]) for i, dtype in enumerate(CODES)]
    start, ordered = write_header(stored, {})
    header = read(start + bytes(sum(each.nbytes for each in ordered)))
    assert all(each.start % CODES[each.dtype][1] == 0 for each in header.entries)


def test_a_dtype_without_a_code_is_written_as_bytes_and_comes_back_as_it_was() -> None:
    assert (code_of("complex128"), code_of("float4_e2m1fn_x2"), code_of("bfloat16")) == (None, "F4", "BF16")
    start, _ = write_header([StoredAs("c", "complex128", (2, 1), 32)], {"format": "pt"})
    file = start + bytes(32)
    assert load(file)["c"].shape == (32,)
    assert read(file).entries == (Entry("c", "complex128", (2, 1), len(start), 32),)


def test_two_numbers_in_a_byte_are_counted_as_each_format_does(tmp_path: Any) -> None:
    start, _ = write_header([StoredAs("f", "float4_e2m1fn_x2", (2, 3), 6)], {})
    (tmp_path / "f").write_bytes(start + bytes(6))
    with safe_open(tmp_path / "f", "np") as found:
        assert found.get_slice("f").get_shape() == [2, 6]
    assert read(start + bytes(6)).entries[0].shape == (2, 3)


def test_a_name_is_written_once() -> None:
    with pytest.raises(CallError, match="'a'"):
        write_header([StoredAs("a", "uint8", (1,), 1)] * 2, {})


def test_names_that_look_like_json_are_names() -> None:
    names = ['x"data_offsets', "a:b", '{"a":1}', "\\", "\\\\:", '"', "\n", "é", "__pad.0"]
    file = save({name: np.zeros(1, np.uint8) for name in names})
    assert sorted(each.key for each in read(file).entries) == sorted(names)


def test_the_data_is_not_looked_at_and_no_more_than_the_header_is_read() -> None:
    text = json.dumps({"a": {"dtype": "U8", "shape": [1 << 50], "data_offsets": [0, 1 << 50]}}).encode()
    spans: list[tuple[int, int]] = []

    def read_some(start: int, nbytes: int) -> bytes:
        spans.append((start, nbytes))
        return (struct.pack("<Q", len(text)) + text)[start : start + nbytes]

    assert read_header(read_some, 8 + len(text) + (1 << 50), file="x").entries[0].nbytes == 1 << 50
    assert spans == [(0, 8), (8, len(text))]


def test_a_refusal_names_the_file_and_the_tensor() -> None:
    text = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}).encode()
    file = struct.pack("<Q", len(text)) + text + b"12"
    with pytest.raises(FormatRefused, match=r"x\.safetensors is refused: a gap before 'a'") as caught:
        read(file)
    assert caught.value.file == "x.safetensors"
