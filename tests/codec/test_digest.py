"""Digests against the xxhash library, and copies that are digested on the way."""

from __future__ import annotations

import array

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec.digest import copy_and_digest, digest, n_tiles, tile_digests
from perdure.errors import CallError


@settings(deadline=None)
@given(st.binary(max_size=5000))
def test_the_digest_is_xxh3_128_in_hexadecimal(data: bytes) -> None:
    assert digest(data) == xxhash.xxh3_128_hexdigest(data)


@settings(deadline=None)
@given(data=st.binary(max_size=3000), tile_bytes=st.integers(1, 1000))
def test_each_tile_has_the_digest_of_its_own_bytes(data: bytes, tile_bytes: int) -> None:
    tiles = [data[start : start + tile_bytes] for start in range(0, len(data), tile_bytes)]
    assert n_tiles(len(data), tile_bytes) == len(tiles)
    assert tile_digests(data, tile_bytes) == b"".join(map(xxhash.xxh3_128_digest, tiles))


@settings(deadline=None)
@given(data=st.binary(max_size=3000), tile_bytes=st.integers(1, 1000))
def test_a_digested_copy_holds_the_bytes_and_tells_their_digests(data: bytes, tile_bytes: int) -> None:
    copy = bytearray(len(data))
    assert copy_and_digest(data, copy, tile_bytes) == tile_digests(data, tile_bytes)
    assert copy == data


def test_any_contiguous_buffer_is_digested_by_its_bytes() -> None:
    values = np.arange(12, dtype=np.int16)
    expected = xxhash.xxh3_128_hexdigest(values.tobytes())
    for data in (values, values.reshape(3, 4), values.data, array.array("h", range(12)), bytearray(values.tobytes())):
        assert digest(data) == expected
    assert digest(np.array(1.5, np.float32)) == xxhash.xxh3_128_hexdigest(np.float32(1.5).tobytes())
    assert digest(np.empty((0, 3))) == digest(b"") == xxhash.xxh3_128_hexdigest(b"")
    assert tile_digests(np.empty(0)) == b""


def test_bytes_that_do_not_lie_together_are_refused() -> None:
    for data in (np.arange(10)[::2], np.arange(6).reshape(2, 3).T, memoryview(b"123456")[::2], np.array([object()])):
        with pytest.raises(CallError):
            digest(data)
    with pytest.raises(CallError):
        digest("text")  # type: ignore[arg-type]


def test_a_copy_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    room = bytearray(8)
    for src, dst in ((b"1234", room), (b"12345678", bytes(8)), (memoryview(room)[:4], memoryview(room)[2:6])):
        with pytest.raises(CallError):
            copy_and_digest(src, dst)
    with pytest.raises(CallError):
        copy_and_digest(b"12345678", room, 0)
    with pytest.raises(CallError):
        tile_digests(b"1", 1, threads=0)
    assert room == bytes(8)
