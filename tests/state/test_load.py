"""What some ranks saved under one layout, others load under another, bit for bit; bad copies are passed over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint.memory_packs import MemoryPacks
from perdure.codec.dtypes import DTYPES
from perdure.errors import BlobCorrupt, BlobMissing, CallError, NotCovered, PerdureError, StateMismatch
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.state import save as save_module
from perdure.state.items import Capture, Held, TensorItem, ValueItem
from perdure.state.load import Match, load, match
from perdure.state.save import offer, settle
from perdure.store.pack import plan_pack
from perdure.testing.layouts import layouts, shapes
from perdure.testing.ranks import Saved, bytes_of, items_of, memory_of, random_bytes, save, save_layout, whole_box

BOUNDED = settings(max_examples=80, deadline=None)


@pytest.fixture(scope="module", autouse=True)
def small_tiles() -> Iterator[None]:
    """Packs of many tiles without megabytes of tensors."""
    with patch.object(save_module, "plan_pack", partial(plan_pack, tile_bytes=4096)):
        yield


Sources = Callable[[str], Sequence[Any]]


def of_dtypes(layout: Layout, dtypes: Sequence[str]) -> Layout:
    named = zip(layout.items(), dtypes, strict=True)
    return Layout({name: TensorLayout(tensor.shape, tensor.pieces, dtype) for (name, tensor), dtype in named})


def wholes_of(layout: Layout) -> dict[str, np.ndarray]:
    return {name: random_bytes(tensor.dtype, tensor.shape, i) for i, (name, tensor) in enumerate(layout.items())}


def check_holds(items: Sequence[TensorItem], wholes: dict[str, np.ndarray]) -> None:
    for item in items:
        for held in item.held:
            assert (bytes_of(held) == wholes[item.name][held.box.within(whole_box(item.shape))]).all()


@given(st.data())
@BOUNDED
def test_any_ranks_load_bit_for_bit_what_any_other_ranks_saved(data: st.DataObject) -> None:
    before, after = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    of = {f"t{i}": data.draw(shapes(longest=data.draw(st.sampled_from([6, 30])))) for i in range(3)}
    dtypes = [data.draw(st.sampled_from(sorted(DTYPES))) for _ in of]
    have = of_dtypes(data.draw(layouts(of, world=before)), dtypes)
    want = of_dtypes(data.draw(layouts(of, world=after, extra_boxes=2)), dtypes)
    wholes = wholes_of(have)
    saved = save_layout(have, wholes, world=before)
    sources: Sources = saved.sources
    if data.draw(st.booleans()):
        stored = {pack: [saved.in_store(pack)] for pack in saved.packs}
        sources = stored.__getitem__
    for rank in range(after):
        items = items_of(want, rank, None)
        matches = match(saved.catalog, items, (), rank=rank, world=after)
        report = load(saved.catalog, matches, sources)
        check_holds(items, wholes)
        moved = sum(held.memory.nbytes for item in items for held in item.held)
        assert sum(report.tier_nbytes.values()) == moved
        assert not report.notes


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_dtype_is_loaded_under_another_cut(dtype: str) -> None:
    def cut(dim: int, world: int, shape: tuple[int, ...]) -> TensorLayout:
        pieces = []
        for rank in range(world):
            low, high = (min(shape[dim], rank * 3 + end) for end in (0, 3))
            lo, hi = [0] * len(shape), list(shape)
            lo[dim], hi[dim] = low, high
            pieces.append(Piece.alone(rank, Box(tuple(lo), tuple(hi))))
        return TensorLayout(shape, tuple(pieces), dtype)

    have, want = Layout({"w": cut(0, 3, (7, 8))}), Layout({"w": cut(1, 3, (7, 8))})
    wholes = wholes_of(have)
    saved = save_layout(have, wholes, world=3)
    for rank in range(3):
        items = items_of(want, rank, None)
        load(saved.catalog, match(saved.catalog, items, (), rank=rank, world=3), saved.sources)
        check_holds(items, wholes)


@pytest.fixture(scope="module")
def tall() -> tuple[Layout, dict[str, np.ndarray], Saved]:
    """A tensor of many tiles, and a scalar and an empty one, saved by two ranks in halves."""
    halves = tuple(Piece.alone(rank, Box((100 * rank, 0), (100 * rank + 100, 300))) for rank in range(2))
    alone = Piece.alone(0, Box((), ()))
    empty = Piece.alone(1, Box((0, 3), (0, 3)))
    layout = Layout(
        {
            "tall": TensorLayout((200, 300), halves, "int16"),
            "scalar": TensorLayout((), (alone,), "float64"),
            "empty": TensorLayout((0, 3), (empty,), "float32"),
        }
    )
    wholes = wholes_of(layout)
    return layout, wholes, save_layout(layout, wholes, world=2)


def rows(low: int, high: int, *, columns: tuple[int, int] = (0, 300)) -> tuple[TensorItem, ...]:
    box = Box((low, columns[0]), (high, columns[1]))
    block = np.full((*box.shape, 2), 0xAA, np.uint8)
    held = (Held(box, memory_of(block)),)
    scalar = TensorItem("scalar", "float64", (), (Held(Box((), ()), memory_of(np.zeros((8,), np.uint8))),))
    empty = TensorItem("empty", "float32", (0, 3), ())
    return TensorItem("tall", "int16", (200, 300), held), scalar, empty


@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize(
    "items",
    [rows(0, 200), rows(0, 100), rows(100, 200), rows(7, 8), rows(99, 101), rows(13, 187, columns=(299, 300))],
    ids=str,
)
def test_parts_of_tensors_of_many_tiles_are_verified_and_loaded(
    tall: tuple[Layout, dict[str, np.ndarray], Saved], items: tuple[TensorItem, ...], tier: str
) -> None:
    _, wholes, saved = tall
    stored = {pack: [saved.in_store(pack) if tier == "disk" else saved.in_memory(pack)] for pack in saved.packs}
    report = load(saved.catalog, match(saved.catalog, items, (), rank=0, world=1), stored.__getitem__)
    check_holds(items, wholes)
    assert set(report.tier_nbytes) == {tier}
    assert report.verified_tiles >= items[0].nbytes / 4096


def test_a_part_is_read_by_rows_and_not_the_whole_tensor(tall: tuple[Layout, dict[str, np.ndarray], Saved]) -> None:
    _, _, saved = tall
    asked: list[int] = []

    class Counting(MemoryPacks):
        def fetch(self, start: int, nbytes: int, into: memoryview | None = None) -> memoryview:
            asked.append(nbytes)
            return super().fetch(start, nbytes, into)

    packs = {
        pack: [Counting([(saved.indexes[pack], memoryview(data))], file=pack)] for pack, data in saved.packs.items()
    }
    load(saved.catalog, match(saved.catalog, rows(50, 52), (), rank=0, world=1), packs.__getitem__)
    assert max(asked) <= 2 * 600 + 2 * 4096


def flip(pack: bytearray, saved: Saved, name: str, key: str, at: int) -> None:
    """Flip a bit of byte ``at`` of ``key``."""
    entry = saved.memory_pack(name, saved.packs[name], file=name).index().entry(key)
    pack[entry.start + at] ^= 0x10


@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize("items", [rows(0, 200), rows(0, 100), rows(40, 60), rows(40, 60, columns=(3, 5))], ids=str)
def test_a_corrupt_tile_makes_the_piece_come_from_the_next_copy_and_a_note_says_so(
    tall: tuple[Layout, dict[str, np.ndarray], Saved], items: tuple[TensorItem, ...], tier: str
) -> None:
    _, wholes, saved = tall
    bad = Saved(saved.indexes, {name: bytearray(pack) for name, pack in saved.packs.items()})
    flip(bad.packs["pack0"], saved, "pack0", "tall[0:100,0:300]", 50 * 600)
    first = bad.in_memory if tier == "memory" else bad.in_store
    sources = {pack: [first(pack), saved.in_store(pack)] for pack in saved.packs}
    report = load(saved.catalog, match(saved.catalog, items, (), rank=0, world=1), sources.__getitem__)
    check_holds(items, wholes)
    (note,) = report.notes
    assert "tall is corrupt" in note
    assert f"tile {50 * 600 // 4096}" in note
    assert "took the copy on disk" in note


@pytest.mark.parametrize("items", [rows(0, 200), rows(0, 100), rows(40, 60)], ids=str)
def test_a_tile_that_is_corrupt_in_all_copies_is_named_by_tensor_and_file(
    tall: tuple[Layout, dict[str, np.ndarray], Saved], items: tuple[TensorItem, ...]
) -> None:
    _, _, saved = tall
    bad = Saved(saved.indexes, {name: bytearray(pack) for name, pack in saved.packs.items()})
    flip(bad.packs["pack0"], saved, "pack0", "tall[0:100,0:300]", 50 * 600 + 1)
    sources = {pack: [bad.in_memory(pack), bad.in_store(pack)] for pack in saved.packs}
    with pytest.raises(BlobCorrupt) as caught:
        load(saved.catalog, match(saved.catalog, items, (), rank=0, world=1), sources.__getitem__)
    error = caught.value
    assert (error.tensor, error.tier, error.tile) == ("tall", "disk", 50 * 600 // 4096)
    assert error.file == sources["pack0"][1].file
    assert error.file in str(error)


@given(st.integers(0, 99), st.integers(1, 100), st.integers(0, 99 * 600 + 599))
@BOUNDED
def test_no_flipped_bit_is_ever_loaded(tall: Any, low: int, length: int, at: int) -> None:
    _, wholes, saved = tall
    bad = Saved(saved.indexes, {name: bytearray(pack) for name, pack in saved.packs.items()})
    flip(bad.packs["pack0"], saved, "pack0", "tall[0:100,0:300]", at)
    items = rows(low, min(low + length, 100))
    try:
        load(saved.catalog, match(saved.catalog, items, (), rank=0, world=1), bad.sources)
    except BlobCorrupt:
        return
    check_holds(items, wholes)


def test_a_bad_header_makes_the_pack_come_from_the_next_copy(tall: Any) -> None:
    _, wholes, saved = tall
    bad = bytearray(saved.packs["pack0"])
    bad[40] ^= 1
    sources = {pack: [saved.in_memory(pack)] for pack in saved.packs}
    sources["pack0"].insert(0, saved.memory_pack("pack0", bad, file="bad"))
    items = rows(0, 200)
    report = load(saved.catalog, match(saved.catalog, items, (), rank=0, world=1), sources.__getitem__)
    check_holds(items, wholes)
    assert all("bad" in note for note in report.notes)
    assert report.notes


def test_a_pack_that_cannot_be_reached_is_named(tall: Any) -> None:
    _, _, saved = tall
    with pytest.raises(BlobMissing) as caught:
        load(saved.catalog, match(saved.catalog, rows(0, 200), (), rank=0, world=1), lambda pack: [])
    assert caught.value.file in saved.packs


def test_a_piece_that_is_not_in_its_pack_is_missing(tall: Any) -> None:
    _, _, saved = tall
    other = save_layout(Layout({"x": TensorLayout((1,), (Piece.alone(0, Box((0,), (1,))),), "uint8")}),
                        {"x": random_bytes("uint8", (1,), 0)}, world=1)  # fmt: skip
    with pytest.raises(BlobMissing, match="holds no tensor"):
        load(saved.catalog, match(saved.catalog, rows(0, 9), (), rank=0, world=1), lambda _: other.sources("pack0"))


def test_pieces_that_are_in_no_pack_are_not_covered() -> None:
    whole = Layout({"w": TensorLayout((4,), (Piece.alone(0, Box((0,), (4,))),), "uint8")})
    saved = save_layout(whole, wholes_of(whole), world=1)
    catalog = saved.catalog
    half = catalog.tensors["w"].pieces[0].__class__(Box((0,), (2,)), "pack0", "w")
    catalog.tensors["w"] = catalog.tensors["w"].__class__("w", "uint8", (4,), (half,))
    items = items_of(whole, 0, None)
    with pytest.raises(NotCovered):
        load(catalog, match(catalog, items, (), rank=0, world=1), saved.sources)


# --- what does not fit -----------------------------------------------------------------------------------------------


def item(
    name: str, shape: tuple[int, ...] = (4,), dtype: str = "uint8", *, fill: int = 0, **options: Any
) -> TensorItem:
    block = np.full((*shape, DTYPES[dtype].itemsize), fill, np.uint8)
    return TensorItem(name, dtype, shape, (Held(whole_box(shape), memory_of(block)),), **options)


def saved_as(*items: TensorItem, values: Sequence[ValueItem] = (), world: int = 1) -> Saved:
    return save([Capture(items, tuple(values))] * world)


Keys = Sequence[tuple[str, bool, Any]]


def mismatch(
    saved: Saved, items: Sequence[TensorItem], values: Keys = (), *, rank: int = 0, world: int = 1
) -> StateMismatch:
    before = [bytes(held.memory.view()) for each in items for held in each.held]
    with pytest.raises(StateMismatch) as caught:
        match(saved.catalog, items, values, rank=rank, world=world)
    assert before == [bytes(held.memory.view()) for each in items for held in each.held]
    return caught.value


def test_a_tensor_that_was_not_saved_is_named() -> None:
    error = mismatch(saved_as(item("a")), [item("a"), item("b"), item("c")])
    assert error.missing == ["b", "c"]
    assert "not in the checkpoint: b, c" in str(error)


def test_a_saved_tensor_that_nobody_wants_is_named() -> None:
    error = mismatch(saved_as(item("a"), item("b")), [item("a")])
    assert error.unexpected == ["b"]
    assert "in the checkpoint but not here: b" in str(error)
    assert "read a part of it with perdure.load(url, names=[...])" in str(error)
    assert "perdure.load" not in str(mismatch(saved_as(item("a"), item("b")), [item("c")]))


def test_another_shape_or_dtype_is_named_with_both() -> None:
    error = mismatch(saved_as(item("a"), item("b")), [item("a", (5,)), item("b", dtype="int8")])
    assert (error.shape, error.dtype) == (["a"], ["b"])
    assert "a has shape [5] here, [4] in the checkpoint" in str(error)
    assert "b is int8 here, uint8 in the checkpoint" in str(error)


def test_every_key_that_does_not_fit_is_in_the_facts_of_one_error() -> None:
    saved = saved_as(item("a"), item("b"), item("d"), values=[ValueItem("v", 1)])
    error = mismatch(saved, [item("a", (5,)), item("b", dtype="int8"), item("c")], [("u", False, "modulo")])
    assert error.facts == {"missing": ["c", "u"], "unexpected": ["d", "v"], "shape": ["a"], "dtype": ["b"]}


def test_many_names_are_counted_and_not_all_printed() -> None:
    error = mismatch(saved_as(item("a")), [item("a"), *(item(f"b{i}") for i in range(10))])
    assert len(error.missing) == 10
    assert "and 4 more" in str(error)


def test_values_that_are_missing_or_unexpected_are_named() -> None:
    saved = saved_as(values=[ValueItem("a", 1), ValueItem("r", 2, local=True)])
    assert mismatch(saved, (), [("r", True, "modulo")]).unexpected == ["a"]
    assert mismatch(saved, (), [("a", False, "modulo")]).unexpected == ["r"]
    wanted: Keys = [("a", False, "modulo"), ("r", True, "modulo"), ("b", False, "modulo"), ("s", True, "modulo")]
    assert mismatch(saved, (), wanted).missing == ["b", "s"]
    assert match(saved.catalog, (), wanted[:2], rank=0, world=1) == []


def test_a_value_of_another_scope_does_not_fit() -> None:
    error = mismatch(saved_as(values=[ValueItem("a", 1, local=True)]), (), [("a", False, "modulo")])
    assert (error.missing, error.unexpected) == (["a"], ["a"])


# --- ties ------------------------------------------------------------------------------------------------------------


def test_a_tied_tensor_is_saved_once_and_either_name_finds_it() -> None:
    saved = saved_as(item("a", aliases=("b",), fill=7))
    assert len(saved.catalog.tensors) == 1
    for live in ([item("a", aliases=("b",))], [item("b", aliases=("a",))], [item("a"), item("b")], [item("b")]):
        load(saved.catalog, match(saved.catalog, live, (), rank=0, world=1), saved.sources)
        assert all((bytes_of(each.held[0]) == 7).all() for each in live)


def test_tensors_that_are_tied_here_but_were_saved_apart_are_refused() -> None:
    for local in (False, True):
        saved = saved_as(item("a", fill=1, local=local), item("b", fill=2, local=local))
        error = mismatch(saved, [item("a", aliases=("b",), local=local)])
        assert "a and b are one tensor here but were saved as two" in str(error)
        assert (error.missing, error.unexpected) == ([], [])


def test_a_name_of_a_tied_tensor_that_was_not_saved_is_missing() -> None:
    assert mismatch(saved_as(item("a")), [item("a", aliases=("b",))]).missing == ["b"]


def test_tied_rank_local_tensors_are_found_by_either_name() -> None:
    saved = saved_as(item("a", aliases=("b",), fill=7, local=True), world=2)
    for live in (
        [item("a", aliases=("b",), local=True)],
        [item("b", aliases=("a",), local=True)],
        [item("a", local=True), item("b", local=True)],
    ):
        load(saved.catalog, match(saved.catalog, live, (), rank=1, world=2), saved.sources)
        assert all((bytes_of(each.held[0]) == 7).all() for each in live)


def test_a_tensor_under_two_live_names_is_filled_under_both_whatever_their_cuts() -> None:
    saved = saved_as(item("a", aliases=("b",), fill=7))
    halves = [Held(Box((low,), (low + 2,)), memory_of(np.zeros((2, 1), np.uint8))) for low in (0, 2)]
    live = [item("a"), TensorItem("b", "uint8", (4,), tuple(halves))]
    load(saved.catalog, match(saved.catalog, live, (), rank=0, world=1), saved.sources)
    assert all((bytes_of(held) == 7).all() for each in live for held in each.held)


# --- rank-local ------------------------------------------------------------------------------------------------------


def local_run(world: int) -> Saved:
    captures = [
        Capture(
            (item("t", (rank + 1,), fill=rank, local=True), item("w", fill=9)),
            (ValueItem("v", rank, local=True),),
        )
        for rank in range(world)
    ]
    return save(captures)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_modulo_gives_a_rank_what_the_rank_of_its_remainder_saved(world: int) -> None:
    saved = local_run(3)
    for rank in range(world):
        live = [item("t", (rank % 3 + 1,), fill=0xAA, local=True), item("w")]
        load(saved.catalog, match(saved.catalog, live, [("v", True, "modulo")], rank=rank, world=world), saved.sources)
        assert (bytes_of(live[0].held[0]) == rank % 3).all()
        assert (bytes_of(live[1].held[0]) == 9).all()


def test_fresh_keeps_the_live_state_in_another_world_and_takes_its_own_in_the_same() -> None:
    saved = local_run(2)
    for world, expected in ((3, 0xAA), (2, 1)):
        live = [item("t", (2,), fill=0xAA, local=True, on_resize="fresh"), item("w")]
        found = match(saved.catalog, live, [("v", True, "fresh")], rank=1, world=world)
        load(saved.catalog, found, saved.sources)
        assert (bytes_of(live[0].held[0]) == expected).all()


def test_fresh_in_the_same_world_is_missing_if_it_was_not_saved() -> None:
    saved = saved_as(item("w"), world=2)
    live = [item("w"), item("t", local=True, on_resize="fresh")]
    assert mismatch(saved, live, [("v", True, "fresh")], world=2).missing == ["t", "v"]
    assert len(match(saved.catalog, live, [("v", True, "fresh")], rank=0, world=3)) == 1


def test_error_refuses_another_world_by_name() -> None:
    saved = local_run(2)
    live = [item("t", local=True, on_resize="error"), item("w")]
    with pytest.raises(CallError, match="t is rank-local") as caught:
        match(saved.catalog, live, [("v", True, "modulo")], rank=0, world=3)
    assert caught.value.key == "t"


def test_a_rank_is_asked_for_what_its_own_rank_saved_and_nothing_else() -> None:
    captures = [Capture((item(f"t{rank}", local=True),), (ValueItem(f"v{rank}", 0, local=True),)) for rank in range(2)]
    saved = save(captures)
    for rank in range(2):
        assert match(saved.catalog, [item(f"t{rank}", local=True)], [(f"v{rank}", True, "modulo")], rank=rank, world=2)
    error = mismatch(saved, [item("t1", local=True)], [("v1", True, "modulo")], rank=0, world=2)
    assert (error.missing, error.unexpected) == (["t1", "v1"], ["t0", "v0"])


def test_a_rank_local_tensor_in_other_blocks_than_were_saved_is_refused() -> None:
    saved = saved_as(item("t", local=True))
    half = Held(Box((0,), (2,)), memory_of(np.zeros((2, 1), np.uint8)))
    assert mismatch(saved, [TensorItem("t", "uint8", (4,), (half,), local=True)]).shape == ["t"]


def test_nothing_is_written_when_only_one_of_many_tensors_does_not_fit() -> None:
    names = [f"t{i}" for i in range(20)]
    saved = saved_as(*(item(name, fill=7) for name in names))
    mismatch(saved, [*(item(name) for name in names[:-1]), item(names[-1], dtype="int8")])


def test_matches_may_be_chosen_and_loaded_alone(tall: Any) -> None:
    _, wholes, saved = tall
    live = rows(0, 200)[0]
    load(saved.catalog, [Match(live, saved.catalog.tensors["tall"])], saved.sources)
    check_holds([live], wholes)


def test_ranks_that_hold_several_blocks_of_a_tensor_save_and_load_them() -> None:
    """As FSDP over TP does: every other row of one dim."""
    boxes = [[Box((at,), (at + 2,)) for at in (2 * rank, 2 * rank + 4)] for rank in range(2)]
    wholes = {"w": random_bytes("float32", (8,), 3)}
    captures = [
        Capture(
            (
                TensorItem(
                    "w", "float32", (8,), tuple(Held(b, memory_of(wholes["w"][b.lo[0] : b.hi[0]].copy())) for b in of)
                ),
            ),
            (),
        )
        for of in boxes
    ]
    saved = save(captures)
    live = [
        TensorItem("w", "float32", (8,), tuple(Held(b, memory_of(np.zeros((2, 4), np.uint8))) for b in of))
        for of in boxes
    ]
    whole = [TensorItem("w", "float32", (8,), (Held(whole_box((8,)), memory_of(np.zeros((8, 4), np.uint8))),))]
    for items in (*([each] for each in live), whole):
        load(saved.catalog, match(saved.catalog, items, (), rank=0, world=2), saved.sources)
        check_holds(items, wholes)


def test_errors_of_a_load_say_what_to_do_next(tall: Any) -> None:
    for error in (BlobCorrupt, BlobMissing, NotCovered):
        assert issubclass(error, PerdureError)
        assert error.exit_code == 65  # use another copy
    assert settle([offer(Capture((), ()), rank=0)], rank=0).packs[0].plan.entries == ()
