"""The plan of the reads: every tile that holds a wanted byte once and no other, neighbours together, pieces bounded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from handmade import TILE, Made, Recorded, framed, make
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec.dtypes import DTYPES
from perdure.codec.header import frame_info
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.state.items import Held, TensorItem
from perdure.state.match import Match
from perdure.state.reads import Framed, Limits, ReadPlan, Wanted, plan_reads
from perdure.state.transfers import Transfer, transfers_of
from perdure.store.pack import ALIGN_BYTES, PackIndex
from perdure.testing.layouts import layouts, shapes
from perdure.testing.ranks import items_of, memory_of, random_bytes

BOUNDED = settings(max_examples=80, deadline=None)
LIMITS = st.builds(
    Limits, st.integers(1, 6 * TILE), st.integers(1, 6 * TILE), st.sampled_from([0, 100, TILE, 3 * TILE])
)


def wholes_of(layout: Layout) -> dict[str, np.ndarray]:
    return {name: random_bytes(tensor.dtype, tensor.shape, i) for i, (name, tensor) in enumerate(layout.items())}


def transfers_to(made: Made, items: Sequence[TensorItem]) -> dict[str, list[Transfer]]:
    """By pack."""
    found: dict[str, list[Transfer]] = {pack: [] for pack in made.packs}
    for each in transfers_of(made.catalog, [Match(item, made.catalog.tensors[item.name]) for item in items]):
        found[each.piece.pack].append(each)
    return found


def planned(made: Made, pack: str, transfers: Sequence[Transfer], limits: Limits) -> tuple[PackIndex, ReadPlan]:
    index = Recorded(made.packs[pack]).index()
    by_key: dict[str, list[Transfer]] = {}
    for each in transfers:
        by_key.setdefault(each.piece.key, []).append(each)
    wanted = []
    for key, group in by_key.items():
        entry = index.entry(key)
        header = None
        if group[0].piece.coded:
            info = frame_info(made.packs[pack][entry.start : entry.start + entry.nbytes])
            header = Framed(info, (0, *np.cumsum(info.coded_nbytes).tolist()))
        wanted.append(Wanted(entry, tuple(group), header))
    return index, plan_reads(wanted, tile_bytes=index.tile_bytes, limits=limits)


@given(st.data(), LIMITS, st.sampled_from([TILE, TILE + 1]), st.booleans())
@BOUNDED
def test_every_tile_that_holds_a_wanted_byte_is_read_once_and_no_other(
    data: st.DataObject, limits: Limits, tile_bytes: int, coded: bool
) -> None:
    of = {f"t{i}": data.draw(shapes(longest=data.draw(st.sampled_from([6, 40])))) for i in range(3)}
    have = data.draw(layouts(of, world=2))
    want = data.draw(layouts(of, world=2, extra_boxes=2))
    made = make(have, wholes_of(have), tile_bytes=tile_bytes, coded=dict.fromkeys(of, "raw") if coded else {})
    every = transfers_to(made, [*items_of(want, 0, None), *items_of(want, 1, None)])
    for pack, transfers in every.items():
        index, plan = planned(made, pack, transfers, limits)
        tile = TILE if coded else tile_bytes
        wanted: dict[str, np.ndarray] = {}
        for each in transfers:
            cells = wanted.setdefault(each.piece.key, np.zeros((*each.piece.box.shape, each.width), bool))
            cells[each.box.within(each.piece.box)] = True
        expected = {(key, i // tile) for key, cells in wanted.items() for i in np.flatnonzero(cells.reshape(-1))}
        seen = [
            (part.entry.key, n) for read in plan.reads for part in read.ranges for n in range(part.first, part.last)
        ]
        assert len(seen) == len(set(seen))
        assert set(seen) == expected
        assert plan.wanted_nbytes == sum(each.nbytes for each in transfers)
        check_reads(index, plan, limits, tile)


def check_reads(index: PackIndex, plan: ReadPlan, limits: Limits, tile: int) -> None:
    end = 0
    for read in plan.reads:
        assert read.start >= end
        end = read.start + read.nbytes
        at = read.start
        for part in read.ranges:
            assert 0 <= part.start - at < ALIGN_BYTES
            at = part.start + part.nbytes
            assert (part.lo, part.hi <= part.last * tile) == (part.first * tile, True)
            if part.framed is None:
                assert (part.start, part.nbytes) == (part.entry.start + part.lo, part.hi - part.lo)
            assert all(len(each.within(part.lo, part.hi)) > 0 for each in part.transfers)
        assert at == end
        n_tiles = sum(part.last - part.first for part in read.ranges)
        if read.direct:
            (part,) = read.ranges
            strip = part.transfers[0].strip
            assert strip is not None
            assert strip.lo <= part.lo <= part.hi <= strip.hi
            assert read.staging_nbytes == 0
            assert read.nbytes >= min(limits.small_bytes, tile) or read.nbytes < tile
        else:
            assert read.staging_nbytes >= read.nbytes
        assert n_tiles == 1 or max(read.staging_nbytes, read.nbytes) <= max(limits.direct_bytes, limits.staged_bytes)
    assert plan.read_nbytes + plan.pad_nbytes == sum(read.nbytes for read in plan.reads)


def model(number: int, *, columns: int = 64) -> Layout:
    """Large tensors of many tiles and small ones, alone on one rank."""
    tensors = {}
    for i in range(number):
        for name, shape in ((f"w{i}", (64, columns, 8)), (f"norm{i}", (33,)), (f"scale{i}", ())):
            tensors[name] = TensorLayout(shape, (Piece.alone(0, Box.whole(shape)),), "float32")
    return Layout(tensors)


USUAL = Limits(16 * TILE, 4 * TILE, TILE)


def test_a_whole_load_reads_the_bytes_of_the_tensors_and_states_the_pads() -> None:
    layout = model(10)
    made = make(layout, wholes_of(layout))
    _, plan = planned(made, "pack0", transfers_to(made, items_of(layout, 0, None))["pack0"], USUAL)
    assert plan.read_nbytes == plan.wanted_nbytes == layout.nbytes
    assert plan.pad_nbytes <= 2 * 10 * ALIGN_BYTES
    assert sum(read.nbytes for read in plan.reads if read.direct) == 10 * 64 * 64 * 8 * 4


def test_small_tensors_that_lie_side_by_side_come_in_one_read() -> None:
    layout = Layout({f"t{i:03}": TensorLayout((7,), (Piece.alone(0, Box((0,), (7,))),), "float32") for i in range(200)})
    made = make(layout, wholes_of(layout))
    _, plan = planned(made, "pack0", transfers_to(made, items_of(layout, 0, None))["pack0"], USUAL)
    (read,) = plan.reads
    assert len(read.ranges) == 200
    assert plan.read_nbytes == 200 * 28
    assert plan.pad_nbytes == 199 * (64 - 28)


def test_small_tensors_far_apart_are_read_alone() -> None:
    layout = Layout({f"t{i:03}": TensorLayout((99,), (Piece.alone(0, Box((0,), (99,))),), "float32") for i in range(9)})
    made = make(layout, wholes_of(layout))
    items = [item for item in items_of(layout, 0, None) if item.name in ("t001", "t002", "t007")]
    _, plan = planned(made, "pack0", transfers_to(made, items)["pack0"], USUAL)
    assert [len(read.ranges) for read in plan.reads] == [2, 1]
    assert plan.read_nbytes == plan.wanted_nbytes


def tall(shape: tuple[int, ...] = (256, 1024)) -> Made:
    """One tensor of bytes; a tile is four of its rows."""
    layout = Layout({"w": TensorLayout(shape, (Piece.alone(0, Box.whole(shape)),), "uint8")})
    return make(layout, wholes_of(layout))


def block(shape: tuple[int, ...], box: Box) -> list[TensorItem]:
    live = np.zeros((*box.shape, 1), np.uint8)
    return [TensorItem("w", "uint8", shape, (Held(box, memory_of(live)),))]


def test_a_range_of_rows_reads_its_own_tiles_and_whole_ones_directly() -> None:
    made = tall()
    items = block((256, 1024), Box((6, 0), (41, 1024)))
    _, plan = planned(made, "pack0", transfers_to(made, items)["pack0"], USUAL)
    spans = [(part.first, part.last, read.direct) for read in plan.reads for part in read.ranges]
    assert spans == [(1, 2, False), (2, 10, True), (10, 11, False)]
    assert plan.read_nbytes == 10 * TILE


def test_columns_read_the_tiles_of_their_rows_in_bounded_pieces() -> None:
    made = tall()
    items = block((256, 1024), Box((100, 3), (200, 5)))
    _, plan = planned(made, "pack0", transfers_to(made, items)["pack0"], USUAL)
    assert plan.read_nbytes == 100 * 1024
    assert {read.nbytes for read in plan.reads} <= {4 * TILE, TILE}
    assert not any(read.direct for read in plan.reads)


def test_columns_of_rows_longer_than_tiles_leave_out_the_tiles_between() -> None:
    shape = (4, 100 * TILE)
    made = tall(shape)
    items = block(shape, Box((1, 10 * TILE + 1), (4, 12 * TILE)))
    _, plan = planned(made, "pack0", transfers_to(made, items)["pack0"], USUAL)
    assert plan.read_nbytes == 3 * 2 * TILE


def test_a_tile_that_several_blocks_want_is_read_once_for_all() -> None:
    made = tall()
    boxes = [Box((0, 0), (256, 1024)), Box((0, 0), (256, 1024)), Box((7, 5), (99, 6)), Box((8, 0), (9, 1024))]
    items = [item for box in boxes for item in block((256, 1024), box)]
    _, plan = planned(made, "pack0", transfers_to(made, items)["pack0"], USUAL)
    assert plan.read_nbytes == 256 * 1024
    assert plan.wanted_nbytes > 2 * 256 * 1024
    assert all(read.direct for read in plan.reads if read.nbytes >= USUAL.small_bytes)


@pytest.mark.parametrize("parts", [4, 8])
def test_a_quarter_of_a_frame_reads_a_quarter_of_its_bytes(parts: int) -> None:
    shape = (256, 1024)
    layout = Layout({"w": TensorLayout(shape, (Piece.alone(0, Box.whole(shape)),), "uint8")})
    made = make(layout, wholes_of(layout), coded={"w": "raw"})
    items = block(shape, Box((256 // parts, 0), (2 * 256 // parts, 1024)))
    _, plan = planned(made, "pack0", transfers_to(made, items)["pack0"], USUAL)
    assert plan.read_nbytes == plan.wanted_nbytes == 256 * 1024 // parts
    assert max(read.staging_nbytes for read in plan.reads) <= USUAL.staged_bytes


def test_frames_of_every_dtype_tell_their_own_dtype() -> None:
    for name, dtype in DTYPES.items():
        assert frame_info(framed(np.zeros(3 * dtype.itemsize, np.uint8), name, (3,))).dtype == name
