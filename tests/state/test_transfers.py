"""What comes from where: runs, spans and blocks of row-major bytes, against arrays of booleans and numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError, NotCovered
from perdure.layout import Box
from perdure.state.index import Catalog, CatalogTensor, StoredPiece
from perdure.state.items import Held, TensorItem
from perdure.state.match import Match
from perdure.state.transfers import Transfer, blocks, put, spans, transfers_of
from perdure.testing.layouts import shapes
from perdure.testing.ranks import memory_of

BOUNDED = settings(max_examples=150, deadline=None)


@st.composite
def boxes_in(draw: st.DrawFn, outer: Box) -> Box:
    """Non-empty boxes inside ``outer``, which is not empty."""
    lo = [draw(st.integers(low, high - 1)) for low, high in zip(outer.lo, outer.hi, strict=True)]
    return Box(tuple(lo), tuple(draw(st.integers(a + 1, high)) for a, high in zip(lo, outer.hi, strict=True)))


@st.composite
def outers(draw: st.DrawFn) -> Box:
    shape = draw(shapes(most_dims=4, longest=5).filter(lambda shape: 0 not in shape))
    return Box.whole(shape).shift([draw(st.integers(0, 3)) for _ in shape])


def held_by(outer: Box, box: Box, width: int) -> np.ndarray:
    """Which bytes of ``outer`` are of ``box``."""
    found = np.zeros((*outer.shape, width), bool)
    found[box.within(outer)] = True
    return found.reshape(-1)


@given(st.data(), st.sampled_from([1, 2, 16]), st.integers(0, 40))
@BOUNDED
def test_spans_hold_the_box_and_bridge_only_what_is_shorter_than_asked(
    data: st.DataObject, width: int, bridge: int
) -> None:
    outer = data.draw(outers())
    box = data.draw(boxes_in(outer))
    wanted = held_by(outer, box, width)
    found = spans(box, outer, width, bridge_bytes=bridge)
    covered = np.zeros_like(wanted)
    for lo, hi in found:
        assert wanted[lo]
        assert wanted[hi - 1]
        assert not covered[lo:hi].any()
        covered[lo:hi] = True
    assert covered[wanted].all()
    gaps = np.diff(np.flatnonzero(np.diff(np.concatenate(([0], wanted, [0])).astype(np.int8))))[1::2]
    assert len(found) == 1 + sum(gap >= max(bridge, 1) for gap in gaps)


@given(st.data())
@BOUNDED
def test_blocks_are_the_elements_between_two_in_order_and_few(data: st.DataObject) -> None:
    shape = data.draw(outers()).shape
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    lo, hi = sorted(data.draw(st.tuples(*2 * [st.integers(0, numbers.size)])))
    found = list(blocks(shape, lo, hi))
    seen = [int(number) for box in found for number in numbers[box.within(Box.whole(shape))].reshape(-1)]
    assert seen == list(range(lo, hi))
    assert len(found) <= max(2 * len(shape) - 1, 1)


@given(st.data(), st.sampled_from(["uint8", "int16", "float64", "complex128"]))
@BOUNDED
def test_a_box_in_any_pieces_of_bytes_arrives_where_numpy_puts_it(data: st.DataObject, dtype: str) -> None:
    piece_box, width = data.draw(outers()), np.dtype(dtype).itemsize
    box = data.draw(boxes_in(piece_box))
    dest = data.draw(boxes_in(Box(box.lo, tuple(high + 2 for high in box.hi))).map(lambda more: more | box))
    whole = np.random.default_rng(0).integers(0, 256, (*piece_box.shape, width), np.uint8)
    live = np.zeros((*dest.shape, width), np.uint8)
    want = live.copy()
    want[box.within(dest)] = whole[box.within(piece_box)]
    saved = CatalogTensor("w", dtype, (99,) * box.ndim, ())
    transfer = Transfer.of(saved, StoredPiece(piece_box, "p", "k"), box, Held(dest, memory_of(live)))
    flat = whole.reshape(-1)
    cuts = sorted({0, flat.size, *data.draw(st.lists(st.integers(0, flat.size), max_size=3))})
    done = sum(put(transfer, flat[a:b], a) for a, b in pairwise(cuts))
    assert (live == want).all()
    assert done == transfer.nbytes == box.size * width
    if transfer.strip is not None:
        strip = transfer.strip
        assert (live.reshape(-1)[strip.at : strip.at + strip.hi - strip.lo] == flat[strip.lo : strip.hi]).all()


@given(st.data())
@BOUNDED
def test_the_parts_of_a_transfer_within_bytes_hold_every_element_that_has_one(data: st.DataObject) -> None:
    piece_box, width = data.draw(outers()), 4
    box = data.draw(boxes_in(piece_box))
    live = np.zeros((*box.shape, width), np.uint8)
    saved = CatalogTensor("w", "float32", (99,) * box.ndim, ())
    transfer = Transfer.of(saved, StoredPiece(piece_box, "p", "k"), box, Held(box, memory_of(live)))
    lo, hi = sorted(data.draw(st.tuples(*2 * [st.integers(0, piece_box.size * width)])))
    for part in transfer.within(lo, hi):
        live[part.box.within(box)] += 1
        assert (part.strip is None) <= (transfer.strip is None)
    inside = np.zeros(piece_box.size * width, bool)
    inside[lo:hi] = True
    touched = inside.reshape(*piece_box.shape, width).any(-1)[box.within(piece_box)]
    assert (live[..., 0] == touched).all()


def test_memory_that_does_not_hold_its_block_is_refused() -> None:
    saved = CatalogTensor("w", "float32", (4,), ())
    held = Held(Box((0,), (4,)), memory_of(np.zeros(15, np.uint8)))
    with pytest.raises(CallError, match="15 bytes of memory do not hold"):
        Transfer.of(saved, StoredPiece(Box((0,), (4,)), "p", "k"), held.box, held)


def test_blocks_that_a_rank_did_not_save_of_its_own_tensor_are_not_covered() -> None:
    piece = StoredPiece(Box((0,), (4,)), "p", "k")
    saved = CatalogTensor("w", "uint8", (4,), (piece,), rank=2)
    item = TensorItem("w", "uint8", (4,), (Held(Box((0,), (2,)), memory_of(np.zeros(2, np.uint8))),), local=True)
    with pytest.raises(NotCovered, match="rank 2 saved no block"):
        transfers_of(Catalog(3, {}, {(2, "w"): saved}), [Match(item, saved)])
