"""A settlement gives every piece to exactly one of its holders, on balance, and every rank comes to the same one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import CallError, LayoutError, PerdureError, StateMismatch
from perdure.layout import Box, Layout, Piece, TensorLayout
from perdure.state.items import Capture, Held, TensorItem, ValueItem
from perdure.state.save import SavePlan, copy_writes, offer, packs_of, settle
from perdure.testing.layouts import layouts, shapes
from perdure.testing.ranks import items_of, memory_of, random_bytes, whole_box

BOUNDED = settings(max_examples=60, deadline=None)
DTYPES = st.sampled_from(["float32", "bfloat16", "uint8", "complex128", "float8_e8m0fnu"])


@st.composite
def captures(draw: st.DrawFn) -> list[Capture]:
    """What 1 to 4 ranks hold of up to 4 tensors: any cuts, replicas, empty pieces, local tensors, values."""
    world = draw(st.integers(1, 4))
    names = [f"t{i}" for i in range(draw(st.integers(0, 4)))]
    layout = draw(layouts({name: draw(shapes()) for name in names}, world=world))
    layout = Layout({name: TensorLayout(t.shape, t.pieces, draw(DTYPES)) for name, t in layout.items()})
    wholes = {name: random_bytes(t.dtype, t.shape, i) for i, (name, t) in enumerate(layout.items())}
    found = []
    for rank in range(world):
        local = [
            TensorItem(
                f"l{i}", "uint8", (n,), (Held(whole_box((n,)), memory_of(random_bytes("uint8", (n,), n))),), local=True
            )
            for i, n in enumerate(draw(st.lists(st.integers(0, 9), max_size=2)))
        ]
        keys = draw(st.sets(st.sampled_from("abc"), max_size=3))
        values = [ValueItem(key, rank, local=draw(st.booleans())) for key in sorted(keys)]
        found.append(Capture(items_of(layout, rank, wholes) + tuple(local), tuple(values)))
    return found


def plans_of(of: list[Capture]) -> list[SavePlan]:
    offers = [offer(capture, rank=rank) for rank, capture in enumerate(of)]
    return [settle(offers, rank=rank) for rank in range(len(of))]


def written(plan: SavePlan, capture: Capture) -> list[tuple[str, Box, bool]]:
    items = [(capture.tensors[write.tensor], write.piece) for write in plan.writes]
    return [(item.name, item.held[piece].box, item.local) for item, piece in items]


@given(captures())
@BOUNDED
def test_every_piece_is_written_exactly_once(of: list[Capture]) -> None:
    plans = plans_of(of)
    shared = [
        (name, box) for plan, c in zip(plans, of, strict=True) for name, box, local in written(plan, c) if not local
    ]
    held = {(item.name, held.box) for capture in of for item in capture.tensors if not item.local for held in item.held}
    assert len(shared) == len(set(shared))
    assert set(shared) == {piece for piece in held if _counts(of, piece)}
    for plan, capture in zip(plans, of, strict=True):
        mine = [(item.name, held.box) for item in capture.tensors if item.local for held in item.held]
        assert [(name, box) for name, box, local in written(plan, capture) if local] == mine


@given(captures())
@BOUNDED
def test_every_value_is_written_by_one_rank_that_has_it_and_local_ones_by_their_own(of: list[Capture]) -> None:
    plans = plans_of(of)
    indexes = [plan.index(c, rank=rank, world=len(of)) for rank, (plan, c) in enumerate(zip(plans, of, strict=True))]
    found = [(each.key, each.value) for index in indexes for each in index.values if not each.local]
    assert len({key for key, _ in found}) == len(found)
    assert {key for key, _ in found} == {each.key for capture in of for each in capture.values if not each.local}
    for rank, (capture, index) in enumerate(zip(of, indexes, strict=True)):
        local = [(each.key, rank) for each in capture.values if each.local]
        assert [(each.key, each.value) for each in index.values if each.local] == local


@given(captures())
@BOUNDED
def test_no_holder_would_have_been_a_better_writer_of_the_last_piece_that_a_rank_took(of: list[Capture]) -> None:
    plans = plans_of(of)
    load = [plan.raw_nbytes for plan in plans]
    for rank, (plan, capture) in enumerate(zip(plans, of, strict=True)):
        holders = {
            (name, box): [
                r for r, c in enumerate(of) for i in c.tensors for h in i.held if (i.name, h.box) == (name, box)
            ]
            for name, box, local in written(plan, capture)
            if not local
        }
        sizes = {
            (capture.tensors[write.tensor].name, capture.tensors[write.tensor].held[write.piece].box): write.nbytes
            for write in plan.writes
        }
        chosen = [(sizes[piece], piece) for piece, among in holders.items() if len(among) > 1]
        if chosen:
            size, piece = max(chosen, key=lambda each: (-each[0], each[1][0], each[1][1].lo, each[1][1].hi))
            assert all(load[rank] - size <= load[other] for other in holders[piece])


def test_replicas_of_equal_tensors_are_shared_out_evenly() -> None:
    layout = Layout(
        {
            f"t{i}": TensorLayout((8,), tuple(Piece.alone(r, Box((0,), (8,))) for r in range(4)), "uint8")
            for i in range(8)
        }
    )
    wholes = {name: random_bytes("uint8", (8,), 1) for name in layout}
    plans = plans_of([Capture(items_of(layout, rank, wholes), ()) for rank in range(4)])
    assert [plan.raw_nbytes for plan in plans] == [16] * 4
    assert all(len(plan.replicas) == 8 for plan in plans)


def test_replicas_that_need_not_be_alike_are_those_of_the_lowest_rank_and_are_not_compared() -> None:
    """As the buffers of a module under data parallelism."""
    shared = [whole(f"t{i}", shape=(8,)) for i in range(4)]
    of = [Capture((*shared, whole("mean", shape=(8,), alike=False)), ()) for _ in range(3)]
    plans = plans_of(of)
    assert [("mean", Box((0,), (8,)), False) in written(plan, of[0]) for plan in plans] == [True, False, False]
    assert {name for plan in plans for name, _ in plan.replicas} == {f"t{i}" for i in range(4)}


@given(captures())
@BOUNDED
def test_all_ranks_settle_alike_and_again_the_same(of: list[Capture]) -> None:
    plans = plans_of(of)
    assert len({(plan.plan_id, plan.replicas) for plan in plans}) == 1
    assert plans_of(of) == plans
    replicas = {
        (item.name, held.box)
        for capture in of
        for item in capture.tensors
        for held in item.held
        if not item.local and sum((item.name, held.box) in _boxes(other) for other in of) > 1
        if _counts(of, (item.name, held.box))
    }
    assert set(plans[0].replicas) == replicas


def _counts(of: list[Capture], piece: tuple[str, Box]) -> bool:
    """Whether a piece is one to write: an empty shard of a tensor that has elements is not."""
    name, box = piece
    return not box.empty or any(0 in item.shape for capture in of for item in capture.tensors if item.name == name)


def _boxes(capture: Capture) -> set[tuple[str, Box]]:
    return {(item.name, held.box) for item in capture.tensors if not item.local for held in item.held}


@given(captures())
@BOUNDED
def test_an_index_tells_the_pack_that_its_writer_planned(of: list[Capture]) -> None:
    for rank, (plan, capture) in enumerate(zip(plans_of(of), of, strict=True)):
        assert packs_of(plan.index(capture, rank=rank, world=len(of))) == plan.packs
        assert sum(entry.nbytes for pack in plan.packs for entry in pack.plan.entries) == plan.raw_nbytes


@given(captures())
@BOUNDED
def test_the_bytes_of_a_rank_are_copied_to_where_its_pack_says(of: list[Capture]) -> None:
    for plan, capture in zip(plans_of(of), of, strict=True):
        pack = np.full(plan.total_nbytes + 64, 0xEE, np.uint8)
        copied = copy_writes(plan, capture, pack.ctypes.data, which=lambda owned: not owned)
        assert copied == plan.raw_nbytes
        assert copy_writes(plan, capture, pack.ctypes.data, which=lambda owned: owned) == 0
        expected = np.full_like(pack, 0xEE)
        for write in plan.writes:
            data = bytes(capture.tensors[write.tensor].held[write.piece].memory.view())
            expected[write.start : write.start + write.nbytes] = np.frombuffer(data, np.uint8)
        assert (pack == expected).all()


def test_what_an_optimizer_owns_is_copied_apart_from_the_rest() -> None:
    layout = Layout({"w": TensorLayout((4,), (Piece.alone(0, Box((0,), (4,))),), "uint8")})
    owned = items_of(layout, 0, {"w": random_bytes("uint8", (4,), 1)}, owned=True)
    other = items_of(Layout({"b": layout["w"]}), 0, {"b": random_bytes("uint8", (4,), 2)})
    capture = Capture(owned + other, ())
    plan = settle([offer(capture, rank=0)], rank=0)
    pack = np.zeros(plan.total_nbytes, np.uint8)
    w, b = (slice(entry.start, entry.start + 4) for entry in plan.packs[0].plan.entries)
    assert copy_writes(plan, capture, pack.ctypes.data, which=lambda owned: not owned) == 4
    assert not pack[w].any()
    assert bytes(pack[b]) == bytes(other[0].held[0].memory.view())
    assert copy_writes(plan, capture, pack.ctypes.data, which=lambda owned: owned) == 4
    assert bytes(pack[w]) == bytes(owned[0].held[0].memory.view())


def refusals(of: list[Capture]) -> list[tuple[str, str, Any]]:
    """How each rank refuses to settle."""
    offers = [offer(capture, rank=rank) for rank, capture in enumerate(of)]
    found = []
    for rank in range(len(of)):
        with pytest.raises(PerdureError) as caught:
            settle(offers, rank=rank)
        found.append((caught.value.kind, str(caught.value), caught.value.facts))
    return found


@given(captures(), st.data())
@BOUNDED
def test_a_gap_is_refused_by_all_ranks_alike(of: list[Capture], data: st.DataObject) -> None:
    pieces = sorted({(n, b.lo, b.hi) for capture in of for n, b in _boxes(capture) if not b.empty})
    if not pieces:
        return
    name, lo, hi = data.draw(st.sampled_from(pieces))

    def without(item: TensorItem) -> TensorItem:
        held = tuple(each for each in item.held if (item.name, each.box) != (name, Box(lo, hi)))
        return TensorItem(item.name, item.dtype, item.shape, held, local=item.local)

    broken = [Capture(tuple(without(item) for item in capture.tensors), capture.values) for capture in of]
    found = refusals(broken)
    assert {kind for kind, _, _ in found} == {LayoutError.kind}
    assert found == [found[0]] * len(of)
    assert found[0][2]["tensor"] == name
    assert name in found[0][1]


def whole(name: str, dtype: str = "float32", shape: tuple[int, ...] = (2,), **options: Any) -> TensorItem:
    return TensorItem(
        name, dtype, shape, (Held(whole_box(shape), memory_of(random_bytes(dtype, shape, 0))),), **options
    )


@pytest.mark.parametrize("other", [whole("w", dtype="float64"), whole("w", shape=(3,)), whole("w", shape=(2, 1))])
def test_another_dtype_or_shape_on_one_rank_is_refused_by_all_and_named(other: TensorItem) -> None:
    found = refusals([Capture((whole("w"),), ()), Capture((whole("w"),), ()), Capture((other,), ())])
    assert found == [found[0]] * 3
    kind, message, facts = found[0]
    assert kind == StateMismatch.kind
    assert facts["shape"] == ["w"]
    assert "rank 0" in message
    assert "rank 2" in message
    assert "RankLocal" in message


def test_local_tensors_may_differ_between_ranks() -> None:
    of = [Capture((whole("w", shape=(n,), local=True),), ()) for n in (2, 3)]
    assert [plan.raw_nbytes for plan in plans_of(of)] == [8, 12]


def test_a_name_of_two_tensors_is_refused_by_all() -> None:
    tied = Capture((whole("a", aliases=("b",)),), ())
    untied = Capture((whole("a"), whole("b")), ())
    for of in ([tied, untied], [untied, tied]):
        found = refusals(of)
        assert found == [found[0]] * 2
        assert found[0][0] == LayoutError.kind
        assert found[0][2]["tensor"] == "b"


def test_other_names_are_kept_whichever_rank_writes_the_tensor() -> None:
    of = [Capture((whole("a", aliases=aliases),), ()) for aliases in ((), ("b",), ("c",))]
    (saved,) = (tensor for plan in plans_of(of) for tensor in plan.tensors)
    assert saved.aliases == ("b", "c")


@pytest.mark.parametrize(
    "of",
    [
        [Capture((whole("__w"),), ())] * 2,
        [Capture((whole("a"),), ()), Capture((whole("a"), whole("line\nbreak")), ())],
        [Capture((whole("a"),), ()), Capture((whole("a"), whole("w" * 5000)), ())],
        [Capture((whole("w", local=True),), ()), Capture((whole("w@rank0"),), ())],
        [Capture((whole("a"), whole("a", local=True)), ()), Capture((whole("a@rank0"),), ())],
    ],
)
def test_a_name_that_a_pack_cannot_hold_is_refused_by_all(of: list[Capture]) -> None:
    found = refusals(of)
    assert found == [found[0]] * 2
    assert found[0][0] == CallError.kind


def test_the_same_box_twice_on_one_rank_is_refused() -> None:
    with pytest.raises(LayoutError, match="twice"):
        plans_of([Capture((whole("w"), whole("w")), ())])
