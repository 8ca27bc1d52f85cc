"""Copying many blocks: what callers may pass, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from perdure.errors import CallError
from perdure.shm import copy_many


def test_blocks_are_copied_from_lists_and_from_arrays_of_addresses() -> None:
    sources = [np.arange(n, dtype=np.float64) for n in (1, 7, 100_000, 700_000)]
    copies = [np.zeros_like(source) for source in sources]
    src, dst = [s.ctypes.data for s in sources], [c.ctypes.data for c in copies]
    copy_many(src, dst, [s.nbytes for s in sources], threads=2)
    assert all(np.array_equal(s, c) for s, c in zip(sources, copies, strict=True))
    copy_many(np.array(dst), np.array(src, np.uint64), np.zeros(4, np.int32))
    copy_many([], [], [])


@pytest.mark.parametrize(
    ("src", "dst", "nbytes"),
    [
        ([1], [2], [-1]),
        ([1.0], [2], [0]),
        ([[1]], [[2]], [[0]]),
        ([1], [2], [2**64]),
        (["a"], [2], [0]),
        ([1, 2], [3], [0]),
    ],
)
def test_what_is_no_list_of_blocks_is_refused(src: object, dst: object, nbytes: object) -> None:
    with pytest.raises(CallError):
        copy_many(src, dst, nbytes)  # type: ignore[arg-type]


def test_a_block_that_overlaps_its_copy_is_refused_before_anything_is_copied() -> None:
    room = np.arange(100, dtype=np.uint8)
    before = room.copy()
    with pytest.raises(CallError, match="overlap"):
        copy_many([room.ctypes.data, room.ctypes.data], [room.ctypes.data + 50, room.ctypes.data + 8], [50, 9])
    assert np.array_equal(room, before)
