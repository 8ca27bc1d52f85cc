"""A short soak; `./dev campaign soak` is the long one."""

from __future__ import annotations

from soaking import assert_flat, soak

from conftest import Place


def test_many_saves_in_a_row_hold_no_more_memory_descriptors_or_threads(place: Place) -> None:
    samples = soak(place, 40)
    assert_flat(samples, more_bytes=24 << 20)
